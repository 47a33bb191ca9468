//! The budget of landings: how many bytes may lie open for peers to write, and who has which share of them.
//!
//! Knows sizes and links, and not what a landing is for beyond whether its value was offered.

use super::core::{Core, Room};
use super::ids::LinkId;
use crate::channel::Rule;
use crate::ground::limits;
use crate::wire::Ticket;

impl Core {
    /// True if a landing of so many bytes may be opened. Those ahead of their values have half of the budget for
    /// themselves: they may wait for the very receive that the other half feeds.
    pub(super) fn has_budget(&self, bytes: u64, is_ahead: bool) -> bool {
        let half = self.settings.landing_bytes / 2;
        let fetching = self.landing_bytes - self.ahead_bytes;
        let fits = if is_ahead {
            // Those of an epoch that has ended count with the fetched ones until they are quiet.
            self.ahead_bytes + bytes <= half
                && self.landing_bytes + bytes <= self.settings.landing_bytes
        } else {
            fetching == 0 || fetching + bytes <= half
        };
        fits || !self.settings.rules.on(Rule::LandingBudget)
    }

    /// True if a link may open one more landing for an offer: a peer that stands still in the middle of its writes
    /// holds no more than its share.
    pub(super) fn has_share(&self, link: LinkId, bytes: u64) -> bool {
        let share = self.settings.landing_bytes / 2 / limits::LANDING_SHARES;
        let entry = self.links.at(link);
        entry.is_none_or(|entry| entry.fetching == 0 || entry.fetching + bytes <= share)
            || !self.settings.rules.on(Rule::LandingBudget)
    }

    /// A landing is given its share of the budget.
    pub(super) fn enter(&mut self, bytes: u64, is_ahead: bool) -> Room {
        self.landing_bytes += bytes;
        self.ahead_bytes += if is_ahead { bytes } else { 0 };
        Room { bytes, is_ahead }
    }

    /// A landing is home, or was not opened after all.
    pub(crate) fn leave(&mut self, link: LinkId, room: Room) {
        if let Some(entry) = self.links.at_mut(link)
            && !room.is_ahead
        {
            entry.fetching = entry.fetching.saturating_sub(room.bytes);
        }
        self.landing_bytes = self.landing_bytes.saturating_sub(room.bytes);
        self.ahead_bytes =
            self.ahead_bytes
                .saturating_sub(if room.is_ahead { room.bytes } else { 0 });
    }

    /// The share of a landing that came home.
    pub(super) fn room_of(&self, link: LinkId, ticket: Ticket, bytes: usize) -> Room {
        let demand = self
            .links
            .at(link)
            .and_then(|entry| entry.channel.demand_at(ticket));
        Room {
            bytes: bytes as u64,
            is_ahead: demand.is_some_and(|demand| demand.offer.is_none()),
        }
    }
}
