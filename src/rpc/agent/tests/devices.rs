//! Tensors of device memory that their receiver does not see: they cost their call, and nothing else.

use std::sync::mpsc::{Sender, channel};

use rendez::ground::{FrameIter, MemoryKind, Status, TensorMeta};
use rendez::mail::Received;
use rendez::memory::{DeviceMemory, DevicePtr};
use rendez::shard::{Task, TaskContext, TaskEvent};
use rendez::trace::Path;

use super::*;
use crate::agent::lanes::{Brought, Lanes, key_of, token_of};
use crate::codec::encode;
use crate::id::CallId;
use crate::message::{Body, Message, Outcome};
use crate::payload::{Parts, Payload};
use crate::{RRef, WorkerId};

/// Memory that only claims to be a device's.
#[derive(Debug)]
struct Claimed(DevicePtr);

impl DeviceMemory for Claimed {
    fn place(&self) -> DevicePtr {
        self.0
    }
}

pub(super) fn on_device(bytes: u64) -> Tensor {
    let place = DevicePtr {
        kind: MemoryKind::Cuda,
        device: 0,
        address: 0x7000_0000,
        size: bytes,
    };
    let meta = TensorMeta::new(DType::U8, Shape::from([bytes])).expect("a shape");
    Tensor::from_device(meta, Claimed(place)).expect("as long")
}

/// As a tensor is brought.
pub(super) fn alive(tensor: Tensor) -> Result<Received, Status> {
    Ok(Received {
        tensor,
        is_dead: false,
        path: Path::Inline,
    })
}

pub(super) fn on_host(bytes: usize) -> Tensor {
    Tensor::from_vec(vec![7_u8; bytes], Shape::from([bytes as u64])).expect("a tensor")
}

fn functions() -> Functions {
    Functions::new()
        .add("size", |tensors: Vec<Tensor>| {
            tensors.iter().map(Tensor::size).sum::<usize>() as u64
        })
        .add("made", |bytes: u64| on_device(bytes))
        .add("with", |held: RRef<u32>| (held, on_device(8)))
        .add("number", |number: u32| number)
}

/// Both call each other, with tensors small and large, as if nothing had been.
fn are_well(agents: &[Agent]) {
    for (from, to) in [(0, "w1"), (1, "w0")] {
        for bytes in [8, 1 << 17] {
            let size: u64 = agents[from]
                .rpc_sync(to, "size", (vec![on_host(bytes)],))
                .expect("a size");
            assert_eq!(size, bytes as u64);
        }
    }
}

#[test]
fn a_call_with_a_tensor_of_a_device_that_its_receiver_does_not_see_fails_alone() {
    for (is_ordered, test) in [(false, "far_device"), (true, "far_device_ordered")] {
        let set = |options: Options| Options {
            in_order: is_ordered,
            ..options.functions(functions())
        };
        let agents = group_with(2, test, set);
        for bytes in [8, 1 << 17] {
            // Others are under way before it and behind it; of its own tensors one can go.
            let call = |tensors: Vec<Tensor>| {
                let call = agents[0].rpc_async::<u64>("w1", "size", (tensors,));
                call.expect("a call")
            };
            let before = call(vec![on_host(bytes)]);
            let refused = call(vec![on_host(bytes), on_device(bytes as u64)]);
            let after = call(vec![on_host(bytes), on_host(bytes)]);
            let error = refused.wait().unwrap_err();
            assert_eq!(error.reason(), catalogue::TENSOR_DEVICE, "{error}");
            assert_eq!(before.wait().expect("a size"), bytes as u64);
            assert_eq!(after.wait().expect("a size"), 2 * bytes as u64);
        }
        let value: RRef<u64> = agents[0]
            .remote("w1", "size", (vec![on_device(8)],))
            .expect("a reference");
        // By now it is known.
        are_well(&agents);
        let error = value.to_here().unwrap_err();
        assert_eq!(error.reason(), catalogue::TENSOR_DEVICE, "{error}");
        drop(value);
        // Within a worker it passes.
        let size: u64 = agents[0]
            .rpc_sync("w0", "size", (vec![on_device(8)],))
            .expect("a size");
        assert_eq!(size, 8);
        are_well(&agents);
        assert!(shut_down(agents).iter().all(Result::is_ok));
    }
}

#[test]
fn a_result_of_a_device_that_its_caller_does_not_see_is_a_fault() {
    let set = |options: Options| Options {
        refuse_leaks: true,
        ..options.functions(functions())
    };
    let agents = group_with(2, "far_result", set);
    let is_told = |error: Error| {
        assert_eq!(error.reason(), catalogue::RPC_REMOTE_ERROR, "{error}");
        assert!(
            error.message().contains(catalogue::TENSOR_DEVICE),
            "{error}"
        );
    };
    for bytes in [8_u64, 1 << 17] {
        is_told(
            agents[0]
                .rpc_sync::<Tensor>("w1", "made", (bytes,))
                .unwrap_err(),
        );
        are_well(&agents);
    }
    // A value that is left there stays there.
    let value: RRef<Tensor> = agents[0].remote("w1", "made", (8_u64,)).expect("a value");
    is_told(value.to_here().unwrap_err());
    drop(value);
    // References that were to come with it end.
    let number: RRef<u32> = agents[0].remote("w1", "number", (5_u32,)).expect("a value");
    is_told(
        agents[0]
            .rpc_sync::<(RRef<u32>, Tensor)>("w1", "with", (number.clone(),))
            .unwrap_err(),
    );
    assert_eq!(number.to_here().expect("it is there"), 5);
    drop(number);
    are_well(&agents);
    let ends = shut_down(agents);
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
}

/// The keys of a group belong to the first shard, and its agent works in the second.
#[test]
fn an_agent_in_another_shard_than_its_keys_sends_no_tensor_of_a_device() {
    let engines: Vec<Engine> = (0..2)
        .map(|at| {
            let task = format!("/job:second_shard_{}/task:{at}", std::process::id());
            engine_with(&task, |config| config.shards = 2)
        })
        .collect();
    let agents = start(&engines, |_, options| Options {
        shard: 1,
        ..options.functions(functions())
    });
    let call = agents[0].rpc_async::<u64>("w1", "size", (vec![on_device(8)],));
    let error = call.expect("a call").wait().unwrap_err();
    assert_eq!(error.reason(), catalogue::TENSOR_DEVICE, "{error}");
    are_well(&agents);
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

/// Does something in a shard, and tells what came of it.
struct Once<F, R>(Option<F>, Sender<R>);

impl<R: Send, F: FnOnce(&mut TaskContext<'_>) -> R + Send> Task for Once<F, R> {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        if let (TaskEvent::Started, Some(does)) = (event, self.0.take()) {
            let came = does(context);
            self.1.send(came).expect("it is awaited");
            context.finish();
        }
    }
}

pub(super) fn in_shard<R: Send + 'static>(
    engine: &Engine,
    does: impl FnOnce(&mut TaskContext<'_>) -> R + Send + 'static,
) -> R {
    let (tell, told) = channel();
    engine
        .spawn(0, Box::new(Once(Some(does), tell)))
        .expect("it is up");
    told.recv_timeout(LONG).expect("it is done")
}

pub(super) fn answer(tensors: Vec<Tensor>) -> Message<Payload> {
    let payload = Payload::from(Parts {
        tensors,
        ..Parts::default()
    });
    Message {
        from_life: 1,
        to_life: 2,
        body: Body::Reply {
            id: CallId(1),
            outcome: Outcome::Value {
                payload,
                references: Vec::new(),
            },
        },
    }
}

/// As when the connection was lost after it was asked whether the tensor could go.
#[test]
fn a_tensor_that_cannot_go_when_its_turn_comes_goes_as_something_dead() {
    let (engines, step) = (engines(2, "late_device"), step_of("rpc"));
    engines[0].connect_local(&engines[1]).expect("two tasks");
    let [own, other] = [0, 1].map(|at| engines[at].task().clone());
    let (task, to) = (own.clone(), other.clone());
    let (asked, sent) = in_shard(&engines[0], move |context| {
        let mut lanes = Lanes::new(task, "rpc", step);
        lanes.open(WorkerId(1), to, context).expect("keys");
        let mut first = answer(vec![on_host(3), on_device(8), on_host(4)]);
        let asked = lanes.may_send(WorkerId(1), &first, context);
        let sent = [&mut first, &mut answer(vec![on_host(5)])]
            .map(|message| lanes.send(WorkerId(1), message, context));
        (asked, sent)
    });
    assert_eq!(asked.unwrap_err().reason(), catalogue::TENSOR_DEVICE);
    assert_eq!(sent, [Ok(()), Ok(())]);
    let step = engines[1].step(step);
    let came = |kind: usize, at: FrameIter| {
        let key = key_of("rpc", &own, &other, kind).expect("a key").at(at);
        step.recv(&key).deadline(LONG).wait().expect("it comes")
    };
    assert!((0..2).all(|_| !came(0, FrameIter::default()).is_dead));
    let lives = FrameIter { frame: 1, iter: 2 };
    let tensors = [(); 4].map(|()| came(1, lives));
    let sizes = tensors.map(|one| (!one.is_dead).then(|| one.tensor.size()));
    assert_eq!(sizes, [Some(3), None, Some(4), Some(5)]);
}

/// As where this side's driver maps no memory of the other's: the engine ends that receive alone.
#[test]
fn a_tensor_that_was_sent_and_cannot_be_read_where_it_lies_costs_its_message_alone() {
    let (engines, step) = (engines(2, "unread_device"), step_of("rpc"));
    let [task, other] = [0, 1].map(|at| engines[at].task().clone());
    in_shard(&engines[0], move |context| {
        let mut lanes = Lanes::new(task, "rpc", step);
        lanes.open(WorkerId(1), other, context).expect("keys");
        let unread = || Err(Status::of(catalogue::TENSOR_DEVICE, "it cannot be mapped"));
        let full = || Err(Status::of(catalogue::ARENA_FULL, "no room for 5 bytes"));
        let first = answer(vec![on_host(3), on_host(4), on_host(1 << 17)]);
        let second = answer(vec![on_host(5)]);
        for message in [&first, &second, &second] {
            let head = encode(message);
            let shape = Shape::from([head.len() as u64]);
            let head = Tensor::from_vec(head, shape).expect("a head");
            let brought = lanes.brought(0, alive(head), context);
            assert!(matches!(brought, Brought::Nothing), "{brought:?}");
        }
        let mut brings = |serial: u64, index: usize, outcome| {
            let brought = lanes.brought(token_of(serial, index), outcome, context);
            match brought {
                Brought::Nothing => None,
                Brought::Message(WorkerId(1), message) => match message.body {
                    Body::Reply {
                        outcome: Outcome::Value { payload, .. },
                        ..
                    } => Some((payload.lacking.clone(), payload.tensors.len())),
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(brings(0, 0, unread()), None);
        assert_eq!(brings(0, 1, alive(on_host(4))), None);
        // Those behind it on its key are of the next messages.
        assert_eq!(brings(1, 0, alive(on_host(5))), Some((None, 1)));
        let (why, tensors) = brings(0, 2, full()).expect("it is whole");
        let why = why.expect("the first that lacked");
        assert_eq!((why.reason(), tensors), (catalogue::TENSOR_DEVICE, 3));
        // Nor does one for which there is no room here cost more, and its message says why.
        let (why, tensors) = brings(2, 0, full()).expect("it is whole");
        assert_eq!((why, tensors), (full().err(), 1));
        let head = encode(&second);
        let shape = Shape::from([head.len() as u64]);
        let head = Tensor::from_vec(head, shape).expect("a head");
        lanes.brought(0, alive(head), context);
        // One that is not waited for any more matters to nothing.
        lanes.forget(WorkerId(1));
        let late = lanes.brought(token_of(3, 0), unread(), context);
        assert!(matches!(late, Brought::Nothing), "{late:?}");
    });
}

#[test]
fn what_waits_for_room_on_a_lane_that_is_lost_is_told() {
    let (mut config, step) = (Config::new("/job:no_room/task:0"), step_of("rpc"));
    (config.shards, config.share_cores) = (1, true);
    (config.parked_bytes, config.parked_bytes_per_step) = (4096, 4096);
    config.poll = rendez::drive::PollPolicy::Park;
    let engine = Engine::start(config).expect("an engine");
    let (task, to) = (
        engine.task().clone(),
        rendez::ground::TaskName::parse("/job:no_room/task:1"),
    );
    let to = to.expect("a name");
    let lost = in_shard(&engine, move |context| {
        let mut lanes = Lanes::new(task, "rpc", step);
        lanes.open(WorkerId(1), to, context).expect("keys");
        let sent = lanes.send(WorkerId(1), &mut answer(vec![on_host(8000)]), context);
        assert_eq!((sent, lanes.has_waiting()), (Ok(()), true));
        assert!(lanes.flush(context).1.is_empty() && lanes.has_waiting());
        let ends = Status::of(catalogue::PEER_LOST, "it is over");
        context.abort(step, &ends);
        (lanes.flush(context).1, lanes.has_waiting())
    });
    let [(worker, status)] = &lost.0[..] else {
        panic!("{lost:?}");
    };
    assert_eq!(
        (*worker, status.reason()),
        (WorkerId(1), catalogue::PEER_LOST)
    );
    assert!(!lost.1, "and nothing waits any more");
}
