//! Waiter: a place where one thread waits for what another will tell.
//!
//! Knows nothing of what is told. It looks for as long as waking up takes before it sleeps.

use rendez::ground::{Locked, Unpoisoned};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// Looks before the thread sleeps: some 20 µs, as long as ending a sleep takes.
const LOOKS: u32 = 2_000;
/// Looks between two yields: the thread that tells may need this very core.
const LOOKS_PER_YIELD: u32 = 32;

/// Where one telling is waited for.
pub(crate) struct Waiter<T>(Arc<Inner<T>>);

struct Inner<T> {
    is_told: AtomicBool,
    what: Mutex<Option<T>>,
    changed: Condvar,
}

impl<T: Send + 'static> Waiter<T> {
    /// What tells, and where that is waited for.
    pub(crate) fn pair() -> (impl FnOnce(T) + Send + 'static, Self) {
        let waiter = Self(Arc::new(Inner {
            is_told: AtomicBool::new(false),
            what: Mutex::new(None),
            changed: Condvar::new(),
        }));
        let told = Self(Arc::clone(&waiter.0));
        let tell = move |what| {
            *told.0.what.locked() = Some(what);
            told.0.is_told.store(true, Ordering::Release);
            told.0.changed.notify_all();
        };
        (tell, waiter)
    }

    /// Waits until it is told; `None` if that was not until `deadline`.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Option<T> {
        for look in 1..=LOOKS {
            if self.0.is_told.load(Ordering::Acquire) {
                break;
            }
            std::hint::spin_loop();
            if look.is_multiple_of(LOOKS_PER_YIELD) {
                std::thread::yield_now();
            }
        }
        let mut what = self.0.what.locked();
        loop {
            if let Some(told) = what.take() {
                return Some(told);
            }
            what = match deadline {
                None => {
                    let woken = self.0.changed.wait(what);
                    woken.unpoisoned()
                }
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    let woken = self.0.changed.wait_timeout(what, left);
                    woken.unpoisoned().0
                }
            };
        }
    }
}
