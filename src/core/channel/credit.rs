//! Credit: what either side may still send unasked, what this side has consumed, and when the peer must hear of it.
//!
//! It knows counts and times; not what a frame says, nor whether there is a connection. Two kinds:
//!
//! * *Lines*, of 64 bytes, for values that were not asked for. Ours: `out` counts those the peer has not returned, at
//!   most its window. Theirs: `held` counts those that wait here, at most our window, and `taken` those given back.
//! * *Frames* of the peer that were `consumed`. What we may post ourselves is the stream's to know.
//!
//! `consumed` and `taken` are cumulative and ride on every frame. [`Credit::due_at`] is when they go alone: at once
//! if a quarter of a window is untold, otherwise when they have waited long enough, and never if all is told.

use super::heard::Violation;
use super::{ChannelSettings, Hello};
use crate::ground::Nanos;
use crate::wire::Frame;

/// Lines that an unrequested body costs: one for its frame and its place in the table, and its bytes.
#[inline]
pub(super) const fn lines(body_len: usize) -> u32 {
    1 + (body_len as u32).div_ceil(64)
}

#[derive(Debug)]
pub(super) struct Credit {
    consumed: u64,
    /// As many untold frames are too many.
    consumed_due: u64,
    taken: u64,
    taken_due: u64,
    due_at: Nanos,
    delay_ns: u64,
    held: u32,
    window: u32,
    out: u32,
    their_window: u32,
    /// What the peer has returned in all, as the wire counts.
    returned: u16,
    frames_quarter: u16,
    lines_quarter: u16,
    /// Lines of the longest push.
    longest: u32,
}

impl Credit {
    pub(super) fn new(settings: &ChannelSettings) -> Self {
        let mut credit = Self {
            consumed: 0,
            consumed_due: 0,
            taken: 0,
            taken_due: 0,
            due_at: Nanos::NEVER,
            delay_ns: settings.ack_delay_ns,
            held: 0,
            window: u32::from(settings.line_window),
            out: 0,
            their_window: 0,
            returned: 0,
            frames_quarter: (settings.frame_window / 4).max(1),
            lines_quarter: (settings.line_window / 4).max(1),
            longest: lines(settings.inline_max),
        };
        credit.mark_told();
        credit
    }

    /// A hello came: the peer's window, and whether something must be told again, since what was told last may have
    /// been lost with its connection.
    pub(super) const fn greet(&mut self, hello: &Hello) {
        self.their_window = hello.line_window as u32;
        if self.consumed > 0 || self.taken > 0 {
            self.due_at = Nanos::ZERO;
        }
    }

    /// Our epoch ends: the peer returns none of what is out.
    pub(super) const fn end_epoch(&mut self) {
        self.out = 0;
        self.returned = 0;
        self.consumed = 0;
        self.forget_lines();
    }

    /// The peer is given up: it has no window.
    pub(super) const fn lose_peer(&mut self) {
        self.their_window = 0;
    }

    /// No peer is owed the lines of ended epochs.
    pub(super) const fn forget_lines(&mut self) {
        self.held = 0;
        self.taken = 0;
        self.mark_told();
    }

    // ── Frames and lines of the peer ────────────────────────────────────────────────────────────────────────────

    /// A frame was consumed.
    #[inline]
    pub(super) fn consume(&mut self, now: Nanos) {
        self.consumed += 1;
        self.note(now, self.consumed >= self.consumed_due);
    }

    /// An unrequested value waits here. `Err` if there was no credit for it.
    #[inline]
    pub(super) const fn hold(&mut self, lines: u32) -> Result<(), Violation> {
        self.held += lines;
        if self.held > self.window {
            return Err(Violation::LineCredit);
        }
        Ok(())
    }

    /// It waits no more.
    #[inline]
    pub(super) fn take(&mut self, now: Nanos, lines: u32) {
        if lines > 0 {
            self.held = self.held.saturating_sub(lines);
            self.taken += u64::from(lines);
            self.note(now, self.taken >= self.taken_due);
        }
    }

    #[inline(always)]
    fn note(&mut self, now: Nanos, is_much: bool) {
        if is_much {
            self.due_at = Nanos::ZERO;
        } else if self.due_at == Nanos::NEVER {
            // What came before it is due no later.
            self.due_at = now + self.delay_ns;
        }
    }

    /// When what is untold must go, alone if nothing else does.
    #[inline]
    pub(super) const fn due_at(&self) -> Nanos {
        self.due_at
    }

    /// Tells everything in a frame. Once that is posted: [`Credit::mark_told`].
    #[inline]
    pub(super) const fn write(&self, frame: &mut Frame) {
        frame.set_credit(self.consumed as u16, self.taken as u16);
    }

    #[inline]
    pub(super) const fn mark_told(&mut self) {
        self.consumed_due = self.consumed + self.frames_quarter as u64;
        self.taken_due = self.taken + self.lines_quarter as u64;
        self.due_at = Nanos::NEVER;
    }

    /// Frames consumed of the peer's epoch.
    pub(super) const fn consumed(&self) -> u64 {
        self.consumed
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) const fn held(&self) -> u32 {
        self.held
    }

    /// True if so much waits here that the peer may be out of credit.
    #[inline]
    pub(super) const fn is_pressed(&self) -> bool {
        self.held * 2 >= self.window || self.held + self.longest > self.window
    }

    // ── Our own lines ───────────────────────────────────────────────────────────────────────────────────────────

    /// Lines the peer would still take.
    #[inline]
    pub(super) const fn open(&self) -> u32 {
        self.their_window.saturating_sub(self.out)
    }

    /// True if the longest push would be taken.
    #[inline]
    pub(super) const fn is_open(&self) -> bool {
        self.open() >= self.longest
    }

    /// Lines go out. False, and nothing happens, if the peer would not take them.
    #[inline]
    pub(super) const fn spend(&mut self, lines: u32) -> bool {
        let goes = self.out + lines <= self.their_window;
        if goes {
            self.out += lines;
        }
        goes
    }

    /// The peer has returned so many in all, modulo 2¹⁶. `Err` if that is more than it had.
    #[inline]
    pub(super) fn give_back(&mut self, returned: u16) -> Result<(), Violation> {
        let back = u32::from(returned.wrapping_sub(self.returned));
        self.out = self.out.checked_sub(back).ok_or(Violation::Credit)?;
        self.returned = returned;
        Ok(())
    }

    /// Lines the peer has not returned.
    #[cfg(any(test, feature = "testing"))]
    pub(super) const fn out(&self) -> u32 {
        self.out
    }
}

#[cfg(test)]
mod tests;
