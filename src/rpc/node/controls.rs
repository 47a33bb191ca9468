//! Control messages of this worker: each is sent again and again until it is acknowledged.

use super::calling::Out;
use super::{Node, PeerState, Rule, Timer};
use crate::id::{CallId, WorkerId};
use crate::message::{Answer, Body, Control};
use crate::references::Carrier;
use rendez::ground::Nanos;

impl<P, T> Node<P, T> {
    /// Sends a control message, again and again until it is acknowledged. Nothing is sent to a worker that is gone.
    pub(super) fn control(&mut self, to: WorkerId, control: Control) {
        let (due, has_left) = (self.now.after(self.limits.retry), self.has_left());
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        if !matches!(peer.state, PeerState::Up { .. }) || has_left {
            return;
        }
        let id = peer.next;
        peer.next.0 += 1;
        let delay = self.limits.retry;
        peer.out.insert(
            id,
            Out::Control {
                control,
                due,
                delay,
            },
        );
        let settled = peer.settled(id);
        if !matches!(control, Control::Probe | Control::Proceed) {
            self.activity += 1;
        }
        self.send_control(to, id, (settled, control), due);
    }

    /// Sends a control message, and again at `due` unless it is answered before.
    fn send_control(
        &mut self,
        to: WorkerId,
        id: CallId,
        (settled, control): (CallId, Control),
        due: Nanos,
    ) {
        self.timers.insert((due, Timer::Retry(to, id)));
        self.send(
            to,
            Body::Control {
                id,
                settled,
                control,
            },
        );
    }

    pub(super) fn repeat_control(&mut self, to: WorkerId, id: CallId) {
        if !self.rules.on(Rule::ControlRepeated) {
            return;
        }
        let (now, most) = (self.now, self.limits.retry_max);
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        let settled = peer.settled(id);
        let Some(Out::Control {
            control,
            due,
            delay,
        }) = peer.out.at_mut(id)
        else {
            return;
        };
        *delay = delay.mul_f32(1.5).min(most);
        *due = now.after(*delay);
        self.repeated += 1;
        let (control, due) = (*control, *due);
        self.send_control(to, id, (settled, control), due);
    }

    pub(super) fn hear_ack(&mut self, from: WorkerId, id: CallId, answer: Answer) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if !matches!(peer.out.at(id), Some(Out::Control { .. })) {
            return;
        }
        let Some(Out::Control { control, due, .. }) = peer.out.remove(id) else {
            return;
        };
        self.timers.remove(&(due, Timer::Retry(from, id)));
        match control {
            Control::Cancel(call) => {
                let given_up = peer.out.remove(call);
                peer.lingering -= usize::from(given_up.is_some());
                let arrived = answer != Answer::Unseen;
                self.references.settle(
                    Carrier {
                        peer: from,
                        id: call,
                        is_reply: false,
                    },
                    arrived,
                );
                if let Some(Out::GivenUp(Some(fork))) = given_up {
                    self.references.creation_resolved(fork, arrived);
                }
                self.advance(from);
            }
            Control::Took(_) => {}
            Control::Delete { fork, .. } => self.references.deleted(fork),
            Control::Fork { fork, .. } => {
                self.references.fork_answered(fork, answer != Answer::Gone)
            }
            Control::Probe => {
                if let Answer::Rest(rest) = answer {
                    self.hear_rest(from, rest);
                }
            }
            Control::Proceed => self.proceeded(),
        }
    }
}
