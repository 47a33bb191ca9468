//! What verbs does when something fails: every call in turn, every completion status, wires, peers and devices.
//!
//! Over the library that is played in memory (`tests/shim`). An error ends its queue pair and nothing else, everything
//! that was lent comes back once, and the failure names call, number and device.
#![allow(unsafe_code)]

use rendez::fabric::verbs::{
    CompletionQueue, Domain, PathConfig, QpEndpoint, QueuePair, RetryPolicy, SharedReceive,
    VerbsConfig, VerbsError, VerbsPort, WorkKind, WorkRequest, sys,
};
use rendez::fabric::{Arrival, DownReason, Landing, Outcome, Port, QpId, Token, Write};
use rendez::ground::limits::{VERBS_DRAIN_NS, VERBS_SIGNAL_EVERY, VERBS_WINDOW};
use rendez::ground::{Code, DType, Nanos, Region, Shape, TensorMeta, catalogue};
use rendez::memory::{ArenaConfig, ArenaId, HugePages, Pool, Tensor};
use rendez::wire::Frame;

use crate::shim;

/// What one side was given.
#[derive(Debug, Default)]
struct Log {
    frames: Vec<(QpId, u64)>,
    landed: Vec<(QpId, u64)>,
    quiet: usize,
    wrote: Vec<(QpId, Outcome)>,
    down: Vec<(QpId, DownReason)>,
}

struct Net {
    ports: [VerbsPort; 2],
    /// Queue pairs, each with both its ends.
    pairs: Vec<[QpId; 2]>,
    pool: Pool,
    logs: [Log; 2],
    now: u64,
}

fn port(device: &str) -> Result<VerbsPort, VerbsError> {
    let path = PathConfig {
        device: Some(device.into()),
        ..PathConfig::default()
    };
    let domain = Domain::open(shim::table(), &path)?;
    let config = VerbsConfig {
        queue_pairs: 4,
        ..VerbsConfig::default()
    };
    VerbsPort::new(&domain, config)
}

fn net(pairs: usize) -> Result<Net, VerbsError> {
    let config = ArenaConfig {
        segment_bytes: 16 << 20,
        bytes_max: 16 << 20,
        huge_pages: HugePages::Off,
    };
    let pool = Pool::new(ArenaId(1), config).expect("a pool");
    let mut ports = [port("shim0")?, port("shim1")?];
    for port in &mut ports {
        port.register(pool.segments())?;
    }
    let mut net = Net {
        ports,
        pairs: vec![],
        pool,
        logs: Default::default(),
        now: 0,
    };
    for _ in 0..pairs {
        let (near, near_end) = net.ports[0].open(1)?;
        let (far, far_end) = net.ports[1].open(2)?;
        net.ports[0].connect(near, &far_end)?;
        net.ports[1].connect(far, &near_end)?;
        net.pairs.push([near, far]);
    }
    Ok(net)
}

/// A frame without a body.
fn message(number: u64) -> Frame {
    let mut frame = Frame::default();
    frame.words[0] = 1 << 32;
    frame.words[2] = number;
    frame
}

impl Net {
    fn turn(&mut self) {
        self.now += 1_000;
        for (port, log) in self.ports.iter_mut().zip(&mut self.logs) {
            port.poll(Nanos(self.now), 64, &mut |arrival| match arrival {
                Arrival::Frame { qp, frame, .. } => log.frames.push((qp, frame.words[2])),
                Arrival::Landed { qp, len, .. } => log.landed.push((qp, len)),
                Arrival::Quiet { .. } => log.quiet += 1,
                Arrival::Wrote { qp, outcome, .. } => log.wrote.push((qp, outcome)),
                Arrival::Down { qp, reason } => log.down.push((qp, reason)),
            });
        }
    }

    fn rest(&mut self) {
        for _ in 0..300 {
            self.turn();
        }
    }

    fn send(&mut self, pair: usize, number: u64) {
        let frame = message(number);
        self.ports[0]
            .post_send(self.pairs[pair][0], &frame, [&[], &[]])
            .expect("room");
    }

    /// Turns until `side` was told that its first queue pair is down.
    fn until_down(&mut self, side: usize) {
        let until = self.now + 3 * VERBS_DRAIN_NS;
        while !self.logs[side]
            .down
            .iter()
            .any(|down| down.0 == self.pairs[0][side])
        {
            self.turn();
            assert!(self.now < until, "it never goes down");
        }
    }

    fn until_gone(&mut self, side: usize, pair: usize) {
        let until = self.now + 3 * VERBS_DRAIN_NS;
        while !self.logs[side]
            .down
            .iter()
            .any(|down| down.0 == self.pairs[pair][side])
        {
            self.turn();
            assert!(self.now < until, "it never goes down");
        }
    }

    fn open(&mut self, pair: usize, index: u32, len: usize) -> (Landing, Region) {
        let landing = Landing {
            index,
            generation: 7,
        };
        let buffer = self.pool.buffer(len).expect("room");
        let region = self.ports[1].open_landing(self.pairs[pair][1], landing, buffer);
        (landing, region.expect("registered"))
    }

    fn write(&mut self, pair: usize, (landing, region): (Landing, Region), source: Tensor) {
        let write = Write {
            qp: self.pairs[pair][0],
            token: Token(1),
            source,
            landing,
            region,
        };
        self.ports[0].post_write(write).expect("room");
    }

    /// A tensor in the arena.
    fn tensor(&mut self, len: usize) -> Tensor {
        let shape = Shape::new(&[len as u64]).expect("one dimension");
        let mut buffer = self.pool.buffer(len).expect("room");
        buffer.fill(3);
        buffer
            .into_tensor(TensorMeta::new(DType::U8, shape).expect("small"))
            .expect("as long")
    }

    /// The pair still carries frames and writes.
    fn works(&mut self, pair: usize) {
        self.send(pair, 4242);
        let landing = self.open(pair, 60, 1000);
        let source = self.tensor(1000);
        self.write(pair, landing, source);
        self.rest();
        let [near, far] = self.pairs[pair];
        assert!(self.logs[1].frames.contains(&(far, 4242)));
        assert!(self.logs[1].landed.contains(&(far, 1000)));
        assert!(self.logs[0].wrote.contains(&(near, Outcome::Done)));
    }
}

#[test]
fn every_call_that_fails_is_named_and_leaves_nothing_behind() {
    let calls = [
        ("ibv_get_device_list", "ibv_get_device_list"),
        ("ibv_open_device", "ibv_open_device"),
        ("ibv_query_device", "ibv_query_device"),
        ("ibv_query_port", "ibv_query_port"),
        ("_ibv_query_gid_table", "ibv_query_gid_table"),
        ("ibv_alloc_pd", "ibv_alloc_pd"),
        ("ibv_create_comp_channel", "ibv_create_comp_channel"),
        ("ibv_create_cq", "ibv_create_cq"),
        ("ibv_create_srq", "ibv_create_srq"),
        ("ibv_reg_mr_iova2", "ibv_reg_mr"),
        ("ibv_create_qp", "ibv_create_qp"),
        ("modify INIT", "ibv_modify_qp(INIT)"),
        ("modify RTR", "ibv_modify_qp(RTR)"),
        ("modify RTS", "ibv_modify_qp(RTS)"),
    ];
    for (symbol, name) in calls {
        for after in 0..2 {
            shim::reset();
            if symbol == "ibv_create_qp" {
                // Asked again for less when it fails.
                shim::fail_calls(symbol, libc::ENOMEM);
            } else {
                shim::fail_call(symbol, libc::ENOMEM, after);
            }
            let error = net(1).err().unwrap_or_else(|| panic!("{name} fails"));
            let VerbsError::Call { call, errno, .. } = &error else {
                panic!("{error:?}")
            };
            assert_eq!((*call, *errno), (name, libc::ENOMEM));
            assert!(error.to_string().starts_with(name), "{error}");
            assert!(error.remedy().contains("ulimit"), "{}", error.remedy());
            assert_eq!(error.reason(), catalogue::VERBS_CALL);
            assert_eq!(shim::live(), 0, "{name} leaves nothing");
        }
    }
    shim::reset();
    drop(net(2).expect("nothing fails"));
    assert_eq!(shim::live(), 0);
}

/// Such a device refuses the queue pair, and says nothing of why.
#[test]
fn a_device_that_takes_less_inline_is_asked_for_less() {
    for (most, got) in [(101, 96), (48, 48), (0, 0)] {
        shim::reset();
        shim::take_inline_at_most(most);
        let mut net = net(1).expect("a net");
        assert_eq!(shim::told("inline"), Some(got));
        net.works(0);
    }
}

/// Such a device is asked for nothing that it would refuse, and the error says what there is too little of.
#[test]
fn a_device_with_small_limits_is_named_with_the_limit() {
    for (limit, what) in [
        ("max_cqe", "entries of a completion queue"),
        ("max_qp_wr", "entries of a queue pair's send queue"),
        ("max_srq_wr", "entries of a shared receive queue"),
    ] {
        shim::reset();
        shim::limit(limit, 7);
        let error = net(1).err().expect("a device that is too small");
        assert_eq!(error.reason(), catalogue::VERBS_LIMIT);
        let text = error.to_string();
        assert!(text.contains(&format!("at most 7 {what}")), "{text}");
        assert_eq!(shim::live(), 0, "{limit}");
    }
}

/// A device that is gone: once its links are over nothing more can come of it, and the shard may sleep.
#[test]
fn a_broken_port_without_links_keeps_no_shard_awake() {
    shim::reset();
    let mut net = net(1).expect("a net");
    net.rest();
    shim::fail_calls("ibv_req_notify_cq", libc::EIO);
    assert!(!net.ports[1].arm(), "its link is to be told");
    net.until_down(1);
    net.rest();
    assert!(net.ports[1].arm(), "nothing is left to wait for");
}

/// A completion queue that fails in the look behind the arming has nothing more to wake a shard with.
#[test]
fn a_shard_does_not_sleep_over_a_completion_queue_that_fails() {
    shim::reset();
    let mut net = net(1).expect("a net");
    net.rest();
    shim::fail_call("ibv_poll_cq", libc::EIO, 0);
    assert!(!net.ports[1].arm(), "its link is to be told");
    net.until_down(1);
    assert_eq!(net.logs[1].down[0].1, DownReason::Reset);
}

#[test]
fn a_queue_pair_ends_while_another_keeps_the_port_busy() {
    shim::reset();
    let mut net = net(2).expect("a net");
    net.open(0, 1, 4096);
    net.rest();
    net.ports[1].close(net.pairs[0][1]);
    let until = net.now + 10 * VERBS_DRAIN_NS;
    let (mut quiet, mut is_down) = (false, false);
    while !is_down {
        net.now += 10_000;
        assert!(net.now < until, "it never goes down");
        while net.ports[0]
            .post_send(net.pairs[1][0], &message(1), [&[], &[]])
            .is_ok()
        {}
        net.ports[0].poll(Nanos(net.now), 64, &mut |_| {});
        // So few at a time that something is always left.
        net.ports[1].poll(Nanos(net.now), 1, &mut |arrival| match arrival {
            Arrival::Quiet { .. } => quiet = true,
            Arrival::Down { .. } => is_down = true,
            _ => {}
        });
    }
    assert!(quiet, "the landing comes back");
}

/// Memory that is not registered is copied on its way, so much in a poll: that is for all peers of a port.
#[test]
fn writes_that_are_copied_hold_up_no_other_peers() {
    shim::reset();
    let mut net = net(2).expect("a net");
    let foreign = |len: usize| {
        let shape = Shape::new(&[len as u64]).expect("one dimension");
        Tensor::from_vec(vec![3_u8; len], shape).expect("as long")
    };
    let small = net.open(0, 1, 64 << 10);
    net.write(0, small, foreign(64 << 10));
    for index in 1..=3 {
        let large = net.open(1, index, 1 << 20);
        net.write(1, large, foreign(1 << 20));
    }
    while net.logs[0].wrote.is_empty() {
        net.turn();
        assert!(net.now < 1_000_000, "nothing is ever written");
    }
    assert_eq!(net.logs[0].wrote, [(net.pairs[0][0], Outcome::Done)]);
}

#[test]
fn every_completion_status_ends_its_queue_pair_and_no_other() {
    for status in 1..=23 {
        for after in [0, 1, 5] {
            shim::reset();
            let mut net = net(2).expect("a net");
            let landing = net.open(0, 1, 1 << 20);
            net.open(0, 2, 4096);
            net.send(0, 1);
            let source = net.tensor(1 << 20);
            net.write(0, landing, source);
            let unasked = (
                landing.0,
                Region {
                    offset: 0,
                    ..landing.1
                },
            );
            let source = net.tensor(5000);
            net.write(0, unasked, source);
            shim::fail_completion(status, after);
            net.rest();
            // A sixth request, where the first five went well.
            let frame = message(2);
            let _ = net.ports[0].post_send(net.pairs[0][0], &frame, [&[], &[]]);
            net.rest();
            assert!(
                !shim::is_fault_pending(),
                "status {status} after {after} came"
            );
            let pair = net.pairs[0];
            let expected = match status {
                sys::IBV_WC_RETRY_EXC_ERR | sys::IBV_WC_RESP_TIMEOUT_ERR => DownReason::TimedOut,
                sys::IBV_WC_REM_ACCESS_ERR
                | sys::IBV_WC_REM_INV_REQ_ERR
                | sys::IBV_WC_REM_OP_ERR => DownReason::Corrupt,
                _ => DownReason::Reset,
            };
            // Which side's request it was depends on the turn; that side names it.
            let side = usize::from(net.logs[0].down.is_empty());
            assert_eq!(
                net.logs[side].down,
                [(pair[side], expected)],
                "status {status}"
            );
            let fault = net.ports[side].fault(pair[side]).expect("a fault");
            assert_eq!(fault.reason(), catalogue::VERBS_COMPLETION);
            assert!(
                fault.to_string().contains(&format!("status {status}")),
                "{fault}"
            );
            // The other end hears of it from the control plane.
            net.ports[1 - side].close(pair[1 - side]);
            net.until_down(1 - side);
            assert_eq!(
                net.logs[1].quiet + net.logs[1].landed.len(),
                2,
                "landings come back"
            );
            assert_eq!(net.logs[0].wrote.len(), 2, "sources come back");
            net.works(1);
        }
    }
}

/// The other side of it: a message or a write that cannot be received ends both ends of its queue pair, and no other.
#[test]
fn a_receive_that_fails_ends_its_queue_pair_and_no_other() {
    // Of them 1 is a message longer than its entry, and 21 whatever has no number of its own.
    for status in [1, sys::IBV_WC_LOC_PROT_ERR, 21] {
        for is_write in [false, true] {
            shim::reset();
            let mut net = net(2).expect("a net");
            let landing = net.open(0, 1, 4096);
            net.rest();
            shim::fail_receive(status, 0);
            if is_write {
                let source = net.tensor(4096);
                net.write(0, landing, source);
            } else {
                net.send(0, 1);
            }
            net.rest();
            assert!(!shim::is_fault_pending());
            let [near, far] = net.pairs[0];
            assert_eq!(net.logs[1].down, [(far, DownReason::Reset)], "{status}");
            assert_eq!(net.logs[0].down, [(near, DownReason::Corrupt)], "{status}");
            let fault = net.ports[1].fault(far).expect("a fault");
            assert!(
                fault.to_string().contains(&format!("status {status}")),
                "{fault}"
            );
            assert!(net.logs[1].frames.is_empty() && net.logs[1].landed.is_empty());
            assert_eq!(net.logs[1].quiet, 1, "the landing comes back");
            net.works(1);
        }
    }
}

#[test]
fn a_cut_wire_a_lost_peer_and_a_refused_post_end_in_good_order() {
    shim::reset();
    let mut cut = net(1).expect("a net");
    shim::cut();
    cut.send(0, 1);
    cut.rest();
    assert_eq!(cut.logs[0].down, [(cut.pairs[0][0], DownReason::TimedOut)]);

    shim::reset();
    let mut refused = net(2).expect("a net");
    shim::fail_call("ibv_post_send", libc::EIO, 0);
    refused.send(0, 1);
    refused.rest();
    assert_eq!(
        refused.logs[0].down,
        [(refused.pairs[0][0], DownReason::Reset)]
    );
    let fault = refused.ports[0]
        .fault(refused.pairs[0][0])
        .expect("a fault");
    assert!(
        fault.to_string().starts_with("ibv_post_send on shim0"),
        "{fault}"
    );
    refused.works(1);
}

/// A device refuses one batch, and would take the next. The peer counts frames, and asks for those behind what it
/// counted: what follows a hole would be taken for what is missing.
#[test]
fn nothing_follows_a_refused_post() {
    shim::reset();
    let mut net = net(1).expect("a net");
    let qp = net.pairs[0][0];
    shim::fail_call("ibv_post_send", libc::EIO, 0);
    let mut post = |number| net.ports[0].post_send(qp, &message(number), [&[], &[]]);
    let taken = (0..64).filter(|&number| post(number).is_ok()).count();
    assert!(taken < 64, "the link is going down");
    net.rest();
    assert_eq!(net.logs[0].down, [(qp, DownReason::Reset)]);
    let heard: Vec<u64> = net.logs[1].frames.iter().map(|frame| frame.1).collect();
    let counted: Vec<u64> = (0..heard.len() as u64).collect();
    assert_eq!(heard, counted, "a hole");
}

/// Rule 5. Memory goes back only after the queue pair is destroyed, also where the device never says that it used its
/// last entry, and where the queue pair cannot even be put into error.
#[test]
fn memory_comes_back_after_the_queue_pair_is_destroyed() {
    for how in ["silent", "stuck"] {
        shim::reset();
        let mut net = net(1).expect("a net");
        net.open(0, 1, 4096);
        net.rest();
        if how == "silent" {
            shim::silence();
        } else {
            shim::fail_call("modify ERR", libc::EIO, 0);
        }
        let before = shim::live();
        net.ports[1].close(net.pairs[0][1]);
        for _ in 0..2 * VERBS_DRAIN_NS / 1_000 {
            let quiet = net.logs[1].quiet;
            net.turn();
            if quiet == 0 && net.logs[1].quiet == 1 {
                assert!(shim::live() < before, "destroyed first");
            }
        }
        assert_eq!((net.logs[1].quiet, net.logs[1].down.len()), (1, 1), "{how}");
        // The place is used again, under another name.
        let old = net.pairs[0][1];
        let (new, _) = net.ports[1].open(5).expect("room");
        assert_ne!(new, old);
        assert_eq!(net.ports[1].caps(old).body_max, 0);
    }
}

#[test]
fn events_of_the_device_reach_whom_they_are_about() {
    shim::reset();
    let mut net = net(2).expect("a net");
    shim::event(0, sys::IBV_EVENT_PORT_ERR);
    net.ports[0].look_at_events();
    assert_eq!(net.ports[0].domain().port_losses(), 1);
    net.works(0);
    shim::event_of_pairs(0, sys::IBV_EVENT_QP_FATAL);
    net.ports[0].look_at_events();
    net.rest();
    assert_eq!(net.logs[0].down.len(), 2, "both were named");
    shim::event(1, sys::IBV_EVENT_DEVICE_FATAL);
    net.ports[1].look_at_events();
    net.rest();
    assert!(net.ports[1].domain().is_dead());
    assert_eq!(net.logs[1].down.len(), 2);
    let fault = net.ports[1].fault(net.pairs[0][1]).expect("a fault");
    assert!(
        matches!(
            fault,
            VerbsError::Fatal { .. } | VerbsError::Completion { .. }
        ),
        "{fault}"
    );
}

#[test]
fn a_peers_claims_are_judged_before_the_device_is_asked() {
    shim::reset();
    let mut port = port("shim0").expect("a port");
    let (qp, own) = port.open(u32::MAX).expect("room");
    assert!(own.first_packet < 1 << 24, "24 bits");
    // RoCE v2 over IPv4: index 2 of what the device has.
    assert_eq!(port.domain().path().gid_index, 2);
    let lies = [
        QpEndpoint {
            number: 1 << 24,
            ..own
        },
        QpEndpoint {
            first_packet: 1 << 24,
            ..own
        },
        QpEndpoint { mtu: 0, ..own },
        QpEndpoint { mtu: 6, ..own },
        QpEndpoint {
            gid: [0; 16],
            ..own
        },
        QpEndpoint { window: 2, ..own },
        QpEndpoint {
            window: u16::MAX,
            ..own
        },
        QpEndpoint {
            body_max: own.body_max - 1,
            ..own
        },
    ];
    for lie in lies {
        let error = port.connect(qp, &lie).expect_err("a lie");
        assert_eq!(error.reason(), catalogue::VERBS_ENDPOINT, "{error}");
    }
    assert_eq!(shim::seen("modify RTR"), 0);
    assert!(port.connect(QpId(77), &own).is_err(), "no such queue pair");
}

/// A write goes nowhere but into the landing that the peer opened: a region that is another, or reaches beyond it, ends
/// the write and costs nothing else.
#[test]
fn a_peers_region_is_judged_before_it_is_written() {
    shim::reset();
    let mut net = net(1).expect("a net");
    let (landing, own) = net.open(0, 1, 4096);
    net.send(0, 1);
    net.rest();
    let lies = [
        Region { arena: 9, ..own },
        Region {
            segment: own.segment + 1,
            ..own
        },
        Region {
            generation: own.generation.wrapping_add(1),
            ..own
        },
        Region {
            offset: own.offset + 4096,
            ..own
        },
    ];
    let before = shim::seen("WRITE_WITH_IMM") + shim::seen("WRITE");
    for (count, lie) in (1..).zip(lies) {
        let source = net.tensor(1000);
        net.write(0, (landing, lie), source);
        net.rest();
        assert_eq!(net.logs[0].wrote.len(), count, "{lie:?} ends");
        assert_ne!(net.logs[0].wrote[count - 1].1, Outcome::Done, "{lie:?}");
    }
    let longer = net.tensor(4097);
    net.write(0, (landing, own), longer);
    net.rest();
    assert_ne!(net.logs[0].wrote[4].1, Outcome::Done, "longer than it");
    let after = shim::seen("WRITE_WITH_IMM") + shim::seen("WRITE");
    assert_eq!(after, before, "nothing was asked of the device");
    assert_eq!(net.logs[1].landed, []);
    net.works(0);
}

#[test]
fn settings_are_judged_and_a_missing_device_is_named() {
    shim::reset();
    let open = |path: PathConfig| {
        Domain::open(shim::table(), &path)
            .map(|_| ())
            .expect_err("refused")
    };
    let wrong = [
        (
            PathConfig {
                mtu: Some(1000),
                ..PathConfig::default()
            },
            catalogue::VERBS_SETTING,
        ),
        (
            PathConfig {
                mtu: Some(4096),
                ..PathConfig::default()
            },
            catalogue::VERBS_SETTING,
        ),
        (
            PathConfig {
                service_level: 16,
                ..PathConfig::default()
            },
            catalogue::VERBS_SETTING,
        ),
        (
            PathConfig {
                pkey_index: 9,
                ..PathConfig::default()
            },
            catalogue::VERBS_SETTING,
        ),
        (
            PathConfig {
                gid_index: Some(9),
                ..PathConfig::default()
            },
            catalogue::VERBS_NO_DEVICE,
        ),
        (
            PathConfig {
                device: Some("mlx9".into()),
                ..PathConfig::default()
            },
            catalogue::VERBS_NO_DEVICE,
        ),
    ];
    for (path, reason) in wrong {
        let error = open(path);
        assert_eq!(error.reason(), reason, "{error}");
        assert!(!error.remedy().is_empty());
    }
    assert_eq!(
        catalogue::find(catalogue::VERBS_MISSING).map(|entry| entry.code),
        Some(Code::FailedPrecondition)
    );
    assert_eq!(shim::live(), 0);
}

/// Counts instead of times: what a hand-over costs in requests, doorbells and completions.
#[test]
fn a_hand_over_costs_what_is_promised() {
    shim::reset();
    let mut net = net(1).expect("a net");
    net.rest();
    let before = net.ports[0].stats();
    for burst in 0..100 {
        for number in 0..10 {
            net.send(0, burst * 10 + number);
        }
        for _ in 0..4 {
            net.turn();
        }
    }
    let after = net.ports[0].stats();
    assert_eq!(net.logs[1].frames.len(), 1000);
    assert_eq!(after.frames - before.frames, 1000);
    assert_eq!(after.requests - before.requests, 1000, "one request each");
    assert_eq!(after.messages - before.messages, 1000, "one message each");
    assert!(
        after.doorbells - before.doorbells <= 100,
        "one doorbell a burst"
    );
    let signalled = after.signalled - before.signalled;
    assert!(
        signalled <= 1000 / u64::from(VERBS_SIGNAL_EVERY) + 1,
        "{signalled} signalled"
    );

    // A large value whose receiver is ready: the frame that brings the grant, and one write.
    let landing = net.open(0, 9, 1 << 20);
    let frame = message(0);
    net.ports[1]
        .post_send(net.pairs[0][1], &frame, [&[], &[]])
        .expect("room");
    net.rest();
    let before = (
        shim::seen("SEND"),
        shim::seen("WRITE"),
        shim::seen("WRITE_WITH_IMM"),
    );
    let source = net.tensor(1 << 20);
    net.write(0, landing, source);
    net.rest();
    let after = (
        shim::seen("SEND"),
        shim::seen("WRITE"),
        shim::seen("WRITE_WITH_IMM"),
    );
    assert_eq!(
        (after.0 - before.0, after.1 - before.1, after.2 - before.2),
        (0, 0, 1)
    );
    assert_eq!(net.logs[1].landed, [(net.pairs[0][1], 1 << 20)]);
}

/// A queue pair that cannot be destroyed keeps what it may touch, and nothing else: its end is told, the sources stay
/// as they are though they come back, and landings come back when it is destroyed after all.
#[test]
fn what_cannot_be_proved_quiet_is_kept_and_counted() {
    shim::reset();
    let mut net = net(2).expect("a net");
    let landing = net.open(0, 1, 4096);
    net.rest();
    // Both ends of the first pair go, each with something of its own under way.
    shim::cut();
    let source = net.tensor(4096);
    let address = source.host().unwrap().as_ptr();
    net.write(0, landing, source);
    shim::fail_call("ibv_destroy_qp", libc::EBUSY, 0);
    net.until_down(0);
    assert_eq!(net.ports[0].stats().quarantined, 1);
    assert_eq!(net.logs[0].wrote.len(), 1, "told");
    let again = net.tensor(4096);
    assert_ne!(
        again.host().unwrap().as_ptr(),
        address,
        "the source is not used again"
    );
    drop(again);
    let fault = net.ports[0].fault(net.pairs[0][0]).expect("a fault");
    assert_eq!(fault.reason(), catalogue::VERBS_COMPLETION);
    // The next attempt succeeds.
    let before = net.now;
    while net.ports[0].stats().quarantined > 0 {
        net.turn();
        assert!(net.now < before + 2 * VERBS_DRAIN_NS, "it is tried again");
    }
    assert_eq!(net.logs[0].down.len(), 1, "told once");

    // The receiving end: its landing stays away until then.
    shim::fail_call("ibv_destroy_qp", libc::EBUSY, 0);
    net.ports[1].close(net.pairs[0][1]);
    net.until_down(1);
    assert_eq!(
        (net.logs[1].quiet, net.ports[1].stats().quarantined),
        (0, 1)
    );
    let before = net.now;
    while net.logs[1].quiet == 0 {
        net.turn();
        assert!(net.now < before + 2 * VERBS_DRAIN_NS, "it comes home");
    }
    assert_eq!(net.ports[1].stats().quarantined, 0);

    // One that never can be: the port goes, and what it may touch stays registered.
    shim::fail_calls("ibv_destroy_qp", libc::EBUSY);
    net.ports[1].close(net.pairs[1][1]);
    net.until_gone(1, 1);
    assert_eq!(net.ports[1].stats().quarantined, 1);
    let live = shim::live();
    drop(net);
    assert_eq!(shim::live(), live, "nothing of it is given back");
}

/// A side that has no slot free when the peer's last message comes returns the credit once it has: the peer, out of
/// credit, will say nothing more to remind it.
#[test]
fn credit_is_returned_when_a_slot_is_free_again() {
    shim::reset();
    let mut net = net(1).expect("a net");
    net.rest();
    let [near, far] = net.pairs[0];
    // More than goes inline, so that each holds its slot until it is complete.
    let mut long = message(1);
    long.words[1] = 900 << 32;
    let body = [7; 900];
    shim::delay(Some(0));
    while net.ports[0].post_send(near, &long, [&body, &[]]).is_ok() {}
    let mut count = 0;
    while net.ports[1].post_send(far, &message(2), [&[], &[]]).is_ok() {
        count += 1;
        net.turn();
    }
    assert!(count >= 100, "{count} until the window is full");
    net.rest();
    assert!(
        net.ports[1]
            .post_send(far, &message(3), [&[], &[]])
            .is_err()
    );
    shim::delay(None);
    net.rest();
    net.ports[1]
        .post_send(far, &message(4), [&[], &[]])
        .expect("the credit has come back");
}

/// A queue pair of the first device that keeps to no rule, connected to the second port.
struct Raw {
    qp: QueuePair,
    _queues: (CompletionQueue, SharedReceive),
}

impl Raw {
    fn new(port: &mut VerbsPort) -> (Self, QpId) {
        let path = PathConfig {
            device: Some("shim0".into()),
            ..PathConfig::default()
        };
        let domain = Domain::open(shim::table(), &path).expect("a device");
        let completions = CompletionQueue::new(&domain, 1024).expect("a queue");
        let receive = SharedReceive::new(&domain, 32).expect("a queue");
        let mut qp = QueuePair::new(&domain, &completions, &receive, 512, 64).expect("a pair");
        let (far, far_end) = port.open(2).expect("room");
        let end = QpEndpoint {
            number: qp.number(),
            first_packet: 77,
            gid: domain.path().gid,
            ..far_end
        };
        qp.connect(&far_end, 77, RetryPolicy::default())
            .expect("a peer");
        port.connect(far, &end).expect("a peer");
        let _queues = (completions, receive);
        (Self { qp, _queues }, far)
    }

    fn send(&mut self, number: u64) {
        let bytes = message(number).to_bytes();
        let request = WorkRequest {
            id: number,
            what: WorkKind::Send,
            address: bytes.as_ptr().expose_provenance() as u64,
            len: bytes.len() as u32,
            lkey: 0,
            is_signalled: false,
            is_inline: true,
        };
        // SAFETY: it is inline, and the bytes live until the post returns.
        unsafe { self.qp.stage(&request) };
        self.qp.post().expect("posted");
    }
}

/// All peers of a port share its receive entries: one that sends into more than it knows to be granted takes them from
/// the others. What it does not know of yet does not count, though it was told.
#[test]
fn a_peer_that_sends_more_than_it_was_granted_goes_down_alone() {
    for over in [0, 1] {
        shim::reset();
        let mut net = net(1).expect("a net");
        let (mut raw, far) = Raw::new(&mut net.ports[1]);
        // What the port says of credit stays on its way.
        shim::delay(Some(1));
        for number in 0..u64::from(VERBS_WINDOW) + over {
            raw.send(number);
        }
        net.rest();
        let heard = net.logs[1].frames.iter().filter(|frame| frame.0 == far);
        assert_eq!(heard.count(), usize::from(VERBS_WINDOW));
        shim::delay(None);
        if over == 0 {
            assert_eq!(net.logs[1].down, []);
        } else {
            net.rest();
            assert_eq!(net.logs[1].down, [(far, DownReason::Corrupt)]);
        }
        net.works(0);
    }
}

/// That the last entry was used may be heard when the completions were looked at already: those of before may have come
/// since, and are looked at before the queue pair is destroyed.
#[test]
fn completions_are_looked_at_once_more_behind_the_last_entry() {
    shim::reset();
    let mut net = net(1).expect("a net");
    net.rest();
    shim::silence();
    net.ports[1].close(net.pairs[0][1]);
    net.rest();
    assert_eq!(net.logs[1].down, []);
    shim::event_of_pairs(1, sys::IBV_EVENT_QP_LAST_WQE_REACHED);
    net.turn();
    assert_eq!(net.logs[1].down, [], "this turn looked before the event");
    net.turn();
    assert_eq!(net.logs[1].down.len(), 1);
}

/// Where a device never says that it is done with a queue pair, time ends it, and entries of the shared receive queue
/// that it had taken may be lost with it: that is counted.
#[test]
fn queue_pairs_that_time_ends_are_counted() {
    for is_silent in [false, true] {
        shim::reset();
        let mut net = net(1).expect("a net");
        net.rest();
        if is_silent {
            shim::silence();
        }
        net.ports[1].close(net.pairs[0][1]);
        net.until_down(1);
        assert_eq!(net.ports[1].stats().undrained, u64::from(is_silent));
    }
}

/// A shard that has slept hears of a queue pair that its device broke before it polls again. The time of its sleep is
/// none of that which the queue pair has to become quiet.
#[test]
fn a_sleep_is_no_part_of_the_time_that_a_queue_pair_has_to_end() {
    shim::reset();
    let mut net = net(1).expect("a net");
    net.rest();
    shim::silence();
    net.now += 2 * VERBS_DRAIN_NS;
    shim::event_of_pairs(1, sys::IBV_EVENT_QP_FATAL);
    net.ports[1].look_at_events();
    net.rest();
    assert_eq!(net.logs[1].down, [], "it has not said that it is done");
    shim::event_of_pairs(1, sys::IBV_EVENT_QP_LAST_WQE_REACHED);
    net.turn();
    net.turn();
    assert_eq!(net.logs[1].down.len(), 1);
    assert_eq!(net.ports[1].stats().undrained, 0);
}

/// A card gives the number of a queue pair that is gone to the next one. What came for the former before it was adopted
/// is none of the new one's.
#[test]
fn what_waited_for_a_queue_pair_is_not_told_the_next_of_its_number() {
    shim::reset();
    shim::reuse_numbers();
    let mut net = net(1).expect("a net");
    let (near, near_end) = net.ports[0].open(1).expect("room");
    let (far, far_end) = net.ports[1].open(2).expect("room");
    let proofs = [
        net.ports[0].prove(near, &far_end).expect("a peer"),
        net.ports[1].prove(far, &near_end).expect("a peer"),
    ];
    net.ports[0].say_check(near);
    net.ports[1].say_check(far);
    net.rest();
    assert!(proofs.iter().all(|proof| proof.is_good()));
    assert!(net.ports[0].adopt(near));
    net.ports[0]
        .post_send(near, &message(1), [&[], &[]])
        .expect("room");
    net.rest();
    assert_eq!(net.logs[1].frames, [], "it waits");
    // Dropped where it is not adopted, as when another channel of the same peer is not proved.
    let destroyed = shim::seen("ibv_destroy_qp");
    net.ports[1].close(far);
    while shim::seen("ibv_destroy_qp") == destroyed {
        net.turn();
    }
    let (new, new_end) = net.ports[1].open(3).expect("room");
    assert_eq!(new_end.number, far_end.number);
    net.rest();
    assert!(!net.logs[1].down.iter().any(|down| down.0 == new));
    // And its own frames are counted from the first.
    let (other, other_end) = net.ports[0].open(4).expect("room");
    net.ports[0].connect(other, &new_end).expect("a peer");
    net.ports[1].connect(new, &other_end).expect("a peer");
    net.pairs.push([other, new]);
    net.works(1);
    net.works(0);
}

/// An event is told once: a port that waits for an end leaves it to the thread that has all ports look.
#[test]
fn a_port_takes_no_event_from_the_thread_that_watches() {
    shim::reset();
    let mut net = net(1).expect("a net");
    net.rest();
    shim::silence();
    net.ports[0].domain().watch();
    net.ports[0].close(net.pairs[0][0]);
    shim::event(0, sys::IBV_EVENT_DEVICE_FATAL);
    net.rest();
    net.ports[0].look_at_events();
    assert!(!net.ports[0].domain().is_dead());
    net.ports[0].domain().look_at_events();
    assert!(net.ports[0].domain().is_dead());
}
