//! Engines of one process that are connected by loopback: each maps what the other's arenas grow by.
//!
//! Knows segments, and no connection: there is none between them that could be lost.

use std::sync::{Arc, PoisonError, Weak};

use crate::control::SegmentOffer;
use crate::engine::Inner;
use crate::engine::links::map;
use crate::ground::{MemoryKind, Status};
use crate::mail::call::PeerSegment;
use crate::memory::{ArenaSegment as _, DeviceSegment, Export};
use crate::shard::Call;

pub(super) fn mapped_by(reader: &Inner, offer: SegmentOffer) -> Result<PeerSegment, Status> {
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
    /// The engines of this process that this one is connected with by loopback.
    pub(in crate::engine) fn locals(&self) -> Vec<Arc<Self>> {
        let locals = self.locals.lock().unwrap_or_else(PoisonError::into_inner);
        locals.iter().filter_map(Weak::upgrade).collect()
    }

    /// Engines of this process that are connected by loopback map a new segment of ours too.
    pub(super) fn tell_local(&self, arena: u16, index: u16) {
        let book = self.wiring.book();
        let Some((_, segment)) = book
            .segments
            .iter()
            .find(|(of, segment)| *of == arena && segment.index() == index)
        else {
            return;
        };
        let segment = Arc::clone(segment);
        drop(book);
        for other in self.locals() {
            let Ok(mapped) = map(segment.export(), true) else {
                continue;
            };
            let segment = PeerSegment {
                arena,
                index,
                mapped,
            };
            other.call_all(|| Call::PeerSegment {
                task: self.task.clone(),
                incarnation: self.incarnation,
                segment: segment.clone(),
            });
        }
    }

    /// Engines of this process that are connected by loopback map a new segment of a device of ours too.
    pub(super) fn tell_local_of(&self, arena: u16, segment: &DeviceSegment) {
        for other in self.locals() {
            for offer in self.wiring.offers_of(arena, segment) {
                let Ok(segment) = mapped_by(&other, offer) else {
                    continue;
                };
                other.call_all(|| Call::PeerSegment {
                    task: self.task.clone(),
                    incarnation: self.incarnation,
                    segment: segment.clone(),
                });
            }
        }
    }
}
