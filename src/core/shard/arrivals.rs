//! Arrivals: values of one key that came by different lanes are taken in the order of their ordinals.
//!
//! It knows no lanes: ordinals have no gaps, so whatever is missing is still on its way.

use super::core::Core;
use super::ids::LinkId;
use super::reorder::Gaps;
use super::transfers::TransferId;
use super::value::Value;
use crate::channel::{Rule, Violation};
use crate::rendezvous::{Arrived, Slot, is_before};

impl Core {
    /// Ordinals have no gaps, so whatever is missing is on its way by another lane: what overtook it waits.
    #[cold]
    pub(super) fn arrive_in_turn(
        &mut self,
        link: LinkId,
        slot: Slot,
        ordinal: u32,
        item: Arrived<Value>,
    ) {
        if is_before(self.table.next_ordinal(slot), ordinal) && self.table_takes(slot) {
            return self.keep_early(link, slot, ordinal, item);
        }
        self.take_item(link, slot, ordinal, item);
        self.release_early(link, slot);
    }

    /// A step that is known by what is kept here alone is in no list of the table, so no time ends it: this stays until
    /// the step is ended, or the link's epoch, within the bound of the link.
    fn keep_early(&mut self, link: LinkId, slot: Slot, ordinal: u32, item: Arrived<Value>) {
        match self.early.keep(link, slot, ordinal, item) {
            Ok(None) => {}
            Ok(Some(former)) => self.drop_item(link, former),
            Err(Gaps(item)) => {
                self.drop_item(link, item);
                return self.violated(link, Violation::Gaps);
            }
        }
        self.watch_link(link);
    }

    pub(super) fn take_item(
        &mut self,
        link: LinkId,
        slot: Slot,
        ordinal: u32,
        item: Arrived<Value>,
    ) {
        match item {
            Arrived::Value(value) => self.take_in(link, slot, ordinal, value),
            Arrived::Offer(token) => {
                self.take_in_offer(link, slot, ordinal, TransferId::from_token(token))
            }
        }
    }

    /// What has its turn goes on its way.
    #[cold]
    pub(super) fn release_early(&mut self, link: LinkId, slot: Slot) {
        while let Some((ordinal, item)) =
            (self.early).next(link, slot, self.table.next_ordinal(slot))
        {
            self.take_item(link, slot, ordinal, item);
        }
        self.ask_last(link, slot);
    }

    /// What waits for its turn and is picked by `goes` waits for nothing any more.
    pub(crate) fn drop_early(&mut self, goes: impl Fn(LinkId, Slot) -> bool) {
        for (link, item) in self.early.take_all(goes) {
            self.drop_item(link, item);
        }
    }

    /// What waits for its turn in a step that has ended goes, whatever else was in the step.
    pub(crate) fn drop_early_of_ended(&mut self) {
        let table = &self.table;
        for (link, item) in self.early.take_all(|_, slot| table.has_ended(slot.step)) {
            self.drop_item(link, item);
        }
    }

    /// A value of an ended step, or one that was here before: it goes, and its credit back.
    pub(super) fn drop_item(&mut self, link: LinkId, item: Arrived<Value>) {
        match item {
            Arrived::Value(value) => {
                self.stats.dropped += 1;
                drop(self.taken(value));
            }
            Arrived::Offer(token) => {
                if let Some(incoming) = self.transfers.end(TransferId::from_token(token)) {
                    self.decline(link, &incoming.offer);
                }
            }
        }
    }

    /// True if nothing is asked of the link's peer, and no value of it came before its turn.
    #[inline(always)]
    pub(super) fn is_plain(&self, link: LinkId) -> bool {
        let entry = self.links.at(link);
        entry.is_none_or(|entry| !entry.channel.is_asking()) && !self.early.holds(link)
    }

    /// True if values of the link may come before others that were sent before them: some go by landings.
    #[inline]
    pub(super) fn may_overtake(&self, link: LinkId) -> bool {
        !self.is_plain(link) && self.settings.rules.on(Rule::NoOrderBetweenLanes)
    }
}
