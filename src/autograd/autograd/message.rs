//! Messages: what workers tell each other of contexts and passes, beside the calls that tensors cross by.
//!
//! Each has a number of its own for each pair of workers, so that a repeat is known as one. They may overtake each
//! other.

use super::ids::{ContextId, MessageId, PassId, WorkerId};
use rendez::ground::Status;
use serde::{Deserialize, Serialize};

/// How a pass learns what each worker has to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Mode {
    /// Each worker waits for a gradient of every send function of the context, as PyTorch does. Costs no message, and
    /// ends in an error that names the functions if one of them takes no part in the pass: what was sent was not used,
    /// or only where no gradient flows, as by `StopGradient` and `FloorDiv`.
    Fast,
    /// The workers find out first which functions take part. At most two small messages, a question and its answer,
    /// for each gradient that will cross; none is sent in vain. The root answers none.
    Smart,
}

/// How a pass is run, the same at every worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Options {
    /// What each worker waits for.
    pub mode: Mode,
    /// Keep the functions that ran, for another pass.
    pub retain: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::Smart,
            retain: false,
        }
    }
}

/// What rides with a call or a reply that is made inside a context.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Envelope {
    /// The context it belongs to.
    pub context: ContextId,
    /// Its own id.
    pub message: MessageId,
    /// For each of its tensors: whether gradients are wanted of it.
    pub requires: Vec<bool>,
}

impl Envelope {
    /// True if one of its tensors wants gradients, so that it has a send function.
    #[must_use]
    pub fn has_function(&self) -> bool {
        self.requires.contains(&true)
    }
}

/// An input of a send function, which is an output of the receive function of that message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Port {
    /// The message.
    pub message: MessageId,
    /// Which of its tensors.
    pub index: u16,
}

/// What a worker still waits for in a pass, as of its `version`th engagement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Standing {
    /// Counts up, so that the latest is known whatever order they come in.
    pub version: u32,
    /// How many send functions have no gradient yet.
    pub outstanding: u32,
    /// One of them.
    pub example: Option<MessageId>,
    /// How many messages it has sent to the root, in all its engagements.
    pub to_root: u32,
}

/// What is between a worker and another until it loses it: then it forgets all of it, and another session begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Session {
    /// The worker's life: no two of its lives have the same, as far as their ids do not.
    pub life: u64,
    /// How often it has lost the other in this life.
    pub losses: u32,
}

/// A message to another worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Message<G> {
    /// The sender's session.
    pub from: Session,
    /// The receiver's, as far as the sender knows. What is for one that is over is refused.
    pub to: Option<Session>,
    /// Its number among those from this worker to that one in their sessions, from 1.
    pub number: u64,
    /// What it says.
    pub body: Body<G>,
}

/// What a message says. `G` is a gradient.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Body<G> {
    /// The sender holds the receiver's context, which came to it through another worker.
    Joined {
        /// The context.
        context: ContextId,
    },
    /// The context's creator has released it.
    Release {
        /// The context.
        context: ContextId,
        /// The creator's contexts with a smaller counter are released too, all of them.
        oldest: u64,
    },
    /// These send functions of the receiver's will get a gradient in the pass.
    Mark {
        /// The pass.
        pass: PassId,
        /// How it is run.
        options: Options,
        /// What will get one.
        ports: Vec<Port>,
    },
    /// The gradients for one send function of the receiver's.
    Gradient {
        /// The pass.
        pass: PassId,
        /// How it is run.
        options: Options,
        /// The function.
        message: MessageId,
        /// One for each of its tensors; none where nothing flows back.
        gradients: Vec<Option<G>>,
    },
    /// All that followed from the receiver's message `of` is done.
    Ack {
        /// The pass.
        pass: PassId,
        /// The message's number.
        of: u64,
        /// What workers wait for, as far as the sender was told and has not told on.
        standings: Vec<(WorkerId, Standing)>,
    },
    /// The pass has failed.
    Fail {
        /// The pass.
        pass: PassId,
        /// Why.
        #[serde(with = "super::codec::status")]
        error: Status,
    },
    /// The sender has taken part in the pass, and lost another that does: has the pass failed? The root knows.
    Doubt {
        /// The pass.
        pass: PassId,
    },
    /// The sender has lost the receiver meanwhile, and forgotten what was between them.
    Forgot,
}

impl<G> Message<G> {
    /// The same with what `each` makes of its gradients.
    pub(super) fn with<H, E>(self, each: impl FnMut(G) -> Result<H, E>) -> Result<Message<H>, E> {
        Ok(Message {
            from: self.from,
            to: self.to,
            number: self.number,
            body: self.body.with(each)?,
        })
    }
}

impl<G> Body<G> {
    fn with<H, E>(self, mut each: impl FnMut(G) -> Result<H, E>) -> Result<Body<H>, E> {
        Ok(match self {
            Self::Gradient {
                pass,
                options,
                message,
                gradients,
            } => {
                let gradients = gradients
                    .into_iter()
                    .map(|one| one.map(&mut each).transpose());
                Body::Gradient {
                    pass,
                    options,
                    message,
                    gradients: gradients.collect::<Result<_, _>>()?,
                }
            }
            Self::Joined { context } => Body::Joined { context },
            Self::Release { context, oldest } => Body::Release { context, oldest },
            Self::Mark {
                pass,
                options,
                ports,
            } => Body::Mark {
                pass,
                options,
                ports,
            },
            Self::Ack {
                pass,
                of,
                standings,
            } => Body::Ack {
                pass,
                of,
                standings,
            },
            Self::Fail { pass, error } => Body::Fail { pass, error },
            Self::Doubt { pass } => Body::Doubt { pass },
            Self::Forgot => Body::Forgot,
        })
    }

    /// How many gradients it brings.
    pub(crate) fn gradients(&self) -> usize {
        match self {
            Self::Gradient { gradients, .. } => gradients.iter().flatten().count(),
            _ => 0,
        }
    }

    /// The context it is about; that of number 0 if it is about none.
    #[must_use]
    pub const fn context(&self) -> ContextId {
        match self {
            Self::Forgot => ContextId::from_wire(0),
            Self::Joined { context } | Self::Release { context, .. } => *context,
            Self::Mark { pass, .. }
            | Self::Gradient { pass, .. }
            | Self::Ack { pass, .. }
            | Self::Doubt { pass }
            | Self::Fail { pass, .. } => pass.context,
        }
    }
}

/// What the owner of the machine has to do next.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect<G> {
    /// Bring the message to that worker, once or more often.
    Send {
        /// To whom.
        to: WorkerId,
        /// What.
        message: Message<G>,
    },
    /// Let the local engine find what gradients of `starts` flow to, beside what it found before for this pass, and
    /// tell [`Autograd::handle_marked`](super::Autograd::handle_marked).
    Mark {
        /// The pass.
        pass: PassId,
        /// Where gradients come in.
        starts: Vec<Start>,
    },
    /// Let the local engine take these gradients, run what is ready, and tell
    /// [`Autograd::handle_ran`](super::Autograd::handle_ran).
    Run {
        /// The pass.
        pass: PassId,
        /// What came in.
        inputs: Vec<Input<G>>,
    },
    /// All functions of the pass have run here.
    Finish {
        /// The pass.
        pass: PassId,
        /// Keep them for another pass.
        retain: bool,
    },
    /// The pass has failed: forget what is kept for it. It may be running; what it then reports is ignored.
    Discard {
        /// The pass.
        pass: PassId,
    },
    /// The context is released: forget its functions.
    Forget {
        /// The context.
        context: ContextId,
    },
    /// A pass that began here is over.
    Ended {
        /// The pass.
        pass: PassId,
        /// How.
        result: Result<(), Status>,
    },
}

/// Where gradients come in at a worker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Start {
    /// A root of the pass, by its place among them.
    Root(u32),
    /// An input of a send function.
    Send(Port),
}

/// A gradient that came in at a worker.
#[derive(Clone, PartialEq, Debug)]
pub enum Input<G> {
    /// A root of the pass, by its place among them: its gradient is one, or what was given for it.
    Root(u32),
    /// Those of a send function.
    Send {
        /// The function.
        message: MessageId,
        /// One for each of its tensors.
        gradients: Vec<Option<G>>,
    },
}
