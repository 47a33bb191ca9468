//! The sixteen rules of the peer protocol, by name, and a switch for each that only tests can turn.
//!
//! With debug assertions a simulation can turn one off ([`mutant`](crate::mutant)) and must then see the harm that the
//! rule prevents.

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

/// Which of them are on.
pub type Rules = crate::mutant::Rules<Rule>;

impl crate::mutant::NamedRule for Rule {
    fn number(self) -> u32 {
        self as u32
    }

    fn is_broken(self) -> bool {
        match self {
            Self::RequestedNeedsNoCredit => mutant!("credit_needed_for_requested"),
            Self::Ordinals => mutant!("ordinals_ignored"),
            Self::CancelAnswered => mutant!("cancel_unanswered"),
            Self::WriteSpendsGrant => mutant!("grant_not_spent_by_write"),
            Self::Quiet => mutant!("landing_freed_at_its_deadline"),
            Self::LeaseStays => mutant!("lease_reclaimed_on_expiry"),
            Self::KeptUntilAcknowledged => mutant!("frames_not_kept"),
            Self::Restarts => mutant!("restart_unnoticed"),
            Self::Interning => mutant!("interning_unchecked"),
            Self::AbortTold => mutant!("abort_not_told"),
            Self::Grace => mutant!("frames_make_steps"),
            Self::ParksUntilConnected => mutant!("refused_until_connected"),
            Self::NoOrderBetweenLanes => mutant!("lanes_taken_as_ordered"),
            Self::LandingBudget => mutant!("landings_unbudgeted"),
            Self::Duplicates => mutant!("duplicates_delivered"),
            // Seals have a mutant where they are checked.
            Self::Sealed => false,
        }
    }
}
