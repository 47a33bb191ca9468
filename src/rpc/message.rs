//! Messages between two workers, as values. What a payload is only the driver knows: here it is opaque.

use smol_str::SmolStr;

use crate::id::{CallId, ForkId, RRefId, WorkerId};

/// A message, and the lives of the workers that it is from and for.
#[derive(Clone, PartialEq, Debug)]
pub struct Message<P> {
    /// This life of the sender: never zero.
    pub from_life: u32,
    /// The life of the receiver as the sender knows it, zero if it knows none. A message for another life is dropped.
    pub to_life: u32,
    /// What it says.
    pub body: Body<P>,
}

/// What a message says.
#[derive(Clone, PartialEq, Debug)]
pub enum Body<P> {
    /// "I am here": the first message to each worker of the group, in each life.
    Hello(Hello),
    /// "I have left": nothing follows.
    Leave,
    /// "Your life is over here", and why: none of its calls is answered, and nothing that was under way comes.
    Over(String),
    /// A call of a function.
    Call(Call<P>),
    /// The answer to a call.
    Reply {
        /// The call.
        id: CallId,
        /// How it ended.
        outcome: Outcome<P>,
    },
    /// Something that is repeated until it is acknowledged.
    Control {
        /// Its number, of the same sequence as those of calls.
        id: CallId,
        /// As in [`Call::settled`].
        settled: CallId,
        /// What is asked for.
        control: Control,
    },
    /// The answer to a control message.
    Ack {
        /// The control message.
        id: CallId,
        /// What came of it.
        answer: Answer,
    },
}

impl<P> Body<P> {
    /// True for the end of a life. It is never answered: two that end each other would go on for ever.
    pub(crate) const fn is_last_word(&self) -> bool {
        matches!(self, Self::Leave | Self::Over(_))
    }
}

/// Who a worker is, and which group it means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// A digest of the group's members; zero for a group that grows and shrinks.
    pub roster: u64,
    /// Its name.
    pub name: String,
    /// Its task, as the engine names it.
    pub task: String,
    /// Where its engine can be dialled; empty if it cannot.
    pub address: String,
    /// An answer is wanted: the sender has not heard the receiver yet.
    pub wants_answer: bool,
}

/// A call.
#[derive(Clone, PartialEq, Debug)]
pub struct Call<P> {
    /// Its number.
    pub id: CallId,
    /// All of the sender's calls and control messages to this receiver below this number are over for the sender: what
    /// still comes of them is late, and is dropped.
    pub settled: CallId,
    /// It is to be carried out when that call has ended, and all before that; zero for the first. `None` if it may be
    /// at any time.
    pub after: Option<CallId>,
    /// Nanoseconds that are left until its deadline; `None` for no deadline.
    pub budget: Option<u64>,
    /// What is called.
    pub target: Target,
    /// References among the arguments, in their order.
    pub references: Vec<Reference>,
    /// The arguments.
    pub payload: P,
}

/// What is called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// A function: its result is the answer.
    Function(SmolStr),
    /// A function: its result stays where it is, under this reference.
    Remote {
        /// The function.
        function: SmolStr,
        /// The reference.
        rref: RRefId,
        /// The caller's share of it.
        fork: ForkId,
    },
    /// The value of a reference.
    Fetch(RRefId),
}

/// A reference that travels with a call or a reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reference {
    /// Which.
    pub rref: RRefId,
    /// Where its value is.
    pub owner: WorkerId,
    /// The receiver's share: a new one for each copy that travels.
    pub fork: ForkId,
    /// The sender's share, that is kept alive meanwhile; the reference's own number if the sender is the owner.
    pub parent: ForkId,
    /// How the owner stands to the parent, as far as the sender knows.
    pub standing: Standing,
}

/// How an owner stands to a share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Standing {
    /// It knows it.
    #[default]
    Known,
    /// It has not confirmed it: the creation of the value may be on its way still, and come later than this. It is
    /// asked of that life of the owner; zero if that has not been met.
    Early(u32),
    /// There is no value any more.
    Gone,
}

/// How a call ended.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome<P> {
    /// With a result.
    Value {
        /// The result.
        payload: P,
        /// References in it, in their order.
        references: Vec<Reference>,
    },
    /// With a failure.
    Fault(Fault),
}

listed! {
    /// What a failure is. Numbers are the wire's.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[repr(u8)]
    pub enum FaultKind {
        /// The function returned an error.
        Error = 0,
        /// The call's time was over before it began.
        Timeout = 1,
        /// The caller gave it up.
        Cancelled = 2,
        /// The function panicked.
        Panic = 3,
        /// There is no such function.
        Function = 4,
        /// The arguments are not of the function's types.
        Arguments = 5,
        /// Too many calls wait.
        Busy = 6,
        /// The worker shuts down.
        Shutdown = 7,
        /// A reference names no value.
        Reference = 8,
    }
}

/// A failure as it travels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Of what kind.
    pub kind: FaultKind,
    /// What happened.
    pub message: String,
    /// What caused it, the nearest first.
    pub causes: Vec<String>,
    /// Where it happened, if that was captured.
    pub backtrace: String,
}

impl Fault {
    /// A failure without cause or backtrace.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            causes: Vec::new(),
            backtrace: String::new(),
        }
    }
}

/// What is asked for by a control message. Each may be carried out twice and has the effect of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// The caller is through with this call without an answer: do not begin it.
    Cancel(CallId),
    /// The caller has the answer of this call, and all references in it are confirmed.
    Took(CallId),
    /// The sender's share of a reference ends.
    Delete {
        /// The reference.
        rref: RRefId,
        /// The share.
        fork: ForkId,
    },
    /// The sender has a share of a reference that another user gave it.
    Fork {
        /// The reference.
        rref: RRefId,
        /// The share.
        fork: ForkId,
        /// The life of the owner that was asked for the value, if it has not confirmed that: see [`Standing::Early`].
        early: Option<u32>,
    },
    /// Shutdown: are you at rest?
    Probe,
    /// Shutdown: all workers are at rest, leave.
    Proceed,
}

/// The answer to a control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Done, now or before.
    Done,
    /// To [`Control::Cancel`]: that call never arrived, and never will be carried out.
    Unseen,
    /// To [`Control::Fork`]: there is no such value any more.
    Gone,
    /// To [`Control::Probe`].
    Rest(Rest),
}

/// What a worker says of its work when it is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rest {
    /// It wants to leave, and has nothing outstanding.
    pub is_idle: bool,
    /// How many calls and control messages it has ever sent or carried out: the same number twice is no work between.
    pub activity: u64,
}
