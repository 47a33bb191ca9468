//! Faults of either side, and of the way between.

use proptest::prelude::*;
use rendez_proto::envelope::Body;

use super::*;

/// The greetings that there are: over a Unix socket, by data connections, and with offers before those.
fn kinds() -> [[Fake; 2]; 3] {
    [
        Fake::pair(true, &[]),
        Fake::pair(false, &[]),
        Fake::pair(false, &[Path::Verbs, OTHER]),
    ]
}

/// Whatever fails, both sides come to the same end, and know why.
#[test]
fn one_fault_ends_a_greeting_for_both_sides() {
    for fault in Fault::ALL {
        for faulty in [0, 1] {
            for (kind, mut sides) in kinds().into_iter().enumerate() {
                sides[faulty].fault = Some(fault);
                let case = format!("{fault:?} of side {faulty} in {kind}");
                match greet(&mut sides, AUTO) {
                    [Some(Ok(at_a)), Some(Ok(at_b))] => {
                        let path = |outcome| match outcome {
                            Outcome::Met(agreed) => agreed.path,
                            Outcome::Elsewhere(at) => panic!("{case}: sent to {at}"),
                        };
                        assert_eq!(path(at_a), path(at_b), "{case}");
                        assert!(sides.iter().all(|side| side.counted), "{case}");
                    }
                    [Some(Err(at_a)), Some(Err(at_b))] => {
                        for refusal in [at_a, at_b] {
                            let why = refusal.status.message();
                            assert!(why.contains("fails"), "{case}: {why}");
                        }
                    }
                    // The dialler counts first: it hears of the end in its conversation.
                    [Some(Ok(_)), Some(Err(_))]
                        if fault == Fault::Count && faulty == 1 && kind == 0 => {}
                    other => panic!("{case}: {other:?}"),
                }
            }
        }
    }
}

/// Whether the same may succeed later, the other side is told too.
#[test]
fn a_no_for_now_is_one_for_both_sides() {
    for fault in Fault::ALL {
        for (faulty, is_for_now) in [(0, true), (1, true), (0, false), (1, false)] {
            for (kind, mut sides) in kinds().into_iter().enumerate() {
                sides[faulty].fault = Some(fault);
                let no = || Refusal::later("PEER_REFUSED", "no descriptor is left");
                sides[faulty].no = is_for_now.then(no);
                for outcome in greet(&mut sides, AUTO) {
                    if let Some(Err(refusal)) = outcome {
                        let case = format!("{fault:?} of side {faulty} in {kind}: {refusal:?}");
                        assert_eq!(refusal.retry, is_for_now, "{case}");
                    }
                }
            }
        }
    }
}

/// A side that is too busy to try a transport says nothing of it: the greeting is put off, and neither does without.
#[test]
fn a_busy_side_puts_the_greeting_off() {
    for fault in Fault::OF_OFFERS {
        for faulty in [0, 1] {
            let mut sides = Fake::pair(false, &[Path::Verbs, OTHER]);
            sides[faulty].fault = Some(fault);
            sides[faulty].no = Some(Refusal::later(catalogue::PEER_BUSY, "no thread is left"));
            for outcome in greet(&mut sides, AUTO) {
                let refusal = outcome.expect("over").expect_err("put off");
                let case = format!("{fault:?} of side {faulty}: {refusal:?}");
                assert!(refusal.is_busy(), "{case}");
            }
        }
    }
}

/// A transport that fails is followed by the next, and below the last are data connections.
#[test]
fn a_transport_that_fails_is_fallen_back_from_with_the_reason() {
    for fault in Fault::OF_OFFERS {
        for faulty in [0, 1] {
            let mut sides = Fake::pair(false, &[Path::Verbs, OTHER]);
            sides[faulty].fault = Some(fault);
            for at in agreed(greet(&mut sides, AUTO)) {
                assert_eq!((at.path, at.fell_back), (Path::Tcp, Some(Path::Verbs)));
                assert!(at.why.contains(&format!("{fault:?} of")), "{}", at.why);
            }
            let opened = |path: &str| sides[0].jobs.iter().any(|job| job == path);
            assert!(opened("open verbs") && opened("open other"), "{sides:?}");
        }
    }
}

/// Where a transport is demanded, nothing else is taken; what failed may work later.
#[test]
fn a_demanded_transport_that_fails_is_refused() {
    for fault in Fault::OF_OFFERS {
        for faulty in [0, 1] {
            for wish in [
                [PathWish::only(OTHER); 2],
                [PathWish::only(OTHER), PathWish::Auto],
            ] {
                let mut sides = Fake::pair(false, &[Path::Verbs, OTHER]);
                sides[0].asks = wish[0];
                sides[faulty].fault = Some(fault);
                let [at_a, _] = greet(&mut sides, wish);
                let refusal = at_a.expect("over").expect_err("demanded");
                assert_eq!(refusal.status.reason(), catalogue::PATH_REFUSED);
                let why = refusal.status.message();
                assert!(
                    refusal.retry && why.contains("the other is demanded"),
                    "{why}"
                );
                assert!(!sides[0].jobs.iter().any(|job| job == "open verbs"));
            }
        }
    }
    // Demanded, and not there: for good.
    let mut sides = Fake::pair(false, &[OTHER]);
    let wish = PathWish::only(OTHER);
    sides[0].asks = wish;
    sides[1].rungs[0].lack = Some(Lack {
        why: "it is off".into(),
        is_fault: false,
    });
    let [at_a, at_b] = greet(&mut sides, [wish, PathWish::Auto]);
    let refusal = at_a.expect("over").expect_err("not there");
    assert!(!refusal.retry && refusal.status.message().contains("it is off"));
    assert!(at_b.expect("over").is_err());
}

#[test]
fn two_counts_of_channels_are_no_agreement() {
    for paths in [&[][..], &[Path::Verbs]] {
        let mut sides = Fake::pair(false, paths);
        sides[1].channels = 3;
        for outcome in greet(&mut sides, AUTO) {
            assert!(outcome.expect("over").is_err());
        }
    }
}

/// Two sides that agree, agree on the same; a side without an outcome waits for one that has hung up, unless what it
/// waits for was lost.
fn is_sound(both: &Both, is_lost: bool, case: &str) {
    match both {
        [Some(Ok(Outcome::Met(at_a))), Some(Ok(Outcome::Met(at_b)))] => {
            assert_eq!(at_a.path, at_b.path, "{case}")
        }
        [None, None] => assert!(is_lost, "{case}: both wait"),
        _ => {}
    }
}

/// Each message of each greeting is lost, repeated, or takes the place of another.
#[test]
fn messages_that_are_lost_or_repeated_come_to_no_wrong_agreement() {
    for (kind, sides) in kinds().into_iter().enumerate() {
        let mut sides = sides;
        let mut all = Vec::new();
        agreed(run(&mut sides, AUTO, |envelope| {
            all.push(envelope.clone());
            vec![envelope]
        }));
        for at in 0..all.len() {
            for change in 0..(2 + all.len()) {
                let mut sides = kinds().into_iter().nth(kind).expect("three");
                let mut count = 0;
                let both = run(&mut sides, AUTO, |envelope| {
                    count += 1;
                    match (count == at + 1, change) {
                        (false, _) => vec![envelope],
                        (true, 0) => vec![],
                        (true, 1) => vec![envelope.clone(), envelope],
                        (true, change) => vec![Envelope {
                            body: all[change - 2].body.clone(),
                            ..envelope
                        }],
                    }
                });
                is_sound(
                    &both,
                    change != 1,
                    &format!("kind {kind}, message {at}, change {change}"),
                );
            }
        }
    }
}

/// A body of any kind that a greeting has.
fn any_body() -> impl Strategy<Value = Body> {
    use rendez_proto as proto;
    let bytes = || proptest::collection::vec(any::<u8>(), 0..20);
    let ends = || proptest::collection::vec(bytes(), 0..4);
    prop_oneof![
        any::<u32>().prop_map(|transport| Body::Offer(proto::Offer {
            transport,
            ends: vec![Vec::new(); 2],
            device: "x".into()
        })),
        (ends(), "[a-z]{0,3}").prop_map(|(ends, no)| Body::OfferReply(proto::OfferReply {
            ends,
            no,
            device: String::new()
        })),
        Just(Body::Prove(proto::Prove {})),
        "[a-z]{0,2}".prop_map(|no| Body::ProveReply(proto::ProveReply { no })),
        "[a-z]{0,2}".prop_map(|no| Body::OfferDone(proto::OfferDone { no })),
        (0u32..4).prop_map(|channels| Body::DataOpen(proto::DataOpen {
            channels,
            no_better: String::new()
        })),
        bytes().prop_map(|ticket| Body::DataOpenReply(proto::DataOpenReply {
            ticket,
            expires_ms: 1
        })),
        Just(Body::DataReady(proto::DataReady {})),
        Just(Body::Ack(proto::Ack {})),
        Just(Body::Bye(proto::Bye { reason: "x".into() })),
        Just(Body::Error(proto::Error::default())),
    ]
}

proptest! {
    /// Any message in any state, on either side, leaves a machine that waits or has an outcome.
    #[test]
    fn any_message_gives_an_outcome_or_another_wait(
        kind in 0usize..3,
        at in 0usize..12,
        body in any_body(),
        id in 0u64..4,
        reply: bool,
        is_instead: bool,
    ) {
        let mut sides = kinds().into_iter().nth(kind).expect("three");
        let mut count = 0;
        let both = run(&mut sides, AUTO, |envelope| {
            count += 1;
            let other = Envelope { id, reply, body: Some(body.clone()) };
            match (count == at + 1, is_instead) {
                (false, _) => vec![envelope],
                (true, true) => vec![other],
                (true, false) => vec![other, envelope],
            }
        });
        is_sound(&both, true, "any message");
    }
}
