//! Waits: who waits for an outcome and is no in-shard task of this shard's own table: application threads, neighbours,
//! and in-shard tasks whose value lies with a neighbour.
//!
//! Knows them by ticket, and where the table has each; not the table, nor what an outcome says.

use std::sync::Arc;

use super::ids::TaskId;
use super::owed::Owed;
use crate::channel::slab::Slab;
use crate::ground::{Incarnation, Status};
use crate::mail::Handed;
use crate::mail::stops::Stops;
use crate::mail::wait::WaitCell;
use crate::rendezvous::WaiterId;
use crate::wire::Ticket;

/// What the thread that turns the shard waited for.
#[derive(Debug)]
pub struct Led {
    /// The outcome of its receive.
    pub outcome: Result<Handed, Status>,
    /// What the stages of the shard have to say of it; zero for nothing.
    pub waking: u64,
}

/// A waiter of this process that is not an in-shard task of this shard.
#[derive(Debug)]
pub(super) enum Wait {
    /// An application thread, which hears of it in a cell: another thread turns the shard, or may. In the table here
    /// under this id.
    Outside {
        cell: Owed<WaitCell<Handed>>,
        id: Option<WaiterId>,
        /// What may cancel it.
        stops: Option<Stops>,
        /// The life of the source that its key names.
        expected: Incarnation,
    },
    /// A neighbour, by its own ticket; in the table here under this id.
    Neighbour {
        shard: u16,
        theirs: u32,
        id: Option<WaiterId>,
        /// The life of the source that its key names.
        expected: Incarnation,
    },
    /// An in-shard task of ours, in the table of a neighbour.
    Away {
        shard: u16,
        task: TaskId,
        token: u64,
    },
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Waits {
    slab: Slab<Wait>,
    /// The outcome for the thread that turns the shard and waits, until it takes it. It costs no atomic operation.
    led: Option<Led>,
    /// The life of the source that the key of its receive names.
    led_expects: Incarnation,
    /// By neighbour and the place of its own ticket: the ticket of the last that waited by it. It may wait no more.
    of_neighbours: Vec<Vec<u32>>,
    /// How many waits were looked at for one that a neighbour gave up.
    #[cfg(test)]
    looks: std::cell::Cell<u64>,
}

impl Waits {
    /// None, and room for so many.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            slab: Slab::new(limit),
            led: None,
            led_expects: Incarnation::CURRENT,
            of_neighbours: Vec::new(),
            #[cfg(test)]
            looks: std::cell::Cell::default(),
        }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) const fn len(&self) -> usize {
        self.slab.len()
    }

    /// An application thread waits, for a value of that life of its source. It comes back if there is no room.
    #[inline]
    pub(super) fn add_outside(
        &mut self,
        cell: Owed<WaitCell<Handed>>,
        stops: Option<Stops>,
        expected: Incarnation,
    ) -> Result<Ticket, Owed<WaitCell<Handed>>> {
        let wait = Wait::Outside {
            cell,
            id: None,
            stops,
            expected,
        };
        let ticket = match self.slab.insert(wait) {
            Ok(ticket) => ticket,
            Err(Wait::Outside { cell, .. }) => return Err(cell),
            Err(_) => unreachable!("what comes back is what was given"),
        };
        if let Some(Wait::Outside { cell, .. }) = self.slab.at(ticket) {
            cell.sit(u64::from(ticket.packed()));
        }
        Ok(ticket)
    }

    /// A neighbour waits, by its own ticket, for a value of that life of its source. `None` if there is no room.
    pub(super) fn add_neighbour(
        &mut self,
        shard: u16,
        theirs: u32,
        expected: Incarnation,
    ) -> Option<Ticket> {
        let wait = Wait::Neighbour {
            shard,
            theirs,
            id: None,
            expected,
        };
        let ticket = self.slab.insert(wait).ok()?;
        *self.of_neighbour(shard, theirs) = ticket.packed();
        Some(ticket)
    }

    /// Where the ticket stands that waits by a neighbour's own. Of those that wait, no two have the same place.
    fn of_neighbour(&mut self, shard: u16, theirs: u32) -> &mut u32 {
        let (shard, at) = (usize::from(shard), Ticket::unpack(theirs).index as usize);
        if self.of_neighbours.len() <= shard {
            self.of_neighbours.resize_with(shard + 1, Vec::new);
        }
        let places = &mut self.of_neighbours[shard];
        if places.len() <= at {
            places.resize(at + 1, u32::MAX);
        }
        &mut places[at]
    }

    /// An in-shard task of ours waits at a neighbour. `None` if there is no room.
    pub(super) fn add_away(&mut self, shard: u16, task: TaskId, token: u64) -> Option<Ticket> {
        self.slab.insert(Wait::Away { shard, task, token }).ok()
    }

    /// It stands in the table, under this id. False if it waits no more: it has its outcome already.
    pub(super) fn set_place(&mut self, ticket: Ticket, at: WaiterId) -> bool {
        match self.slab.at_mut(ticket) {
            Some(Wait::Outside { id, .. } | Wait::Neighbour { id, .. }) => {
                *id = Some(at);
                true
            }
            _ => false,
        }
    }

    /// It waits no more.
    #[inline]
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Wait> {
        self.slab.remove(ticket)
    }

    /// The life of the source that its key names. A task of ours at a neighbour is there by that one's own ticket.
    pub(super) fn expected(&self, ticket: Ticket) -> Option<Incarnation> {
        match self.slab.at(ticket)? {
            Wait::Neighbour { .. } if mutant!("neighbours_of_any_life") => None,
            Wait::Outside { expected, .. } | Wait::Neighbour { expected, .. } => Some(*expected),
            Wait::Away { .. } => None,
        }
    }

    /// An application thread gave its receive up, by its cell: where the table has it.
    pub(super) fn remove_cell(&mut self, gone: &Arc<WaitCell<Handed>>) -> Option<WaiterId> {
        // The seat is of this cell for as long as it stands there.
        let ticket = Ticket::unpack(gone.seat()? as u32);
        match self.slab.at(ticket) {
            Some(Wait::Outside { cell, .. }) if cell.is_to(gone) => {}
            _ => return None,
        }
        match self.slab.remove(ticket) {
            Some(Wait::Outside { id, .. }) => id,
            _ => None,
        }
    }

    /// A neighbour gave a receive up, by its own ticket: where the table has it.
    pub(super) fn remove_neighbour(&mut self, from: u16, wait: u32) -> Option<WaiterId> {
        let ticket = Ticket::unpack(*self.of_neighbour(from, wait));
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        match self.slab.at(ticket) {
            Some(Wait::Neighbour { shard, theirs, .. }) if (*shard, *theirs) == (from, wait) => {}
            _ => return None,
        }
        match self.slab.remove(ticket) {
            Some(Wait::Neighbour { id, .. }) => id,
            _ => None,
        }
    }

    /// An in-shard task has ended: its receives at neighbours, by shard and ticket.
    pub(super) fn remove_away(&mut self, task: TaskId) -> Vec<(u16, Ticket)> {
        let is_its = |of: &Wait| matches!(of, Wait::Away { task: of, .. } if *of == task);
        let tickets = self.slab.picked(is_its).into_iter();
        let ended = tickets.filter_map(|ticket| match self.slab.remove(ticket) {
            Some(Wait::Away { shard, .. }) => Some((shard, ticket)),
            _ => None,
        });
        ended.collect()
    }

    /// The application threads that wait.
    pub(super) fn outside(&self) -> Vec<Ticket> {
        self.slab
            .picked(|wait| matches!(wait, Wait::Outside { .. }))
    }

    /// One of them waits no more: where it is to be told why.
    pub(super) fn remove_outside(&mut self, ticket: Ticket) -> Option<Owed<WaitCell<Handed>>> {
        match self.slab.remove(ticket)? {
            Wait::Outside { cell, .. } => Some(cell),
            Wait::Neighbour { .. } | Wait::Away { .. } => None,
        }
    }

    // ────────────────────────────────────────── the thread that leads ───────────────────────────────────────────

    /// The thread that turns the shard waits, for a value of that life of its source.
    #[inline]
    pub(super) const fn lead(&mut self, expected: Incarnation) {
        self.led_expects = expected;
    }

    /// The life of the source that the key of its receive names.
    pub(super) const fn led_expects(&self) -> Incarnation {
        self.led_expects
    }

    /// Gives the thread that turns the shard its outcome. `waking` is as in [`Led`].
    #[inline(always)]
    pub(super) fn tell_leader(&mut self, waking: u64, outcome: Result<Handed, Status>) {
        self.led = Some(Led { outcome, waking });
    }

    /// True if an outcome for the thread that turns the shard is there.
    pub(super) const fn has_led(&self) -> bool {
        self.led.is_some()
    }

    /// The outcome for the thread that turns the shard, if it is there.
    #[inline]
    pub(super) const fn take_led(&mut self) -> Option<Led> {
        self.led.take()
    }
}

#[cfg(test)]
mod tests;
