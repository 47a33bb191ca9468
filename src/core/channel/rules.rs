//! The sixteen rules of the peer protocol, by name, and a switch for each that only tests can turn.
//!
//! With debug assertions a simulation can turn one off ([`mutant`](crate::mutant)) and must then see the harm that the
//! rule prevents.

rules! {
    /// A rule of the peer protocol. The numbers are those of `ARCHITECTURE.md`.
    pub enum Rule {
        /// A requested value needs no push credit.
        RequestedNeedsNoCredit = 1 => mutant!("credit_needed_for_requested"),
        /// Values of one key keep the order their ordinals give.
        Ordinals = 2 => mutant!("ordinals_ignored"),
        /// A cancel is always answered.
        CancelAnswered = 3 => mutant!("cancel_unanswered"),
        /// A request with a landing grants the receive entry that its write consumes.
        WriteSpendsGrant = 4 => mutant!("grant_not_spent_by_write"),
        /// A landing comes home only when its fabric says it is quiet.
        Quiet = 5 => mutant!("landing_freed_at_its_deadline"),
        /// A lease is never revoked.
        LeaseStays = 6 => mutant!("lease_reclaimed_on_expiry"),
        /// Shared descriptors are sealed, and checked before they are mapped.
        // It has a mutant where seals are checked.
        Sealed = 7 => false,
        /// Frames are kept until the peer's acknowledgement covers them, and repeated on a new connection.
        KeptUntilAcknowledged = 8 => mutant!("frames_not_kept"),
        /// What is bound to an incarnation fails when the peer comes back as another.
        Restarts = 9 => mutant!("restart_unnoticed"),
        /// Intern tables are bounded, carry generations, and start empty with every connection.
        Interning = 10 => mutant!("interning_unchecked"),
        /// An abort is told to every peer with anything pending.
        AbortTold = 11 => mutant!("abort_not_told"),
        /// A frame never makes a step beyond the bounded grace table.
        Grace = 12 => mutant!("frames_make_steps"),
        /// A value for a peer that is not connected yet parks until it is.
        ParksUntilConnected = 13 => mutant!("refused_until_connected"),
        /// Nothing is concluded from the order of two lanes.
        NoOrderBetweenLanes = 14 => mutant!("lanes_taken_as_ordered"),
        /// Landings are budgeted.
        LandingBudget = 15 => mutant!("landings_unbudgeted"),
        /// An ordinal that was consumed is never delivered again.
        Duplicates = 16 => mutant!("duplicates_delivered"),
    }
}
