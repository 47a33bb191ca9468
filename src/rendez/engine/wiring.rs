//! Wiring: between the control plane, which speaks of descriptors, and the shards, which speak of links.
//!
//! Control asks what this task offers a peer and tells which peers came and went; shards ask for peers and tell of
//! memory and endings. Everything here is cold.

mod counting;
mod devices;
mod fallback;
mod local;
mod losing;
mod reaching;

pub(in crate::engine) use counting::Connections;
pub use fallback::Fallback;
pub(super) use local::mapped_by;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::Inner;
use super::admission::Admission;
use super::config::{Config, nanos};
use super::devices::Devices;
use super::links::{copy, gone, import, link_config, link_status, numbers, pairs};
use super::transports::Transports;
use crate::channel::{Rule, Rules};
use crate::control::{
    Address, DoorbellOffer, Handler, LinkOffer, LocalOffer, Offers, Path, PeerGone, PeerHello,
    PeerId, PeerUp, SegmentOffer, Services,
};
use crate::fabric::DownReason;
use crate::fabric::shm::{LinkConfig, LinkMapping};
use crate::ground::device::TaskName;
use crate::ground::{Code, Incarnation, Key, Locked, Status, StepId, catalogue, limits};
use crate::mail::call::{PeerSegment, PeerUp as ShardPeerUp};
use crate::memory::{DeviceSegment, House, MappedSegment, MemoryError, Segment};
use crate::shard::{Call, Observer, Unsent};
use local::host_offer;

/// At most how much earlier than the shards a dial gives up.
const DIAL_LEAD: Duration = Duration::from_millis(200);

/// The state behind both sides.
#[derive(Debug)]
pub(crate) struct Wiring {
    shards: usize,
    dial_timeout: Duration,
    rules: Rules,
    given_up_after: Duration,
    admission: Admission,
    /// What peers may call beside what every engine has.
    services: Services,
    /// Services by name, of what is started later.
    pub(crate) offers: super::offers::EngineOffers,
    transports: Transports,
    devices: Devices,
    engine: OnceLock<Weak<Inner>>,
    book: Mutex<Book>,
    /// Told when a dial has come to something.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct Book {
    /// Where tasks listen.
    addresses: BTreeMap<String, Address>,
    /// Tasks that are wanted and not dialled yet, for want of an address or of a control plane.
    wanted: BTreeSet<TaskName>,
    /// Connections that are of no use, and why, until there is a control plane to end them.
    useless: Vec<(PeerId, String)>,
    /// Tasks that a key named, or whose connection was lost, and since when, until they are connected: bounded by the
    /// peers there may be.
    awaited: BTreeMap<TaskName, Instant>,
    /// Peers of a list whose connection was lost, until they are connected again.
    lost: BTreeMap<TaskName, losing::Lost>,
    /// Our memory, in the order it was made: arena and segment.
    segments: Vec<(u16, Arc<Segment>)>,
    /// Our devices', in the order it was made: arena and segment.
    device_segments: Vec<(u16, Arc<DeviceSegment>)>,
    /// Links we made for peers we dialled.
    links: BTreeMap<String, LinkMapping>,
    /// Why the last dial of a task came to nothing: bounded by the addresses there are.
    unreached: BTreeMap<TaskName, Status>,
    /// What befell the last attempt of each dial that goes on.
    tried: BTreeMap<TaskName, Status>,
    /// The peer of each connection.
    connected: BTreeMap<PeerId, Connected>,
    /// Peers to which the way was not the best one of this machine, by name: bounded by the peers there may be. Those
    /// of one peer that differ in their ways or reason are counted each for itself, the last one last.
    fallbacks: BTreeMap<TaskName, Vec<Fallback>>,
    /// The last life of each task that was connected, so that a return is known: bounded by the peers there may be.
    lives: BTreeMap<TaskName, Incarnation>,
    counts: counting::Counts,
    /// Whose exit is still to be told, whether connected or not: only where it can be proved.
    followed: BTreeMap<PeerId, (TaskName, Incarnation)>,
}

/// A connection that stands.
#[derive(Clone, Debug)]
pub struct Connected {
    /// The peer.
    pub task: TaskName,
    /// The peer's life.
    pub incarnation: Incarnation,
    /// The peer's shards.
    pub shards: u16,
    /// The way to it.
    pub path: Path,
    /// Why this way and no better one: for people.
    pub why: String,
    /// A better path was tried and unavailable, or stands idle, as `why` says.
    pub fell_back: bool,
    /// Each side may map the other's memory.
    pub read_domain: bool,
    /// What protects what travels: `same machine`, `clear`, or how it is encrypted.
    pub protection: &'static str,
}

impl Book {
    /// Something waits for `task` from now on.
    fn await_task(&mut self, task: &TaskName) {
        if self.awaited.len() < limits::PEERS || self.awaited.contains_key(task) {
            self.awaited.insert(task.clone(), Instant::now());
        }
    }
}

impl Wiring {
    pub(crate) fn new(
        config: &Config,
        shards: usize,
        house: House,
        transports: Transports,
        services: Services,
    ) -> Result<Self, Status> {
        // However a peer is spelled in the settings, keys name it in full.
        let in_full = |(task, address): (&String, &Address)| {
            TaskName::parse(task).map(|task| (task.to_string(), address.clone()))
        };
        let addresses = config.peers.iter().map(in_full).collect::<Result<_, _>>()?;
        let book = Book {
            addresses,
            ..Book::default()
        };
        Ok(Self {
            shards,
            // The dial gives up before the shards do: what its end was is known when they tell their waiters.
            dial_timeout: config.connect_timeout - (config.connect_timeout / 8).min(DIAL_LEAD),
            rules: config.rules,
            given_up_after: config.given_up_after(),
            admission: Admission::new(config)?,
            services,
            offers: Default::default(),
            transports,
            devices: Devices::open(config, house)?,
            engine: OnceLock::new(),
            book: Mutex::new(book),
            settled: Condvar::new(),
        })
    }

    pub(crate) fn bind(&self, engine: &Arc<Inner>) {
        let _ = self.engine.set(Arc::downgrade(engine));
    }

    /// Tasks that are not connected although a key named them, or whose connection was lost. Pairs that never talk
    /// miss nothing. One that is neither of the cluster nor has an address may be a slip of a name: it is forgotten
    /// when nothing can wait for it any more.
    pub(crate) fn missing(&self, own: &TaskName, known: &BTreeSet<String>) -> BTreeSet<TaskName> {
        let mut book = self.book();
        let patience = self.dial_timeout + 2 * DIAL_LEAD;
        let parse = |name: &String| TaskName::parse(name).ok();
        let there_are = book.addresses.keys().chain(known).filter_map(parse);
        let there_are: BTreeSet<_> = there_are.collect();
        book.awaited
            .retain(|task, since| there_are.contains(task) || since.elapsed() < patience);
        let connected: BTreeSet<_> = book.connected.values().map(|peer| &peer.task).collect();
        let is_missing = |task: &&TaskName| {
            !connected.contains(task) && *task != own && task.job() != super::OBSERVER_JOB
        };
        book.awaited.keys().filter(is_missing).cloned().collect()
    }

    /// An arena of ours grew.
    pub(crate) fn segment_added(&self, arena: u16, segment: Arc<Segment>) {
        // At the start the whole of it is registered when all of it is there.
        if self.engine().is_some() {
            self.transports.segment_added(&segment);
        }
        self.book().segments.push((arena, Arc::clone(&segment)));
        if let Some(engine) = self.engine()
            && let Some(control) = engine.control.get()
        {
            // Refused only by a control plane that has ended, and no peer is told anything then.
            let _ = control.announce(host_offer(arena, &segment));
        }
        if let Some(engine) = self.engine() {
            engine.tell_local(arena, &segment);
        }
    }

    pub(super) fn transports(&self) -> &Transports {
        &self.transports
    }

    /// Our memory, in the order it was made: arena and segment.
    pub(super) fn segments(&self) -> Vec<(u16, Arc<Segment>)> {
        self.book().segments.clone()
    }

    /// The first segment of it that is so.
    pub(super) fn segment_that(&self, is_it: impl Fn(&Segment) -> bool) -> Option<Arc<Segment>> {
        let book = self.book();
        let found = book.segments.iter().find(|(_, segment)| is_it(segment));
        found.map(|(_, segment)| Arc::clone(segment))
    }

    /// All of it, as peers are offered it.
    fn host_offers(&self) -> Vec<SegmentOffer> {
        let segments = self.segments().into_iter();
        let offers = segments.map(|(arena, segment)| host_offer(arena, &segment));
        offers.collect()
    }

    /// What this task tells peers of itself beside its numbers.
    pub(crate) fn features(&self) -> Vec<String> {
        let mut features = self.admission.features();
        features.extend(self.devices.features());
        features
    }

    /// Tasks whose address is known.
    pub(crate) fn addressed(&self) -> Vec<TaskName> {
        let parse = |name: &String| TaskName::parse(name).ok();
        self.book().addresses.keys().filter_map(parse).collect()
    }

    /// The connections that stand.
    pub(crate) fn connected(&self) -> Vec<Connected> {
        self.book().connected.values().cloned().collect()
    }

    fn engine(&self) -> Option<Arc<Inner>> {
        self.engine.get().and_then(Weak::upgrade)
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.locked()
    }

    fn link_config(&self, peer_shards: u16) -> LinkConfig {
        link_config(pairs(self.shards, usize::from(peer_shards)).count())
    }
}

impl Inner {
    pub(crate) fn call_all(&self, call: impl Fn() -> Call) {
        for mailbox in &self.mailboxes {
            mailbox.call(call());
        }
    }
}

impl Handler for Wiring {
    fn judge(&self, peer: &PeerHello) -> Result<(), Status> {
        self.admission.judge(peer)
    }

    fn local(&self, peer: &PeerHello) -> Result<LocalOffer, Status> {
        self.admission.judge(peer)?;
        let engine = self.engine().ok_or_else(gone)?;
        let mut offer = LocalOffer {
            segments: self.device_offers(&peer.features),
            ..LocalOffer::default()
        };
        offer.segments.extend(self.host_offers());
        if engine.config.poll.may_sleep() {
            // Two for each shard, in this order: the page with its flag, and the eventfd.
            for (shard, doorbell) in engine.doorbells.iter().enumerate() {
                let (page, event) = doorbell.fds();
                offer.doorbells.push(DoorbellOffer {
                    shard: shard as u16,
                    fd: copy(page)?,
                });
                offer.doorbells.push(DoorbellOffer {
                    shard: shard as u16,
                    fd: copy(event)?,
                });
            }
        }
        Ok(offer)
    }

    fn make_link(&self, peer: &PeerHello) -> Result<LinkOffer, Status> {
        let config = self.link_config(peer.shards);
        let link = LinkMapping::create(config).map_err(|error| link_status(&peer.task, &error))?;
        let offer = LinkOffer {
            len: link.bytes(),
            numbers: numbers(&config),
            fd: copy(link.fd())?,
        };
        self.book().links.insert(peer.task.clone(), link);
        Ok(offer)
    }

    fn accept_link(&self, peer: &PeerHello, link: &LinkOffer) -> Result<(), Status> {
        let config = self.link_config(peer.shards);
        if link.numbers != numbers(&config) {
            return Err(Status::new(
                Code::FailedPrecondition,
                catalogue::PEER_REFUSED,
                format!(
                    "the link's measures are {:?}, and ours {:?}",
                    link.numbers,
                    numbers(&config)
                ),
            ));
        }
        LinkMapping::open(copy(link.fd.as_fd())?, config)
            .map(drop)
            .map_err(|error| link_status(&peer.task, &error))
    }

    fn data_channels(&self, peer: &PeerHello) -> Result<u32, Status> {
        self.admission.judge(peer)?;
        Ok(pairs(self.shards, usize::from(peer.shards)).count() as u32)
    }

    fn transports(&self) -> Vec<Arc<dyn Offers>> {
        self.transports.offers()
    }

    fn services(&self) -> crate::control::Services {
        super::services::of(self.engine.get().cloned().unwrap_or_default())
            .and(self.services.clone())
    }

    fn peer_up(&self, up: PeerUp) {
        let (peer, task) = (up.peer, up.task.clone());
        if let Err(status) = self.connect(up) {
            tracing::error!(task, %status, "a greeted peer could not be wired");
            if let (Some(engine), Ok(task)) = (self.engine(), TaskName::parse(&task)) {
                self.start_over(&engine, peer, &task, &status);
                self.not_reached(&task, &status);
                engine.call_all(|| Call::PeerLost {
                    task: task.clone(),
                    status: status.clone(),
                });
            }
        }
    }

    fn segment_added(&self, peer: PeerId, segment: SegmentOffer) {
        let whose = self.book().connected.get(&peer).cloned();
        let (Some(engine), Some(whose)) = (self.engine(), whose) else {
            return;
        };
        let (task, incarnation) = (whose.task, whose.incarnation);
        match import(segment, self.rules.on(Rule::Sealed), &self.devices) {
            Ok(segment) => {
                self.devices.note(&task, incarnation, &segment.mapped);
                engine.call_all(|| Call::PeerSegment {
                    task: task.clone(),
                    incarnation,
                    segment: segment.clone(),
                });
            }
            Err(error) => {
                let status = Status::from(error);
                tracing::error!(%task, %status, "a segment of a peer could not be mapped");
                self.hang_up_soon(&engine, peer, &status.to_string());
                engine.call_all(|| Call::PeerLost {
                    task: task.clone(),
                    status: status.clone(),
                });
            }
        }
    }

    fn segment_missed(&self, peer: PeerId, arena: u16, segment: u16) {
        let whose = self.book().connected.get(&peer).cloned();
        let (Some(engine), Some(whose)) = (self.engine(), whose) else {
            return;
        };
        let mapped = Arc::new(MappedSegment::refused(MemoryError::System {
            call: "recvmsg",
            errno: rustix::io::Errno::MFILE.raw_os_error(),
        }));
        engine.call_all(|| Call::PeerSegment {
            task: whose.task.clone(),
            incarnation: whose.incarnation,
            segment: PeerSegment {
                arena,
                index: segment,
                mapped: Arc::clone(&mapped),
            },
        });
    }

    fn peer_gone(&self, peer: PeerId, why: PeerGone, proved: Instant) {
        let Some(engine) = self.engine() else { return };
        let former = self.book().connected.remove(&peer);
        if let Some(former) = former {
            self.connection_gone(&engine, &former, &why, proved);
        }
        let exited = why
            .is_proof()
            .then(|| self.book().followed.remove(&peer))
            .flatten();
        if let Some((task, incarnation)) = exited {
            self.devices.peer_exited(&task, incarnation);
            engine.call_all(|| Call::PeerExited {
                task: task.clone(),
                incarnation,
            });
        }
    }

    fn peer_forgotten(&self, peer: PeerId) {
        let forgotten = self.book().followed.remove(&peer);
        if let (Some((task, incarnation)), Some(engine)) = (forgotten, self.engine()) {
            let until = engine.clock.stamp() + nanos(self.given_up_after);
            self.devices.peer_away(&task, incarnation, until);
        }
    }

    fn dial_goes_on(&self, task: &str, last: &Status) {
        self.tried(task, last);
    }

    fn dial_failed(&self, task: &str, status: Status, last: Status) {
        self.given_up(task, &status, &last);
    }

    fn refused(&self, reason: &'static str) {
        *self.book().counts.refused.entry(reason).or_default() += 1;
    }
}

impl Wiring {
    fn connect(&self, up: PeerUp) -> Result<(), Status> {
        let engine = self.engine().ok_or_else(gone)?;
        let task = TaskName::parse(&up.task)?;
        let made = {
            let mut book = self.book();
            // Also if what follows fails: its memory may be here from connections before, which tell no more.
            if up.exit_provable {
                let life = (task.clone(), up.incarnation);
                book.followed.retain(|_, followed| *followed != life);
                book.followed.insert(up.peer, life);
            }
            book.links.remove(&up.task)
        };
        let connected = Connected {
            task: task.clone(),
            incarnation: up.incarnation,
            shards: up.hello.shards,
            path: up.path,
            why: up.path_why.clone(),
            fell_back: up.fell_back.is_some(),
            read_domain: up.read_domain,
            protection: match up.path.is_far() {
                true => up.protection.describe(),
                false => "same machine",
            },
        };
        self.tell_who_came(&connected);
        engine.keep_clocks(up.path);
        if let Some(from) = up.fell_back {
            self.fell_back(&connected, from);
        }
        let peer = up.peer;
        let devices = self.devices.seen_by(&up.hello.features);
        (self.devices).note_seen(&task, devices, connected.read_domain);
        let transport = self.transports.of(up.path).ok_or_else(gone)?;
        let (segments, links) = transport.links(&engine, up, made)?;
        for segment in &segments {
            (self.devices).note(&task, connected.incarnation, &segment.mapped);
        }
        let mut book = self.book();
        book.connected.insert(peer, connected.clone());
        book.unreached.remove(&task);
        book.tried.remove(&task);
        self.settled.notify_all();
        book.awaited.remove(&task);
        book.lost.remove(&task);
        book.wanted.remove(&task);
        drop(book);
        for (mailbox, links) in engine.mailboxes.iter().zip(links) {
            mailbox.call(Call::PeerUp(Box::new(ShardPeerUp {
                task: task.clone(),
                incarnation: connected.incarnation,
                shards: connected.shards,
                read_domain: connected.read_domain,
                devices,
                connection: peer.0,
                segments: segments.clone(),
                links,
            })));
        }
        // If the path was given up while this peer was greeted, only those that were connected were hung up on.
        let lack = Arc::clone(transport)
            .offers()
            .and_then(|offers| offers.lack());
        if let Some(lack) = lack {
            self.hang_up_soon(&engine, peer, &lack.why);
        }
        Ok(())
    }
}

/// One shard's observer.
#[derive(Debug)]
pub(crate) struct ShardObserver {
    wiring: Weak<Wiring>,
    index: u16,
}

impl ShardObserver {
    pub(crate) fn new(wiring: &Arc<Wiring>, index: u16) -> Arc<Self> {
        Arc::new(Self {
            wiring: Arc::downgrade(wiring),
            index,
        })
    }
}

impl Observer for ShardObserver {
    fn peer_wanted(&self, task: &TaskName) {
        if let Some(wiring) = self.wiring.upgrade() {
            wiring.want(task);
        }
    }

    fn why_absent(&self, task: &TaskName) -> Option<String> {
        self.wiring.upgrade()?.why_absent(task)
    }

    fn step_ended(&self, step: StepId, status: &Status) {
        if let Some(engine) = self.wiring.upgrade().and_then(|wiring| wiring.engine()) {
            engine.steps.end(step, status);
        }
    }

    fn link_down(&self, task: &TaskName, connection: u32, reason: DownReason) {
        tracing::debug!(shard = self.index, %task, ?reason, "a link is down");
        if reason != DownReason::Closed
            && let Some(wiring) = self.wiring.upgrade()
        {
            wiring.renew(task, connection, reason);
        }
    }

    fn violated(&self, task: &TaskName, connection: u32, status: &Status) {
        tracing::error!(shard = self.index, %task, %status, "a peer broke the protocol");
        // It would end the connection itself, if it kept to the protocol.
        if let Some(wiring) = self.wiring.upgrade() {
            wiring.renew(task, connection, DownReason::Corrupt);
        }
    }

    fn task_failed(&self, status: &Status) {
        tracing::error!(shard = self.index, %status, "a task inside a shard panicked");
    }

    fn shard_failed(&self, status: &Status) -> Status {
        let engine = self.wiring.upgrade().and_then(|wiring| wiring.engine());
        engine.map_or_else(|| status.clone(), |engine| engine.fail(status))
    }

    fn deadline_missed(&self, step: StepId, key: &Key) {
        let engine = self.wiring.upgrade().and_then(|wiring| wiring.engine());
        engine
            .iter()
            .for_each(|engine| engine.deadline_missed(step, key));
    }

    fn dropped(&self, task: &TaskName, what: Unsent, why: &Status) {
        let Unsent { values, bytes } = what;
        tracing::warn!(%task, values, bytes, %why, "values that were sent to a task are dropped");
    }

    fn segment_added(&self, segment: Arc<Segment>) {
        if let Some(wiring) = self.wiring.upgrade() {
            wiring.segment_added(self.index, segment);
        }
    }
}

#[cfg(test)]
mod tests;
