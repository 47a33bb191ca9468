//! Line: the threads that sleep until a baton is free, woken in the order they came.
//!
//! Locked only by a thread that is about to sleep, or to wake a sleeper. A word outside says whether a thread stands
//! here: it is changed under the lock, so it is wrong for no longer than the lock is held.

use std::collections::VecDeque;
use std::task::Waker;

use crate::sync::{Arc, Mutex, MutexGuard};

/// Where one stands.
#[derive(Debug)]
pub(crate) struct LinePlace(Waker);

/// The sleeping threads.
#[derive(Debug, Default)]
pub(crate) struct Line(Mutex<VecDeque<Arc<LinePlace>>>);

impl Line {
    fn places(&self) -> MutexGuard<'_, VecDeque<Arc<LinePlace>>> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Joins behind all others. `say` says outside that a thread stands here.
    pub(super) fn join<R>(&self, waker: &Waker, say: impl FnOnce() -> R) -> (Arc<LinePlace>, R) {
        let place = Arc::new(LinePlace(waker.clone()));
        let mut places = self.places();
        places.push_back(Arc::clone(&place));
        (place, say())
    }

    /// Wakes the first. `say` says outside that the line is empty.
    pub(super) fn call_next(&self, say: impl FnOnce()) {
        let mut places = self.places();
        let first = places.pop_front();
        if places.is_empty() {
            say();
        }
        drop(places);
        if let Some(first) = first {
            first.0.wake_by_ref();
        }
    }

    /// True if it stands there.
    pub(super) fn has(&self, place: &Arc<LinePlace>) -> bool {
        self.places().iter().any(|other| Arc::ptr_eq(other, place))
    }

    /// Leaves. False if it was called already. `say` is as in [`Line::call_next`].
    pub(super) fn leave(&self, place: &Arc<LinePlace>, say: impl FnOnce()) -> bool {
        let mut places = self.places();
        let before = places.len();
        places.retain(|other| !Arc::ptr_eq(other, place));
        let has_left = places.len() < before;
        if has_left && places.is_empty() {
            say();
        }
        has_left
    }
}
