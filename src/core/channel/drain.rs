//! Draining: a side that is about to leave hears which of its values were received, and waits for those no longer.
//!
//! It knows what was asked and answered, not how long a side waits, nor which leases there are.
//!
//! ```text
//!   owner, about to leave                              reader
//!   on offer as o   ── Offer o, region ──────────────▶ leased, and received
//!   on offer as p   ── Offer p, region ──────────────▶ leased
//!                   ── Drain ────────────────────────▶
//!   o no more owed  ◀──────────────────────── Held o ──
//!                                                      p is received
//!   p no more owed  ◀──────────────────────── Held p ──
//! ```
//!
//! Both frames stand in the streams, so they are repeated over connections of one epoch; another epoch asks anew. A
//! peer that says so falsely, or never, harms itself: its value ends with us, or we wait until our deadline.

use super::heard::{Heard, Violation};
use super::{Channel, Payload};
use crate::wire::{Kind, Message, Ticket};

#[derive(Debug, Default)]
pub(super) struct Drain {
    /// We are about to leave.
    is_ours: bool,
    /// The peer has been told, in this epoch.
    is_told: bool,
    /// The peer is about to leave, and hears what is held.
    is_theirs: bool,
}

impl Drain {
    pub(super) const fn end_epoch(&mut self) {
        self.is_told = false;
        self.is_theirs = false;
    }
}

impl<V: Payload> Channel<V> {
    /// This side is about to leave.
    pub fn drain(&mut self) {
        self.drain.is_ours = true;
        if self.offers.wanting() > 0 {
            self.tell_drain();
        }
    }

    /// Asks what the peer holds, if we are about to leave: there is, or is about to be, a value on offer.
    #[inline]
    pub(super) fn tell_drain(&mut self) {
        let is_due = self.drain.is_ours && !self.drain.is_told;
        if is_due && self.session.is_up() {
            self.drain.is_told = true;
            self.queue(&Message::Drain);
        }
    }

    pub(super) const fn handle_drain<'a>(&mut self) -> Heard<'a, V> {
        // Once an epoch: the answer may be long.
        if std::mem::replace(&mut self.drain.is_theirs, true) {
            return Heard::Nothing;
        }
        Heard::Drain
    }

    /// An offered value of the peer's is held here: the peer hears so, if it is about to leave. True if there is
    /// something to post.
    #[inline]
    pub fn hold(&mut self, offer: Ticket) -> bool {
        let is_asked = self.drain.is_theirs && !mutant!("later_leases_not_told_held");
        if is_asked {
            self.queue_ticket(Kind::Held, offer, Message::Held(offer, &[]));
        }
        is_asked
    }

    pub(super) fn handle_held<'a>(
        &mut self,
        offers: impl Iterator<Item = Ticket>,
    ) -> Result<Heard<'a, V>, Violation> {
        for offer in offers {
            let is_there = self.offers.hold(offer)?;
            self.counters.stale += u64::from(!is_there);
        }
        Ok(Heard::Nothing)
    }
}
