//! Sends that cannot begin yet: the engine's memory has no room for the copy of what Python lends.
//!
//! Nothing tells when there is room: who waits looks again and again.

use std::task::Poll;
use std::time::Instant;

use rendez::ground::catalogue;
use rendez::{Engine, Key, SendAsync, Status, Step};

use crate::convert::{self, Taking};
use crate::source::Source;

/// A send to begin once its value could be copied.
pub(crate) struct Copying {
    engine: Engine,
    step: Step,
    key: Key,
    until: Option<Instant>,
    /// `None` only in the drop.
    lent: Option<(Source, Taking)>,
}

impl Copying {
    pub(crate) const fn new(
        engine: Engine,
        step: Step,
        key: Key,
        until: Option<Instant>,
        lent: (Source, Taking),
    ) -> Self {
        Self {
            engine,
            step,
            key,
            until,
            lent: Some(lent),
        }
    }

    /// Copies the value, and begins to send it.
    pub(super) fn poll(&self) -> Poll<Result<SendAsync, Status>> {
        let Some((source, _)) = &self.lent else {
            return Poll::Pending;
        };
        let room = match convert::room_for(&self.engine, source) {
            Err(status) if status.reason() == catalogue::ARENA_FULL => {
                // As a send that has begun is told. Often what fills the memory is not received any more then.
                if let Some(ended) = self.step.ended() {
                    return Poll::Ready(Err(ended));
                }
                return match self.until.is_some_and(|until| Instant::now() >= until) {
                    true => Poll::Ready(Err(self.too_late(&status))),
                    false => Poll::Pending,
                };
            }
            Err(status) => return Poll::Ready(Err(status)),
            Ok(room) => room,
        };
        let tensor = convert::filled(room, source);
        let mut send = self.step.send_async(&self.key, tensor);
        if let Some(until) = self.until {
            send = send.deadline(until.saturating_duration_since(Instant::now()));
        }
        Poll::Ready(Ok(send.start()))
    }

    fn too_late(&self, why: &Status) -> Status {
        let (key, step) = (self.key.text(), self.step.id());
        let message = format!(
            "Timed out waiting for room: {key} in step {step}: {}",
            why.message()
        );
        Status::of(catalogue::DEADLINE, message)
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        if let Some((source, taking)) = self.lent.take() {
            convert::give_back(source, taking.on_release());
        }
    }
}
