//! The sixteen rules of the peer protocol, by name, and a switch for each that only tests can turn.
//!
//! In a release build every rule is always on and the switches cost nothing; with debug assertions a simulation
//! can turn one off and must then see the harm the rule prevents.

/// A rule of the peer protocol. The numbers are those of `ARCHITECTURE.md`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Rule {
    /// A requested value needs no push credit.
    RequestedNeedsNoCredit = 1,
    /// Values of one key keep the order their ordinals give.
    Ordinals = 2,
    /// A cancel is always answered.
    CancelAnswered = 3,
    /// A request with a landing grants the receive entry that its write consumes.
    WriteSpendsGrant = 4,
    /// A landing comes home only when its fabric says it is quiet.
    Quiet = 5,
    /// A lease is taken back by nobody.
    LeaseStays = 6,
    /// Shared descriptors are sealed, and checked before they are mapped.
    Sealed = 7,
    /// Frames are kept until the peer's acknowledgement covers them, and repeated on a new connection.
    KeptUntilAcknowledged = 8,
    /// What is bound to an incarnation fails when the peer comes back as another.
    Restarts = 9,
    /// Intern tables are bounded, carry generations, and start empty with every connection.
    Interning = 10,
    /// An abort is told to every peer with anything pending.
    AbortTold = 11,
    /// A frame never makes a step beyond the bounded grace table.
    Grace = 12,
    /// A value for a peer that is not connected yet parks until it is.
    ParksUntilConnected = 13,
    /// Nothing is concluded from the order of two lanes.
    NoOrderBetweenLanes = 14,
    /// Landings are budgeted.
    LandingBudget = 15,
    /// An ordinal that was consumed is never delivered again.
    Duplicates = 16,
}

/// Which rules are on: all of them, but in a simulation that shows what one is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules(u32);

macro_rules! broken {
    ($($rule:ident = $mutant:tt,)*) => {
        $((cfg!(rendez_mutant = $mutant) as u32) << Rule::$rule as u32)|*
    };
}

/// The rule that a build broken on purpose is without (`scripts/mutants.sh`); none in any other build.
const BROKEN: u32 = broken! {
    RequestedNeedsNoCredit = "credit_needed_for_requested",
    Ordinals = "ordinals_ignored",
    CancelAnswered = "cancel_unanswered",
    WriteSpendsGrant = "grant_not_spent_by_write",
    Quiet = "landing_freed_at_its_deadline",
    LeaseStays = "lease_reclaimed_on_expiry",
    KeptUntilAcknowledged = "frames_not_kept",
    Restarts = "restart_unnoticed",
    Interning = "interning_unchecked",
    AbortTold = "abort_not_told",
    ParksUntilConnected = "refused_until_connected",
    NoOrderBetweenLanes = "lanes_taken_as_ordered",
    LandingBudget = "landings_unbudgeted",
    Duplicates = "duplicates_delivered",
};

impl Rules {
    /// Every rule on: the only setting outside tests.
    pub const ALL: Self = Self(!BROKEN);

    /// All but `rule`. Has no effect without debug assertions.
    #[must_use]
    pub const fn without(rule: Rule) -> Self {
        Self(!BROKEN & !(1 << rule as u32))
    }

    /// True if `rule` is on.
    #[inline]
    #[must_use]
    pub const fn on(self, rule: Rule) -> bool {
        !cfg!(debug_assertions) || self.0 & (1 << rule as u32) != 0
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::ALL
    }
}
