//! Pinning: segments of our host arenas that devices reach, whose tensors are copied to and from devices as they lie.
//!
//! A segment is pinned with the first large copy from or to it, and stays so until the engine ends: that takes the
//! driver as long as a copy of it. What does not lie in one, or has no room within the bounds, goes by way of chunks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::{Arena, Devices, lock};
use crate::engine::Inner;
use crate::memory::{ArenaSegment as _, Pinned, Segment};

/// Chunks take no more than this of the pinned memory; segments may have the rest.
pub(super) const CHUNKS_BYTES_MAX: usize = 12 << 20;
/// A shorter copy pins no segment: by way of a chunk it is as soon there.
const PIN_MIN: usize = 1 << 20;

/// Segments that were pinned, by whatever device: all reach them then.
#[derive(Debug, Default)]
pub(super) struct Pinning {
    segments: Mutex<Vec<Tried>>,
}

#[derive(Debug)]
enum Tried {
    Pinned(Arc<Pinned>),
    /// The driver would not.
    Refused(Arc<Segment>),
}

impl Tried {
    fn covers(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Pinned(pinned) => pinned.covers(bytes),
            Self::Refused(segment) => holds(segment, bytes),
        }
    }

    fn pinned(&self) -> Option<Arc<Pinned>> {
        match self {
            Self::Pinned(pinned) => Some(Arc::clone(pinned)),
            Self::Refused(_) => None,
        }
    }
}

fn holds(segment: &Segment, bytes: &[u8]) -> bool {
    let offset = bytes.as_ptr().addr().checked_sub(segment.base().addr());
    let end = offset.and_then(|offset| offset.checked_add(bytes.len()));
    end.is_some_and(|end| end <= segment.len())
}

impl Devices {
    /// The segment that these bytes lie in, as devices reach it; `None` if they go by way of chunks.
    pub(super) fn pinned(
        &self,
        inner: &Inner,
        arena: &Arena,
        device: u32,
        bytes: &[u8],
    ) -> Option<Arc<Pinned>> {
        let mut tried = lock(&self.pinning.segments);
        if let Some(known) = tried.iter().find(|known| known.covers(bytes)) {
            return known.pinned();
        }
        if bytes.len() < PIN_MIN {
            return None;
        }
        let mut segments = inner.wiring.segments().into_iter();
        let (_, segment) = segments.find(|(_, segment)| holds(segment, bytes))?;
        let len = segment.len() as u64;
        let room = self.segments_limit().checked_sub(arena.segments_pinned())?;
        if len > room || self.check_room(device, len).is_err() {
            return None;
        }
        let whole = segment.len();
        let now = match Pinned::of(
            self.accelerator().ok()?,
            device,
            Arc::clone(&segment),
            whole,
        ) {
            Ok(pinned) => {
                arena.segments.fetch_add(len, Ordering::Relaxed);
                Tried::Pinned(Arc::new(pinned))
            }
            Err(error) => {
                tracing::info!(%error, device, bytes = len, "a segment is not pinned: copies go by way of chunks");
                Tried::Refused(segment)
            }
        };
        let pinned = now.pinned();
        tried.push(now);
        pinned
    }

    /// Bytes of the chunks of each device.
    pub(super) const fn chunks_bytes(&self) -> usize {
        if self.settings.pinned_bytes < CHUNKS_BYTES_MAX {
            self.settings.pinned_bytes
        } else {
            CHUNKS_BYTES_MAX
        }
    }

    const fn segments_limit(&self) -> u64 {
        (self.settings.pinned_bytes - self.chunks_bytes()) as u64
    }
}

impl Arena {
    fn segments_pinned(&self) -> u64 {
        self.segments.load(Ordering::Relaxed)
    }
}
