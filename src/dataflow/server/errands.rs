//! Errands: what takes long or blocks, each on a thread of its own, and only so many at once.
//!
//! Knows nothing of what is done. Shards hand over here what they must not do themselves.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use rendez::ground::limits::{ERRANDS_OF_SESSIONS_MAX, SESSIONS_MAX};
use rendez::ground::{Locked, Status, catalogue};

#[cfg(test)]
mod tests;

/// Errands of one kind. What waits for others has errands of its own, so that it keeps no room from what does not.
#[derive(Debug, Default)]
pub(crate) struct Errands(Mutex<State>);

#[derive(Default)]
struct State {
    under_way: usize,
    /// Those that wait for room.
    waiting: VecDeque<Errand>,
}

type Errand = Box<dyn FnOnce() + Send>;

/// Room for one.
pub(crate) struct ErrandPlace(Arc<Errands>);

impl Errands {
    /// Takes room for one.
    ///
    /// # Errors
    /// `SESSION_LIMIT` if too many are under way.
    pub(crate) fn place(self: &Arc<Self>) -> Result<ErrandPlace, Status> {
        let mut state = self.state();
        if state.under_way >= ERRANDS_OF_SESSIONS_MAX {
            return Err(too_many());
        }
        state.under_way += 1;
        Ok(ErrandPlace(Arc::clone(self)))
    }

    /// Takes room for one, however many are under way: for what ends others, if it is bounded elsewhere.
    pub(crate) fn place_anyway(self: &Arc<Self>) -> ErrandPlace {
        self.state().under_way += 1;
        ErrandPlace(Arc::clone(self))
    }

    /// Does `what` as [`ErrandPlace::go`], as soon as there is room. If too many wait for that, `what` is told so at
    /// once, in this thread: `SESSION_LIMIT`. Does not block.
    pub(crate) fn go(self: &Arc<Self>, what: impl FnOnce(Result<(), Status>) + Send + 'static) {
        let mut state = self.state();
        if state.under_way < ERRANDS_OF_SESSIONS_MAX {
            state.under_way += 1;
            drop(state);
            ErrandPlace(Arc::clone(self)).go(|| what(Ok(())));
        } else if state.waiting.len() < SESSIONS_MAX {
            state.waiting.push_back(Box::new(|| what(Ok(()))));
        } else {
            drop(state);
            what(Err(too_many()));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.locked()
    }
}

fn too_many() -> Status {
    let message = format!(
        "{ERRANDS_OF_SESSIONS_MAX} things of this kind are under way, the limit ERRANDS_OF_SESSIONS_MAX"
    );
    Status::of(catalogue::SESSION_LIMIT, message)
}

impl ErrandPlace {
    /// Does `what` on a thread of its own. Without one it is dropped undone, and the log says so.
    pub(crate) fn go(self, what: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().name("rendez-errand".into());
        let spawned = thread.spawn(move || {
            what();
            drop(self);
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "cannot start a thread for a background job: it is dropped");
        }
    }
}

impl Drop for ErrandPlace {
    fn drop(&mut self) {
        let mut state = self.0.state();
        match state.waiting.pop_front() {
            None => state.under_way -= 1,
            Some(next) => {
                drop(state);
                Self(Arc::clone(&self.0)).go(next);
            }
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("under_way", &self.under_way)
            .field("waiting", &self.waiting.len())
            .finish()
    }
}
