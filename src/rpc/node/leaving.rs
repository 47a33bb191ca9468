//! Leaving together.
//!
//! Leaving in good order is detecting termination. The worker with the lowest number that is there asks all others,
//! again and again, whether they want to leave and have nothing outstanding, and how much they have ever done. Two
//! rounds, one after the other, in which all are idle and none has done anything between, prove that there was a moment
//! when no worker was busy and, since every message that asks for work is outstanding at its sender, nothing was on its
//! way (the double counting of F. Mattern, "Algorithms for distributed termination detection", 1987, with one counter).

use std::collections::BTreeMap;
use std::time::Duration;

use rendez::ground::Nanos;

use super::calling::Out;
use super::group::Phase;
use super::{Node, Output, Peer, Rule, Timer};
use crate::id::WorkerId;
use crate::message::{Body, Control, Rest};

/// How many times longer than at first the pause between two rounds becomes, while not all are idle.
pub(super) const PROBING_RISE: u32 = 20;

#[derive(Debug)]
pub(super) struct Leaving {
    deadline: Nanos,
    /// Until the next round, where this one finds that not all are idle.
    pause: Duration,
    /// So many are asked in this round, with this worker.
    asked: usize,
    /// What each worker said in this round.
    round: BTreeMap<WorkerId, Rest>,
    /// What all of them said in the round before, if all were idle.
    before: Option<BTreeMap<WorkerId, Rest>>,
    /// So many of the others have not acknowledged that all leave.
    proceeding: Option<usize>,
}

impl<P, T> Node<P, T> {
    /// Leaves in good order: when all workers of a static group want to and have come to rest, or this worker of a
    /// dynamic one has; at `deadline` all the same, the earliest of several. [`Output::Left`] follows. References that
    /// the program still holds end then, and not before: functions that are carried out meanwhile may use theirs.
    pub fn leave(&mut self, now: Nanos, deadline: Nanos) {
        self.now = now;
        match &mut self.phase {
            Phase::Running | Phase::Joining => {}
            Phase::Leaving(leaving) => {
                leaving.deadline = leaving.deadline.min(deadline);
                return self.arm_deadline(deadline);
            }
            Phase::Left => return,
        }
        self.dismiss_guests();
        self.phase = Phase::Leaving(Leaving {
            deadline,
            pause: self.limits.probing,
            asked: 0,
            round: BTreeMap::new(),
            before: None,
            proceeding: None,
        });
        self.arm_deadline(deadline);
        self.arm_probe(Duration::ZERO);
    }

    fn arm_deadline(&mut self, deadline: Nanos) {
        if deadline != Nanos::NEVER {
            self.timers.insert((deadline, Timer::Leave));
        }
    }

    /// References that the program held when this worker left, by name.
    #[must_use]
    pub fn leaks(&self) -> &[String] {
        &self.leaks
    }

    /// Leaves at once.
    pub fn leave_now(&mut self, now: Nanos) {
        self.now = now;
        if !self.has_left() {
            self.go(Ok(()));
        }
    }

    /// Whether something that this worker has sent waits for room: it is not at rest before that has gone.
    pub const fn set_sending(&mut self, is_sending: bool) {
        self.is_sending = is_sending;
    }

    /// A worker is gone meanwhile, or is there: the one who asks may have been it, or have waited for it, or must ask
    /// it.
    pub(super) fn ask_anew(&mut self, peer: WorkerId) {
        if let Phase::Leaving(leaving) = &mut self.phase {
            leaving.round.remove(&peer);
            (leaving.before, leaving.pause) = (None, self.limits.probing);
            match leaving.proceeding {
                Some(_) => self.proceeded_all(),
                None => self.arm_probe(Duration::ZERO),
            }
        }
    }

    /// In place of the round that was next.
    fn arm_probe(&mut self, delay: Duration) {
        self.timers.retain(|(_, timer)| *timer != Timer::Probe);
        self.timers.insert((self.now.after(delay), Timer::Probe));
    }

    /// What this worker says of itself.
    pub(super) fn rest(&mut self) -> Rest {
        self.drain_references();
        let is_control = |out: &Out<P, T>| {
            matches!(
                out,
                Out::Control {
                    control: Control::Probe,
                    ..
                }
            )
        };
        let is_peer_idle = |peer: &Peer<P, T>| {
            peer.out.values().all(is_control) && peer.waiting.is_empty() && peer.serving.is_empty()
        };
        Rest {
            is_idle: matches!(self.phase, Phase::Leaving(_))
                && !self.is_sending
                && self.references.is_at_rest()
                && self.peers.values().all(is_peer_idle),
            activity: self.activity,
        }
    }

    /// The first of those that are there asks the others; it begins a round when the one before is over.
    pub(super) fn probe(&mut self) {
        let rest = self.rest();
        let others = self.others_up();
        let Phase::Leaving(leaving) = &mut self.phase else {
            return;
        };
        if leaving.proceeding.is_some() {
            return;
        }
        if self.group.is_dynamic || others.is_empty() {
            if rest.is_idle {
                return self.go(Ok(()));
            }
            return self.arm_probe(self.limits.probing);
        }
        if others.iter().any(|&other| other < self.me) {
            // It asks us.
            return;
        }
        leaving.round = BTreeMap::from([(self.me, rest)]);
        leaving.asked = 1 + others.len();
        self.forget_probes();
        others
            .into_iter()
            .for_each(|other| self.control(other, Control::Probe));
    }

    /// No answer to a probe of a round that was given up counts in the next: it was said before that began.
    fn forget_probes(&mut self) {
        for (&id, peer) in &mut self.peers {
            let probes = peer.out.iter().filter_map(|(number, out)| match out {
                Out::Control {
                    control: Control::Probe,
                    due,
                    ..
                } => Some((number, *due)),
                _ => None,
            });
            for (number, due) in probes.collect::<Vec<_>>() {
                peer.out.remove(number);
                self.timers.remove(&(due, Timer::Retry(id, number)));
            }
        }
    }

    pub(super) fn hear_rest(&mut self, from: WorkerId, rest: Rest) {
        let Phase::Leaving(leaving) = &mut self.phase else {
            return;
        };
        leaving.round.insert(from, rest);
        if leaving.round.len() < leaving.asked {
            return;
        }
        let others = self.others_up();
        let Phase::Leaving(leaving) = &mut self.phase else {
            return;
        };
        if !others.iter().all(|other| leaving.round.contains_key(other)) {
            return;
        }
        let round = std::mem::take(&mut leaving.round);
        let is_idle = round.values().all(|rest| rest.is_idle);
        let is_second = leaving.before.as_ref() == Some(&round);
        if is_idle && (is_second || !self.rules.on(Rule::TwoRounds)) {
            leaving.proceeding = Some(others.len());
            others
                .into_iter()
                .for_each(|other| self.control(other, Control::Proceed));
            return;
        }
        let is_first = leaving.before.is_none();
        leaving.before = is_idle.then_some(round);
        let first = self.limits.probing;
        let delay = match is_idle {
            // The second round follows at once.
            true if is_first => Duration::ZERO,
            true => first,
            // Who works may do so for hours.
            false => leaving.pause,
        };
        let longer = (2 * leaving.pause).min(first * PROBING_RISE);
        leaving.pause = if is_idle { first } else { longer };
        self.arm_probe(delay);
    }

    pub(super) fn proceeded(&mut self) {
        if let Phase::Leaving(Leaving {
            proceeding: Some(left),
            ..
        }) = &mut self.phase
        {
            *left = left.saturating_sub(1);
        }
        self.proceeded_all();
    }

    /// The one who asked leaves when all have heard that they may, or are gone.
    fn proceeded_all(&mut self) {
        let is_open = |out: &Out<P, T>| {
            matches!(
                out,
                Out::Control {
                    control: Control::Proceed,
                    ..
                }
            )
        };
        let is_heard = !self
            .peers
            .values()
            .any(|peer| peer.out.values().any(is_open));
        if is_heard
            && matches!(
                self.phase,
                Phase::Leaving(Leaving {
                    proceeding: Some(_),
                    ..
                })
            )
        {
            self.go(Ok(()));
        }
    }

    pub(super) fn proceed(&mut self) {
        if matches!(self.phase, Phase::Leaving(_)) {
            self.go(Ok(()));
        }
    }

    pub(super) fn leave_late(&mut self) {
        if let Phase::Leaving(leaving) = &self.phase
            && leaving.deadline <= self.now
            && self.rules.on(Rule::ShutdownDeadline)
        {
            let what = self.outstanding();
            self.go(Err(what));
        }
    }

    fn go(&mut self, how: Result<(), Vec<String>>) {
        if matches!(self.phase, Phase::Leaving(_)) {
            self.leaks = self.references.held();
        }
        self.drain_references();
        self.dismiss_guests();
        for other in self.others_up() {
            // Others of a static group leave by themselves, each when it has heard; those that do not are told.
            self.send(other, Body::Leave);
        }
        self.phase = Phase::Left;
        self.timers.clear();
        let status = crate::error::left_first();
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.fail_calls(peer, &status);
            self.drop_serving(peer);
        }
        self.outputs.push_back(Output::Left(how));
    }

    /// What keeps this worker from leaving, by name.
    #[must_use]
    pub fn outstanding(&self) -> Vec<String> {
        let mut what = Vec::new();
        for (id, peer) in &self.peers {
            let calls = peer.calls + peer.waiting.len();
            if calls > 0 {
                what.push(format!("{calls} calls to worker {id} are not answered"));
            }
            what.extend(super::report::unacknowledged(*id, peer));
            if !peer.serving.is_empty() {
                what.push(format!(
                    "{} calls of worker {id} are not finished here",
                    peer.serving.len()
                ));
            }
        }
        if self.is_sending {
            what.push("what was sent waits for room".into());
        }
        if let Phase::Leaving(leaving) = &self.phase {
            let unready = leaving.round.iter().filter(|(_, rest)| !rest.is_idle);
            let unready: Vec<_> = unready.map(|(id, _)| id.to_string()).collect();
            if !unready.is_empty() {
                what.push(format!(
                    "workers {} do not want to leave yet, or work",
                    unready.join(", ")
                ));
            }
            let silent = self.others_up();
            let silent: Vec<_> = silent
                .iter()
                .filter(|id| !leaving.round.is_empty() && !leaving.round.contains_key(id))
                .map(ToString::to_string)
                .collect();
            if !silent.is_empty() {
                what.push(format!("workers {} have not answered", silent.join(", ")));
            }
            let held = self.references.held().into_iter();
            what.extend(held.map(|name| format!("{name} is still held")));
        }
        what
    }
}
