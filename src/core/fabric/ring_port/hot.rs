//! Which rings a port looks at: a few that brought something lately each time, and one of the others in turn.
//!
//! So a poll costs the same whether ten peers are idle or a thousand.

use super::{Arrival, HOT_MAX, Hot, RingPort, RingQueuePair, SETTLE_AFTER};

impl RingPort {
    #[inline(always)]
    pub(super) fn poll_hot<S: FnMut(Arrival<'_>)>(&mut self, budget: usize, sink: &mut S) -> usize {
        let mut done = 0;
        let count = self.hot_count;
        // Counted and not divided: this runs in every turn.
        self.turn = if self.turn + 1 < count {
            self.turn + 1
        } else {
            0
        };
        for step in 0..count {
            // A ring that goes down in this loop leaves the list, and the last takes its place: looked at next time.
            let at = self.turn + step;
            let at = if at < count { at } else { at - count };
            if at >= self.hot_count || done >= budget {
                break;
            }
            let index = self.hot[at].place;
            let taken = self.look(index, budget - done, sink);
            done += taken;
            // If the ring left the list, this is what took its place: it is counted for once more, and settled in time.
            let hot = &mut self.hot[at];
            if taken > 0 {
                hot.idle = 0;
            } else {
                hot.idle = hot.idle.saturating_add(1);
                if hot.idle == SETTLE_AFTER {
                    let idle = hot.place;
                    self.settle(idle);
                }
            }
        }
        done
    }

    /// Looks at the next ring that is not hot.
    #[inline]
    pub(super) fn poll_cold<S: FnMut(Arrival<'_>)>(
        &mut self,
        budget: usize,
        sink: &mut S,
    ) -> usize {
        if budget == 0 || self.open.len() == self.hot_count {
            return 0;
        }
        for _ in 0..=self.hot_count {
            self.cold = if self.cold + 1 < self.open.len() {
                self.cold + 1
            } else {
                0
            };
            let index = self.open[self.cold];
            if self.places[index as usize].is_hot {
                continue;
            }
            self.stats.rings_polled += 1;
            let taken = self.look(index, budget, sink);
            if taken > 0 {
                self.promote(index);
            }
            return taken;
        }
        0
    }

    /// Makes a ring hot, in the place of the hot ring that has been idle longest; if none is idle, it stays cold.
    pub(super) fn promote(&mut self, index: u32) {
        if !self.places[index as usize]
            .queue_pair
            .as_ref()
            .is_some_and(RingQueuePair::is_open)
        {
            return;
        }
        let at = if self.hot_count < HOT_MAX {
            self.hot_count += 1;
            self.hot_count - 1
        } else {
            let idlest = (0..HOT_MAX)
                .max_by_key(|&at| self.hot[at].idle)
                .unwrap_or(0);
            if self.hot[idlest].idle == 0 {
                // Rings outside the hot set never owe the peer progress: no later look would notice that they went
                // idle.
                self.settle(index);
                return;
            }
            let cooled = self.hot[idlest].place;
            self.settle(cooled);
            self.places[cooled as usize].is_hot = false;
            idlest
        };
        self.hot[at] = Hot {
            place: index,
            idle: 0,
        };
        self.places[index as usize].is_hot = true;
    }
}
