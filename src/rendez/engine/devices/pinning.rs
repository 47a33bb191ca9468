//! Pinning: segments of our host arenas that devices reach, whose tensors are copied to and from devices as they lie.
//!
//! A segment is pinned with the first large copy from or to it, and stays so until the engine ends: that takes the
//! driver as long as a copy of it, and other large copies wait for that. What is short, does not lie in a segment, or
//! has no room within the bounds, goes by way of chunks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Arena, Devices};
use crate::engine::Inner;
use crate::ground::{Locked, Nanos};
use crate::memory::{ArenaSegment as _, Pinned, Segment};

/// Chunks take no more than this of the pinned memory; segments may have the rest.
pub(super) const CHUNKS_BYTES_MAX: usize = 12 << 20;
/// A shorter copy pins no segment: by way of a chunk it is as soon there.
const PIN_MIN: usize = 1 << 20;

/// How long a segment that the control group had no room for goes by way of chunks before room is looked for again.
pub(super) const ROOM_RETRY: Duration = Duration::from_secs(1);

/// Segments that were pinned, by whatever device: all reach them then.
#[derive(Debug, Default)]
pub(super) struct Pinning {
    tried: Mutex<Vec<Tried>>,
    /// Held by the thread that pins a segment.
    pub(super) turn: Mutex<()>,
}

#[derive(Debug)]
enum Tried {
    Pinned(Arc<Pinned>),
    /// Not before that time: never, if the driver would not.
    Refused(Arc<Segment>, Nanos),
}

impl Tried {
    fn covers(&self, bytes: &[u8]) -> bool {
        match self {
            Self::Pinned(pinned) => pinned.covers(bytes),
            Self::Refused(segment, _) => holds(segment, bytes),
        }
    }

    fn pinned(&self) -> Option<Arc<Pinned>> {
        match self {
            Self::Pinned(pinned) => Some(Arc::clone(pinned)),
            Self::Refused(..) => None,
        }
    }
}

fn holds(segment: &Segment, bytes: &[u8]) -> bool {
    let offset = bytes.as_ptr().addr().checked_sub(segment.base().addr());
    let end = offset.and_then(|offset| offset.checked_add(bytes.len()));
    end.is_some_and(|end| end <= segment.len())
}

impl Pinning {
    /// What came of pinning the segment that these bytes lie in, if that counts still.
    fn known(&self, bytes: &[u8], now: Nanos) -> Option<Option<Arc<Pinned>>> {
        match self
            .tried
            .locked()
            .iter()
            .find(|known| known.covers(bytes))?
        {
            Tried::Pinned(pinned) => Some(Some(Arc::clone(pinned))),
            Tried::Refused(_, until) => (now < *until).then_some(None),
        }
    }
}

impl Devices {
    /// The segment that these bytes lie in, as devices reach it; `None` if they go by way of chunks.
    pub(super) fn pinned(
        &self,
        inner: &Inner,
        arena: &Arena,
        device: u32,
        bytes: &[u8],
        now: Nanos,
    ) -> Option<Arc<Pinned>> {
        if let Some(known) = self.pinning.known(bytes, now) {
            return known;
        }
        if bytes.len() < PIN_MIN {
            return None;
        }
        let _turn = self.pinning.turn.locked();
        // Another thread may have pinned it meanwhile.
        if let Some(known) = self.pinning.known(bytes, now) {
            return known;
        }
        let segment = inner.wiring.segment_that(|segment| holds(segment, bytes))?;
        let len = segment.len();
        let room = self.segments_limit().checked_sub(arena.segments_pinned())?;
        if len as u64 > room {
            return None;
        }
        let outcome = self.pin(arena, device, segment, now)?;
        let pinned = outcome.pinned();
        let mut tried = self.pinning.tried.locked();
        tried.retain(|former| !former.covers(bytes));
        tried.push(outcome);
        pinned
    }

    fn pin(&self, arena: &Arena, device: u32, segment: Arc<Segment>, now: Nanos) -> Option<Tried> {
        let accelerator = self.accelerator().ok()?;
        let len = segment.len();
        if self.check_room(device, len as u64).is_err() {
            return Some(Tried::Refused(segment, now.after(ROOM_RETRY)));
        }
        match Pinned::of(accelerator, device, Arc::clone(&segment), len) {
            Ok(pinned) => {
                arena.segments.fetch_add(len as u64, Ordering::Relaxed);
                Some(Tried::Pinned(Arc::new(pinned)))
            }
            Err(error) => {
                tracing::info!(%error, device, bytes = len, "a segment could not be pinned: copies go through chunks");
                Some(Tried::Refused(segment, Nanos::NEVER))
            }
        }
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
