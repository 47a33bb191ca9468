//! Events: what this shard's tasks are still to be told, in order.
//!
//! It does not know what an event says. An event is written once, where it stays until its task is called
//! (`delivery.rs`). They stand in a row, which begins anew when all were taken: most turns bring one, and that has the
//! same lines each time.

use super::TaskEvent;
use super::ids::{Id, TaskId};
use crate::rendezvous::Origin;

/// Whose an event is, and where what it brings comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventHead {
    pub(crate) task: TaskId,
    /// The trace of what it brings.
    pub(crate) trace: u16,
    /// The shard in whose table a value that it brings lay, and where.
    pub(crate) shard: u16,
    pub(crate) from: Origin,
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Events {
    /// Where no event stands, one does that says nothing and holds nothing.
    places: Box<[(EventHead, TaskEvent)]>,
    /// The place of the next; if there is none, the first of all.
    next: usize,
    /// The place behind the last.
    end: usize,
}

impl Events {
    /// None, with room for so many, and for one at least.
    pub(super) fn new(room: usize) -> Self {
        Self {
            places: blanks().take(room.max(1)).collect(),
            next: 0,
            end: 0,
        }
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.end == 0
    }

    pub(super) const fn len(&self) -> usize {
        self.end - self.next
    }

    #[inline]
    pub(super) fn push(&mut self, head: EventHead, event: TaskEvent) {
        let place = self.place();
        place.0 = head;
        // There is none to drop.
        std::mem::forget(std::mem::replace(&mut place.1, event));
    }

    /// Where the next event is to be put. What stands there says nothing, and needs no drop.
    #[inline(always)]
    pub(super) fn place(&mut self) -> &mut (EventHead, TaskEvent) {
        if self.end >= self.places.len() {
            return self.place_anew();
        }
        self.end += 1;
        &mut self.places[self.end - 1]
    }

    /// As [`Events::place`], where the row has ended. If half of it or more was taken, what is left moves to the front:
    /// so one event moves at most for each that was taken. Else the row gets twice as long.
    #[cold]
    #[inline(never)]
    fn place_anew(&mut self) -> &mut (EventHead, TaskEvent) {
        let room = self.places.len();
        if self.next * 2 >= room {
            self.places.rotate_left(self.next);
            (self.end, self.next) = (self.len(), 0);
        } else {
            let places = std::mem::take(&mut self.places).into_iter();
            self.places = places.chain(blanks().take(room)).collect();
        }
        self.place()
    }

    /// Whose the next is.
    #[inline(always)]
    pub(super) fn front(&self) -> Option<EventHead> {
        if self.is_empty() {
            return None;
        }
        Some(self.places[self.next].0)
    }

    /// Takes the event whose head [`Events::front`] gave.
    #[inline(always)]
    pub(super) fn pop(&mut self) -> TaskEvent {
        let event = std::mem::replace(&mut self.places[self.next].1, TaskEvent::Again);
        self.next += 1;
        if self.next == self.end {
            (self.next, self.end) = (0, 0);
        }
        event
    }
}

/// Places where no event stands.
fn blanks() -> impl Iterator<Item = (EventHead, TaskEvent)> {
    let nobodys = EventHead {
        task: TaskId::of_row(0),
        trace: 0,
        shard: 0,
        from: Origin::NOWHERE,
    };
    std::iter::repeat_with(move || (nobodys, TaskEvent::Again))
}

#[cfg(test)]
mod tests;
