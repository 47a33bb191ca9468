//! Groups of all tasks of a cluster.

use rendez::cluster::ClusterSpec;
use rendez::control::Address;

use super::*;

fn listening(task: &str) -> Engine {
    let mut config = Config::new(task);
    (config.shards, config.share_cores) = (1, true);
    config.arena.segment_bytes = 4 << 20;
    config.poll = rendez::drive::PollPolicy::Park;
    config.listen = Some("127.0.0.1:0".parse().expect("an address"));
    config.insecure = true;
    Engine::start(config).expect("an engine")
}

/// Engines of the tasks of a job, and the cluster that they are.
fn cluster(count: usize) -> (Vec<Engine>, ClusterSpec) {
    let engines: Vec<Engine> = (0..count)
        .map(|at| listening(&format!("/job:w/task:{at}")))
        .collect();
    let address = |engine: &Engine| match engine.tcp_address() {
        Some(Address::Tcp { port, .. }) => format!("127.0.0.1:{port}"),
        other => panic!("{other:?} is no address"),
    };
    let addresses: Vec<String> = engines.iter().map(address).collect();
    let spec = ClusterSpec::parse(&format!("w={}", addresses.join(","))).expect("a cluster");
    (engines, spec)
}

fn init_all(engines: &[Engine], spec: &ClusterSpec, names: &[&str]) -> Vec<Result<Agent, Error>> {
    std::thread::scope(|scope| {
        let join = |(engine, name)| {
            let mut options =
                Options::of_cluster(spec).functions(Functions::new().add("who", |to: String| to));
            options.init_timeout = Duration::from_secs(20);
            scope.spawn(move || Agent::init(engine, name, options))
        };
        let joining: Vec<_> = engines
            .iter()
            .zip(names.iter().copied())
            .map(join)
            .collect();
        joining
            .into_iter()
            .map(|one| one.join().expect("no panic"))
            .collect()
    })
}

#[test]
fn the_tasks_of_a_cluster_are_a_group_and_each_says_its_name() {
    let (engines, spec) = cluster(3);
    let names = ["master", "left", "right"];
    let agents: Vec<Agent> = init_all(&engines, &spec, &names)
        .into_iter()
        .map(|agent| agent.expect("an agent"))
        .collect();
    for agent in &agents {
        let known: Vec<String> = agent.workers().into_iter().map(|info| info.name).collect();
        assert_eq!(known, names);
        for name in names {
            let said: String = agent
                .rpc_sync(name, "who", (name.to_owned(),))
                .expect("a result");
            assert_eq!(said, name);
        }
    }
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

#[test]
fn two_tasks_of_one_name_are_refused_and_so_is_a_stranger() {
    let (engines, spec) = cluster(2);
    let outcomes = init_all(&engines, &spec, &["same", "same"]);
    let refused = outcomes.into_iter().filter_map(Result::err);
    let reasons: Vec<&str> = refused.map(|error| error.reason()).collect();
    assert!(reasons.contains(&catalogue::RPC_NAME), "{reasons:?}");
    let stranger = engine("/job:stranger/task:0");
    let error = Agent::init(&stranger, "x", Options::of_cluster(&spec)).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_GROUP);
    assert!(
        error.message().contains("no task of the cluster"),
        "{error}"
    );
}
