//! Lanes: what goes by which key, and what waits.

use rendez::ground::{Status, StepId};
use rendez::shard::TaskContext;

use super::devices::in_shard;
use super::*;
use crate::WorkerId;
use crate::agent::lanes::{Brought, Lanes, key_of};
use crate::message::{Body, Message};
use crate::payload::Payload;

/// Does something in the shard of the first with the lanes of a group of these two, which are connected.
fn with_lanes<R: Send + 'static>(
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

fn leave() -> Message<Payload> {
    Message {
        from_life: 1,
        to_life: 2,
        body: Body::Leave,
    }
}

/// The second hears so many heads of the first.
fn hears(engines: &[Engine], count: usize) {
    let key = key_of("rpc", engines[0].task(), engines[1].task(), 0).expect("a key");
    let step = engines[1].step(step_of("rpc"));
    for at in 0..count {
        let head = step.recv(&key).deadline(Duration::from_secs(5)).wait();
        assert!(head.is_ok(), "head {at}: {:?}", head.err());
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
