//! Losses: messages set out, and which of them may be lost singly, while their connection lives on.

use rendez::ground::Nanos;

use super::{Job, Network, World};
use crate::codec::encode;
use crate::id::WorkerId;
use crate::message::{Body, Message, Outcome};

impl World {
    pub(super) fn post(&mut self, from: WorkerId, to: WorkerId, message: &Message<Job>) {
        self.tell(|| format!("{from} -> {to} {message:?}"));
        let post = match self.may_be_lost(message) {
            true => Network::post,
            false => Network::post_whole,
        };
        post(&mut self.network, self.now, from, to, &encode(message));
    }

    /// True if that message may be lost in this world. Where only those are that workers survive: it is repeated until
    /// it is acknowledged, or its call has a deadline.
    fn may_be_lost(&self, message: &Message<Job>) -> bool {
        let has_deadline = |job: &Job| {
            let caller = self.callers.get(&job.0);
            caller.is_some_and(|(_, _, deadline)| *deadline != Nanos::NEVER)
        };
        if !self.loses_survived_only {
            return true;
        }
        match &message.body {
            // What a group that grows says of itself is not repeated.
            Body::Hello(_) => !self.is_dynamic,
            Body::Control { .. } | Body::Ack { .. } => true,
            Body::Call(call) => has_deadline(&call.payload),
            Body::Reply {
                outcome: Outcome::Value { payload, .. },
                ..
            } => has_deadline(payload),
            Body::Reply { .. } | Body::Leave | Body::Over(_) => false,
        }
    }
}
