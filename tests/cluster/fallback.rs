//! A fallback: two tasks of one machine between which no descriptor gets through go on by TCP, which is counted, told
//! once, and explained.
//!
//! The other task is this very test binary, asked to run the one test [`child`]: it gives up its right to make Unix
//! sockets once its engine runs.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use rendez::control::{Address, Path};
use rendez::engine::{Config, Engine};
use rendez::ground::TaskName;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::support::{PATIENCE, Place, Process, free_ports};

const PORTS: &str = "RENDEZ_TEST_PORTS";
const A: &str = "/job:a/replica:0/task:0";
const B: &str = "/job:b/replica:0/task:0";

#[test]
fn a_way_that_is_not_the_best_is_counted_told_once_and_explained() {
    let place = Place::new();
    let [a, b] = free_ports();
    let cluster = format!("a=127.0.0.1:{a};b=127.0.0.1:{b}");
    let serving = place.start(&["serve", "--cluster", &cluster, "--job", "a", "--task", "0"]);
    serving.await_said("of 2 tasks");
    let mut command = Command::new(std::env::current_exe().expect("our binary"));
    command
        .args([
            "--exact",
            "fallback::child",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PORTS, format!("{a} {b}"));
    let fenced = Process::start(command);
    fenced.await_said("@fell back");

    let explained = place
        .run(&["explain", "--json", "--cluster", &cluster])
        .well();
    let objects = explained.objects();
    assert_eq!(objects.len(), 2, "{}", explained.said);
    for object in &objects {
        assert_eq!(
            (&object["path"], &object["fallbacks"]),
            (&"tcp".into(), &1.into()),
            "{object}"
        );
        assert_eq!(object["protection"], "clear");
        let not = object["not"].as_str().expect("a text");
        let expected = format!("{A} cannot be greeted at unix:@rendez/");
        assert!(
            not.starts_with("shm, verbs: ") && not.contains(&expected),
            "{not}"
        );
        assert!(not.contains("Operation not permitted"), "{not}");
        assert!(!not.contains("RDMA"), "{not}");
    }
    let log = serving.stop().well().said;
    assert_eq!(
        log.matches("the best way to a peer is unavailable").count(),
        1,
        "{log}"
    );
    let warned = log
        .lines()
        .filter(|line| line.contains("WARN") && line.contains("the best way"));
    for line in warned {
        assert!(
            !line.contains("RDMA") && !line.contains("libibverbs"),
            "{line}"
        );
    }
    drop(fenced);
    place.await_nobody();
}

/// Not a test of its own: what the other task's process runs.
#[test]
fn child() {
    let Ok(ports) = std::env::var(PORTS) else {
        return;
    };
    let (a, b) = ports.split_once(' ').expect("two ports");
    let address =
        |port: &str| -> Address { format!("127.0.0.1:{port}").parse().expect("an address") };
    let mut config = Config::new(B);
    (config.shards, config.share_cores) = (1, true);
    config.listen = Some(address(b));
    config.peers.insert(A.into(), address(a));
    let engine = Engine::start(config).expect("started");
    let task = TaskName::parse(A).expect("a name");
    forbid_unix_sockets();
    engine.connect(&task);
    until(|| !engine.connected().is_empty());
    let connected = &engine.connected()[0];
    assert!(
        connected.path == Path::Tcp && connected.fell_back,
        "{connected:?}"
    );
    let fallbacks = engine.fallbacks();
    assert_eq!(fallbacks.len(), 1);
    let fallback = &fallbacks[0];
    assert_eq!((&fallback.task, fallback.count), (&task, 1));
    assert_eq!((fallback.from, fallback.to), (Path::Shm, Path::Tcp));
    assert_eq!(fallback.why, connected.why);
    // The harness has left its own line open.
    let mut output = std::io::stdout();
    output
        .write_all(b"\n@fell back\n")
        .and_then(|()| output.flush())
        .expect("said");
    // Until it is killed.
    std::thread::sleep(PATIENCE);
}

fn until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "not in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What another network namespace would come to: Unix addresses of this one are out of reach.
fn forbid_unix_sockets() {
    let is_unix = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 1);
    let rule = SeccompRule::new(vec![is_unix.expect("a condition")]).expect("a rule");
    let filter = SeccompFilter::new(
        BTreeMap::from([(libc::SYS_socket, vec![rule])]),
        SeccompAction::Allow,
        SeccompAction::Errno(1),
        TargetArch::try_from(std::env::consts::ARCH).expect("a known machine"),
    );
    let program = BpfProgram::try_from(filter.expect("a filter")).expect("a program");
    seccompiler::apply_filter_all_threads(&program).expect("applied");
}
