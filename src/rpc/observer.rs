//! Observers: code that rides along with every call, as distributed autograd does.
//!
//! An observer sees each leg of a call in the thread where it happens: the request in the thread that calls and then in
//! the one that carries the function out, the answer in the latter and then in the one that waits for it. It may add
//! bytes to a leg, its *header*, and read them at the other end. What it keeps between two of these calls it keeps in
//! thread-local state.

use rendez::memory::Tensor;

use crate::id::WorkerId;
use crate::value::ValueError;

/// One leg of a call.
#[derive(Clone, Copy, Debug)]
pub struct Leg<'a> {
    /// The answer, and not the request.
    pub is_reply: bool,
    /// This worker.
    pub me: WorkerId,
    /// The worker at the other end.
    pub peer: WorkerId,
    /// The function that is called; empty for the fetch of a reference's value.
    pub function: &'a str,
}

/// See the module. All methods do nothing unless they are written.
pub trait Observer: Send + Sync + 'static {
    /// This worker has its number in its group. Called once in [`Agent::init`](crate::Agent::init), before any other
    /// method; `init` may still fail after it. It must not panic.
    fn begun(&self, me: WorkerId) {
        let _ = me;
    }

    /// The values of a leg are about to be written into a [`Packer`](crate::Packer), in this thread.
    fn sending(&self, leg: Leg<'_>) {
        let _ = leg;
    }

    /// They could not be written, or another observer refused them: the leg does not go, and what was kept of them in
    /// this thread is to go. Of an answer also where the function failed before there was anything to write.
    fn unwritten(&self, leg: Leg<'_>) {
        let _ = leg;
    }

    /// They are written: these are the tensors among them. What is returned rides along as the header.
    ///
    /// # Errors
    /// Those of the observer: the leg does not go. A call fails with the reason of the error, and an answer becomes a
    /// fault.
    fn sent(&self, leg: Leg<'_>, tensors: &[Tensor]) -> Result<Option<Vec<u8>>, ValueError> {
        let _ = (leg, tensors);
        Ok(None)
    }

    /// A leg that had this header from [`Observer::sent`] has ended at this worker, and nothing of it went to the other
    /// end: a call that was refused here, that ended while it waited to go, or that cannot travel; an answer that
    /// cannot travel, or that its caller does not want any more.
    ///
    /// Called once for each such leg, and never for one that may have reached the other end: one of which something
    /// was posted, or waited for room in the transport, or that was for this worker itself. It comes before the end of
    /// the call is told, if this worker has not left its group.
    ///
    /// Called in the thread that ends the leg: the one that calls, if it is refused there; one of the pool, for an
    /// answer; the shard's, or one that waits for a call, for all others; and, for what is left when this worker has
    /// left its group, the one that drops the last handle of the agent. So it must return soon and wait for no call.
    fn unsent(&self, leg: Leg<'_>, header: &[u8]) {
        let _ = (leg, header);
    }

    /// The values of a leg have come, with that header, and are about to be read from an
    /// [`Unpacker`](crate::Unpacker), in this thread.
    fn receiving(&self, leg: Leg<'_>, header: Option<&[u8]>, tensors: &[Tensor]) {
        let _ = (leg, header, tensors);
    }

    /// They are read.
    fn received(&self, leg: Leg<'_>) {
        let _ = leg;
    }

    /// The function of a request with that header is about to run in this thread. A function that returns a future is
    /// entered and left at each poll.
    fn enter(&self, leg: Leg<'_>, header: Option<&[u8]>) {
        let _ = (leg, header);
    }

    /// It does not run any more. Called after [`Observer::sent`] of its answer.
    fn leave(&self, leg: Leg<'_>, header: Option<&[u8]>) {
        let _ = (leg, header);
    }

    /// A worker is there, for the first time or again. Called on a thread of the pool, in the order in which workers
    /// came and went.
    fn found(&self, worker: WorkerId) {
        let _ = worker;
    }

    /// A worker has left or is gone. Called as [`Observer::found`].
    fn lost(&self, worker: WorkerId) {
        let _ = worker;
    }
}
