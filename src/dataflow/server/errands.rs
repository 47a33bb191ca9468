//! Errands: what takes long or blocks, each on a thread of its own, and only so many at once.
//!
//! Knows nothing of what is done. Shards hand over here what they must not do themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rendez::ground::limits::ERRANDS_OF_SESSIONS_MAX;
use rendez::ground::{Status, catalogue};

/// How many are under way.
#[derive(Debug, Default)]
pub(crate) struct Errands(AtomicUsize);

/// Room for one.
pub(crate) struct ErrandPlace(Arc<Errands>);

impl Errands {
    /// Takes room for one.
    ///
    /// # Errors
    /// `SESSION_LIMIT` if too many are under way.
    pub(crate) fn place(self: &Arc<Self>) -> Result<ErrandPlace, Status> {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        let place = ErrandPlace(Arc::clone(self));
        if before < ERRANDS_OF_SESSIONS_MAX {
            return Ok(place);
        }
        let message = format!(
            "{ERRANDS_OF_SESSIONS_MAX} graphs are being prepared at once, the limit ERRANDS_OF_SESSIONS_MAX"
        );
        Err(Status::of(catalogue::SESSION_LIMIT, message))
    }

    /// Takes room for one, however many are under way: for what ends others, if it is bounded elsewhere.
    pub(crate) fn place_anyway(self: &Arc<Self>) -> ErrandPlace {
        self.0.fetch_add(1, Ordering::Relaxed);
        ErrandPlace(Arc::clone(self))
    }
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
            tracing::error!(%error, "the system gives no thread for an errand");
        }
    }
}

impl Drop for ErrandPlace {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
