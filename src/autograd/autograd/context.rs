//! A context as one worker has it: the functions that its calls recorded, the workers it knows, and its passes.

use std::collections::{BTreeMap, BTreeSet};

use super::ids::{MessageId, PassId, WorkerId};
use super::pass::Pass;

/// What was sent from here.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    /// The receiver, who alone may say what flows back.
    pub(super) to: WorkerId,
    /// Which of the message's tensors gradients are wanted of.
    pub(super) requires: Vec<bool>,
}

/// A context here.
#[derive(Clone, Debug)]
pub(super) struct Context<G> {
    /// Who was called from here, or called.
    pub(super) known: BTreeSet<WorkerId>,
    /// At the creator: those who said that they hold it.
    pub(super) holders: BTreeSet<WorkerId>,
    pub(super) sends: BTreeMap<MessageId, Sent>,
    /// What came here, and from whom.
    pub(super) receives: BTreeMap<MessageId, WorkerId>,
    pub(super) passes: BTreeMap<PassId, Pass<G>>,
    /// Gradients of leaves, by pass: so those of a pass that fails can be taken back, and their sum does not depend on
    /// which pass was quicker.
    pub(super) gradients: BTreeMap<PassId, BTreeMap<u64, G>>,
}

impl<G> Default for Context<G> {
    fn default() -> Self {
        Self {
            known: BTreeSet::new(),
            holders: BTreeSet::new(),
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            passes: BTreeMap::new(),
            gradients: BTreeMap::new(),
        }
    }
}
