//! Line: who sleeps until a baton is free, first come first called.
//!
//! Locked by those who are about to sleep, or to wake one who does; by nobody else. A word outside says whether anybody
//! stands here: it is changed under the lock, so it is never wrong for longer than that.

use std::collections::VecDeque;
use std::task::Waker;

use crate::sync::{Arc, Mutex, MutexGuard};

/// Where one stands.
#[derive(Debug)]
pub(crate) struct Place(Waker);

/// Those who sleep.
#[derive(Debug, Default)]
pub(crate) struct Line(Mutex<VecDeque<Arc<Place>>>);

impl Line {
    fn places(&self) -> MutexGuard<'_, VecDeque<Arc<Place>>> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Stands behind all others. `say` says outside that somebody stands here.
    pub(super) fn join<R>(&self, waker: &Waker, say: impl FnOnce() -> R) -> (Arc<Place>, R) {
        let place = Arc::new(Place(waker.clone()));
        let mut places = self.places();
        places.push_back(Arc::clone(&place));
        (place, say())
    }

    /// Wakes the first. `say` says outside that nobody stands here any more.
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
    pub(super) fn has(&self, place: &Arc<Place>) -> bool {
        self.places().iter().any(|other| Arc::ptr_eq(other, place))
    }

    /// Leaves. False if it was called already. `say` is as in [`Line::call_next`].
    pub(super) fn leave(&self, place: &Arc<Place>, say: impl FnOnce()) -> bool {
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
