//! Errands: work that may block, done on threads of its own while the control thread goes on.
//!
//! Knows nothing of the work. Bounded: a name server that never answers holds threads until the system gives up, and
//! then further errands are refused, not queued.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ground::limits::ERRANDS_MAX;

use super::mailbox::{Receiver, mailbox};

/// Errands of one control plane under way.
#[derive(Debug, Default)]
pub(crate) struct Errands(Arc<AtomicUsize>);

/// Why an errand was not begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ErrandError {
    /// As many are under way as may be.
    #[error("{ERRANDS_MAX} connections are being made, the limit ERRANDS_MAX")]
    Busy,
    /// The system gives no thread.
    #[error("no thread for a connection: {0}")]
    NoThread(#[from] std::io::Error),
}

/// An errand under way counts; dropped, it does no more.
#[derive(Debug)]
struct Underway(Arc<AtomicUsize>);

impl Errands {
    /// Begins `work` and gives its outcome to come. An outcome that no caller waits for any more is dropped.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Receiver<T>, ErrandError> {
        if self.0.fetch_add(1, Ordering::Relaxed) >= ERRANDS_MAX {
            self.0.fetch_sub(1, Ordering::Relaxed);
            return Err(ErrandError::Busy);
        }
        let underway = Underway(Arc::clone(&self.0));
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
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
