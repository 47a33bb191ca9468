//! Memory of devices as peers are told of it: announced beside the host's, its times before it.
//!
//! Knows what is offered to whom; `engine/devices` knows what is done with it.

use std::sync::Arc;

use super::Wiring;
use crate::control::SegmentOffer;
use crate::engine::devices::{Devices, uuid_of};
use crate::memory::{ArenaSegment as _, DeviceSegment, Export, Times};

impl Wiring {
    /// The devices of this task.
    pub(crate) const fn devices(&self) -> &Devices {
        &self.devices
    }

    /// An arena of a device of ours grew.
    pub(in crate::engine) fn device_segment_added(&self, arena: u16, segment: Arc<DeviceSegment>) {
        let offers = self.offers_of(arena, &segment);
        (self.book().device_segments).push((arena, Arc::clone(&segment)));
        let Some(engine) = self.engine() else { return };
        if let Some(control) = engine.control.get() {
            for offer in offers {
                // Refused only by a control plane that has ended.
                let _ = control.announce(offer);
            }
        }
        engine.tell_local_of(arena, &segment);
    }

    /// A segment of a device and the times of its blocks, as peers are offered them: the times come first.
    pub(super) fn offers_of(&self, arena: u16, segment: &DeviceSegment) -> [SegmentOffer; 2] {
        let offer = |arena, Export { kind, fd, len }, uuid| SegmentOffer {
            arena,
            segment: segment.index(),
            len,
            fd,
            kind,
            uuid,
        };
        let accelerator = self.devices.accelerator();
        let uuid = accelerator.map_or([0; 16], |all| uuid_of(all.as_ref(), segment));
        let times = segment.times().segment().export();
        [
            offer(Times::arena_of(arena), times, [0; 16]),
            offer(arena, segment.export(), uuid),
        ]
    }

    /// Tells peers of all our memory.
    pub(super) fn tell_all_memory(&self) {
        let Some(engine) = self.engine() else { return };
        let Some(control) = engine.control.get() else {
            return;
        };
        let device_segments = self.book().device_segments.clone();
        let device_offers = device_segments
            .iter()
            .flat_map(|(arena, segment)| self.offers_of(*arena, segment));
        for offer in self.host_offers().into_iter().chain(device_offers) {
            // Refused only by a control plane that has ended.
            let _ = control.announce(offer);
        }
    }

    /// What a peer with these features is offered of our devices in its greeting.
    pub(super) fn device_offers(&self, features: &[String]) -> Vec<SegmentOffer> {
        if self.devices.seen_by(features) == 0 {
            return Vec::new();
        }
        let segments = self.book().device_segments.clone();
        let offers = segments
            .iter()
            .flat_map(|(arena, segment)| self.offers_of(*arena, segment));
        offers.collect()
    }
}
