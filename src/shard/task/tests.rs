//! What a task has of its shard: wakes from elsewhere, keys that it gives back, steps that it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::*;
use crate::fabric::{AnyPort, DownReason, LoopbackPort};
use crate::ground::device::TaskName;
use crate::ground::{Incarnation, catalogue};
use crate::memory::{ArenaConfig, HugePages, Segment};
use crate::shard::solo::{Queues, Solo, Team};
use crate::shard::{Clock, Observer, Settings};

struct Deaf;

impl Observer for Deaf {
    fn peer_wanted(&self, _: &TaskName) {}
    fn step_ended(&self, _: StepId, _: &Status) {}
    fn link_down(&self, _: &TaskName, _: u32, _: DownReason) {}
    fn violated(&self, _: &TaskName, status: &Status) {
        panic!("{status}");
    }
    fn segment_added(&self, _: Arc<Segment>) {}
}

fn solo(keys: usize) -> Solo {
    let team = Team {
        task: TaskName::parse("/job:a/task:0").unwrap(),
        incarnation: Incarnation(1),
        settings: Settings {
            shards: 1,
            keys,
            ..Settings::default()
        },
        clock: Clock::simulated(Arc::new(AtomicU64::new(1))),
        arena: ArenaConfig {
            segment_bytes: 1 << 20,
            bytes_max: 4 << 20,
            huge_pages: HugePages::Off,
        },
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
    assert_eq!((token, outcome.unwrap().tensor.bytes()), (9, &[5][..]));
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
