//! What a peer says that cannot be, and what it asks for that there is no room for: one of two shards hears it.

use std::sync::{Arc, Mutex};

use super::posting::{Pair, STEP};
use crate::fabric::DownReason;
use crate::ground::device::TaskName;
use crate::ground::{
    Code, DType, FrameIter, Incarnation, Key, Nanos, Shape, Status, StepId, TensorMeta, limits,
};
use crate::memory::{Segment, Tensor};
use crate::rendezvous::Slot;
use crate::shard::ids::{Id as _, LinkId, PeerId};
use crate::shard::{Observer, Settings};

/// Keeps what peers are accused of.
#[derive(Default)]
struct Accusations(Mutex<Vec<String>>);

impl Observer for Accusations {
    fn peer_wanted(&self, _: &TaskName) {}
    fn step_ended(&self, _: StepId, _: &Status) {}
    fn link_down(&self, _: &TaskName, _: u32, _: DownReason) {}
    fn violated(&self, _: &TaskName, _: u32, status: &Status) {
        self.0.lock().unwrap().push(status.message().to_owned());
    }
    fn segment_added(&self, _: Arc<Segment>) {}
}

/// Two that greet each other as these lives, and what they accuse each other of.
fn accused(lives: [Incarnation; 2]) -> (Pair, Arc<Accusations>) {
    let accusations = Arc::new(Accusations::default());
    let observer = Arc::clone(&accusations);
    let mut pair = Pair::apart(Settings::default(), move || Arc::clone(&observer) as _);
    pair.connect_as(lives);
    pair.settle();
    (pair, accusations)
}

/// What is lent to a peer comes home when control has proved its life over. One that is greeted as another life than
/// its shards name would keep it for ever.
#[test]
fn a_peer_is_of_the_life_that_it_was_greeted_as() {
    let (pair, accusations) = accused([Incarnation(1), Incarnation(5)]);
    let heard = accusations.0.lock().unwrap().join("; ");
    assert!(heard.contains("an incarnation other than"), "{heard:?}");
    assert!(
        pair.solos[0]
            .queue_pair(&TaskName::parse("/job:b/task:0").unwrap(), 0)
            .is_none()
    );
}

/// A key of two other tasks is refused before anything is made of it: neither of them takes a place among the peers.
#[test]
fn a_key_of_others_makes_no_peer() {
    let (mut pair, accusations) = accused([Incarnation(1), Incarnation(2)]);
    let text = Key::between("c", "d", "x").unwrap().text().to_string();
    let core = pair.solos[0].core_mut();
    let (peers, link) = (core.peers.iter().count(), core.links.ids().next().unwrap());
    core.heard_key(link, &text);
    assert_eq!(core.peers.iter().count(), peers);
    let heard = accusations.0.lock().unwrap().join("; ");
    assert!(heard.contains("does not belong"), "{heard:?}");
}

/// A peer takes a shape that no tensor can have for a broken protocol. It never leaves: not even of strings, whose
/// bytes the shape does not count.
#[test]
fn an_impossible_shape_stays_here_and_the_link_up() {
    let (mut pair, accusations) = accused([Incarnation(1), Incarnation(2)]);
    let key = Key::between("a", "b", "strings").unwrap();
    let meta = TensorMeta {
        dtype: DType::String,
        shape: Shape::from([1 << 40, 1 << 40]),
    };
    let sent = Tensor::from_bytes(meta, vec![0; 64].into())
        .map_err(Status::from)
        .and_then(|tensor| {
            pair.solos[0].enter(|context| {
                let key = context.prepare(&key)?;
                context.send(STEP, key, tensor)
            })
        });
    pair.settle();
    assert_eq!(*accusations.0.lock().unwrap(), [""; 0]);
    assert_eq!(sent.unwrap_err().reason(), "TENSOR_SHAPE");
    let waiting = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
    pair.send(0, &key, 8);
    pair.settle();
    assert!(waiting.take().expect("the link is up").is_ok());
}

/// A peer's offer for which there is no place is lost: its step cannot be whole any more, and who waits in it hears so.
#[test]
fn an_offer_that_finds_no_place_ends_its_step() {
    let mut pair = Pair::new(Settings::default());
    let begun = pair.solos[1].core_mut().transfers.fill();
    assert_eq!(begun.len(), limits::INCOMING);
    let key = Key::between("a", "b", "large").unwrap();
    let waiting = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
    pair.send(0, &key, 8_000);
    pair.settle();
    let status = waiting.take().expect("it hears").unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("262144"), "{status}");
    let transfers = &mut pair.solos[1].core_mut().transfers;
    assert!(begun.into_iter().all(|id| transfers.end(id).is_some()));
}

/// One peer has as many requests here as it may: others are served, and a further one of its own hears of that bound.
#[test]
fn the_requests_of_one_peer_leave_room_for_those_of_others() {
    for is_same in [false, true] {
        let mut pair = Pair::new(Settings::default());
        let core = pair.solos[0].core_mut();
        let link = core.links.ids().next().unwrap();
        let (peer, full) = (core.links[link].peer, PeerId::of_row(7));
        core.asked
            .fill(if is_same { peer } else { full }, LinkId::of_row(7));
        let key = Key::between("a", "b", "x").unwrap();
        let waiting = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
        let core = pair.solos[1].core_mut();
        let slot = Slot {
            step: STEP,
            key: core.keys.find(&key).unwrap(),
            at: FrameIter::default(),
        };
        let link = core.links.ids().next().unwrap();
        core.ask_for_waiting(link, slot);
        pair.settle();
        if is_same {
            let status = waiting.take().expect("it hears").unwrap_err();
            assert_eq!(status.code(), Code::ResourceExhausted);
            let told = format!("{} requests of one peer", limits::ASKED_OF_PEER);
            assert!(status.message().contains(&told), "{status}");
        } else {
            assert_eq!(pair.solos[0].holdings().asked, limits::ASKED_OF_PEER + 1);
            pair.send(0, &key, 8);
            pair.settle();
            assert!(waiting.take().expect("a value").is_ok());
        }
    }
}

/// The arena is full of what is held here: who waits for a peer's value hears that, and not that it could never fit. It
/// costs that receive alone: what lies on its key behind it, what is short enough for a frame, and what is larger when
/// there is room again, all of it in the same step, arrives.
#[test]
fn a_landing_that_finds_the_arena_full_costs_its_receive_alone() {
    let mut pair = Pair::new(Settings::default());
    let pool = &mut pair.solos[1].core_mut().pool;
    let mut held = Vec::new();
    for size in [1 << 14, 64] {
        while let Ok(buffer) = pool.buffer(size) {
            held.push(buffer);
        }
    }
    let key = Key::between("a", "b", "large").unwrap();
    let other = Key::between("b", "a", "back").unwrap();
    let waiting = [(); 3].map(|()| pair.solos[1].recv(STEP, &key, Nanos::NEVER));
    for len in [8_000, 100, 8_001] {
        pair.send(0, &key, len);
    }
    let back = pair.solos[0].recv(STEP, &other, Nanos::NEVER);
    pair.send(1, &other, 8_000);
    pair.settle();
    let [first, second, third] = waiting;
    for waiting in [first, third] {
        let status = waiting.take().expect("it hears").unwrap_err();
        assert_eq!(status.reason(), "ARENA_FULL", "{status}");
        assert!(status.message().contains("longest free"), "{status}");
    }
    let size = |waiting: &crate::testing::solo::Waiting| {
        let outcome = waiting.take().expect("it hears");
        outcome.unwrap().tensor.host().unwrap().len()
    };
    assert_eq!((size(&second), size(&back)), (100, 8_000));
    drop(held);
    let again = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
    pair.send(0, &key, 8_002);
    pair.settle();
    assert_eq!(size(&again), 8_002);
    // Nothing of those that were lost is kept for them.
    for solo in &mut pair.solos {
        let held = solo.holdings();
        assert_eq!(
            (held.owed[..2].to_vec(), held.incoming),
            (vec![0, 0], 0),
            "{held:?}"
        );
    }
}
