//! Bounds: what a peer can make a channel keep, or take, ends somewhere, and then the peer is refused.

use super::*;
use crate::channel::WriteEnd;
use crate::ground::limits::{SECOND_ANSWERS, STREAM_FRAMES};

const NUMBER: Ticket = ticket(0, 1);
const KEY: KeyId = KeyId(3);

const fn subject(ordinal: u32) -> Subject {
    Subject {
        key: NUMBER,
        point: point(1),
        ordinal,
    }
}

/// A value of the peer for a request of ours.
fn answer(request: Ticket, ordinal: u32) -> Sent {
    Sent::of(&Message::Push(Push {
        subject: subject(ordinal),
        meta: bytes_meta(4),
        is_dead: false,
        request: Some(request),
        data: &[0; 4],
        stamp: 0,
    }))
}

/// An offer of the peer that answers a request of ours.
fn offered(request: Ticket, ordinal: u32) -> Sent {
    Sent::of(&Message::Offer(Offer {
        subject: subject(ordinal),
        meta: bytes_meta(4096),
        is_dead: false,
        request: Some(request),
        offer: ticket(ordinal, 1),
        size: 4096,
        region: None,
        lent: None,
        stamp: 0,
    }))
}

#[test]
fn a_peer_that_acknowledges_nothing_and_is_answered_is_refused() {
    let mut channel = up();
    let violation = (0..2 * STREAM_FRAMES as u32).find_map(|cancel| {
        let cancel = Sent::of(&Message::Cancel(ticket(7, cancel)));
        match hear(&mut channel, &cancel) {
            Ok(Heard::Cancel { request, .. }) => channel.answer_cancel(request),
            Ok(other) => panic!("{other:?}"),
            Err(violation) => return Some(violation),
        }
        None
    });
    assert!(
        matches!(violation, Some(Violation::Unacknowledged)),
        "{violation:?}"
    );
    let [_, _, _, kept] = channel.load();
    assert!(kept <= STREAM_FRAMES + 1, "{kept} frames wait");
}

#[test]
fn no_more_values_are_taken_for_requests_that_are_over_than_may_have_crossed() {
    for of in [answer, offered] {
        let mut channel = up();
        interned(&mut channel, NUMBER, KEY);
        let refused = (0..2 * SECOND_ANSWERS).find_map(|taken| {
            let sent = of(ticket(3, 9), taken);
            let heard = match sent.kind() {
                Kind::Push => hear_push(&mut channel, &sent).map(|push| {
                    assert_eq!((push.lines, push.demand), (0, None));
                }),
                _ => hear_offer(&mut channel, &sent).map(|(heard, answered)| {
                    assert_eq!((heard.offer.lines, answered), (0, None));
                }),
            };
            heard.err().map(|violation| (taken, violation))
        });
        assert!(
            matches!(refused, Some((SECOND_ANSWERS, Violation::Unasked))),
            "{refused:?}"
        );
    }
}

#[test]
fn a_request_that_is_repeated_may_be_answered_each_time() {
    let mut channel = up();
    interned(&mut channel, NUMBER, KEY);
    let demand = Demand::new(1, KEY, point(1), 0).landing_for(bytes_meta(4));
    let request = channel.demand(demand).expect("room");
    for _ in 0..3 {
        channel.ask(request, 0, Some((Region::default(), bytes_meta(4))));
        channel.disconnected();
        greet(&mut channel, hello_of_theirs());
        interned(&mut channel, NUMBER, KEY);
    }
    channel.ask(request, 0, None);
    for taken in 0..1 + 3 + SECOND_ANSWERS {
        let sent = answer(request, taken);
        let push = hear_push(&mut channel, &sent).expect("within the bound");
        assert_eq!(push.demand.is_some(), taken == 0, "it ends once");
    }
    let one_more = answer(request, 0);
    let refused = hear_push(&mut channel, &one_more);
    assert!(matches!(refused, Err(Violation::Unasked)), "{refused:?}");
}

#[test]
fn a_value_for_whose_offer_no_place_is_left_is_told_lost() {
    let mut channel = up();
    let request = ticket(0, 1);
    let mut writing = || channel.begin_write(request, KEY, point(5), 0, false);
    let (done, failed) = (writing().expect("room"), writing().expect("room"));
    while channel
        .push(KEY, point(1), 0, &mut Some(value(4096)), Some(request))
        .is_ok()
    {}
    assert_eq!(channel.wrote(done, WriteEnd::Done, value(4096)), None);
    assert_eq!(
        channel.wrote(failed, WriteEnd::Failed, value(4096)),
        Some(StepId(5))
    );
}
