//! Calls of other workers: each is carried out at most once, and not at all once its caller has given it up.

use rendez::ground::Nanos;

use super::{Node, Output, Peer, Rule, Timer};
use crate::id::{CallId, RRefId, WorkerId};
use crate::message::{Answer, Body, Call, Control, Fault, FaultKind, Outcome, Target};
use crate::references::{Carrier, Wanted};

/// Calls of a worker that are remembered at most that it gave up before they came.
const REFUSED_MAX: usize = 1 << 16;

/// A call of another worker that is not finished.
#[derive(Debug)]
pub(super) struct Serving<P> {
    since: Nanos,
    deadline: Nanos,
    /// The reference that its result is kept under.
    rref: Option<RRefId>,
    stage: Stage<P>,
    /// Its caller does not want it any more: it gets no answer.
    is_unwanted: bool,
    /// Its time was over while it ran: that is the answer, whatever it comes to.
    is_late: bool,
}

#[derive(Debug)]
enum Stage<P> {
    /// It is not given to the driver yet: so many references among its arguments are not confirmed, or the value that
    /// it asks for is not there.
    Held { call: Box<Call<P>>, left: usize },
    /// The driver has it.
    Given,
}

impl<P> Serving<P> {
    /// Since when it is here and what it calls, if the driver has not been given it.
    pub(super) const fn held(&self) -> Option<(Nanos, &Target)> {
        match &self.stage {
            Stage::Held { call, .. } => Some((self.since, &call.target)),
            Stage::Given => None,
        }
    }
}

impl<P, T> Peer<P, T> {
    fn settle(&mut self, mark: CallId) {
        self.seen.settle(mark);
        self.order.settle(mark);
        while self.refused.first().is_some_and(|&first| first < mark) {
            self.refused.pop_first();
        }
    }
}

impl<P, T> Node<P, T> {
    pub(super) fn hear_call(&mut self, from: WorkerId, call: Call<P>) {
        let (now, id, most, rules) = (self.now, call.id, self.limits.serving, self.rules);
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if rules.on(Rule::MarkSettles) {
            peer.settle(call.settled);
        }
        if !peer.seen.has_room(id) {
            self.implausible += 1;
            return self.next_in_order(from);
        }
        if !peer.seen.insert(id) && rules.on(Rule::CallsCountOnce) {
            if let (Some(after), true) = (call.after, peer.refused.contains(&id)) {
                peer.order.skip(id, after);
                self.next_in_order(from);
            }
            return;
        }
        if let Some(after) = call.after {
            peer.order.came(id, after);
        }
        self.activity += 1;
        let is_full = peer.serving.len() >= most && rules.on(Rule::ServingBound);
        let deadline = call.budget.map_or(Nanos::NEVER, |budget| now + budget);
        let rref = match call.target {
            Target::Remote { rref, fork, .. } => self
                .references
                .creation_asked(from, rref, fork)
                .then_some(rref),
            _ => None,
        };
        let is_deleted = matches!(call.target, Target::Remote { .. }) && rref.is_none();
        let carrier = Carrier {
            peer: from,
            id,
            is_reply: false,
        };
        let left = self.references.arrive(carrier, &call.references);
        self.look_for_creators(&call.references);
        if rules.on(Rule::DeadlineAtServer) {
            self.serve_until(from, deadline);
        }
        // What needs nothing is given to the driver at once.
        let is_plain = matches!(call.target, Target::Function(_))
            && call.references.is_empty()
            && call.after.is_none();
        if is_plain && !is_full {
            if let Some(peer) = self.peers.get_mut(&from) {
                let serving = Serving {
                    since: now,
                    deadline,
                    rref: None,
                    stage: Stage::Given,
                    is_unwanted: false,
                    is_late: false,
                };
                peer.serving.insert(id, serving);
            }
            self.outputs.push_back(Output::Serve {
                from,
                id,
                target: call.target,
                payload: call.payload,
                references: call.references,
                deadline,
            });
            // What the call settled may have been waited for.
            return self.next_in_order(from);
        }
        let serving = Serving {
            since: now,
            deadline,
            rref,
            stage: Stage::Held {
                call: Box::new(call),
                left,
            },
            is_unwanted: false,
            is_late: false,
        };
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.serving.insert(id, serving);
        }
        if is_full {
            let message = format!("{most} of your calls wait or run there already (`serving`)");
            self.refuse(from, id, FaultKind::Busy, message);
        } else if is_deleted {
            let message = "the reference was deleted before its value was made";
            self.refuse(from, id, FaultKind::Reference, message.into());
        } else {
            self.try_serve(from, id);
        }
        // What the call settled may have been waited for.
        self.next_in_order(from);
    }

    /// Gives a call to the driver, if nothing that it needs is missing.
    pub(super) fn try_serve(&mut self, from: WorkerId, id: CallId) {
        let is_turn = (self.peers.get_mut(&from)).is_none_or(|peer| peer.is_turn(id));
        let Some(serving) = self
            .peers
            .get_mut(&from)
            .and_then(|peer| peer.serving.at_mut(id))
        else {
            return;
        };
        let Stage::Held { call, left } = &serving.stage else {
            return;
        };
        if *left > 0 || !is_turn {
            return;
        }
        if let Some(gone) = call
            .references
            .iter()
            .find(|one| !self.references.is_usable(one))
        {
            let message = format!("the value of an argument is gone: {}", gone.rref);
            return self.refuse(from, id, FaultKind::Reference, message);
        }
        if let Target::Fetch(rref) = call.target {
            match self.references.want(rref, (from, id)) {
                Wanted::Ready => {}
                Wanted::Later => return,
                Wanted::Gone => {
                    let message = format!("there is no value of {rref} any more");
                    return self.refuse(from, id, FaultKind::Reference, message);
                }
            }
        }
        let deadline = serving.deadline;
        let Stage::Held { call, .. } = std::mem::replace(&mut serving.stage, Stage::Given) else {
            return;
        };
        self.outputs.push_back(Output::Serve {
            from,
            id,
            target: call.target,
            payload: call.payload,
            references: call.references,
            deadline,
        });
    }

    /// One more reference among the arguments of a call is confirmed, or gone.
    pub(super) fn argument_confirmed(&mut self, from: WorkerId, id: CallId) {
        let serving = self
            .peers
            .get_mut(&from)
            .and_then(|peer| peer.serving.at_mut(id));
        if let Some(Serving {
            stage: Stage::Held { left, .. },
            ..
        }) = serving
        {
            *left = left.saturating_sub(1);
            self.try_serve(from, id);
        }
    }

    /// A call that is not begun, and will not be.
    fn refuse(&mut self, from: WorkerId, id: CallId, kind: FaultKind, message: String) {
        let fault = Fault::new(kind, message);
        let serving = self.peers.get(&from).and_then(|peer| peer.serving.at(id));
        if let Some(rref) = serving.and_then(|serving| serving.rref) {
            self.outputs.push_back(Output::Broken(rref, fault.clone()));
        }
        self.end(from, id, Outcome::Fault(fault));
    }

    /// The driver has carried a call out, or dropped it. False if that was forgotten with its caller: then nothing
    /// happens, and a value that it has made is told by [`Node::value_made`].
    pub fn finish(&mut self, now: Nanos, from: WorkerId, id: CallId, outcome: Outcome<P>) -> bool {
        self.now = now;
        self.end(from, id, outcome)
    }

    fn end(&mut self, from: WorkerId, id: CallId, outcome: Outcome<P>) -> bool {
        let Some(peer) = self.peers.get_mut(&from) else {
            return false;
        };
        let Some(serving) = peer.serving.remove(id) else {
            return false;
        };
        let has_begun = matches!(serving.stage, Stage::Given);
        peer.order.ended(id, has_begun);
        self.answer(from, id, serving, outcome);
        self.next_in_order(from);
        true
    }

    fn answer(&mut self, from: WorkerId, id: CallId, serving: Serving<P>, mut outcome: Outcome<P>) {
        self.activity += 1;
        if let Stage::Held { call, .. } = &serving.stage {
            self.references.abandon(&call.references);
            if let Target::Fetch(rref) = call.target {
                self.references.unwant(rref, (from, id));
            }
        }
        if let Some(rref) = serving.rref {
            self.value_made(rref);
        }
        if serving.is_unwanted {
            return;
        }
        if serving.is_late {
            outcome = Outcome::Fault(Fault::new(
                FaultKind::Timeout,
                "its deadline passed while it ran",
            ));
        }
        if let Outcome::Value { references, .. } = &mut outcome
            && !references.is_empty()
        {
            self.references
                .mark(references, |owner| self.present_life(owner));
            let carrier = Carrier {
                peer: from,
                id,
                is_reply: true,
            };
            self.references.carry(carrier, references);
        }
        self.send(from, Body::Reply { id, outcome });
    }

    /// The value of a reference of ours is there: those that asked for it get it.
    pub fn value_made(&mut self, rref: RRefId) {
        match self.references.made(rref) {
            Some(wanted) => wanted
                .into_iter()
                .for_each(|(from, id)| self.try_serve(from, id)),
            // All its users were gone before it was there.
            None => self.outputs.push_back(Output::Release(rref)),
        }
    }

    fn serve_until(&mut self, from: WorkerId, deadline: Nanos) {
        if let Some(peer) = self.peers.get_mut(&from)
            && deadline < peer.serves_due
        {
            self.timers.remove(&(peer.serves_due, Timer::Serves(from)));
            peer.serves_due = deadline;
            self.timers.insert((deadline, Timer::Serves(from)));
        }
    }

    /// Those of the calls of `from` whose time is over are stopped. One timer stands for all of them.
    pub(super) fn serves_are_due(&mut self, from: WorkerId) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        peer.serves_due = Nanos::NEVER;
        let (mut over, mut next) = (Vec::new(), Nanos::NEVER);
        for (id, serving) in peer.serving.iter().filter(|(_, serving)| !serving.is_late) {
            match serving.deadline <= now {
                true => over.push(id),
                false => next = next.min(serving.deadline),
            }
        }
        self.serve_until(from, next);
        over.into_iter()
            .for_each(|id| self.serving_timed_out(from, id));
    }

    /// The time of a call is over.
    fn serving_timed_out(&mut self, from: WorkerId, id: CallId) {
        let peer = self.peers.get_mut(&from);
        if let Some(serving) = peer.and_then(|peer| peer.serving.at_mut(id)) {
            serving.is_late = true;
        }
        self.stop_serving(from, id);
    }

    /// A caller gives a call up, or its time is over.
    pub(super) fn stop_serving(&mut self, from: WorkerId, id: CallId) {
        let serving = self
            .peers
            .get_mut(&from)
            .and_then(|peer| peer.serving.at_mut(id));
        match serving.map(|serving| &serving.stage) {
            Some(Stage::Held { .. }) => {
                let message = "its deadline passed before it began";
                self.refuse(from, id, FaultKind::Timeout, message.into());
            }
            Some(Stage::Given) => self.outputs.push_back(Output::Stop { from, id }),
            None => {}
        }
    }

    pub(super) fn hear_control(
        &mut self,
        from: WorkerId,
        id: CallId,
        settled: CallId,
        control: Control,
    ) {
        let is_settling = self.rules.on(Rule::MarkSettles);
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        if is_settling {
            peer.settle(settled);
        }
        self.next_in_order(from);
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        let cancelled = match control {
            Control::Cancel(call) => call,
            _ => id,
        };
        // Dropped, it comes again when there may be room.
        if ![id, cancelled].iter().all(|&id| peer.seen.has_room(id)) {
            self.implausible += 1;
            return;
        }
        let is_new = peer.seen.insert(id);
        if is_new && !matches!(control, Control::Probe | Control::Proceed) {
            self.activity += 1;
        }
        let answer = match control {
            Control::Cancel(call) => self.hear_cancel(from, call),
            Control::Took(call) => {
                self.references.settle(
                    Carrier {
                        peer: from,
                        id: call,
                        is_reply: true,
                    },
                    true,
                );
                Answer::Done
            }
            Control::Delete { rref, fork } => {
                if is_new {
                    self.references.delete(from, rref, fork);
                }
                Answer::Done
            }
            Control::Fork { rref, fork, early } => {
                let names = (rref, fork);
                let is_known = self.references.fork_asked(from, names, early, is_new);
                if early.is_some() && !self.may_come(rref.on) {
                    self.references.creator_lost(rref);
                }
                match is_known {
                    true => Answer::Done,
                    false => Answer::Gone,
                }
            }
            Control::Probe => Answer::Rest(self.rest()),
            Control::Proceed => Answer::Done,
        };
        self.send(from, Body::Ack { id, answer });
        if control == Control::Proceed {
            self.proceed();
        }
    }

    fn hear_cancel(&mut self, from: WorkerId, call: CallId) -> Answer {
        let Some(peer) = self.peers.get_mut(&from) else {
            return Answer::Done;
        };
        if peer.refused.contains(&call) {
            return Answer::Unseen;
        }
        if !self.rules.on(Rule::CancelRemembered) && !peer.seen.has(call) {
            return Answer::Unseen;
        }
        if peer.seen.insert(call) {
            peer.refused.insert(call);
            if peer.refused.len() > REFUSED_MAX {
                // Its caller has heard of it long ago.
                peer.refused.pop_first();
            }
            return Answer::Unseen;
        }
        if let Some(serving) = peer.serving.at_mut(call) {
            serving.is_unwanted = true;
            self.stop_serving(from, call);
        }
        // Its answer may be under way, and is not taken.
        self.references.settle(
            Carrier {
                peer: from,
                id: call,
                is_reply: true,
            },
            false,
        );
        Answer::Done
    }

    /// A worker is gone, and with it all callers that are there.
    pub(super) fn drop_serving(&mut self, from: WorkerId) {
        let Some(peer) = self.peers.get_mut(&from) else {
            return;
        };
        peer.order.clear();
        peer.serving
            .values_mut()
            .for_each(|serving| serving.is_unwanted = true);
        let ids: Vec<CallId> = peer.serving.iter().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.stop_serving(from, id));
    }
}
