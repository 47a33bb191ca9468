//! What finds no room at its receiver costs its call, and nothing else.

use super::*;

/// Bytes that no worker's arena holds.
const LARGE: u64 = 32 << 20;

fn tensor(bytes: u64) -> Tensor {
    Tensor::from_vec(vec![7_u8; bytes as usize], Shape::from([bytes])).expect("a tensor")
}

fn agents(test: &str, is_tcp: bool) -> Vec<Agent> {
    let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
    let keep = move |tensor: Tensor| {
        let mut kept = kept.lock().expect("no panic");
        kept.push(tensor);
        kept.len() as u64
    };
    let functions = Functions::new()
        .add("size", |tensor: Tensor| tensor.size() as u64)
        .add("made", tensor)
        .add("length", |text: String| text.len() as u64)
        .add("fails", |bytes: u64| -> Result<u64, String> {
            Err("x".repeat(bytes as usize))
        })
        .add("keep", keep);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("group");
    let join = &|at: usize| {
        let task = format!("/job:{test}_{}/task:{at}", std::process::id());
        let engine = engine_with(&task, |config| {
            (config.arena.segment_bytes, config.arena.bytes_max) = (1 << 20, 2 << 20);
            config.listen = Some("127.0.0.1:0".parse().expect("an address"));
            if is_tcp {
                (config.insecure, config.require) = (true, rendez::engine::Require::Tcp);
            }
        });
        let options = Options::through_file(&path, Some(3)).functions(functions.clone());
        Agent::init(&engine, &format!("w{at}"), options).expect("an agent")
    };
    std::thread::scope(|scope| {
        let threads = [0, 1, 2].map(|at| scope.spawn(move || join(at)));
        threads
            .map(|thread| thread.join().expect("no panic"))
            .into()
    })
}

/// Each calls each.
fn are_well(agents: &[Agent]) {
    for (from, agent) in agents.iter().enumerate() {
        for to in (0..3).filter(|&to| to != from) {
            let there = format!("w{to}");
            let size: u64 = agent
                .rpc_sync(&there, "size", (tensor(900),))
                .expect("a size");
            assert_eq!(size, 900, "{from} to {to}");
        }
    }
}

#[test]
fn a_tensor_that_never_fits_costs_its_call_alone() {
    let agents = agents("unfit", true);
    let argument = agents[0].rpc_sync::<u64>("w1", "size", (tensor(LARGE),));
    let error = argument.expect_err("there is no room");
    assert_eq!(error.reason(), catalogue::RPC_ARGUMENTS, "{error}");
    assert!(error.to_string().contains("no room"), "{error}");
    are_well(&agents);
    let result = agents[2].rpc_sync::<Tensor>("w0", "made", (LARGE,));
    let error = result.expect_err("there is no room");
    assert_eq!(error.reason(), catalogue::ARENA_UNFIT, "{error}");
    are_well(&agents);
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

#[test]
fn a_failure_that_says_more_than_fits_costs_its_call_alone() {
    let agents = agents("long_failure", true);
    let failed = agents[0].rpc_sync::<u64>("w1", "fails", (LARGE,));
    let error = failed.expect_err("it fails");
    assert_eq!(error.reason(), catalogue::RPC_REMOTE_ERROR);
    are_well(&agents);
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

/// Of what lies in an arena nothing is let go: calls, whose heads are short, and short tensors go on.
#[test]
fn a_full_arena_stops_no_calls() {
    for is_tcp in [false, true] {
        let agents = agents(&format!("full_{is_tcp}"), is_tcp);
        // Small ones lie in blocks, too, until there is none.
        for _ in 0..3_000 {
            let kept: Result<u64, _> = agents[0].rpc_sync("w1", "keep", (tensor(1000),));
            kept.expect("it is kept");
        }
        if is_tcp {
            let larger = agents[0].rpc_sync::<u64>("w1", "size", (tensor(100_000),));
            let error = larger.expect_err("there is no room");
            assert!(error.to_string().contains("no room"), "{error}");
        }
        are_well(&agents);
        assert!(shut_down(agents).iter().all(Result::is_ok));
    }
}

/// It ends what is between the two, and both hear so; neither waits for the other when all leave.
#[test]
fn a_head_for_which_there_is_no_room_leaves_no_worker_waiting() {
    let agents = agents("long_head", true);
    for _ in 0..3_000 {
        let kept: Result<u64, _> = agents[0].rpc_sync("w1", "keep", (tensor(1000),));
        kept.expect("it is kept");
    }
    let text = "x".repeat(100_000);
    let call = agents[0].rpc_async_within::<u64>("w1", "length", (text,), Duration::ZERO);
    let error = call.expect("a call").wait().expect_err("there is no room");
    assert_eq!(error.reason(), catalogue::PEER_LOST, "{error}");
    // It says what to do, as all calls between them do from now on.
    let says = |error: Error, what: &str| assert!(error.message().contains(what), "{error}");
    says(error, "no room");
    for (from, to) in [(0, "w1"), (1, "w0")] {
        let size = agents[from].rpc_sync::<u64>(to, "size", (tensor(900),));
        says(
            size.expect_err("it is over"),
            "until one of them starts again",
        );
    }
    for (from, to) in [(0, "w2"), (1, "w2"), (2, "w0"), (2, "w1")] {
        let size: Result<u64, _> = agents[from].rpc_sync(to, "size", (tensor(900),));
        assert_eq!(size.expect("a size"), 900, "{from} to {to}");
    }
    assert!(shut_down(agents).iter().all(Result::is_ok));
}
