//! Values that come back: where they stand then, which receive gets them, what they count for, and when they are too
//! late.

use crate::ground::{Code, FrameIter, Nanos, Status, StepId};
use crate::rendezvous::{
    Arrived, KeyId, Limits, Origin, PushOutcome, ReceiveOutcome, Sent, Slot, Table, WaiterId,
};

type Words = Table<&'static str, u32>;

const NOW: Nanos = Nanos(1_000);
const STEP: StepId = StepId(7);
const SLOT: Slot = Slot {
    step: STEP,
    key: KeyId(1),
    at: FrameIter { frame: 0, iter: 0 },
};

fn table() -> Words {
    Table::new(Limits {
        records: 4,
        values: 3,
        waiters: 4,
        waiters_per_key: 3,
        parked_bytes: 30,
        parked_bytes_per_step: 30,
        ..Limits::default()
    })
    .unwrap()
}

fn send(table: &mut Words, value: &'static str) {
    let sent = table.send(NOW, SLOT, value, 10);
    assert!(matches!(sent, Ok(Sent::Parked { .. })), "{sent:?}");
}

fn take(table: &mut Words) -> Option<(&'static str, Origin)> {
    match table.recv(NOW, SLOT, 9, Nanos::NEVER) {
        Ok(ReceiveOutcome::Ready { value, from }) => Some((value, from)),
        Ok(ReceiveOutcome::Waiting { id, .. }) => {
            table.cancel(id);
            None
        }
        other => panic!("{other:?}"),
    }
}

fn wait(table: &mut Words, waiter: u32) -> WaiterId {
    match table.recv(NOW, SLOT, waiter, Nanos::NEVER) {
        Ok(ReceiveOutcome::Waiting { id, .. }) => id,
        other => panic!("{other:?}"),
    }
}

/// That waiter was brought `a`, and from where.
#[track_caller]
fn goes_to<E: std::fmt::Debug>(
    waiter: u32,
    arrival: Result<PushOutcome<&'static str, u32>, E>,
) -> Origin {
    match arrival {
        Ok(PushOutcome::Matched {
            waiter: who,
            value: "a",
            from,
        }) if who == waiter => from,
        other => panic!("{other:?}"),
    }
}

fn rest(table: &mut Words) -> Vec<(&'static str, u32)> {
    let taken = std::iter::from_fn(|| take(table));
    taken.map(|(value, from)| (value, from.ordinal())).collect()
}

#[test]
fn what_comes_back_stands_where_it_stood_in_whatever_order_it_comes() {
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut table = table();
        ["a", "b", "c"]
            .into_iter()
            .for_each(|value| send(&mut table, value));
        let taken: Vec<_> = std::iter::from_fn(|| take(&mut table)).collect();
        send(&mut table, "d");
        for at in order {
            let (value, from) = taken[at];
            assert_eq!(
                table.give_back(NOW, from, value, 10),
                Ok(PushOutcome::Parked)
            );
        }
        // More than may be parked: what was here before is not refused.
        let stats = table.stats();
        assert_eq!((stats.values, stats.parked_bytes), (4, 40));
        assert!(table.send(NOW, SLOT, "e", 10).is_err());
        assert_eq!(rest(&mut table), [("a", 0), ("b", 1), ("c", 2), ("d", 3)]);
        assert_eq!(table.stats().parked_bytes, 0);
    }
}

#[test]
fn what_comes_back_goes_to_the_oldest_who_waits() {
    let mut table = table();
    send(&mut table, "a");
    let (value, from) = take(&mut table).unwrap();
    wait(&mut table, 1);
    wait(&mut table, 2);
    let from = goes_to(1, table.give_back(NOW, from, value, 10));
    // And once more.
    goes_to(2, table.give_back(NOW, from, "a", 10));
    assert_eq!(table.stats().waiters, 0);
}

/// Offers whose bytes are on their way stand behind it, and their waiters move up.
#[test]
fn what_comes_back_goes_before_offers_that_are_fetched() {
    let mut table = table();
    wait(&mut table, 1);
    let first = table.arrive(NOW, SLOT, 0, Arrived::Value("a"), 10);
    let from = goes_to(1, first);
    wait(&mut table, 2);
    let second = table.arrive(NOW, SLOT, 1, Arrived::Offer(70), 0);
    assert_eq!(second, Ok(PushOutcome::Wanted { token: 70 }));
    goes_to(2, table.give_back(NOW, from, "a", 10));
    let mut served = Vec::new();
    let supplied = table.supply(NOW, SLOT, 70, "b", 10, &mut |waiter, value, _| {
        served.push((waiter, value));
    });
    assert_eq!((supplied, served), (Ok(()), vec![]));
    assert_eq!(rest(&mut table), [("b", 1)]);
}

#[test]
fn what_comes_back_too_late_is_told_from_what_is_there_now() {
    let mut table = table();
    let end = |table: &mut Words| {
        let status = Status::new(Code::Internal, "BOOM", "boom");
        table.abort(NOW, STEP, &status, &mut |_| {});
    };
    send(&mut table, "a");
    let (value, from) = take(&mut table).unwrap();
    assert_eq!(table.slot_of(from), Some(SLOT));
    end(&mut table);
    assert_eq!(table.slot_of(from), None);
    assert_eq!(table.give_back(NOW, from, value, 10), Err("a"));
    // The same memory and the same place, in another step: a peer was given up, and the place began anew.
    let other = Slot {
        step: StepId(8),
        ..SLOT
    };
    for slot in [SLOT, other] {
        let _ = table.send(NOW, slot, "b", 10);
    }
    assert_eq!(table.give_back(NOW, from, "a", 10), Err("a"));
    table.fail_keys(|_| true, &mut |_| {});
    let _ = table.send(NOW, other, "c", 10);
    assert_eq!(table.give_back(NOW, from, "a", 10), Err("a"));
    let left = table.recv(NOW, other, 1, Nanos::NEVER);
    assert!(
        matches!(left, Ok(ReceiveOutcome::Ready { value: "c", .. })),
        "{left:?}"
    );
}
