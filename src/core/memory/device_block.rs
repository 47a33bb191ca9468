//! A block of a device's arena, as a tensor keeps it.
//!
//! Knows its name and its home; nothing here reads a byte of it.

use super::block::Block;
use super::home::Handle;
use super::{DeviceMemory, DevicePtr, House};
use crate::ground::Region;

/// Memory of a device's arena. Dropped on any thread, it goes home to its pool: made a tensor by
/// [`Tensor::from_device`](super::Tensor::from_device), with the tensor's last clone.
#[derive(Debug)]
pub struct DeviceBlock {
    place: DevicePtr,
    block: Handle<Block>,
}

impl DeviceBlock {
    pub(super) const fn new(place: DevicePtr, block: Handle<Block>) -> Self {
        Self { place, block }
    }

    /// What others call it.
    #[must_use]
    pub fn region(&self) -> Region {
        Region {
            kind: self.place.kind,
            ..self.block.node().region(self.place.size as usize)
        }
    }
}

impl DeviceMemory for DeviceBlock {
    fn place(&self) -> DevicePtr {
        self.place
    }

    fn region(&self) -> Option<Region> {
        Some(Self::region(self))
    }

    fn house(&self) -> Option<House> {
        Some(self.block.node().house())
    }
}
