//! A backward pass as one worker has it.
//!
//! That all of it is over is found as Dijkstra and Scholten do ("Termination detection for diffusing computations",
//! Information Processing Letters 11, 1980): a worker owes the message that engaged it an answer until it is idle and
//! all its own messages are answered; every other message is answered at once. What PyTorch calls a delayed reply is
//! the same idea, but there a worker that waits for a gradient which never comes holds its reply for ever. Here it
//! answers, and says how many it still waits for: so the root knows that the pass is over, and that it is not complete.
//!
//! The root answers nothing: it is engaged as long as the pass goes on. Each worker counts what it sends there and says
//! the count with its answer, so the root knows what is still to come. That saves an answer, and the worker's wait for
//! it, in each gradient that flows to the root.

use std::collections::{BTreeMap, BTreeSet};

use super::ids::{MessageId, WorkerId};
use super::message::{Input, Options, Standing};
use rendez::ground::Status;

/// What the root is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Not the root.
    Follows,
    /// The workers find out what takes part.
    Marks,
    /// Gradients flow.
    Runs,
}

/// How it stands here.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum State {
    /// Functions may still have to run.
    Open,
    /// All functions have run.
    Complete,
    /// It failed; kept so that latecomers are told.
    Failed(Status),
}

#[derive(Clone, Debug)]
pub(super) struct Pass<G> {
    pub(super) options: Options,
    pub(super) phase: Phase,
    pub(super) state: State,
    /// Root: how many roots; they are given to the engine when gradients begin to flow.
    pub(super) roots: u32,
    /// What gets a gradient is known (fast), or begins to be (smart).
    pub(super) is_begun: bool,
    /// Send functions that will get a gradient.
    pub(super) expected: BTreeSet<MessageId>,
    /// Those of them that have it.
    pub(super) fed: BTreeSet<MessageId>,
    /// Receive functions that have sent theirs.
    pub(super) spent: BTreeSet<MessageId>,
    /// Gradients that the engine has not got yet.
    pub(super) inputs: Vec<Input<G>>,
    /// Questions to the engine that it has not answered.
    pub(super) marking: u32,
    pub(super) is_running: bool,
    /// The message that engaged this worker, and whose it is.
    pub(super) parent: Option<(WorkerId, u64)>,
    /// Messages that are not answered.
    pub(super) unanswered: BTreeSet<(WorkerId, u64)>,
    /// Not the root: how many messages were sent to it, which it does not answer.
    pub(super) told_root: u32,
    /// Root: how many messages came from each worker.
    pub(super) heard: BTreeMap<WorkerId, u32>,
    /// All workers to which or from which a message of this pass went.
    pub(super) peers: BTreeSet<WorkerId>,
    pub(super) standings: BTreeMap<WorkerId, Standing>,
    pub(super) version: u32,
    /// This worker does not know whether the pass has failed, and has said so.
    pub(super) is_doubted: bool,
    /// The root has told its caller.
    pub(super) is_ended: bool,
}

impl<G> Pass<G> {
    pub(super) fn new(options: Options, phase: Phase, roots: u32) -> Self {
        Self {
            options,
            phase,
            state: State::Open,
            roots,
            is_begun: false,
            expected: BTreeSet::new(),
            fed: BTreeSet::new(),
            spent: BTreeSet::new(),
            inputs: vec![],
            marking: 0,
            is_running: false,
            parent: None,
            unanswered: BTreeSet::new(),
            told_root: 0,
            heard: BTreeMap::new(),
            peers: BTreeSet::new(),
            standings: BTreeMap::new(),
            version: 0,
            is_doubted: false,
            is_ended: false,
        }
    }

    /// A pass of which nothing is known but that it failed.
    pub(super) fn failed(error: Status) -> Self {
        Self {
            state: State::Failed(error),
            ..Self::new(Options::default(), Phase::Follows, 0)
        }
    }

    pub(super) fn is_root(&self) -> bool {
        self.phase != Phase::Follows
    }

    /// Nothing is under way here, and nothing that was sent is unanswered.
    pub(super) fn is_idle(&self) -> bool {
        self.marking == 0
            && !self.is_running
            && self.inputs.is_empty()
            && self.unanswered.is_empty()
    }

    /// Root: all that workers said they sent here has come.
    pub(super) fn is_settled(&self, me: WorkerId) -> bool {
        let owes = |worker: &WorkerId| *worker != me && self.owes(*worker);
        !self.standings.keys().any(owes)
    }

    /// Root: something that `worker` sent here has not come.
    fn owes(&self, worker: WorkerId) -> bool {
        let heard = self.heard.get(&worker).copied().unwrap_or(0);
        let sent = self.standings.get(&worker).map(|standing| standing.to_root);
        sent.is_some_and(|sent| sent != heard)
    }

    /// Everything that will run here has run: all that waits for a gradient has it, if that `is_counted`.
    pub(super) fn is_exhausted(&self, is_counted: bool) -> bool {
        let waits_for_roots = self.phase == Phase::Marks;
        self.is_begun
            && self.marking == 0
            && !self.is_running
            && self.inputs.is_empty()
            && !waits_for_roots
            && (self.fed.len() == self.expected.len() || !is_counted)
    }

    /// What it waits for now.
    pub(super) fn standing(&self) -> Standing {
        let left = self.expected.len() - self.fed.len();
        Standing {
            version: self.version,
            outstanding: u32::try_from(left).unwrap_or(u32::MAX),
            example: self.expected.difference(&self.fed).next().copied(),
            to_root: self.told_root,
        }
    }

    /// Takes what another worker tells of workers.
    pub(super) fn merge(&mut self, standings: Vec<(WorkerId, Standing)>) {
        for (worker, standing) in standings {
            let known = self.standings.entry(worker).or_insert(standing);
            *known = standing.max(*known);
        }
    }

    /// True if the death of `worker` keeps the pass from coming to its end here.
    pub(super) fn suffers(&self, worker: WorkerId) -> bool {
        let is_parent = self.parent.is_some_and(|(parent, _)| parent == worker);
        let owes_answer = self
            .unanswered
            .range((worker, 0)..=(worker, u64::MAX))
            .next()
            .is_some();
        let is_needed = self.state == State::Open && self.peers.contains(&worker);
        let owes_message = self.is_root() && self.owes(worker);
        is_parent || owes_answer || owes_message || is_needed
    }

    /// It is over here, and all that is left is the fact.
    pub(super) fn settle_down(&mut self) {
        self.expected.clear();
        self.fed.clear();
        self.spent.clear();
        self.inputs.clear();
    }
}
