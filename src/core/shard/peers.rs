//! Peers: the tasks that this shard shares keys with, and whether each is there.
//!
//! Knows peers by number and name; not what waits for them, nor what follows from a change of theirs
//! (`connecting.rs`, `peer_failure.rs`).

use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use super::ids::{LinkId, NO_LINK, PeerId, Rows};
use super::parked::ParkedQueue;
use crate::ground::device::TaskName;
use crate::ground::{Incarnation, Nanos, Status, faults, limits};
use crate::mail::call::PeerSegment;
use crate::memory::MappedSegment;
use crate::rendezvous::WaiterId;

/// A task we share keys with.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) task: TaskName,
    state: PeerState,
    /// By the peer's shard index: the link.
    pub(crate) links: Vec<LinkId>,
    /// How many keys name it.
    pub(crate) keys: u32,
    pub(crate) read_domain: bool,
    /// Which of our devices it can import memory of: a bit for each.
    pub(crate) devices: u64,
    /// Its memory as this process maps it, in the order of arenas and segments.
    segments: Vec<PeerSegment>,
    /// Values that wait for the peer to be there at all.
    pub(crate) parked: ParkedQueue,
    /// How many steps had ended here when it was named, or its connection was lost: it is told of those that ended
    /// since.
    pub(super) ends_before: u64,
    /// How many had when its life was met.
    pub(super) ends_at_meeting: u64,
    /// Receives of in-shard tasks that began while it was not there, and the life of it that each names.
    pub(crate) expecting: Vec<(WaiterId, Incarnation)>,
    /// It was told that values were dropped which the peer was not there for.
    pub(super) has_told_dropped: bool,
    /// The incarnation that parked values are bound to.
    pub(crate) bound: Option<Incarnation>,
    /// The connection it came up by last.
    pub(crate) connection: u32,
    /// While it is away: what waiters are told if it does not come back.
    pub(crate) away: Option<Status>,
}

impl Peer {
    /// Of that name; not there, and nothing waits for it.
    fn new(task: &TaskName, ends_before: u64) -> Self {
        Self {
            task: task.clone(),
            state: PeerState::Gone,
            links: Vec::new(),
            keys: 0,
            read_domain: false,
            devices: 0,
            segments: Vec::new(),
            parked: ParkedQueue::default(),
            ends_before,
            ends_at_meeting: ends_before,
            expecting: Vec::new(),
            has_told_dropped: false,
            bound: None,
            connection: 0,
            away: None,
        }
    }

    /// Whether it is there. [`Peers::set_state`] changes it.
    pub(crate) const fn state(&self) -> PeerState {
        self.state
    }

    /// The life it is there in, or was when its connection was lost.
    pub(super) const fn life(&self) -> Option<Incarnation> {
        match self.state {
            PeerState::Up { incarnation } => Some(incarnation),
            _ => self.bound,
        }
    }

    /// The link that a key of that hash travels by.
    pub(super) fn link_for(&self, hash: u64) -> LinkId {
        if self.links.is_empty() {
            return NO_LINK;
        }
        self.links[(hash % self.links.len() as u64) as usize]
    }

    /// All of its memory that is mapped by now.
    pub(super) fn set_segments(&mut self, mut segments: Vec<PeerSegment>) {
        segments.sort_by_key(place_of);
        segments.dedup_by_key(|segment| place_of(segment));
        self.segments = segments;
    }

    /// More of its memory is mapped.
    pub(super) fn add_segment(&mut self, segment: PeerSegment) {
        if let Err(at) = self.position_of(place_of(&segment)) {
            self.segments.insert(at, segment);
        }
    }

    /// One of its segments, by its arena and number. A lease looks for one, and there may be thousands.
    pub(super) fn segment(&self, arena: u16, index: u16) -> Option<&Arc<MappedSegment>> {
        let at = self.position_of((arena, index)).ok()?;
        Some(&self.segments[at].mapped)
    }

    fn position_of(&self, place: (u16, u16)) -> Result<usize, usize> {
        self.segments.binary_search_by_key(&place, place_of)
    }

    /// True if it is there, or away, in that life.
    pub(super) fn is_of_life(&self, incarnation: Incarnation) -> bool {
        match self.state {
            PeerState::Up { incarnation: now } => now == incarnation,
            PeerState::Away { .. } => self.bound == Some(incarnation),
            PeerState::Awaited { .. } | PeerState::Gone => false,
        }
    }
}

const fn place_of(segment: &PeerSegment) -> (u16, u16) {
    (segment.arena, segment.index)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerState {
    /// Named by a key; not there yet. Control has been asked to dial, and at this time it is given up.
    Awaited { until: Nanos },
    /// There.
    Up { incarnation: Incarnation },
    /// Its connection is lost; it is given up at this time. Channels keep what they owe, and go on where they were.
    Away { until: Nanos },
    /// Gone; it may come back as another.
    Gone,
}

impl PeerState {
    /// When one that is not there is given up.
    const fn end(self) -> Option<Nanos> {
        match self {
            Self::Awaited { until } | Self::Away { until } => Some(until),
            Self::Up { .. } | Self::Gone => None,
        }
    }
}

/// The peers of a shard.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    rows: Rows<PeerId, Peer>,
    /// When those that are not there are given up.
    ends: BTreeSet<(Nanos, PeerId)>,
}

impl Peers {
    /// The peer of that name.
    pub(crate) fn find(&self, task: &TaskName) -> Option<PeerId> {
        self.rows.position(|peer| peer.task == *task)
    }

    /// The first peer that is so.
    pub(super) fn position(&self, is_it: impl FnMut(&Peer) -> bool) -> Option<PeerId> {
        self.rows.position(is_it)
    }

    /// A peer that is not known yet, and not there: in the place of one of which nothing is left, or in a new one.
    pub(super) fn add(
        &mut self,
        task: &TaskName,
        ends_before: u64,
        vacant: Option<PeerId>,
    ) -> Result<PeerId, Status> {
        let peer = Peer::new(task, ends_before);
        if let Some(at) = vacant {
            self.rows[at] = peer;
            return Ok(at);
        }
        if self.rows.len() >= limits::PEERS {
            return Err(faults::peers_exhausted(limits::PEERS));
        }
        Ok(self.rows.push(peer))
    }

    #[inline]
    pub(crate) fn at(&self, peer: PeerId) -> Option<&Peer> {
        self.rows.at(peer)
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.rows.at_mut(peer)
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Peer> {
        self.rows.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Peer> {
        self.rows.iter_mut()
    }

    /// The peer comes, goes, or is waited for.
    pub(super) fn set_state(&mut self, at: PeerId, state: PeerState) {
        let former = std::mem::replace(&mut self.rows[at].state, state);
        if let Some(end) = former.end() {
            self.ends.remove(&(end, at));
        }
        if let Some(end) = state.end() {
            self.ends.insert((end, at));
        }
    }

    /// When the next peer that is not there is given up.
    pub(super) fn next_end(&self) -> Nanos {
        self.ends.first().map_or(Nanos::NEVER, |&(end, _)| end)
    }

    /// Those that are to be given up by `now`.
    pub(super) fn due(&self, now: Nanos) -> Vec<PeerId> {
        let due = self.ends.iter().take_while(|(end, _)| *end <= now);
        due.map(|&(_, at)| at).collect()
    }
}

impl Index<PeerId> for Peers {
    type Output = Peer;

    #[inline]
    fn index(&self, peer: PeerId) -> &Peer {
        &self.rows[peer]
    }
}

impl IndexMut<PeerId> for Peers {
    #[inline]
    fn index_mut(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.rows[peer]
    }
}

#[cfg(test)]
mod tests;
