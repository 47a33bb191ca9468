//! Large values: read in place at the end of their sender and over another way, and copied where memory is short.

use super::*;
use crate::ground::{DType, TensorMeta};

/// A value that is too long for a frame, and lies where peers can read it.
fn send_large(solo: &mut Solo, key: &Key, byte: u8) {
    let sent = solo.enter(|context| {
        let meta = TensorMeta::new(DType::U8, Shape::row(5000).unwrap()).unwrap();
        let mut builder = context.builder(meta).unwrap();
        builder.bytes_mut().fill(byte);
        let key = context.prepare(key)?;
        context.send(STEP, key, builder.finish())
    });
    sent.unwrap();
}

/// A value that its peer reads in place kept the end until its deadline. It outlives its sender; one that was not
/// received yet would not.
#[test]
fn a_stop_does_not_wait_for_what_its_peer_has_received() {
    for comes_late in [false, true] {
        let now = Arc::new(AtomicU64::new(1));
        let mut a = Shards::new('a', 1, 1, &now);
        let mut b = Shards::new('b', 2, 1, &now);
        if !comes_late {
            connect_with(&mut a, &mut b, InPlace::Now);
            settle(&mut [&mut a, &mut b]);
        }
        let edges = ["awaited", "taken", "taken later"];
        let keys = edges.map(|edge| Key::between("a", "b", edge).unwrap());
        let receive = |b: &mut Shards, at: usize| b.solos[0].recv(STEP, &keys[at], Nanos::NEVER);
        let awaited = receive(&mut b, 0);
        for (key, byte) in keys.iter().zip(1..) {
            send_large(&mut a.solos[0], key, byte);
        }
        settle(&mut [&mut a, &mut b]);
        let mut taken = None;
        if !comes_late {
            taken = Some(receive(&mut b, 1));
            settle(&mut [&mut a, &mut b]);
        }
        a.solos[0].shut_down(Nanos(now.load(Ordering::Relaxed) + 60 * SECOND));
        if comes_late {
            settle(&mut [&mut a, &mut b]);
            connect_with(&mut a, &mut b, InPlace::Now);
        }
        for _ in 0..100 {
            now.fetch_add(1_000_000, Ordering::Relaxed);
            assert_ne!(a.solos[0].turn(), Progress::Stopped, "one is not received");
            b.turn();
        }
        let taken = taken.unwrap_or_else(|| receive(&mut b, 1));
        let later = receive(&mut b, 2);
        let received: Vec<_> = [awaited, taken, later]
            .into_iter()
            .map(|waiting| {
                settle(&mut [&mut b]);
                waiting.take().expect("it has come").unwrap().tensor
            })
            .collect();
        assert_ends(&mut a, &mut b, &now);
        let task = name('a');
        b.solos[0].peer_lost(&task, faults::peer_exited(&task));
        drop(a);
        settle(&mut [&mut b]);
        for (tensor, byte) in received.iter().zip(1..) {
            assert!(tensor.is_leased());
            assert_eq!(tensor.host().unwrap(), [byte; 5000]);
        }
    }
}

/// The connection by shared memory is lost, and the next is by TCP, in the same lives: what was to be read in place was
/// waited for without an end.
#[test]
fn a_value_that_was_to_be_read_in_place_is_copied_by_another_way() {
    for is_heard in [false, true] {
        let now = Arc::new(AtomicU64::new(1));
        let mut a = Shards::new('a', 1, 1, &now);
        let mut b = Shards::new('b', 2, 1, &now);
        connect_with(&mut a, &mut b, InPlace::NotYet);
        settle(&mut [&mut a, &mut b]);
        let keys = ["awaited", "later"].map(|edge| Key::between("a", "b", edge).unwrap());
        let awaited = b.solos[0].recv(STEP, &keys[0], Nanos::NEVER);
        for (key, byte) in keys.iter().zip(1..) {
            send_large(&mut a.solos[0], key, byte);
        }
        if is_heard {
            settle(&mut [&mut a, &mut b]);
        } else {
            a.turn();
        }
        assert!(awaited.take().is_none(), "its segment is not mapped");
        let (port, qp) = a.solos[0].queue_pair(&name('b'), 0).unwrap();
        a.solos[0].ports_mut()[port].close(qp);
        settle(&mut [&mut a]);
        connect(&mut a, &mut b);
        let later = b.solos[0].recv(STEP, &keys[1], Nanos::NEVER);
        for _ in 0..10 {
            now.fetch_add(1_000_000, Ordering::Relaxed);
            settle(&mut [&mut a, &mut b]);
        }
        for (waiting, byte) in [(awaited, 1), (later, 2)] {
            let received = waiting.take().expect("it has come").unwrap();
            assert_eq!(received.tensor.host().unwrap(), [byte; 5000]);
        }
    }
}

/// Each had a value of the other's that was not received, and waited for the other until both deadlines were over.
#[test]
fn two_that_stop_at_once_do_not_wait_for_each_other() {
    for reads in [InPlace::Never, InPlace::Now] {
        let now = Arc::new(AtomicU64::new(1));
        let mut a = Shards::new('a', 1, 1, &now);
        let mut b = Shards::new('b', 2, 1, &now);
        connect_with(&mut a, &mut b, reads);
        settle(&mut [&mut a, &mut b]);
        let [there, back] =
            [("a", "b"), ("b", "a")].map(|(from, to)| Key::between(from, to, "x").unwrap());
        send_large(&mut a.solos[0], &there, 1);
        send_large(&mut b.solos[0], &back, 2);
        settle(&mut [&mut a, &mut b]);
        let deadline = Nanos(now.load(Ordering::Relaxed) + 60 * SECOND);
        let mut running = vec![('a', &mut a.solos[0]), ('b', &mut b.solos[0])];
        for (_, solo) in &mut running {
            solo.shut_down(deadline);
        }
        for _ in 0..200 {
            now.fetch_add(1_000_000, Ordering::Relaxed);
            let mut gone = None;
            running.retain_mut(|(of, solo)| {
                let is_over = solo.turn() == Progress::Stopped;
                gone = if is_over {
                    Some(name(*of))
                } else {
                    gone.take()
                };
                !is_over
            });
            // Its goodbye.
            for (task, (_, solo)) in gone.iter().zip(&mut running) {
                solo.peer_lost(task, faults::peer_exited(task));
            }
        }
        assert!(running.is_empty(), "they end well before their time is up");
    }
}

/// Landings that were open ahead of their values filled the arena, and the value that these waited for found no room.
#[test]
fn landings_ahead_leave_room_for_the_value_that_they_wait_for() {
    let now = Arc::new(AtomicU64::new(1));
    let mut a = Shards::new('a', 1, 1, &now);
    let mut b = Shards::new('b', 2, 1, &now);
    connect(&mut a, &mut b);
    settle(&mut [&mut a, &mut b]);
    let key = |edge: usize| Key::between("a", "b", &edge.to_string()).unwrap();
    let send = |a: &mut Shards, edge: usize| {
        let sent = a.solos[0].enter(|context| {
            let key = context.prepare(&key(edge))?;
            context.send(STEP, key, tensor(edge as u8, 600 << 10))
        });
        sent.unwrap();
    };
    let pass = |a: &mut Shards, b: &mut Shards| {
        for _ in 0..20 {
            now.fetch_add(1_000_000, Ordering::Relaxed);
            settle(&mut [a, b]);
        }
    };
    // Their shape is known from then on.
    for edge in 0..10 {
        send(&mut a, edge);
        let received = b.solos[0].recv(STEP, &key(edge), Nanos::NEVER);
        pass(&mut a, &mut b);
        assert!(received.take().expect("it has come").is_ok());
    }
    let ahead: Vec<_> = (0..9)
        .map(|edge| b.solos[0].recv(STEP, &key(edge), Nanos::NEVER))
        .collect();
    pass(&mut a, &mut b);
    assert!(
        b.solos[0].core_mut().stats().landing_bytes > 0,
        "some are open"
    );
    send(&mut a, 9);
    let awaited = b.solos[0].recv(STEP, &key(9), Nanos::NEVER);
    pass(&mut a, &mut b);
    let awaited = awaited.take().expect("it has come").unwrap();
    assert_eq!(awaited.tensor.host().unwrap()[0], 9);
    drop(awaited);
    for (edge, received) in ahead.into_iter().enumerate() {
        send(&mut a, edge);
        pass(&mut a, &mut b);
        let received = received.take().expect("it has come").unwrap();
        assert_eq!(received.tensor.host().unwrap()[0], edge as u8);
    }
}
