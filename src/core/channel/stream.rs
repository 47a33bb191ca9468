//! The stream: every frame we owe the peer, in order, from the moment it is due until the peer acknowledged it.
//!
//! It does not know what frames mean or where they go. One queue holds three stretches:
//!
//! ```text
//!   acknowledged, gone │ posted, kept for a reconnect │ due, waiting for frame credit or the fabric
//!                      0                              posted                                      len
//! ```
//!
//! An acknowledgement is cumulative and moves the front; a new connection moves `posted` back to what the peer's
//! hello says it has consumed. That is all there is to exactly-once below the ordinals.

use std::collections::VecDeque;

use super::ring::Ring;
use crate::rendezvous::KeyId;
use crate::wire::{Body, Flags, Frame, Kind};

/// A frame that is due. Plain: what belongs to it beside lies in a queue of its own, so that a frame which carries
/// everything itself (the usual one) is written and forgotten without a look at what it might have carried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    pub(crate) frame: Frame,
    /// The key whose number stands in the frame: renewed when a connection begins.
    pub(crate) key: Option<KeyId>,
    has_load: bool,
}

impl Due {
    const BLANK: Self = Self {
        frame: Frame { words: [0; 8] },
        key: None,
        has_load: false,
    };
}

/// What a frame carries beside itself.
#[derive(Debug)]
pub(crate) enum Load<V> {
    /// A value, whose dimensions are made anew when it is posted.
    Value(V),
    /// A few fields.
    Fields(Body),
    /// A text: of a status or a key.
    Text(Box<str>),
}

#[derive(Debug)]
pub(crate) struct Stream<V> {
    queue: Ring<Due>,
    /// What belongs to those of the queue that have something, in their order.
    loads: VecDeque<Load<V>>,
    posted: usize,
    /// How many of the loads belong to frames that are posted.
    posted_loads: usize,
    /// Frames at the front that a connection before this one left.
    former: usize,
    /// Frames acknowledged since the epoch began.
    acknowledged: u64,
    /// Frames that were queued. It wraps.
    queued: u32,
    /// By key: `queued` when its last frame was. That frame is here as long as no more came after it than are here.
    marks: Vec<u32>,
}

impl<V> Stream<V> {
    pub(crate) fn new(warm: usize) -> Self {
        Self {
            queue: Ring::new(warm, Due::BLANK),
            loads: VecDeque::with_capacity(warm),
            posted: 0,
            posted_loads: 0,
            former: 0,
            acknowledged: 0,
            queued: 0,
            marks: Vec::new(),
        }
    }

    /// A frame is queued, of that key.
    #[inline]
    fn mark(&mut self, key: Option<KeyId>) {
        self.queued = self.queued.wrapping_add(1);
        if let Some(key) = key {
            match self.marks.get_mut(key.0 as usize) {
                Some(mark) => *mark = self.queued,
                None => self.first_mark(key),
            }
        }
    }

    #[cold]
    fn first_mark(&mut self, key: KeyId) {
        let at = key.0 as usize;
        // As if theirs had been queued long before.
        self.marks.resize(at + 1, self.queued.wrapping_sub(1 << 31));
        self.marks[at] = self.queued;
    }

    /// True if a frame of that key may be here. It is never false while one is.
    pub(crate) fn may_have(&self, key: KeyId) -> bool {
        let Some(&mark) = self.marks.get(key.0 as usize) else {
            return false;
        };
        (self.queued.wrapping_sub(mark) as usize) < self.queue.len()
    }

    /// A frame that carries everything itself.
    #[inline]
    pub(crate) fn push(&mut self, frame: Frame, key: Option<KeyId>) {
        self.mark(key);
        self.queue.push(Due {
            frame,
            key,
            has_load: false,
        });
    }

    /// A frame and what belongs to it.
    #[inline]
    pub(crate) fn push_loaded(&mut self, frame: Frame, key: Option<KeyId>, load: Load<V>) {
        self.mark(key);
        self.loads.push_back(load);
        self.queue.push(Due {
            frame,
            key,
            has_load: true,
        });
    }

    /// Frames posted and not acknowledged.
    #[inline]
    pub(crate) fn in_flight(&self) -> usize {
        self.posted
    }

    /// Frames due and not posted.
    #[inline]
    pub(crate) fn due(&self) -> usize {
        self.queue.len() - self.posted
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.queue.len() == 0
    }

    /// The next frame to post, and what belongs to it.
    #[inline]
    pub(crate) fn next_mut(&mut self) -> Option<(&mut Due, Option<&Load<V>>)> {
        let due = self.queue.at_mut(self.posted)?;
        let load = if due.has_load {
            self.loads.get(self.posted_loads)
        } else {
            None
        };
        Some((due, load))
    }

    /// The frame queued last, if it is not posted yet, and what belongs to it.
    pub(crate) fn last_mut(&mut self) -> Option<(&mut Due, Option<&mut Load<V>>)> {
        if self.due() == 0 {
            return None;
        }
        let due = self.queue.at_mut(self.queue.len() - 1)?;
        let load = if due.has_load {
            self.loads.back_mut()
        } else {
            None
        };
        Some((due, load))
    }

    /// Puts a frame with its load in front of the next one: an intern that must go first.
    pub(crate) fn insert_next(&mut self, frame: Frame, load: Load<V>) {
        let due = Due {
            frame,
            key: None,
            has_load: true,
        };
        self.queue.insert(self.posted, due);
        self.loads.insert(self.posted_loads, load);
        // Those behind it stand one place later now.
        self.queued = self.queued.wrapping_add(1);
        for at in self.posted + 1..self.queue.len() {
            let after = (self.queue.len() - 1 - at) as u32;
            if let Some(key) = self.queue.at_mut(at).and_then(|due| due.key)
                && let Some(mark) = self.marks.get_mut(key.0 as usize)
            {
                *mark = self.queued.wrapping_sub(after);
            }
        }
    }

    #[inline]
    pub(crate) fn mark_posted(&mut self) {
        if let Some(due) = self.queue.at_mut(self.posted) {
            self.posted_loads += usize::from(due.has_load);
            self.posted += 1;
        }
    }

    /// The peer has consumed `frames` in all, modulo 2¹⁶. `Err` if that is more than was posted.
    #[inline]
    pub(crate) fn acknowledge(&mut self, frames: u16) -> Result<(), ()> {
        let new = usize::from(frames.wrapping_sub(self.acknowledged as u16));
        if new == 0 {
            return Ok(());
        }
        if new > self.posted {
            return Err(());
        }
        self.drop_front(new);
        Ok(())
    }

    /// A connection begins: the peer has consumed `frames` of this epoch; everything after is due again.
    pub(crate) fn resume(&mut self, frames: u64) -> Result<(), ()> {
        let is_deaf = mutant!("acknowledgement_ignored_on_reconnect");
        let frames = if is_deaf { self.acknowledged } else { frames };
        let new = frames.checked_sub(self.acknowledged).ok_or(())?;
        let new = usize::try_from(new).map_err(|_| ())?;
        if new > self.posted {
            return Err(());
        }
        self.drop_front(new);
        self.posted = 0;
        self.posted_loads = 0;
        Ok(())
    }

    /// A connection ended: what is here now may speak of things that went with it.
    pub(crate) fn end_connection(&mut self) {
        self.former = self.queue.len();
    }

    /// Takes out what means nothing on a new connection: interns, since it gives its own numbers, and the former
    /// one's requests with a landing, since that went with its queue pair and its demand asks anew. A simulation can
    /// keep those.
    pub(crate) fn drop_of_connection(&mut self, drops_landings: bool) {
        const INTERN: u8 = Kind::Intern as u8;
        const REQUEST: u8 = Kind::Request as u8;
        let mut former = std::mem::take(&mut self.former);
        let all: Vec<Due> = self.queue.first(usize::MAX).copied().collect();
        let mut loads = VecDeque::new();
        self.queue.drop_first(all.len());
        for due in all {
            let load = if due.has_load {
                self.loads.pop_front()
            } else {
                None
            };
            let is_former = former > 0;
            former = former.saturating_sub(1);
            let stays = match due.frame.kind() {
                INTERN => false,
                REQUEST => !(drops_landings && is_former && due.frame.flags().has(Flags::REGION)),
                _ => true,
            };
            if stays {
                self.mark(due.key);
                self.queue.push(due);
                loads.extend(load);
            }
        }
        self.loads = loads;
    }

    /// Drops what was posted without waiting for its acknowledgement. Only a simulation does this.
    pub(crate) fn forget_posted(&mut self) {
        let posted = self.posted;
        self.drop_front(posted);
    }

    /// An epoch begins: nothing is owed any more.
    pub(crate) fn restart(&mut self) {
        self.queue.drop_first(self.queue.len());
        self.loads.clear();
        self.posted = 0;
        self.posted_loads = 0;
        self.former = 0;
        self.acknowledged = 0;
    }

    #[inline]
    fn drop_front(&mut self, count: usize) {
        if self.posted_loads > 0 {
            self.drop_loads(count);
        }
        self.queue.drop_first(count);
        self.posted -= count;
        self.former = self.former.saturating_sub(count);
        self.acknowledged += count as u64;
    }

    /// Drops what belongs to the first frames.
    fn drop_loads(&mut self, frames: usize) {
        let loaded = self.queue.first(frames).filter(|due| due.has_load).count();
        self.loads.drain(..loaded);
        self.posted_loads -= loaded;
    }
}
