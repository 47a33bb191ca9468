//! Stragglers: parts that do not answer a stop, since their worker is stopped or cannot leave what it does.
//!
//! Knows steps and times. A step that has failed waits for all its parts, so that nothing of it runs when its client
//! hears so; but not for ever: a process of this machine that is only stopped is not given up, and might be for hours.
//! What such a part still does ends with the stop that it has not read yet.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crossbeam::channel::{self, Sender};

use super::step::RunningStep;

/// How long a step that failed waits for its other parts: any that runs answers sooner, except in a long kernel.
const PATIENCE: Duration = Duration::from_millis(250);

/// Steps that have failed, in the order in which they did.
type Failed = (Instant, Weak<RunningStep>);

/// Ends a step that has failed if its other parts do not answer. Without a thread it goes on waiting.
pub(super) fn watch(step: &Arc<RunningStep>) {
    if mutant!("stragglers_awaited") {
        return;
    }
    static WATCHED: OnceLock<Option<Sender<Failed>>> = OnceLock::new();
    let watched = WATCHED.get_or_init(|| {
        let (watched, failed) = channel::unbounded::<Failed>();
        let thread = std::thread::Builder::new().name("rendez-steps".into());
        let spawned = thread.spawn(move || {
            for (until, step) in failed {
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                let Some(step) = step.upgrade() else { continue };
                let given_up = std::panic::AssertUnwindSafe(|| step.give_parts_up());
                if std::panic::catch_unwind(given_up).is_err() {
                    tracing::error!(step = %step.id(), "who was told of a step that failed has panicked");
                }
            }
        });
        spawned.is_ok().then_some(watched)
    });
    if let Some(watched) = watched {
        // The thread never ends.
        let _ = watched.send((Instant::now() + PATIENCE, Arc::downgrade(step)));
    }
}
