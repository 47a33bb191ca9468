//! Which rings a poll looks at, what it does with a liar, and that no ring starves.

use super::*;
use crate::fabric::lane::Geometry;
use crate::fabric::ring::{RingMemory, RingProgress};
use crate::fabric::{Outcome, Token};
use crate::ground::Shape;
use crate::memory::{ArenaConfig, ArenaId, HugePages, Pool, Tensor};

const GEOMETRY: Geometry = Geometry {
    slots: 64,
    payload_bytes: 4096,
};

/// A port with `count` peers, each a port of its own.
fn star(count: usize) -> (RingPort, Vec<QpId>, Vec<(RingPort, QpId)>) {
    let mut hub = RingPort::new();
    let mut qps = Vec::new();
    let mut peers = Vec::new();
    for _ in 0..count {
        let (one, other) = Endpoint::heap_pair(GEOMETRY);
        qps.push(hub.attach_local(one, PeerWake::NEVER_SLEEPS).expect("room"));
        let mut peer = RingPort::new();
        let qp = peer
            .attach_local(other, PeerWake::NEVER_SLEEPS)
            .expect("room");
        peers.push((peer, qp));
    }
    (hub, qps, peers)
}

fn post((peer, qp): &mut (RingPort, QpId)) -> Result<(), PostRefusal> {
    peer.post_send(*qp, &Frame::default(), [&[], &[]])
}

/// Polls once; the sender of each frame, and which went down why.
fn poll(port: &mut RingPort, budget: usize) -> (Vec<QpId>, Vec<(QpId, DownReason)>) {
    let (mut frames, mut downs) = (Vec::new(), Vec::new());
    port.poll(Nanos(0), budget, &mut |arrival| match arrival {
        Arrival::Frame { qp, .. } => frames.push(qp),
        Arrival::Down { qp, reason } => downs.push((qp, reason)),
        other => panic!("{other:?}"),
    });
    (frames, downs)
}

#[test]
fn the_cost_of_a_poll_does_not_grow_with_idle_peers() {
    let (mut hub, qps, mut peers) = star(300);
    for talker in [3, 100, 200, 250, 299, 7] {
        post(&mut peers[talker]).expect("room");
        let mut turns = 0;
        while !poll(&mut hub, 16).0.contains(&qps[talker]) {
            turns += 1;
            assert!(turns <= 300, "each cold ring is looked at once a round");
        }
    }
    let before = hub.stats();
    for _ in 0..1_000 {
        poll(&mut hub, 16);
    }
    let after = hub.stats();
    let looked = after.rings_polled - before.rings_polled;
    assert!(
        looked <= (HOT_MAX as u64 + 1) * (after.polls - before.polls),
        "{looked} rings in 1000 polls"
    );
    // The ring that talked last is looked at in the very next poll.
    post(&mut peers[7]).expect("room");
    assert_eq!(poll(&mut hub, 16).0, [qps[7]]);
}

#[test]
fn a_greedy_peer_starves_nobody() {
    let (mut hub, qps, mut peers) = star(6);
    let mut seen = [0; 6];
    for _ in 0..600 {
        for peer in &mut peers[..5] {
            while post(peer).is_ok() {}
        }
        let _ = post(&mut peers[5]);
        let (frames, _) = poll(&mut hub, 64);
        assert!(frames.len() <= 64);
        for qp in frames {
            seen[qps
                .iter()
                .position(|&known| known == qp)
                .expect("one of ours")] += 1;
        }
    }
    assert!(seen.iter().all(|&count| count >= 30), "{seen:?}");
}

#[test]
fn an_idle_ring_has_told_its_progress() {
    let (mut hub, _, mut peers) = star(1);
    for _ in 0..3 {
        post(&mut peers[0]).expect("room");
    }
    for _ in 0..=SETTLE_AFTER + 1 {
        poll(&mut hub, 16);
    }
    let (peer, qp) = &mut peers[0];
    let (tx, _) = peer.lanes(*qp).expect("open");
    assert_eq!(
        tx.progress(),
        RingProgress {
            slots: 3,
            payload: 0
        }
    );
}

#[test]
fn a_liar_goes_down_alone() {
    type Lie = fn(&super::super::lane::MemoryLane);
    let chunk = |words: [(usize, u64); 3]| {
        let mut frame = Frame::default();
        for (word, value) in words {
            frame.words[word] = value;
        }
        frame
    };
    let lies: [(&str, Lie); 2] = [
        ("a stamp ahead", |lane| lane.publish(0, 7)),
        ("a length over the ring", |lane| {
            let mut frame = Frame::default();
            frame.words[1] = u64::MAX;
            lane.fill(0, &frame);
            lane.publish(0, 1);
        }),
    ];
    for (what, lie) in lies {
        let (mut hub, qps, mut peers) = star(2);
        let (peer, qp) = &mut peers[0];
        lie(peer.lanes(*qp).expect("open").0);
        post(&mut peers[1]).expect("room");
        let (mut frames, mut downs) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let (more, down) = poll(&mut hub, 16);
            frames.extend(more);
            downs.extend(down);
        }
        assert_eq!(downs, [(qps[0], DownReason::Corrupt)], "{what}");
        assert_eq!(frames, [qps[1]], "{what}");
        assert_eq!(
            hub.post_send(qps[0], &Frame::default(), [&[], &[]]),
            Err(PostRefusal::Closed)
        );
    }
    // The fabric's own frames, forged: kind, then what is wrong.
    let forged = [
        chunk([(0, 0xff << 32), (1, 0), (2, 0)]),
        chunk([(0, 0xf0 << 32), (1, 5), (4, 10)]),
        chunk([(0, 0xf0 << 32), (1, 20 << 32), (4, 10)]),
        chunk([(0, 0xf0 << 32), (1, 0), (4, 10)]),
        chunk([(0, 0xf1 << 32), (1, 0), (2, 0)]),
        chunk([(0, 0xf1 << 32), (1, 9), (2, 1)]),
    ];
    for frame in forged {
        let (mut hub, qps, mut peers) = star(1);
        let (peer, qp) = &mut peers[0];
        let lane = peer.lanes(*qp).expect("open").0;
        lane.fill(0, &frame);
        lane.publish(0, frame.words[0] | 1);
        poll(&mut hub, 16);
        assert_eq!(
            poll(&mut hub, 16).1,
            [(qps[0], DownReason::Corrupt)],
            "{frame:?}"
        );
    }
}

#[test]
fn a_consumer_that_lies_about_progress_goes_down() {
    let (mut hub, qps, mut peers) = star(1);
    let (peer, qp) = &mut peers[0];
    peer.lanes(*qp).expect("open").1.set_progress(RingProgress {
        slots: 1 << 40,
        payload: 0,
    });
    let refusal = (0..100).find_map(|_| hub.post_send(qps[0], &Frame::default(), [&[], &[]]).err());
    assert_eq!(refusal, Some(PostRefusal::Closed));
    assert_eq!(poll(&mut hub, 16).1, [(qps[0], DownReason::Corrupt)]);
}

#[test]
fn a_place_is_used_again_under_another_name() {
    let (mut hub, qps, mut peers) = star(1);
    hub.close(qps[0]);
    assert_eq!(poll(&mut hub, 16).1, [(qps[0], DownReason::Closed)]);
    let (peer, qp) = &mut peers[0];
    poll(peer, 16);
    assert_eq!(poll(peer, 16).1, [(*qp, DownReason::PeerClosed)]);
    let (one, _other) = Endpoint::heap_pair(GEOMETRY);
    let again = hub.attach_local(one, PeerWake::NEVER_SLEEPS).expect("room");
    assert_ne!(again, qps[0]);
    assert_eq!(
        hub.post_send(qps[0], &Frame::default(), [&[], &[]]),
        Err(PostRefusal::Closed),
        "the old name is dead"
    );
    assert_eq!(hub.post_send(again, &Frame::default(), [&[], &[]]), Ok(()));
}

#[test]
fn close_is_told_even_through_a_full_ring() {
    let (mut hub, qps, mut peers) = star(1);
    while post(&mut peers[0]).is_ok() {}
    let (peer, qp) = &mut peers[0];
    peer.close(*qp);
    let (mut frames, mut downs) = (0, Vec::new());
    for _ in 0..10 {
        let (more, down) = poll(&mut hub, 64);
        frames += more.len();
        downs.extend(down);
    }
    assert_eq!(
        frames as u32,
        GEOMETRY.slots - 1,
        "one slot is kept for this"
    );
    assert_eq!(downs, [(qps[0], DownReason::PeerClosed)]);
}

#[test]
fn arm_tells_what_has_arrived() {
    let (mut hub, _, mut peers) = star(50);
    assert!(hub.arm());
    post(&mut peers[49]).expect("room");
    assert!(!hub.arm());
    for _ in 0..50 {
        poll(&mut hub, 16);
    }
    assert!(hub.arm());
}

/// A peer's write of so many ones.
fn write(qp: QpId, token: u64, landing: Landing, region: Region, len: usize) -> Write {
    Write {
        qp,
        token: Token(token),
        source: Tensor::from_vec(vec![1_u8; len], Shape::row(len as u64).expect("a row"))
            .expect("as long"),
        landing,
        region,
    }
}

/// Generations of landings come round: a write that was left unfinished may find its own again, in another buffer.
#[test]
fn a_write_goes_on_in_no_later_opening_of_its_landing() {
    let config = ArenaConfig {
        segment_bytes: 1 << 20,
        bytes_max: 1 << 20,
        huge_pages: HugePages::Off,
    };
    let mut pool = Pool::new(ArenaId(0), config).expect("memory");
    let (mut hub, qps, mut peers) = star(1);
    let (peer, qp) = &mut peers[0];
    let landing = Landing {
        index: 5,
        generation: 7,
    };
    let long = pool.buffer(64 << 10).expect("room");
    let region = hub.open_landing(qps[0], landing, long).expect("free");
    peer.post_write(write(*qp, 1, landing, region, 64 << 10))
        .expect("room");
    peer.poll(Nanos(0), 16, &mut |arrival| panic!("{arrival:?}"));
    hub.poll(Nanos(0), 16, &mut |arrival| panic!("{arrival:?}"));

    hub.close_landing(qps[0], landing);
    let mut short = pool.buffer(512).expect("room");
    short.fill(0);
    let region = hub.open_landing(qps[0], landing, short).expect("free");
    peer.post_write(write(*qp, 2, landing, region, 100))
        .expect("room");
    let (mut quiet, mut landed, mut wrote) = (0, Vec::new(), Vec::new());
    for _ in 0..10 {
        peer.poll(Nanos(0), 16, &mut |arrival| match arrival {
            Arrival::Wrote { token, outcome, .. } => wrote.push((token.0, outcome)),
            other => panic!("{other:?}"),
        });
        hub.poll(Nanos(0), 16, &mut |arrival| match arrival {
            Arrival::Quiet { .. } => quiet += 1,
            Arrival::Landed { len, buffer, .. } => {
                landed.push((len, buffer.iter().filter(|&&byte| byte == 1).count()));
            }
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(quiet, 1);
    assert_eq!(landed, [(100, 100)], "nothing of the first lies in it");
    assert_eq!(wrote, [(1, Outcome::Refused), (2, Outcome::Done)]);
}

/// A ring that goes down in a look is off the list: what its look counts for is no other ring's.
#[test]
fn a_ring_is_settled_also_when_another_goes_down() {
    for idle in SETTLE_AFTER - 4..SETTLE_AFTER + 2 {
        let (mut hub, qps, mut peers) = star(2);
        // Each brings something, in this order: so the second is the last of the hot ones.
        for peer in &mut peers {
            post(peer).expect("room");
            while poll(&mut hub, 16).0.is_empty() {}
        }
        for _ in 0..idle {
            poll(&mut hub, 16);
        }
        let (peer, qp) = &mut peers[0];
        peer.lanes(*qp).expect("open").0.publish(1, 99);
        let mut downs = Vec::new();
        for _ in 0..2 * SETTLE_AFTER {
            downs.extend(poll(&mut hub, 16).1);
        }
        assert_eq!(downs, [(qps[0], DownReason::Corrupt)]);
        let (peer, qp) = &mut peers[1];
        let told = peer.lanes(*qp).expect("open").0.progress().slots;
        assert_eq!(told, 1, "after {idle} looks");
    }
}

#[test]
fn a_liar_that_is_found_when_the_port_is_armed_leaves_the_lists() {
    let (mut hub, qps, mut peers) = star(1);
    post(&mut peers[0]).expect("room");
    while poll(&mut hub, 16).0.is_empty() {}
    let (peer, qp) = &mut peers[0];
    peer.lanes(*qp).expect("open").1.set_progress(RingProgress {
        slots: 1 << 40,
        payload: 0,
    });
    let landing = Landing {
        index: 0,
        generation: 0,
    };
    let region = Region::default();
    hub.post_write(write(qps[0], 1, landing, region, 64 << 10))
        .expect("room");
    assert!(!hub.arm(), "it is to be told");
    let mut downs = Vec::new();
    hub.poll(Nanos(0), 16, &mut |arrival| {
        if let Arrival::Down { qp, reason } = arrival {
            downs.push((qp, reason));
        }
    });
    assert_eq!(downs, [(qps[0], DownReason::Corrupt)]);
    let before = hub.stats().rings_polled;
    poll(&mut hub, 16);
    assert_eq!(hub.stats().rings_polled, before, "no ring is left");
}
