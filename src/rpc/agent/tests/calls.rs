//! Calls between agents.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::devices::in_shard;
use super::*;
use crate::agent::shared::QUEUED_MAX;

fn scale(tensor: Tensor, by: f32) -> Result<Tensor, rendez::memory::TensorError> {
    let scaled: Vec<f32> = tensor
        .as_slice::<f32>()?
        .iter()
        .map(|value| value * by)
        .collect();
    Tensor::from_vec(scaled, tensor.shape())
}

#[derive(Debug, thiserror::Error)]
#[error("the outer part")]
struct Outer(#[source] std::fmt::Error);

fn functions() -> Functions {
    Functions::new()
        .add("scale", scale)
        .add("shout", |text: String, times: u32| {
            text.to_uppercase().repeat(times as usize)
        })
        .add_in_shard("add", |a: u32, b: u32| a.wrapping_add(b))
        .add("fails", || Err::<(), _>(Outer(std::fmt::Error)))
        .add("panics", || -> u32 { panic!("dropped a plate") })
        .add_in_shard("panics_in_shard", || -> u32 { panic!("dropped a cup") })
        .add("nested", |to: String, left: u32| -> Result<u32, Error> {
            let agent = Context::current().expect("in a call").agent();
            match left {
                0 => Ok(0),
                _ => {
                    let me = agent.worker().name;
                    agent
                        .rpc_sync::<u32>(&to, "nested", (me, left - 1))
                        .map(|depth| depth + 1)
                }
            }
        })
        .add_async("later", |to: String| async move {
            let agent = Context::current().expect("in a call").agent();
            let first = agent.rpc_async::<u32>(&to, "add", (1_u32, 2_u32))?.await?;
            let agent = Context::current().expect("still in the call").agent();
            agent.rpc_async::<u32>(&to, "add", (first, 4_u32))?.await
        })
        .add("waits_in_vain", || {
            let context = Context::current().expect("in a call");
            while !context.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
        })
        .add_in_shard("waits_in_shard", || {
            let agent = Context::current().expect("in a call").agent();
            agent.rpc_sync::<u32>("w0", "add", (1_u32, 1_u32))
        })
}

#[test]
fn a_call_with_a_tensor_comes_back_with_one() {
    let agents = group(2, "tensors", &functions());
    let mut tensor = agents[0]
        .engine()
        .tensor(DType::F32, &[1 << 16])
        .expect("memory");
    tensor.as_mut_slice::<f32>().expect("floats").fill(1.5);
    let args = (tensor.finish(), 2.0_f32);
    let got: Tensor = agents[0].rpc_sync("w1", "scale", args).expect("a result");
    assert_eq!(got.as_slice::<f32>().expect("floats"), vec![3.0; 1 << 16]);
    let small = Tensor::from_slice(&[1.0_f32, 2.0], Shape::from([2])).expect("a tensor");
    let got: Tensor = agents[1]
        .rpc_sync("w0", "scale", (small, 3.0_f32))
        .expect("a result");
    assert_eq!(got.as_slice::<f32>().expect("floats"), [3.0, 6.0]);
    // To itself, too.
    let loud: String = agents[1]
        .rpc_sync("w1", "shout", ("hey".to_owned(), 2_u32))
        .expect("a result");
    assert_eq!(loud, "HEYHEY");
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

#[test]
fn results_of_calls_under_way_come_to_whom_they_belong() {
    let agents = group(2, "many", &functions());
    let calls = (0..500_u32).map(|at| {
        agents[0]
            .rpc_async::<u32>("w1", "add", (at, 1_u32))
            .expect("a call")
    });
    let calls: Vec<_> = calls.collect();
    assert_eq!(
        wait_all(calls).expect("results"),
        (1..=500).collect::<Vec<u32>>()
    );
    let info = agents[0].debug_info();
    assert_eq!(
        (
            info["agent.client_active_calls"],
            info["agent.thread_pool_size"]
        ),
        (0, 16)
    );
    assert!(agents[0].pending().is_empty());
}

#[test]
fn more_tensors_than_wait_at_a_key_come_in_their_order() {
    let functions =
        Functions::new().add("firsts", |all: Vec<Tensor>| -> Result<Vec<u32>, Status> {
            all.iter()
                .map(|one| Ok(one.as_slice::<u32>()?[0]))
                .collect()
        });
    let agents = group(2, "plenty", &functions);
    // Three calls of as many as one may carry, small ones with large ones between.
    let large = vec![0_u32; 32 << 10];
    let call = |from: u32| {
        let tensors = (from..from + 4096).map(|at| match at % 1024 {
            0 => {
                let mut values = large.clone();
                values[0] = at;
                Tensor::from_vec(values, Shape::from([32 << 10])).expect("a tensor")
            }
            _ => Tensor::scalar(at),
        });
        let tensors: Vec<Tensor> = tensors.collect();
        agents[0]
            .rpc_async::<Vec<u32>>("w1", "firsts", (tensors,))
            .expect("a call")
    };
    let calls: Vec<_> = (0..3).map(|at| call(at * 4096)).collect();
    let numbers: Vec<u32> = wait_all(calls).expect("results").concat();
    assert_eq!(numbers, (0..3 * 4096).collect::<Vec<u32>>());
}

#[test]
fn a_failure_names_its_worker_and_its_cause() {
    let agents = group(2, "failures", &functions());
    let error = agents[0].rpc_sync::<()>("w1", "fails", ()).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_REMOTE_ERROR);
    assert_eq!(
        error.message(),
        "On WorkerInfo(id=1, name=w1): the outer part"
    );
    assert_eq!(error.causes(), [std::fmt::Error.to_string()]);
    assert_eq!(error.worker(), Some("w1"));
    let error = agents[0].rpc_sync::<()>("w1", "scael", ()).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_FUNCTION);
    assert!(
        error
            .message()
            .contains("there is no function 'scael'; there are: scale(Tensor,f32,) -> Tensor, "),
        "{error}"
    );
    assert!(error.message().ends_with(", and 2 more"), "{error}");
    let error = agents[0]
        .rpc_sync::<u32>("w1", "add", (1_u32, 2_u64))
        .unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_ARGUMENTS);
    assert!(error.message().contains("add(u32,u32,) -> u32"), "{error}");
    let error = agents[0]
        .rpc_sync::<u64>("w1", "add", (1_u32, 2_u32))
        .unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_ARGUMENTS);
    let error = agents[0]
        .rpc_sync::<u32>("w7", "add", (1_u32, 2_u32))
        .unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_WORKER);
}

#[test]
fn a_panic_is_an_error_at_the_caller_and_nothing_else() {
    let agents = group(2, "panics", &functions());
    for function in ["panics", "panics_in_shard"] {
        let error = agents[0].rpc_sync::<u32>("w1", function, ()).unwrap_err();
        assert_eq!(error.reason(), catalogue::RPC_REMOTE_PANIC);
        assert!(error.message().contains("dropped a"), "{error}");
        assert!(
            error.message().contains("agent/tests/calls.rs:"),
            "where it was: {error}"
        );
        let captured = std::backtrace::Backtrace::capture().status();
        let is_captured = captured == std::backtrace::BacktraceStatus::Captured;
        assert_eq!(error.backtrace().is_some(), is_captured);
    }
    assert_eq!(
        agents[0]
            .rpc_sync::<u32>("w1", "add", (1_u32, 2_u32))
            .expect("it lives"),
        3
    );
}

/// It sets out at once, and its end is heard with and without a thread that waits for it.
#[test]
fn a_call_for_its_effect_arrives_and_ends() {
    let told = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&told);
    let functions = functions().add("tell", move || {
        counts.fetch_add(1, Ordering::Relaxed);
    });
    let agents = group(2, "posted", &functions);
    let post = || agents[0].rpc_post("w1", "tell", (), LONG);
    for count in 1..=100 {
        post().expect("there is w1").wait().expect("it ends");
        assert_eq!(told.load(Ordering::Relaxed), count);
    }
    let (ends, ended) = std::sync::mpsc::channel();
    post()
        .expect("there is w1")
        .then(move |outcome| ends.send(outcome).expect("it is awaited"));
    let outcome = ended.recv_timeout(LONG).expect("heard by the shard");
    outcome.expect("it ends");
    assert_eq!(told.load(Ordering::Relaxed), 101);
    let error = agents[0].rpc_post("w9", "tell", (), LONG).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_WORKER);
}

#[test]
fn calls_that_call_on_do_not_use_all_threads_up() {
    let functions = functions();
    let set = |options: Options| Options {
        threads: 2,
        ..options.functions(functions.clone())
    };
    let agents = group_with(2, "nested", set);
    let deep: u32 = agents[0]
        .rpc_sync("w1", "nested", ("w0".to_owned(), 40_u32))
        .expect("a depth");
    assert_eq!(deep, 40);
}

#[test]
fn a_function_that_returns_a_future_holds_no_thread() {
    let functions = functions();
    let set = |options: Options| Options {
        threads: 1,
        ..options.functions(functions.clone())
    };
    let agents = group_with(2, "later", set);
    let calls = (0..20).map(|_| {
        agents[0]
            .rpc_async::<u32>("w1", "later", ("w0".to_owned(),))
            .expect("a call")
    });
    assert_eq!(
        wait_all(calls.collect::<Vec<_>>()).expect("results"),
        vec![7; 20]
    );
}

#[test]
fn a_deadline_reaches_the_other_side() {
    let agents = group(2, "deadlines", &functions());
    let short = Duration::from_millis(30);
    let call = agents[0]
        .rpc_async_within::<()>("w1", "waits_in_vain", (), short)
        .expect("a call");
    let error = call.wait().unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_TIMEOUT);
    let told = "the call of 'waits_in_vain' at 'w1' ran for more than its timeout of 30ms; 'w1' was told to give it up";
    assert_eq!(error.message(), told);
    // The function goes on until it is told: then nothing is served.
    served(&agents[1], 0);
}

#[test]
fn a_cancel_reaches_the_other_side_and_what_has_not_begun_does_not_begin() {
    let functions = functions();
    let set = |options: Options| Options {
        threads: 1,
        ..options.functions(functions.clone())
    };
    let agents = group_with(2, "cancels", set);
    let first = agents[0]
        .rpc_async::<()>("w1", "waits_in_vain", ())
        .expect("a call");
    let second = agents[0]
        .rpc_async::<()>("w1", "waits_in_vain", ())
        .expect("a call");
    served(&agents[1], 2);
    second.cancel();
    assert_eq!(
        second.wait().unwrap_err().reason(),
        catalogue::RPC_CANCELLED
    );
    // A call that is dropped is given up as well.
    drop(first);
    served(&agents[1], 0);
}

/// Waits until so many calls wait or run at `agent`.
fn served(agent: &Agent, count: u64) {
    let began = std::time::Instant::now();
    while agent.debug_info()["agent.server_active_calls"] != count {
        assert!(began.elapsed() < LONG, "{:?}", agent.debug_info());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_function_inside_the_shard_is_refused_to_wait() {
    let agents = group(2, "in_shard", &functions());
    let error = agents[0]
        .rpc_sync::<u32>("w1", "waits_in_shard", ())
        .unwrap_err();
    assert!(
        error.message().contains("cannot wait for a call"),
        "{error}"
    );
}

#[test]
fn a_call_without_a_place_is_refused_by_name() {
    let functions = functions();
    let set = |options: Options| Options {
        window: 1,
        waiting: 1,
        ..options.functions(functions.clone())
    };
    let agents = group_with(2, "bounds", set);
    let call = || {
        agents[0]
            .rpc_async::<()>("w1", "waits_in_vain", ())
            .expect("a call")
    };
    let (first, second) = (call(), call());
    let error = call().wait().unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_BUSY);
    assert!(!first.is_done() && !second.is_done());
    drop((first, second));
}

/// The caller's own shard is held up: its desk looks at nothing.
#[test]
fn a_call_beyond_what_waits_for_its_own_shard_is_refused_by_name() {
    let agents = group(2, "held_up", &functions());
    let caller = agents[0].clone();
    let (kept, one_more) = in_shard(agents[0].engine(), move |_| {
        let call = || caller.rpc_async::<u32>("w1", "add", (1_u32, 2_u32));
        let kept: Vec<_> = (0..QUEUED_MAX).map(|_| call()).collect();
        let queued = caller.shared().queue.len();
        for to in ["w0", "w1"] {
            let made: RRef<u32> = caller
                .remote(to, "add", (1_u32, 2_u32))
                .expect("a reference");
            let error = made.to_here().unwrap_err();
            assert_eq!(error.reason(), catalogue::RPC_BUSY, "{error}");
        }
        assert_eq!(
            caller.shared().queue.len(),
            queued,
            "nothing is left of them"
        );
        (kept, call())
    });
    let error = one_more.expect("a call").wait().unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_BUSY, "{error}");
    assert!(error.message().contains("held up"), "{error}");
    let kept: Vec<Pending<u32>> = kept.into_iter().collect::<Result<_, _>>().expect("calls");
    let sums = wait_all(kept).expect("sums");
    assert!(sums.iter().all(|sum| *sum == 3));
    let one: u32 = agents[0]
        .rpc_sync("w1", "add", (3_u32, 4_u32))
        .expect("a sum");
    assert_eq!(one, 7);
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

#[test]
fn two_workers_of_one_name_are_refused() {
    let engines = engines(1, "names");
    let task = engines[0].task().to_string();
    let two = Options::of_workers([
        Worker::new("a", task.clone()),
        Worker::new("a", "/job:other/task:0"),
    ]);
    let error = Agent::init(&engines[0], "a", two).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_NAME);
    assert_eq!(
        error.message(),
        "RPC worker name a is not unique. Workers 0 and 1 share the same name."
    );
    let none = Options::of_workers([Worker::new("b", task)]);
    assert_eq!(
        Agent::init(&engines[0], "a", none).unwrap_err().reason(),
        catalogue::RPC_GROUP
    );
}

#[test]
fn a_worker_that_does_not_come_is_named() {
    let engines = engines(1, "absent");
    let workers = [
        Worker::new("w0", engines[0].task().to_string()),
        Worker::new("w1", "/job:never/task:0"),
    ];
    let mut options = Options::of_workers(workers);
    options.init_timeout = Duration::from_millis(50);
    let error = Agent::init(&engines[0], "w0", options).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_INIT);
    assert!(
        error.message().contains("w1") && !error.message().contains("w0"),
        "{error}"
    );
}

/// PyTorch's first exchange needs a thread of the pool for each worker, and hangs if there are more.
#[test]
fn more_workers_than_threads_meet_and_call_each_other() {
    let functions = Functions::new().add("add", |x: u32, y: u32| x + y);
    let agents = group_with(10, "many", |mut options| {
        options.threads = 2;
        options.functions(functions.clone())
    });
    let calls: Vec<_> = agents
        .iter()
        .enumerate()
        .flat_map(|(from, agent)| {
            (0..agents.len() as u32).map(move |to| {
                let call = agent.rpc_async::<u32>(&format!("w{to}"), "add", (from as u32, to));
                (from as u32 + to, call.expect("it sets out"))
            })
        })
        .collect();
    for (sum, call) in calls {
        assert_eq!(call.wait().expect("a result"), sum);
    }
    let leave = |agent: Agent| std::thread::spawn(move || agent.shutdown(LONG));
    let threads: Vec<_> = agents.into_iter().map(leave).collect();
    assert!(
        threads
            .into_iter()
            .all(|one| one.join().expect("no panic").is_ok())
    );
}

#[test]
fn calls_in_order_are_carried_out_one_after_another() {
    let (tell, told) = std::sync::mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let functions = Functions::new().add("note", move |number: u32, tensor: Tensor| {
        // The first take longest.
        std::thread::sleep(Duration::from_micros(u64::from(100 - number) * 20));
        let tell = tell.lock().expect("no panic");
        tell.send((number, tensor.size())).expect("it listens");
    });
    let agents = group_with(2, "order", |options| {
        options.functions(functions.clone()).in_order()
    });
    let pending: Vec<_> = (0..100_u32)
        .map(|number| {
            // Large ones among them, which small ones overtake on their way.
            let size = if number % 10 == 0 { 300_000 } else { 4 };
            let tensor = Tensor::from_vec(vec![0_u8; size], Shape::from([size as u64]));
            let args = (number, tensor.expect("a tensor"));
            agents[0]
                .rpc_async::<()>("w1", "note", args)
                .expect("a call")
        })
        .collect();
    wait_all(pending).expect("results");
    let order: Vec<u32> = told.try_iter().map(|(number, _)| number).collect();
    assert_eq!(order, (0..100).collect::<Vec<_>>());
    assert!(shut_down(agents).iter().all(Result::is_ok));
}
