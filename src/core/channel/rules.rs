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
    /// A lease is never revoked.
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

impl Rules {
    /// Every rule on: the only setting outside tests.
    pub const ALL: Self = Self(!0);

    /// All but `rule`. Has no effect without debug assertions.
    #[must_use]
    pub const fn without(rule: Rule) -> Self {
        Self(!(1 << rule as u32))
    }

    /// True if `rule` is on.
    #[inline]
    #[must_use]
    pub fn on(self, rule: Rule) -> bool {
        !cfg!(debug_assertions) || (self.0 & (1 << rule as u32) != 0 && !is_broken(rule))
    }
}

/// True for the rule that a build broken on purpose is without.
fn is_broken(rule: Rule) -> bool {
    match rule {
        Rule::RequestedNeedsNoCredit => mutant!("credit_needed_for_requested"),
        Rule::Ordinals => mutant!("ordinals_ignored"),
        Rule::CancelAnswered => mutant!("cancel_unanswered"),
        Rule::WriteSpendsGrant => mutant!("grant_not_spent_by_write"),
        Rule::Quiet => mutant!("landing_freed_at_its_deadline"),
        Rule::LeaseStays => mutant!("lease_reclaimed_on_expiry"),
        Rule::KeptUntilAcknowledged => mutant!("frames_not_kept"),
        Rule::Restarts => mutant!("restart_unnoticed"),
        Rule::Interning => mutant!("interning_unchecked"),
        Rule::AbortTold => mutant!("abort_not_told"),
        Rule::ParksUntilConnected => mutant!("refused_until_connected"),
        Rule::NoOrderBetweenLanes => mutant!("lanes_taken_as_ordered"),
        Rule::LandingBudget => mutant!("landings_unbudgeted"),
        Rule::Duplicates => mutant!("duplicates_delivered"),
        // Seals have a mutant where they are checked; the grace table is asked for by none.
        Rule::Sealed | Rule::Grace => false,
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::ALL
    }
}
