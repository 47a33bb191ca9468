//! Each request is carried out once, however often it comes; and what is kept is bounded.

use super::*;
use crate::ground::{Status, catalogue};

fn key(request: u64) -> CallKey {
    CallKey {
        task: "b".into(),
        incarnation: Incarnation(2),
        request,
    }
}

const fn asker(peer: u32, id: u64) -> Asker {
    (PeerId(peer), id)
}

#[test]
fn a_repeated_request_is_carried_out_once() {
    let mut answers = Answers::default();
    assert!(matches!(
        answers.admit(key(1), asker(1, 5)),
        Admitted::New(_)
    ));
    assert!(matches!(
        answers.admit(key(1), asker(1, 9)),
        Admitted::Joined
    ));
    assert!(matches!(
        answers.admit(key(1), asker(2, 5)),
        Admitted::Joined
    ));
    let outcome = Ok(vec![7]);
    assert_eq!(
        answers.finish(&key(1), &outcome),
        [asker(1, 9), asker(2, 5)]
    );
    assert!(
        matches!(answers.admit(key(1), asker(3, 5)), Admitted::Answered(Ok(payload)) if payload == [7])
    );
    assert!(answers.finish(&key(1), &outcome).is_empty(), "once");
    answers.acknowledge(&key(1));
    assert!(matches!(
        answers.admit(key(1), asker(3, 5)),
        Admitted::New(_)
    ));
    let failed = Err(Status::of(catalogue::SERVICE_FAILED, "no"));
    assert_eq!(answers.finish(&key(1), &failed).len(), 1);
    assert!(matches!(
        answers.admit(key(1), asker(3, 6)),
        Admitted::Answered(Err(_))
    ));
}

#[test]
fn a_cancel_is_told_and_still_answered() {
    let mut answers = Answers::default();
    let Admitted::New(cancelled) = answers.admit(key(1), asker(1, 5)) else {
        panic!("it is new")
    };
    answers.cancel(&key(2));
    assert!(!cancelled.load(Ordering::Relaxed));
    answers.cancel(&key(1));
    answers.acknowledge(&key(1));
    assert!(cancelled.load(Ordering::Relaxed));
    assert_eq!(answers.finish(&key(1), &Ok(vec![])), [asker(1, 5)]);
}

#[test]
fn a_window_is_each_callers_own() {
    let mut answers = Answers::default();
    for request in 0..CALL_WINDOW as u64 {
        assert!(matches!(
            answers.admit(key(request), asker(1, 1)),
            Admitted::New(_)
        ));
    }
    assert!(matches!(
        answers.admit(key(999), asker(1, 1)),
        Admitted::Busy
    ));
    let other = CallKey {
        task: "c".into(),
        ..key(999)
    };
    assert!(matches!(
        answers.admit(other, asker(2, 1)),
        Admitted::New(_)
    ));
    answers.refuse(&key(0));
    assert!(matches!(
        answers.admit(key(999), asker(1, 1)),
        Admitted::New(_)
    ));
}

#[test]
fn another_life_asks_nothing_again() {
    let mut answers = Answers::default();
    let Admitted::New(cancelled) = answers.admit(key(1), asker(1, 1)) else {
        panic!("it is new")
    };
    let _ = answers.admit(key(2), asker(1, 2));
    let _ = answers.finish(&key(2), &Ok(vec![1; 100]));
    answers.task_is("b", Incarnation(2));
    assert!(!cancelled.load(Ordering::Relaxed));
    answers.task_is("b", Incarnation(3));
    assert!(cancelled.load(Ordering::Relaxed));
    assert!(answers.entries.is_empty() && answers.bytes == 0 && answers.kept == 0);
    assert!(answers.finish(&key(1), &Ok(vec![])).is_empty());
}

#[test]
fn what_is_kept_is_bounded() {
    let mut answers = Answers::default();
    for request in 0..3 * ANSWERS_MAX as u64 {
        let _ = answers.admit(key(request), asker(1, request));
        let _ = answers.finish(&key(request), &Ok(vec![0; 10]));
    }
    assert_eq!(
        (answers.kept, answers.bytes),
        (ANSWERS_MAX, 10 * ANSWERS_MAX)
    );
    let mut answers = Answers::default();
    for request in 0..40 {
        let _ = answers.admit(key(request), asker(1, request));
        let _ = answers.finish(&key(request), &Ok(vec![0; ANSWER_BYTES_MAX / 20]));
    }
    assert!(answers.bytes <= ANSWER_BYTES_MAX && answers.kept >= 19);
    // The first stays unacknowledged, all others are: the order does not grow with them, and the first is kept.
    let mut answers = Answers::default();
    for request in 0..9 * ANSWERS_MAX as u64 {
        let _ = answers.admit(key(request), asker(1, request));
        let _ = answers.finish(&key(request), &Ok(vec![]));
        if request > 0 {
            answers.acknowledge(&key(request));
        }
        assert!(answers.order.len() <= 2 * ANSWERS_MAX);
    }
    assert!(is_kept(&mut answers, &key(0)));
    // One that comes again and again.
    for _ in 0..9 * ANSWERS_MAX {
        answers.acknowledge(&key(1));
        let _ = answers.admit(key(1), asker(1, 1));
        let _ = answers.finish(&key(1), &Ok(vec![]));
        assert!(answers.order.len() <= 2 * ANSWERS_MAX);
    }
    assert!(is_kept(&mut answers, &key(0)));
}

fn is_kept(answers: &mut Answers, key: &CallKey) -> bool {
    matches!(
        answers.admit(key.clone(), asker(3, 1)),
        Admitted::Answered(_)
    )
}

/// Tasks that acknowledge nothing lose answers of their own.
#[test]
fn what_one_keeps_pushes_no_others_out() {
    for bytes in [10, ANSWER_BYTES_MAX / 100] {
        let mut answers = Answers::default();
        for request in 0..3 {
            let _ = answers.admit(key(request), asker(1, request));
            let _ = answers.finish(&key(request), &Ok(vec![7]));
        }
        for request in 0..2 * ANSWERS_MAX as u64 {
            for task in ["a", "c"] {
                let key = CallKey {
                    task: task.into(),
                    ..key(request)
                };
                let _ = answers.admit(key.clone(), asker(2, request));
                let _ = answers.finish(&key, &Ok(vec![0; bytes]));
                assert!(is_kept(&mut answers, &key), "the newest goes last");
            }
        }
        for request in 0..3 {
            assert!(is_kept(&mut answers, &key(request)), "{request}, {bytes}");
        }
    }
}
