//! Links: the channels with a peer, in order, and those that are made within the process.
//!
//! Knows descriptors, ports and the order of channels; not which peer to connect with, nor when. Everything here is
//! cold.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use super::Inner;
use super::devices::Devices;
use super::transports::port_of;
use super::wiring::mapped_by;
use crate::control::{PeerUp, SegmentOffer};
use crate::fabric::doorbell::PeerWake;
use crate::fabric::shm::{LinkConfig, Side};
use crate::fabric::{Geometry, LoopbackPort, QUEUE_PAIRS_MAX};
use crate::ground::{Code, Locked, MemoryKind, Status, catalogue, limits};
use crate::mail::call::{Attach, PeerSegment, PeerUp as ShardPeerUp};
use crate::memory::{Arena as _, Export, MappedSegment, Memfd, MemoryError};
use crate::shard::Call;

/// For each of our shards: the peer's shards it shares a channel with, and how the link is made.
pub(super) type Links = Vec<Vec<(u16, Attach)>>;

/// Connects two engines of one process by loopback.
pub(super) fn connect_local(one: &Arc<Inner>, other: &Arc<Inner>) -> Result<(), Status> {
    if one.task == other.task {
        return Err(super::config::invalid(format!(
            "both engines are {}",
            one.task
        )));
    }
    let geometry = Geometry {
        slots: limits::LINK_SLOTS,
        payload_bytes: limits::LINK_PAYLOAD_BYTES,
    };
    let joining = Joining::of(one, other);
    let mut ones: Links = one.mailboxes.iter().map(|_| Vec::new()).collect();
    let mut others: Links = other.mailboxes.iter().map(|_| Vec::new()).collect();
    for (ours, theirs) in pairs(one.mailboxes.len(), other.mailboxes.len()) {
        let (maker, opener) = LoopbackPort::endpoints(geometry).ok_or_else(gone)?;
        ones[ours].push((theirs as u16, joining.attach(maker, wake_of(other, theirs))));
        others[theirs].push((ours as u16, joining.attach(opener, wake_of(one, ours))));
    }
    let (of_one, of_other) = (one.mapped_for_local(other)?, other.mapped_for_local(one)?);
    // From here on each tells the other of what it adds; nothing that may fail follows.
    for (here, there) in [(one, other), (other, one)] {
        let mut locals = here.locals.locked();
        // One that had that name before tells us nothing more.
        locals.retain(|other| {
            other
                .upgrade()
                .is_some_and(|other| other.task != there.task)
        });
        locals.push(Arc::downgrade(there));
    }
    let told = [
        of_other.iter().map(place_of).collect::<Vec<_>>(),
        of_one.iter().map(place_of).collect(),
    ];
    for (here, there, links, segments) in
        [(one, other, ones, of_other), (other, one, others, of_one)]
    {
        let devices = here.wiring.devices();
        let seen = devices.seen_by(&there.wiring.devices().features());
        devices.note_seen(&there.task, seen, true);
        // Before anything that this thread asks for next.
        for (shard, links) in here.reach_all().zip(links) {
            shard.call(Call::PeerUp(Box::new(ShardPeerUp {
                task: there.task.clone(),
                incarnation: there.incarnation,
                shards: there.mailboxes.len() as u16,
                read_domain: true,
                devices: seen,
                connection: u32::MAX,
                segments: segments.clone(),
                links,
            })));
        }
    }
    // What was added meanwhile may have been told before its reader knew whose it is, and was ignored.
    for ((here, there), told) in [(one, other), (other, one)].into_iter().zip(told) {
        let is_told = |offer: &SegmentOffer| told.contains(&(offer.arena, offer.segment));
        for offer in there.offers_for(here) {
            if !is_told(&offer) {
                there.offer_locally(here, offer);
            }
        }
    }
    joining.all_know();
    Ok(())
}

const fn place_of(segment: &PeerSegment) -> (u16, u16) {
    (segment.arena, segment.index)
}

impl Inner {
    /// All segments of ours, mapped for `reader`.
    fn mapped_for_local(&self, reader: &Self) -> Result<Vec<PeerSegment>, Status> {
        let offers = self.offers_for(reader).into_iter();
        offers.map(|offer| mapped_by(reader, offer)).collect()
    }
}

/// Two engines that are being connected by loopback. No connection tells either side that a link could not be made, so
/// both are told here, after both have heard that the other is there.
#[derive(Debug)]
struct Joining {
    ends: [Weak<Inner>; 2],
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    do_all_know: bool,
    has_failed: bool,
    is_told: bool,
}

impl Joining {
    fn of(one: &Arc<Inner>, other: &Arc<Inner>) -> Arc<Self> {
        Arc::new(Self {
            ends: [one, other].map(Arc::downgrade),
            progress: Mutex::default(),
        })
    }

    fn attach(self: &Arc<Self>, endpoint: crate::fabric::shm::Endpoint, wake: PeerWake) -> Attach {
        let joining = Arc::clone(self);
        Box::new(move |ports| {
            let (at, port) = port_of!(ports, Loopback)?;
            match port.attach_local(endpoint, wake) {
                Ok(qp) => Some((at, qp)),
                Err(_) => {
                    joining.note(|progress| progress.has_failed = true);
                    None
                }
            }
        })
    }

    /// Both engines have heard that the other is there.
    fn all_know(&self) {
        self.note(|progress| progress.do_all_know = true);
    }

    /// Notes what is so now, and tells both, once, if a link cannot be made and both know each other.
    fn note(&self, change: impl FnOnce(&mut Progress)) {
        let mut progress = self.progress.locked();
        change(&mut progress);
        let is_over = progress.do_all_know && progress.has_failed;
        let is_due = is_over && !std::mem::replace(&mut progress.is_told, is_over);
        drop(progress);
        let [one, other] = &self.ends;
        if is_due && let (Some(one), Some(other)) = (one.upgrade(), other.upgrade()) {
            for (here, there) in [(&one, &other), (&other, &one)] {
                let status = Status::of(
                    catalogue::PEER_LOST,
                    format!(
                        "{} cannot be connected by loopback: a port is full; the limit QUEUE_PAIRS_MAX is \
                         {QUEUE_PAIRS_MAX}",
                        there.task
                    ),
                );
                tracing::warn!(task = %here.task, %status, "cannot make a link between two engines of this process");
                here.call_all(|| Call::PeerLost {
                    task: there.task.clone(),
                    status: status.clone(),
                });
            }
        }
    }
}

fn wake_of(engine: &Inner, shard: usize) -> PeerWake {
    if engine.config.poll.may_sleep() {
        engine.doorbells[shard].wake()
    } else {
        PeerWake::NEVER_SLEEPS
    }
}

/// The shards that share a channel: those whose numbers agree modulo the greatest common divisor of both counts.
pub(super) fn pairs(ours: usize, theirs: usize) -> impl Iterator<Item = (usize, usize)> {
    let common = gcd(ours, theirs);
    (0..ours).flat_map(move |i| {
        (0..theirs)
            .filter(move |j| i % common == j % common)
            .map(move |j| (i, j))
    })
}

/// The same pairs in the order both sides count channels by: the maker's shard first. Ours is first in each pair.
pub(super) fn ordered_pairs(
    ours: usize,
    theirs: usize,
    side: Side,
) -> Box<dyn Iterator<Item = (usize, usize)>> {
    match side {
        Side::Maker => Box::new(pairs(ours, theirs)),
        Side::Opener => Box::new(pairs(theirs, ours).map(|(theirs, ours)| (ours, theirs))),
    }
}

const fn gcd(a: usize, b: usize) -> usize {
    if b == 0 {
        if a == 0 { 1 } else { a }
    } else {
        gcd(b, a % b)
    }
}

pub(super) const fn link_config(channels: usize) -> LinkConfig {
    LinkConfig {
        slots: limits::LINK_SLOTS,
        payload_bytes: limits::LINK_PAYLOAD_BYTES,
        channels: channels as u32,
    }
}

pub(super) fn numbers(config: &LinkConfig) -> Vec<u64> {
    vec![
        u64::from(config.slots),
        u64::from(config.payload_bytes),
        u64::from(config.channels),
    ]
}

/// Which side counts the channels of a connection as their maker: the dialler.
pub(super) const fn side_of(up: &PeerUp) -> Side {
    match up.dialler {
        true => Side::Maker,
        false => Side::Opener,
    }
}

/// A segment that a peer offers. One of the host's that cannot be mapped is an error; of a device's one that leases
/// nothing.
pub(super) fn import(
    offer: SegmentOffer,
    must_be_sealed: bool,
    devices: &Devices,
) -> Result<PeerSegment, MemoryError> {
    let (arena, index) = (offer.arena, offer.segment);
    let mapped = match offer.kind {
        MemoryKind::Host => {
            let SegmentOffer { kind, len, fd, .. } = offer;
            map(Export { kind, fd, len }, must_be_sealed)?
        }
        _ => devices.import(offer),
    };
    Ok(PeerSegment {
        arena,
        index,
        mapped,
    })
}

pub(super) fn map(export: Export, must_be_sealed: bool) -> Result<Arc<MappedSegment>, MemoryError> {
    let arena = Memfd {
        must_be_sealed,
        ..Memfd::default()
    };
    arena.import(export).map(Arc::new)
}

pub(super) fn copy(fd: BorrowedFd<'_>) -> Result<OwnedFd, Status> {
    fd.try_clone_to_owned().map_err(|error| {
        Status::of(
            catalogue::SYSTEM_LIMIT,
            format!("no descriptor is left: {error}"),
        )
    })
}

pub(super) fn link_status(task: &str, error: &crate::fabric::shm::LinkError) -> Status {
    Status::new(
        Code::FailedPrecondition,
        error.reason(),
        format!("the link with {task}: {error}"),
    )
}

pub(super) fn gone() -> Status {
    Status::new(Code::FailedPrecondition, catalogue::SHUTDOWN, "Shutdown")
}
