//! Devices that peers see: which of ours each can import memory of, and what peers offer of theirs.
//!
//! Devices are matched by their identities: numbers differ between processes, as containers and the driver's own
//! variables hide and renumber devices. What cannot be imported is noted as such, so that nothing waits for it.

use std::sync::{Arc, Mutex, Weak};

use super::Devices;
use crate::control::SegmentOffer;
use crate::ground::device::TaskName;
use crate::ground::{Incarnation, Locked, MemoryKind, Nanos};
use crate::memory::{Arena as _, DeviceArena, DeviceUuid, Export, MappedSegment, MemoryError};

/// Devices that a hello names at most.
const NAMED_MAX: usize = 32;

/// What peers have shown of their devices' memory, and who of them may be gone.
#[derive(Debug, Default)]
pub(super) struct DevicePeers {
    imported: Mutex<Vec<Imported>>,
    /// Lives whose end nothing will prove, and until when they may come back.
    away: Mutex<Vec<(Nanos, TaskName, Incarnation)>>,
}

/// A peer's segment that tells the times of its device's.
#[derive(Debug)]
pub(super) struct Imported {
    task: TaskName,
    incarnation: Incarnation,
    segment: Weak<MappedSegment>,
}

impl Devices {
    /// The devices that this task sees, as features of its hello.
    pub(in crate::engine) fn features(&self) -> Vec<String> {
        let accelerator = self.accelerator.iter();
        let devices = accelerator.flat_map(|all| {
            let kind = all.kind();
            let named = all.devices().iter().filter(|info| info.exports);
            named.map(move |info| feature(kind, info.uuid))
        });
        devices.take(NAMED_MAX).collect()
    }

    /// Which of our devices a peer with these features can import memory of: a bit for each.
    pub(in crate::engine) fn seen_by(&self, features: &[String]) -> u64 {
        let Ok(accelerator) = &self.accelerator else {
            return 0;
        };
        let kind = accelerator.kind();
        let seen = accelerator.devices().iter().take(64).filter(|info| {
            let name = feature(kind, info.uuid);
            features.contains(&name)
        });
        seen.fold(0, |mask, info| mask | 1 << info.number)
    }

    /// Notes which of our devices a peer can import memory of, and whether it may.
    pub(in crate::engine) fn note_seen(&self, task: &TaskName, seen: u64, may: bool) {
        if seen == 0 || !may {
            self.seen.locked().remove(task);
        } else {
            self.seen.locked().insert(task.clone(), seen);
        }
    }

    /// A peer's segment of a device, mapped if it can be.
    pub(in crate::engine) fn import(&self, offer: SegmentOffer) -> Arc<MappedSegment> {
        let SegmentOffer {
            len,
            fd,
            kind,
            uuid,
            ..
        } = offer;
        let mapped = self.mapped(Export { kind, fd, len }, DeviceUuid(uuid));
        Arc::new(mapped.unwrap_or_else(|error| {
            tracing::warn!(%error, "a peer's device memory cannot be imported; values that lie there are refused");
            MappedSegment::refused(error)
        }))
    }

    fn mapped(&self, export: Export, uuid: DeviceUuid) -> Result<MappedSegment, MemoryError> {
        let kind = export.kind;
        let Ok(accelerator) = &self.accelerator else {
            return Err(MemoryError::Kind { kind });
        };
        let device = accelerator.find(uuid).ok_or(MemoryError::Unseen { kind })?;
        let arena = DeviceArena::new(accelerator, device.number)?;
        arena.import(export).map(MappedSegment::on_device)
    }

    /// Notes a peer's segment, so that those who wait for its devices hear of the peer's end.
    pub(in crate::engine) fn note(
        &self,
        task: &TaskName,
        incarnation: Incarnation,
        segment: &Arc<MappedSegment>,
    ) {
        self.peers
            .away
            .locked()
            .retain(|(_, of, life)| (of, *life) != (task, incarnation));
        let mut imported = self.peers.imported.locked();
        imported.retain(|one| one.segment.strong_count() > 0);
        imported.push(Imported {
            task: task.clone(),
            incarnation,
            segment: Arc::downgrade(segment),
        });
    }

    /// A life of a peer is over: what its devices had not done will never be done.
    pub(in crate::engine) fn peer_exited(&self, task: &TaskName, incarnation: Incarnation) {
        self.peers.orphan(task, incarnation);
    }

    /// A peer is away, and nothing would tell that this life of it is over: at `until` it is taken to be, so that no
    /// stream waits for ever. None waits for one of whose memory nothing is mapped.
    pub(in crate::engine) fn peer_away(
        &self,
        task: &TaskName,
        incarnation: Incarnation,
        until: Nanos,
    ) {
        let is_its = |one: &Imported| one.task == *task && one.incarnation == incarnation;
        let is_read = |one: &Imported| is_its(one) && one.segment.strong_count() > 0;
        let may_be_waited_for = self.peers.imported.locked().iter().any(is_read);
        let mut away = self.peers.away.locked();
        away.retain(|(_, of, life)| (of, *life) != (task, incarnation));
        if may_be_waited_for {
            away.push((until, task.clone(), incarnation));
        }
    }
}

impl DevicePeers {
    /// Takes lives for over that have been away for too long.
    pub(super) fn give_up(&self, now: Nanos) {
        self.away.locked().retain(|(until, task, incarnation)| {
            let is_over = *until <= now;
            if is_over {
                self.orphan(task, *incarnation);
            }
            !is_over
        });
    }

    fn orphan(&self, task: &TaskName, incarnation: Incarnation) {
        for one in &*self.imported.locked() {
            if one.task == *task
                && one.incarnation == incarnation
                && let Some(segment) = one.segment.upgrade()
            {
                segment.orphan();
            }
        }
    }
}

fn feature(kind: MemoryKind, uuid: DeviceUuid) -> String {
    format!("device:{kind}:{uuid}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::engine::tests::config;

    /// Only the keeper's thread takes lives for over, and there is none without devices.
    #[test]
    fn lives_of_whose_memory_nothing_is_mapped_are_not_kept() {
        let engine = Engine::start(config("/job:a/task:0")).unwrap();
        let devices = engine.inner.wiring.devices();
        let task = TaskName::parse("/job:b/task:0").unwrap();
        let kept = || devices.peers.away.locked().len();
        for life in 1..100 {
            devices.peer_away(&task, Incarnation(life), Nanos(5));
        }
        assert_eq!(kept(), 0);
        let kind = MemoryKind::Host;
        let segment = Arc::new(MappedSegment::refused(MemoryError::Kind { kind }));
        devices.note(&task, Incarnation(7), &segment);
        for until in 5..100 {
            devices.peer_away(&task, Incarnation(7), Nanos(until));
        }
        assert_eq!(kept(), 1);
        drop(segment);
        devices.peer_away(&task, Incarnation(7), Nanos(100));
        assert_eq!(kept(), 0);
    }
}
