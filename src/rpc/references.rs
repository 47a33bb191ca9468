//! Remote references: who has a share of which value, and when a value may go. Pure: it knows no messages, only what
//! they carry.
//!
//! The owner keeps a value as long as it knows of a *share* (fork) of it. Two promises, those of PyTorch's "Remote
//! Reference Protocol":
//!
//! * **G1**: the owner is told when a user's share ends ([`Control::Delete`], repeated until it is acknowledged).
//! * **G2**: a share stays as long as a child of it is not known to the owner.
//!
//! A share travels in a *carrier*: a call or a reply. Its sender pins what it sends until the carrier is *settled*: it
//! arrived and all shares in it are confirmed, or it did not and never will. So no control message confirms a child to
//! its parent, and a carrier that is lost leaves no share behind. What a worker had goes with it.

mod losses;
mod report;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rendez::ground::Nanos;

use crate::id::{CallId, ForkId, RRefId, WorkerId};
use crate::message::{Control, Reference, Standing};
use crate::node::{Rule, Rules};
pub use report::{Counts, Listed};

/// Deleted shares that are remembered at most: a creation that comes later than the deletion is known by them.
pub const TOMBSTONES_MAX: usize = 1 << 16;

/// A message that carries references.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Carrier {
    /// The other worker.
    pub peer: WorkerId,
    /// The call.
    pub id: CallId,
    /// The call's answer, and not the call.
    pub is_reply: bool,
}

/// Whether a value is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// It is.
    Ready,
    /// It is asked for again when it is.
    Later,
    /// It was there and is no more, or is never made.
    Gone,
}

/// What follows from an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReferenceEvent {
    /// Tell this worker.
    Tell(WorkerId, Control),
    /// Tell this worker, in its next life if need be.
    Warn(WorkerId, Control),
    /// No worker has a share of this value of ours.
    Release(RRefId),
    /// This call may ask again for the value that it waits for.
    Ask(WorkerId, CallId),
    /// One more of the references of this carrier is confirmed, or gone.
    Confirmed(Carrier),
}

/// A value of ours.
#[derive(Debug, Default)]
struct Owned {
    is_made: bool,
    /// A worker has asked for it: no other call may.
    is_asked: bool,
    forks: BTreeMap<ForkId, WorkerId>,
    /// Handles of this worker's program.
    handles: usize,
    /// Carriers from this worker to itself.
    pins: usize,
    /// Calls that ask for the value before it is there.
    wanted: Vec<(WorkerId, CallId)>,
    /// When it was first heard of.
    since: Nanos,
}

/// Where a share of a value elsewhere stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Share {
    /// The owner has not said that it knows it. The carrier waits for that.
    Pending(Option<Carrier>),
    /// We asked for the value to be made, gave up waiting, and do not know whether the owner was asked.
    Doubtful,
    /// The owner knows it.
    Confirmed,
    /// The owner is told that it ends.
    Deleting,
    /// There is no value any more.
    Gone,
}

#[derive(Debug)]
struct User {
    /// When it was first heard of.
    since: Nanos,
    /// The life of the owner that was asked for the value, as who gave us the share says, if the owner had not
    /// confirmed it.
    asked_of: Option<u32>,
    rref: RRefId,
    owner: WorkerId,
    share: Share,
    is_held: bool,
    pins: usize,
}

/// What a worker knows of references.
#[derive(Debug)]
pub struct References {
    me: WorkerId,
    owned: BTreeMap<RRefId, Owned>,
    users: BTreeMap<ForkId, User>,
    carried: BTreeMap<Carrier, Vec<Reference>>,
    /// By holder, so that no worker can bury another's; and by ourselves, values of ours
    /// that were let go, or are never made.
    buried: BTreeSet<(WorkerId, ForkId)>,
    burials: VecDeque<(WorkerId, ForkId)>,
    /// Calls that ask for a value whose creation has not come yet.
    early: BTreeMap<RRefId, Vec<(WorkerId, CallId)>>,
    events: VecDeque<ReferenceEvent>,
    pub(crate) rules: Rules,
    /// This life of the worker.
    life: u32,
    now: Nanos,
}

impl References {
    /// Of the worker `me` in that life.
    #[must_use]
    pub const fn new(me: WorkerId, life: u32) -> Self {
        Self {
            me,
            owned: BTreeMap::new(),
            users: BTreeMap::new(),
            carried: BTreeMap::new(),
            buried: BTreeSet::new(),
            burials: VecDeque::new(),
            early: BTreeMap::new(),
            events: VecDeque::new(),
            rules: Rules::ALL,
            life,
            now: Nanos::ZERO,
        }
    }

    /// What follows next.
    pub fn poll(&mut self) -> Option<ReferenceEvent> {
        self.events.pop_front()
    }

    /// This program asks `owner` to make a value: its share is pending until the owner has answered.
    pub fn create(&mut self, rref: RRefId, fork: ForkId, owner: WorkerId) {
        let share = Share::Pending(None);
        let user = User {
            since: self.now,
            asked_of: None,
            rref,
            owner,
            share,
            is_held: true,
            pins: 0,
        };
        self.users.insert(fork, user);
    }

    /// This program makes a value of its own, for which it holds a handle; `is_made` if it is there already.
    pub fn create_owned(&mut self, rref: RRefId, is_made: bool) {
        let owned = self.own(rref);
        (owned.is_made, owned.is_asked) = (is_made, true);
        owned.handles += 1;
    }

    /// The owner has answered: it knows the share.
    pub fn creation_confirmed(&mut self, fork: ForkId) {
        self.set_share(fork, Share::Confirmed);
    }

    /// We gave up waiting for the answer of the call, and ask the owner whether it has seen it.
    pub fn creation_in_doubt(&mut self, fork: ForkId) {
        self.set_share(fork, Share::Doubtful);
    }

    /// Another worker asks for a value to be made here. False if its share was deleted before, or if the identity is
    /// another's or is taken: then nothing is made.
    pub fn creation_asked(&mut self, from: WorkerId, rref: RRefId, fork: ForkId) -> bool {
        if from == self.me {
            // Its handle was counted when it asked; it may be gone by now, and then only the call kept it.
            if !self.owned.contains_key(&rref) {
                return false;
            }
        } else if rref.on != from || self.buried.contains(&(from, fork)) {
            return false;
        } else {
            let owned = self.own(rref);
            if owned.is_made || owned.is_asked {
                return false;
            }
            owned.is_asked = true;
            owned.forks.insert(fork, from);
        }
        if let Some(early) = self.early.remove(&rref)
            && let Some(owned) = self.owned.get_mut(&rref)
        {
            owned.wanted.extend(early);
        }
        if from == self.me {
            self.unpin_owned(rref);
        }
        true
    }

    /// A value of ours is there: the calls that wait for it. `None` if no worker has a share of it any more.
    pub fn made(&mut self, rref: RRefId) -> Option<Vec<(WorkerId, CallId)>> {
        let Some(owned) = self.owned.get_mut(&rref) else {
            self.never_made(rref);
            return None;
        };
        owned.is_made = true;
        Some(std::mem::take(&mut owned.wanted))
    }

    /// A call asks for a value of ours.
    pub fn want(&mut self, rref: RRefId, call: (WorkerId, CallId)) -> Wanted {
        if !self.rules.on(Rule::FetchWaits) {
            return Wanted::Ready;
        }
        match self.owned.get_mut(&rref) {
            Some(owned) if owned.is_made => return Wanted::Ready,
            _ if self.buried.contains(&(self.me, rref)) => return Wanted::Gone,
            Some(owned) => owned.wanted.push(call),
            // Only who asks for it to be made has a share before this worker knows of it.
            None if call.0 != rref.on || call.0 == self.me => return Wanted::Gone,
            None => self.early.entry(rref).or_default().push(call),
        }
        Wanted::Later
    }

    /// It does not ask any more.
    pub fn unwant(&mut self, rref: RRefId, call: (WorkerId, CallId)) {
        if let Some(owned) = self.owned.get_mut(&rref) {
            owned.wanted.retain(|other| *other != call);
        }
        if let Some(early) = self.early.get_mut(&rref) {
            early.retain(|other| *other != call);
            if early.is_empty() {
                self.early.remove(&rref);
            }
        }
    }

    /// References are about to set out: their parents stay until [`References::unpin`].
    pub fn pin(&mut self, references: &[Reference]) {
        for reference in references {
            if reference.owner == self.me {
                self.pin_owned(reference.rref);
            } else if let Some(user) = self.users.get_mut(&reference.parent) {
                user.pins += 1;
            }
        }
    }

    /// A value of ours stays until [`References::unpin_owned`], or until the call of ours that makes it has come.
    pub fn pin_owned(&mut self, rref: RRefId) {
        if let Some(owned) = self.owned.get_mut(&rref) {
            owned.pins += 1;
        }
    }

    /// It need not stay any more, for one of those who pinned it.
    pub fn unpin_owned(&mut self, rref: RRefId) {
        if let Some(owned) = self.owned.get_mut(&rref) {
            owned.pins = owned.pins.saturating_sub(1);
        }
        self.sweep_owned(rref);
    }

    /// They have set out, and are carried; or they never will.
    pub fn unpin(&mut self, references: &[Reference]) {
        for reference in references {
            if reference.owner != self.me {
                if let Some(user) = self.users.get_mut(&reference.parent) {
                    user.pins = user.pins.saturating_sub(1);
                }
                self.sweep_user(reference.parent);
            } else {
                self.unpin_owned(reference.rref);
            }
        }
    }

    /// References set out: their parents stay until the carrier is settled.
    pub fn carry(&mut self, carrier: Carrier, references: &[Reference]) {
        let keeps = self.rules.on(Rule::ParentKept);
        let registers = self.rules.on(Rule::EarlyFork);
        for reference in references {
            if reference.owner != self.me {
                if let (Some(user), true) = (self.users.get_mut(&reference.parent), keeps) {
                    user.pins += 1;
                }
            } else if let Some(owned) = self.owned.get_mut(&reference.rref) {
                match carrier.peer == self.me {
                    true => owned.pins += 1,
                    // Known before it is sent: no message of its receiver can come sooner.
                    false if registers => {
                        owned.forks.insert(reference.fork, carrier.peer);
                    }
                    false => {}
                }
            }
        }
        self.carried.insert(carrier, references.to_vec());
    }

    /// A carrier has arrived and all in it is confirmed, or it never will arrive.
    pub fn settle(&mut self, carrier: Carrier, has_arrived: bool) {
        for reference in self.carried.remove(&carrier).unwrap_or_default() {
            if reference.owner != self.me {
                if let Some(user) = self.users.get_mut(&reference.parent) {
                    user.pins = user.pins.saturating_sub(1);
                }
                self.sweep_user(reference.parent);
                continue;
            }
            if let Some(owned) = self.owned.get_mut(&reference.rref) {
                if carrier.peer == self.me {
                    owned.pins = owned.pins.saturating_sub(1);
                } else if !has_arrived && self.rules.on(Rule::LostCarrierForgotten) {
                    owned.forks.remove(&reference.fork);
                }
            }
            self.sweep_owned(reference.rref);
        }
    }

    /// References have arrived, for each of which the program is to get a handle. How many are not confirmed yet.
    pub fn arrive(&mut self, carrier: Carrier, references: &[Reference]) -> usize {
        let mut left = 0;
        for reference in references {
            if reference.owner == self.me {
                if let Standing::Early(life) = reference.standing {
                    self.expect(reference.rref, life);
                }
                // If there is none, it is not usable.
                if let Some(owned) = self.owned.get_mut(&reference.rref) {
                    owned.handles += 1;
                }
                continue;
            }
            // No correct worker gives one share to two.
            if self.users.contains_key(&reference.fork) {
                continue;
            }
            let is_known = reference.owner == carrier.peer;
            let share = match reference.standing {
                Standing::Gone if self.rules.on(Rule::GoneTold) => Share::Gone,
                _ if is_known => Share::Confirmed,
                _ => Share::Pending(Some(carrier)),
            };
            let (rref, owner) = (reference.rref, reference.owner);
            let early = match reference.standing {
                Standing::Early(life) => Some(life),
                Standing::Known | Standing::Gone => None,
            };
            self.users.insert(
                reference.fork,
                User {
                    since: self.now,
                    asked_of: early,
                    rref,
                    owner,
                    share,
                    is_held: true,
                    pins: 0,
                },
            );
            if matches!(share, Share::Pending(_)) {
                left += usize::from(self.rules.on(Rule::ConfirmedBeforeRun));
                let fork = reference.fork;
                let control = Control::Fork { rref, fork, early };
                self.events.push_back(ReferenceEvent::Tell(owner, control));
            }
        }
        left
    }

    /// Whether a reference that has arrived names a value.
    #[must_use]
    pub fn is_usable(&self, reference: &Reference) -> bool {
        match reference.owner == self.me {
            true => self.owned.contains_key(&reference.rref),
            false => self
                .users
                .get(&reference.fork)
                .is_some_and(|user| user.share != Share::Gone),
        }
    }

    /// The program gets no handles of references that have arrived.
    pub fn abandon(&mut self, references: &[Reference]) {
        for reference in references {
            match reference.owner == self.me {
                true => self.drop_owned(reference.rref),
                false => self.drop_user(reference.fork),
            }
        }
    }

    /// The program has dropped its last handle of a share.
    pub fn drop_user(&mut self, fork: ForkId) {
        if let Some(user) = self.users.get_mut(&fork) {
            user.is_held = false;
        }
        self.sweep_user(fork);
    }

    /// The program has dropped a handle of a value of its own.
    pub fn drop_owned(&mut self, rref: RRefId) {
        if let Some(owned) = self.owned.get_mut(&rref) {
            owned.handles = owned.handles.saturating_sub(1);
        }
        self.sweep_owned(rref);
    }

    /// A user's share of a value of ours ends. One that is not known is remembered: its creation may be on its way.
    pub fn delete(&mut self, from: WorkerId, rref: RRefId, fork: ForkId) {
        let owned = self.owned.get_mut(&rref);
        let is_known = owned.is_some_and(|owned| {
            let is_known = owned.forks.get(&fork) == Some(&from);
            if is_known {
                owned.forks.remove(&fork);
            }
            is_known
        });
        if self.rules.on(Rule::Tombstones) {
            self.bury((from, fork));
        }
        if is_known {
            self.sweep_owned(rref);
        } else if rref.on == from && !self.owned.get(&rref).is_some_and(|owned| owned.is_asked) {
            // It was to ask for the value, and will not.
            self.never_made(rref);
        }
    }

    fn bury(&mut self, share: (WorkerId, ForkId)) {
        if !self.buried.insert(share) {
            return;
        }
        self.burials.push_back(share);
        if self.burials.len() > TOMBSTONES_MAX
            && let Some(oldest) = self.burials.pop_front()
        {
            self.buried.remove(&oldest);
        }
    }

    /// A user says that another has given it a share of a value of ours. False if there is no such value. A repeated
    /// question changes nothing.
    pub fn fork_asked(
        &mut self,
        from: WorkerId,
        (rref, fork): (RRefId, ForkId),
        early: Option<u32>,
        is_new: bool,
    ) -> bool {
        let is_buried = self.buried.contains(&(from, fork));
        if let (Some(life), true) = (early, is_new && !is_buried) {
            self.expect(rref, life);
        }
        let Some(owned) = self.owned.get_mut(&rref) else {
            return false;
        };
        if is_new && !is_buried {
            // A share that another worker has stays with that.
            owned.forks.entry(fork).or_insert(from);
        }
        owned.forks.get(&fork) == Some(&from)
    }

    /// The owner has answered whether it knows our share now.
    pub fn fork_answered(&mut self, fork: ForkId, is_known: bool) {
        self.set_share(
            fork,
            if is_known {
                Share::Confirmed
            } else {
                Share::Gone
            },
        );
    }

    /// The owner has heard that our share ends.
    pub fn deleted(&mut self, fork: ForkId) {
        if self
            .users
            .get(&fork)
            .is_some_and(|user| user.share == Share::Deleting)
        {
            self.users.remove(&fork);
        }
    }

    /// A value of ours that is used before its creation has come: its user's share is held until this one is known, so
    /// it will come, unless it is lost or its user dies. Of one that another life of ours was asked for it will not.
    fn expect(&mut self, rref: RRefId, life: u32) {
        let is_of_another = life != 0 && life != self.life && self.rules.on(Rule::EarlyOfItsLife);
        if is_of_another || !self.rules.on(Rule::EarlyExpected) {
            return;
        }
        let early = self.early.remove(&rref).unwrap_or_default();
        self.own(rref).wanted.extend(early);
    }

    /// Says of references that set out how their owners stand to their parents; `life_of` says in which life a worker
    /// is, zero for one that has not been met.
    pub fn mark(&self, references: &mut [Reference], life_of: impl Fn(WorkerId) -> u32) {
        for reference in references {
            let owner = reference.owner;
            reference.standing = match self.users.get(&reference.parent) {
                // One of our own that a former life of ours had.
                None if owner == self.me && !self.owned.contains_key(&reference.rref) => {
                    Standing::Gone
                }
                None => Standing::Known,
                // What we have asked for ourselves we have asked the life that we know.
                Some(user) => match user.share {
                    Share::Pending(_) | Share::Doubtful => {
                        Standing::Early(user.asked_of.unwrap_or_else(|| life_of(owner)))
                    }
                    Share::Confirmed | Share::Deleting => Standing::Known,
                    Share::Gone => Standing::Gone,
                },
            };
        }
    }

    fn set_share(&mut self, fork: ForkId, share: Share) {
        let Some(user) = self.users.get_mut(&fork) else {
            return;
        };
        if matches!(user.share, Share::Deleting | Share::Gone) {
            return;
        }
        let was = std::mem::replace(&mut user.share, share);
        if let Share::Pending(Some(carrier)) = was {
            self.events.push_back(ReferenceEvent::Confirmed(carrier));
        }
        self.sweep_user(fork);
    }

    /// The share ends, if neither the program nor a child needs it and the owner knows it.
    fn sweep_user(&mut self, fork: ForkId) {
        let Some(user) = self.users.get_mut(&fork) else {
            return;
        };
        if user.is_held || user.pins > 0 {
            return;
        }
        match user.share {
            Share::Pending(_) | Share::Doubtful | Share::Deleting => {}
            Share::Confirmed => {
                user.share = Share::Deleting;
                let control = Control::Delete {
                    rref: user.rref,
                    fork,
                };
                let owner = user.owner;
                match self.rules.on(Rule::DeleteTold) {
                    true => self.events.push_back(ReferenceEvent::Tell(owner, control)),
                    false => drop(self.users.remove(&fork)),
                }
            }
            Share::Gone => {
                self.users.remove(&fork);
            }
        }
    }

    fn sweep_owned(&mut self, rref: RRefId) {
        let Some(owned) = self.owned.get(&rref) else {
            return;
        };
        if owned.forks.is_empty() && owned.handles == 0 && owned.pins == 0 {
            let owned = self.owned.remove(&rref).unwrap_or_default();
            // One that is not made may have its creation on its way.
            if owned.is_made {
                self.bury((self.me, rref));
            }
            let asks = |(from, call)| ReferenceEvent::Ask(from, call);
            self.events.extend(owned.wanted.into_iter().map(asks));
            self.events.push_back(ReferenceEvent::Release(rref));
        }
    }
}
