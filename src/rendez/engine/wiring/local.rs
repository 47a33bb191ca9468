//! Engines of one process that are connected by loopback: each maps what the other's arenas grow by.
//!
//! Knows segments, and no connection: there is none between them that could be lost.

use std::sync::{Arc, Weak};

use crate::control::SegmentOffer;
use crate::engine::Inner;
use crate::engine::links::map;
use crate::ground::{Locked, MemoryKind, Status, catalogue};
use crate::mail::call::PeerSegment;
use crate::memory::{ArenaSegment as _, DeviceSegment, Export, Segment};
use crate::shard::Call;

/// A segment of another engine of this process, mapped for `reader`.
pub(in crate::engine) fn mapped_by(
    reader: &Inner,
    offer: SegmentOffer,
) -> Result<PeerSegment, Status> {
    let (arena, index) = (offer.arena, offer.segment);
    let mapped = match offer.kind {
        MemoryKind::Host => {
            let SegmentOffer { kind, fd, len, .. } = offer;
            map(Export { kind, fd, len }, true)?
        }
        _ => reader.wiring.devices().import(offer),
    };
    Ok(PeerSegment {
        arena,
        index,
        mapped,
    })
}

impl Inner {
    /// The engines of this process that this one is connected with by loopback; not one that knows another of its name
    /// since.
    pub(in crate::engine) fn locals(&self) -> Vec<Arc<Self>> {
        let knows_us = |local: &Arc<Self>| {
            let known = local.connected_locally();
            known
                .iter()
                .any(|known| std::ptr::eq(Arc::as_ptr(known), self))
        };
        let mut locals = self.connected_locally();
        locals.retain(knows_us);
        locals
    }

    fn connected_locally(&self) -> Vec<Arc<Self>> {
        let locals = self.locals.locked();
        locals.iter().filter_map(Weak::upgrade).collect()
    }

    /// Engines of this process that are connected by loopback map a new segment of ours too.
    pub(super) fn tell_local(&self, arena: u16, segment: &Segment) {
        self.tell_locals(&[host_offer(arena, segment)]);
    }

    /// Engines of this process that are connected by loopback map a new segment of a device of ours too.
    pub(super) fn tell_local_of(&self, arena: u16, segment: &DeviceSegment) {
        self.tell_locals(&self.wiring.offers_of(arena, segment));
    }

    pub(super) fn tell_locals(&self, offers: &[SegmentOffer]) {
        for reader in self.locals() {
            for offer in offers {
                self.offer_locally(&reader, offer.clone());
            }
        }
    }

    /// Has `reader` map a segment of ours. If it cannot, each is lost to the other: no connection tells them so.
    pub(in crate::engine) fn offer_locally(&self, reader: &Self, offer: SegmentOffer) {
        let (arena, segment) = (offer.arena, offer.segment);
        match mapped_by(reader, offer) {
            Ok(segment) => reader.call_all(|| Call::PeerSegment {
                task: self.task.clone(),
                incarnation: self.incarnation,
                segment: segment.clone(),
            }),
            Err(error) => {
                tracing::warn!(
                    task = %self.task, reader = %reader.task, arena, segment, %error,
                    "a segment of a peer could not be mapped"
                );
                let status = Status::of(
                    catalogue::PEER_LOST,
                    format!(
                        "segment {segment} of arena {arena} of {} could not be mapped by {}: {error}",
                        self.task, reader.task
                    ),
                );
                for (here, there) in [(reader, self), (self, reader)] {
                    here.call_all(|| Call::PeerLost {
                        task: there.task.clone(),
                        status: status.clone(),
                    });
                }
            }
        }
    }

    /// All segments of ours, as `reader` is offered them.
    pub(in crate::engine) fn offers_for(&self, reader: &Self) -> Vec<SegmentOffer> {
        let features = reader.wiring.devices().features();
        let mut offers = self.wiring.device_offers(&features);
        offers.extend(self.wiring.host_offers());
        offers
    }
}

/// A segment of the host's as peers are offered it.
pub(super) fn host_offer(arena: u16, segment: &Segment) -> SegmentOffer {
    let Export { fd, len, kind } = segment.export();
    SegmentOffer {
        arena,
        segment: segment.index(),
        len,
        fd,
        kind,
        uuid: [0; 16],
    }
}
