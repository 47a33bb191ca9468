//! What no worker that keeps the protocol says: it is dropped before it has any effect.
//!
//! Identities carry the number of the worker that made them, so a worker can name what another has made, and cannot
//! make it up. What is dropped here is answered by nothing: a worker that says such things gets no service.

use super::{Node, WIRE_MASK};
use crate::id::{ForkId, WorkerId};
use crate::message::{Body, Call, Control, Message, Outcome, Reference, Target};

impl<P, T> Node<P, T> {
    /// Whether a worker that keeps the protocol can have sent that.
    pub(super) fn is_plausible(&self, from: WorkerId, message: &Message<P>) -> bool {
        if from == self.me {
            return true;
        }
        let is_own = |fork: ForkId| fork.on == from;
        // A share that travels is made by who sends it.
        let are_own = |all: &[Reference]| all.iter().all(|one| is_own(one.fork));
        match &message.body {
            Body::Call(Call {
                id,
                after,
                target,
                references,
                ..
            }) => {
                let is_known = |rref| self.references.is_made(rref);
                let is_new = match target {
                    Target::Remote { rref, fork, .. } => {
                        is_own(*rref) && is_own(*fork) && !is_known(*rref)
                    }
                    Target::Function(_) | Target::Fetch(_) => true,
                };
                // Each call is after one before it, and so none after itself.
                let has_order = after.is_none_or(|after| after < *id) && id.0 <= WIRE_MASK;
                is_new && has_order && are_own(references)
            }
            Body::Reply {
                outcome: Outcome::Value { references, .. },
                ..
            } => are_own(references),
            // The first of a static group says when all leave.
            Body::Control {
                control: Control::Proceed,
                ..
            } => from < self.me && !self.group.is_dynamic,
            Body::Hello(_)
            | Body::Leave
            | Body::Over(_)
            | Body::Ack { .. }
            | Body::Reply { .. }
            | Body::Control { .. } => true,
        }
    }
}
