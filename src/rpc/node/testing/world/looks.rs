//! Looks: what a world holds to be wrong as it happens, and what must be so at rest.

use std::time::Duration;

use rendez::ground::Nanos;

use super::{Job, Share, World};
use crate::id::{RRefId, WorkerId};
use crate::message::{FaultKind, Outcome};
use crate::node::{Ending, Node};
use crate::{ForkId, references};

/// Runs of numbers of a peer, and calls of it that were given up, that may be remembered beyond what is under way.
const SEEN_MAX: usize = 32;

impl World {
    /// A worker holds a share that the owner knows: it finds the value, unless one of both has given the other up.
    pub(super) fn look_held(&mut self, at: usize, share: Share) {
        if self.is_sound(at, share) && !self.owner_has(share) {
            let rref = share.rref;
            let what = format!("worker {at} was given {rref} and its owner has let it go");
            self.harm.push(what);
        }
    }

    fn owner_has(&self, share: Share) -> bool {
        self.actors[usize::from(share.owner.0)]
            .node
            .knows(share.rref)
    }

    /// Whether the owner of a share must have its value.
    fn is_sound(&self, at: usize, share: Share) -> bool {
        let owner = usize::from(share.owner.0);
        let is_there = |at: usize| !self.actors[at].is_dead && self.actors[at].has_left.is_none();
        let (one, other) = (WorkerId(at as u16), share.owner);
        // What comes home may have lost its parent on the way.
        let is_whole = !self.is_disturbed() && !self.was_severed;
        let is_known = share.fork.map_or(is_whole, |fork| {
            let node = &self.actors[at].node;
            // Both know each other as they are: none has died or given the other up unheard.
            let knows = |at: usize, of: usize| {
                self.actors[at].node.life_of(WorkerId(of as u16)) == Some(self.actors[of].life)
            };
            node.is_confirmed(fork) && knows(at, owner) && knows(owner, at)
        });
        !self.is_left
            && is_there(at)
            && is_there(owner)
            && is_known
            // Of its present life: what a former one had is gone with it.
            && self.actors[owner].made.contains(&share.rref)
            && !self.network.is_severed(one, other)
            && !self.doubtful.contains(&share.rref)
            && !self.gone.contains(&share.rref)
    }

    pub(super) fn look_released(&mut self, rref: RRefId) {
        for at in 0..self.actors.len() {
            let held = self.actors[at].held.clone();
            let mut held = held.into_iter().filter(|share| share.rref == rref);
            if held.any(|share| self.is_sound(at, share)) {
                let what = format!("{rref} was released while worker {at} holds it");
                self.harm.push(what);
            }
        }
        // Shares of it that are still about have lost their parents.
        self.gone.insert(rref);
    }

    /// Nothing begins after its deadline.
    pub(super) fn look_timely(&mut self, at: usize, job: Job, deadline: Nanos) {
        let resumed = self.actors[at].paused_until;
        if self.now > deadline && resumed < deadline {
            let what = format!("job {} began after its deadline", job.0);
            self.harm.push(what);
        }
        let limits = self.limits.clone();
        let caller = self.callers.get(&job.0).map(|caller| caller.0);
        // Those that their caller has given up are told to stop, and do not count.
        let is_awaited = |job: &Job| !self.ended.contains_key(&job.0);
        let running = self.actors[at].running.iter();
        let of_caller = running
            .filter(|(from, _, _, job, _)| Some(usize::from(from.0)) == caller && is_awaited(job));
        let jobs: Vec<u64> = of_caller.map(|(_, _, _, job, _)| job.0).collect();
        if is_awaited(&job) && jobs.len() >= limits.window && !self.is_disturbed() {
            let what = format!("worker {at} has more to do than the window allows: {jobs:?}");
            self.harm.push(what);
        }
    }

    /// A function begins when all its references are confirmed.
    pub(super) fn look_confirmed(&mut self, at: usize, job: Job, share: Share) {
        let node = &self.actors[at].node;
        let is_confirmed = share.fork.is_none_or(|fork| node.is_confirmed(fork));
        // Who leaves ends its shares, also those of calls that have not begun.
        if !is_confirmed && !self.is_left {
            let what = format!("job {} began with {} unconfirmed", job.0, share.rref);
            self.harm.push(what);
        }
        let caller = self.callers.get(&job.0).map(|caller| caller.0);
        let running = self.actors[at].running.iter();
        let of_caller = running.filter(|(from, ..)| Some(usize::from(from.0)) == caller);
        if of_caller.count() >= self.limits.serving {
            let what = format!("worker {at} does more for one than it said it would");
            self.harm.push(what);
        }
    }

    /// A worker died, or lost another, at some time.
    pub(super) fn is_disturbed(&self) -> bool {
        self.lives as usize > self.actors.len() || self.actors.iter().any(|actor| actor.is_dead)
    }

    /// A call ends by its deadline, and never for a reason that does not hold.
    pub(super) fn look_ended(&mut self, at: usize, job: u64, ending: &Ending<Job>) {
        let deadline = self
            .callers
            .get(&job)
            .map_or(Nanos::NEVER, |caller| caller.2);
        let kept = deadline.max(self.actors[at].paused_until);
        if deadline != Nanos::NEVER && self.now > kept.after(Duration::from_nanos(1)) {
            let late = self.now.since(deadline);
            self.harm
                .push(format!("job {job} ended {late:?} after its deadline"));
        }
        let fault = match ending {
            Ending::Answered(Outcome::Fault(fault)) => fault,
            _ => return,
        };
        let is_whole = !self.is_disturbed() && !self.was_severed && !self.is_left;
        let is_whole = is_whole && self.doubtful.is_empty();
        // One who lets go of a reference to a value that is not made yet is told that it never was.
        let creation = self.creations.get(&job);
        let is_creation = creation.is_some();
        let is_held = self.actors[at]
            .held
            .iter()
            .any(|share| Some(&share.rref) == creation);
        if fault.message.starts_with("the reference was deleted") && is_held && !self.is_left {
            let what = format!("job {job} was not begun: {}", fault.message);
            self.harm.push(what);
        }
        // What it let go of while it asked for it may be gone.
        let is_named = |share: &Share| fault.message.contains(&share.rref.to_string());
        let is_fetch = fault.message.starts_with("there is no value");
        let is_whole = is_whole && (!is_fetch || self.actors[at].held.iter().any(is_named));
        if fault.kind == FaultKind::Reference && is_whole && !is_creation {
            let what = format!(
                "job {job} failed though nothing was lost: {}",
                fault.message
            );
            self.harm.push(what);
        }
    }

    /// What a worker that is gone has called is stopped.
    pub(super) fn look_stopped(&mut self, at: usize, gone: WorkerId) {
        let actor = &self.actors[at];
        let mut running = actor.running.iter();
        let goes_on =
            running.find(|(from, id, ..)| *from == gone && !actor.stopped.contains(&(*from, *id)));
        if let Some((_, _, _, job, _)) = goes_on {
            let what = format!("job {} goes on though its caller is gone", job.0);
            self.harm.push(what);
        }
    }

    /// No worker leaves in good order while there is work.
    pub(super) fn look_left(&mut self, at: usize, how: &Result<(), Vec<String>>) {
        let is_whole = !self.is_disturbed() && !self.was_severed && !self.is_dynamic;
        if how.is_err() || !is_whole {
            return;
        }
        for (other, actor) in self.actors.iter().enumerate() {
            if actor.has_left.is_none() && !actor.running.is_empty() {
                let what = format!("worker {at} left while worker {other} works");
                self.harm.push(what);
                return;
            }
        }
    }

    /// At rest: every call of a life that goes on has ended, and nothing is kept.
    pub fn look_at_rest(&mut self) {
        for (job, (at, life, _)) in &self.callers {
            let actor = &self.actors[*at];
            let is_there = !actor.is_dead && actor.life == *life;
            if is_there && !self.ended.contains_key(job) {
                self.harm.push(format!("job {job} has no end"));
            }
        }
        for (at, actor) in self.actors.iter().enumerate() {
            if actor.is_dead || actor.has_left.is_some() {
                continue;
            }
            for (other, state) in actor.node.states() {
                let other = &self.actors[usize::from(other)];
                let is_there = !other.is_dead && other.has_left.is_none();
                if is_there && state != Some(other.life) {
                    let (me, life) = (other.node.me(), other.life);
                    self.harm
                        .push(format!("worker {at} does not know {me} in its life {life}"));
                }
            }
            if actor.node.is_anything_out() {
                self.harm
                    .push(format!("worker {at} keeps calls that are over"));
            }
            let counts = actor.node.reference_counts();
            if counts != references::Counts::default() {
                self.harm.push(format!("worker {at} keeps {counts:?}"));
            }
            if !actor.values.is_empty() {
                self.harm
                    .push(format!("worker {at} keeps {:?}", actor.values));
            }
            let seen = actor.node.most_seen();
            if seen > SEEN_MAX {
                self.harm
                    .push(format!("worker {at} remembers {seen} numbers"));
            }
        }
    }
}

impl<P, T> Node<P, T> {
    fn knows(&self, rref: RRefId) -> bool {
        self.references.owns(rref)
    }

    fn is_confirmed(&self, fork: ForkId) -> bool {
        self.references.is_confirmed(fork)
    }

    pub(super) fn life_of(&self, peer: WorkerId) -> Option<u32> {
        self.peers.get(&peer)?.state.life()
    }

    /// How it sees the others.
    pub(super) fn states(&self) -> Vec<(u16, Option<u32>)> {
        let state = |(id, peer): (&WorkerId, &crate::node::Peer<P, T>)| (id.0, peer.state.life());
        self.peers.iter().map(state).collect()
    }

    /// Whether a call or a control message of it is under way.
    fn is_anything_out(&self) -> bool {
        self.peers.values().any(|peer| !peer.out.is_empty())
    }

    /// The most numbers of one peer that are kept.
    fn most_seen(&self) -> usize {
        let kept = self
            .peers
            .values()
            .map(|peer| peer.seen.kept() + peer.refused.len());
        kept.max().unwrap_or(0)
    }
}
