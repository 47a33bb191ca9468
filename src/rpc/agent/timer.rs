//! The timer: a thread that wakes the desk when the earliest of its deadlines is there.
//!
//! It is told only of a deadline that is earlier than the one it sleeps for, so a call costs it nothing.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rendez::ground::Nanos;

struct State {
    at: Nanos,
    is_over: bool,
}

/// When the desk is to be woken.
pub(crate) struct Timer {
    state: Mutex<State>,
    changed: Condvar,
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
        });
        let own = Arc::clone(&timer);
        std::thread::Builder::new()
            .name("rpc-timer".into())
            .spawn(move || own.run(&clock, &wake))?;
        Ok(timer)
    }

    /// Wakes at `at`, if that is earlier than what it sleeps for.
    pub(crate) fn arm(&self, at: Nanos) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if at < state.at {
            state.at = at;
            drop(state);
            self.changed.notify_one();
        }
    }

    pub(crate) fn stop(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_over = true;
        drop(state);
        self.changed.notify_one();
    }

    fn run(&self, clock: &dyn Fn() -> Nanos, wake: &dyn Fn()) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.is_over {
            if state.at == Nanos::NEVER {
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let now = clock();
            if state.at <= now {
                state.at = Nanos::NEVER;
                // The desk may run in this thread, and arms the timer.
                drop(state);
                wake();
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let left = state.at.since(now);
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
