//! Servers: states, refusals, and clusters that come up.

#[path = "../../../tests/ports/mod.rs"]
mod ports;

mod ends;
mod operations;
mod restarts;

use std::net::TcpListener;
use std::time::Duration;

use ports::free_ports;

use super::{Protocol, Server, Stage, State};
use rendez::cluster::{ClusterSpec, HostPort, Membership, Resolved, Source};
use rendez::control::Path;
use rendez::engine::{Config, Require};
use rendez::ground::{Code, Key, StepId, TaskName, catalogue};
use rendez::memory::Tensor;

const PATIENCE: Duration = Duration::from_secs(20);

fn task(name: &str) -> TaskName {
    TaskName::parse(name).unwrap()
}

fn config(name: &str) -> Config {
    let mut config = Config::new(name);
    (config.shards, config.share_cores) = (1, true);
    config.arena.segment_bytes = 4 << 20;
    config
}

fn spec(ports: [u16; 2]) -> ClusterSpec {
    let [ps, worker] = ports.map(|port| HostPort::new("127.0.0.1", port).unwrap());
    let mut spec = ClusterSpec::new();
    spec.add_job("ps", [(0, ps)]).unwrap();
    spec.add_job("worker", [(0, worker)]).unwrap();
    spec
}

fn server(spec: &ClusterSpec, name: &str, require: Require) -> Server {
    let mut config = config(name);
    config.require = require;
    let builder = Server::builder().config(config).cluster(spec.clone());
    builder.task(task(name)).build().unwrap()
}

fn hands_over(require: Require) -> Path {
    let spec = spec(free_ports());
    let (ps, worker) = (
        server(&spec, "/job:ps/task:0", require),
        server(&spec, "/job:worker/task:0", require),
    );
    ps.start().unwrap();
    let key = Key::between("ps", "worker", "weights").unwrap();
    let tensor = Tensor::from_vec(vec![7u8; 5000], rendez::ground::Shape::row(5000).unwrap());
    let step = ps.engine().unwrap().step(StepId(1));
    step.send(&key, tensor.unwrap()).unwrap();
    // The consumer comes up after the value was sent.
    worker.start().unwrap();
    let engine = worker.engine().unwrap();
    let got = engine.step(StepId(1)).recv(&key).deadline(PATIENCE).wait();
    assert_eq!(got.unwrap().tensor.host().unwrap(), [7; 5000]);
    let path = engine.connected()[0].path;
    ps.stop(None);
    worker.stop(None);
    path
}

#[test]
fn tasks_of_one_machine_meet_by_shared_memory() {
    assert_eq!(hands_over(Require::None), Path::Shm);
}

#[test]
fn the_same_by_tcp_where_it_is_demanded() {
    assert_eq!(hands_over(Require::Tcp), Path::Tcp);
}

#[test]
fn a_server_lives_once() {
    let spec = spec(free_ports());
    let server = server(&spec, "/job:ps/task:0", Require::None);
    assert_eq!(server.state(), State::New);
    assert_eq!(
        server.engine().unwrap_err().message(),
        "Server has not been started."
    );
    assert_eq!(server.target(), None);
    server.start().unwrap();
    server.start().unwrap();
    assert_eq!(server.state(), State::Started);
    assert!(server.target().unwrap().starts_with("rendez://127.0.0.1:"));
    let joined = std::thread::spawn({
        let server = server.clone();
        move || server.join()
    });
    server.stop(Some(Duration::from_secs(1)));
    server.stop(None);
    joined.join().unwrap();
    let status = server.start().unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert_eq!(status.message(), "Server has stopped.");
}

#[test]
fn a_task_that_is_not_in_the_cluster_is_refused() {
    let cluster = spec([1, 2]);
    let builder = Server::builder()
        .cluster(cluster.clone())
        .task(task("/job:ps/task:3"));
    let status = builder.build().unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    let text = "Task 3 was not defined in job \"ps\"";
    assert!(status.message().starts_with(text), "{status}");
    let status = Server::builder().cluster(cluster).build().unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

#[test]
fn a_stranger_of_another_cluster_gets_nothing() {
    let ours = spec(free_ports());
    let ps = server(&ours, "/job:ps/task:0", Require::None);
    ps.start().unwrap();
    let mut config = config("/job:thief/task:0");
    config.connect_timeout = Duration::from_secs(2);
    let thief = rendez::engine::Engine::start(config).unwrap();
    let target = super::dialled(ours.find("ps", 0).unwrap());
    thief.add_peer(task("/job:ps/task:0"), target);
    let key = Key::between("ps", "thief", "weights").unwrap();
    let status = thief.step(StepId(1)).recv(&key).deadline(PATIENCE).wait();
    let status = status.unwrap_err();
    assert!(
        status.message().contains("is not a task of this cluster"),
        "{status}"
    );
    assert!(ps.engine().unwrap().connected().is_empty());
}

#[test]
fn protocols_have_the_names_of_others() {
    assert_eq!(Protocol::find("auto").unwrap(), Protocol::Auto);
    assert_eq!(Protocol::find("grpc").unwrap(), Protocol::Auto);
    assert_eq!(Protocol::find("tcp").unwrap(), Protocol::Tcp);
    assert_eq!(Protocol::find("verbs").unwrap(), Protocol::Verbs);
    assert_eq!(Protocol::find("grpc+verbs").unwrap(), Protocol::Verbs);
    for refused in ["grpc+gdr", "grpc+mpi", "grpc+seastar"] {
        let status = Protocol::find(refused).unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{refused}");
    }
    let status = Protocol::find("carrier-pigeon").unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    let text = "No server factory registered for the given ServerDef";
    assert!(status.message().starts_with(text), "{status}");
    assert!(
        status
            .message()
            .contains("[ auto, shm, tcp, verbs, grpc, grpc+verbs ]"),
        "{status}"
    );
}

fn resolved_rank(root: &HostPort, rank: u32, restart: u64) -> Resolved {
    let name = format!("/job:worker/task:{rank}");
    Resolved {
        membership: Membership::Rooted {
            root: root.clone(),
            rank,
            size: 3,
        },
        task: task(&name),
        epoch: Some(rendez::cluster::Epoch {
            run: "run".into(),
            restart,
        }),
        local: None,
        source: Source::Torchrun,
        origin: String::new(),
        notes: Vec::new(),
        passed_over: Vec::new(),
    }
}

fn rooted(root: &HostPort, rank: u32, restart: u64, patience: Duration) -> Server {
    let resolved = resolved_rank(root, rank, restart);
    let mut config = config(&resolved.task.to_string());
    config.connect_timeout = patience;
    let builder = Server::builder().config(config).resolved(&resolved);
    builder.build().unwrap()
}

#[test]
fn ranks_that_know_their_root_learn_of_each_other() {
    let [port] = free_ports();
    let root = HostPort::new("127.0.0.1", port).unwrap();
    let servers = [0, 1, 2].map(|rank| rooted(&root, rank, 0, PATIENCE));
    let starts = servers.clone().map(|server| {
        std::thread::spawn(move || server.start().unwrap_or_else(|status| panic!("{status}")))
    });
    for start in starts {
        start.join().unwrap();
    }
    // Two that were never told of each other's address.
    let key = Key::between("/job:worker/task:1", "/job:worker/task:2", "edge").unwrap();
    let [_, one, two] = &servers;
    let step = one.engine().unwrap().step(StepId(1));
    step.send(&key, Tensor::scalar(5u8)).unwrap();
    let engine = two.engine().unwrap();
    let got = engine.step(StepId(1)).recv(&key).deadline(PATIENCE).wait();
    assert_eq!(got.unwrap().tensor.host().unwrap(), [5]);
    assert_eq!(two.cluster().len(), 3);
}

/// A cluster never says `0.0.0.0`: a task that dialled that would dial itself.
#[test]
fn ranks_that_listen_everywhere_say_where_they_are() {
    let [port] = free_ports();
    let root = HostPort::new("127.0.0.1", port).unwrap();
    let servers = [0, 1, 2].map(|rank| {
        let resolved = resolved_rank(&root, rank, 0);
        let mut config = config(&resolved.task.to_string());
        (config.connect_timeout, config.insecure) = (PATIENCE, true);
        let listen = [
            format!("0.0.0.0:{port}"),
            "0.0.0.0:0".into(),
            "[::]:0".into(),
        ];
        config.listen = Some(listen[rank as usize].parse().unwrap());
        let builder = Server::builder().config(config).resolved(&resolved);
        builder.build().unwrap()
    });
    let starts = servers.clone().map(|server| {
        std::thread::spawn(move || server.start().unwrap_or_else(|status| panic!("{status}")))
    });
    for start in starts {
        start.join().unwrap();
    }
    for server in &servers {
        let cluster = server.cluster();
        let hosts: Vec<&str> = cluster.tasks().map(|(_, address)| address.host()).collect();
        assert_eq!(hosts, ["127.0.0.1"; 3], "{cluster}");
        assert_eq!(cluster.find("worker", 0).unwrap(), &root);
    }
}

/// The DNS of Kubernetes may know a pod later than the pod itself.
#[test]
fn a_task_whose_own_name_is_not_known_listens_all_the_same() {
    let [port] = free_ports();
    let cluster = ClusterSpec::parse(&format!("ps=nowhere.invalid:{port}")).unwrap();
    let start = |insecure| {
        let mut config = config("/job:ps/task:0");
        config.insecure = insecure;
        let builder = Server::builder().config(config).cluster(cluster.clone());
        let server = builder.task(task("/job:ps/task:0")).build().unwrap();
        server.start().map(|()| server)
    };
    let server = start(true).unwrap();
    let engine = server.engine().unwrap();
    let address = engine.tcp_address().unwrap();
    assert!(address.is_wildcard(), "{address}");
    // Others are told the name.
    let target = format!("rendez://nowhere.invalid:{port}");
    assert_eq!(server.target(), Some(target));
    server.stop(None);
    // All addresses are open only where that is said.
    assert_eq!(start(false).unwrap_err().reason(), "CONTROL_EXPOSED");
}

#[test]
fn ranks_that_do_not_come_are_named() {
    let [port] = free_ports();
    let root = HostPort::new("127.0.0.1", port).unwrap();
    let patience = Duration::from_millis(1500);
    let one = rooted(&root, 1, 0, patience);
    let started = std::thread::spawn(move || one.start());
    let status = rooted(&root, 0, 0, patience).start().unwrap_err();
    assert_eq!(status.reason(), "CLUSTER_INCOMPLETE");
    assert!(
        status.message().starts_with("ranks 2 of job worker"),
        "{status}"
    );
    started.join().unwrap().unwrap_err();
}

#[test]
fn a_server_that_waits_for_its_ranks_is_stopped_at_once() {
    let [port] = free_ports();
    let root = HostPort::new("127.0.0.1", port).unwrap();
    for rank in [0, 1] {
        let server = rooted(&root, rank, 0, Duration::from_secs(3));
        let starts = server.clone();
        let starts = std::thread::spawn(move || starts.start());
        let is_before = || matches!(*server.stage(), Stage::New | Stage::Starting(None));
        while is_before() && !starts.is_finished() {
            std::thread::yield_now();
        }
        assert!((server.state(), server.target()) == (State::New, None));
        let stops = server.clone();
        let stops = std::thread::spawn(move || stops.stop(Some(Duration::from_millis(100))));
        server.join();
        // It is stopped where it is said to be: another listens in its place.
        drop(TcpListener::bind(("127.0.0.1", port)).unwrap());
        let status = starts.join().unwrap().unwrap_err();
        assert_eq!(status.reason(), catalogue::SERVER_STOPPED, "{status}");
        stops.join().unwrap();
        assert_eq!(server.state(), State::Stopped);
        let again = server.start().unwrap_err();
        assert_eq!(again.message(), "Server has stopped.");
    }
}

#[test]
fn another_life_of_the_job_is_not_met() {
    let [port] = free_ports();
    let root = HostPort::new("127.0.0.1", port).unwrap();
    let patience = Duration::from_millis(1500);
    let stale = rooted(&root, 1, 0, patience);
    let started = std::thread::spawn(move || stale.start());
    let status = rooted(&root, 0, 1, patience).start().unwrap_err();
    assert_eq!(status.reason(), "CLUSTER_INCOMPLETE");
    let status = started.join().unwrap().unwrap_err();
    assert!(status.message().contains("epoch"), "{status}");
}
