//! How a shard goes from one thread to the next, under loom: the baton and the line, each the very source.
//!
//! Each of these was taken away, and this failed, with others in some cases:
//!
//! | taken away | what fails |
//! |---|---|
//! | the look at CALLED in `lay_down` | `what_is_left_for_the_holder_is_seen` |
//! | the Acquire of `take`, or the Release of `lay_down` | `one_thread_at_a_time_touches_the_value` |
//! | the wake of the next in `lay_down` | `who_stands_in_line_is_called`, `all_in_line_are_called` |
//! | LINED, left in the word for those behind the first | `all_in_line_are_called` |
//! | the look of `line_up` whether it is held | `who_stands_in_line_is_called` |
//! | the taking of one who was called and does not want to | `a_call_that_is_not_wanted_is_passed_on` |
//! | BESIDE, left by one that finds it held | `who_sleeps_beside_has_it_or_is_called` |
//! | `calls_beside` moved behind the call | `who_sleeps_beside_has_it_or_is_called` |
//! | CALLED, left in the word by `pass_on` | `what_is_passed_on_is_for_the_next_holder` |
#![allow(dead_code, unreachable_pub, unused_imports, missing_docs)]

/// Loom's types under the names of `src/core/sync.rs`.
mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
}

#[path = "../src/core/drive/baton.rs"]
mod baton;
#[path = "../src/core/drive/line.rs"]
mod line;

use std::task::{Wake, Waker};

use baton::{BESIDE, Baton, BatonGuard, CALLED, KEPT};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

/// Wakes a thread of loom's.
struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

fn waker() -> Waker {
    Waker::from(std::sync::Arc::new(Unpark(thread::current())))
}

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

/// A baton that anybody may take.
fn free<T>(value: T) -> Arc<Baton<T>> {
    let baton = Arc::new(Baton::kept(value));
    let held = baton.take_home().unwrap();
    baton.keep(false);
    assert!(held.lay_down().is_ok());
    baton
}

/// Lays it down; what was left is heard before.
fn lay_down<T>(mut held: BatonGuard<'_, T>, mut heard: impl FnMut(&mut T)) {
    while let Err(mut again) = held.lay_down() {
        again.with(&mut heard);
        held = again;
    }
}

/// Takes it, sleeping in line until it can.
fn take_in_line<T>(baton: &Baton<T>) -> BatonGuard<'_, T> {
    let waker = waker();
    loop {
        if let Some(held) = baton.take(0) {
            return held;
        }
        if let Some(place) = baton.line_up(&waker) {
            while baton.stands(&place) {
                thread::park();
            }
        }
    }
}

#[test]
fn one_thread_at_a_time_touches_the_value() {
    model(3, || {
        let baton = free(0_u32);
        let other = Arc::clone(&baton);
        let add = |baton: &Baton<u32>| {
            baton.take(0).map(|mut held| {
                held.with(|value| *value += 1);
                assert!(held.lay_down().is_ok());
            })
        };
        let there = thread::spawn(move || add(&other).is_some());
        let here = add(&baton).is_some();
        let count = u32::from(there.join().unwrap()) + u32::from(here);
        assert!(count >= 1);
        let mut held = baton.take(0).expect("it is free");
        assert_eq!(held.with(|value| *value), count);
    });
}

#[test]
fn what_is_left_for_the_holder_is_seen() {
    model(3, || {
        let (baton, left) = (free(0_u32), Arc::new(AtomicUsize::new(0)));
        let (other, of_other) = (Arc::clone(&baton), Arc::clone(&left));
        let look = |value: &mut u32, left: &AtomicUsize| {
            *value += left.swap(0, Ordering::Relaxed) as u32;
        };
        let there = thread::spawn(move || {
            of_other.fetch_add(1, Ordering::Relaxed);
            if let Some(mut held) = other.take(CALLED) {
                held.with(|value| look(value, &of_other));
                lay_down(held, |value| look(value, &of_other));
            }
        });
        if let Some(mut held) = baton.take(0) {
            held.with(|value| look(value, &left));
            lay_down(held, |value| look(value, &left));
        }
        there.join().unwrap();
        let mut held = baton
            .take(0)
            .unwrap_or_else(|| panic!("it is free: {baton:?}"));
        assert_eq!(held.with(|value| *value), 1, "what was left was seen");
    });
}

#[test]
fn what_is_passed_on_is_for_the_next_holder() {
    model(3, || {
        let (baton, left) = (free(0_u32), Arc::new(AtomicUsize::new(0)));
        let (other, of_other) = (Arc::clone(&baton), Arc::clone(&left));
        let look = |value: &mut u32, left: &AtomicUsize| {
            *value += left.swap(0, Ordering::Relaxed) as u32;
        };
        let there = thread::spawn(move || {
            of_other.fetch_add(1, Ordering::Relaxed);
            if let Some(mut held) = other.take(CALLED) {
                held.with(|value| look(value, &of_other));
                lay_down(held, |value| look(value, &of_other));
            }
        });
        if let Some(held) = baton.take(0) {
            assert!(held.pass_on().is_ok());
        }
        there.join().unwrap();
        let held = baton.take(0).expect("it is free");
        lay_down(held, |value| look(value, &left));
        let mut held = baton.take(0).expect("it is free");
        assert_eq!(held.with(|value| *value), 1, "what was left was seen");
    });
}

#[test]
fn who_sleeps_beside_has_it_or_is_called() {
    model(3, || {
        let baton = free(0_u32);
        // It slept before, and what it left then is still there.
        let held = baton.take(0).unwrap();
        assert!(baton.take(BESIDE).is_none());
        assert!(held.lay_down().is_ok());
        let [is_asleep, is_called] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let leaver = |baton: &Arc<Baton<u32>>| {
            let (baton, is_asleep) = (Arc::clone(baton), Arc::clone(&is_asleep));
            let is_called = Arc::clone(&is_called);
            move || {
                let laid = baton.take(0).map(|held| held.lay_down().unwrap());
                if laid.is_some_and(|laid| laid.is_wanted_beside()) {
                    baton.calls_beside();
                    if is_asleep.load(Ordering::Relaxed) {
                        is_called.store(true, Ordering::Relaxed);
                    }
                }
            }
        };
        let leavers = [leaver(&baton), leaver(&baton)].map(thread::spawn);
        is_asleep.store(true, Ordering::Relaxed);
        let has_it = baton.take(BESIDE).is_some();
        for leaver in leavers {
            leaver.join().unwrap();
        }
        assert!(has_it || is_called.load(Ordering::Relaxed));
    });
}

#[test]
fn who_stands_in_line_is_called() {
    model(3, || {
        let baton = free(0_u32);
        let other = Arc::clone(&baton);
        let there = thread::spawn(move || {
            let mut held = take_in_line(&other);
            held.with(|value| *value += 1);
            lay_down(held, |_| ());
        });
        if let Some(held) = baton.take(0) {
            lay_down(held, |_| ());
        }
        there.join().unwrap();
    });
}

#[test]
fn all_in_line_are_called() {
    model(2, || {
        let baton = free(0_u32);
        let held = baton.take(0).unwrap();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let other = Arc::clone(&baton);
                thread::spawn(move || lay_down(take_in_line(&other), |_| ()))
            })
            .collect();
        lay_down(held, |_| ());
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_call_that_is_not_wanted_is_passed_on() {
    model(2, || {
        let baton = free(0_u32);
        let held = baton.take(0).unwrap();
        let leaver = Arc::clone(&baton);
        // One that had what it waited for while it stood in line.
        let leaving = thread::spawn(move || {
            let waker = waker();
            let is_called = match leaver.line_up(&waker) {
                Some(place) => !leaver.leave(&place),
                None => true,
            };
            if is_called && let Some(held) = leaver.take(0) {
                lay_down(held, |_| ());
            }
        });
        let stayer = Arc::clone(&baton);
        let staying = thread::spawn(move || lay_down(take_in_line(&stayer), |_| ()));
        lay_down(held, |_| ());
        leaving.join().unwrap();
        staying.join().unwrap();
    });
}

#[test]
fn what_is_kept_goes_home_alone() {
    model(3, || {
        let baton = free(0_u32);
        let other = Arc::clone(&baton);
        let home = thread::spawn(move || {
            loop {
                if other.is(KEPT)
                    && let Some(mut held) = other.take_home()
                {
                    return held.with(|value| *value);
                }
                thread::park();
            }
        });
        let mut held = baton.take(0).expect("it is free");
        held.with(|value| *value = 7);
        baton.keep(true);
        assert!(held.lay_down().is_ok());
        assert!(baton.take(0).is_none(), "it is kept");
        home.thread().unpark();
        assert_eq!(home.join().unwrap(), 7);
    });
}
