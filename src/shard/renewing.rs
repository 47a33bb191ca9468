//! Renewing: landings that a broken connection took with it are opened again on the next, within the budget.
//!
//! It decides nothing about values: the demands are the old ones, with the tickets the peer knows.

use super::core::{Core, PortOp};
use crate::channel::Demand;
use crate::wire::Ticket;

impl Core {
    /// A connection resumed: demands whose landing came home empty want another.
    pub(crate) fn renew_demands(&mut self, link: u32) {
        let Some(entry) = self.links.get(link as usize) else {
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
            let channel = self.links.get(link as usize).map(|entry| &entry.channel);
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
                self.port_ops.push(PortOp::OpenAndAsk {
                    link,
                    ticket,
                    meta,
                    patience_ns: 0,
                    room,
                });
            } else if is_ahead {
                self.ask_bare(link, ticket);
            } else {
                return false;
            }
            self.renewals.pop_front();
        }
        true
    }

    /// A request goes without a landing.
    pub(super) fn ask_bare(&mut self, link: u32, ticket: Ticket) {
        if let Some(entry) = self.links.get_mut(link as usize) {
            entry.channel.ask(ticket, 0, None);
            self.touch(link);
        }
    }
}

/// True for a demand that had a landing, has none, and is still to be answered.
const fn is_bare(demand: &Demand) -> bool {
    demand.wants_landing && !demand.has_landing && !demand.is_cancelled && !demand.is_answered
}
