//! Leases of a peer's memory that are sent on to others: what is kept of them is a copy, and counts as one.

use super::*;
use crate::ground::{DType, TensorMeta};

/// All that the task in the middle may keep.
const ROOM: u64 = 1 << 20;
const LONG: u64 = 256 << 10;

/// A value of so many bytes that lies where peers can read it.
fn send_own(solo: &mut Solo, key: &Key, len: u64) -> bool {
    let sent = solo.enter(|context| {
        let meta = TensorMeta::new(DType::U8, Shape::row(len).unwrap()).unwrap();
        let builder = context.builder(meta).unwrap();
        let key = context.prepare(key)?;
        context.send(STEP, key, builder.finish())
    });
    sent.is_ok()
}

/// The task `b`, which has [`ROOM`], and leases of values of `a`'s.
fn leases(count: usize, now: &Arc<AtomicU64>) -> (Shards, Shards, Vec<Tensor>) {
    let mut small = Settings::default();
    small.table.parked_bytes = ROOM;
    small.table.parked_bytes_per_step = ROOM;
    let mut a = Shards::new('a', 1, 1, now);
    let mut b = Shards::with('b', 2, small, now);
    // Its segments are there before they are mapped.
    let own = Key::between("a", "a", "own").unwrap();
    for _ in 0..=count {
        assert!(send_own(&mut a.solos[0], &own, LONG));
    }
    for _ in 0..=count {
        let received = a.solos[0].recv(STEP, &own, Nanos::NEVER);
        assert!(received.take().expect("it lies there").is_ok());
    }
    settle(&mut [&mut a]);
    connect_with(&mut a, &mut b, InPlace::Now);
    settle(&mut [&mut a, &mut b]);
    let key = Key::between("a", "b", "lent").unwrap();
    let leased = (0..count).map(|_| {
        let received = b.solos[0].recv(STEP, &key, Nanos::NEVER);
        assert!(send_own(&mut a.solos[0], &key, LONG));
        settle(&mut [&mut a, &mut b]);
        let tensor = received.take().expect("it has come").unwrap().tensor;
        assert!(tensor.is_leased());
        tensor
    });
    let leased = leased.collect();
    (a, b, leased)
}

/// Each was weighed as the lease that it was, which occupies nothing, and copied then.
#[test]
fn what_is_sent_on_keeps_to_the_bound() {
    let now = Arc::new(AtomicU64::new(1));
    let (mut a, mut b, leased) = leases(8, &now);
    let mut c = Shards::new('c', 3, 1, &now);
    connect_with(&mut b, &mut c, InPlace::Now);
    settle(&mut [&mut a, &mut b, &mut c]);
    let key = Key::between("b", "c", "on").unwrap();
    let taken = leased.iter().filter(|tensor| {
        let sent = b.solos[0].enter(|context| {
            let key = context.prepare(&key)?;
            context.send(STEP, key, (*tensor).clone())
        });
        sent.inspect_err(|status| assert_eq!(status.reason(), catalogue::PARKED_BYTES))
            .is_ok()
    });
    let taken = taken.count() as u64;
    settle(&mut [&mut a, &mut b, &mut c]);
    assert_eq!(taken, ROOM / LONG);
    assert_eq!(b.solos[0].stats().offered_bytes, ROOM);
}

/// It was taken to need no room, copied, refused, and tried again in each turn.
#[test]
fn what_waits_to_be_sent_on_is_not_copied_in_each_turn() {
    let now = Arc::new(AtomicU64::new(1));
    let (mut a, mut b, leased) = leases(1, &now);
    let fill = Key::between("b", "b", "fill").unwrap();
    assert!(send_own(&mut b.solos[0], &fill, ROOM - LONG / 2));
    let key = Key::between("b", "c", "on").unwrap();
    let tensor = leased.into_iter().next().unwrap();
    let sending = b.solos[0].send_in_turn(STEP, &key, tensor, Nanos::NEVER);
    let sending = sending.unwrap();
    for _ in 0..50 {
        settle(&mut [&mut a, &mut b]);
        assert!(sending.take().is_none(), "there is no room");
    }
    let copies = b.solos[0].stats().copied_leased;
    assert!(copies <= 1, "{copies} copies");
    let received = b.solos[0].recv(STEP, &fill, Nanos::NEVER);
    assert!(received.take().expect("it lies there").is_ok());
    settle(&mut [&mut a, &mut b]);
    assert_eq!(sending.take(), Some(Ok(())));
}

/// What goes back to its owner at once is kept by no copy, and needs no room.
#[test]
fn what_goes_home_waits_for_no_room() {
    let now = Arc::new(AtomicU64::new(1));
    let (mut a, mut b, leased) = leases(1, &now);
    let fill = Key::between("b", "b", "fill").unwrap();
    assert!(send_own(&mut b.solos[0], &fill, ROOM));
    let key = Key::between("b", "a", "back").unwrap();
    let tensor = leased.into_iter().next().unwrap();
    let sending = b.solos[0].send_in_turn(STEP, &key, tensor, Nanos::NEVER);
    settle(&mut [&mut a, &mut b]);
    assert_eq!(sending.unwrap().take(), Some(Ok(())));
    assert_eq!(b.solos[0].stats().copied_leased, 0);
}
