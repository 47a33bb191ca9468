//! Leaving.

use std::time::Instant;

use rendez::engine::Require;
use rendez::ground::{Nanos, Status};

use super::devices::{alive, answer, in_shard, on_host};
use super::*;
use crate::WorkerId;
use crate::agent::lanes::{Brought, Lanes, token_of};
use crate::agent::promise::Promise;
use crate::agent::shared::{Command, Ticket};
use crate::agent::slot::Slot;
use crate::codec::encode;
use crate::message::{Body, Message, Target};
use crate::payload::Payload;

fn functions() -> Functions {
    Functions::new()
        .add("slow", || std::thread::sleep(Duration::from_millis(60)))
        .add("never", || {
            let context = Context::current().expect("in a call");
            while !context.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
        })
        .add("then", |to: String| -> Result<u32, Error> {
            std::thread::sleep(Duration::from_millis(30));
            let agent = Context::current().expect("in a call").agent();
            agent.rpc_sync::<()>(&to, "slow", ())?;
            Ok(1)
        })
        .add_in_shard("one", || 1_u32)
        .add("same", |tensor: Tensor| tensor)
}

#[test]
fn what_is_under_way_is_done_before_anybody_leaves() {
    let agents = group(3, "graceful", &functions());
    let call = agents[0]
        .rpc_async::<u32>("w1", "then", ("w2".to_owned(),))
        .expect("a call");
    assert!(shut_down(agents).iter().all(Result::is_ok));
    assert_eq!(call.wait().expect("a result"), 1);
}

#[test]
fn an_agent_comes_again_on_the_same_engines() {
    let engines = engines(2, "again");
    for round in 0..3_u32 {
        let agents = start(&engines, |_, options| options.functions(functions()));
        assert_eq!(
            agents[0]
                .rpc_sync::<u32>("w1", "one", ())
                .expect("a result"),
            1
        );
        let tensor = Tensor::from_vec(vec![round; 1 << 15], Shape::from([1 << 15]));
        let tensor: Tensor = agents[1]
            .rpc_sync("w0", "same", (tensor.expect("a tensor"),))
            .expect("a result");
        assert_eq!(tensor.as_slice::<u32>().expect("numbers")[9], round);
        assert!(shut_down(agents).iter().all(Result::is_ok));
    }
}

#[test]
fn the_time_of_a_shutdown_is_obeyed() {
    let agents = group(2, "late", &functions());
    let call = agents[0]
        .rpc_async::<()>("w1", "never", ())
        .expect("a call");
    let mut agents = agents.into_iter();
    let first = agents.next().expect("a first");
    let others: Vec<_> = agents
        .map(|agent| std::thread::spawn(move || agent.shutdown(LONG)))
        .collect();
    let error = first.shutdown(Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_SHUTDOWN_DEADLINE);
    assert!(
        error
            .message()
            .contains("1 calls to worker 1 are not answered"),
        "{error}"
    );
    let ended = call.wait().unwrap_err();
    assert_eq!(ended.reason(), catalogue::RPC_SHUTDOWN);
    let told = "the caller was shut down before the call was answered";
    assert_eq!(ended.message(), told);
    // Its function was told to stop: nothing holds the other.
    assert!(
        others
            .into_iter()
            .all(|other| other.join().expect("no panic").is_ok())
    );
}

#[test]
fn of_two_shutdowns_at_once_both_times_are_obeyed_and_both_are_told() {
    let agents = group(2, "both", &functions());
    let call = agents[0].rpc_async::<()>("w1", "never", ());
    let (first, second) = (agents[0].clone(), agents[0].clone());
    let patient = std::thread::spawn(move || first.shutdown(LONG));
    // It is most likely the first that asks; else nothing is shown.
    std::thread::sleep(Duration::from_millis(50));
    let began = Instant::now();
    let hasty = second.shutdown(Duration::from_millis(50)).unwrap_err();
    assert!(began.elapsed() < LONG / 2);
    let patient = patient.join().expect("no panic").unwrap_err();
    for error in [&hasty, &patient] {
        assert_eq!(error.reason(), catalogue::RPC_SHUTDOWN_DEADLINE, "{error}");
    }
    assert!(call.expect("a call").wait().is_err());
}

#[test]
fn calls_after_it_are_refused() {
    let agents = group(1, "after", &functions());
    let again = agents[0].clone();
    assert!(shut_down(agents).iter().all(Result::is_ok));
    let error = again.rpc_sync::<u32>("w0", "one", ()).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_SHUTDOWN);
}

/// It comes as from a thread that looked whether the worker is closed just before it was.
#[test]
fn a_call_that_is_queued_when_nobody_looks_any_more_is_refused() {
    let agents = group(1, "unseen", &functions());
    let shared = Arc::clone(agents[0].shared());
    assert!(shut_down(agents).iter().all(Result::is_ok));
    let (me, function) = (shared.me, "one");
    let ticket = Arc::new(Ticket {
        slot: Slot::default(),
        to: me,
        function: function.into(),
        fetched: None,
        began: Nanos::ZERO,
        timeout: Duration::ZERO,
    });
    let call = Command::Call {
        to: me,
        target: Target::Function(function.into()),
        deadline: Nanos::NEVER,
        packed: shared.pack(me, function, &()).expect("a call"),
        ticket: Promise::new(Arc::clone(&ticket)),
        span: None,
    };
    shared.hand_in(call, me, &ticket);
    let call = Pending::<u32>::new(shared, me, ticket);
    assert!(call.is_done(), "it waits for ever");
    assert_eq!(call.wait().unwrap_err().reason(), catalogue::RPC_SHUTDOWN);
}

#[test]
fn a_guest_that_comes_when_nobody_looks_any_more_is_refused_at_once() {
    let agents = group(1, "closed", &functions());
    let shared = Arc::clone(agents[0].shared());
    assert!(shut_down(agents).iter().all(Result::is_ok));
    let (began, patience) = (Instant::now(), Duration::from_secs(10));
    let task = shared.engine.task().clone();
    let status = shared.admit(task, "guest".into(), patience).unwrap_err();
    assert_eq!(status.reason(), catalogue::RPC_SHUTDOWN);
    assert!(began.elapsed() < patience, "its time was over first");
}

#[test]
fn an_engine_that_ends_ends_what_waits() {
    let agents = group(2, "engine", &functions());
    let call = agents[0]
        .rpc_async::<()>("w1", "never", ())
        .expect("a call");
    agents[1].engine().shutdown(Duration::from_millis(10));
    let error = call.wait().unwrap_err();
    assert_eq!(error.reason(), catalogue::PEER_LOST);
}

/// None of the others wants to leave, and each has work: who asked them would wait for ever.
#[test]
fn a_local_shutdown_asks_nobody_and_ends_what_waits() {
    let mut agents = group(3, "local", &functions());
    let leaving = agents.pop().expect("a third");
    let never = |from: &Agent, to: &str| from.rpc_async::<()>(to, "never", ()).expect("a call");
    let (own, of_another) = (never(&leaving, "w0"), never(&agents[0], "w2"));
    let between = never(&agents[0], "w1");
    let again = leaving.clone();
    leaving.shutdown_local();
    assert_eq!(own.wait().unwrap_err().reason(), catalogue::RPC_SHUTDOWN);
    let error = of_another.wait().unwrap_err();
    assert_eq!(error.reason(), catalogue::PEER_LOST, "{error}");
    let error = again.rpc_sync::<u32>("w0", "one", ()).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_SHUTDOWN);
    // The others go on, and what they were asked for stops.
    assert_eq!(
        agents[0]
            .rpc_sync::<u32>("w1", "one", ())
            .expect("a result"),
        1
    );
    let began = Instant::now();
    while agents[0].debug_info()["agent.server_active_calls"] > 0 {
        assert!(began.elapsed() < LONG, "a call of who has left runs on");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(between);
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

/// Two workers `w0` and `w1` of a dynamic group. Both answer `big` when what is returned is true.
fn pair(
    test: &str,
    path: &std::path::Path,
    set: impl Fn(&mut Config),
) -> (Vec<Agent>, Arc<AtomicBool>) {
    let is_open = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_open);
    let big = move |bytes: u64| {
        while !seen.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let tensor = Tensor::from_vec(vec![1_u8; bytes as usize], Shape::from([bytes]));
        tensor.expect("a tensor")
    };
    let functions = Functions::new().add("big", big);
    let join = |at: usize| {
        let task = format!("/job:{test}_{}/task:{at}", std::process::id());
        let engine = engine_with(&task, &set);
        let options = Options::through_file(path, None).functions(functions.clone());
        Agent::init(&engine, &format!("w{at}"), options).expect("an agent")
    };
    ((0..2).map(join).collect(), is_open)
}

#[test]
fn what_waits_for_room_is_sent_before_a_worker_leaves() {
    let folder = tempfile::tempdir().expect("a folder");
    // Their engines hold little of what is sent.
    let (mut agents, is_open) = pair("room", &folder.path().join("group"), |config| {
        (config.parked_bytes, config.parked_bytes_per_step) = (8 << 20, 4 << 20);
    });
    let (leaver, agent) = (agents.pop().expect("two"), agents.pop().expect("two"));
    let call = |_| {
        let agent = agent.clone();
        let called = move || {
            let call = agent.rpc_async_within::<Tensor>(
                "w1",
                "big",
                (3_000_000_u64,),
                Duration::from_secs(20),
            )?;
            Ok::<_, Error>(call.wait()?.size())
        };
        std::thread::spawn(called)
    };
    // Each is waited for by a thread of its own: there is room again when an answer has been taken.
    let calls: Vec<_> = (0..6).map(call).collect();
    while leaver.debug_info()["agent.server_active_calls"] < 6 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let shared = Arc::clone(leaver.shared());
    let leaving = std::thread::spawn(move || leaver.shutdown(LONG));
    while shared.ask(|view| view.node.is_leaving()) != Some(true) {
        std::thread::sleep(Duration::from_millis(1));
    }
    is_open.store(true, Ordering::Release);
    for call in calls {
        let size = call.join().expect("no panic").expect("an answer");
        assert_eq!(size, 3_000_000);
    }
    leaving.join().expect("no panic").expect("it leaves");
}

/// Its head is small, and the answer that was sent before it large.
#[test]
fn an_answer_is_not_overtaken_by_the_word_that_its_worker_leaves() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut agents, is_open) = pair("overtaken", &folder.path().join("group"), |config| {
        config.listen = Some("127.0.0.1:0".parse().expect("an address"));
        (config.insecure, config.require) = (true, Require::Tcp);
    });
    let call = agents[0].rpc_async::<Tensor>("w1", "big", (8_000_000_u64,));
    let leaver = agents.pop().expect("two");
    while leaver.debug_info()["agent.server_active_calls"] < 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    is_open.store(true, Ordering::Release);
    leaver.shutdown(LONG).expect("it leaves");
    let answer = call.expect("a call").wait().expect("an answer");
    assert_eq!(answer.size(), 8_000_000);
}

#[test]
fn that_a_worker_leaves_is_told_when_its_messages_are_whole_or_it_is_lost() {
    let (engines, step) = (engines(2, "last_word"), step_of("rpc"));
    let [task, other] = [0, 1].map(|at| engines[at].task().clone());
    in_shard(&engines[0], move |context| {
        let mut lanes = Lanes::new(task, "rpc", step);
        lanes.open(WorkerId(1), other, context).expect("keys");
        let leave = |from_life| Message {
            from_life,
            to_life: 2,
            body: Body::Leave,
        };
        let over = Message {
            body: Body::Over("so".into()),
            ..leave(1)
        };
        let head = |message: &Message<Payload>| {
            let head = encode(message);
            let shape = Shape::from([head.len() as u64]);
            Tensor::from_vec(head, shape).expect("a head")
        };
        let mut brings = |token, outcome| {
            let brought = [lanes.brought(token, outcome, context), lanes.last_word()];
            let said = brought.map(|one| match one {
                Brought::Message(_, message) => match message.body {
                    Body::Leave => "leave".into(),
                    Body::Over(_) => "over".into(),
                    _ => "answer".into(),
                },
                Brought::Nothing => String::new(),
                Brought::Left(_) => "left".into(),
                Brought::Lost(_, status) => status.message().to_owned(),
                other => panic!("{other:?}"),
            });
            said.concat()
        };
        // By heads: two answers, of which one is of two tensors, and that their worker leaves.
        assert_eq!(brings(0, alive(head(&answer(vec![on_host(3)])))), "");
        let large = answer(vec![on_host(1 << 17), on_host(4)]);
        assert_eq!(brings(0, alive(head(&large))), "");
        assert_eq!(brings(0, alive(head(&leave(1)))), "");
        assert_eq!(brings(token_of(1, 1), alive(on_host(4))), "");
        assert_eq!(brings(token_of(0, 0), alive(on_host(3))), "answer");
        assert_eq!(
            brings(token_of(1, 0), alive(on_host(1 << 17))),
            "answerleave"
        );
        // That this worker's life is over there waits for nothing: what is under way does not come.
        assert_eq!(brings(0, alive(head(&large))), "");
        assert_eq!(brings(0, alive(head(&over))), "over");
        // What another life has left does not hold it.
        assert_eq!(brings(0, alive(head(&large))), "");
        assert_eq!(brings(0, alive(head(&leave(3)))), "leave");
        assert_eq!(brings(0, alive(head(&leave(1)))), "");
        let lost = || Err(Status::of(catalogue::PEER_LOST, "it is over"));
        assert_eq!(brings(0, lost()), "left");
        // But the loss of the life that has come after it is no other's.
        assert_eq!(brings(0, alive(head(&large))), "");
        assert_eq!(brings(0, alive(head(&leave(1)))), "");
        let mut next = answer(Vec::new());
        next.from_life = 4;
        assert_eq!(brings(0, alive(head(&next))), "answer");
        assert_eq!(brings(0, lost()), "it is over");
    });
}
