//! Baton: which of several threads may touch a value now, and how it goes from one to the next without a lock.
//!
//! Knows one word, one value, and a line of wakers; not what is done with the value.
//!
//! ```text
//!            take, take_home                CALLED: a thread left something for the holder, which looks again before
//!   free ───────────────────▶ held                  it lays the baton down
//!    ▲                         │            WANTED: a thread waits for it
//!    └─────── lay_down ────────┘            LINED:  a thread sleeps until it is free
//!          refused while CALLED             KEPT:   only `take_home` gets it
//!                                           BESIDE: a thread sleeps with another that would take this one too
//! ```
//!
//! All of it is one atomic word, which is changed by read-modify-writes alone, so they stand in one order. A thread
//! that finds the baton held has set CALLED or LINED before it is laid down, or finds it free: no call is lost, and no
//! sleeper is forgotten. Loom goes through every interleaving (`tests/loom_drive.rs`).
#![allow(unsafe_code)]

use std::task::Waker;

use super::line::{Line, LinePlace};
use crate::sync::{Arc, AtomicU64, Ordering, UnsafeCell};

/// A thread holds it.
const HELD: u64 = 1;
/// A thread left something for the holder.
pub(crate) const CALLED: u64 = 1 << 1;
/// A thread waits to hold it.
pub(crate) const WANTED: u64 = 1 << 2;
/// A thread sleeps until it is free.
const LINED: u64 = 1 << 3;
/// Its holder sleeps with it, or has slept.
pub(crate) const SLEEPS: u64 = 1 << 4;
/// It is for one thread alone.
pub(crate) const KEPT: u64 = 1 << 5;
/// A thread that sleeps with another baton would sleep with this one too.
pub(crate) const BESIDE: u64 = 1 << 6;
/// One round: the bits above count how often it was taken by others than that thread.
const ROUND: u64 = 1 << 8;

/// A value, and the right to touch it.
#[derive(Debug)]
pub(crate) struct Baton<T> {
    word: AtomicU64,
    value: UnsafeCell<T>,
    line: Line,
}

// SAFETY: `UnsafeCell` stopped it. The value is reached by the holder alone, by `&mut`, and a laying down (Release)
// comes before the next taking (Acquire): so it only ever moves from one thread to another, which `T: Send` allows.
unsafe impl<T: Send> Sync for Baton<T> {}

/// The right to touch the value.
#[derive(Debug)]
pub(crate) struct BatonGuard<'a, T>(&'a Baton<T>);

impl<T> Baton<T> {
    /// A baton that is kept for the thread that calls [`Baton::take_home`].
    pub(crate) fn kept(value: T) -> Self {
        Self {
            word: AtomicU64::new(KEPT),
            value: UnsafeCell::new(value),
            line: Line::default(),
        }
    }

    /// Takes it if it is free. If it is not, leaves `call` for its holder: none, [`CALLED`], [`WANTED`], and
    /// [`BESIDE`].
    #[inline]
    pub(crate) fn take(&self, call: u64) -> Option<BatonGuard<'_, T>> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let is_free = word & (HELD | KEPT) == 0;
            if !is_free && call == 0 {
                return None;
            }
            let next = if is_free {
                (word | HELD).wrapping_add(ROUND)
            } else {
                word | call
            };
            // The Acquire of a taking pairs with the Release of the laying down before it; the Release of a call, with
            // the Acquire of the holder that sees it.
            match self
                .word
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return is_free.then(|| BatonGuard(self)),
                Err(now) => word = now,
            }
        }
    }

    /// Leaves `call` for its holder, if there is one.
    pub(crate) fn call(&self, call: u64) {
        let leave = |word| (word & HELD != 0 && word & call != call).then_some(word | call);
        // The Release pairs with the Acquire of the holder that sees it.
        let _ = self
            .word
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, leave);
    }

    /// Takes it if no thread holds it, kept or not: for the one thread that it is kept for.
    pub(crate) fn take_home(&self) -> Option<BatonGuard<'_, T>> {
        let before = self.word.fetch_or(HELD, Ordering::AcqRel);
        (before & HELD == 0).then(|| BatonGuard(self))
    }

    /// How often others than the thread at home took it.
    pub(crate) fn rounds(&self) -> u64 {
        self.word.load(Ordering::Relaxed) / ROUND
    }

    /// True if that bit is set.
    #[inline]
    pub(crate) fn is(&self, bit: u64) -> bool {
        self.word.load(Ordering::Relaxed) & bit != 0
    }

    /// True if it could be taken now.
    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.word.load(Ordering::Relaxed) & (HELD | KEPT) == 0
    }

    /// For its holder: from now on only the thread at home gets it, or others as well.
    pub(crate) fn keep(&self, is_kept: bool) {
        if is_kept {
            self.word.fetch_or(KEPT, Ordering::AcqRel);
        } else {
            self.word.fetch_and(!KEPT, Ordering::AcqRel);
        }
    }

    /// Those that sleep with others are about to be called. Before it, for one that comes meanwhile is called too.
    pub(crate) fn calls_beside(&self) {
        self.word.fetch_and(!BESIDE, Ordering::AcqRel);
    }

    /// For its holder, which is about to sleep with it.
    pub(crate) fn sleeps(&self) {
        self.word.fetch_or(SLEEPS, Ordering::AcqRel);
    }

    /// Joins the line until the baton is laid down; `waker` is woken then. `None` if no thread holds it: the caller
    /// must then serve the line, by taking the baton and laying it down.
    pub(crate) fn line_up(&self, waker: &Waker) -> Option<Arc<LinePlace>> {
        let lined = || self.word.fetch_or(LINED, Ordering::AcqRel);
        let (place, before) = self.line.join(waker, lined);
        if before & HELD != 0 {
            return Some(place);
        }
        self.line.leave(&place, || self.has_no_line());
        None
    }

    /// True as long as its turn has not come.
    pub(crate) fn stands(&self, place: &Arc<LinePlace>) -> bool {
        self.line.has(place)
    }

    /// Leaves the line. False if its turn had come: then the thread that leaves must see to the next, as with
    /// [`Baton::line_up`].
    #[must_use]
    pub(crate) fn leave(&self, place: &Arc<LinePlace>) -> bool {
        self.line.leave(place, || self.has_no_line())
    }

    /// One of the line is woken; those behind it by the next holder that lays the baton down.
    #[cold]
    fn call_next(&self) {
        self.line.call_next(|| self.has_no_line());
    }

    fn has_no_line(&self) {
        self.word.fetch_and(!LINED, Ordering::AcqRel);
    }
}

/// What was in the word when the baton was laid down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Laid(u64);

impl Laid {
    /// True if its holder had slept with it.
    #[inline]
    pub(crate) const fn was_slept_with(self) -> bool {
        self.0 & SLEEPS != 0
    }

    /// True if a thread that sleeps with another is to hear that this one is free: none stood in its line.
    #[inline]
    pub(crate) const fn is_wanted_beside(self) -> bool {
        self.0 & (BESIDE | LINED) == BESIDE
    }
}

impl<T> BatonGuard<'_, T> {
    /// Does something with the value.
    #[inline]
    pub(crate) fn with<R>(&mut self, touch: impl FnOnce(&mut T) -> R) -> R {
        self.0.value.with_mut(|value| {
            // SAFETY: one `Held` exists at a time: it is made where the word said free, and HELD is taken back only by
            // `lay_down` and `drop`, which end it. It is borrowed exclusively here, so this is the only reference.
            touch(unsafe { &mut *value })
        })
    }

    /// Lays it down, and calls the next of the line, if there is one.
    ///
    /// # Errors
    /// Itself, if a thread has left something: look again.
    #[inline]
    pub(crate) fn lay_down(self) -> Result<Laid, Self> {
        self.lay_down_unless(CALLED)
    }

    /// The same, but whatever a thread has left is the next holder's to see.
    ///
    /// # Errors
    /// None.
    pub(crate) fn pass_on(self) -> Result<Laid, Self> {
        self.lay_down_unless(0)
    }

    #[inline]
    fn lay_down_unless(self, call: u64) -> Result<Laid, Self> {
        let mut word = self.0.word.load(Ordering::Relaxed);
        loop {
            if word & call != 0 {
                // The Acquire pairs with the caller's Release: what it left is seen from here on.
                self.0.word.fetch_and(!CALLED, Ordering::AcqRel);
                return Err(self);
            }
            let next = word & !(HELD | WANTED | SLEEPS);
            match self
                .0
                .word
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        let baton = self.0;
        std::mem::forget(self);
        if word & LINED != 0 {
            baton.call_next();
        }
        Ok(Laid(word))
    }
}

/// A holder that unwinds leaves the baton kept, so that only a thread that can deal with it takes it.
impl<T> Drop for BatonGuard<'_, T> {
    fn drop(&mut self) {
        self.0.word.fetch_or(KEPT, Ordering::AcqRel);
        self.0.word.fetch_and(!HELD, Ordering::AcqRel);
    }
}
