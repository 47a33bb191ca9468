//! Greetings without a stream: two machines whose messages are passed by hand, with faults on either side and between.

mod bytes;
mod choices;
mod fake;
mod faults;

use std::collections::VecDeque;

use rendez_proto::Envelope;

use super::*;
use crate::control::transport::{Lack, PathWish};
use crate::ground::catalogue;
use fake::{Fake, Fault, OTHER};

/// What both sides came to: nothing for one that still waits when the other has hung up.
type Both = [Option<Result<Outcome, Refusal>>; 2];

/// Runs both machines until neither gets further. `wire` may change each message on its way, in the order said.
fn run(
    sides: &mut [Fake; 2],
    wish: [PathWish; 2],
    mut wire: impl FnMut(Envelope) -> Vec<Envelope>,
) -> Both {
    let [left, right] = sides;
    let (named, near) = (right.name(), left.is_near);
    let terms = |own, wish| GreetingTerms {
        own,
        machine: "boot",
        wish,
        is_near: near,
    };
    let mut dialler = Dialler::new(terms("a", wish[0]), named);
    let mut acceptor = Acceptor::new(terms("b", wish[1]));
    dialler.begin(left);
    acceptor.begin(right);
    let mut ways: [VecDeque<Envelope>; 2] = Default::default();
    loop {
        let to_acceptor = turn(&mut dialler, left, &mut ways[1]);
        let mut moved = to_acceptor.is_some();
        ways[0].extend(to_acceptor.into_iter().flatten().flat_map(&mut wire));
        let to_dialler = turn(&mut acceptor, right, &mut ways[0]);
        moved |= to_dialler.is_some();
        ways[1].extend(to_dialler.into_iter().flatten().flat_map(&mut wire));
        if !moved {
            break;
        }
    }
    [over(&mut dialler), over(&mut acceptor)]
}

/// The outcome of a machine that has one.
fn over(machine: &mut impl Machine) -> Option<Result<Outcome, Refusal>> {
    (machine.wants() == Wants::Nothing).then(|| machine.outcome())
}

/// One turn of a machine: what it says; nothing if it did not get further.
fn turn(
    machine: &mut impl Machine,
    side: &mut Fake,
    heard: &mut VecDeque<Envelope>,
) -> Option<Vec<Envelope>> {
    let said = machine.talk().take();
    if !said.is_empty() {
        return Some(said);
    }
    let event = match machine.wants() {
        Wants::Nothing => return None,
        Wants::Job => Event::Done(side.finish()),
        Wants::Message => Event::Heard(heard.pop_front()?),
    };
    machine.handle(event, side);
    Some(machine.talk().take())
}

/// A greeting in which nothing is changed on the way.
fn greet(sides: &mut [Fake; 2], wish: [PathWish; 2]) -> Both {
    run(sides, wish, |envelope| vec![envelope])
}

/// What both sides agreed on; they say the same of it.
fn agreed(both: Both) -> [Agreed; 2] {
    both.map(|outcome| match outcome {
        Some(Ok(Outcome::Met(agreed))) => *agreed,
        other => panic!("expected an agreement, got {other:?}"),
    })
}

const AUTO: [PathWish; 2] = [PathWish::Auto; 2];

#[test]
fn over_a_unix_socket_descriptors_make_shared_memory() {
    let mut sides = Fake::pair(true, &[]);
    let agreed = agreed(greet(&mut sides, AUTO));
    for (agreed, side) in agreed.iter().zip(&sides) {
        assert_eq!((agreed.path, agreed.fell_back), (Path::Shm, None));
        assert!(side.counted && side.taken == Fake::BATCHES, "{side:?}");
    }
}

#[test]
fn without_a_better_transport_data_connections_are_opened() {
    let mut sides = Fake::pair(false, &[]);
    let agreed = agreed(greet(&mut sides, AUTO));
    assert!(agreed.iter().all(|agreed| agreed.path == Path::Tcp));
    assert_eq!(sides[0].jobs, ["dial"]);
    assert_eq!(sides[1].jobs, ["gather"]);
}

#[test]
fn the_best_transport_that_both_have_is_taken() {
    let mut sides = Fake::pair(false, &[Path::Verbs, OTHER]);
    let at = agreed(greet(&mut sides, AUTO));
    assert!(at.iter().all(|agreed| agreed.path == Path::Verbs));
    assert_eq!(at[0].why, "RDMA from the card of a to the card of b");
    assert_eq!(sides[0].jobs, ["open verbs", "connect", "prove"]);
    assert_eq!(sides[0].jobs, sides[1].jobs);
    // The same where one side lacks the best.
    let mut sides = Fake::pair(false, &[Path::Verbs, OTHER]);
    sides[1].rungs[0].lack = Some(Lack {
        why: "no card".into(),
        is_fault: false,
    });
    let [at_a, at_b] = agreed(greet(&mut sides, AUTO));
    assert_eq!((at_a.path, at_b.path), (OTHER, OTHER));
    assert_eq!((at_a.fell_back, at_b.fell_back), (Some(Path::Verbs), None));
    // And where the peer's release does not know one of ours.
    let mut sides = Fake::pair(false, &[Path::Verbs, OTHER]);
    sides[0].rungs.remove(0);
    let [at_a, at_b] = agreed(greet(&mut sides, AUTO));
    assert_eq!((at_a.path, at_b.path), (OTHER, OTHER));
}

#[test]
fn a_dialler_is_sent_to_the_unix_address_of_its_machine() {
    let mut sides = Fake::pair(false, &[Path::Verbs]);
    for side in &mut sides {
        side.machine = "boot";
    }
    let elsewhere = Outcome::Elsewhere("unix:@b".into());
    let both = greet(&mut sides, AUTO);
    assert_eq!(both, [Some(Ok(elsewhere.clone())), Some(Ok(elsewhere))]);
    // One that has been there comes back, and is not sent again.
    sides[0].no_shm = "nothing gets through";
    let at = agreed(greet(&mut sides, AUTO));
    assert!(at.iter().all(|agreed| agreed.path == Path::Verbs));
    assert_eq!(at[1].peer.no_shm, "nothing gets through");
}

#[test]
fn who_answers_by_another_name_is_not_who_was_dialled() {
    let mut sides = Fake::pair(false, &[]);
    sides[1].answers_as = Some("c");
    let [at_a, at_b] = greet(&mut sides, AUTO);
    for outcome in [at_a, at_b] {
        let refusal = outcome.expect("over").expect_err("another");
        assert_eq!(
            refusal.status.reason(),
            catalogue::PEER_UNKNOWN,
            "{refusal:?}"
        );
    }
}
