//! A call of a service of another task, as its caller holds it.
//!
//! Knows the mailbox of the control thread and a clock; not how the call gets there.

use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use prost::Message;

use crate::ground::{Status, catalogue};

use super::mailbox::Sender;
use super::plane::Command;
use super::service::Outcome;

/// A call under way; dropped, it is given up, and the task that was called is told.
#[derive(Debug)]
pub struct PendingCall {
    pub(crate) request: u64,
    pub(crate) deadline: Instant,
    pub(crate) outcome: Receiver<Outcome>,
    pub(crate) commands: Sender<Command>,
    pub(crate) is_over: bool,
    /// How long its waiter looks for the answer before it sleeps.
    pub(crate) lookout: Duration,
}

impl PendingCall {
    /// Waits for the answer until the call's deadline. Not for the handler's thread, which brings the answer.
    ///
    /// # Errors
    /// The service's status, or why none came: `DeadlineExceeded`, `Unavailable` if the task came back as another
    /// life, `ResourceExhausted` if too many calls wait, `FailedPrecondition` after the control plane has stopped.
    pub fn wait(mut self) -> Result<Vec<u8>, Status> {
        let outcome = self.look().unwrap_or_else(|| {
            let left = self.deadline.saturating_duration_since(Instant::now());
            self.outcome.recv_timeout(left)
        });
        self.is_over = !matches!(outcome, Err(RecvTimeoutError::Timeout));
        match outcome {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => Err(Status::of(
                catalogue::CALL_DEADLINE,
                "there was no answer, or no connection, in time",
            )),
            Err(RecvTimeoutError::Disconnected) => Err(Status::of(
                catalogue::CONTROL_STOPPED,
                "the control plane has stopped",
            )),
        }
    }

    /// What comes at once, without a sleep.
    fn look(&self) -> Option<Result<Outcome, RecvTimeoutError>> {
        let until = super::until(self.lookout).min(self.deadline);
        while Instant::now() < until {
            match self.outcome.try_recv() {
                Ok(outcome) => return Some(Ok(outcome)),
                Err(TryRecvError::Disconnected) => {
                    return Some(Err(RecvTimeoutError::Disconnected));
                }
                Err(TryRecvError::Empty) => std::thread::yield_now(),
            }
        }
        None
    }

    /// Gives the call up. The service hears of it, and may have done its work all the same.
    pub fn cancel(self) {
        drop(self);
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if !self.is_over {
            // Refused only if the control plane has stopped, and all calls with it.
            let _ = self.commands.send(Command::GiveUp(self.request));
        }
    }
}

/// The answer of `whom`, as a message.
///
/// # Errors
/// `CALL_MALFORMED` if it is none.
pub fn read_answer<M: Message + Default>(
    whom: &dyn std::fmt::Display,
    answer: &[u8],
) -> Result<M, Status> {
    M::decode(answer).map_err(|error| {
        let message = format!("{whom} answered what is no answer: {error}");
        Status::of(catalogue::CALL_MALFORMED, message)
    })
}
