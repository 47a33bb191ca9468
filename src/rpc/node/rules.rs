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
    /// Who asks for a value that is never made hears so.
    UnmadeTold,
    /// What concerns a worker that is not met yet waits until it is.
    UnmetAwaited,
    /// A callee is told when references in its answer are confirmed.
    TookTold,
    /// All workers are at rest twice, with nothing done between, before any leaves.
    TwoRounds,
    /// A shutdown ends at its deadline, whatever is outstanding.
    ShutdownDeadline,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 28] = [
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
        Self::UnmadeTold,
        Self::UnmetAwaited,
        Self::TookTold,
        Self::TwoRounds,
        Self::ShutdownDeadline,
    ];
}

/// True for the rule that a build broken on purpose is without.
fn is_broken(rule: Rule) -> bool {
    match rule {
        Rule::CallsCountOnce => mutant!("rpc_calls_repeated"),
        Rule::MarkSettles => mutant!("rpc_mark_ignored"),
        Rule::CancelTold => mutant!("rpc_cancel_untold"),
        Rule::CancelRemembered => mutant!("rpc_cancel_forgotten"),
        Rule::ControlRepeated => mutant!("rpc_control_sent_once"),
        Rule::LivesCompared => mutant!("rpc_lives_ignored"),
        Rule::PastLives => mutant!("rpc_past_lives_forgotten"),
        Rule::IdsOfALife => mutant!("rpc_ids_of_any_life"),
        Rule::DeathEndsCalls => mutant!("rpc_death_ends_no_call"),
        Rule::DeathStopsServing => mutant!("rpc_death_stops_nothing"),
        Rule::DeathEndsShares => mutant!("rpc_death_ends_no_share"),
        Rule::ConfirmingEnds => mutant!("rpc_confirming_endless"),
        Rule::Window => mutant!("rpc_window_unbounded"),
        Rule::ServingBound => mutant!("rpc_serving_unbounded"),
        Rule::DeadlineAtServer => mutant!("rpc_deadline_unknown_to_server"),
        Rule::DeleteTold => mutant!("rpc_delete_untold"),
        Rule::ParentKept => mutant!("rpc_parent_dropped"),
        Rule::EarlyFork => mutant!("rpc_fork_unregistered"),
        Rule::LostCarrierForgotten => mutant!("rpc_lost_fork_kept"),
        Rule::ConfirmedBeforeRun => mutant!("rpc_unconfirmed_run"),
        Rule::Tombstones => mutant!("rpc_tombstones_forgotten"),
        Rule::EarlyExpected => mutant!("rpc_early_use_refused"),
        Rule::FetchWaits => mutant!("rpc_fetch_does_not_wait"),
        Rule::UnmadeTold => mutant!("rpc_unmade_untold"),
        Rule::UnmetAwaited => mutant!("rpc_unmet_taken_for_lost"),
        Rule::TookTold => mutant!("rpc_took_untold"),
        Rule::TwoRounds => mutant!("rpc_one_round"),
        Rule::ShutdownDeadline => mutant!("rpc_shutdown_deadline_ignored"),
    }
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
        !cfg!(debug_assertions) || (self.0 & (1 << rule as u32) != 0 && !is_broken(rule))
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::ALL
    }
}
