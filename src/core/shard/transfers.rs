//! Transfers: the state of peers' large values until their bytes are here, and the next action for each.
//!
//! Pure: it decides, and its caller leases, asks and opens. It knows neither channels nor ports nor the table.

use std::collections::VecDeque;

use super::backlog::Backlog;
use super::budget::{LandingBudget, LandingPlace, LandingRoom, Purpose, Short};
use super::ids::LinkId;
use crate::channel::Accepted;
use crate::channel::slab::Slab;
use crate::channel::{Demand, OfferHeard, ReturnedLease};
use crate::ground::{Nanos, Region, TensorMeta, limits};
use crate::memory::MemoryError;
use crate::rendezvous::Slot;
use crate::wire::Ticket;

#[cfg(test)]
mod tests;

/// A transfer. The table and a demand know it as a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TransferId(Ticket);

impl TransferId {
    /// As [`Self::token`] said it.
    pub(crate) const fn from_token(token: u64) -> Self {
        Self(Ticket::unpack(token as u32))
    }

    pub(crate) const fn token(self) -> u64 {
        self.0.packed() as u64
    }
}

/// An offer of a peer in the table, its bytes not here yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub(crate) link: LinkId,
    pub(crate) slot: Slot,
    pub(crate) ordinal: u32,
    pub(crate) offer: Accepted,
    /// Where it is read in place, as soon as its segment is mapped.
    pub(crate) region: Option<Region>,
    /// Its bytes are ours, and come back.
    pub(crate) lent: Option<ReturnedLease>,
    pub(crate) is_wanted: bool,
    /// Its trace, if it is timed.
    pub(crate) trace: u16,
}

/// What an offer needs next.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Next {
    /// Nothing: it waits to be wanted or for its segment, or is on its way.
    Nothing,
    /// Its region is tried.
    Lease,
    /// Its bytes are looked up where they were lent.
    TakeBack(ReturnedLease),
    /// It waits for a landing, and one may be opened.
    Open,
    /// It goes back to its sender.
    Decline(LinkId, Accepted),
}

/// A landing that is opened for a demand, whose request then names it.
#[derive(Debug)]
pub(crate) struct ToOpen {
    pub(crate) link: LinkId,
    pub(crate) ticket: Ticket,
    pub(crate) meta: TensorMeta,
    pub(crate) patience_ns: u64,
    pub(crate) room: LandingRoom,
}

/// A landing to open, or to do without.
#[derive(Debug)]
pub(crate) enum Opening {
    /// For an offer: a demand is made that accepts it.
    Offer(TransferId, Incoming, LandingRoom),
    /// For a demand that lost its landing with a connection.
    Again(ToOpen),
    /// Others have taken the budget meanwhile: the demand goes without.
    Bare(LinkId, Ticket),
}

/// What a demand does for which no landing could be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unopened {
    /// It goes without.
    Bare,
    /// It is kept, and gets one when there is room again or the time has come.
    Later,
    /// It ends before it was asked; its offer waits for a landing again.
    Requeued,
    /// No landing is open whose end would make room: the arena has none for its value.
    Unfit(MemoryError),
    /// The fabric has refused for as long as a peer may take to be there.
    Refused,
}

/// The fabric refuses to open landings, though queue pairs are up.
#[derive(Clone, Copy, Debug)]
struct Barred {
    since: Nanos,
    /// When it is tried again.
    until: Nanos,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Transfers {
    offers: Slab<Incoming>,
    /// How many there are of each link, by its number.
    of_links: Vec<u32>,
    /// Those that are wanted and wait for a landing.
    backlog: Backlog,
    /// Demands whose landing went with a connection, by link: each wants another.
    renewals: VecDeque<(LinkId, Ticket)>,
    barred: Option<Barred>,
    budget: LandingBudget,
}

impl Transfers {
    pub(crate) fn new(landing_bytes: Option<u64>) -> Self {
        Self {
            offers: Slab::new(limits::INCOMING),
            of_links: Vec::new(),
            backlog: Backlog::default(),
            renewals: VecDeque::new(),
            barred: None,
            budget: LandingBudget::new(landing_bytes),
        }
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn len(&self) -> usize {
        self.offers.len()
    }

    /// How many values a link's peer has on offer that are not taken yet.
    #[inline]
    pub(crate) fn of_link(&self, link: LinkId) -> usize {
        let count = self.of_links.get(link.number() as usize);
        count.map_or(0, |&count| count as usize)
    }

    /// How many offers and demands wait for a landing.
    pub(crate) fn waiting(&self) -> usize {
        self.backlog.len() + self.renewals.len()
    }

    pub(crate) const fn landing_bytes(&self) -> u64 {
        self.budget.bytes()
    }

    /// A peer offers a value; `None` if there are too many.
    pub(crate) fn begin(&mut self, incoming: Incoming) -> Option<TransferId> {
        let at = incoming.link.number() as usize;
        let id = self.offers.insert(incoming).ok().map(TransferId)?;
        if self.of_links.len() <= at {
            self.of_links.resize(at + 1, 0);
        }
        self.of_links[at] += 1;
        Some(id)
    }

    pub(crate) fn at(&self, id: TransferId) -> Option<&Incoming> {
        self.offers.at(id.0)
    }

    /// True if a transfer is of that offer of the link's peer. One that has ended leaves its number to later ones.
    pub(crate) fn is_of(&self, id: TransferId, link: LinkId, offer: &Accepted) -> bool {
        let known = self.offers.at(id.0);
        known.is_some_and(|of| {
            (of.link, of.offer.ticket) == (link, offer.ticket) || mutant!("landings_of_any_offer")
        })
    }

    /// The value is here, or it is no longer wanted.
    pub(crate) fn end(&mut self, id: TransferId) -> Option<Incoming> {
        let ended = self.offers.remove(id.0)?;
        if let Some(count) = self.of_links.get_mut(ended.link.number() as usize) {
            *count = count.saturating_sub(1);
        }
        Some(ended)
    }

    /// Every one that `is_it`.
    pub(crate) fn pick(&self, is_it: impl Fn(&Incoming) -> bool) -> Vec<TransferId> {
        let picked = self.offers.picked(is_it);
        picked.into_iter().map(TransferId).collect()
    }

    /// An epoch of a link is over: its offers are gone, and what its landings wait for comes no more.
    pub(crate) fn end_epoch(&mut self, link: LinkId) {
        self.budget.end_link(link);
        for id in self.pick(|incoming| incoming.link == link) {
            self.end(id);
        }
    }

    // ───────────────────────────────────────────────── offers ─────────────────────────────────────────────────

    /// A receiver wants an offer's bytes.
    pub(crate) fn want(&mut self, id: TransferId) -> Next {
        let Some(incoming) = self.offers.at_mut(id.0) else {
            return Next::Nothing;
        };
        if std::mem::replace(&mut incoming.is_wanted, true) || incoming.region.is_some() {
            return Next::Nothing;
        }
        if let Some(lent) = incoming.lent {
            return Next::TakeBack(lent);
        }
        self.backlog.push_back(incoming.link, id);
        Next::Open
    }

    /// A write that served an accepted offer did not arrive: the value is on offer again, under another ticket.
    pub(crate) fn offered_again(
        &mut self,
        link: LinkId,
        id: TransferId,
        former: &Accepted,
        offer: &OfferHeard,
    ) -> Next {
        let again = Accepted {
            ticket: offer.offer.ticket,
            ..*former
        };
        let is_of = self.is_of(id, link, former);
        let Some(incoming) = self.offers.at_mut(id.0).filter(|_| is_of) else {
            // Its lines went back when it was given up.
            return Next::Decline(link, Accepted { lines: 0, ..again });
        };
        incoming.offer = again;
        incoming.region = offer.region;
        incoming.lent = offer.lent;
        incoming.is_wanted = offer.region.is_some();
        if incoming.is_wanted {
            return Next::Lease;
        }
        self.want(id)
    }

    /// An offer is no lease: it must be copied. To wait for a lease would be wrong: those that are out may be of values
    /// that wait behind this one.
    pub(crate) fn forgo_lease(&mut self, id: TransferId) -> Next {
        let Some(incoming) = self.offers.at_mut(id.0) else {
            return Next::Nothing;
        };
        incoming.region = None;
        if !std::mem::take(&mut incoming.is_wanted) {
            return Next::Nothing;
        }
        reached!("offered_again_and_no_lease");
        self.want(id)
    }

    /// Bytes that were lent are on offer no more: the peer is asked for them.
    pub(crate) fn forgo_lent(&mut self, id: TransferId) -> Next {
        let Some(incoming) = self.offers.at_mut(id.0) else {
            return Next::Nothing;
        };
        incoming.lent = None;
        incoming.is_wanted = false;
        self.want(id)
    }

    // ──────────────────────────────────────────────── landings ────────────────────────────────────────────────

    /// Room for a landing ahead of its value, if there is any.
    pub(crate) fn room_ahead(&mut self, link: LinkId, bytes: u64) -> Option<LandingRoom> {
        self.budget.take(link, bytes, Purpose::Ahead).ok()
    }

    /// A landing was not opened after all.
    pub(crate) fn come_home(&mut self, room: LandingRoom) {
        self.budget.come_home(room);
    }

    /// A landing is open.
    pub(crate) fn opened(&mut self, place: LandingPlace, room: LandingRoom) {
        self.budget.keep(place, room);
        self.barred = None;
    }

    /// A landing is quiet.
    pub(crate) fn quiet(&mut self, place: LandingPlace) {
        self.budget.quiet(place);
    }

    /// A connection resumed: these demands of its link want another landing.
    pub(crate) fn renew(&mut self, link: LinkId, bare: Vec<Ticket>) {
        self.renewals.retain(|&(of, _)| of != link);
        self.renewals
            .extend(bare.into_iter().map(|ticket| (link, ticket)));
    }

    /// The next landing to open while there is budget: for demands first, then for wanted offers, each link in its turn
    /// and of a link the oldest first. `passed` counts the links that have let the next one go first; `bare` gives a
    /// demand that still wants a landing and has none.
    pub(crate) fn next_opening(
        &mut self,
        passed: &mut usize,
        bare: impl Fn(LinkId, Ticket) -> Option<Demand>,
    ) -> Option<Opening> {
        while let Some(&(link, ticket)) = self.renewals.front() {
            let demand = bare(link, ticket).and_then(|demand| Some((demand.offer, demand.meta?)));
            let opening = match demand {
                None => None,
                Some((offer, meta)) => Some(self.open_again(link, ticket, offer, meta)?),
            };
            self.renewals.pop_front();
            if opening.is_some() {
                return opening;
            }
        }
        while *passed < self.backlog.links() {
            let (link, id) = self.backlog.front()?;
            let Some(&incoming) = self.at(id) else {
                self.backlog.pop();
                continue;
            };
            match self.budget.take(link, incoming.offer.size, Purpose::Offer) {
                Ok(room) => {
                    self.backlog.pop();
                    return Some(Opening::Offer(id, incoming, room));
                }
                // It keeps its turn: a large value would never find room behind small ones.
                Err(Short::Budget) => return None,
                Err(Short::Share) => {
                    self.backlog.pass();
                    *passed += 1;
                }
            }
        }
        None
    }

    /// A further landing for a demand; `None` if it must wait.
    fn open_again(
        &mut self,
        link: LinkId,
        ticket: Ticket,
        offer: Option<Accepted>,
        meta: TensorMeta,
    ) -> Option<Opening> {
        let size = meta.size().or_else(|| offer.map(|offer| offer.size));
        let purpose = match offer {
            Some(_) => Purpose::Again,
            None => Purpose::Ahead,
        };
        if let Ok(room) = self.budget.take(link, size.unwrap_or(0), purpose) {
            return Some(Opening::Again(ToOpen {
                link,
                ticket,
                meta,
                patience_ns: 0,
                room,
            }));
        }
        reached!("renewal_without_budget");
        offer.is_none().then_some(Opening::Bare(link, ticket))
    }

    /// The link of an offer takes no more demands now: another link is tried.
    pub(crate) fn pass(&mut self, link: LinkId, id: TransferId, room: LandingRoom) {
        self.budget.come_home(room);
        self.backlog.push_front(link, id);
    }

    /// There is no memory for a demand's landing.
    pub(crate) fn no_memory(
        &mut self,
        link: LinkId,
        ticket: Ticket,
        demand: &Demand,
        why: MemoryError,
    ) -> Unopened {
        if demand.offer.is_none() {
            Unopened::Bare
        } else if self.budget.bytes() == 0 {
            Unopened::Unfit(why)
        } else if demand.is_asked() {
            // The peer knows its ticket, and may answer it yet.
            self.renewals.push_front((link, ticket));
            Unopened::Later
        } else {
            self.backlog
                .push_front(link, TransferId::from_token(demand.tag));
            Unopened::Requeued
        }
    }

    /// The fabric has no registration for a landing now. None is tried for a while, for `patience_ns` at most.
    #[cold]
    pub(crate) fn refused(
        &mut self,
        link: LinkId,
        ticket: Ticket,
        demand: &Demand,
        now: Nanos,
        patience_ns: u64,
    ) -> Unopened {
        if demand.offer.is_none() {
            return Unopened::Bare;
        }
        let since = self.barred.map_or(now, |barred| barred.since);
        let until = now + limits::OPEN_AGAIN_NS;
        self.barred = Some(Barred { since, until });
        // So for all that wait: none of them is tried for as long once more.
        if now - since >= patience_ns {
            return Unopened::Refused;
        }
        self.renewals.push_back((link, ticket));
        Unopened::Later
    }

    /// When landings are tried again.
    pub(crate) fn next_try(&self) -> Nanos {
        self.barred.map_or(Nanos::NEVER, |barred| barred.until)
    }

    /// True while no landing is to be tried.
    pub(crate) fn is_barred(&self, now: Nanos) -> bool {
        self.barred.is_some_and(|barred| barred.until > now)
    }

    /// True if it is time to try again.
    pub(crate) fn try_again(&mut self, now: Nanos) -> bool {
        if self.waiting() == 0 {
            self.barred = self.barred.filter(|barred| barred.until > now);
        }
        match &mut self.barred {
            Some(barred) if barred.until <= now => {
                barred.until = now + limits::OPEN_AGAIN_NS;
                true
            }
            _ => false,
        }
    }
}
