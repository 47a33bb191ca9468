//! The budget of landings: how many bytes may lie open for peers to write, and which share each holder has.
//!
//! Knows sizes, links and where a landing is open; not what it is for beyond whether its value was offered.

use super::ids::{Id, LinkId};
use crate::fabric::{Landing, QpId};
use crate::ground::limits;
use crate::wire::Ticket;

#[cfg(test)]
mod tests;

/// What a landing is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// A value that is not offered yet: it may wait for long.
    Ahead,
    /// A value on offer.
    Offer,
    /// A value on offer whose landing went with a connection, or was refused by the fabric: it has had its share.
    Again,
}

/// What there is not enough of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Short {
    Budget,
    /// The link has its share; another may have room.
    Share,
}

/// Where a landing is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LandingPlace {
    pub(crate) port: usize,
    pub(crate) qp: QpId,
    pub(crate) landing: Landing,
}

impl LandingPlace {
    pub(crate) const fn new((port, qp): (usize, QpId), demand: Ticket) -> Self {
        let landing = Landing {
            index: demand.index,
            generation: demand.generation,
        };
        Self { port, qp, landing }
    }

    /// The demand that it is open for.
    pub(crate) const fn demand(&self) -> Ticket {
        Ticket {
            index: self.landing.index,
            generation: self.landing.generation,
        }
    }
}

/// Bytes of the budget that a landing was given. They come home through the budget, and must.
#[must_use]
#[derive(Debug)]
pub(crate) struct LandingRoom {
    /// As large as the peer says that its value is.
    bytes: u64,
    holder: Holder,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holder {
    Ahead(LinkId),
    Fetched(LinkId),
    /// Its link's epoch is over, and the landing is not quiet yet.
    Ended,
}

impl LandingRoom {
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    fn counted(&self) -> u64 {
        counted(self.bytes)
    }
}

/// What a claim counts: no arena holds more than that, and as much for each landing there may be has a sum.
fn counted(bytes: u64) -> u64 {
    bytes.min(limits::ARENA_BYTES_MAX)
}

impl Drop for LandingRoom {
    fn drop(&mut self) {
        debug_assert!(
            std::thread::panicking(),
            "room that did not come home: {self:?}"
        );
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LandingBudget {
    /// `None` in a simulation that shows what a budget is for.
    limit: Option<u64>,
    bytes: u64,
    /// Of these, bytes of landings that wait for values that are not offered yet.
    ahead: u64,
    /// By link: bytes of landings that are open for the peer's offers.
    fetched: Vec<u64>,
    /// By index of the landing: what is open under it, on one queue pair or another.
    open: Vec<Vec<(LandingPlace, LandingRoom)>>,
}

impl LandingBudget {
    pub(crate) const fn new(limit: Option<u64>) -> Self {
        Self {
            limit,
            bytes: 0,
            ahead: 0,
            fetched: Vec::new(),
            open: Vec::new(),
        }
    }

    /// Bytes of all landings.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Room for a landing. Those ahead of their values have half of the budget for themselves: they may wait for the
    /// very receive that the other half feeds. Of that half a peer that stands still in the middle of its writes holds
    /// no more than its share.
    pub(crate) fn take(
        &mut self,
        link: LinkId,
        bytes: u64,
        purpose: Purpose,
    ) -> Result<LandingRoom, Short> {
        if self.fetched.len() <= link.row() {
            self.fetched.resize(link.row() + 1, 0);
        }
        let fetched = &mut self.fetched[link.row()];
        let counts = counted(bytes);
        if let Some(limit) = self.limit {
            let half = limit / 2;
            // Those of an epoch that has ended count with the fetched ones until they are quiet.
            let fetching = self.bytes - self.ahead;
            let fits = match purpose {
                Purpose::Ahead => self.ahead + counts <= half && self.bytes + counts <= limit,
                Purpose::Offer | Purpose::Again => fetching == 0 || fetching + counts <= half,
            };
            if !fits {
                return Err(Short::Budget);
            }
            let share = half / limits::LANDING_SHARES;
            if purpose == Purpose::Offer && *fetched > 0 && *fetched + counts > share {
                return Err(Short::Share);
            }
        }
        self.bytes += counts;
        let holder = if purpose == Purpose::Ahead {
            self.ahead += counts;
            Holder::Ahead(link)
        } else {
            *fetched += counts;
            Holder::Fetched(link)
        };
        Ok(LandingRoom { bytes, holder })
    }

    /// Room comes home: its landing is quiet, or was not opened after all.
    pub(crate) fn come_home(&mut self, room: LandingRoom) {
        self.leave(&room);
        self.bytes -= room.counted();
        std::mem::forget(room);
    }

    /// The landing that has this room is open.
    pub(crate) fn keep(&mut self, place: LandingPlace, room: LandingRoom) {
        let index = place.landing.index as usize;
        if self.open.len() <= index {
            self.open.resize_with(index + 1, Vec::new);
        }
        self.open[index].push((place, room));
    }

    /// The landing is quiet.
    pub(crate) fn quiet(&mut self, place: LandingPlace) {
        let open = self.open.get_mut(place.landing.index as usize);
        if let Some(open) = open
            && let Some(at) = open.iter().position(|&(of, _)| of == place)
        {
            let (_, room) = open.swap_remove(at);
            self.come_home(room);
        }
    }

    /// A link's epoch ends: what its landings wait for comes no more, and they come home to no link.
    pub(crate) fn end_link(&mut self, link: LinkId) {
        let mut open = std::mem::take(&mut self.open);
        for (_, room) in open.iter_mut().flatten() {
            if matches!(room.holder, Holder::Ahead(of) | Holder::Fetched(of) if of == link) {
                self.leave(room);
                room.holder = Holder::Ended;
            }
        }
        self.open = open;
    }

    fn leave(&mut self, room: &LandingRoom) {
        match room.holder {
            Holder::Ahead(_) => self.ahead -= room.counted(),
            Holder::Fetched(link) => self.fetched[link.row()] -= room.counted(),
            Holder::Ended => {}
        }
    }
}

impl Drop for LandingBudget {
    fn drop(&mut self) {
        // The shard is gone, and its ports with what was open there.
        for (_, room) in std::mem::take(&mut self.open).into_iter().flatten() {
            self.come_home(room);
        }
    }
}
