//! What a worker says of its references: what is held, what is under way, how many there are.

use rendez::ground::Nanos;

use super::{Owned, References, Share, User};
use crate::id::{ForkId, RRefId, WorkerId};

impl References {
    /// What is done from now on is done at `now`, as far as reports tell since when a reference is there.
    pub const fn at(&mut self, now: Nanos) {
        self.now = now;
    }

    /// A value of ours: it may be new.
    pub(super) fn own(&mut self, rref: RRefId) -> &mut Owned {
        let since = self.now;
        self.owned.entry(rref).or_insert_with(|| Owned {
            since,
            ..Owned::default()
        })
    }

    /// True if that is a value of ours that a worker has a share of.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn owns(&self, rref: RRefId) -> bool {
        self.owned.contains_key(&rref)
    }

    /// True if that is a value of ours that is there.
    #[must_use]
    pub fn is_made(&self, rref: RRefId) -> bool {
        self.owned.get(&rref).is_some_and(|owned| owned.is_made)
    }

    /// True if the owner knows that share of ours.
    #[must_use]
    pub fn is_confirmed(&self, fork: ForkId) -> bool {
        self.users
            .get(&fork)
            .is_some_and(|user| user.share == Share::Confirmed)
    }

    /// True if that share of ours names no value any more.
    #[must_use]
    pub fn is_gone(&self, fork: ForkId) -> bool {
        self.users
            .get(&fork)
            .is_some_and(|user| user.share == Share::Gone)
    }

    /// True if nothing of it is under way: no share is pending or ending, and no carrier is out.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        let is_settled = |user: &User| matches!(user.share, Share::Confirmed | Share::Gone);
        self.carried.is_empty() && self.users.values().all(is_settled)
    }

    /// What the program still holds, by name: as `UserRRef(RRefId=…, ForkId=…)`.
    #[must_use]
    pub fn held(&self) -> Vec<String> {
        let users = self.users.iter().filter(|(_, user)| user.is_held);
        let users =
            users.map(|(fork, user)| format!("UserRRef(RRefId={}, ForkId={fork})", user.rref));
        let owned = self.owned.iter().filter(|(_, owned)| owned.handles > 0);
        users
            .chain(owned.map(|(rref, _)| format!("OwnerRRef({rref})")))
            .collect()
    }

    /// All of them that are there: in a word, by name, where the value is, and since when.
    pub fn shares(&self) -> impl Iterator<Item = (&'static str, String, WorkerId, Nanos)> {
        let users = self.users.iter().filter_map(|(fork, user)| {
            let what = match user.share {
                Share::Pending(_) => "pending reference",
                Share::Doubtful => "reference in doubt",
                Share::Confirmed => "reference",
                Share::Deleting => "reference that ends",
                Share::Gone => return None,
            };
            let name = format!("UserRRef(RRefId={}, ForkId={fork})", user.rref);
            Some((what, name, user.owner, user.since))
        });
        let owned = self.owned.iter().map(|(rref, owned)| {
            let what = match owned.is_made {
                true => "value",
                false => "value that is not made",
            };
            (what, format!("OwnerRRef({rref})"), self.me, owned.since)
        });
        users.chain(owned)
    }

    /// All that is known of references here: values of ours first, then shares of values elsewhere.
    #[must_use]
    pub fn listed(&self) -> Vec<Listed> {
        let owned = self.owned.iter().map(|(&rref, owned)| Listed {
            rref,
            owner: self.me,
            fork: None,
            state: if owned.is_made { "made" } else { "expected" },
            handles: owned.handles,
            carriers: owned.pins,
            forks: owned
                .forks
                .iter()
                .map(|(&fork, &user)| (fork, user))
                .collect(),
            since: owned.since,
        });
        let users = self.users.iter().map(|(&fork, user)| Listed {
            rref: user.rref,
            owner: user.owner,
            fork: Some(fork),
            state: match user.share {
                Share::Pending(_) => "pending",
                Share::Doubtful => "in doubt",
                Share::Confirmed => "confirmed",
                Share::Deleting => "ending",
                Share::Gone => "gone",
            },
            handles: usize::from(user.is_held),
            carriers: user.pins,
            forks: Vec::new(),
            since: user.since,
        });
        owned.chain(users).collect()
    }

    /// As PyTorch counts them: owned values, pending users, forks of our values, all shares of values elsewhere.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let is_pending = |user: &&User| matches!(user.share, Share::Pending(_) | Share::Doubtful);
        Counts {
            owners: self.owned.len(),
            pending_futures: self.owned.values().filter(|owned| !owned.is_made).count(),
            pending_users: self.users.values().filter(is_pending).count(),
            forks: self.owned.values().map(|owned| owned.forks.len()).sum(),
            users: self.users.len(),
            carriers: self.carried.len(),
        }
    }
}

/// A value of ours, or a share of a value elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The reference.
    pub rref: RRefId,
    /// Where its value is.
    pub owner: WorkerId,
    /// Our share; `None` for a value of ours.
    pub fork: Option<ForkId>,
    /// Where it stands: for people.
    pub state: &'static str,
    /// Handles that this program holds.
    pub handles: usize,
    /// Messages that carry it and are not settled.
    pub carriers: usize,
    /// Shares that others have of a value of ours.
    pub forks: Vec<(ForkId, WorkerId)>,
    /// Since when it is known here.
    pub since: Nanos,
}

/// How many references there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Values of ours.
    pub owners: usize,
    /// Of them, those that are not there yet.
    pub pending_futures: usize,
    /// Shares of values elsewhere that the owner has not confirmed.
    pub pending_users: usize,
    /// Shares that others have of our values.
    pub forks: usize,
    /// Shares of values elsewhere.
    pub users: usize,
    /// Messages with references that are not settled.
    pub carriers: usize,
}
