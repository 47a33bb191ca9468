//! The timer: a thread that wakes the desk when the earliest of its deadlines is there.
//!
//! It is told only of a deadline that is earlier than the one it sleeps for, so a call costs it nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use rendez::ground::{Locked, Nanos, Unpoisoned};

struct State {
    at: Nanos,
    is_over: bool,
}

/// When the desk is to be woken.
pub(crate) struct Timer {
    state: Mutex<State>,
    changed: Condvar,
    /// As `State::at`, for a look without the lock.
    at: AtomicU64,
}

impl Timer {
    /// Starts the thread. It ends with [`Timer::stop`].
    pub(crate) fn start(
        clock: impl Fn() -> Nanos + Send + 'static,
        wake: impl Fn() + Send + 'static,
    ) -> std::io::Result<Arc<Self>> {
        let timer = Arc::new(Self {
            state: Mutex::new(State {
                at: Nanos::NEVER,
                is_over: false,
            }),
            changed: Condvar::new(),
            at: AtomicU64::new(Nanos::NEVER.0),
        });
        let own = Arc::clone(&timer);
        std::thread::Builder::new()
            .name("rpc-timer".into())
            .spawn(move || own.run(&clock, &wake))?;
        Ok(timer)
    }

    /// Wakes at `at`, if that is earlier than what it sleeps for.
    pub(crate) fn arm(&self, at: Nanos) {
        let mut state = self.state.locked();
        if at < state.at {
            self.set(&mut state, at);
            drop(state);
            self.changed.notify_one();
        }
    }

    /// When it wakes the desk. It forgets that before it does so: the desk, which looks here then, arms it anew.
    pub(crate) fn armed_at(&self) -> Nanos {
        Nanos(self.at.load(Ordering::Acquire))
    }

    fn set(&self, state: &mut State, at: Nanos) {
        state.at = at;
        self.at.store(at.0, Ordering::Release);
    }

    pub(crate) fn stop(&self) {
        let mut state = self.state.locked();
        state.is_over = true;
        drop(state);
        self.changed.notify_one();
    }

    fn run(&self, clock: &dyn Fn() -> Nanos, wake: &dyn Fn()) {
        let mut state = self.state.locked();
        while !state.is_over {
            if state.at == Nanos::NEVER {
                state = self.changed.wait(state).unpoisoned();
                continue;
            }
            let now = clock();
            if state.at <= now {
                self.set(&mut state, Nanos::NEVER);
                // The desk may run in this thread, and arms the timer.
                drop(state);
                wake();
                state = self.state.locked();
                continue;
            }
            let left = state.at.since(now);
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unpoisoned().0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    /// The desk handles a deadline by itself, before the timer has woken it, and arms the timer for a later one: the
    /// timer wakes it once for nothing, and it must see then that the later one is not armed.
    #[test]
    fn a_later_deadline_is_not_forgotten_when_the_earlier_one_has_woken() {
        let now = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&now);
        let (woken, wakes) = channel();
        let timer = Timer::start(
            move || Nanos(clock.load(Ordering::SeqCst)),
            move || {
                let _ = woken.send(());
            },
        );
        let timer = timer.expect("a thread");
        let limit = Duration::from_secs(60);
        timer.arm(Nanos(1_000_000));
        // Not earlier than what it sleeps for: it is not told.
        timer.arm(Nanos(2_000_000));
        assert_eq!(timer.armed_at(), Nanos(1_000_000));
        now.store(1_500_000, Ordering::SeqCst);
        wakes.recv_timeout(limit).expect("it wakes");
        assert_eq!(timer.armed_at(), Nanos::NEVER, "so the desk arms it");
        timer.arm(Nanos(2_000_000));
        now.store(2_000_000, Ordering::SeqCst);
        wakes.recv_timeout(limit).expect("it wakes again");
        timer.stop();
    }
}
