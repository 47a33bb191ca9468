//! Leases that outlive their links' epochs.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::{ARENA, Deaf};
use crate::fabric::{AnyPort, Geometry, LoopbackPort};
use crate::ground::device::TaskName;
use crate::ground::{DType, Incarnation, Region, Shape, TensorMeta};
use crate::memory::{ArenaId, MappedSegment, Pool};
use crate::shard::Settings;
use crate::shard::core::Core;
use crate::testing::solo::{End, Greeting, Queues, Solo, Team};
use crate::trace::Clock;

fn solo() -> Solo {
    let team = Team {
        task: TaskName::parse("/job:a/task:0").unwrap(),
        incarnation: Incarnation(1),
        settings: Settings {
            shards: 1,
            ..Settings::default()
        },
        clock: Clock::simulated(Arc::new(AtomicU64::new(1))),
        arena: ARENA,
        queues: Queues::default(),
    };
    let ports = |_| vec![AnyPort::Loopback(LoopbackPort::new())];
    team.muster(ports, |_| Arc::new(Deaf)).unwrap().remove(0)
}

/// A lease is kept while its link's epochs end again and again: whatever number the link's life has come to, it is not
/// taken for a lease of what the peer offers now under the same ticket.
#[test]
fn a_lease_of_an_ended_epoch_is_never_one_of_this() {
    let meta = TensorMeta::new(DType::U8, Shape::row(1000).unwrap()).unwrap();
    let mut pool = Pool::new(ArenaId(0), ARENA).unwrap();
    let tensor = pool.builder(meta).unwrap().finish();
    let segment = &pool.segments()[0];
    let fd = segment.fd().try_clone_to_owned().unwrap();
    let mapped = Arc::new(MappedSegment::open(fd, segment.len() as u64).unwrap());
    let region: Region = tensor.region().unwrap();
    let geometry = Geometry {
        slots: 64,
        payload_bytes: 1 << 16,
    };
    let (end, _theirs) = LoopbackPort::endpoints(geometry).unwrap();
    let mut solo = solo();
    solo.peer_up(Greeting {
        task: TaskName::parse("/job:b/task:0").unwrap(),
        incarnation: Incarnation(2),
        shards: 1,
        read_domain: true,
        segments: vec![(region.arena, region.segment, mapped)],
        links: vec![(0, End::Loopback(end))],
    });
    solo.turn();
    let core = solo.core_mut();
    let link = core.links.ids().next().unwrap();
    for bits in [1, 8, 12, 16, 20] {
        let old = core.lease_first(link, region, meta);
        for _ in 0..1_u32 << bits {
            core.links.at_mut(link).unwrap().channel.lose();
        }
        let new = core.lease_first(link, region, meta);
        let out = |core: &Core| core.links.at(link).unwrap().leased;
        let before = out(core);
        drop(old);
        assert_eq!(core.return_leases(), 1);
        assert_eq!(out(core), before, "after 2^{bits} epochs");
        drop(new);
        assert_eq!(core.return_leases(), 1);
        assert_eq!(out(core), before - 1);
    }
}
