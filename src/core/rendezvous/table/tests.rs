//! Tests of the table, rule by rule. Those of known defects of other systems' tables say which.

use std::collections::HashMap;

use super::Table;
use crate::ground::{Code, FrameIter, Nanos, Status, StepId};
use crate::rendezvous::{
    Arrived, Ended, Expired, KeyId, Limits, Pass, PushOutcome, ReceiveOutcome, Refusal, Requested,
    Sent, Slot, WaiterId, Withdrawn,
};

mod returned;
mod room;

type Words = Table<&'static str, u32>;

const NOW: Nanos = Nanos(1_000);
const STEP: StepId = StepId(7);

const SMALL: Limits = Limits {
    records: 4,
    values: 4,
    waiters: 4,
    waiters_per_key: 3,
    parked_bytes: 100,
    parked_bytes_per_step: 60,
    steps: 2,
    tombstones: 2,
    grace_steps: 1,
    grace_ttl_ns: 500,
    hash_seed: 0,
    first_ordinal: 0,
};

fn slot(key: u32) -> Slot {
    slot_of(STEP, key)
}

fn slot_of(step: StepId, key: u32) -> Slot {
    Slot {
        step,
        key: KeyId(key),
        at: FrameIter::default(),
    }
}

fn wait(table: &mut Words, slot: Slot, waiter: u32) -> WaiterId {
    match table.recv(NOW, slot, waiter, Nanos::NEVER) {
        Ok(
            ReceiveOutcome::Waiting { id, .. }
            | ReceiveOutcome::Fetch { id, .. }
            | ReceiveOutcome::Behind { id },
        ) => id,
        other => panic!("{other:?}"),
    }
}

fn boom() -> Status {
    Status::new(Code::Internal, "BOOM", "boom")
}

fn abort(table: &mut Words, step: StepId) -> Vec<Ended<&'static str, u32>> {
    let mut out = Vec::new();
    table.abort(NOW, step, &boom(), &mut |ended| out.push(ended));
    out
}

fn finish(table: &mut Words, step: StepId) -> Vec<Ended<&'static str, u32>> {
    let mut out = Vec::new();
    table.finish(NOW, step, &mut |ended| out.push(ended));
    out
}

#[test]
fn values_and_waiters_are_first_in_first_out() {
    let mut table = Words::new(SMALL).unwrap();
    for (ordinal, value) in ["a", "b", "c"].into_iter().enumerate() {
        let parked = table.send(NOW, slot(1), value, 1);
        assert_eq!(
            parked,
            Ok(Sent::Parked {
                ordinal: ordinal as u32
            })
        );
    }
    for (ordinal, value) in ["a", "b", "c"].into_iter().enumerate() {
        let ready = table.recv(NOW, slot(1), 0, Nanos::NEVER);
        assert_eq!(had(ready), Some((value, ordinal as u32)));
    }
    for waiter in [1, 2, 3] {
        wait(&mut table, slot(1), waiter);
    }
    for (waiter, value) in [(1, "d"), (2, "e"), (3, "f")] {
        let ordinal = waiter + 2;
        let sent = table.send(NOW, slot(1), value, 1);
        assert!(
            matches!(sent, Ok(Sent::Matched { waiter: to, value: had, from })
                if (to, had, from.ordinal()) == (waiter, value, ordinal)),
            "{sent:?}"
        );
    }
    assert_eq!(
        (
            table.stats().values,
            table.stats().waiters,
            table.stats().parked_bytes
        ),
        (0, 0, 0)
    );
}

/// Matching by the hash alone hands a tensor to a stranger.
#[test]
fn slots_that_share_a_hash_do_not_match() {
    let mut table = Words::new(Limits::default()).unwrap();
    let mut seen: HashMap<u32, Slot> = HashMap::new();
    let mut collisions = Vec::new();
    for key in 0..300_000 {
        if let Some(other) = seen.insert(table.records.tag(&slot(key)), slot(key)) {
            collisions.push((other, slot(key)));
        }
    }
    // 300 000² ÷ 2³³ ≈ 10 pairs are to be expected of a good 32-bit hash; a hundred would be a bad one.
    assert!(
        (1..100).contains(&collisions.len()),
        "{} collisions",
        collisions.len()
    );
    for (one, other) in collisions {
        table.send(NOW, one, "mine", 1).expect("parked");
        wait(&mut table, other, 9);
        assert_eq!(table.stats().waiters, 1);
        let ready = table.recv(NOW, one, 8, Nanos::NEVER);
        assert_eq!(had(ready), Some(("mine", 0)));
        assert!(matches!(
            table.send(NOW, other, "yours", 1),
            Ok(Sent::Matched { waiter: 9, .. })
        ));
    }
}

#[test]
fn each_part_of_a_slot_tells_it_from_others() {
    let mut table = Words::new(Limits::default()).unwrap();
    let at = |frame, iter| FrameIter { frame, iter };
    let one = Slot {
        step: StepId(1),
        key: KeyId(1),
        at: at(1, 1),
    };
    table.send(NOW, one, "value", 1).expect("parked");
    for other in [
        Slot {
            step: StepId(2),
            ..one
        },
        Slot {
            key: KeyId(2),
            ..one
        },
        Slot {
            at: at(2, 1),
            ..one
        },
        Slot {
            at: at(1, 2),
            ..one
        },
        Slot {
            at: at(0, 0),
            ..one
        },
    ] {
        wait(&mut table, other, 1);
    }
    assert_eq!(table.stats().values, 1);
}

/// A receive that timed out must not stay behind: its callback would run when its caller is gone.
#[test]
fn a_waiter_past_its_deadline_is_unlinked_and_ends_once() {
    let mut table = Words::new(SMALL).unwrap();
    let Ok(ReceiveOutcome::Waiting { id, .. }) = table.recv(NOW, slot(1), 5, NOW + 100) else {
        panic!("nothing to receive");
    };
    assert_eq!(table.poll_timeout(), Some(NOW + 100));
    let mut out = Vec::new();
    table.expire(NOW + 99, &mut |expired| out.push(expired));
    assert_eq!(out, Vec::new(), "not early");
    table.expire(NOW + 100, &mut |expired| out.push(expired));
    table.expire(NOW + 200, &mut |expired| out.push(expired));
    assert_eq!(out, vec![Expired::Waiter(slot(1), 5)]);
    assert_eq!(table.cancel(id), None);
    assert_eq!(
        table.send(NOW + 200, slot(1), "late", 1),
        Ok(Sent::Parked { ordinal: 0 })
    );
    assert_eq!(abort(&mut table, STEP), vec![Ended::Value(slot(1), "late")]);
}

#[test]
fn a_cancelled_waiter_is_passed_over() {
    let mut table = Words::new(SMALL).unwrap();
    let first = wait(&mut table, slot(1), 1);
    wait(&mut table, slot(1), 2);
    assert_eq!(table.cancel(first), Some((slot(1), 1)));
    assert_eq!(table.cancel(first), None, "once");
    assert!(matches!(
        table.send(NOW, slot(1), "a", 1),
        Ok(Sent::Matched { waiter: 2, .. })
    ));
    assert!(
        matches!(table.send(NOW, slot(1), "b", 1), Ok(Sent::Parked { .. })),
        "delivery after cancel parks"
    );
    let successor = wait(&mut table, slot(2), 3);
    assert_eq!(
        table.cancel(first),
        None,
        "a stale name is not its successor's"
    );
    assert_eq!(table.cancel(successor), Some((slot(2), 3)));
}

/// The first of a point lies in its record, those behind it in a list.
#[test]
fn a_waiter_may_become_another() {
    let mut table = Words::new(SMALL).unwrap();
    let [first, second] = [1, 2].map(|waiter| wait(&mut table, slot(1), waiter));
    table.rename(second, 20);
    table.rename(first, 10);
    assert_eq!(table.claim_next(&slot(1)).map(|(to, _)| to), Some(10));
    table.rename(first, 11);
    assert_eq!(table.cancel(second), Some((slot(1), 20)));
    let successor = wait(&mut table, slot(1), 3);
    table.rename(second, 21);
    assert_eq!(
        table.cancel(successor),
        Some((slot(1), 3)),
        "its name is another's"
    );
}

/// A receive that checks first and inserts later can slip in behind an abort, and then waits for ever.
#[test]
fn nothing_joins_a_step_after_its_abort() {
    let mut table = Words::new(SMALL).unwrap();
    wait(&mut table, slot(1), 1);
    table.send(NOW, slot(2), "a", 5).expect("parked");
    let ticket = match table.pass(NOW, slot(3)) {
        Ok(Pass::Clear(ticket)) => ticket,
        other => panic!("{other:?}"),
    };
    let mut ended = abort(&mut table, STEP);
    ended.sort_by_key(|ended| matches!(ended, Ended::Value(..)));
    assert_eq!(
        ended,
        vec![Ended::Waiter(slot(1), 1), Ended::Value(slot(2), "a")]
    );
    assert_eq!(
        table.park(NOW, ticket, "b", 1),
        Err((Refusal::Stale, "b")),
        "passed before, parked after"
    );
    for key in [1, 2, 9] {
        assert_eq!(
            table.send(NOW, slot(key), "c", 1),
            Err((Refusal::Aborted, "c"))
        );
        assert_eq!(
            table.recv(NOW, slot(key), 2, Nanos::NEVER),
            Err(Refusal::Aborted)
        );
        assert_eq!(table.pass(NOW, slot(key)), Err(Refusal::Aborted));
        assert_eq!(
            table.request(NOW, slot(key), 0, 2, Nanos::NEVER),
            Err(Refusal::Aborted)
        );
        let arrived = table.arrive(NOW, slot(key), 0, Arrived::Value("d"), 1);
        assert_eq!(arrived, Err((Refusal::Aborted, Arrived::Value("d"))));
    }
    assert_eq!(table.open_step(NOW, STEP), Err(Refusal::Aborted));
    assert_eq!((table.stats().records, table.stats().parked_bytes), (0, 0));
}

#[test]
fn the_first_status_wins() {
    let mut table = Words::new(SMALL).unwrap();
    let second = Status::new(Code::Unavailable, "SECOND", "more specific");
    assert!(table.abort(NOW, STEP, &boom(), &mut |_| {}));
    assert!(!table.abort(NOW, STEP, &second, &mut |_| {}));
    assert!(!table.finish(NOW, STEP, &mut |_| {}));
    assert_eq!(table.status_of(STEP), Some(boom()));
    assert_eq!(table.refusal_status(Refusal::Aborted, slot(1)), boom());
}

/// A table that forgets a finished step makes it afresh for a latecomer, who waits for ever.
#[test]
fn a_late_request_meets_the_tombstone() {
    let mut table = Words::new(SMALL).unwrap();
    table.open_step(NOW, STEP).expect("opened");
    assert_eq!(finish(&mut table, STEP), Vec::new());
    assert_eq!(
        table.request(NOW, slot(1), 0, 1, Nanos::NEVER),
        Err(Refusal::Finished)
    );
    assert_eq!(
        table.recv(NOW, slot(1), 1, Nanos::NEVER),
        Err(Refusal::Finished)
    );
    assert_eq!(
        table.send(NOW, slot(1), "late", 1),
        Err((Refusal::Finished, "late"))
    );
    let status = table.status_of(STEP).expect("a tombstone");
    assert_eq!(
        (status.code(), status.reason()),
        (Code::Aborted, "STEP_FINISHED")
    );
}

/// Keeping every aborted step alive, so that it can be found, is a leak.
#[test]
fn tombstones_are_bounded_and_the_oldest_goes_first() {
    let mut table = Words::new(SMALL).unwrap();
    for step in 0..1_000 {
        abort(&mut table, StepId(step));
        assert!(table.stats().tombstones <= SMALL.tombstones);
    }
    assert_eq!(table.status_of(StepId(997)), None);
    assert!(table.status_of(StepId(998)).is_some() && table.status_of(StepId(999)).is_some());
    assert_eq!(
        table.open_step(NOW, StepId(0)),
        Ok(()),
        "a number whose tombstone went may be a fresh step"
    );
    assert!(
        table.steps.numbers().len() <= 5,
        "and the places are used again"
    );
}

/// A request that overtook its step, kept aside and then forgotten by abort and clean-up, hangs.
#[test]
fn a_deferred_request_ends_with_its_step() {
    let deferred = |table: &mut Words| {
        let waiting = table.request(NOW, slot(1), 0, 4, Nanos::NEVER);
        assert!(matches!(waiting, Ok(Requested::Waiting { .. })));
        assert_eq!(table.stats().grace_steps, 1);
    };
    let gone = vec![Ended::Waiter(slot(1), 4)];

    let mut table = Words::new(SMALL).unwrap();
    deferred(&mut table);
    assert_eq!(abort(&mut table, STEP), gone);

    let mut table = Words::new(SMALL).unwrap();
    deferred(&mut table);
    assert_eq!(finish(&mut table, STEP), gone);

    let mut table = Words::new(SMALL).unwrap();
    deferred(&mut table);
    assert_eq!(table.poll_timeout(), Some(NOW + SMALL.grace_ttl_ns));
    let mut out = Vec::new();
    table.expire(NOW + SMALL.grace_ttl_ns, &mut |expired| out.push(expired));
    assert_eq!(out, vec![Expired::Unclaimed(Ended::Waiter(slot(1), 4))]);
    assert_eq!(
        table.send(NOW, slot(1), "late", 1),
        Err((Refusal::Unclaimed, "late")),
        "told, not left to wait"
    );

    let mut table = Words::new(SMALL).unwrap();
    deferred(&mut table);
    assert_eq!(
        table.pass(NOW, slot(1)),
        Ok(Pass::Waiter {
            waiter: 4,
            ordinal: 0
        }),
        "served once the step is live"
    );
    assert_eq!((table.stats().grace_steps, table.stats().steps), (0, 1));
    assert_eq!(table.poll_timeout(), None, "and its time is up no more");
}

#[test]
fn a_frame_makes_no_step_beyond_the_grace_table() {
    let mut table = Words::new(SMALL).unwrap();
    let push = |table: &mut Words, step| {
        table.arrive(NOW, slot_of(StepId(step), 1), 0, Arrived::Value("a"), 1)
    };
    assert_eq!(push(&mut table, 1), Ok(PushOutcome::Parked));
    assert_eq!(
        push(&mut table, 2),
        Err((Refusal::GraceSteps, Arrived::Value("a")))
    );
    table.open_step(NOW, StepId(1)).expect("opened");
    assert_eq!(
        push(&mut table, 2),
        Ok(PushOutcome::Parked),
        "a claimed step is in grace no more"
    );
    let ready = table.recv(NOW, slot_of(StepId(1), 1), 1, Nanos::NEVER);
    assert_eq!(had(ready), Some(("a", 0)));
}

#[test]
fn a_frame_that_is_refused_leaves_no_step_behind() {
    let mut table = Words::new(SMALL).unwrap();
    for key in 0..SMALL.records {
        wait(&mut table, slot(key), 1);
    }
    let strange = slot_of(StepId(99), 1);
    assert_eq!(
        table.request(NOW, strange, 0, 1, Nanos::NEVER),
        Err(Refusal::Records)
    );
    assert_eq!(table.stats().grace_steps, 0);
}

/// Suppressing duplicates by a window of request ids forgets the oldest; ordinals forget nothing.
#[test]
fn an_ordinal_arrives_once() {
    let mut table = Words::new(SMALL).unwrap();
    let mut arrive = |ordinal, value| table.arrive(NOW, slot(1), ordinal, Arrived::Value(value), 1);
    assert_eq!(arrive(0, "a"), Ok(PushOutcome::Parked));
    assert_eq!(
        arrive(0, "again"),
        Ok(PushOutcome::Duplicate(Arrived::Value("again")))
    );
    assert_eq!(
        arrive(5, "f"),
        Ok(PushOutcome::Parked),
        "what is between failed at the sender"
    );
    assert_eq!(
        arrive(3, "d"),
        Ok(PushOutcome::Duplicate(Arrived::Value("d")))
    );
    assert_eq!(
        arrive(u32::MAX, "x"),
        Ok(PushOutcome::Duplicate(Arrived::Value("x"))),
        "sent before the first, or 2^32 values later"
    );
    for (value, ordinal) in [("a", 0), ("f", 5)] {
        assert_eq!(
            had(table.recv(NOW, slot(1), 1, Nanos::NEVER)),
            Some((value, ordinal))
        );
    }
    let waiting = table.recv(NOW, slot(1), 1, Nanos::NEVER);
    assert!(
        matches!(waiting, Ok(ReceiveOutcome::Waiting { ordinal: 6, .. })),
        "asks for what comes next: {waiting:?}"
    );
}

#[test]
fn offers_keep_their_place_and_drain_in_order() {
    let mut table = Words::new(SMALL).unwrap();
    assert_eq!(
        table.arrive(NOW, slot(1), 0, Arrived::Offer(70), 0),
        Ok(PushOutcome::Parked)
    );
    assert_eq!(
        table.arrive(NOW, slot(1), 1, Arrived::Value("b"), 1),
        Ok(PushOutcome::Parked)
    );
    let first = table.recv(NOW, slot(1), 1, Nanos::NEVER);
    assert!(
        matches!(first, Ok(ReceiveOutcome::Fetch { token: 70, .. })),
        "{first:?}"
    );
    let second = table.recv(NOW, slot(1), 2, Nanos::NEVER);
    assert!(
        matches!(second, Ok(ReceiveOutcome::Behind { .. })),
        "{second:?}"
    );
    let third = table.recv(NOW, slot(1), 3, Nanos::NEVER);
    assert!(
        matches!(third, Ok(ReceiveOutcome::Waiting { ordinal: 2, .. })),
        "{third:?}"
    );
    assert_eq!(
        table.arrive(NOW, slot(1), 2, Arrived::Offer(71), 0),
        Ok(PushOutcome::Wanted { token: 71 })
    );
    let mut out = Vec::new();
    assert_eq!(
        table.supply(NOW, slot(1), 71, "c", 1, &mut |w, v, _| out.push((w, v))),
        Ok(())
    );
    assert_eq!(out, Vec::new(), "the first is still on its way");
    assert_eq!(
        table.supply(NOW, slot(1), 70, "a", 1, &mut |w, v, _| out.push((w, v))),
        Ok(())
    );
    assert_eq!(out, vec![(1, "a"), (2, "b"), (3, "c")]);
    assert_eq!(
        table.supply(NOW, slot(1), 70, "again", 1, &mut |_, _, _| {}),
        Err("again")
    );
}

#[test]
fn a_withdrawn_offer_leaves_nobody_waiting_in_vain() {
    let mut table = Words::new(SMALL).unwrap();
    let mut withdrawn = |setup: &[Arrived<&'static str>]| {
        table.fail_keys(|_| true, &mut |_| {});
        for (ordinal, item) in setup.iter().enumerate() {
            let item = match item {
                Arrived::Value(value) => Arrived::Value(*value),
                Arrived::Offer(token) => Arrived::Offer(*token),
            };
            table
                .arrive(NOW, slot(1), ordinal as u32, item, 1)
                .expect("parked");
        }
        wait(&mut table, slot(1), 9);
        let mut out = Vec::new();
        assert!(table.withdraw(slot(1), 70, &mut |what| out.push(what)));
        assert!(!table.withdraw(slot(1), 70, &mut |_| {}));
        out
    };
    assert_eq!(withdrawn(&[Arrived::Offer(70)]), vec![Withdrawn::Ask(1)]);
    assert_eq!(
        withdrawn(&[Arrived::Offer(70), Arrived::Offer(71)]),
        vec![Withdrawn::Wanted(71)]
    );
    let served = withdrawn(&[Arrived::Offer(70), Arrived::Value("b")]);
    assert!(
        matches!(served[..], [Withdrawn::Matched(9, "b", _)]),
        "{served:?}"
    );
    assert_eq!(
        withdrawn(&[Arrived::Offer(71), Arrived::Offer(70)]),
        Vec::new(),
        "it had never come so far"
    );
}

#[test]
fn an_ordinal_is_given_once_and_none_is_lost() {
    let mut table = Words::new(SMALL).unwrap();
    let Ok(Pass::Clear(ticket)) = table.pass(NOW, slot(1)) else {
        panic!("nothing is queued")
    };
    assert_eq!(ticket.ordinal(), 0, "pushed");
    let Ok(Pass::Clear(ticket)) = table.pass(NOW, slot(1)) else {
        panic!("nothing is queued")
    };
    assert_eq!(
        table.park(NOW, ticket, "too long", 1_000),
        Err((Refusal::ParkedBytes, "too long"))
    );
    let Ok(Pass::Clear(ticket)) = table.pass(NOW, slot(1)) else {
        panic!("nothing is queued")
    };
    assert_eq!(
        table.park(NOW, ticket, "b", 10),
        Ok(1),
        "the refused value's ordinal"
    );
    let Ok(Pass::Behind(ticket)) = table.pass(NOW, slot(1)) else {
        panic!("one is parked")
    };
    assert_eq!(table.park(NOW, ticket, "c", 10), Ok(2));
    assert_eq!(
        table.request(NOW, slot(1), 0, 1, Nanos::NEVER),
        Ok(Requested::AlreadySent)
    );
    assert_eq!(table.take_parked(slot(1)), Some(("b", 1, 10)));
    assert_eq!(
        table.put_back(NOW, slot(1), "b", 1, 10),
        Ok(()),
        "no credit after all"
    );
    assert_eq!(table.put_back(NOW, slot(1), "x", 9, 10), Err("x"));
    let ready = table.request(NOW, slot(1), 1, 1, Nanos::NEVER);
    assert_eq!(
        ready,
        Ok(Requested::Ready {
            value: "b",
            ordinal: 1
        })
    );
    assert_eq!(table.take_parked(slot(1)), Some(("c", 2, 10)));
    assert_eq!(table.take_parked(slot(1)), None);
}

#[test]
fn every_limit_is_refused_and_nothing_is_lost() {
    let mut table = Words::new(SMALL).unwrap();
    assert_eq!(
        table.send(NOW, slot(0), "a", 61),
        Err((Refusal::ParkedBytesOfStep, "a"))
    );
    table.send(NOW, slot(0), "a", 60).expect("fits");
    assert_eq!(
        table.send(NOW, slot_of(StepId(8), 0), "b", 41),
        Err((Refusal::ParkedBytes, "b"))
    );
    assert_eq!(table.open_step(NOW, StepId(9)), Err(Refusal::Steps));
    for value in ["b", "c", "d"] {
        table.send(NOW, slot(0), value, 0).expect("fits");
    }
    assert_eq!(
        table.send(NOW, slot(0), "e", 0),
        Err((Refusal::Values, "e"))
    );
    for waiter in 0..3 {
        wait(&mut table, slot(1), waiter);
    }
    assert_eq!(
        table.recv(NOW, slot(1), 3, Nanos::NEVER),
        Err(Refusal::WaitersOfKey)
    );
    wait(&mut table, slot(2), 3);
    assert_eq!(
        table.recv(NOW, slot(2), 4, Nanos::NEVER),
        Err(Refusal::Waiters)
    );
    assert_eq!(
        table.recv(NOW, slot(3), 4, Nanos::NEVER),
        Err(Refusal::Records)
    );
    assert_eq!(
        had(table.recv(NOW, slot(0), 4, Nanos::NEVER)),
        Some(("a", 0))
    );
    assert_eq!(
        abort(&mut table, STEP).len(),
        7,
        "four waiters and three values"
    );
    assert_eq!(
        (
            table.stats().values,
            table.stats().waiters,
            table.stats().parked_bytes
        ),
        (0, 0, 0)
    );
}

/// The answer to a request was refused by a table full of values that no receiver wanted, and its step failed.
#[test]
fn what_somebody_waits_for_takes_no_place_of_what_is_parked() {
    let mut table = Words::new(SMALL).unwrap();
    for value in ["a", "b", "c", "d"] {
        table.send(NOW, slot(0), value, 0).expect("fits");
    }
    wait(&mut table, slot(1), 1);
    let second = wait(&mut table, slot(1), 2);
    let wanted = table.arrive(NOW, slot(1), 0, Arrived::Offer(70), 0);
    assert_eq!(wanted, Ok(PushOutcome::Wanted { token: 70 }));
    let behind = table.arrive(NOW, slot(1), 1, Arrived::Value("x"), 1);
    assert_eq!(behind, Ok(PushOutcome::Parked));
    assert_eq!(table.stats().values, 4, "neither is parked");
    let unwanted = table.arrive(NOW, slot(1), 2, Arrived::Value("y"), 1);
    assert_eq!(unwanted, Err((Refusal::Values, Arrived::Value("y"))));
    assert!(table.cancel(second).is_some());
    assert_eq!(table.stats().values, 5, "what a waiter leaves behind is");
    assert_eq!(finish(&mut table, STEP).len(), 7);
    assert_eq!(table.stats().values, 0);
}

/// Waiters that come and go leave no more behind than may wait.
#[test]
fn what_waiters_leave_behind_is_bounded() {
    let mut table = Words::new(SMALL).unwrap();
    let mut refused = Vec::new();
    for key in 0..3 {
        let waiters: Vec<_> = (0..3).map(|at| wait(&mut table, slot(key), at)).collect();
        for ordinal in 0..3 {
            let offer = Arrived::Offer(u64::from(3 * key + ordinal));
            refused.extend(table.arrive(NOW, slot(key), ordinal, offer, 0).err());
        }
        for waiter in waiters {
            assert!(table.cancel(waiter).is_some());
        }
    }
    assert_eq!(table.stats().values, SMALL.values + SMALL.waiters);
    assert_eq!(refused, [(Refusal::Values, Arrived::Offer(8))]);
}

#[test]
fn a_lost_peer_takes_its_keys_and_no_others() {
    let mut table = Words::new(SMALL).unwrap();
    wait(&mut table, slot(1), 1);
    table.send(NOW, slot(2), "kept", 3).expect("parked");
    table
        .arrive(NOW, slot(3), 8, Arrived::Value("lost"), 3)
        .expect("parked");
    let mut out = Vec::new();
    table.fail_keys(|key| key.0 != 2, &mut |ended| out.push(ended));
    out.sort_by_key(|ended| matches!(ended, Ended::Value(..)));
    assert_eq!(
        out,
        vec![Ended::Waiter(slot(1), 1), Ended::Value(slot(3), "lost")]
    );
    assert_eq!((table.stats().records, table.stats().parked_bytes), (1, 3));
    let again = table.arrive(NOW, slot(3), 0, Arrived::Value("anew"), 3);
    assert_eq!(again, Ok(PushOutcome::Parked), "its ordinals start again");
    assert_eq!(
        had(table.recv(NOW, slot(2), 1, Nanos::NEVER)),
        Some(("kept", 0))
    );
}

/// A value that was not received keeps its step, as long as the step is not ended.
#[test]
fn a_value_may_be_received_long_after_it_was_sent() {
    let mut table = Words::new(SMALL).unwrap();
    table.send(NOW, slot(1), "old", 1).expect("parked");
    table.expire(NOW + 3_600_000_000_000, &mut |_| {
        panic!("nothing has a deadline")
    });
    let ready = table.recv(NOW + 3_600_000_000_000, slot(1), 1, Nanos::NEVER);
    assert_eq!(had(ready), Some(("old", 0)));
}

/// What a receive was given at once, and its ordinal.
fn had(outcome: Result<ReceiveOutcome<&'static str>, Refusal>) -> Option<(&'static str, u32)> {
    match outcome {
        Ok(ReceiveOutcome::Ready { value, from }) => Some((value, from.ordinal())),
        _ => None,
    }
}
