//! Foreign memory: what a tensor keeps of memory that is not the engine's, and how its owner gets it back.
//!
//! Knows nothing of its readers. A tensor drops it with its last clone; that drop is the release, so it comes once.

use bytes::Bytes;

use super::element::{self, Element};
use super::{DeviceMemory, DevicePtr, House, Readiness, Tensor};
use crate::ground::{Region, TensorMeta};

/// Memory that is not the engine's, as a tensor keeps it.
pub(super) trait Foreign: Send + Sync {
    /// Where it lies, if that is not in the host's memory.
    fn device(&self) -> Option<DevicePtr>;

    /// When its bytes are there.
    fn readiness(&self) -> Readiness<'_> {
        Readiness::Ready
    }

    /// What peers call it, if they can import it.
    fn region(&self) -> Option<Region> {
        None
    }

    /// The engine whose peers do.
    fn house(&self) -> Option<House> {
        None
    }
}

impl Foreign for Bytes {
    fn device(&self) -> Option<DevicePtr> {
        None
    }
}

/// A device's memory.
pub(super) struct OnDevice<M>(pub(super) M);

impl<M: DeviceMemory> Foreign for OnDevice<M> {
    fn device(&self) -> Option<DevicePtr> {
        Some(self.0.place())
    }

    fn readiness(&self) -> Readiness<'_> {
        self.0.readiness()
    }

    fn region(&self) -> Option<Region> {
        self.0.region()
    }

    fn house(&self) -> Option<House> {
        self.0.house()
    }
}

/// A vector seen as the bytes of its elements, for `Bytes` to keep.
pub(super) struct VectorBytes<T>(pub(super) Vec<T>);

impl<T: Element> AsRef<[u8]> for VectorBytes<T> {
    fn as_ref(&self) -> &[u8] {
        element::bytes_of(&self.0)
    }
}

impl Tensor {
    /// A tensor of a copy of `bytes` on the heap, as many as `meta` takes and aligned for every element.
    pub(crate) fn on_heap(meta: TensorMeta, bytes: &[u8]) -> Self {
        let words = bytes.chunks(8).map(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(word)
        });
        let kept = VectorBytes(words.collect::<Vec<_>>());
        Self::keeping(meta, Bytes::from_owner(kept).slice(..bytes.len()))
    }
}

/// Memory of the host, which goes back to its owner by a hook.
pub(super) struct Lent<O, R: FnOnce(O)>(Option<(O, R)>);

impl<O: AsRef<[u8]>, R: FnOnce(O)> Lent<O, R> {
    pub(super) const fn new(owner: O, release: R) -> Self {
        Self(Some((owner, release)))
    }
}

impl<O: AsRef<[u8]>, R: FnOnce(O)> AsRef<[u8]> for Lent<O, R> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |(owner, _)| owner.as_ref())
    }
}

impl<O, R: FnOnce(O)> Drop for Lent<O, R> {
    fn drop(&mut self) {
        if let Some((owner, release)) = self.0.take() {
            release(owner);
        }
    }
}
