//! Calls of this worker: until they are answered, given up, or their worker is gone. And its control messages.

use std::time::Duration;

use rendez::ground::{Nanos, Status};

use super::{Ending, Node, Output, PeerState, Rule, Timer};
use crate::id::{CallId, ForkId, RRefId, WorkerId};
use crate::message::{Body, Call, Control, Outcome, Reference, Target};
use crate::references::Carrier;

/// Something that we have sent and that is not over.
#[derive(Debug)]
pub(super) enum Out<P, T> {
    /// A call that is not answered.
    Call {
        token: T,
        deadline: Nanos,
        target: Kind,
    },
    /// A call that was answered: the references in its result are not all confirmed.
    Confirming {
        /// Whose answer, and what it is. None once the call has ended at its deadline or by a cancel: the answer is
        /// still acknowledged.
        answer: Option<(T, Outcome<P>)>,
        deadline: Nanos,
        left: usize,
    },
    /// A call that we gave up: its number counts as under way until the other side has said whether it was seen. The
    /// share of the value that it was to make.
    GivenUp(Option<ForkId>),
    /// A control message that is not acknowledged.
    Control {
        control: Control,
        due: Nanos,
        delay: Duration,
    },
}

/// What of a call's target matters afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Plain,
    Remote(RRefId, ForkId),
}

/// A call that waits for the window.
#[derive(Debug)]
pub(super) struct Waiting<P, T> {
    /// Dropped first: what rides with it is told before the call ends.
    payload: P,
    /// By which its timer knows it.
    serial: u64,
    pub(super) token: T,
    deadline: Nanos,
    target: Target,
    references: Vec<Reference>,
}

/// A call to be made.
#[derive(Debug)]
pub struct NewCall<P, T> {
    /// How it is known to the driver.
    pub token: T,
    /// What is called.
    pub target: Target,
    /// When it is given up; [`Nanos::NEVER`] for never.
    pub deadline: Nanos,
    /// References among its arguments.
    pub references: Vec<Reference>,
    /// Its arguments.
    pub payload: P,
}

impl<P, T> Node<P, T> {
    /// Calls. Exactly one [`Output::Ended`] follows.
    pub fn call(&mut self, now: Nanos, to: WorkerId, call: NewCall<P, T>) {
        self.now = now;
        self.references.at(now);
        let NewCall {
            token,
            target,
            deadline,
            references,
            payload,
        } = call;
        if let Target::Remote { rref, fork, .. } = target
            && to != self.me
        {
            self.references.create(rref, fork, to);
        }
        let refused = match self.peers.get(&to).map(|peer| &peer.state) {
            _ if self.has_left() => Some(Ending::Shutdown),
            // One that is about to be there is waited for.
            Some(PeerState::Up { .. } | PeerState::Unmet) => None,
            Some(PeerState::Lost(status)) => Some(Ending::Lost(status.clone())),
            None => Some(Ending::Lost(crate::error::unmet(to))),
        };
        if let Some(ending) = refused {
            if let Target::Remote { rref, fork, .. } = target {
                self.references.creation_refused(rref, fork);
            }
            self.outputs.push_back(Output::Ended {
                token,
                at: to,
                ending,
            });
            return;
        }
        if let Some(rref) = self.makes_own(to, &target) {
            self.references.pin_owned(rref);
        }
        let (window, waiting) = (self.limits.window, self.limits.waiting);
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        self.waited += 1;
        let call = Waiting {
            serial: self.waited,
            token,
            deadline,
            target,
            references,
            payload,
        };
        let is_up = peer.state.life().is_some();
        let has_room = peer.has_place(window) || !self.rules.on(Rule::Window);
        if is_up && has_room && peer.waiting.is_empty() {
            return self.start(to, call);
        }
        if peer.waiting.len() >= waiting {
            if let Some(rref) = self.makes_own(to, &call.target) {
                self.references.unpin_owned(rref);
            }
            if let Target::Remote { rref, fork, .. } = call.target {
                self.references.creation_refused(rref, fork);
            }
            self.outputs.push_back(Output::Ended {
                token: call.token,
                at: to,
                ending: Ending::Busy,
            });
            return;
        }
        // Those that wait are looked at when a call ends, and when the worker is there.
        self.references.pin(&call.references);
        if call.deadline != Nanos::NEVER {
            self.timers
                .insert((call.deadline, Timer::Waiting(to, call.serial)));
        }
        peer.waiting.push_back(call);
    }

    /// The value here that a call from here makes: it stays until the call has come, whatever becomes of its handle.
    fn makes_own(&self, to: WorkerId, target: &Target) -> Option<RRefId> {
        match target {
            Target::Remote { rref, .. } if to == self.me => Some(*rref),
            _ => None,
        }
    }

    /// A call that waited for the window ends without having been made.
    fn end_waiting(&mut self, to: WorkerId, waiting: Waiting<P, T>, ending: Ending<P>) {
        self.references.unpin(&waiting.references);
        if let Some(rref) = self.makes_own(to, &waiting.target) {
            self.references.unpin_owned(rref);
        }
        self.timers
            .remove(&(waiting.deadline, Timer::Waiting(to, waiting.serial)));
        if let Target::Remote { rref, fork, .. } = waiting.target {
            self.references.creation_dropped(rref, fork);
        }
        self.outputs.push_back(Output::Ended {
            token: waiting.token,
            at: to,
            ending,
        });
    }

    fn start(&mut self, to: WorkerId, mut call: Waiting<P, T>) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        let id = peer.next;
        peer.next.0 += 1;
        let kind = match call.target {
            Target::Remote { rref, fork, .. } => Kind::Remote(rref, fork),
            _ => Kind::Plain,
        };
        peer.out.insert(
            id,
            Out::Call {
                token: call.token,
                deadline: call.deadline,
                target: kind,
            },
        );
        peer.calls += 1;
        // A value is asked for whenever it is there: who waits for it may be what makes it.
        let is_ordered = self.limits.in_order && !matches!(call.target, Target::Fetch(_));
        let after = is_ordered.then(|| std::mem::replace(&mut peer.order.last, id));
        let settled = peer.settled(id);
        self.activity += 1;
        let budget = match call.deadline {
            Nanos::NEVER => None,
            deadline => {
                if deadline < peer.calls_due {
                    self.timers.remove(&(peer.calls_due, Timer::Calls(to)));
                    peer.calls_due = deadline;
                    self.timers.insert((deadline, Timer::Calls(to)));
                }
                Some(deadline.0.saturating_sub(now.0))
            }
        };
        if !call.references.is_empty() {
            let carrier = Carrier {
                peer: to,
                id,
                is_reply: false,
            };
            self.references
                .mark(&mut call.references, |owner| self.present_life(owner));
            self.references.carry(carrier, &call.references);
        }
        self.send(
            to,
            Body::Call(Call {
                id,
                settled,
                after,
                budget,
                target: call.target,
                references: call.references,
                payload: call.payload,
            }),
        );
    }

    /// Calls that waited for the window may go.
    pub(super) fn advance(&mut self, to: WorkerId) {
        while let Some(peer) = self.peers.get_mut(&to)
            && peer.has_place(self.limits.window)
            && let Some(next) = peer.waiting.pop_front()
        {
            if next.deadline <= self.now {
                self.end_waiting(to, next, Ending::Timeout);
                continue;
            }
            self.timers
                .remove(&(next.deadline, Timer::Waiting(to, next.serial)));
            let references = next.references.clone();
            self.start(to, next);
            self.references.unpin(&references);
        }
    }

    pub(super) fn waiting_timed_out(&mut self, to: WorkerId, serial: u64) {
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        let place = peer.waiting.iter().position(|one| one.serial == serial);
        if let Some(waiting) = place.and_then(|place| peer.waiting.remove(place)) {
            self.end_waiting(to, waiting, Ending::Timeout);
        }
    }

    /// The program gives up the calls to `to` whose tokens are so. Nothing happens to those that have ended. Many at
    /// once are looked for once, and none of those that wait is made because another has ended before it.
    pub fn cancel(&mut self, now: Nanos, to: WorkerId, is_it: impl Fn(&T) -> bool) {
        self.now = now;
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        let places = peer.waiting.iter().enumerate();
        let mut places = places.filter_map(|(at, one)| is_it(&one.token).then_some(at));
        let over = match (places.next(), places.next()) {
            (Some(at), None) => peer.waiting.remove(at).into_iter().collect(),
            (Some(first), _) => {
                let (over, kept): (Vec<_>, Vec<_>) =
                    (peer.waiting.drain(first..)).partition(|waiting| is_it(&waiting.token));
                peer.waiting.extend(kept);
                over
            }
            (None, _) => Vec::new(),
        };
        for waiting in over {
            self.end_waiting(to, waiting, Ending::Cancelled);
        }
        let is_call = |out: &Out<P, T>| match out {
            Out::Call { token, .. } => is_it(token),
            Out::Confirming { answer, .. } => {
                answer.as_ref().is_some_and(|(token, _)| is_it(token))
            }
            _ => false,
        };
        let out = self.peers.get(&to).into_iter();
        let out = out.flat_map(|peer| peer.out.iter());
        let over = out.filter_map(|(id, out)| is_call(out).then_some(id));
        for id in over.collect::<Vec<_>>() {
            self.give_up(to, id, Ending::Cancelled);
        }
    }

    pub(super) fn give_up(&mut self, to: WorkerId, id: CallId, ending: Ending<P>) {
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        let fork = match peer.out.at(id) {
            Some(Out::Call { target, .. }) => match target {
                Kind::Remote(_, fork) => Some(*fork),
                Kind::Plain => None,
            },
            Some(Out::Confirming { .. }) => return self.give_answer_up(to, id, ending),
            _ => return,
        };
        let Some(Out::Call { token, .. }) = peer.out.insert(id, Out::GivenUp(fork)) else {
            return;
        };
        peer.calls -= 1;
        peer.lingering += 1;
        if let Some(fork) = fork {
            self.references.creation_in_doubt(fork);
        }
        self.outputs.push_back(Output::Ended {
            token,
            at: to,
            ending,
        });
        // Told until it is acknowledged: the answer says whether the call was seen.
        if self.rules.on(Rule::CancelTold) {
            self.control(to, Control::Cancel(id));
        }
    }

    /// Those of the calls to `to` whose time is over end. One timer stands for all of them, so that a call that is
    /// answered in time, as most are, touches none.
    pub(super) fn calls_are_due(&mut self, to: WorkerId) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        let (mut over, mut next) = (Vec::new(), Nanos::NEVER);
        for (id, out) in peer.out.iter() {
            match out {
                Out::Confirming { .. } if !self.rules.on(Rule::ConfirmingEnds) => {}
                Out::Call { deadline, .. }
                | Out::Confirming {
                    deadline,
                    answer: Some(_),
                    ..
                } => match *deadline <= now {
                    true => over.push(id),
                    false => next = next.min(*deadline),
                },
                _ => {}
            }
        }
        peer.calls_due = next;
        if next != Nanos::NEVER {
            self.timers.insert((next, Timer::Calls(to)));
        }
        over.into_iter()
            .for_each(|id| self.give_up(to, id, Ending::Timeout));
    }

    /// A call is given up whose answer is there, and waits for references in it to be confirmed.
    fn give_answer_up(&mut self, to: WorkerId, id: CallId, ending: Ending<P>) {
        let entry = self.peers.get_mut(&to).and_then(|peer| peer.out.at_mut(id));
        let Some(Out::Confirming { answer, .. }) = entry else {
            return;
        };
        let Some((token, outcome)) = answer.take() else {
            return;
        };
        if let Outcome::Value { references, .. } = outcome {
            self.references.abandon(&references);
        }
        self.outputs.push_back(Output::Ended {
            token,
            at: to,
            ending,
        });
    }

    pub(super) fn hear_reply(&mut self, from: WorkerId, id: CallId, outcome: Outcome<P>) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        // An answer to a call that is over, or a second one: nothing happens.
        if !matches!(peer.out.at(id), Some(Out::Call { .. })) {
            return;
        }
        let Some(Out::Call {
            token,
            target,
            deadline,
        }) = peer.out.remove(id)
        else {
            return;
        };
        peer.calls -= 1;
        self.activity += 1;
        self.references.settle(
            Carrier {
                peer: from,
                id,
                is_reply: false,
            },
            true,
        );
        if let Kind::Remote(_, fork) = target {
            self.references.creation_confirmed(fork);
        }
        let mut left = 0;
        if let Outcome::Value { references, .. } = &outcome
            && !references.is_empty()
        {
            let carrier = Carrier {
                peer: from,
                id,
                is_reply: true,
            };
            left = self.references.arrive(carrier, references);
            self.look_for_creators(references);
            if left == 0 && self.rules.on(Rule::TookTold) {
                self.control(from, Control::Took(id));
            }
        }
        if left > 0 {
            if let Some(peer) = self.peers.get_mut(&from) {
                peer.lingering += 1;
                peer.out.insert(
                    id,
                    Out::Confirming {
                        answer: Some((token, outcome)),
                        deadline,
                        left,
                    },
                );
            }
        } else {
            let ending = Ending::Answered(outcome);
            self.outputs.push_back(Output::Ended {
                token,
                at: from,
                ending,
            });
        }
        self.advance(from);
    }

    /// One more reference in the answer of a call is confirmed, or gone.
    pub(super) fn reply_confirmed(&mut self, from: WorkerId, id: CallId) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if let Some(Out::Confirming { left, .. }) = peer.out.at_mut(id) {
            *left -= 1;
            if *left > 0 {
                return;
            }
        }
        if let Some(Out::Confirming { .. }) = peer.out.at(id)
            && let Some(Out::Confirming { answer, .. }) = peer.out.remove(id)
        {
            peer.lingering -= 1;
            if let Some((token, outcome)) = answer {
                let ending = Ending::Answered(outcome);
                self.outputs.push_back(Output::Ended {
                    token,
                    at: from,
                    ending,
                });
            }
            if self.rules.on(Rule::TookTold) {
                self.control(from, Control::Took(id));
            }
            self.advance(from);
        }
    }

    /// All that is under way to a worker that is gone ends with `status`.
    pub(super) fn fail_calls(&mut self, to: WorkerId, status: &Status) {
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        (peer.calls, peer.lingering) = (0, 0);
        let (out, waiting) = (peer.out.take_all(), std::mem::take(&mut peer.waiting));
        for (id, out) in out {
            let token = match out {
                Out::Call { token, target, .. } => {
                    if let Kind::Remote(rref, fork) = target {
                        self.references.creation_dropped(rref, fork);
                    }
                    token
                }
                Out::Confirming { answer: None, .. } => continue,
                Out::Confirming {
                    answer: Some((token, outcome)),
                    ..
                } => {
                    if let Outcome::Value { references, .. } = outcome {
                        self.references.abandon(&references);
                    }
                    token
                }
                Out::GivenUp(_) => continue,
                Out::Control { due, .. } => {
                    self.timers.remove(&(due, Timer::Retry(to, id)));
                    continue;
                }
            };
            let ending = Ending::Lost(status.clone());
            self.outputs.push_back(Output::Ended {
                token,
                at: to,
                ending,
            });
        }
        for waiting in waiting {
            self.end_waiting(to, waiting, Ending::Lost(status.clone()));
        }
    }
}
