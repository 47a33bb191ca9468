//! Rules of a worker, by name, and a switch for each that only tests can turn.
//!
//! With debug assertions a world can turn one off, and must then see the harm that the rule prevents
//! (`tests/seeds.rs`).

rules! {
    /// A rule of a worker.
    pub enum Rule {
        /// A call that comes again is not carried out again.
        CallsCountOnce => mutant!("rpc_calls_repeated"),
        /// What is over for a peer is remembered by one number, not one by one.
        MarkSettles => mutant!("rpc_mark_ignored"),
        /// A caller that gives up says so until it is answered.
        CancelTold => mutant!("rpc_cancel_untold"),
        /// A call that comes after its cancel is not carried out.
        CancelRemembered => mutant!("rpc_cancel_forgotten"),
        /// Control messages are repeated until they are acknowledged.
        ControlRepeated => mutant!("rpc_control_sent_once"),
        /// A message of or for another life is dropped.
        LivesCompared => mutant!("rpc_lives_ignored"),
        /// A life that is over does not begin again.
        PastLives => mutant!("rpc_past_lives_forgotten"),
        /// Identities of one life are not those of another.
        IdsOfALife => mutant!("rpc_ids_of_any_life"),
        /// Calls of a worker that is gone end.
        DeathEndsCalls => mutant!("rpc_death_ends_no_call"),
        /// What a worker that is gone has called is stopped.
        DeathStopsServing => mutant!("rpc_death_stops_nothing"),
        /// Shares of a worker that is gone end, and shares of its values.
        DeathEndsShares => mutant!("rpc_death_ends_no_share"),
        /// A call whose answer waits for confirmations ends at its deadline.
        ConfirmingEnds => mutant!("rpc_confirming_endless"),
        /// At most so many calls are under way to one worker.
        Window => mutant!("rpc_window_unbounded"),
        /// At most so many calls of one worker are carried out or wait for it.
        ServingBound => mutant!("rpc_serving_unbounded"),
        /// A call is not begun after its deadline.
        DeadlineAtServer => mutant!("rpc_deadline_unknown_to_server"),
        /// The owner is told when a share ends (G1).
        DeleteTold => mutant!("rpc_delete_untold"),
        /// A share stays as long as a child of it is not known to the owner (G2).
        ParentKept => mutant!("rpc_parent_dropped"),
        /// The owner knows a share before it sends it.
        EarlyFork => mutant!("rpc_fork_unregistered"),
        /// A share that was sent and never arrives ends.
        LostCarrierForgotten => mutant!("rpc_lost_fork_kept"),
        /// A function runs when all its references are confirmed, and not before.
        ConfirmedBeforeRun => mutant!("rpc_unconfirmed_run"),
        /// A share that was deleted before it was made is not made.
        Tombstones => mutant!("rpc_tombstones_forgotten"),
        /// A value may be used before its creation has come.
        EarlyExpected => mutant!("rpc_early_use_refused"),
        /// A value that another life of its owner was to make is not waited for.
        EarlyOfItsLife => mutant!("rpc_early_of_any_life"),
        /// Who is given a share of what is no more hears so.
        GoneTold => mutant!("rpc_gone_untold"),
        /// Who asks for a value before it is made gets it when it is.
        FetchWaits => mutant!("rpc_fetch_does_not_wait"),
        /// Who asks for a value that is never made hears so.
        UnmadeTold => mutant!("rpc_unmade_untold"),
        /// What concerns a worker that is not met yet waits until it is.
        UnmetAwaited => mutant!("rpc_unmet_taken_for_lost"),
        /// A callee is told when references in its answer are confirmed.
        TookTold => mutant!("rpc_took_untold"),
        /// All workers are at rest twice, with nothing done between, before any leaves.
        TwoRounds => mutant!("rpc_one_round"),
        /// A shutdown ends at its deadline, whatever is outstanding.
        ShutdownDeadline => mutant!("rpc_shutdown_deadline_ignored"),
    }
}
