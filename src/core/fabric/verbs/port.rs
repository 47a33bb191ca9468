//! A shard's end of RDMA: one completion queue, one shared receive queue, and a queue pair to each peer.
//!
//! Knows all its queue pairs; what each of them holds is `link.rs`'s. How the two ends come to know each other is the
//! caller's: [`VerbsPort::open`] makes one end and says what the other must know, [`VerbsPort::connect`] is told it.
#![allow(unsafe_code)]

mod opening;
mod progress;
mod quarantine;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use quarantine::Kept;

use super::chain::CHAIN_MAX;
use super::completion::CompletionQueue;
use super::device::check;
use super::domain::{Access, Domain, Registration};
use super::error::VerbsError;
use super::link::{GivenBack, Tools, VerbsLink};
use super::queue_pair::RetryPolicy;
use super::shared_receive::{ReceiveEntry, SharedReceive};
use super::slots::Slots;
use super::sys;
use super::{RECEIVE_SLOTS, StagingSlots, VerbsStats};
use crate::fabric::{
    Arrival, Caps, DownReason, Landing, Port, PostRefusal, QUEUE_PAIRS_MAX, QpId, RefusedWrite,
    Write,
};
use crate::ground::limits::{
    VERBS_INLINE_BYTES, VERBS_QUEUE_PAIRS, VERBS_REFILL, VERBS_SEND_SLOTS, VERBS_SENDS,
    VERBS_SLOT_BYTES, VERBS_WINDOW, VERBS_WINDOW_MIN,
};
use crate::ground::{Nanos, Region};
use crate::memory::{ArenaSegment as _, Buffer, Segment};
use crate::wire::Frame;

/// Completions taken from the queue at once.
const BURST: usize = 16;
/// Completions looked at in one poll, whether they give anything or not.
const COMPLETIONS_PER_POLL: usize = 4 * BURST;
/// Slots of one slab: one for each queue pair, and it stays when the queue pair goes.
const SLAB_SLOTS: usize = RECEIVE_SLOTS + VERBS_SEND_SLOTS;
/// The bit of an id that says that it is a receive entry's: an entry in error does not say it otherwise.
const RECEIVE: u64 = 1 << 63;

const _: () = assert!(VERBS_REFILL == CHAIN_MAX);

/// How a port treats its queue pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerbsConfig {
    /// Queue pairs at once: sizes the completion queue and the shared receive queue.
    pub queue_pairs: u32,
    /// Bytes to send inline.
    pub inline_bytes: u32,
    /// Receive entries that each queue pair grants its peer, at most [`VERBS_WINDOW`].
    pub window: u16,
    /// How they wait for their peers.
    pub patience: RetryPolicy,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            queue_pairs: VERBS_QUEUE_PAIRS,
            inline_bytes: VERBS_INLINE_BYTES,
            window: VERBS_WINDOW,
            patience: RetryPolicy::default(),
        }
    }
}

/// A shard's end of RDMA. Queue pairs stand first: what they work on is given up after them.
#[derive(Debug)]
pub struct VerbsPort {
    places: Vec<Place>,
    receive: SharedReceive,
    completions: CompletionQueue,
    /// Slots of each place: first those that are received into, then those that are sent from.
    slabs: Vec<Slots>,
    stage: StagingSlots,
    /// Registered arenas, by address; shared with the other ports on the device.
    memory: Vec<Arc<Registration>>,
    config: VerbsConfig,
    /// Numbers of queue pairs and their places, in order.
    numbers: Vec<(u32, u16)>,
    free: Vec<u16>,
    /// Places with something to post.
    active: Vec<u16>,
    /// Places that are going down or leaving.
    ending: Vec<u16>,
    /// Completions taken and not looked at.
    inbox: [sys::ibv_wc; BURST],
    inbox_at: usize,
    inbox_len: usize,
    /// Completions that may be there and not looked at: in the queue and in the inbox.
    completions_max: u64,
    /// Completions of queue pairs that are not adopted yet, and those to be handled now that theirs is. Each holds its
    /// receive entry meanwhile, so there are no more of them than were granted.
    waiting: Vec<sys::ibv_wc>,
    again: VecDeque<sys::ibv_wc>,
    given: VecDeque<GivenBack>,
    now: Nanos,
    stats: VerbsStats,
    /// The completion or the receive queue failed: nothing will come any more.
    is_broken: bool,
    /// Queue pairs whose end is not proved.
    quarantine: Vec<Kept>,
    domain: Arc<Domain>,
}

#[derive(Debug, Default)]
struct Place {
    generation: u16,
    link: Option<Box<VerbsLink>>,
    /// The number of the first packet that its peer was told.
    first_packet: u32,
    fault: Option<VerbsError>,
}

impl VerbsPort {
    /// A port without peers.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn new(domain: &Arc<Domain>, config: VerbsConfig) -> Result<Self, VerbsError> {
        let rule = "1 to 4096";
        let pairs = config.queue_pairs;
        check(
            (1..=QUEUE_PAIRS_MAX as u32).contains(&pairs),
            "queue_pairs",
            pairs.into(),
            rule,
        )?;
        let window = config.window;
        check(
            (VERBS_WINDOW_MIN..=VERBS_WINDOW).contains(&window),
            "depth",
            window.into(),
            "32 to 128",
        )?;
        // Each entry of a queue that may complete has one here, so that it never overflows.
        let receives = pairs * RECEIVE_SLOTS as u32;
        let depth = receives + pairs * VERBS_SENDS;
        let completions = CompletionQueue::new(domain, depth)?;
        let receive = SharedReceive::new(domain, receives)?;
        Ok(Self {
            places: Vec::new(),
            receive,
            completions,
            slabs: Vec::new(),
            stage: StagingSlots::new(domain)?,
            memory: Vec::new(),
            config,
            numbers: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            ending: Vec::new(),
            inbox: [sys::ibv_wc::default(); BURST],
            inbox_at: 0,
            inbox_len: 0,
            completions_max: u64::from(depth) + BURST as u64,
            waiting: Vec::new(),
            again: VecDeque::new(),
            given: VecDeque::with_capacity(64),
            now: Nanos::ZERO,
            stats: VerbsStats::default(),
            is_broken: false,
            quarantine: Vec::new(),
            domain: Arc::clone(domain),
        })
    }

    /// Makes the segments known to the device: landings lie in them, and what is sent from them is not copied. Those
    /// that are known already cost a look.
    ///
    /// # Errors
    /// [`VerbsError::Call`]; those before the one that failed are registered.
    pub fn register(&mut self, segments: &[Arc<Segment>]) -> Result<(), VerbsError> {
        for segment in segments {
            let address = segment.base().addr() as u64;
            let at = self
                .memory
                .partition_point(|known| known.address() < address);
            if self
                .memory
                .get(at)
                .is_some_and(|known| known.address() == address)
            {
                continue;
            }
            let registered = self.domain.register(segment, Access::Peers)?;
            self.memory.insert(at, Arc::new(registered));
        }
        Ok(())
    }

    /// Takes note of memory that another thread has registered with this port's domain: registering takes too long for
    /// the thread that polls.
    pub fn add_memory(&mut self, registered: &Arc<Registration>) {
        let address = registered.address();
        let at = self
            .memory
            .partition_point(|known| known.address() < address);
        let is_known = self
            .memory
            .get(at)
            .is_some_and(|known| known.address() == address);
        if !is_known && Arc::ptr_eq(registered.domain(), &self.domain) {
            self.memory.insert(at, Arc::clone(registered));
        }
    }

    /// Heeds the device's events: a queue pair that it broke goes down without waiting for a completion. Reads them
    /// too, unless a thread does ([`Domain::watch`]).
    pub fn look_at_events(&mut self) {
        self.domain.look_unwatched();
        for index in 0..self.places.len() as u16 {
            let link = self.places[usize::from(index)].link.as_ref();
            if link.is_some_and(|link| link.is_broken()) {
                self.go_down(index, DownReason::Reset, None);
            }
        }
    }

    /// Why a queue pair went down, where it was an error; known until its place is used again.
    #[must_use]
    pub fn fault(&self, qp: QpId) -> Option<&VerbsError> {
        let place = self.places.get((qp.0 & 0xffff) as usize)?;
        let generation = u32::from(place.generation);
        if generation == qp.0 >> 16 {
            return place.link.as_ref().and_then(|link| link.fault());
        }
        let was = u32::from(place.generation.wrapping_sub(1)) == qp.0 >> 16;
        place.fault.as_ref().filter(|_| was)
    }

    /// The domain.
    #[must_use]
    pub const fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// What it counted.
    #[must_use]
    pub const fn stats(&self) -> VerbsStats {
        self.stats
    }

    // ───────────────────────────────────────────────── private ─────────────────────────────────────────────────

    const fn id(&self, index: u16) -> QpId {
        QpId(index as u32 | (self.places.as_slice()[index as usize].generation as u32) << 16)
    }

    /// A place for a queue pair, with its slots: those that are received into are posted when it is first used.
    fn place(&mut self) -> Result<u16, VerbsError> {
        if let Some(&index) = self.free.last() {
            return Ok(index);
        }
        let limit = self.config.queue_pairs;
        let index = self.places.len();
        if index >= limit as usize {
            return Err(VerbsError::Limit {
                device: self.domain.device().name().clone(),
                what: "queue pairs of one port",
                limit: limit.into(),
            });
        }
        let slab = Slots::new(&self.domain, VERBS_SLOT_BYTES, SLAB_SLOTS)?;
        self.slabs.push(slab);
        for slot in 0..RECEIVE_SLOTS {
            self.add_entry(index, slot);
        }
        self.places.push(Place::default());
        let index = index as u16;
        self.free.push(index);
        // Everything that can grow later grows now.
        let count = self.places.len();
        for list in [&mut self.free, &mut self.active, &mut self.ending] {
            list.reserve(count.saturating_sub(list.len()));
        }
        Ok(index)
    }

    /// A slot may be received into again: it is posted with others, a burst at a time. Those that wait are beyond what
    /// is granted.
    #[inline]
    fn add_entry(&mut self, slab: usize, slot: usize) {
        if self.is_broken {
            return;
        }
        let entry = ReceiveEntry {
            id: RECEIVE | (slab as u64) << 32 | slot as u64,
            address: self.slabs[slab].address(slot),
            len: VERBS_SLOT_BYTES as u32,
            lkey: self.slabs[slab].lkey(),
        };
        // SAFETY: the entry is a slot of a slab that is registered and kept until the queue is destroyed. It is new, or
        // its completion was handled; it is not looked at again before its next one.
        match unsafe { self.receive.add(&entry) } {
            Ok(was_posted) => self.stats.refills += u64::from(was_posted),
            Err(_) => self.is_broken = true,
        }
    }

    /// The open queue pair that `qp` names.
    #[inline]
    fn find(&mut self, qp: QpId) -> Option<u16> {
        let index = qp.0 & 0xffff;
        let place = self.places.get(index as usize)?;
        let is_it = u32::from(place.generation) == qp.0 >> 16
            && place.link.as_ref().is_some_and(|link| link.is_open());
        is_it.then_some(index as u16)
    }

    /// Puts a place on the list of those with something to post.
    #[inline]
    fn activate(&mut self, index: u16) {
        if let Some(link) = &mut self.places[usize::from(index)].link
            && !std::mem::replace(&mut link.is_active, true)
        {
            self.active.push(index);
        }
    }

    /// A link, its slots, and the tools it works with.
    #[inline]
    fn at(&mut self, index: u16) -> Option<(&mut VerbsLink, &mut Slots, Tools<'_>)> {
        let Self {
            places,
            slabs,
            stage,
            stats,
            given,
            ..
        } = self;
        let at = usize::from(index);
        let link = places[at].link.as_mut()?;
        let tools = Tools {
            stage,
            stats,
            given,
        };
        Some((link, &mut slabs[at], tools))
    }
}

impl Port for VerbsPort {
    fn caps(&self, qp: QpId) -> Caps {
        let place = self.places.get((qp.0 & 0xffff) as usize);
        let link = place
            .filter(|place| u32::from(place.generation) == qp.0 >> 16)
            .and_then(|place| place.link.as_ref())
            .filter(|link| link.is_open());
        link.map_or(Caps::CLOSED, |link| link.caps())
    }

    #[inline]
    fn post_send(&mut self, qp: QpId, frame: &Frame, body: [&[u8]; 2]) -> Result<(), PostRefusal> {
        let index = self.find(qp).ok_or(PostRefusal::Closed)?;
        let Self {
            places,
            slabs,
            stats,
            active,
            ..
        } = self;
        let at = usize::from(index);
        let link = places[at].link.as_mut().ok_or(PostRefusal::Closed)?;
        link.post_send(frame, body, &mut slabs[at], stats)?;
        if !std::mem::replace(&mut link.is_active, true) {
            active.push(index);
        }
        Ok(())
    }

    fn post_write(&mut self, write: Write) -> Result<(), RefusedWrite> {
        let Some(index) = self.find(write.qp) else {
            return Err(PostRefusal::Closed.of(write));
        };
        let Ok(source) = write.source.host() else {
            return Err(PostRefusal::Unreadable.of(write));
        };
        let lkey = registered(
            &self.memory,
            source.as_ptr().addr() as u64,
            source.len() as u64,
        )
        .map(|known| known.lkey());
        let Some((link, ..)) = self.at(index) else {
            return Err(PostRefusal::Closed.of(write));
        };
        if let Err(write) = link.post_write(write, lkey) {
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
        mut buffer: Buffer,
    ) -> Result<Region, Buffer> {
        let Some(index) = self.find(qp) else {
            return Err(buffer);
        };
        let region = buffer.region();
        let address = buffer.as_mut_ptr().expose_provenance() as u64;
        let Some(rkey) =
            registered(&self.memory, address, buffer.len() as u64).map(|known| known.rkey())
        else {
            return Err(buffer);
        };
        let Some((link, ..)) = self.at(index) else {
            return Err(buffer);
        };
        link.open_landing(landing, buffer, (address, rkey))?;
        self.activate(index);
        Ok(region)
    }

    fn close_landing(&mut self, qp: QpId, landing: Landing) {
        let Some(index) = self.find(qp) else {
            return;
        };
        if let Some((link, _, tools)) = self.at(index) {
            link.close_landing(landing, tools.given);
        }
        self.activate(index);
    }

    #[inline(never)]
    fn poll<S: FnMut(Arrival<'_>)>(&mut self, now: Nanos, budget: usize, sink: &mut S) -> usize {
        self.now = now;
        self.stats.polls += 1;
        self.stage.begin_poll();
        if self.active.len() > 1 {
            // Each is the first once: what a poll may copy is not one link's alone.
            self.active.rotate_right(1);
        }
        let (mut left, mut done) = (budget, 0);
        self.give(&mut left, &mut done, sink);
        let is_empty = self.look(&mut left, &mut done, sink);
        if self.is_broken || self.domain.is_dead() {
            self.all_down();
        }
        if self.must_flush() {
            let before = self.stats.requests;
            self.flush_active();
            done += usize::from(self.stats.requests != before);
        }
        if !self.quarantine.is_empty() {
            self.try_again();
        }
        if !self.ending.is_empty() {
            self.end(is_empty);
            // The shard is to come back soon: time moves these on.
            done += 1;
        }
        self.give(&mut left, &mut done, sink);
        done
    }

    #[inline]
    fn flush(&mut self) {
        if self.must_flush() {
            self.flush_active();
        }
    }

    #[inline]
    fn must_flush(&self) -> bool {
        !self.active.is_empty()
    }

    fn close(&mut self, qp: QpId) {
        let index = (qp.0 & 0xffff) as u16;
        let place = self.places.get_mut(usize::from(index));
        let place = place.filter(|place| u32::from(place.generation) == qp.0 >> 16);
        let Some(link) = place.and_then(|place| place.link.as_mut()) else {
            return;
        };
        if link.is_ending() {
            return;
        }
        if !link.is_open() {
            // It has no peer to say goodbye to.
            self.go_down(index, DownReason::Closed, None);
            return;
        }
        link.leave();
        self.ending.push(index);
        self.activate(index);
    }

    fn arm(&mut self) -> bool {
        self.stage.begin_poll();
        let before = self.stats.requests;
        self.flush_active();
        if self.stats.requests != before
            || !self.given.is_empty()
            || !self.again.is_empty()
            || !self.ending.is_empty()
        {
            return false;
        }
        if self.inbox_at == self.inbox_len && !self.is_broken {
            if self.completions.arm().is_err() {
                self.is_broken = true;
            }
            // What came before the arming is not told of: look once more.
            self.take_completions();
        }
        // A broken port still has to tell its links; without any it has nothing to do.
        let must_tell = self.is_broken && self.places.iter().any(|place| place.link.is_some());
        self.inbox_at == self.inbox_len && !must_tell
    }

    fn disarm(&mut self) {
        self.completions.take_events();
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.completions.fd())
    }
}

/// The registration that holds so many bytes at `address`.
#[inline]
fn registered(memory: &[Arc<Registration>], address: u64, len: u64) -> Option<&Arc<Registration>> {
    let after = memory.partition_point(|known| known.address() <= address);
    memory[..after]
        .last()
        .filter(|known| known.holds(address, len))
}
