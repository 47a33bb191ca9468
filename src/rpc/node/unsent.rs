//! Messages that cannot go as they are: what they carry cannot reach their receiver. Their calls end alone.

use rendez::ground::{Nanos, Status};

use super::{Ending, Node, Output};
use crate::id::{CallId, WorkerId};
use crate::message::{Body, Fault, FaultKind, Message, Outcome};
use crate::references::Carrier;

impl<P, T> Node<P, T> {
    /// That message of ours could not be sent, and nothing of it was: a call ends with `status`, and an answer becomes
    /// a fault. Others carry nothing that could not go.
    pub fn handle_unsent(
        &mut self,
        now: Nanos,
        to: WorkerId,
        message: &Message<P>,
        status: &Status,
    ) {
        self.now = now;
        // What is for a former life of its receiver is over already.
        if message.to_life != self.present_life(to) {
            return;
        }
        match &message.body {
            Body::Call(call) => {
                if let Some(before) = call.after {
                    self.close_gap(to, call.id, before);
                }
                // The other side is told as of any that is given up: so it ends in good order, with what it carries.
                self.give_up(to, call.id, Ending::Unsent(status.clone()));
            }
            Body::Reply { id, .. } => self.answer_unsent(to, *id, status),
            _ => {}
        }
    }

    /// What was to be carried out after a call that does not come is carried out after the one before that.
    fn close_gap(&mut self, to: WorkerId, id: CallId, before: CallId) {
        if let Some(peer) = self.peers.get_mut(&to)
            && peer.order.last == id
        {
            peer.order.last = before;
        }
        // Those that were made meanwhile have not gone either.
        for output in &mut self.outputs {
            if let Output::Send { to: at, message } = output
                && *at == to
                && let Body::Call(call) = &mut message.body
                && call.after == Some(id)
            {
                call.after = Some(before);
            }
        }
    }

    fn answer_unsent(&mut self, to: WorkerId, id: CallId, status: &Status) {
        let Some(peer) = self.peers.get(&to) else {
            return;
        };
        let id = peer.here(id);
        let carrier = Carrier {
            peer: to,
            id,
            is_reply: true,
        };
        self.references.settle(carrier, false);
        let message = format!("its result cannot travel: {status}");
        let fault = Fault::new(FaultKind::Error, message);
        let outcome = Outcome::Fault(fault);
        self.send(to, Body::Reply { id, outcome });
    }
}
