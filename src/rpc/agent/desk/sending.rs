//! What goes out: at once, or in tests as a faulty agent has it.

use rendez::shard::TaskContext;

use super::{Desk, SEND_AGAIN};
use crate::agent::lanes::Brought;
#[cfg(any(test, feature = "testing"))]
use crate::agent::lanes::leaves;
use crate::id::WorkerId;
use crate::message::Message;
use crate::payload::Payload;

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
        let lost = self.lanes.flush(context);
        for (worker, status) in lost {
            self.heard(Brought::Lost(worker, status));
            self.pump(context);
        }
        self.node.set_sending(self.lanes.has_waiting());
        if self.lanes.has_waiting() {
            self.flush_at = self.now.after(SEND_AGAIN);
        }
    }

    fn send_now(
        &mut self,
        to: WorkerId,
        message: &mut Message<Payload>,
        context: &mut TaskContext<'_>,
    ) {
        if let Err(status) = self.lanes.send(to, message, context) {
            tracing::debug!(%to, %status, "a message could not be sent");
            self.node.handle_lost(self.now, to, &status);
        }
        self.node.set_sending(self.lanes.has_waiting());
    }
}
