//! The stream: every frame we owe the peer, in order, from the moment it is due until the peer acknowledged it.
//!
//! It does not know where frames go, and of their meaning only which of them concern a key. Frames are numbered from
//! the beginning of the epoch, and lie in three stretches:
//!
//! ```text
//!   acknowledged, gone │ posted, kept for a reconnect │ due, waiting for frame credit or the fabric
//!                    first                          posted                                         end
//! ```
//!
//! A frame that must go in front of the next one, an intern, may be one of many. So with the first of them blank places
//! are made behind the next frame: each frame that is due moves a few times, and not once for each intern.
//!
//! An acknowledgement is cumulative and moves the front; a new connection moves `posted` back to what the peer's
//! hello says it has consumed. Below the ordinals, that alone gives exactly-once.

use std::collections::VecDeque;

use super::ring::Ring;
use crate::rendezvous::KeyId;
use crate::wire::{Body, Flags, Frame, Kind};

/// What a frame carries beside itself, if its tail is too short.
#[derive(Debug)]
pub(super) enum Load<V> {
    /// A value, whose dimensions are made anew when it is posted.
    Value(V),
    /// A few fields.
    Fields(Body),
    /// A text: of a status or a key.
    Text(Box<str>),
}

#[derive(Debug)]
pub(super) struct FrameStream<V> {
    /// As they will be posted, except that the credit is missing and the key stands in the place of its number.
    frames: Ring<Frame>,
    /// Those of the frames whose bodies are not inline, in their order.
    loads: VecDeque<Load<V>>,
    /// The next frame to post, and how many of the loads belong to those before it.
    posted: u64,
    posted_loads: usize,
    /// How many places are blank, from `gap_at` on. There are frames behind them, and due ones before them.
    gap: u64,
    gap_at: u64,
    /// Frames before this one were queued for an earlier connection.
    former: u64,
    /// Frames that may be posted and not acknowledged.
    window: u64,
}

/// The key that a frame in the stream is about.
#[inline]
pub(super) fn key_of(frame: &Frame) -> Option<KeyId> {
    const PUSH: u8 = Kind::Push as u8;
    const OFFER: u8 = Kind::Offer as u8;
    const REQUEST: u8 = Kind::Request as u8;
    matches!(frame.kind(), PUSH | OFFER | REQUEST).then(|| KeyId(frame.slot()))
}

impl<V> FrameStream<V> {
    pub(super) fn new(warm: usize) -> Self {
        Self {
            frames: Ring::new(warm, Frame::default()),
            loads: VecDeque::with_capacity(warm),
            posted: 0,
            posted_loads: 0,
            gap: 0,
            gap_at: 0,
            former: 0,
            window: 0,
        }
    }

    /// Queues a frame that carries everything itself, or has its load.
    #[inline(always)]
    pub(super) fn push(&mut self, frame: Frame, load: Option<Load<V>>) {
        debug_assert_eq!(load.is_none(), frame.body_is_inline());
        if let Some(load) = load {
            self.push_load(load);
        }
        self.push_frame(&frame);
    }

    /// Queues a frame, and gives it as it lies here. What does not lie in it is given to [`FrameStream::push_load`],
    /// before or at once after this.
    #[inline(always)]
    pub(super) fn push_frame(&mut self, frame: &Frame) -> &mut Frame {
        self.frames.push(frame)
    }

    /// Queues what a frame carries beside itself.
    #[inline(always)]
    pub(super) fn push_load(&mut self, load: Load<V>) {
        self.loads.push_back(load);
    }

    /// True if a frame of that key is here.
    pub(super) fn has(&self, key: KeyId) -> bool {
        self.all().any(|frame| key_of(frame) == Some(key))
    }

    fn all(&self) -> impl Iterator<Item = &Frame> {
        let blank = self.gap_at.saturating_sub(self.frames.first()) as usize;
        let blank = blank..blank + self.gap as usize;
        let places = self.frames.first_of(usize::MAX).enumerate();
        places.filter_map(move |(at, frame)| (!blank.contains(&at)).then_some(frame))
    }

    /// Frames that are here.
    pub(super) const fn len(&self) -> usize {
        self.frames.len() - self.gap as usize
    }

    /// Frames posted and not acknowledged.
    #[inline]
    pub(super) const fn in_flight(&self) -> u64 {
        self.posted - self.frames.first()
    }

    /// True if a frame may be posted: one is due, and there is credit for it.
    #[inline]
    pub(super) const fn has_next(&self) -> bool {
        self.posted < self.frames.end() && self.in_flight() < self.window
    }

    /// True if a frame that is queued now may be posted at once: none goes before it, and there is credit for it.
    #[inline]
    pub(super) const fn is_clear(&self) -> bool {
        self.posted == self.frames.end() && self.in_flight() < self.window
    }

    /// The next frame to post, and what belongs to it.
    #[inline]
    pub(super) fn next(&self) -> Option<(&Frame, Option<&Load<V>>)> {
        let frame = self.frames.at(self.posted)?;
        let load = if frame.body_is_inline() {
            None
        } else {
            self.loads.get(self.posted_loads)
        };
        Some((frame, load))
    }

    /// The next frame is posted.
    #[inline]
    pub(super) const fn mark_posted(&mut self, has_load: bool) {
        self.posted_loads += has_load as usize;
        self.posted += 1;
    }

    /// The frame queued last, if it is not posted yet, and what belongs to it.
    pub(super) fn last_mut(&mut self) -> Option<(&mut Frame, Option<&mut Load<V>>)> {
        if self.posted == self.frames.end() {
            return None;
        }
        let frame = self.frames.at_mut(self.frames.end() - 1)?;
        let load = if frame.body_is_inline() {
            None
        } else {
            self.loads.back_mut()
        };
        Some((frame, load))
    }

    /// Puts a frame in front of the next one, of which there is one: an intern that must go first.
    pub(super) fn insert_next(&mut self, frame: Frame, load: Option<Load<V>>) {
        debug_assert_eq!(load.is_none(), frame.body_is_inline());
        if self.gap == 0 {
            self.open_gap();
        }
        for later in (self.posted..self.gap_at).rev() {
            self.frames.copy(later, later + 1);
        }
        self.gap_at += 1;
        self.gap -= 1;
        if let Some(place) = self.frames.at_mut(self.posted) {
            *place = frame;
        }
        if let Some(load) = load {
            self.loads.insert(self.posted_loads, load);
        }
    }

    /// Makes a place in front of the next frame, and in front of each behind it: each may need one.
    fn open_gap(&mut self) {
        self.gap_at = self.posted + 1;
        let end = self.frames.end();
        self.gap = end - self.posted;
        self.frames.extend(self.gap as usize);
        for at in (self.gap_at..end).rev() {
            self.frames.copy(at, at + self.gap);
        }
    }

    /// To be called when a frame was posted that [`FrameStream::next`] gave: the one behind it is the next.
    #[inline]
    pub(super) fn close_up(&mut self) {
        if self.gap > 0 {
            self.close_up_gap();
        }
    }

    #[cold]
    fn close_up_gap(&mut self) {
        if self.posted == self.gap_at {
            self.frames.copy(self.gap_at + self.gap, self.gap_at);
            self.gap_at += 1;
        }
        if self.gap_at + self.gap == self.frames.end() {
            self.frames.shorten(self.gap as usize);
            self.gap = 0;
        }
    }

    /// Leaves no blank place.
    fn close_gap(&mut self) {
        if self.gap == 0 {
            return;
        }
        for at in self.gap_at + self.gap..self.frames.end() {
            self.frames.copy(at, at - self.gap);
        }
        self.frames.shorten(self.gap as usize);
        self.gap = 0;
    }

    /// The peer has consumed `frames` in all, modulo 2¹⁶. `Err` if that is more than was posted.
    #[inline]
    pub(super) fn acknowledge(&mut self, frames: u16) -> Result<(), ()> {
        let new = frames.wrapping_sub(self.frames.first() as u16);
        self.drop_front(u64::from(new))
    }

    /// A hello came: so many frames may be in flight.
    pub(super) const fn open(&mut self, window: u16) {
        self.window = window as u64;
    }

    /// A connection begins: the peer has consumed `frames` of this epoch; everything after is due again.
    pub(super) fn resume(&mut self, frames: u64) -> Result<(), ()> {
        self.close_gap();
        let is_deaf = mutant!("acknowledgement_ignored_on_reconnect");
        let first = self.frames.first();
        let frames = if is_deaf { first } else { frames };
        self.drop_front(frames.checked_sub(first).ok_or(())?)?;
        self.posted = self.frames.first();
        self.posted_loads = 0;
        Ok(())
    }

    /// A connection ended: what is here now may speak of things that went with it.
    pub(super) fn end_connection(&mut self) {
        self.close_gap();
        self.former = self.frames.end();
    }

    /// Takes out what means nothing on a new connection, of which nothing is posted yet: interns, since it gives its
    /// own numbers, and the former one's requests with a landing, since that went with its queue pair and its demand
    /// asks anew. A simulation can keep those.
    pub(super) fn drop_of_connection(&mut self, drops_landings: bool) {
        const INTERN: u8 = Kind::Intern as u8;
        const REQUEST: u8 = Kind::Request as u8;
        let former = self.former.saturating_sub(self.frames.first());
        self.former = 0;
        let all: Vec<_> = self.all().copied().collect();
        let mut loads = std::mem::take(&mut self.loads);
        self.frames.truncate();
        for (at, frame) in all.into_iter().enumerate() {
            let load = if frame.body_is_inline() {
                None
            } else {
                loads.pop_front()
            };
            let is_gone = match frame.kind() {
                INTERN => true,
                REQUEST => {
                    drops_landings && (at as u64) < former && frame.flags().has(Flags::REGION)
                }
                _ => false,
            };
            if !is_gone {
                self.push(frame, load);
            }
        }
    }

    /// Drops what was posted without waiting for its acknowledgement. Only a simulation does this.
    pub(super) fn forget_posted(&mut self) {
        let _ = self.drop_front(self.in_flight());
    }

    /// True if values, or offers of some, are here.
    pub(super) fn has_values(&self) -> bool {
        const REQUEST: u8 = Kind::Request as u8;
        self.all()
            .any(|frame| key_of(frame).is_some() && frame.kind() != REQUEST)
    }

    /// An epoch begins: nothing is owed any more.
    pub(super) fn restart(&mut self) {
        self.frames.clear();
        self.loads.clear();
        self.posted = 0;
        self.posted_loads = 0;
        self.gap = 0;
        self.former = 0;
    }

    /// The first `count` frames are done with. `Err` if not so many are posted.
    #[inline]
    fn drop_front(&mut self, count: u64) -> Result<(), ()> {
        if count > self.in_flight() {
            return Err(());
        }
        if self.posted_loads > 0 {
            self.drop_loads(count as usize);
        }
        self.frames.drop_first(count as usize);
        Ok(())
    }

    /// Drops what belongs to the first frames.
    fn drop_loads(&mut self, frames: usize) {
        for frame in self.frames.first_of(frames) {
            if !frame.body_is_inline() {
                self.loads.pop_front();
                self.posted_loads -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
