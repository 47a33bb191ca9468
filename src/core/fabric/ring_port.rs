//! A port over frame rings: what loopback and shm have in common. Which rings to look at, how long, and which peers to
//! wake.
//!
//! Knows queue pairs by number; not where their memory came from, nor what frames mean.
//!
//! ```text
//!  poll:  active   queue pairs with work besides their ring: answers, chunks, closed landings, going down
//!         hot      at most four rings that brought something lately: looked at every time, each for one burst at most
//!         cold     one other ring, round robin: found full it is served, and becomes hot
//! ```
//!
//! So a poll looks at five rings, however many peers there are, and a peer that talks is looked at each time. A burst
//! is bounded and the first ring changes with each poll, so that a greedy peer starves no other.

mod hot;

use super::doorbell::PeerWake;
use super::link::Endpoint;
use super::queue_pair::{Left, RingQueuePair, RingTake};
use super::{
    Arrival, BODY_MAX, Caps, DownReason, Landing, Port, PostRefusal, QUEUE_PAIRS_MAX, QpId,
    RefusedWrite, Write,
};
use crate::ground::{Nanos, Region};
use crate::memory::Buffer;
use crate::wire::Frame;

/// Rings looked at in every poll: with more, an empty poll would cost more than the cache line it waits for.
const HOT_MAX: usize = 4;

/// Frames taken from one ring at a time.
const BURST: usize = 32;

/// In one poll of so many the cold ring comes before the hot ones, which could use up the budget every time.
const COLD_FIRST: u64 = 4;

/// Empty looks after which a ring's consumer tells its progress: late enough that a stream tells each quarter ring,
/// early enough that a peer which waits for room does not wait long.
const SETTLE_AFTER: u32 = 8;

/// What a port over rings has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// Polls.
    pub polls: u64,
    /// Rings looked at in them.
    pub rings_polled: u64,
    /// Doorbells rung or looked at: bursts to peers that may sleep.
    pub doorbells: u64,
    /// Posts refused for want of room.
    pub refused_full: u64,
    /// Writes of peers to what was never granted them on their connection. No correct peer posts one: a fabric whose
    /// writes consume receive entries would have broken the connection.
    pub ungranted_writes: u64,
}

/// A shard's end of shared memory ([`ShmPort`](super::ShmPort)), or of loopback
/// ([`LoopbackPort`](super::LoopbackPort)).
#[derive(Debug)]
pub struct RingPort {
    places: Vec<Place>,
    /// Places not in use.
    free: Vec<u32>,
    /// Places in use whose ring is open, in no order: the cold round.
    open: Vec<u32>,
    cold: usize,
    hot: [Hot; HOT_MAX],
    hot_count: usize,
    /// The hot ring looked at first.
    turn: usize,
    /// Places with work besides their ring.
    active: Vec<u32>,
    /// Places whose doorbell is to be rung.
    due: Vec<u32>,
    /// Where bodies are copied to on their way up.
    scratch: Box<[u8]>,
    stats: PortStats,
}

/// Room for one queue pair.
#[derive(Debug, Default)]
struct Place {
    generation: u16,
    queue_pair: Option<RingQueuePair>,
    is_active: bool,
    is_due: bool,
    is_hot: bool,
}

/// A ring that brought something lately, and how many looks ago.
#[derive(Clone, Copy, Debug, Default)]
struct Hot {
    place: u32,
    idle: u32,
}

impl RingPort {
    /// A port without peers.
    #[must_use]
    pub fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            open: Vec::new(),
            cold: 0,
            hot: [Hot::default(); HOT_MAX],
            hot_count: 0,
            turn: 0,
            active: Vec::new(),
            due: Vec::new(),
            scratch: vec![0; BODY_MAX].into_boxed_slice(),
            stats: PortStats::default(),
        }
    }

    /// Makes a queue pair of an endpoint. `wake` is the peer's doorbell, or [`PeerWake::NEVER_SLEEPS`] by its poll
    /// policy; of `caps` the port takes `read_domain` as it is and lowers `body_max` to what the ring holds. The memory
    /// lives as long as any queue pair in it. The only call that allocates.
    ///
    /// # Errors
    /// The endpoint, when the port has [`QUEUE_PAIRS_MAX`] already.
    pub fn attach(
        &mut self,
        endpoint: Endpoint,
        wake: PeerWake,
        caps: Caps,
    ) -> Result<QpId, Endpoint> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() < QUEUE_PAIRS_MAX => {
                self.places.push(Place::default());
                self.places.len() as u32 - 1
            }
            None => return Err(endpoint),
        };
        self.places[place as usize].queue_pair = Some(RingQueuePair::new(
            endpoint,
            wake,
            caps.body_max,
            caps.read_domain,
        ));
        self.open.push(place);
        // Everything that can grow later grows now.
        for list in [&mut self.free, &mut self.active, &mut self.due] {
            list.reserve(self.places.len().saturating_sub(list.len()));
        }
        Ok(self.id(place))
    }

    /// True if all its rings are looked at each time.
    pub(super) const fn has_few_rings(&self) -> bool {
        self.open.len() == self.hot_count
    }

    /// What it counted.
    #[must_use]
    pub fn stats(&self) -> PortStats {
        let open = self
            .places
            .iter()
            .filter_map(|place| place.queue_pair.as_ref());
        let ungranted = open.map(RingQueuePair::ungranted).sum::<u64>();
        PortStats {
            ungranted_writes: self.stats.ungranted_writes + ungranted,
            ..self.stats
        }
    }

    fn id(&self, place: u32) -> QpId {
        QpId(place | u32::from(self.places[place as usize].generation) << 16)
    }

    /// The place and the queue pair that `qp` names, if it is open.
    #[inline]
    fn find(&mut self, qp: QpId) -> Option<(u32, &mut RingQueuePair)> {
        let index = qp.0 & 0xffff;
        let place = self.places.get_mut(index as usize)?;
        if u32::from(place.generation) != qp.0 >> 16 {
            return None;
        }
        place
            .queue_pair
            .as_mut()
            .filter(|queue_pair| queue_pair.is_open())
            .map(|queue_pair| (index, queue_pair))
    }

    /// Puts a place on the list of those with work besides their ring.
    fn activate(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        if !std::mem::replace(&mut place.is_active, true) {
            self.active.push(index);
        }
    }

    /// Notes that the peer must be woken if it sleeps.
    #[inline]
    fn note_posted(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        let may_sleep = place
            .queue_pair
            .as_ref()
            .is_some_and(|queue_pair| queue_pair.wake.may_sleep());
        if may_sleep && !std::mem::replace(&mut place.is_due, true) {
            self.due.push(index);
        }
    }

    /// A queue pair goes down: its ring is looked at no more, what it holds goes back through `active`.
    fn go_down(&mut self, index: u32, reason: DownReason) {
        if let Some(queue_pair) = &mut self.places[index as usize].queue_pair {
            queue_pair.go_down(reason);
        }
        self.retire(index);
    }

    fn retire(&mut self, index: u32) {
        self.open.retain(|&place| place != index);
        if let Some(at) = self.hot[..self.hot_count]
            .iter()
            .position(|hot| hot.place == index)
        {
            self.hot_count -= 1;
            self.hot.swap(at, self.hot_count);
            self.places[index as usize].is_hot = false;
        }
        self.note_posted(index);
        self.activate(index);
    }

    /// Work besides rings.
    fn work<S: FnMut(Arrival<'_>)>(&mut self, budget: usize, sink: &mut S) -> (usize, usize) {
        let mut given = 0;
        let mut done = 0;
        let mut at = 0;
        for _ in 0..self.active.len() {
            let index = self.active[at];
            let id = self.id(index);
            let place = &mut self.places[index as usize];
            let Some(queue_pair) = &mut place.queue_pair else {
                unreachable!("active places are in use")
            };
            let was_open = queue_pair.is_open();
            let (count, posted, left) = queue_pair.work(id, budget - given, sink);
            let broke = was_open && !queue_pair.is_open();
            given += count;
            done += count + usize::from(posted);
            if posted {
                self.note_posted(index);
            }
            if broke {
                self.retire(index);
            }
            match left {
                Left::Something => at += 1,
                Left::Nothing => self.deactivate(at),
                Left::Gone => {
                    self.deactivate(at);
                    self.forget(index);
                }
            }
        }
        // The first comes last next time, so that a small budget serves all in turn.
        if self.active.len() > 1 {
            self.active.rotate_left(1);
        }
        (given, done)
    }

    fn deactivate(&mut self, at: usize) {
        let index = self.active.swap_remove(at);
        self.places[index as usize].is_active = false;
    }

    /// The queue pair gave back everything: rings for a last time, and frees the place under a new generation.
    fn forget(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        if let Some(queue_pair) = place.queue_pair.take() {
            queue_pair.wake.ring();
            self.stats.ungranted_writes += queue_pair.ungranted();
        }
        place.generation = place.generation.wrapping_add(1);
        self.free.push(index);
    }

    /// Looks at one ring, for at most a burst; returns how many frames it took, chunks and answers among them.
    #[inline(always)]
    fn look<S: FnMut(Arrival<'_>)>(&mut self, index: u32, budget: usize, sink: &mut S) -> usize {
        let place = &mut self.places[index as usize];
        let id = QpId(index | u32::from(place.generation) << 16);
        let Some(queue_pair) = &mut place.queue_pair else {
            return 0;
        };
        let taken = queue_pair.receive(id, budget.min(BURST), &mut self.scratch, sink);
        if taken.is_rare() {
            self.follow_up(index, taken);
        }
        taken.frames
    }

    /// What a look at a ring brought besides frames for the sink.
    #[cold]
    fn follow_up(&mut self, index: u32, taken: RingTake) {
        let is_busy = self.places[index as usize]
            .queue_pair
            .as_ref()
            .is_some_and(RingQueuePair::is_busy);
        if taken.is_of_writes && is_busy {
            self.activate(index);
        }
        if taken.has_told {
            self.note_posted(index);
        }
        if let Some(reason) = taken.down {
            self.go_down(index, reason);
        }
    }

    #[cold]
    fn refused(&mut self, index: u32, refusal: PostRefusal) -> PostRefusal {
        match refusal {
            PostRefusal::Closed => self.retire(index),
            PostRefusal::Full => self.stats.refused_full += 1,
            _ => {}
        }
        refusal
    }

    /// Rings the doorbells that are due.
    #[inline(never)]
    fn ring_due(&mut self) {
        while let Some(index) = self.due.pop() {
            let place = &mut self.places[index as usize];
            place.is_due = false;
            if let Some(queue_pair) = &place.queue_pair {
                self.stats.doorbells += 1;
                queue_pair.wake.ring();
            }
        }
    }

    fn settle(&mut self, index: u32) {
        if self.places[index as usize]
            .queue_pair
            .as_mut()
            .is_some_and(RingQueuePair::settle)
        {
            self.note_posted(index);
        }
    }
}

impl RingPort {
    /// As [`Port::post_send`], of a frame whose body, if it has one, lies in its tail. Says whether a doorbell must be
    /// rung.
    #[inline(always)]
    pub(super) fn post_short(&mut self, qp: QpId, frame: &Frame) -> Result<bool, PostRefusal> {
        let (index, queue_pair) = self.find(qp).ok_or(PostRefusal::Closed)?;
        if let Err(refusal) = queue_pair.post_short(frame) {
            return Err(self.refused(index, refusal));
        }
        if queue_pair.wake.may_sleep() {
            self.note_posted(index);
        }
        Ok(!self.due.is_empty())
    }

    /// As [`RingPort::poll`], where there is more than hot rings.
    #[inline(never)]
    fn poll_all<S: FnMut(Arrival<'_>)>(&mut self, budget: usize, sink: &mut S) -> usize {
        let mut given = 0;
        let mut done = 0;
        if !self.active.is_empty() {
            (given, done) = self.work(budget, sink);
        }
        let cold_first = self.stats.polls.is_multiple_of(COLD_FIRST);
        let mut taken = 0;
        if cold_first {
            taken = self.poll_cold(budget - given, sink);
        }
        taken += self.poll_hot(budget - given - taken, sink);
        if !cold_first {
            taken += self.poll_cold(budget - given - taken, sink);
        }
        done + taken
    }
}

impl Default for RingPort {
    fn default() -> Self {
        Self::new()
    }
}

impl Port for RingPort {
    fn caps(&self, qp: QpId) -> Caps {
        let place = self
            .places
            .get((qp.0 & 0xffff) as usize)
            .filter(|place| u32::from(place.generation) == qp.0 >> 16);
        let queue_pair = place
            .and_then(|place| place.queue_pair.as_ref())
            .filter(|queue_pair| queue_pair.is_open());
        queue_pair.map_or(Caps::CLOSED, RingQueuePair::caps)
    }

    #[inline]
    fn post_send(&mut self, qp: QpId, frame: &Frame, body: [&[u8]; 2]) -> Result<(), PostRefusal> {
        let (index, queue_pair) = self.find(qp).ok_or(PostRefusal::Closed)?;
        match queue_pair.post_send(frame, body) {
            Ok(()) => {
                if queue_pair.wake.may_sleep() {
                    self.note_posted(index);
                }
                Ok(())
            }
            Err(refusal) => Err(self.refused(index, refusal)),
        }
    }

    fn post_write(&mut self, write: Write) -> Result<(), RefusedWrite> {
        let Some((index, queue_pair)) = self.find(write.qp) else {
            return Err(PostRefusal::Closed.of(write));
        };
        if write.source.is_device() {
            return Err(PostRefusal::Unreadable.of(write));
        }
        if let Err(write) = queue_pair.post_write(write) {
            self.stats.refused_full += 1;
            return Err(PostRefusal::Full.of(write));
        }
        self.activate(index);
        Ok(())
    }

    fn open_landing(
        &mut self,
        qp: QpId,
        landing: Landing,
        buffer: Buffer,
    ) -> Result<Region, Buffer> {
        match self.find(qp) {
            Some((_, queue_pair)) => queue_pair.open_landing(landing, buffer),
            None => Err(buffer),
        }
    }

    fn close_landing(&mut self, qp: QpId, landing: Landing) {
        if let Some((index, queue_pair)) = self.find(qp)
            && queue_pair.close_landing(landing)
        {
            self.activate(index);
        }
    }

    #[inline(never)]
    fn poll<S: FnMut(Arrival<'_>)>(&mut self, _now: Nanos, budget: usize, sink: &mut S) -> usize {
        self.stats.polls += 1;
        self.stats.rings_polled += self.hot_count as u64;
        let done = if self.has_few_rings() && self.active.is_empty() {
            self.poll_hot(budget, sink)
        } else {
            self.poll_all(budget, sink)
        };
        self.flush();
        done
    }

    fn poll_one<S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        _now: Nanos,
        budget: usize,
        sink: &mut S,
    ) -> usize {
        match self.find(qp) {
            Some((index, _)) => self.look(index, budget, sink),
            None => 0,
        }
    }

    #[inline(always)]
    fn flush(&mut self) {
        if self.must_flush() {
            self.ring_due();
        }
    }

    #[inline(always)]
    fn must_flush(&self) -> bool {
        !self.due.is_empty()
    }

    fn close(&mut self, qp: QpId) {
        if let Some((index, _)) = self.find(qp) {
            self.go_down(index, DownReason::Closed);
        }
    }

    fn arm(&mut self) -> bool {
        let mut is_quiet = true;
        for at in 0..self.active.len() {
            let index = self.active[at];
            let Some(queue_pair) = &mut self.places[index as usize].queue_pair else {
                continue;
            };
            let was_open = queue_pair.is_open();
            // Chunks and answers that wait for room do not keep us awake: the peer rings when it makes some.
            let moved = !queue_pair.has_news() && queue_pair.push();
            is_quiet &= !moved && !queue_pair.has_news();
            let broke = was_open && !queue_pair.is_open();
            if moved {
                self.note_posted(index);
            }
            if broke {
                self.retire(index);
            }
        }
        for at in 0..self.open.len() {
            let index = self.open[at];
            self.settle(index);
            is_quiet &= !self.places[index as usize]
                .queue_pair
                .as_ref()
                .is_some_and(RingQueuePair::is_ready);
        }
        self.flush();
        is_quiet
    }

    fn disarm(&mut self) {}
}

impl RingPort {
    /// The lanes of a queue pair, to spoil: sending, receiving.
    #[cfg(test)]
    pub(super) fn lanes(
        &mut self,
        qp: QpId,
    ) -> Option<(&super::lane::MemoryLane, &super::lane::MemoryLane)> {
        self.find(qp).map(|(_, queue_pair)| queue_pair.lanes())
    }
}

#[cfg(test)]
mod tests;
