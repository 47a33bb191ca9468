//! Receives that ask because their peer may be out of push credit.

use super::*;

/// One key is received three times and sent twice, and what else comes presses the link. Who of the two that stay has
/// its value.
fn receive(first_leaves: bool) -> (bool, bool) {
    let now = Arc::new(AtomicU64::new(1));
    let narrow = Settings {
        line_window: 130,
        ..Settings::default()
    };
    let mut a = Shards::with('a', 1, narrow, &now);
    let mut b = Shards::with('b', 2, narrow, &now);
    connect(&mut a, &mut b);
    settle(&mut [&mut a, &mut b]);
    let [key, other] = ["wanted", "other"].map(|edge| Key::between("a", "b", edge).unwrap());
    let first = first_leaves.then(|| b.solos[0].recv(STEP, &key, Nanos::NEVER));
    let second = b.solos[0].recv(STEP, &key, Nanos::NEVER);
    if let Some(first) = first {
        b.solos[0].cancel(&first);
        settle(&mut [&mut a, &mut b]);
    }
    let third = b.solos[0].recv(STEP, &key, Nanos::NEVER);
    let pass = |a: &mut Shards, b: &mut Shards| {
        now.fetch_add(10_000_000, Ordering::Relaxed);
        settle(&mut [a, b]);
    };
    let send = |a: &mut Shards, key: &Key| {
        let sent = a.solos[0].enter(|context| {
            let key = context.prepare(key)?;
            context.send(STEP, key, tensor(1, 512))
        });
        sent.unwrap();
    };
    for _ in 0..40 {
        send(&mut a, &other);
        pass(&mut a, &mut b);
    }
    send(&mut a, &key);
    send(&mut a, &key);
    for _ in 0..100 {
        pass(&mut a, &mut b);
    }
    (second.take().is_some(), third.take().is_some())
}

/// The younger of them was taken to have asked, since the older one had come to stand where it stood.
#[test]
fn each_receive_asks_though_an_older_one_has_left() {
    for first_leaves in [false, true] {
        assert_eq!(receive(first_leaves), (true, true), "{first_leaves}");
    }
}
