//! Two sides, one stream in memory: what each proves to the other, and what an outsider hears.

use std::os::unix::net::UnixStream;

use async_io::Async;
use futures_lite::future::{block_on, zip};
use proptest::prelude::*;

use super::*;

fn secret(text: &[u8]) -> Secret {
    Secret::new(text).expect("long enough")
}

fn pair() -> (Async<UnixStream>, Async<UnixStream>) {
    Async::<UnixStream>::pair().expect("a pair")
}

const fn terms(secret: Option<&Secret>, binding: u8, may_go_without: bool) -> Terms<'_> {
    Terms {
        secret,
        binding: [binding; 32],
        may_go_without,
        waives: false,
    }
}

type Outcome = Result<Option<Session>, Refusal>;

fn meet(dialler: Terms<'_>, acceptor: Terms<'_>) -> (Outcome, Outcome) {
    let (mut left, mut right) = pair();
    block_on(zip(
        async {
            let outcome = dial(&mut left, dialler).await;
            drop(left);
            outcome
        },
        async {
            let outcome = accept(&mut right, acceptor, |_| true).await;
            drop(right);
            outcome
        },
    ))
}

fn reason(outcome: &Outcome) -> &'static str {
    outcome.as_ref().expect_err("refused").status.reason()
}

#[test]
fn one_secret_gives_one_session() {
    let secret = secret(b"0123456789abcdef");
    let (left, right) = meet(
        terms(Some(&secret), 0, false),
        terms(Some(&secret), 0, false),
    );
    let (left, right) = (left.expect("met"), right.expect("met"));
    let (left, right) = (left.expect("a session"), right.expect("a session"));
    assert!(right.is_ticket(b"x", b"tls", &left.sign_ticket(b"x", b"tls")));
    assert!(!right.is_ticket(b"x", b"other", &left.sign_ticket(b"x", b"tls")));
    let (left, right) = meet(terms(None, 0, false), terms(None, 0, false));
    assert!(left.expect("met").is_none() && right.expect("met").is_none());
}

#[test]
fn another_secret_is_refused_by_both() {
    let (one, other) = (secret(b"0123456789abcdef"), secret(b"fedcba9876543210"));
    let (left, right) = meet(terms(Some(&one), 0, false), terms(Some(&other), 0, false));
    assert_eq!(
        (reason(&left), reason(&right)),
        ("SECRET_WRONG", "SECRET_WRONG")
    );
    let (left, right) = meet(terms(Some(&one), 0, false), terms(Some(&one), 1, false));
    assert_eq!(
        (reason(&left), reason(&right)),
        ("SECRET_WRONG", "SECRET_WRONG"),
        "two connections"
    );
    for (dialler, acceptor) in [(Some(&one), None), (None, Some(&one))] {
        let (left, right) = meet(terms(dialler, 0, false), terms(acceptor, 0, false));
        assert_eq!(
            (reason(&left), reason(&right)),
            ("SECRET_MISSING", "SECRET_MISSING")
        );
        let (left, right) = meet(terms(dialler, 0, true), terms(acceptor, 0, true));
        assert!(left.expect("met").is_none() && right.expect("met").is_none());
    }
}

/// A side that waives the secret lets in peers that have none, and still refuses those that have another one.
#[test]
fn who_waives_the_secret_says_so() {
    let (one, other) = (secret(b"0123456789abcdef"), secret(b"fedcba9876543210"));
    let waives = |secret| Terms {
        waives: true,
        ..terms(Some(secret), 0, false)
    };
    let without = terms(None, 0, false);
    for (left, right) in [meet(waives(&one), without), meet(without, waives(&one))] {
        assert!(left.expect("met").is_none() && right.expect("met").is_none());
    }
    let (left, right) = meet(waives(&one), waives(&one));
    assert!(left.expect("met").is_some() && right.expect("met").is_some());
    let (left, right) = meet(waives(&one), waives(&other));
    assert_eq!(
        (reason(&left), reason(&right)),
        ("SECRET_WRONG", "SECRET_WRONG")
    );
}

/// What a recorded dialler said, played back: the acceptor's nonce is another one.
#[test]
fn a_recording_is_worthless_and_known() {
    let secret = secret(b"0123456789abcdef");
    let challenge = Challenge::draw(true, false).expect("random");
    for is_remembered in [true, false] {
        let (mut left, mut right) = pair();
        let play = async {
            send(&mut left, &challenge.emit()).await.expect("sent");
            let _: [u8; MESSAGE] = receive(&mut left).await.expect("answered");
            send(&mut left, &[7; MAC]).await.expect("sent");
            let answer: [u8; MESSAGE] = receive(&mut left).await.expect("answered");
            assert_eq!(answer, [0; MESSAGE], "no proof for an outsider");
        };
        let accepting = accept(&mut right, terms(Some(&secret), 0, false), |nonce| {
            assert_eq!(nonce, challenge.nonce);
            !is_remembered
        });
        let ((), outcome) = block_on(zip(play, accepting));
        let expected = if is_remembered {
            "HANDSHAKE_REPLAYED"
        } else {
            "SECRET_WRONG"
        };
        assert_eq!(reason(&outcome), expected);
    }
}

/// An acceptor that sends the dialler's own messages back learns and proves nothing.
#[test]
fn a_mirror_is_refused() {
    let secret = secret(b"0123456789abcdef");
    let (mut left, mut right) = pair();
    let mirror = async {
        let challenge: [u8; MESSAGE] = receive(&mut right).await.expect("a challenge");
        send(&mut right, &challenge).await.expect("sent");
        let proof: [u8; MAC] = receive(&mut right).await.expect("a proof");
        send(&mut right, &emit_answer(Some(&proof)))
            .await
            .expect("sent");
    };
    let (outcome, ()) = block_on(zip(dial(&mut left, terms(Some(&secret), 0, false)), mirror));
    assert_eq!(reason(&outcome), "SECRET_WRONG");
}

proptest! {
    #[test]
    fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let secret = secret(b"0123456789abcdef");
        let (mut left, mut right) = pair();
        let say = async {
            let _ = left.write_all(&bytes).await;
            let _ = left.get_ref().shutdown(std::net::Shutdown::Write);
        };
        let accepting = accept(&mut right, terms(Some(&secret), 0, false), |_| true);
        let ((), outcome) = block_on(zip(say, accepting));
        prop_assert!(outcome.is_err());
    }
}
