//! Offers: values of ours that the peer knows of and that still lie here.
//!
//! It knows which reader may be reading which value, and what that keeps occupied; not how an offer is told. An offer
//! ends when the peer accepts or releases it, and with its step or its epoch, unless the peer may be reading it in
//! place: then only the peer's word or the proof that it is gone ends it.

use super::heard::{ReturnedLease, Violation};
use super::keyed::{Keyed, OfKey};
use super::{ChannelSettings, Payload, Rule};
use crate::ground::limits::PARKED_REQUESTS;
use crate::ground::{Incarnation, MemoryKind, Region, StepId};
use crate::rendezvous::KeyId;
use crate::wire::message::Subject;
use crate::wire::{Point, Ticket};

/// A value on offer.
#[derive(Debug)]
pub(super) struct Offered<V> {
    pub(super) value: V,
    pub(super) key: KeyId,
    pub(super) point: Point,
    pub(super) ordinal: u32,
    is_readable: bool,
    /// Its bytes are the peer's own, and their lease is kept by the value: the peer releases it.
    is_lent: bool,
    /// The life of the peer it was offered to.
    reader: Option<Incarnation>,
    /// Its epoch is over, and the peer may read it all the same.
    is_kept: bool,
    /// The peer of this epoch has said that it holds it.
    is_held: bool,
}

impl<V> OfKey for Offered<V> {
    fn key(&self) -> KeyId {
        self.key
    }
}

#[derive(Debug)]
pub(super) struct Offers<V> {
    all: Keyed<Offered<V>>,
    /// How the bytes on offer have changed, by step, since that was last asked.
    weighed: Vec<(Option<StepId>, i64)>,
    /// Values of ended epochs that the peer may still read.
    kept: usize,
    /// Values of this epoch that the peer holds.
    held: usize,
    /// Those that can be read in place, with those kept: no more than `limit`, and what is beyond is copied.
    readable: usize,
    limit: usize,
    leases_stay: bool,
}

/// Under which ticket a value is on offer, and where its bytes lie.
pub(super) struct Placed {
    pub(super) ticket: Ticket,
    pub(super) region: Option<Region>,
    pub(super) lent: Option<Ticket>,
}

impl<V: Payload> Offers<V> {
    pub(super) fn new(settings: &ChannelSettings) -> Self {
        Self {
            // Writes that failed come back as offers, beyond what may be offered; and as many as may be offered are
            // kept for readers of ended epochs.
            all: Keyed::new(2 * settings.offers + PARKED_REQUESTS),
            weighed: Vec::new(),
            kept: 0,
            held: 0,
            readable: 0,
            limit: settings.offers,
            leases_stay: settings.rules.on(Rule::LeaseStays),
        }
    }

    /// True if one more value may be offered. What peers of ended epochs may still read is counted apart.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.len() < self.limit
    }

    /// How many are on offer.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.all.len() - self.kept
    }

    /// How many are on offer and not held by the peer: it may still need us for them.
    pub(super) fn wanting(&self) -> usize {
        self.len() - self.held
    }

    /// How many lie here, with those of ended epochs.
    pub(super) fn len_with_kept(&self) -> usize {
        self.all.len()
    }

    pub(super) fn has(&self, key: KeyId) -> bool {
        self.all.has(key)
    }

    #[inline]
    pub(super) fn has_weighed(&self) -> bool {
        !self.weighed.is_empty()
    }

    /// What has changed since it was last asked: see `Channel::take_weighed`.
    #[inline]
    pub(super) fn take_weighed(&mut self, mut weigh: impl FnMut(Option<StepId>, i64)) {
        for &(step, change) in &self.weighed {
            weigh(step, change);
        }
        self.weighed.clear();
    }

    /// Puts a value on offer to `reader`, who reads it in place if `shows` and it can be. `None`, and the value is
    /// where it was, if there is no place.
    #[inline]
    pub(super) fn put(
        &mut self,
        key: KeyId,
        subject: &Subject,
        offering: &mut Option<V>,
        reader: Option<Incarnation>,
        shows: bool,
    ) -> Option<Placed> {
        let value = offering.as_ref()?;
        let shows = shows && self.readable < self.limit;
        let region = if shows { value.region() } else { None };
        let lent = value.lent().filter(|_| region.is_none());
        let weight = value.weight() as i64;
        let ticket = self.all.insert_with(key, || {
            Some(Offered {
                value: offering.take()?,
                key,
                point: subject.point,
                ordinal: subject.ordinal,
                is_readable: region.is_some(),
                is_lent: lent.is_some(),
                reader,
                is_kept: false,
                is_held: false,
            })
        })?;
        self.readable += usize::from(region.is_some());
        self.weigh(subject.point.step, region.is_some(), weight);
        Some(Placed {
            ticket,
            region,
            lent,
        })
    }

    /// Takes one out, whichever epoch it is of.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Offered<V>> {
        let offered = self.all.remove(ticket)?;
        self.kept -= usize::from(offered.is_kept);
        self.held -= usize::from(offered.is_held);
        self.readable -= usize::from(offered.is_readable);
        let weight = offered.value.weight() as i64;
        self.weigh(offered.point.step, offered.is_readable, -weight);
        Some(offered)
    }

    /// Drops one where it lies, whichever epoch it is of. False if it is not there.
    pub(super) fn release(&mut self, ticket: Ticket) -> bool {
        let Some(offered) = self.all.at(ticket) else {
            return false;
        };
        let (is_kept, is_readable) = (offered.is_kept, offered.is_readable);
        let is_held = offered.is_held;
        let (step, weight) = (offered.point.step, offered.value.weight() as i64);
        self.kept -= usize::from(is_kept);
        self.held -= usize::from(is_held);
        self.readable -= usize::from(is_readable);
        self.weigh(step, is_readable, -weight);
        self.all.discard(ticket)
    }

    fn weigh(&mut self, step: StepId, is_readable: bool, change: i64) {
        if change != 0 {
            self.weighed.push(((!is_readable).then_some(step), change));
        }
    }

    /// The value that the peer sent back, for as long as it is on offer.
    pub(super) fn lent(&self, lent: ReturnedLease) -> Option<&V> {
        let offered = self.all.at(lent.offer)?;
        (offered.value.region() == Some(lent.region)).then_some(&offered.value)
    }

    /// What `reader` sends back must be on offer to this very life of it, readable in place, and as long as it says.
    /// `None` for an offer that is gone: the value can still be asked for.
    pub(super) fn judge_lent(
        &self,
        offer: Ticket,
        size: u64,
        reader: Option<Incarnation>,
    ) -> Result<Option<ReturnedLease>, Violation> {
        let Some(offered) = self.all.at(offer) else {
            return Ok(None);
        };
        let is_theirs = offered.is_readable && offered.reader == reader;
        match offered.value.region() {
            Some(region) if is_theirs && region.len == size => {
                Ok(Some(ReturnedLease { offer, region }))
            }
            _ => Err(Violation::Lease),
        }
    }

    /// The peer holds a value of this epoch: where it lies in memory of the host, it needs nothing of us any more. A
    /// device's memory may be another's, which goes back when we end. False if it is there no more.
    pub(super) fn hold(&mut self, ticket: Ticket) -> Result<bool, Violation> {
        let Some(offered) = self.all.at_mut(ticket) else {
            return Ok(false);
        };
        if !offered.is_readable {
            return Err(Violation::Lease);
        }
        let region = offered.value.region();
        if region.is_some_and(|region| region.kind == MemoryKind::Host) && !offered.is_kept {
            self.held += usize::from(!std::mem::replace(&mut offered.is_held, true));
        }
        Ok(true)
    }

    /// An epoch ends: every offer goes, except those that the peer may be reading. Giving it up proves nothing about
    /// its process, so that memory stays as it is until the peer releases it, or is proved gone.
    pub(super) fn end_epoch(&mut self) {
        for ticket in self.all.picked(|_| true) {
            let Some(offered) = self.all.at_mut(ticket) else {
                continue;
            };
            if offered.is_readable && self.leases_stay {
                reached!("read_by_a_lost_peer");
                self.kept += usize::from(!std::mem::replace(&mut offered.is_kept, true));
                self.held -= usize::from(std::mem::take(&mut offered.is_held));
            } else {
                self.take(ticket);
            }
        }
    }

    /// What ended epochs left, and `reader` may still read.
    pub(super) fn kept_for(&self, reader: Incarnation) -> Vec<Ticket> {
        if self.kept == 0 {
            return Vec::new();
        }
        self.all
            .picked(|offered| offered.is_kept && offered.reader == Some(reader))
    }

    /// A life of the peer is proved over: nothing that was offered to it is read any more.
    pub(super) fn exited(&mut self, reader: Incarnation) {
        for ticket in self.all.picked(|offered| offered.reader == Some(reader)) {
            self.take(ticket);
        }
    }

    /// A step ends: what cannot be had without us goes. What the peer reads in place, or has in its own memory, stays.
    pub(super) fn end_step(&mut self, step: StepId) {
        let is_had =
            |offered: &Offered<V>| offered.is_lent || (offered.is_readable && self.leases_stay);
        for ticket in self
            .all
            .picked(|offered| offered.point.step == step && !is_had(offered))
        {
            self.take(ticket);
        }
    }
}
