//! Renewing: landings that a broken connection took with it are opened again on the next, within the budget.
//!
//! It decides nothing about values: the demands are the old ones, with the tickets the peer knows.

use super::core::{Core, PortOp, Room, Unopened};
use super::faults;
use super::ids::LinkId;
use crate::channel::{Demand, Rule};
use crate::ground::{Incarnation, limits};
use crate::wire::Ticket;

impl Core {
    /// A link is up, perhaps to another life of the peer, or to one that began anew: what was bound to the former goes.
    pub(super) fn heard_up(
        &mut self,
        link: LinkId,
        incarnation: Incarnation,
        former: Option<Incarnation>,
    ) {
        let peer = self.links[link].peer;
        if let Some(former) = former {
            self.drop_early(|early| early.link == link);
            self.partings.forget_link(link);
            self.forget_incoming(link);
            self.forget_asked(link);
            let entry = &mut self.links[link];
            entry.parked.clear();
            entry.unmapped.clear();
            entry.leased = 0;
            let task = &self.peers[peer].task;
            let is_same = former == incarnation;
            let status = match is_same {
                true => faults::peer_began_anew(task),
                false => faults::peer_restarted(task, former, incarnation),
            };
            if is_same || self.settings.rules.on(Rule::Restarts) {
                // The peer's other links have epochs of their own.
                self.fail_keys(&status, |entry| entry.link == link);
            }
            self.links[link].channel.forget_lines();
        }
        self.touch(link);
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
        let bare = entry.channel.demands(is_bare);
        self.renewals.retain(|&(of, _)| of != link);
        self.renewals
            .extend(bare.into_iter().map(|ticket| (link, ticket)));
        self.fetch_more();
    }

    /// Opens landings for demands that lost theirs, while there is budget: others may have taken it meanwhile. False
    /// if some must wait.
    pub(super) fn renew_more(&mut self) -> bool {
        while let Some(&(link, ticket)) = self.renewals.front() {
            let channel = self.links.at(link).map(|entry| &entry.channel);
            let demand = channel.and_then(|channel| channel.demand_at(ticket).copied());
            let Some((demand, meta)) = demand
                .filter(is_bare)
                .and_then(|demand| Some((demand, demand.meta?)))
            else {
                self.renewals.pop_front();
                continue;
            };
            let is_ahead = demand.offer.is_none();
            let size = meta
                .size()
                .or_else(|| demand.offer.map(|offer| offer.size))
                .unwrap_or(0);
            if self.has_budget(size, is_ahead) {
                let room = self.enter(size, is_ahead);
                if let Some(entry) = self.links.at_mut(link)
                    && !is_ahead
                {
                    entry.fetching += size;
                }
                self.port_ops.push(PortOp::OpenAndAsk {
                    link,
                    ticket,
                    meta,
                    patience_ns: 0,
                    room,
                });
            } else if is_ahead {
                reached!("renewal_without_budget");
                self.ask_bare(link, ticket);
            } else {
                reached!("renewal_without_budget");
                return false;
            }
            self.renewals.pop_front();
        }
        true
    }

    /// The fabric has no registration for a landing now. A demand goes without one, but for that of an offer: this is
    /// tried again, for as long as a peer may take to be there, and then its step ends.
    #[cold]
    pub(super) fn unopened(&mut self, link: LinkId, ticket: Ticket, room: Room) {
        let channel = self.links.at(link).map(|entry| &entry.channel);
        let Some(demand) = channel.and_then(|channel| channel.demand_at(ticket).copied()) else {
            return;
        };
        if demand.offer.is_none() {
            return self.ask_bare(link, ticket);
        }
        let since = self.unopened.map_or(self.now, |unopened| unopened.since);
        if self.now - since >= self.settings.connect_timeout_ns {
            self.unopened = None;
            return self.fail_step(demand.point.step, &faults::landing_unopened(room.bytes));
        }
        let again_at = self.now + limits::OPEN_AGAIN_NS;
        self.unopened = Some(Unopened { since, again_at });
        self.next_timer = self.next_timer.min(again_at);
        self.renewals.push_back((link, ticket));
    }

    /// It is time to try again.
    pub(crate) fn open_again(&mut self) {
        let Some(unopened) = self
            .unopened
            .filter(|unopened| unopened.again_at <= self.now)
        else {
            return;
        };
        if self.renewals.is_empty() && self.fetch_backlog.len() == 0 {
            self.unopened = None;
            return;
        }
        self.fetch_more();
        let again_at = self.now + limits::OPEN_AGAIN_NS;
        self.unopened = Some(Unopened {
            again_at,
            ..unopened
        });
    }

    /// True while no landing is to be tried.
    pub(super) fn is_barred(&self) -> bool {
        self.unopened
            .is_some_and(|unopened| unopened.again_at > self.now)
    }

    /// A request goes without a landing.
    pub(super) fn ask_bare(&mut self, link: LinkId, ticket: Ticket) {
        if let Some(entry) = self.links.at_mut(link) {
            entry.channel.ask(ticket, 0, None);
            self.touch(link);
        }
    }
}

/// True for a demand that had a landing, has none, and is still to be answered.
const fn is_bare(demand: &Demand) -> bool {
    demand.wants_landing && !demand.has_landing && !demand.is_cancelled && !demand.is_answered
}
