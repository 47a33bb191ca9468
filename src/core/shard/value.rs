//! What the shard's table holds: values on one side, those who wait on the other.

use super::faults;
use super::ids::{LinkId, NO_LINK, TaskId};
use super::mailbox::bytes_of;
use crate::channel::Payload;
use crate::ground::{Region, Status, TensorMeta};
use crate::memory::strings::Strings;
use crate::memory::{Element, Tensor};
use crate::rendezvous::Origin;
use crate::wire::Ticket;

/// Its bytes are no lease that goes back: no ticket is this number, since a table of offers has fewer places.
pub(crate) const NOT_LENT: u32 = u32::MAX;

/// A tensor on its way through a table.
#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) tensor: Tensor,
    pub(crate) is_dead: bool,
    pub(crate) path: Path,
    /// Its trace, if it is timed: see `stages.rs`.
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
    pub(crate) const fn local(tensor: Tensor, is_dead: bool, trace: u16) -> Self {
        Self {
            tensor,
            is_dead,
            path: Path::Local,
            trace,
            lines: 0,
            link: NO_LINK,
            lent: NOT_LENT,
        }
    }

    /// Bytes it parks: what its memory holds here. A lease holds none of ours.
    #[inline]
    pub(crate) fn parked_bytes(&self) -> u64 {
        bytes_of(&self.tensor)
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
        self.tensor.region()
    }

    #[inline]
    fn lent(&self) -> Option<Ticket> {
        (self.lent != NOT_LENT).then(|| Ticket::unpack(self.lent))
    }

    #[inline]
    fn weight(&self) -> u64 {
        self.parked_bytes()
    }
}

/// The way a value came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Path {
    /// Within this process: the very tensor that was sent.
    Local,
    /// In a frame.
    Inline,
    /// Read in place: in the sender's memory, or in ours if the sender had it from here.
    Lease,
    /// Written into memory of ours.
    Copy,
}

/// What a receive gives: the tensor, and whether it is dead.
#[derive(Clone, Debug)]
pub struct Received {
    /// The tensor.
    pub tensor: Tensor,
    /// True for a dead value: the tensor is what the sender sent with it, often empty.
    pub is_dead: bool,
    /// The way it came.
    pub path: Path,
}

/// What the value is, if it is alive: each refuses a dead one with `VALUE_DEAD`.
impl Received {
    /// The tensor.
    ///
    /// # Errors
    /// `FailedPrecondition` (`VALUE_DEAD`) for a dead value.
    pub fn alive(&self) -> Result<&Tensor, Status> {
        if self.is_dead {
            return Err(faults::dead_value());
        }
        Ok(&self.tensor)
    }

    /// Its elements, in row-major order.
    ///
    /// # Errors
    /// As [`Received::alive`] and [`Tensor::as_slice`].
    pub fn as_slice<T: Element>(&self) -> Result<&[T], Status> {
        Ok(self.alive()?.as_slice()?)
    }

    /// A copy of its elements, in row-major order.
    ///
    /// # Errors
    /// As [`Received::as_slice`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Status> {
        Ok(self.alive()?.to_vec()?)
    }

    /// Its one element, whatever its rank.
    ///
    /// # Errors
    /// As [`Received::alive`] and [`Tensor::item`].
    pub fn item<T: Element>(&self) -> Result<T, Status> {
        Ok(self.alive()?.item()?)
    }

    /// Copies its bytes to the beginning of `room`, and tells how many they are. Also those of a dead value, which may
    /// have none.
    ///
    /// # Errors
    /// `RECV_ROOM` if `room` is too short, `TENSOR_DEVICE` as with [`Tensor::host`]: nothing was copied.
    pub fn copy_into(&self, room: &mut [u8]) -> Result<usize, Status> {
        let (bytes, len) = (self.tensor.host()?, room.len());
        room.get_mut(..bytes.len())
            .ok_or_else(|| faults::room_short(bytes.len(), len))?
            .copy_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Its strings.
    ///
    /// # Errors
    /// As [`Received::alive`] and [`Tensor::strings`].
    pub fn strings(&self) -> Result<Strings<'_>, Status> {
        Ok(self.alive()?.strings()?)
    }
}

/// A value on its way from the table to who waited, and where it goes back if he does not read it.
#[derive(Debug)]
pub struct Handed {
    /// What it is.
    pub received: Received,
    pub(crate) from: Origin,
}

/// Who waits in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter {
    /// An in-shard task, with the token it gave.
    Task { task: TaskId, token: u64 },
    /// Somebody of this process who waits elsewhere: a slot of the shard's waits.
    Wait(Ticket),
    /// A peer's request, kept in the shard's asked-for table.
    Asked(Ticket),
}
