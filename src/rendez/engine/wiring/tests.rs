//! Addresses that come while they are wanted.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::engine::Engine;
use crate::engine::tests::config;

/// A task is wanted and its address told at one moment, again and again: it is dialled, whichever comes first.
#[test]
fn no_dial_is_lost_between_a_want_and_an_address() {
    let mut config = config("/job:a/task:0");
    config.connect_timeout = Duration::from_millis(50);
    let engine = Engine::start(config).unwrap();
    let wiring = &engine.inner.wiring;
    let nowhere: Address = "unix:@rendez-nobody-listens-here".parse().unwrap();
    let tasks: Vec<_> = (0..10_000)
        .map(|index| TaskName::new("wanted", 0, index).unwrap())
        .collect();
    let [told, wanted] = [AtomicU32::new(0), AtomicU32::new(0)];
    let meet = |mine: &AtomicU32, other: &AtomicU32, at: u32| {
        mine.store(at, Ordering::SeqCst);
        let mut spins = 0;
        while other.load(Ordering::SeqCst) < at {
            spins += 1;
            match spins < 1_000 {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (at, task) in (1..).zip(&tasks) {
                meet(&wanted, &told, at);
                wiring.want(task);
            }
        });
        for (at, task) in (1..).zip(&tasks) {
            meet(&told, &wanted, at);
            // At every moment of the other thread's way.
            (0..at % 256).for_each(|_| std::hint::spin_loop());
            wiring.add_peer(task.clone(), nowhere.clone());
        }
    });
    assert_eq!(wiring.book().wanted, BTreeSet::new());
}
