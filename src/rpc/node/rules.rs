//! Rules of a worker, by name, and a switch for each that only tests can turn.
//!
//! In a release build every rule is always on and the switches cost nothing. With debug assertions a world can turn one
//! off, and must then see the harm that the rule prevents (`tests/seeds.rs`).

/// A rule of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Rule {
    /// A call that comes again is not carried out again.
    CallsCountOnce,
    /// What is over for a peer is remembered by one number, not one by one.
    MarkSettles,
    /// A caller that gives up says so until it is answered.
    CancelTold,
    /// A call that comes after its cancel is not carried out.
    CancelRemembered,
    /// Control messages are repeated until they are acknowledged.
    ControlRepeated,
    /// A message of or for another life is dropped.
    LivesCompared,
    /// A life that is over does not begin again.
    PastLives,
    /// Identities of one life are not those of another.
    IdsOfALife,
    /// Calls of a worker that is gone end.
    DeathEndsCalls,
    /// What a worker that is gone has called is stopped.
    DeathStopsServing,
    /// Shares of a worker that is gone end, and shares of its values.
    DeathEndsShares,
    /// A call whose answer waits for confirmations ends at its deadline.
    ConfirmingEnds,
    /// At most so many calls are under way to one worker.
    Window,
    /// At most so many calls of one worker are carried out or wait for it.
    ServingBound,
    /// A call is not begun after its deadline.
    DeadlineAtServer,
    /// The owner is told when a share ends (G1).
    DeleteTold,
    /// A share stays as long as a child of it is not known to the owner (G2).
    ParentKept,
    /// The owner knows a share before it sends it.
    EarlyFork,
    /// A share that was sent and never arrives ends.
    LostCarrierForgotten,
    /// A function runs when all its references are confirmed, and not before.
    ConfirmedBeforeRun,
    /// A share that was deleted before it was made is not made.
    Tombstones,
    /// A value may be used before its creation has come.
    EarlyExpected,
    /// Who asks for a value before it is made gets it when it is.
    FetchWaits,
    /// A callee is told when references in its answer are confirmed.
    TookTold,
    /// All workers are at rest twice, with nothing done between, before any leaves.
    TwoRounds,
    /// A shutdown ends at its deadline, whatever is outstanding.
    ShutdownDeadline,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::CallsCountOnce,
        Self::MarkSettles,
        Self::CancelTold,
        Self::CancelRemembered,
        Self::ControlRepeated,
        Self::LivesCompared,
        Self::PastLives,
        Self::IdsOfALife,
        Self::DeathEndsCalls,
        Self::DeathStopsServing,
        Self::DeathEndsShares,
        Self::ConfirmingEnds,
        Self::Window,
        Self::ServingBound,
        Self::DeadlineAtServer,
        Self::DeleteTold,
        Self::ParentKept,
        Self::EarlyFork,
        Self::LostCarrierForgotten,
        Self::ConfirmedBeforeRun,
        Self::Tombstones,
        Self::EarlyExpected,
        Self::FetchWaits,
        Self::TookTold,
        Self::TwoRounds,
        Self::ShutdownDeadline,
    ];
}

/// Which rules are on: all of them, but in a world that shows what one is for.
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
        !cfg!(debug_assertions) || self.0 & (1 << rule as u32) != 0
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::ALL
    }
}
