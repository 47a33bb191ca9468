//! What a task has of its shard: wakes from elsewhere, keys that it gives back, steps that it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{ARENA, Deaf};
use crate::fabric::{AnyPort, Geometry, LoopbackPort};
use crate::ground::device::TaskName;
use crate::ground::{Incarnation, Key, MemoryKind, Nanos, Status, StepId, catalogue, limits};
use crate::memory::{DeviceMemory, DevicePtr, Tensor};
use crate::shard::{Settings, Task, TaskContext, TaskEvent};
use crate::testing::solo::{End, Greeting, Queues, Solo, Team};
use crate::trace::Clock;

fn solo(keys: usize) -> Solo {
    solo_at(keys, &Arc::new(AtomicU64::new(1)))
}

fn solo_at(keys: usize, now: &Arc<AtomicU64>) -> Solo {
    let team = Team {
        task: TaskName::parse("/job:a/task:0").unwrap(),
        incarnation: Incarnation(1),
        settings: Settings {
            shards: 1,
            keys,
            ..Settings::default()
        },
        clock: Clock::simulated(Arc::clone(now)),
        arena: ARENA,
        queues: Queues::default(),
    };
    let ports = |_| vec![AnyPort::Loopback(LoopbackPort::new())];
    team.muster(ports, |_| Arc::new(Deaf)).unwrap().remove(0)
}

fn key(edge: usize) -> Key {
    Key::between("a", "a", &format!("edge{edge}")).unwrap()
}

/// Counts its wakes, and ends with the third.
struct Sleeper(Arc<AtomicU32>);

impl Task for Sleeper {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        if matches!(event, TaskEvent::Woken) && self.0.fetch_add(1, Ordering::Relaxed) == 2 {
            context.finish();
        }
    }
}

#[test]
fn wakes_before_a_call_are_one_and_those_after_it_are_heard() {
    let mut solo = solo(64);
    let count = Arc::new(AtomicU32::new(0));
    let waker = solo.spawn(Box::new(Sleeper(Arc::clone(&count))));
    // Before it sits in its shard, too.
    waker.wake();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| waker.wake());
        }
    });
    solo.turn();
    assert_eq!(count.load(Ordering::Relaxed), 1);
    for calls in [2, 3, 3, 3] {
        waker.wake();
        solo.turn();
        assert_eq!(
            count.load(Ordering::Relaxed),
            calls,
            "after the third it is gone"
        );
    }
}

/// It was numbered and kept, and each send and receive of it was refused.
#[test]
fn a_key_of_two_others_is_not_prepared() {
    let mut solo = solo(64);
    let [theirs, ours] = ["c", "a"].map(|to| Key::between("b", to, "x").unwrap());
    let refused = solo.enter(|context| context.prepare(&theirs).unwrap_err());
    assert_eq!(refused.reason(), catalogue::DEVICE_FOREIGN_SOURCE);
    assert!(solo.enter(|context| context.prepare(&ours)).is_ok());
}

#[test]
fn released_keys_make_room_and_prepared_ones_do_not() {
    let mut solo = solo(4);
    solo.enter(|context| {
        let twice = context.prepare(&key(0)).unwrap();
        assert_eq!(context.prepare(&key(0)), Ok(twice));
        let others: Vec<_> = (1..4)
            .map(|edge| context.prepare(&key(edge)).unwrap())
            .collect();
        let refused = context.prepare(&key(4)).unwrap_err();
        assert_eq!(refused.reason(), catalogue::KEYS);
        // Prepared twice, released once: it stays.
        context.release(twice);
        assert_eq!(
            context.prepare(&key(4)).unwrap_err().reason(),
            catalogue::KEYS
        );
        context.release(others[1]);
        context.prepare(&key(4)).unwrap();
        context.send(StepId(1), twice, Tensor::scalar(5u8)).unwrap();
        context.recv(StepId(1), twice, 9);
    });
    solo.turn();
    let (token, outcome) = solo.heard().unwrap();
    assert_eq!(
        (token, outcome.unwrap().tensor.host().unwrap()),
        (9, &[5][..])
    );
}

/// A task that serves visitors has keys to each, and gives them back when it hears that the visitor is gone. Each kept
/// its place among the peers, and one more than there are places for was refused.
#[test]
fn peers_whose_keys_are_released_after_they_are_gone_leave_their_places() {
    let now = Arc::new(AtomicU64::new(1));
    let mut solo = solo_at(2 * limits::PEERS, &now);
    let prepare = |context: &mut TaskContext<'_>, visitor: usize| {
        let key = Key::between("a", &format!("visitor{visitor}"), "x").unwrap();
        context.prepare(&key)
    };
    let visitors = 0..limits::PEERS;
    let prepared: Vec<_> = solo.enter(|context| {
        let prepared = visitors.map(|visitor| prepare(context, visitor).unwrap());
        prepared.collect()
    });
    now.fetch_add(Settings::default().connect_timeout_ns, Ordering::Relaxed);
    solo.turn();
    solo.enter(|context| {
        let refused = prepare(context, limits::PEERS).unwrap_err();
        assert_eq!(refused.reason(), catalogue::KEYS, "{refused}");
        prepared.into_iter().for_each(|key| context.release(key));
        prepare(context, limits::PEERS).unwrap();
    });
}

/// Memory that only claims to be a device's.
#[derive(Debug)]
struct Claimed(DevicePtr);

impl DeviceMemory for Claimed {
    fn place(&self) -> DevicePtr {
        self.0
    }
}

#[test]
fn a_task_that_asks_is_told_what_its_send_would_be() {
    let mut solo = solo(64);
    let place = DevicePtr {
        kind: MemoryKind::Cuda,
        device: 0,
        address: 0x7000_0000,
        size: 8,
    };
    let meta = Tensor::scalar(7_u64).meta();
    let on_device = Tensor::from_device(meta, Claimed(place)).unwrap();
    let far = Key::between("a", "b", "edge").unwrap();
    solo.enter(|context| {
        let [here, far] = [key(0), far].map(|key| context.prepare(&key).unwrap());
        for tensor in [&on_device, &Tensor::scalar(7_u64)] {
            for key in [here, far] {
                let asked = context.may_send(key, tensor);
                assert_eq!(asked, context.send(StepId(1), key, tensor.clone()));
                let is_refused = key == far && tensor.is_device();
                let reason = asked.err().map(|status| status.reason());
                assert_eq!(reason, is_refused.then_some(catalogue::TENSOR_DEVICE));
            }
        }
        context.release(far);
        let asked = context.may_send(far, &on_device);
        assert!(asked.is_err(), "nothing says where it would go");
    });
}

#[test]
fn a_handle_that_was_released_never_names_another_key() {
    let mut solo = solo(2);
    solo.enter(|context| {
        let old = context.prepare(&key(0)).unwrap();
        context.release(old);
        let others = [1, 2].map(|edge| context.prepare(&key(edge)).unwrap());
        assert!(others.iter().any(|other| other.id == old.id), "{others:?}");
        let sent = context.send(StepId(1), old, Tensor::scalar(5u8));
        assert_eq!(sent.unwrap_err().reason(), catalogue::STALE);
        context.recv(StepId(1), old, 9);
        // Nor can it be given back twice.
        context.release(old);
        assert!(context.prepare(&key(3)).is_err());
    });
    solo.turn();
    let (token, outcome) = solo.heard().unwrap();
    assert_eq!(
        (token, outcome.unwrap_err().reason()),
        (9, catalogue::STALE)
    );
}

#[test]
fn a_task_ends_a_step_for_all_that_wait_in_it() {
    let mut solo = solo(64);
    let failure = Status::of(catalogue::KERNEL_INPUT, "no");
    solo.enter(|context| {
        let key = context.prepare(&key(0)).unwrap();
        context.recv(StepId(1), key, 1);
        context.recv(StepId(2), key, 2);
        context.abort(StepId(1), &failure);
        assert_eq!(
            context.send(StepId(1), key, Tensor::scalar(1u8)),
            Err(failure.clone())
        );
    });
    solo.turn();
    let (token, outcome) = solo.heard().unwrap();
    assert_eq!((token, outcome.unwrap_err()), (1, failure));
    assert!(solo.heard().is_none(), "the other step goes on");
}

/// The peer `b` is there, in that life.
fn greet(solo: &mut Solo, life: u64) {
    let geometry = Geometry {
        slots: 64,
        payload_bytes: 1 << 16,
    };
    let (end, _theirs) = LoopbackPort::endpoints(geometry).unwrap();
    solo.peer_up(Greeting {
        task: TaskName::parse("/job:b/task:0").unwrap(),
        incarnation: Incarnation(life),
        shards: 1,
        read_domain: false,
        segments: Vec::new(),
        links: vec![(0, End::Loopback(end))],
    });
    solo.turn();
}

/// The task receives, by the token, from that life of `b`.
fn recv_from(solo: &mut Solo, lives: &[(u64, u64)]) {
    let key = Key::between("b", "a", "edge").unwrap();
    for &(token, life) in lives {
        let key = key.with_source_incarnation(Incarnation(life));
        solo.enter(|context| {
            let key = context.prepare(&key).unwrap();
            context.recv(StepId(1), key, token);
        });
    }
    solo.turn();
}

/// The first receive was told that the life it names is another than the peer's, and no other receive was told.
fn first_is_told(solo: &mut Solo) {
    let (token, outcome) = solo.heard().unwrap();
    let status = outcome.unwrap_err();
    assert_eq!((token, status.reason()), (1, catalogue::PEER_RESTARTED));
    assert!(
        status
            .message()
            .contains("expects a different device incarnation"),
        "{status}"
    );
    assert!(
        solo.heard().is_none(),
        "this life's, and any life's, are waited for"
    );
}

#[test]
fn a_receive_from_an_earlier_life_of_a_peer_ends_at_once() {
    let mut solo = solo(64);
    greet(&mut solo, 7);
    recv_from(&mut solo, &[(1, 6), (2, 7), (3, 0)]);
    first_is_told(&mut solo);
}

/// The receives began before the peer was there in any life.
#[test]
fn a_receive_from_another_life_ends_as_the_peer_comes() {
    let mut solo = solo(64);
    recv_from(&mut solo, &[(1, 6), (2, 7), (3, 0)]);
    assert!(solo.heard().is_none());
    greet(&mut solo, 7);
    first_is_told(&mut solo);
}

/// Waits for two values, and panics when it is woken.
struct Clumsy(Key);

impl Task for Clumsy {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        match event {
            TaskEvent::Started => {
                let key = context.prepare(&self.0).unwrap();
                context.recv(StepId(1), key, 0);
                context.recv(StepId(1), key, 1);
            }
            TaskEvent::Woken => panic!("dropped {} plates", 3),
            TaskEvent::Stopping => {}
            event => panic!("{event:?} after its end"),
        }
    }
}

impl Drop for Clumsy {
    fn drop(&mut self) {
        panic!("and again");
    }
}

#[test]
fn a_panic_ends_its_task_and_what_it_waits_for() {
    let mut solo = solo(64);
    let waker = solo.spawn(Box::new(Clumsy(key(0))));
    let watched = waker.seat().watch();
    solo.turn();
    assert_eq!((waker.seat().end(), watched.take().is_none()), (None, true));
    waker.wake();
    solo.turn();
    let status = waker.seat().end().unwrap().unwrap_err();
    assert_eq!(status.reason(), catalogue::TASK_PANICKED);
    assert!(status.message().contains("dropped 3 plates"), "{status}");
    assert_eq!(watched.take().unwrap().unwrap_err(), status);
    let late = waker.seat().watch();
    assert_eq!(late.take().unwrap().unwrap_err(), status);
    // The value goes to a receive that waits, not to one that is gone.
    let waiting = solo.recv(StepId(1), &key(0), Nanos::NEVER);
    let sent = solo.enter(|context| {
        let key = context.prepare(&key(0))?;
        context.send(StepId(1), key, Tensor::scalar(7u8))
    });
    assert_eq!(sent, Ok(()));
    solo.turn();
    let received = waiting.take().expect("nothing else waits").unwrap();
    assert_eq!(received.tensor.host().unwrap(), [7]);
    // The shard lives, and so do tasks that come later.
    let count = Arc::new(AtomicU32::new(0));
    let sleeper = solo.spawn(Box::new(Sleeper(Arc::clone(&count))));
    let watched = sleeper.seat().watch();
    for _ in 0..3 {
        waker.wake();
        sleeper.wake();
        solo.turn();
    }
    assert_eq!(count.load(Ordering::Relaxed), 3);
    assert_eq!(watched.take(), Some(Ok(())));
}

/// Ends when it is woken, after it asked to be called again.
struct Hasty;

impl Task for Hasty {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        if matches!(event, TaskEvent::Woken) {
            context.again();
            context.finish();
        }
    }
}

/// Counts all that it hears but its start.
struct Listener(Arc<AtomicU32>);

impl Task for Listener {
    fn handle(&mut self, event: TaskEvent, _: &mut TaskContext<'_>) {
        self.0.fetch_add(
            u32::from(!matches!(event, TaskEvent::Started)),
            Ordering::Relaxed,
        );
    }
}

/// The place of a task that has ended is another's, and nothing that was the former's comes there.
#[test]
fn a_task_takes_the_place_of_one_that_has_ended_and_hears_nothing_of_it() {
    let mut solo = solo(64);
    let heard = Arc::new(AtomicU32::new(0));
    let mut former = Vec::new();
    for _ in 0..100 {
        let waker = solo.spawn(Box::new(Hasty));
        solo.turn();
        waker.wake();
        solo.turn();
        former.push(waker);
    }
    let places = solo.task_places();
    assert!(places <= 3, "{places} places");
    let waker = solo.spawn(Box::new(Hasty));
    solo.turn();
    waker.wake();
    // Its place is free from here on, and what it asked for was for the next turn.
    solo.turn();
    let last = solo.spawn(Box::new(Listener(Arc::clone(&heard))));
    former.push(waker);
    former.iter().for_each(|waker| waker.wake());
    solo.turn();
    solo.turn();
    assert_eq!(heard.load(Ordering::Relaxed), 0);
    last.wake();
    solo.turn();
    assert_eq!(heard.load(Ordering::Relaxed), 1);
    assert_eq!(solo.task_places(), places);
}
