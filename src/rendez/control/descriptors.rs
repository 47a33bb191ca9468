//! Descriptors: what a task passes to a peer of its machine through their lane, batch by batch, and what it takes.
//!
//! Knows lanes, and the numbers that go with descriptors; not the order in which both sides pass theirs.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rendez_proto::{self as proto, descriptor::Kind};
use rustix::io::Errno;

use crate::ground::limits::{
    DESCRIPTORS_PER_BATCH, DESCRIPTORS_PER_GREETING, LINK_NUMBERS_MAX, SEGMENT_BYTES_MAX,
};
use crate::ground::{Code, MemoryKind, Status};

use super::lane::{Lane, LaneError};
use super::peer::{DoorbellOffer, LinkOffer, LocalOffer, PeerHello, SegmentOffer};
use super::refusal::{Refusal, protocol_refusal};

/// A descriptor to be passed.
#[derive(Debug)]
enum Passed {
    /// Ours alone.
    Own(OwnedFd),
    /// A segment's.
    Shared(Arc<OwnedFd>),
}

/// What both sides of a greeting pass each other.
#[derive(Debug, Default)]
pub(crate) struct Passing {
    /// What is still to be passed.
    waiting: VecDeque<(Kind, Passed)>,
    /// Our segments that the peer has, once all is passed.
    pub(crate) offered: BTreeSet<(u16, u16)>,
    /// The link: ours if we dialled, else the peer's.
    pub(crate) link: Option<LinkOffer>,
    pub(crate) segments: Vec<SegmentOffer>,
    pub(crate) doorbells: Vec<DoorbellOffer>,
    /// The peer's segments that we have.
    pub(crate) known: BTreeSet<(u16, u16)>,
    taken: usize,
}

impl Passing {
    /// What a side passes: its link if it made one, doorbells, and memory within the read domain.
    pub(crate) fn fill(
        &mut self,
        local: LocalOffer,
        passes_link: bool,
        read_domain: bool,
    ) -> std::io::Result<()> {
        if let Some(link) = self.link.as_ref().filter(|_| passes_link) {
            let kind = Kind::Link(proto::LinkDescriptor {
                len: link.len,
                numbers: link.numbers.clone(),
            });
            self.waiting
                .push_back((kind, Passed::Own(link.fd.try_clone()?)));
        }
        for bell in local.doorbells {
            let kind = Kind::Doorbell(proto::DoorbellDescriptor {
                shard: bell.shard.into(),
            });
            self.waiting.push_back((kind, Passed::Own(bell.fd)));
        }
        for segment in local.segments.into_iter().filter(|_| read_domain) {
            self.offered.insert((segment.arena, segment.segment));
            let kind = Kind::Arena(describe_segment(&segment));
            self.waiting.push_back((kind, Passed::Shared(segment.fd)));
        }
        Ok(())
    }

    /// Puts the next batch into the lane, and gives the message that names it.
    pub(crate) fn pass(
        &mut self,
        lane: &mut Lane,
        task: &str,
    ) -> Result<proto::Descriptors, Refusal> {
        let count = self.waiting.len().min(DESCRIPTORS_PER_BATCH);
        let (kinds, passed): (Vec<Kind>, Vec<Passed>) = self.waiting.drain(..count).unzip();
        let fds: Vec<BorrowedFd<'_>> = passed.iter().map(AsFd::as_fd).collect();
        let batch = lane
            .send(&fds)
            .map_err(|error| lane_refusal(task, &error))?;
        let entry = |kind| proto::Descriptor { kind: Some(kind) };
        Ok(proto::Descriptors {
            batch,
            entries: kinds.into_iter().map(entry).collect(),
            last: self.waiting.is_empty(),
        })
    }

    /// Takes one batch out of the lane and sorts it. On any error all its descriptors are closed.
    pub(crate) fn take(
        &mut self,
        lane: &mut Lane,
        peer: &PeerHello,
        batch: proto::Descriptors,
        read_domain: bool,
        wants_link: bool,
    ) -> Result<(), Refusal> {
        let broken = |what: &str| Err(protocol_refusal(&peer.task, what));
        let count = batch.entries.len();
        if count == 0 && !batch.last {
            return broken("a batch of nothing, with more to come");
        }
        let descriptors = lane
            .receive(batch.batch, count)
            .map_err(|error| lane_refusal(&peer.task, &error))?;
        self.taken += count;
        if self.taken > DESCRIPTORS_PER_GREETING {
            let message = format!(
                "more than {DESCRIPTORS_PER_GREETING} descriptors, the limit DESCRIPTORS_PER_GREETING"
            );
            let reason = "PEER_REFUSED";
            return Err(Refusal::fatal(Code::ResourceExhausted, reason, message));
        }
        for (entry, fd) in batch.entries.into_iter().zip(descriptors) {
            match entry.kind {
                Some(Kind::Arena(arena)) if read_domain => {
                    let segment = accept_segment(&arena, fd, peer, &mut self.known)?;
                    self.segments.push(segment);
                }
                Some(Kind::Arena(_)) => return broken("a segment from outside our read domain"),
                Some(Kind::Doorbell(bell)) => {
                    self.doorbells.push(accept_doorbell(&bell, fd, peer)?)
                }
                Some(Kind::Link(link)) if wants_link && self.link.is_none() => {
                    self.link = Some(accept_link(link, fd)?);
                }
                Some(Kind::Link(_)) => return broken("a link that was not asked for"),
                None => return broken("a descriptor of no kind we know"),
            }
        }
        match batch.last && wants_link && self.link.is_none() {
            true => broken("a greeting without a link"),
            false => Ok(()),
        }
    }
}

impl AsFd for Passed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(fd) => fd.as_fd(),
            Self::Shared(fd) => fd.as_fd(),
        }
    }
}

/// A segment as it is named on the wire.
pub(crate) fn describe_segment(segment: &SegmentOffer) -> proto::ArenaDescriptor {
    proto::ArenaDescriptor {
        arena: segment.arena.into(),
        segment: segment.segment.into(),
        len: segment.len,
        kind: segment.kind as u32,
        device: match segment.kind {
            MemoryKind::Host => Vec::new(),
            _ => segment.uuid.to_vec(),
        },
    }
}

/// The numbers of a peer's segment, checked: its arena, and which it is there. `known` are those that came before, and
/// this one then.
pub(crate) fn number_segment(
    arena: &proto::ArenaDescriptor,
    peer: &PeerHello,
    known: &mut BTreeSet<(u16, u16)>,
) -> Result<(u16, u16), Refusal> {
    let numbers = (u16::try_from(arena.arena), u16::try_from(arena.segment));
    let (Ok(number), Ok(segment)) = numbers else {
        return Err(protocol_refusal(
            &peer.task,
            "an arena or a segment beyond 65535",
        ));
    };
    if arena.len == 0 || arena.len > SEGMENT_BYTES_MAX {
        return Err(protocol_refusal(
            &peer.task,
            "a segment of no length we take",
        ));
    }
    if known.len() >= usize::try_from(peer.limits.segments_max).unwrap_or(usize::MAX) {
        return Err(protocol_refusal(
            &peer.task,
            "more segments than its hello allows",
        ));
    }
    if !known.insert((number, segment)) {
        return Err(protocol_refusal(
            &peer.task,
            "a segment it has offered before",
        ));
    }
    Ok((number, segment))
}

/// A peer's segment, its numbers checked; `known` are those that came before, and this one then.
pub(crate) fn accept_segment(
    arena: &proto::ArenaDescriptor,
    fd: OwnedFd,
    peer: &PeerHello,
    known: &mut BTreeSet<(u16, u16)>,
) -> Result<SegmentOffer, Refusal> {
    let (number, segment) = number_segment(arena, peer, known)?;
    let kind = u8::try_from(arena.kind)
        .ok()
        .and_then(MemoryKind::from_wire);
    let kind = kind.ok_or_else(|| {
        protocol_refusal(
            &peer.task,
            "a segment of a kind of memory that is not known",
        )
    })?;
    let uuid = match kind {
        MemoryKind::Host => Some([0; 16]),
        _ => <[u8; 16]>::try_from(arena.device.as_slice()).ok(),
    };
    let uuid = uuid.ok_or_else(|| {
        protocol_refusal(&peer.task, "a device whose identity is not of 16 bytes")
    })?;
    Ok(SegmentOffer {
        arena: number,
        segment,
        len: arena.len,
        fd: fd.into(),
        kind,
        uuid,
    })
}

fn accept_link(link: proto::LinkDescriptor, fd: OwnedFd) -> Result<LinkOffer, Refusal> {
    if link.numbers.len() > LINK_NUMBERS_MAX {
        let message =
            format!("a link with more than {LINK_NUMBERS_MAX} numbers, the limit LINK_NUMBERS_MAX");
        return Err(Refusal::fatal(
            Code::ResourceExhausted,
            "PEER_REFUSED",
            message,
        ));
    }
    Ok(LinkOffer {
        len: link.len,
        numbers: link.numbers,
        fd,
    })
}

fn accept_doorbell(
    bell: &proto::DoorbellDescriptor,
    fd: OwnedFd,
    peer: &PeerHello,
) -> Result<DoorbellOffer, Refusal> {
    match u16::try_from(bell.shard) {
        Ok(shard) if shard < peer.shards => Ok(DoorbellOffer { shard, fd }),
        _ => Err(protocol_refusal(
            &peer.task,
            "a doorbell of a shard it does not have",
        )),
    }
}

/// The lane of `task` failed.
pub(crate) fn lane_refusal(task: &str, error: &LaneError) -> Refusal {
    match error {
        LaneError::System {
            errno: Errno::PIPE | Errno::CONNRESET,
            ..
        } => Refusal::later("PEER_LOST", format!("descriptors of task {task}: {error}")),
        LaneError::CutOff | LaneError::Short | LaneError::Full | LaneError::System { .. } => {
            Refusal {
                status: Status::new(
                    Code::ResourceExhausted,
                    "PEER_REFUSED",
                    format!("descriptors of task {task}: {error}"),
                ),
                retry: true,
            }
        }
        _ => protocol_refusal(task, &error.to_string()),
    }
}
