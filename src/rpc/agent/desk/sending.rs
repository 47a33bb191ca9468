//! What goes out: at once, or in tests as a faulty agent has it.

use std::time::Duration;

use rendez::ground::Nanos;
use rendez::shard::TaskContext;

use super::Desk;
use crate::agent::lanes::Brought;
#[cfg(any(test, feature = "testing"))]
use crate::agent::lanes::leaves;
use crate::id::WorkerId;
use crate::message::Message;
use crate::payload::Payload;

/// After how long what found no room is sent again: at first, and at most. A peer that takes nothing for hours is not
/// asked a thousand times a second.
const SEND_AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];

/// When what found no room is sent again.
#[derive(Debug)]
pub(super) struct Again {
    pub(super) at: Nanos,
    /// The pause after that.
    pause: Duration,
}

impl Default for Again {
    fn default() -> Self {
        Self {
            at: Nanos::NEVER,
            pause: SEND_AGAIN[0],
        }
    }
}

impl Again {
    /// All was tried. The pause is doubled where nothing has gone; to try before its end does not make it longer.
    pub(super) fn flushed(&mut self, now: Nanos, has_waiting: bool, has_gone: bool) {
        if has_gone || !has_waiting {
            *self = Self::default();
        }
        if has_waiting && (self.at == Nanos::NEVER || self.at <= now) {
            self.at = now.after(self.pause);
            self.pause = (2 * self.pause).min(SEND_AGAIN[1]);
        }
    }
}

impl Desk {
    pub(super) fn send(
        &mut self,
        to: WorkerId,
        message: &mut Message<Payload>,
        context: &mut TaskContext<'_>,
    ) {
        // Before its head announces what does not come.
        if let Err(status) = self.lanes.may_send(to, message, context) {
            tracing::debug!(%to, %status, "a message cannot go as it is");
            return self.node.handle_unsent(self.now, to, message, &status);
        }
        self.shared.figures.answered(message);
        #[cfg(any(test, feature = "testing"))]
        if let Some(faults) = &mut self.faults {
            // What is dropped there is lost on its way.
            leaves(message);
            return faults.take(self.now, to, message.clone());
        }
        self.send_now(to, message, context);
    }

    /// Sends what was held back, as far as its time has come.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn send_due(&mut self, context: &mut TaskContext<'_>) {
        while let Some(faults) = &mut self.faults
            && let Some((to, mut message)) = faults.due(self.now)
        {
            self.send_now(to, &mut message, context);
        }
    }

    /// Sends what waited for room. What is lost with its lane is told, as of a worker that cannot be heard.
    pub(super) fn flush(&mut self, context: &mut TaskContext<'_>) {
        let (has_gone, lost) = self.lanes.flush(context);
        for (worker, status) in lost {
            self.heard(Brought::Lost(worker, status));
            self.pump(context);
        }
        let has_waiting = self.lanes.has_waiting();
        self.node.set_sending(has_waiting);
        self.again.flushed(self.now, has_waiting, has_gone);
    }

    fn send_now(
        &mut self,
        to: WorkerId,
        message: &mut Message<Payload>,
        context: &mut TaskContext<'_>,
    ) {
        if let Err(status) = self.lanes.send(to, message, context) {
            tracing::debug!(%to, %status, "a message could not be sent");
            self.lanes.lose(to, &status, context);
            self.node.handle_lost(self.now, to, &status);
        }
        self.node.set_sending(self.lanes.has_waiting());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_sent_again_after_longer_pauses_until_something_has_gone() {
        let (mut again, mut now) = (Again::default(), Nanos::ZERO);
        let mut flushed = |after, has_waiting, has_gone| {
            now = now.after(Duration::from_millis(after));
            again.flushed(now, has_waiting, has_gone);
            match again.at {
                Nanos::NEVER => None,
                at => Some(at.since(now).as_millis()),
            }
        };
        let pauses = [0, 1, 2, 4, 8, 16, 32, 50].map(|after| flushed(after, true, false));
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 50, 50].map(Some));
        // Something else has happened in between.
        assert_eq!(flushed(20, true, false), Some(30));
        assert_eq!(flushed(5, true, true), Some(1));
        assert_eq!(flushed(1, true, false), Some(2));
        assert_eq!(flushed(1, false, false), None);
        assert_eq!(flushed(9, true, false), Some(1));
    }
}
