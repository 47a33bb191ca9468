//! Lanes: what goes by which key, and what waits.

use std::sync::Mutex;

use rendez::ground::{FrameIter, Status, StepId};
use rendez::mail::Received;
use rendez::shard::TaskContext;

use super::devices::{answer, in_shard};
use super::*;
use crate::agent::lanes::{Brought, Lanes, key_of};
use crate::codec::decode;
use crate::id::{CallId, WorkerId};
use crate::message::{Body, Call, Control, Message, Target};
use crate::payload::{Parts, Payload};

/// Does something in the shard of the first with the lanes of a group of these two, which are connected.
pub(super) fn with_lanes<R: Send + 'static>(
    engines: &[Engine],
    does: impl FnOnce(&mut Lanes, &mut TaskContext<'_>) -> R + Send + 'static,
) -> R {
    engines[0].connect_local(&engines[1]).expect("two tasks");
    let [task, other] = [0, 1].map(|at| engines[at].task().clone());
    in_shard(&engines[0], move |context| {
        let mut lanes = Lanes::new(task, "rpc", step_of("rpc"));
        lanes.open(WorkerId(1), other, context).expect("keys");
        does(&mut lanes, context)
    })
}

pub(super) fn leave() -> Message<Payload> {
    Message {
        from_life: 1,
        to_life: 2,
        body: Body::Leave,
    }
}

/// The second hears so many heads of the first.
pub(super) fn hears(engines: &[Engine], count: usize) -> Vec<Body<Payload>> {
    let key = key_of("rpc", engines[0].task(), engines[1].task(), 0).expect("a key");
    let step = engines[1].step(step_of("rpc"));
    let hear = |at| {
        let head = step.recv(&key).deadline(Duration::from_secs(5)).wait();
        let head = head.unwrap_or_else(|error| panic!("head {at}: {error}"));
        let message = decode::<Payload>(head.tensor.host().expect("bytes"));
        message.expect("a message").body
    };
    (0..count).map(hear).collect()
}

pub(super) fn tensor(bytes: u64) -> Tensor {
    Tensor::from_vec(vec![7_u8; bytes as usize], Shape::from([bytes])).expect("a tensor")
}

/// Two engines that hold little of what is not asked for.
pub(super) fn narrow(test: &str, is_tcp: bool) -> Vec<Engine> {
    let start = |at: usize| {
        let task = format!("/job:{test}_{is_tcp}_{}/task:{at}", std::process::id());
        engine_with(&task, |config| {
            (config.parked_bytes, config.parked_bytes_per_step) = (8 << 20, 4 << 20);
            if is_tcp {
                config.listen = Some("127.0.0.1:0".parse().expect("an address"));
                (config.insecure, config.require) = (true, rendez::engine::Require::Tcp);
            }
        })
    };
    (0..2).map(start).collect()
}

#[test]
fn a_large_tensor_that_waits_for_room_holds_up_neither_heads_nor_small_ones() {
    let engines = narrow("overtaken_tensors", false);
    let is_waiting = with_lanes(&engines, |lanes, context| {
        let large = || answer(vec![tensor(3 << 20)]);
        let mut messages: Vec<_> = (0..6).map(|_| large()).collect();
        messages.push(answer(vec![tensor(3 << 20), tensor(9)]));
        messages.extend([answer(vec![tensor(10)]), leave()]);
        for message in &mut messages {
            lanes
                .send(WorkerId(1), message, context)
                .expect("the lane is well");
        }
        lanes.has_waiting()
    });
    assert!(is_waiting, "all found room");
    hears(&engines, 9);
    let step = engines[1].step(step_of("rpc"));
    for bytes in [9, 10] {
        let key = key_of("rpc", engines[0].task(), engines[1].task(), 1).expect("a key");
        let key = key.at(FrameIter { frame: 1, iter: 2 });
        let came = step.recv(&key).deadline(Duration::from_secs(5)).wait();
        assert_eq!(came.expect("a small tensor").tensor.size(), bytes);
    }
}

fn call(id: u64, tensor: Tensor, in_order: bool) -> Message<Payload> {
    let payload = Payload::from(Parts {
        tensors: vec![tensor],
        ..Parts::default()
    });
    Message {
        from_life: 1,
        to_life: 2,
        body: Body::Call(Call {
            id: CallId(id),
            settled: CallId(1),
            after: in_order.then_some(CallId(id - 1)),
            budget: None,
            target: Target::Function("size".into()),
            references: Vec::new(),
            payload,
        }),
    }
}

fn cancel(id: u64, call: u64) -> Message<Payload> {
    Message {
        from_life: 1,
        to_life: 2,
        body: Body::Control {
            id: CallId(id),
            settled: CallId(1),
            control: Control::Cancel(CallId(call)),
        },
    }
}

/// Does something with lanes that go on.
fn again<R: Send + 'static>(
    (engines, lanes): (&[Engine], &Arc<Mutex<Lanes>>),
    does: impl FnOnce(&mut Lanes, &mut TaskContext<'_>) -> R + Send + 'static,
) -> R {
    let lanes = Arc::clone(lanes);
    in_shard(&engines[0], move |context| {
        does(&mut lanes.lock().expect("no panic"), context)
    })
}

/// Lanes of the first to the second of these engines, which go on.
fn lasting_lanes(engines: &[Engine]) -> Arc<Mutex<Lanes>> {
    engines[0].connect_local(&engines[1]).expect("two tasks");
    let [task, other] = [0, 1].map(|at| engines[at].task().clone());
    let lanes = Arc::new(Mutex::new(Lanes::new(task, "rpc", step_of("rpc"))));
    again((engines, &lanes), |lanes, context| {
        lanes.open(WorkerId(1), other, context).expect("keys");
    });
    lanes
}

/// What comes to the second next on that key, while what waits for room at the first is sent.
fn comes(engines: &[Engine], lanes: &Arc<Mutex<Lanes>>, kind: usize) -> Received {
    let key = key_of("rpc", engines[0].task(), engines[1].task(), kind).expect("a key");
    let key = match kind {
        0 => key,
        _ => key.at(FrameIter { frame: 1, iter: 2 }),
    };
    let step = engines[1].step(step_of("rpc"));
    let began = Instant::now();
    loop {
        let (_, lost) = again((engines, lanes), |lanes, context| lanes.flush(context));
        assert!(lost.is_empty(), "{lost:?}");
        match step.recv(&key).deadline(Duration::from_millis(20)).wait() {
            Ok(came) => return came,
            Err(status) => assert!(began.elapsed() < LONG, "{status}"),
        }
    }
}

#[test]
fn what_a_call_carries_that_is_given_up_while_it_waits_for_room_is_let_go() {
    for in_order in [false, true] {
        let engines = narrow("given_up", in_order);
        let lanes = lasting_lanes(&engines);
        let is_waiting = again((&engines, &lanes), move |lanes, context| {
            let calls = (1..=6).map(|id| call(id, tensor(3 << 20), in_order));
            for mut message in calls.chain([cancel(7, 5)]) {
                let sent = lanes.send(WorkerId(1), &mut message, context);
                sent.expect("the lane is well");
            }
            lanes.has_waiting()
        });
        assert!(is_waiting, "all found room");
        // Something dead says that it was given up.
        let dead = [(); 6].map(|()| {
            let came = comes(&engines, &lanes, 2);
            let why = came
                .is_dead
                .then(|| came.tensor.as_slice::<u8>().map(<[u8]>::to_vec));
            why.map(|why| why.expect("a number"))
        });
        assert_eq!(dead, [None, None, None, None, Some(vec![2]), None]);
        (0..7).for_each(|_| drop(comes(&engines, &lanes, 0)));
    }
}

#[test]
fn a_control_message_that_is_repeated_waits_for_room_once() {
    let engines = narrow("repeated", false);
    let lanes = lasting_lanes(&engines);
    let count = again((&engines, &lanes), |lanes, context| {
        let mut count = 0;
        let mut send = |lanes: &mut Lanes, mut message| {
            let sent = lanes.send(WorkerId(1), &mut message, context);
            sent.expect("the lane is well");
        };
        while !lanes.has_waiting() {
            count += 1;
            send(lanes, cancel(count, 1));
        }
        (0..3).for_each(|_| send(lanes, cancel(count, 1)));
        send(lanes, leave());
        count
    });
    hears(&engines, count as usize - 1);
    drop(comes(&engines, &lanes, 0));
    let last = comes(&engines, &lanes, 0).tensor;
    let last = decode::<Payload>(last.host().expect("bytes")).expect("a message");
    assert!(matches!(last.body, Body::Leave), "{last:?}");
}

#[test]
fn what_is_longer_than_what_may_wait_goes_when_it_is_asked_for() {
    for is_tcp in [false, true] {
        let engines = narrow("longer", is_tcp);
        let functions = Functions::new().add("size", |tensor: Tensor| tensor.size() as u64);
        let folder = tempfile::tempdir().expect("a folder");
        let join = |(at, engine): (usize, &Engine)| {
            let options = Options::through_file(&folder.path().join("group"), None);
            let options = options.functions(functions.clone());
            Agent::init(engine, &format!("w{at}"), options).expect("an agent")
        };
        let agents: Vec<Agent> = engines.iter().enumerate().map(join).collect();
        for bytes in [3 << 20, 5 << 20, 20 << 20] {
            let size: u64 = agents[0]
                .rpc_sync("w1", "size", (tensor(bytes),))
                .expect("a size");
            assert_eq!(size, bytes);
        }
        assert!(shut_down(agents).iter().all(Result::is_ok));
    }
}

/// Others have taken all the steps that a shard has.
#[test]
fn what_is_refused_for_another_reason_than_room_does_not_wait() {
    let engines = engines(2, "refused");
    let [task, other] = [0, 1].map(|at| engines[at].task().clone());
    let sent = in_shard(&engines[0], move |context| {
        let key = key_of("other", &other, &task, 0).expect("a key");
        let key = context.prepare(&key).expect("room");
        (1..=4096).for_each(|step| context.recv(StepId(step), key, 0));
        let mut lanes = Lanes::new(task, "rpc", StepId(1 << 40));
        lanes.open(WorkerId(1), other, context).expect("keys");
        let sent = lanes.send(WorkerId(1), &mut leave(), context);
        (sent, lanes.has_waiting())
    });
    let (sent, is_waiting) = sent;
    let why = sent.map_err(|status| status.reason().to_owned());
    assert_eq!((why, is_waiting), (Err(catalogue::STEPS.to_owned()), false));
}

/// It may be the word that its life has ended here.
#[test]
fn what_is_said_to_a_worker_that_is_not_listened_to_goes() {
    let engines = engines(2, "unheard");
    let sent = with_lanes(&engines, |lanes, context| {
        let full = Status::of(catalogue::ARENA_FULL, "no room for a head");
        let brought = lanes.brought(0, Err(full), context);
        assert!(matches!(brought, Brought::Lost(..)), "{brought:?}");
        lanes.send(WorkerId(1), &mut leave(), context)
    });
    assert_eq!(sent, Ok(()));
    hears(&engines, 1);
}
