//! Deliveries: what a receive gives.

use crate::ground::{Status, faults};
use crate::memory::strings::Strings;
use crate::memory::{Element, Tensor};
use crate::rendezvous::Origin;
use crate::trace::Path;

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

/// A value on its way from the table to its receiver, and where it goes back if it is not read.
#[derive(Debug)]
pub struct Handed {
    /// What it is.
    pub received: Received,
    pub(crate) from: Origin,
}
