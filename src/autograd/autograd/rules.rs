//! Rules of the machine, by name, and a switch for each that only tests can turn.
//!
//! With debug assertions a world can turn one off, and must then see the harm that the rule prevents
//! (`tests/seeds.rs`).

/// A rule of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(super) enum MachineRule {
    /// A message that comes again is ignored.
    MessagesCountOnce,
    /// Who comes to hold a context through another worker says so to its creator.
    JoinedTold,
    /// All holders are told that a context is released.
    ReleaseTold,
    /// A call that comes after the release does not bring the context back.
    ReleaseRemembered,
    /// Contexts of a worker that is dead are released.
    DeathReleases,
    /// Passes that need a worker that is dead fail.
    DeathFailsPasses,
    /// A worker is through when every function that will get a gradient has it.
    DependenciesCounted,
    /// The message that engages a worker is answered when all that follows from it is done.
    AnswerDelayed,
    /// The root waits for all that workers said they sent to it.
    RootCounts,
    /// A failure is told to all who take part.
    FailTold,
    /// Gradients of a pass that failed do not count.
    FailedTakenBack,
    /// What was sent and did not come fails the pass that needs it.
    UndeliveredFails,
    /// Who has taken part in a pass and loses another that does asks the root whether it failed.
    DoubtAsked,
    /// Who holds a context and cannot tell its creator so releases it.
    UntoldReleases,
    /// Who has lost another says so when it is there again, and the other forgets what was between them too.
    SessionsCompared,
}

impl MachineRule {
    /// All of them.
    #[cfg(all(test, debug_assertions))]
    pub(super) const ALL: [Self; 15] = [
        Self::MessagesCountOnce,
        Self::JoinedTold,
        Self::ReleaseTold,
        Self::ReleaseRemembered,
        Self::DeathReleases,
        Self::DeathFailsPasses,
        Self::DependenciesCounted,
        Self::AnswerDelayed,
        Self::RootCounts,
        Self::FailTold,
        Self::FailedTakenBack,
        Self::UndeliveredFails,
        Self::DoubtAsked,
        Self::UntoldReleases,
        Self::SessionsCompared,
    ];
}

impl rendez_core::mutant::NamedRule for MachineRule {
    fn number(self) -> u32 {
        self as u32
    }

    fn is_broken(self) -> bool {
        match self {
            Self::MessagesCountOnce => mutant!("autograd_messages_repeated"),
            Self::JoinedTold => mutant!("autograd_joined_untold"),
            Self::ReleaseTold => mutant!("autograd_release_untold"),
            Self::ReleaseRemembered => mutant!("autograd_release_forgotten"),
            Self::DeathReleases => mutant!("autograd_death_releases_nothing"),
            Self::DeathFailsPasses => mutant!("autograd_death_fails_nothing"),
            Self::DependenciesCounted => mutant!("autograd_dependencies_uncounted"),
            Self::AnswerDelayed => mutant!("autograd_answered_at_once"),
            Self::RootCounts => mutant!("autograd_root_counts_nothing"),
            Self::FailTold => mutant!("autograd_fail_untold"),
            Self::FailedTakenBack => mutant!("autograd_failed_gradients_kept"),
            Self::UndeliveredFails => mutant!("autograd_undelivered_ignored"),
            Self::DoubtAsked => mutant!("autograd_doubt_unasked"),
            Self::UntoldReleases => mutant!("autograd_untold_holder_kept"),
            Self::SessionsCompared => mutant!("autograd_sessions_ignored"),
        }
    }
}

/// Which of them are on.
pub(super) type Rules = rendez_core::mutant::Rules<MachineRule>;
