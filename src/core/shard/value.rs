//! What the shard's table holds: values on one side, waiters on the other.

use super::ids::{LinkId, NO_LINK, TaskId};
use crate::channel::{Payload, PushHeard};
use crate::ground::{Region, TensorMeta};
use crate::mail::Received;
use crate::mail::mailbox::bytes_of;
use crate::memory::{Buffer, Tensor};
use crate::trace::Path;
use crate::wire::Ticket;

/// Its bytes are no lease that goes back: no ticket is this number, since a table of offers has fewer places.
pub(crate) const NOT_LENT: u32 = u32::MAX;
/// As [`NOT_LENT`], and its bytes lie in an arena of another engine of this process: no peer of ours can read it.
pub(crate) const NOT_OURS: u32 = u32::MAX - 1;

/// A tensor on its way through a table.
#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) tensor: Tensor,
    pub(crate) is_dead: bool,
    pub(crate) path: Path,
    /// Its trace, if it is timed: see `trace/stages.rs`.
    pub(crate) trace: u16,
    /// Push credit it holds: given back to the link it came by when it is taken.
    pub(crate) lines: u32,
    pub(crate) link: LinkId,
    /// On its way out: the ticket, packed, of the receiver's own offer that it is a lease of.
    pub(crate) lent: u32,
}

const _: () = assert!(
    size_of::<Value>() <= 112,
    "a value is moved through every table"
);

impl Value {
    #[inline]
    pub(crate) const fn local(tensor: Tensor, is_dead: bool) -> Self {
        Self {
            tensor,
            is_dead,
            path: Path::Local,
            trace: 0,
            lines: 0,
            link: NO_LINK,
            lent: NOT_LENT,
        }
    }

    /// Bytes it parks: what its memory holds here. A lease holds none of ours.
    #[inline]
    pub(crate) fn parked_bytes(&self) -> u64 {
        if self.tensor.is_leased() {
            0
        } else {
            bytes_of(&self.tensor)
        }
    }
}

impl Payload for Value {
    #[inline]
    fn meta(&self) -> TensorMeta {
        self.tensor.meta()
    }

    #[inline]
    fn size(&self) -> usize {
        self.tensor.size()
    }

    #[inline]
    fn data(&self) -> Option<&[u8]> {
        self.tensor.host().ok()
    }

    #[inline]
    fn is_dead(&self) -> bool {
        self.is_dead
    }

    #[inline]
    fn region(&self) -> Option<Region> {
        match self.lent {
            NOT_OURS => None,
            _ => self.tensor.region(),
        }
    }

    #[inline]
    fn lent(&self) -> Option<Ticket> {
        (self.lent < NOT_OURS).then(|| Ticket::unpack(self.lent))
    }

    #[inline]
    fn weight(&self) -> u64 {
        self.parked_bytes()
    }
}

/// A waiter in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter {
    /// An in-shard task, with the token it gave.
    Task { task: TaskId, token: u64 },
    /// A waiter of this process outside the shard's tasks: a slot of the shard's waits.
    Wait(Ticket),
    /// The thread that turns the shard and waits meanwhile, of which there is one at most: its outcome lies in the
    /// shard's waits.
    Leader,
    /// A peer's request, kept in the shard's asked-for table.
    Asked(Ticket),
}

/// A value that is all here, and is made only where it goes: each hand that it passed through would copy it.
pub(super) trait Arriving {
    fn received(self) -> Received;

    /// Its bytes, if they are read where they lie with a peer.
    #[inline(always)]
    fn in_place(&self) -> Option<&Tensor> {
        None
    }
}

impl Arriving for Received {
    #[inline(always)]
    fn received(self) -> Self {
        self
    }

    #[inline(always)]
    fn in_place(&self) -> Option<&Tensor> {
        (self.path == Path::Lease).then_some(&self.tensor)
    }
}

/// A value of this shard for a receiver of this shard: its tensor, and whether it is dead.
pub(super) struct Ours(pub(super) Tensor, pub(super) bool);

impl Arriving for Ours {
    #[inline(always)]
    fn received(self) -> Received {
        let Self(tensor, is_dead) = self;
        Received {
            tensor,
            is_dead,
            path: Path::Local,
        }
    }
}

/// A push, and the block that its bytes lie in, unless they are so few that they lie in the handle.
pub(super) struct Pushed<'a> {
    pub(super) push: &'a PushHeard<'a>,
    pub(super) buffer: Option<Buffer>,
}

impl Arriving for Pushed<'_> {
    #[inline(always)]
    fn received(self) -> Received {
        let Self { push, buffer } = self;
        let tensor = match buffer {
            None => Tensor::of_inline(push.meta, push.data),
            Some(buffer) => buffer.finish(push.meta),
        };
        Received {
            tensor,
            is_dead: push.is_dead,
            path: Path::Inline,
        }
    }
}
