//! Two processes: this test starts itself again as the second worker.
#![allow(
    clippy::print_stdout,
    reason = "the second worker says where it listens"
)]

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rendez::control::Address;
use rendez::engine::{Config, Engine};
use rendez::ground::{DType, catalogue};
use rendez::memory::Tensor;
use rendez_rpc::{Agent, Error, Functions, Options, Worker};

const LONG: Duration = Duration::from_secs(60);
const ROLE: &str = "RENDEZ_RPC_TEST_WORKER";

fn engine(task: &str) -> Engine {
    let mut config = Config::new(task);
    (
        config.shards,
        config.share_cores,
        config.arena.segment_bytes,
    ) = (1, true, 32 << 20);
    config.poll = rendez::drive::PollPolicy::Park;
    Engine::start(config).expect("an engine")
}

fn options(tasks: [&str; 2], other: Option<Address>) -> Options {
    let mut second = Worker::new("second", tasks[1]);
    second.address = other;
    let functions = Functions::new()
        .add("double", |tensor: Tensor| -> Result<Tensor, Error> {
            let doubled: Vec<f32> = tensor
                .as_slice::<f32>()
                .map_err(rendez::ground::Status::from)?
                .iter()
                .map(|value| value * 2.0)
                .collect();
            Ok(Tensor::from_vec(doubled, tensor.shape()).map_err(rendez::ground::Status::from)?)
        })
        .add("is_leased", |tensor: Tensor| tensor.is_leased())
        .add("next", |number: u64| number + 1)
        .add_in_shard("next_in_shard", |number: u64| number + 1)
        .add("forever", || std::thread::sleep(2 * LONG));
    Options::of_workers([Worker::new("first", tasks[0]), second]).functions(functions)
}

/// The second worker, if this is its process.
#[test]
fn second_worker() {
    let Ok(tasks) = std::env::var(ROLE) else {
        return;
    };
    let (first, second) = tasks.split_once(' ').expect("two tasks");
    let engine = engine(second);
    println!("listens {}", engine.address().expect("it listens"));
    let agent = Agent::init(&engine, "second", options([first, second], None)).expect("an agent");
    agent.shutdown(LONG).expect("all is done");
}

/// The process, and its output, which it must be able to write to its end.
struct Second(Child, BufReader<ChildStdout>);

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two workers: one in this process and one in another.
fn pair(test: &str) -> (Engine, Agent, Second) {
    pair_within(test, LONG)
}

/// The same; calls of the first have so much time.
fn pair_within(test: &str, timeout: Duration) -> (Engine, Agent, Second) {
    let id = std::process::id();
    let tasks = [
        format!("/job:{test}a_{id}/task:0"),
        format!("/job:{test}b_{id}/task:0"),
    ];
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "second_worker", "--nocapture"])
        .env(ROLE, tasks.join(" "))
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let mut second = Second(child, output);
    let address = second
        .1
        .by_ref()
        .lines()
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("listens ")?.1.trim().to_owned()))
        .expect("an address");
    let engine = engine(&tasks[0]);
    let other = Some(address.parse().expect("an address"));
    let options = options([&tasks[0], &tasks[1]], other).timeout(timeout);
    let agent = Agent::init(&engine, "first", options).expect("an agent");
    (engine, agent, second)
}

#[test]
fn a_tensor_goes_to_another_process_and_comes_back() {
    let (engine, agent, mut second) = pair("tensor");
    for elements in [4_u64, 1 << 20] {
        let mut tensor = engine.tensor(DType::F32, &[elements]).expect("memory");
        tensor.as_mut_slice::<f32>().expect("floats").fill(1.25);
        let tensor = tensor.finish();
        let got: Tensor = agent
            .rpc_sync("second", "double", (tensor.clone(),))
            .expect("a result");
        assert_eq!(
            got.as_slice::<f32>().expect("floats"),
            vec![2.5; elements as usize]
        );
        // A large one of the engine's own memory is read where it lies.
        let is_leased: bool = agent
            .rpc_sync("second", "is_leased", (tensor,))
            .expect("a result");
        assert_eq!(is_leased, elements > 4);
    }
    agent.shutdown(LONG).expect("all is done");
    assert!(second.0.wait().expect("it ended").success());
}

#[test]
fn the_death_of_a_process_ends_its_calls_and_references() {
    let (_engine, agent, mut second) = pair("death");
    let call = agent
        .rpc_async::<()>("second", "forever", ())
        .expect("a call");
    let value = agent
        .remote::<()>("second", "forever", ())
        .expect("a reference");
    let fetch = value.to_here_async().expect("a call");
    std::thread::sleep(Duration::from_millis(50));
    assert!(!call.is_done());
    second.0.kill().expect("it is killed");
    assert_eq!(call.wait().unwrap_err().reason(), catalogue::PEER_LOST);
    assert_eq!(fetch.wait().unwrap_err().reason(), catalogue::PEER_LOST);
    assert_eq!(
        agent
            .rpc_sync::<()>("second", "forever", ())
            .unwrap_err()
            .reason(),
        catalogue::PEER_LOST
    );
    // It is the last that is there.
    agent.shutdown(LONG).expect("nothing is outstanding");
}

/// True if all threads of a process are stopped.
fn is_stopped(process: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("it is there");
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name before the state stands in parentheses, and may have some itself.
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
    })
}

/// A process that is stopped on this machine is there all the same, and its peers wait for it; so it is the deadline
/// that ends a call.
#[test]
fn calls_of_a_process_that_is_stopped_end_at_their_deadlines_and_others_follow() {
    let short = Duration::from_millis(200);
    let (engine, agent, second) = pair_within("stopped", short);
    let signal = |name: &str| {
        let id = second.0.id().to_string();
        let sent = Command::new("kill").args([name, &id]).status();
        assert!(sent.expect("a command").success());
        // Its threads stop one by one, each when the kernel sees it next: until then it answers.
        while name == "-STOP" && !is_stopped(second.0.id()) {
            std::thread::yield_now();
        }
    };
    let kept = agent
        .remote_within::<u64>("second", "next", (1_u64,), LONG)
        .expect("a reference");
    assert_eq!(kept.to_here_within(LONG).expect("a number"), 2);
    let large = engine.tensor(DType::F32, &[1 << 20]).expect("memory");
    let large = large.finish();
    for functions in [["next", "next_in_shard"]; 2] {
        signal("-STOP");
        // More than a worker takes at a time: those that wait for their turn have deadlines too.
        let calls: Vec<_> = (0..600)
            .map(|at| agent.rpc_async::<u64>("second", functions[at % 2], (1_u64,)))
            .collect();
        for call in calls {
            let ended = call.expect("a call").wait_for(LONG);
            let ended = ended.unwrap_or_else(|_| panic!("it is not over"));
            assert_eq!(ended.unwrap_err().reason(), catalogue::RPC_TIMEOUT);
        }
        // Those that wait turn the shard meanwhile.
        let one = agent.rpc_sync::<u64>("second", functions[0], (1_u64,));
        let tensor = agent.rpc_sync::<Tensor>("second", "double", (large.clone(),));
        let reasons = [
            one.map(drop).unwrap_err(),
            tensor.map(drop).unwrap_err(),
            kept.to_here().map(drop).unwrap_err(),
        ];
        for error in reasons {
            assert_eq!(error.reason(), catalogue::RPC_TIMEOUT, "{error}");
        }
        signal("-CONT");
        for function in functions {
            let next = agent.rpc_async_within::<u64>("second", function, (1_u64,), LONG);
            assert_eq!(next.expect("a call").wait().expect("a number"), 2);
        }
        assert_eq!(kept.to_here_within(LONG).expect("a number"), 2);
    }
    // Nor does a shutdown wait for longer than it was told.
    drop(kept);
    signal("-STOP");
    let left = agent.shutdown(short).unwrap_err();
    assert_eq!(left.reason(), catalogue::RPC_SHUTDOWN_DEADLINE);
    signal("-CONT");
}
