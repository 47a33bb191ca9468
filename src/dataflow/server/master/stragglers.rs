//! Stragglers: parts that do not answer a stop, since their worker is stopped or cannot leave what it does.
//!
//! Knows steps and times. A step that has failed waits for all its parts, so that nothing of it runs when its client
//! hears so; but not for ever: a process of this machine that is only stopped is not given up, and might be for hours.
//! What such a part still does ends with the stop that it has not read yet.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use crossbeam::channel::{self, Sender};
use rendez::engine::Engine;
use rendez::ground::{Locked, Nanos};

use super::step::RunningStep;

/// How long a step that failed waits for its other parts: any that runs answers sooner, except in a long kernel.
const PATIENCE: Duration = Duration::from_millis(250);

/// A step that has failed, and until when it waits.
type Failed = (Nanos, Weak<RunningStep>);

/// The steps of a session that have failed.
#[derive(Debug)]
pub(super) struct Stragglers {
    engine: Engine,
    /// Those of a simulated world, in the order in which they failed: who turns it looks after them, and no thread.
    turned: Mutex<VecDeque<Failed>>,
}

impl Stragglers {
    /// None yet, by the clock of `engine`.
    pub(super) fn new(engine: &Engine) -> Self {
        Self {
            engine: engine.clone(),
            turned: Mutex::default(),
        }
    }

    /// Ends a step that has failed if its other parts do not answer. Without a thread it goes on waiting.
    pub(super) fn watch(&self, step: &Arc<RunningStep>) {
        if mutant!("stragglers_awaited") {
            return;
        }
        let clock = self.engine.clock();
        let failed = (clock.deadline(PATIENCE), Arc::downgrade(step));
        if clock.is_simulated() {
            return self.turned.locked().push_back(failed);
        }
        static WATCHED: OnceLock<Option<Sender<Failed>>> = OnceLock::new();
        let watched = WATCHED.get_or_init(|| {
            let (watched, failed) = channel::unbounded::<Failed>();
            let clock = clock.clone();
            let thread = std::thread::Builder::new().name("rendez-steps".into());
            let spawned = thread.spawn(move || {
                for (until, step) in failed {
                    let left = until.0.saturating_sub(clock.stamp().0);
                    std::thread::sleep(Duration::from_nanos(left));
                    give_up(&step);
                }
            });
            spawned.is_ok().then_some(watched)
        });
        if let Some(watched) = watched {
            // The thread never ends.
            let _ = watched.send(failed);
        }
    }

    /// In a simulated world: ends those that have waited long enough.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn turn(&self) {
        let now = self.engine.clock().stamp();
        loop {
            let due = self
                .turned
                .locked()
                .pop_front_if(|(until, _)| *until <= now);
            let Some((_, step)) = due else { return };
            give_up(&step);
        }
    }
}

fn give_up(step: &Weak<RunningStep>) {
    let Some(step) = step.upgrade() else { return };
    let given_up = std::panic::AssertUnwindSafe(|| step.give_parts_up());
    if std::panic::catch_unwind(given_up).is_err() {
        tracing::error!(step = %step.id(), "a callback that was told of a failed step has panicked");
    }
}
