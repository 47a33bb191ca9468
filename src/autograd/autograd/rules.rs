//! Rules of the machine, by name, and a switch for each that only tests can turn.
//!
//! With debug assertions a world can turn one off, and must then see the harm that the rule prevents
//! (`tests/seeds.rs`).

rules! {
    /// A rule of the machine.
    pub(super) enum MachineRule {
        /// A message that comes again is ignored.
        MessagesCountOnce => mutant!("autograd_messages_repeated"),
        /// Who comes to hold a context through another worker says so to its creator.
        JoinedTold => mutant!("autograd_joined_untold"),
        /// All holders are told that a context is released.
        ReleaseTold => mutant!("autograd_release_untold"),
        /// A call that comes after the release does not bring the context back.
        ReleaseRemembered => mutant!("autograd_release_forgotten"),
        /// Contexts of a worker that is dead are released.
        DeathReleases => mutant!("autograd_death_releases_nothing"),
        /// Passes that need a worker that is dead fail.
        DeathFailsPasses => mutant!("autograd_death_fails_nothing"),
        /// A worker is through when every function that will get a gradient has it.
        DependenciesCounted => mutant!("autograd_dependencies_uncounted"),
        /// The message that engages a worker is answered when all that follows from it is done.
        AnswerDelayed => mutant!("autograd_answered_at_once"),
        /// The root waits for all that workers said they sent to it.
        RootCounts => mutant!("autograd_root_counts_nothing"),
        /// A failure is told to all who take part.
        FailTold => mutant!("autograd_fail_untold"),
        /// Gradients of a pass that failed do not count.
        FailedTakenBack => mutant!("autograd_failed_gradients_kept"),
        /// What was sent and did not come fails the pass that needs it.
        UndeliveredFails => mutant!("autograd_undelivered_ignored"),
        /// Who has taken part in a pass and loses another that does asks the root whether it failed.
        DoubtAsked => mutant!("autograd_doubt_unasked"),
        /// Who holds a context and cannot tell its creator so releases it.
        UntoldReleases => mutant!("autograd_untold_holder_kept"),
        /// Who has lost another says so when it is there again, and the other forgets what was between them too.
        SessionsCompared => mutant!("autograd_sessions_ignored"),
    }
}
