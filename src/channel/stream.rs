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

use crate::rendezvous::KeyId;
use crate::wire::{Body, Flags, Frame, Kind};

/// A frame and what belongs to it.
#[derive(Debug)]
pub(crate) struct Due<V> {
    pub(crate) frame: Frame,
    /// The key whose number stands in the frame: renewed when a connection begins.
    pub(crate) key: Option<KeyId>,
    pub(crate) load: Load<V>,
}

/// What a frame carries beside itself.
#[derive(Debug)]
pub(crate) enum Load<V> {
    /// Nothing, or it fits the tail.
    Nothing,
    /// A value, whose dimensions are made anew when it is posted.
    Value(V),
    /// A few fields.
    Fields(Body),
    /// A text: of a status or a key.
    Text(Box<str>),
}

#[derive(Debug)]
pub(crate) struct Stream<V> {
    queue: VecDeque<Due<V>>,
    posted: usize,
    /// Frames at the front that a connection before this one left.
    former: usize,
    /// Frames acknowledged since the epoch began.
    acknowledged: u64,
}

impl<V> Stream<V> {
    pub(crate) fn new(warm: usize) -> Self {
        Self {
            queue: VecDeque::with_capacity(warm),
            posted: 0,
            former: 0,
            acknowledged: 0,
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, due: Due<V>) {
        self.queue.push_back(due);
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

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Every key a frame waits for.
    pub(crate) fn keys(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.queue.iter().filter_map(|due| due.key)
    }

    /// The next frame to post.
    #[inline]
    pub(crate) fn next_mut(&mut self) -> Option<&mut Due<V>> {
        self.queue.get_mut(self.posted)
    }

    /// Puts a frame in front of the next one: an intern that must go first.
    pub(crate) fn insert_next(&mut self, due: Due<V>) {
        self.queue.insert(self.posted, due);
    }

    #[inline]
    pub(crate) fn mark_posted(&mut self) {
        debug_assert!(self.posted < self.queue.len());
        self.posted += 1;
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
        let new = frames.checked_sub(self.acknowledged).ok_or(())?;
        let new = usize::try_from(new).map_err(|_| ())?;
        if new > self.posted {
            return Err(());
        }
        self.drop_front(new);
        self.posted = 0;
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
        self.queue.retain(|due| {
            let is_former = former > 0;
            former = former.saturating_sub(1);
            match due.frame.kind() {
                INTERN => false,
                REQUEST => !(drops_landings && is_former && due.frame.flags().has(Flags::REGION)),
                _ => true,
            }
        });
    }

    /// Drops what was posted without waiting for its acknowledgement. Only a simulation does this.
    pub(crate) fn forget_posted(&mut self) {
        let posted = self.posted;
        self.drop_front(posted);
    }

    /// An epoch begins: nothing is owed any more. Hands back what was.
    pub(crate) fn restart(&mut self) -> VecDeque<Due<V>> {
        self.posted = 0;
        self.former = 0;
        self.acknowledged = 0;
        std::mem::take(&mut self.queue)
    }

    #[inline]
    fn drop_front(&mut self, count: usize) {
        self.queue.drain(..count);
        self.posted -= count;
        self.former = self.former.saturating_sub(count);
        self.acknowledged += count as u64;
    }
}
