//! Descriptors that run out: a task whose last one went into new memory still tells its peers of that memory, and one
//! that has none for a peer's new memory has it copied; an engine is not started for want of some. And what may not run
//! out: a process that comes again and again costs its peer one descriptor.
//!
//! The other side is a process of its own, this very binary in another role: what one process has no descriptors for,
//! the other must be able to take.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rendez::control::{Address, RuntimeKind};
use rendez::engine::{Config, Engine};
use rendez::ground::{DType, Key, StepId, TaskName};
use rendez::trace::Path;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const ADDRESS: &str = "RENDEZ_TEST_ADDRESS";
const VISITED: &str = "RENDEZ_TEST_VISITED";
const FROM: &str = "RENDEZ_TEST_FROM";
const PATIENCE: Duration = Duration::from_secs(20);
const STEP: StepId = StepId(1);
const SEGMENT: u64 = 4 << 20;
/// Two do not lie in one segment.
const LEN: u64 = 3 << 20;
/// The first opens the way, the second wants a new segment.
const ROUNDS: u8 = 3;

fn engine(task: &str, address: &str) -> Engine {
    let mut config = Config::new(format!("/job:{task}/task:0"));
    config.shards = 1;
    config.share_cores = true;
    config.arena.segment_bytes = SEGMENT as usize;
    config.listen = Some(address.parse::<Address>().unwrap());
    Engine::start(config).unwrap()
}

fn key(round: u8) -> Key {
    Key::between("sender", "receiver", &format!("round{round}")).unwrap()
}

/// Not a test of its own: what the sender's process runs.
#[test]
fn sender() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let sender = engine("sender", &format!("{address}-sender"));
    let receiver = TaskName::parse("/job:receiver/task:0").unwrap();
    sender.add_peer(receiver.clone(), address.parse().unwrap());
    sender.connect(&receiver);
    let step = sender.step(STEP);
    let mut held = vec![];
    for round in 0..ROUNDS {
        if round == 1 {
            // The peer that connects has its descriptors by now: the first value has come.
            let came = Key::between("receiver", "sender", "came").unwrap();
            step.recv(&came).deadline(PATIENCE).wait().unwrap();
            held = leave_one_descriptor();
        }
        let mut builder = match sender.tensor(DType::U8, &[LEN]) {
            Ok(builder) => builder,
            // There is none left for a third segment, and that is said.
            Err(status) => {
                assert_eq!((round, status.reason()), (2, "SYSTEM_LIMIT"), "{status}");
                break;
            }
        };
        builder.bytes_mut().fill(round);
        step.send(&key(round), builder.finish()).unwrap();
    }
    // The harness has left its own line open.
    let said = format!("\n@sent without {} descriptors\n", held.len());
    std::io::stdout().write_all(said.as_bytes()).unwrap();
    let done = Key::between("receiver", "sender", "done").unwrap();
    step.recv(&done).deadline(PATIENCE).wait().unwrap();
}

/// Takes all descriptors there are but one.
fn leave_one_descriptor() -> Vec<File> {
    let mut held = leave_none();
    assert!(held.pop().is_some(), "there were some left");
    held
}

fn leave_none() -> Vec<File> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(256),
            maximum: limit.maximum,
        },
    )
    .unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn new_memory_is_announced_with_the_last_descriptor() {
    let address = format!("unix:@rendez-descriptors-{}", std::process::id());
    let receiver = engine("receiver", &address);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "descriptors::sender",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(ADDRESS, &address)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let step = receiver.step(STEP);
    let mut kept = vec![];
    for round in 0..2 {
        let received = step.recv(&key(round)).deadline(PATIENCE).wait();
        let received = received.unwrap_or_else(|status| panic!("round {round}: {status}"));
        assert_eq!(received.path, Path::Lease, "round {round}");
        assert!(
            received
                .tensor
                .host()
                .unwrap()
                .iter()
                .all(|byte| *byte == round)
        );
        // Held, so that the next one wants new memory.
        kept.push(received.tensor);
        if round == 0 {
            let came = Key::between("receiver", "sender", "came").unwrap();
            step.send(&came, rendez::memory::Tensor::scalar(1_u8))
                .unwrap();
        }
    }
    let done = Key::between("receiver", "sender", "done").unwrap();
    step.send(&done, rendez::memory::Tensor::scalar(1_u8))
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    let said: Vec<String> = said.lines().map_while(Result::ok).collect();
    assert!(child.wait().unwrap().success(), "{said:#?}");
    assert!(
        said.iter().any(|line| line.starts_with("@sent without ")),
        "{said:#?}"
    );
}

/// Not a test of its own: what the process of a receiver runs that has no descriptor left for new memory.
#[test]
fn receiver_without() {
    let Ok(address) = std::env::var(FROM) else {
        return;
    };
    let receiver = engine("receiver", &address);
    let step = receiver.step(STEP);
    let mut held = vec![];
    for round in 0..ROUNDS {
        let received = step.recv(&key(round)).deadline(PATIENCE).wait();
        let received = received.unwrap_or_else(|status| panic!("round {round}: {status}"));
        assert_eq!(received.path == Path::Lease, round == 0, "round {round}");
        let bytes = received.tensor.host().unwrap();
        assert!(bytes.iter().all(|byte| *byte == round));
        if round == 0 {
            // What comes later is copied into memory that there is already.
            held = leave_one_descriptor();
            held.extend(File::open("/dev/null"));
        }
        let came = Key::between("receiver", "sender", &format!("came{round}")).unwrap();
        step.send(&came, rendez::memory::Tensor::scalar(1_u8))
            .unwrap();
    }
    drop(held);
    receiver.shutdown(PATIENCE);
}

/// A peer that cannot take new memory is served all the same: it has what lies there copied, and nothing is lost.
#[test]
fn new_memory_that_a_peer_has_no_descriptor_for_is_copied() {
    let address = format!("unix:@rendez-without-{}", std::process::id());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "descriptors::receiver_without",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(FROM, &address)
        .spawn()
        .unwrap();
    let sender = engine("sender", &format!("{address}-sender"));
    let receiver = TaskName::parse("/job:receiver/task:0").unwrap();
    sender.add_peer(receiver.clone(), address.parse().unwrap());
    sender.connect(&receiver);
    let step = sender.step(STEP);
    let mut held = vec![];
    for round in 0..ROUNDS {
        let mut builder = sender.tensor(DType::U8, &[LEN]).unwrap();
        builder.bytes_mut().fill(round);
        let tensor = builder.finish();
        held.push(tensor.clone());
        step.send(&key(round), tensor).unwrap();
        let came = Key::between("receiver", "sender", &format!("came{round}")).unwrap();
        step.recv(&came).deadline(PATIENCE).wait().unwrap();
    }
    assert!(child.wait().unwrap().success());
    sender.shutdown(PATIENCE);
}

/// Each of its connections ends without a proof that its process did.
const VISITS: usize = 20;

/// Not a test of its own: what the visitor's process runs. It lives on until its standard input ends.
#[test]
fn visitor() {
    let Ok(address) = std::env::var(VISITED) else {
        return;
    };
    let host = TaskName::parse("/job:host/task:0").unwrap();
    for visit in 0..VISITS {
        let visitor = engine("visitor", &format!("{address}-visitor{visit}"));
        visitor.add_peer(host.clone(), address.parse().unwrap());
        visitor.reach(&host, PATIENCE).unwrap();
        visitor.shutdown(PATIENCE);
    }
    // The harness has left its own line open.
    std::io::stdout().write_all(b"\n@visited\n").unwrap();
    std::io::stdin().read_to_end(&mut vec![]).unwrap();
}

/// How many handles this process has of another.
fn handles(of: u32) -> usize {
    let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    let texts = infos.filter_map(|info| std::fs::read_to_string(info.ok()?.path()).ok());
    let pid = format!("Pid:\t{of}");
    texts
        .filter(|text| text.lines().any(|line| line == pid))
        .count()
}

#[test]
fn a_process_that_comes_again_and_again_costs_one_descriptor() {
    let address = format!("unix:@rendez-visited-{}", std::process::id());
    let host = engine("host", &address);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "descriptors::visitor",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(VISITED, &address)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    let mut said = said.lines().map_while(Result::ok);
    assert!(said.any(|line| line == "@visited"));
    // Those of connections that are just over may be open for a moment.
    let process = child.id();
    let wait_for = |most: usize| {
        let until = Instant::now() + PATIENCE;
        while handles(process) > most {
            assert!(Instant::now() < until, "{} handles", handles(process));
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for(1);
    assert_eq!(handles(process), 1, "it is followed as long as it lives");
    drop(child.stdin.take());
    said.for_each(drop);
    wait_for(0);
    assert!(child.wait().unwrap().success());
    host.shutdown(PATIENCE);
}

const STARVED: &str = "RENDEZ_TEST_STARVED";

/// Not a test of its own: what the process runs that starts engines with no descriptor left, with one, and so on.
#[test]
fn starved() {
    let Ok(runtime) = std::env::var(STARVED) else {
        return;
    };
    let mut held = leave_none();
    loop {
        let mut config = Config::new("/job:starved/task:0");
        config.shards = 1;
        config.share_cores = true;
        config.listen = Some("127.0.0.1:0".parse::<Address>().unwrap());
        config.runtime = match runtime.as_str() {
            "poll" => Some(RuntimeKind::Poll),
            _ => None,
        };
        match Engine::start(config) {
            Ok(engine) => return engine.shutdown(PATIENCE),
            Err(status) => assert_eq!(status.reason(), "SYSTEM_LIMIT", "{status}"),
        }
        assert!(held.pop().is_some(), "it starts with all of them");
    }
}

#[test]
fn an_engine_without_descriptors_says_so_and_does_not_start() {
    for runtime in ["poll", "any"] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "descriptors::starved", "--nocapture"])
            .env(STARVED, runtime)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        let told = String::from_utf8_lossy(&child.stdout);
        let is_well = child.status.success() && told.contains("1 passed");
        assert!(
            is_well && !said.contains("panicked"),
            "{runtime}: {told}{said}"
        );
    }
}
