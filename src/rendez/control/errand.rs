//! Errands: work that may block, done on threads of its own while the control thread goes on.
//!
//! Knows nothing of the work. Bounded: a name server that never answers holds threads until the system gives up, and
//! then further errands are refused, not queued.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ground::limits::ERRANDS_MAX;

use super::mailbox::{Receiver, mailbox};

/// Of those under way, the most for peers that dialled us: half, so that they keep us from no dial of ours.
const FOR_CALLERS_MAX: usize = ERRANDS_MAX / 2;

/// Errands of one control plane under way.
#[derive(Debug, Default)]
pub(crate) struct Errands(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: AtomicUsize,
    for_callers: AtomicUsize,
}

/// Why an errand was not begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ErrandError {
    /// As many are under way as may be.
    #[error("{ERRANDS_MAX} connections are being made, the limit ERRANDS_MAX")]
    Busy,
    /// As many for peers that dialled us.
    #[error(
        "{FOR_CALLERS_MAX} connections of peers that dialled are being made, half of the limit ERRANDS_MAX"
    )]
    BusyWithCallers,
    /// The system gives no thread.
    #[error("no thread for a connection: {0}")]
    NoThread(#[from] std::io::Error),
}

/// An errand under way counts; dropped, it does no more.
#[derive(Debug)]
struct Underway {
    counts: Arc<Counts>,
    is_for_caller: bool,
}

impl Errands {
    /// Begins `work` and gives its outcome to come. An outcome that no caller waits for any more is dropped.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Receiver<T>, ErrandError> {
        self.begin_as(false, work)
    }

    /// The same for a peer that dialled us.
    pub(crate) fn begin_for_caller<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Receiver<T>, ErrandError> {
        self.begin_as(true, work)
    }

    fn begin_as<T: Send + 'static>(
        &self,
        is_for_caller: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Receiver<T>, ErrandError> {
        let counts = &self.0;
        let callers = usize::from(is_for_caller);
        // Counted at once, and no more if it is too many.
        let underway = Underway {
            counts: Arc::clone(counts),
            is_for_caller,
        };
        let others = counts.for_callers.fetch_add(callers, Ordering::Relaxed);
        let all = counts.all.fetch_add(1, Ordering::Relaxed);
        if all >= ERRANDS_MAX {
            return Err(ErrandError::Busy);
        }
        if is_for_caller && others >= FOR_CALLERS_MAX {
            return Err(ErrandError::BusyWithCallers);
        }
        let (outcome, receiver) = mailbox();
        std::thread::Builder::new()
            .name("rendez-errand".into())
            .spawn(move || {
                let done = work();
                drop(underway);
                let _ = outcome.send(done);
            })?;
        Ok(receiver)
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        let callers = usize::from(self.is_for_caller);
        (self.counts.for_callers).fetch_sub(callers, Ordering::Relaxed);
        self.counts.all.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
