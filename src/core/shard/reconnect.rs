//! Reconnect: what ends with a connection, and what goes on over the next; landings that it took with it are opened
//! again, within the budget.
//!
//! It decides nothing about values: the demands are the old ones, with the tickets the peer knows.

use super::core::Core;
use super::ids::LinkId;
use super::transfers::{TransferId, Unopened};
use crate::channel::{Demand, Rule, Violation};
use crate::ground::{Incarnation, Status, faults};
use crate::memory::MemoryError;
use crate::wire::Ticket;

impl Core {
    /// A link is up, perhaps to another life of the peer, or to one that began anew: what was bound to the former goes.
    pub(super) fn heard_up(
        &mut self,
        link: LinkId,
        incarnation: Incarnation,
        former: Option<Incarnation>,
        has_dropped: bool,
    ) {
        let peer = self.links[link].peer;
        // What is lent to it comes home when that very life is over. A connection that is being replaced may be of the
        // life before.
        let is_current = self.links[link].next.is_none();
        let is_greeted = self.peers[peer].is_of_life(incarnation);
        if is_current && !is_greeted && !mutant!("incarnation_unchecked") {
            return self.violated(link, Violation::Incarnation);
        }
        if let Some(former) = former {
            self.forget_epoch(link);
            let task = &self.peers[peer].task;
            let is_same = former == incarnation;
            let status = match is_same {
                true => faults::peer_began_anew(task),
                false => faults::peer_restarted(task, former, incarnation),
            };
            if is_same || self.settings.rules.on(Rule::Restarts) {
                // The peer's other links have epochs of their own.
                let dropped = self.stats.dropped;
                self.fail_keys(&status, |entry| entry.way.link == link);
                if is_same && self.stats.dropped > dropped {
                    self.links[link].channel.mark_dropped(incarnation);
                }
            }
            self.links[link].channel.forget_lines();
        }
        if has_dropped && !mutant!("dropped_values_not_told") {
            self.fail_receives_of(link);
        }
        self.links.touch(link);
        self.pump(link);
        self.stir(link);
        self.renew_demands(link);
        self.links[link].has_asked = false;
        self.ask_when_pressed(link);
    }

    /// A connection resumed: demands whose landing came home empty want another.
    pub(crate) fn renew_demands(&mut self, link: LinkId) {
        let Some(entry) = self.links.at(link) else {
            return;
        };
        self.transfers
            .renew(link, entry.channel.demands(Demand::is_bare));
        self.fetch_more();
    }

    /// No landing could be opened for a demand.
    #[cold]
    pub(super) fn no_landing(&mut self, link: LinkId, ticket: Ticket, bytes: u64, lack: Lack) {
        let Some(entry) = self.links.at_mut(link) else {
            return;
        };
        let Some(demand) = entry.channel.demand_at(ticket).copied() else {
            return;
        };
        let patience_ns = self.settings.connect_timeout_ns;
        let unopened = match lack {
            Lack::Memory(why) => self.transfers.no_memory(link, ticket, &demand, why),
            Lack::Registration => {
                (self.transfers).refused(link, ticket, &demand, self.now, patience_ns)
            }
        };
        match unopened {
            Unopened::Bare => self.ask_bare(link, ticket),
            Unopened::Later => self.next_timer = self.next_timer.min(self.transfers.next_try()),
            Unopened::Requeued => drop(entry.channel.settle(ticket)),
            Unopened::Unfit(why) => {
                self.take_nothing(link, ticket, &faults::landing_unfit(bytes, &why.into()));
            }
            Unopened::Refused => {
                self.next_timer = self.next_timer.min(self.transfers.next_try());
                self.take_nothing(link, ticket, &faults::landing_unopened(bytes));
            }
        }
    }

    /// An offer that was accepted cannot be brought here: the receive that waits for it hears why, its sender may let
    /// go of it, and what comes next is for the others. Where that receive has left, nothing may be lost unheard: the
    /// step ends.
    #[cold]
    fn take_nothing(&mut self, link: LinkId, ticket: Ticket, why: &Status) {
        let entry = self.links.at(link);
        let Some(demand) = entry.and_then(|entry| entry.channel.demand_at(ticket).copied()) else {
            return;
        };
        let slot = Self::slot_of(demand.key, demand.point);
        let mut is_awaited = false;
        self.table.waiting_at(slot, |_, _, ordinal| {
            is_awaited |= ordinal == demand.ordinal
        });
        if !is_awaited {
            return self.fail_step(slot.step, why);
        }
        // The peer lets go of it at once or, where it has heard of the demand, with the answer: see `heard_end`.
        self.links[link].channel.cancel(ticket);
        self.links.touch(link);
        self.stats.dropped += 1;
        reached!("no_room_for_one_value");
        self.fail_waiters_of(slot, why, |ordinal| ordinal == demand.ordinal);
        // At once: the receive behind has moved up to its place.
        if let Some(accepted) = demand.offer {
            self.withdraw(link, slot, TransferId::from_token(demand.tag), &accepted);
        }
    }

    /// It may be time to try again what the fabric refused.
    pub(crate) fn open_again(&mut self) {
        if self.transfers.try_again(self.now) {
            self.open_landings();
        }
    }

    /// A request goes without a landing.
    pub(super) fn ask_bare(&mut self, link: LinkId, ticket: Ticket) {
        if let Some(entry) = self.links.at_mut(link) {
            entry.channel.ask(ticket, 0, None);
            self.links.touch(link);
        }
    }
}

/// What a landing could not be opened for want of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lack {
    Memory(MemoryError),
    /// The fabric has none now.
    Registration,
}
