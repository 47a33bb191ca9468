//! One that leaves before all that it has sent could go.

use rendez::ground::{FrameIter, Status};
use rendez::mail::Received;

use super::devices::{alive, answer, in_shard, on_host};
use super::lanes::{hears, leave, narrow, tensor, with_lanes};
use super::*;
use crate::WorkerId;
use crate::agent::lanes::{Brought, key_of, token_of};
use crate::codec::encode;
use crate::message::{Body, Message, Outcome};
use crate::payload::Payload;

/// More large tensors than a worker waits for at once.
const MANY: usize = 1100;

/// Holds a worker's shard up: whether that has begun, and whether it may end; and holds up what makes large answers.
struct Held([Arc<AtomicBool>; 3]);

impl Held {
    fn functions() -> (Self, Functions) {
        let held = Self([(); 3].map(|()| Arc::default()));
        let [has_begun, may_end, may_answer] = held.0.clone();
        let hold = move || {
            has_begun.store(true, Ordering::Release);
            until(|| may_end.load(Ordering::Acquire));
        };
        let big = move || {
            until(|| may_answer.load(Ordering::Acquire));
            tensor(3 << 20)
        };
        let functions = Functions::new()
            .add("size", |tensor: Tensor| tensor.size() as u64)
            .add("big", big)
            .add_in_shard("one", || 1_u32)
            .add_in_shard("hold", hold);
        (held, functions)
    }

    fn begin(&self, from: &Agent, to: &str) {
        from.rpc_async::<()>(to, "hold", ())
            .expect("a call")
            .detach();
        until(|| self.0[0].load(Ordering::Acquire));
    }

    fn end(&self) {
        self.0[1].store(true, Ordering::Release);
    }

    fn answer(&self) {
        self.0[2].store(true, Ordering::Release);
    }
}

fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Joins a dynamic group by number.
fn join(engines: &[Engine], at: usize, folder: &tempfile::TempDir, functions: &Functions) -> Agent {
    let options = Options::through_file(&folder.path().join("group"), None);
    let options = options.functions(functions.clone());
    Agent::init(&engines[at], &format!("w{at}"), options).expect("an agent")
}

/// The worker `w0` leaves, whose tensors wait for room at `w1`, and comes again.
fn leaves_and_comes_again(is_tcp: bool, leave: impl FnOnce(Agent)) {
    let engines = narrow("parting", is_tcp);
    let folder = tempfile::tempdir().expect("a folder");
    let (held, functions) = Held::functions();
    let join = |at: usize| join(&engines, at, &folder, &functions);
    let (leaver, stays) = (join(0), join(1));
    until(|| leaver.workers().len() == 2);
    held.begin(&leaver, "w1");
    let large = tensor(3 << 20);
    for _ in 0..MANY {
        let call = leaver.rpc_async::<u64>("w1", "size", (large.clone(),));
        call.expect("a call").detach();
    }
    until(|| leaver.debug_info()["agent.client_active_calls"] > MANY as u64);
    let call = stays.rpc_async_within::<u32>("w0", "one", (), Duration::ZERO);
    leave(leaver);
    held.end();
    let ended = call.expect("a call").wait_for(LONG);
    let error = ended.expect("it ends").expect_err("it has left");
    assert_eq!(error.reason(), catalogue::PEER_LOST, "{error}");
    let again = join(0);
    until(|| stays.workers().len() == 2);
    for bytes in [100, 1 << 20, 100, 1 << 20] {
        for (from, to) in [(&again, "w1"), (&stays, "w0")] {
            let call = from.rpc_async_within::<u64>(to, "size", (tensor(bytes),), LONG);
            assert_eq!(call.expect("a call").wait(), Ok(bytes));
        }
    }
    for agent in [again, stays] {
        agent.shutdown(LONG).expect("it leaves");
    }
}

#[test]
fn a_worker_that_leaves_while_what_it_has_sent_waits_for_room_is_heard_to_leave() {
    for is_tcp in [false, true] {
        leaves_and_comes_again(is_tcp, Agent::shutdown_local);
        leaves_and_comes_again(is_tcp, drop);
    }
}

/// Each of its answers comes whole, or its call ends as of one that has left.
#[test]
fn an_answer_that_had_no_time_to_go_ends_its_call_as_lost() {
    for is_tcp in [false, true] {
        let engines = narrow("unanswered", is_tcp);
        let folder = tempfile::tempdir().expect("a folder");
        let (held, functions) = Held::functions();
        let [leaver, stays] = [0, 1].map(|at| join(&engines, at, &folder, &functions));
        until(|| leaver.workers().len() == 2);
        let call = |_| stays.rpc_async_within::<Tensor>("w0", "big", (), Duration::ZERO);
        let calls: Vec<_> = (0..6).map(call).collect();
        let serves = |count| leaver.debug_info()["agent.server_active_calls"] == count;
        until(|| serves(6));
        held.begin(&leaver, "w1");
        held.answer();
        until(|| serves(0));
        leaver.shutdown_local();
        held.end();
        let mut whole = 0;
        for call in calls {
            match call.expect("a call").wait_for(LONG).expect("it ends") {
                Ok(tensor) => whole += usize::from(tensor.size() == 3 << 20),
                Err(error) => assert_eq!(error.reason(), catalogue::PEER_LOST, "{error}"),
            }
        }
        assert!((1..6).contains(&whole), "{whole} answers were whole");
        stays.shutdown(LONG).expect("it leaves");
    }
}

/// A guest is told at once, and waits for nothing of what could not go.
#[test]
fn a_worker_that_leaves_its_guest_while_answers_wait_for_room_is_heard_to_leave() {
    let engines = narrow("host", false);
    let folder = tempfile::tempdir().expect("a folder");
    let (held, functions) = Held::functions();
    let host = join(&engines, 0, &folder, &functions);
    let engine = super::guests::guest(77);
    let visitor = super::guests::visit(&engine, &host);
    let call = |_| visitor.rpc_async_within::<Tensor>("w0", "big", (), Duration::ZERO);
    let calls: Vec<_> = (0..6).map(call).collect();
    let serves = |count| host.debug_info()["agent.server_active_calls"] == count;
    until(|| serves(6));
    std::thread::scope(|scope| {
        // The guest hears nothing meanwhile.
        let (has_begun, may_end) = (Arc::clone(&held.0[0]), Arc::clone(&held.0[1]));
        let guest = &engine;
        scope.spawn(move || {
            in_shard(guest, move |_| {
                has_begun.store(true, Ordering::Release);
                until(|| may_end.load(Ordering::Acquire));
            });
        });
        until(|| held.0[0].load(Ordering::Acquire));
        held.answer();
        until(|| serves(0));
        host.clone().shutdown_local();
        held.end();
    });
    let mut whole = 0;
    for call in calls {
        match call.expect("a call").wait_for(LONG).expect("it ends") {
            Ok(tensor) => whole += usize::from(tensor.size() == 3 << 20),
            Err(error) => assert_eq!(error.reason(), catalogue::PEER_LOST, "{error}"),
        }
    }
    assert!((1..6).contains(&whole), "{whole} answers were whole");
}

#[test]
fn what_has_no_room_is_given_up_so_that_its_receiver_waits_for_nothing() {
    let large = || answer(vec![tensor(3 << 20)]);
    let plain = || {
        let mut message = answer(Vec::new());
        if let Body::Reply {
            outcome: Outcome::Value { payload, .. },
            ..
        } = &mut message.body
        {
            payload.plain = vec![7; 3 << 20].into();
        }
        message
    };
    let six = |make: &dyn Fn() -> Message<Payload>| (0..6).map(|_| make()).collect::<Vec<_>>();
    // Tensors wait, or heads and the last word behind them.
    for (messages, are_tensors) in [(six(&large), true), (six(&plain), false)] {
        let engines = narrow("given_up", false);
        with_lanes(&engines, move |lanes, context| {
            for mut message in messages.into_iter().chain([leave()]) {
                let sent = lanes.send(WorkerId(1), &mut message, context);
                sent.expect("the lane is well");
            }
            assert!(lanes.has_waiting(), "all found room");
            lanes.give_up(context);
            assert!(!lanes.has_waiting());
        });
        let mut answers = 0;
        while matches!(hears(&engines, 1)[..], [Body::Reply { .. }]) {
            answers += 1;
        }
        assert_eq!(answers == 6, are_tensors, "{answers}");
        if are_tensors {
            let are_dead = large_ones(&engines, 6);
            assert!(!are_dead[0] && are_dead[5], "{are_dead:?}");
        }
    }
}

/// Whether so many large tensors are dead that the second receives of the first.
fn large_ones(engines: &[Engine], count: usize) -> Vec<bool> {
    let key = key_of("rpc", engines[0].task(), engines[1].task(), 2).expect("a key");
    let key = key.at(FrameIter { frame: 1, iter: 2 });
    let step = engines[1].step(step_of("rpc"));
    let receive = |_| {
        step.recv(&key)
            .deadline(LONG)
            .wait()
            .expect("a value")
            .is_dead
    };
    (0..count).map(receive).collect()
}

/// Its worker lives on, and may be called by the next life of this one.
#[test]
fn what_waits_when_a_life_ends_on_one_side_is_waited_for_by_nobody() {
    #[derive(Clone, Copy)]
    enum By {
        Word,
        Receive,
        Send,
    }
    for by in [By::Word, By::Receive, By::Send] {
        let engines = narrow("one_side", false);
        with_lanes(&engines, move |lanes, context| {
            for _ in 0..6 {
                let sent = lanes.send(WorkerId(1), &mut answer(vec![tensor(3 << 20)]), context);
                sent.expect("the lane is well");
            }
            assert!(lanes.has_waiting(), "all found room");
            let over = |from_life| Message {
                from_life,
                to_life: 1,
                body: Body::Over("so".into()),
            };
            let full = Status::of(catalogue::ARENA_FULL, "no room for a head");
            let outcomes = match by {
                // The first is of a life before.
                By::Word => vec![head(&over(7)), head(&over(2))],
                By::Receive => vec![Err(full)],
                By::Send => {
                    lanes.lose(WorkerId(1), &full, context);
                    Vec::new()
                }
            };
            for outcome in outcomes {
                lanes.brought(0, outcome, context);
            }
            lanes.drop_waiting(WorkerId(1));
        });
        let are_dead = large_ones(&engines, 6);
        assert!(!are_dead[0] && are_dead[5], "{are_dead:?}");
        let key = key_of("rpc", engines[0].task(), engines[1].task(), 2).expect("a key");
        let more = engines[1].step(step_of("rpc"));
        let more = more.recv(&key.at(FrameIter { frame: 1, iter: 2 }));
        assert!(more.deadline(Duration::from_millis(50)).wait().is_err());
    }
}

fn head(message: &Message<Payload>) -> Result<Received, Status> {
    let head = encode(message);
    let shape = Shape::from([head.len() as u64]);
    alive(Tensor::from_vec(head, shape).expect("a head"))
}

#[test]
fn a_message_whose_tensor_does_not_come_says_why() {
    let reasons = [
        catalogue::TENSOR_DEVICE,
        catalogue::PEER_LOST,
        catalogue::RPC_CANCELLED,
    ];
    for (number, reason) in (0_u8..).zip(reasons) {
        is_said(number, reason);
    }
}

fn is_said(number: u8, reason: &'static str) {
    let engines = engines(2, "announced");
    with_lanes(&engines, move |lanes, context| {
        lanes.brought(0, head(&answer(vec![on_host(3)])), context);
        let dead = Received {
            is_dead: true,
            ..alive(Tensor::scalar(number)).expect("alive")
        };
        let brought = lanes.brought(token_of(0, 0), Ok(dead), context);
        let Brought::Message(_, message) = brought else {
            panic!("{brought:?}");
        };
        let Body::Reply {
            outcome: Outcome::Value { payload, .. },
            ..
        } = &message.body
        else {
            panic!("{message:?}");
        };
        let why = payload.lacking.as_ref().map(|why| why.reason());
        assert_eq!(why, Some(reason));
    });
}
