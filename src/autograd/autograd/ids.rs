//! Ids: 64-bit numbers of contexts and of messages: which worker made it, and its counter.
//!
//! The format is that of PyTorch's distributed autograd: 16 bits of the worker above 48 bits of a counter. There a
//! worker id is a signed number in one place and an unsigned one in another; here it is unsigned everywhere.

use std::fmt;

use rendez::ground::{Status, catalogue};
use serde::{Deserialize, Serialize};

/// Bits of the counter.
const COUNTER_BITS: u32 = 48;
/// The largest counter.
pub const COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;

/// A worker of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct WorkerId(pub u16);

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(u64);

        impl $name {
            /// The id of that counter at `worker`. Bits of `counter` above [`COUNTER_MAX`] are cut off.
            #[must_use]
            pub const fn new(worker: WorkerId, counter: u64) -> Self {
                Self(((worker.0 as u64) << COUNTER_BITS) | (counter & COUNTER_MAX))
            }

            /// The worker that made it.
            #[must_use]
            pub const fn worker(self) -> WorkerId {
                WorkerId((self.0 >> COUNTER_BITS) as u16)
            }

            /// Its counter there.
            #[must_use]
            pub const fn counter(self) -> u64 {
                self.0 & COUNTER_MAX
            }

            /// As one number, which is how it travels.
            #[must_use]
            pub const fn to_wire(self) -> u64 {
                self.0
            }

            /// From a number that travelled: every one is an id.
            #[must_use]
            pub const fn from_wire(number: u64) -> Self {
                Self(number)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({}.{})", stringify!($name), self.worker().0, self.counter())
            }
        }
    };
}

id! {
    /// A context: one iteration of a training, across workers.
    ContextId
}
id! {
    /// A call or a reply that tensors crossed by: the id of its send function and of its receive function.
    MessageId
}

/// A backward pass. Its root is the worker that began it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct PassId {
    /// The context that it goes through.
    pub context: ContextId,
    /// The worker that began it.
    pub root: WorkerId,
    /// Which of that worker's passes through the context.
    pub number: u32,
}

impl fmt::Display for PassId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            context,
            root,
            number,
        } = self;
        write!(f, "{number} of worker {} in context {context}", root.0)
    }
}

/// Gives the ids of one worker, each once.
#[derive(Clone, Debug)]
pub(super) struct Counter {
    worker: WorkerId,
    next: u64,
}

impl Counter {
    /// Begins at `next`.
    pub(super) const fn at(worker: WorkerId, next: u64) -> Self {
        Self { worker, next }
    }

    /// What will be given next.
    pub(super) const fn peek(&self) -> u64 {
        self.next
    }

    /// The worker and the next counter.
    pub(super) fn take(&mut self, what: &str) -> Result<(WorkerId, u64), Status> {
        if self.next > COUNTER_MAX {
            let message = format!(
                "worker {} has used all 2^48 ids of {what}: start it again",
                self.worker.0
            );
            return Err(Status::of(catalogue::AUTOGRAD_IDS, message));
        }
        self.next += 1;
        Ok((self.worker, self.next - 1))
    }
}
