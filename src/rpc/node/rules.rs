//! Rules of a worker, by name, and a switch for each that only tests can turn.
//!
//! With debug assertions a world can turn one off, and must then see the harm that the rule prevents
//! (`tests/seeds.rs`).

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
    /// A value that another life of its owner was to make is not waited for.
    EarlyOfItsLife,
    /// Who is given a share of what is no more hears so.
    GoneTold,
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
    pub const ALL: [Self; 30] = [
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
        Self::EarlyOfItsLife,
        Self::GoneTold,
        Self::FetchWaits,
        Self::UnmadeTold,
        Self::UnmetAwaited,
        Self::TookTold,
        Self::TwoRounds,
        Self::ShutdownDeadline,
    ];
}

impl rendez_core::mutant::NamedRule for Rule {
    fn number(self) -> u32 {
        self as u32
    }

    fn is_broken(self) -> bool {
        match self {
            Self::CallsCountOnce => mutant!("rpc_calls_repeated"),
            Self::MarkSettles => mutant!("rpc_mark_ignored"),
            Self::CancelTold => mutant!("rpc_cancel_untold"),
            Self::CancelRemembered => mutant!("rpc_cancel_forgotten"),
            Self::ControlRepeated => mutant!("rpc_control_sent_once"),
            Self::LivesCompared => mutant!("rpc_lives_ignored"),
            Self::PastLives => mutant!("rpc_past_lives_forgotten"),
            Self::IdsOfALife => mutant!("rpc_ids_of_any_life"),
            Self::DeathEndsCalls => mutant!("rpc_death_ends_no_call"),
            Self::DeathStopsServing => mutant!("rpc_death_stops_nothing"),
            Self::DeathEndsShares => mutant!("rpc_death_ends_no_share"),
            Self::ConfirmingEnds => mutant!("rpc_confirming_endless"),
            Self::Window => mutant!("rpc_window_unbounded"),
            Self::ServingBound => mutant!("rpc_serving_unbounded"),
            Self::DeadlineAtServer => mutant!("rpc_deadline_unknown_to_server"),
            Self::DeleteTold => mutant!("rpc_delete_untold"),
            Self::ParentKept => mutant!("rpc_parent_dropped"),
            Self::EarlyFork => mutant!("rpc_fork_unregistered"),
            Self::LostCarrierForgotten => mutant!("rpc_lost_fork_kept"),
            Self::ConfirmedBeforeRun => mutant!("rpc_unconfirmed_run"),
            Self::Tombstones => mutant!("rpc_tombstones_forgotten"),
            Self::EarlyExpected => mutant!("rpc_early_use_refused"),
            Self::EarlyOfItsLife => mutant!("rpc_early_of_any_life"),
            Self::GoneTold => mutant!("rpc_gone_untold"),
            Self::FetchWaits => mutant!("rpc_fetch_does_not_wait"),
            Self::UnmadeTold => mutant!("rpc_unmade_untold"),
            Self::UnmetAwaited => mutant!("rpc_unmet_taken_for_lost"),
            Self::TookTold => mutant!("rpc_took_untold"),
            Self::TwoRounds => mutant!("rpc_one_round"),
            Self::ShutdownDeadline => mutant!("rpc_shutdown_deadline_ignored"),
        }
    }
}

/// Which of them are on.
pub type Rules = rendez_core::mutant::Rules<Rule>;
