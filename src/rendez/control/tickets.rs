//! Tickets: which data connections are expected, and whether an incoming one is among them.
//!
//! Pure: preambles and times in, verdicts out; what a connection is, it does not know. A set is given out in a
//! conversation, to be redeemed once for each of its channels within a short time; what has ended is remembered for a
//! while, so that a peer that comes late or twice is told so, if it can sign.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use crate::ground::Incarnation;
use crate::ground::limits::{TICKET_SETS_MAX, TICKETS_ENDED_MAX};

use super::preamble::{TICKET, TICKET_SIGNED, Ticket, Verdict};
use super::secret::Session;
use super::signal::Signal;

/// The expected connections of one task, each an `S`.
#[derive(Debug)]
pub(crate) struct Tickets<S> {
    incarnation: Incarnation,
    sets: BTreeMap<[u8; 16], Set<S>>,
    ended: VecDeque<Ended>,
}

#[derive(Debug)]
struct Set<S> {
    session: Option<Session>,
    expires_ms: u64,
    sockets: Vec<Option<S>>,
    complete: Rc<Signal>,
}

#[derive(Debug)]
struct Ended {
    id: [u8; 16],
    session: Option<Session>,
    was_used: bool,
}

/// Where a connection belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    id: [u8; 16],
    channel: usize,
}

/// A set that is expected; dropped, it is not any more.
#[derive(Debug)]
pub(crate) struct Awaited<S> {
    tickets: Rc<RefCell<Tickets<S>>>,
    pub(crate) id: [u8; 16],
    pub(crate) expires_ms: u64,
    complete: Rc<Signal>,
}

impl<S> Tickets<S> {
    /// Nothing is expected by this life of the task.
    pub(crate) const fn new(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            sets: BTreeMap::new(),
            ended: VecDeque::new(),
        }
    }

    /// Expects `channels` connections under `id` until `expires_ms`, signed by `session` if there is one. The signal
    /// is set when all are there. `None` if as many sets are expected as may be.
    pub(crate) fn issue(
        &mut self,
        id: [u8; 16],
        channels: u32,
        session: Option<Session>,
        expires_ms: u64,
    ) -> Option<Rc<Signal>> {
        if self.sets.len() >= TICKET_SETS_MAX || self.sets.contains_key(&id) {
            return None;
        }
        let complete = Rc::new(Signal::default());
        if channels == 0 {
            complete.set();
        }
        let set = Set {
            session,
            expires_ms,
            sockets: (0..channels).map(|_| None).collect(),
            complete: Rc::clone(&complete),
        };
        self.sets.insert(id, set);
        Some(complete)
    }

    /// Judges a connection's preamble: where the connection belongs. `binding` is the exporter of the TLS that it came
    /// in, or nothing.
    ///
    /// # Errors
    /// The verdict. A peer that cannot sign is told only [`Verdict::UnknownTicket`].
    pub(crate) fn judge(
        &self,
        bytes: &[u8; TICKET],
        binding: &[u8],
        now_ms: u64,
    ) -> Result<Place, Verdict> {
        let (ticket, mac) = Ticket::read(bytes).ok_or(Verdict::UnknownTicket)?;
        let is_signed = |session: &Option<Session>| {
            session.as_ref().map_or(mac == [0; 32], |session| {
                session.is_ticket(&bytes[..TICKET_SIGNED], binding, &mac)
            })
        };
        let Some(set) = self.sets.get(&ticket.id) else {
            let ended = self.ended.iter().find(|ended| ended.id == ticket.id);
            return Err(match ended {
                Some(ended) if !is_signed(&ended.session) => Verdict::UnknownTicket,
                Some(ended) if ended.was_used => Verdict::ReusedTicket,
                Some(_) => Verdict::ExpiredTicket,
                None => Verdict::UnknownTicket,
            });
        };
        let channel = ticket.channel as usize;
        let is_meant =
            ticket.incarnation == self.incarnation && ticket.expires_ms == set.expires_ms;
        if !is_signed(&set.session) || !is_meant || channel >= set.sockets.len() {
            return Err(Verdict::UnknownTicket);
        }
        if now_ms >= set.expires_ms {
            return Err(Verdict::ExpiredTicket);
        }
        match &set.sockets[channel] {
            Some(_) => Err(Verdict::ReusedTicket),
            None => Ok(Place {
                id: ticket.id,
                channel,
            }),
        }
    }

    /// Puts a connection in its place.
    pub(crate) fn put(&mut self, place: Place, socket: S) {
        let Some(set) = self.sets.get_mut(&place.id) else {
            return;
        };
        // The first one stays: another may have been judged meanwhile.
        set.sockets[place.channel].get_or_insert(socket);
        if set.sockets.iter().all(Option::is_some) {
            set.complete.set();
        }
    }

    /// The connections of a set by channel, if all are there. However it ends, the set is over.
    pub(crate) fn take(&mut self, id: [u8; 16]) -> Option<Vec<S>> {
        let set = self.sets.remove(&id)?;
        let sockets: Option<Vec<S>> = set.sockets.into_iter().collect();
        self.ended.push_back(Ended {
            id,
            session: set.session,
            was_used: sockets.is_some(),
        });
        if self.ended.len() > TICKETS_ENDED_MAX {
            self.ended.pop_front();
        }
        sockets
    }
}

impl<S> Awaited<S> {
    /// Begins to expect `channels` connections until `expires_ms`. `None` if as many sets are expected as may be, or
    /// the system gives no random numbers.
    pub(crate) fn begin(
        tickets: &Rc<RefCell<Tickets<S>>>,
        channels: u32,
        session: Option<Session>,
        expires_ms: u64,
    ) -> Option<Self> {
        let mut id = [0; 16];
        getrandom::fill(&mut id).ok()?;
        let complete = tickets
            .borrow_mut()
            .issue(id, channels, session, expires_ms)?;
        Some(Self {
            tickets: Rc::clone(tickets),
            id,
            expires_ms,
            complete,
        })
    }

    /// All connections, by channel, once they are there.
    pub(crate) async fn sockets(self) -> Vec<S> {
        self.complete.wait().await;
        let sockets = self.tickets.borrow_mut().take(self.id);
        sockets.unwrap_or_default()
    }
}

impl<S> Drop for Awaited<S> {
    fn drop(&mut self) {
        drop(self.tickets.borrow_mut().take(self.id));
    }
}

#[cfg(test)]
mod tests;
