//! Leases that are sent back: what is said of them, what is believed, and until when.

use super::*;

const OFFER: Ticket = ticket(7, 3);

/// A value that is a lease of the peer's offer.
fn lent(len: usize) -> Value {
    Value {
        lent: Some(OFFER),
        ..value(len)
    }
}

/// The peer sends `len` bytes back that were on offer as `offer`.
fn back(len: usize, offer: Ticket) -> Sent {
    Sent::of(&Message::Offer(Offer {
        subject: subject(0),
        meta: bytes_meta(len),
        is_dead: false,
        request: None,
        offer: ticket(1, 1),
        size: len as u64,
        region: None,
        lent: Some(offer),
        stamp: 0,
    }))
}

fn heard_back(
    channel: &mut Channel<Value>,
    len: usize,
    offer: Ticket,
) -> Option<super::super::ReturnedLease> {
    hear_offer(channel, &back(len, offer))
        .expect("an offer")
        .0
        .lent
}

#[test]
fn a_lease_goes_back_by_the_name_of_the_peers_offer() {
    let mut channel = up();
    channel
        .push(KEY, point(1), 0, &mut Some(lent(999)), None)
        .expect("credit");
    let sent = out(&mut channel);
    let Message::Offer(offer) = sent[1].message() else {
        panic!("an offer");
    };
    assert_eq!(
        (offer.lent, offer.region, offer.size),
        (Some(OFFER), None, 999)
    );
    assert_eq!(channel.counters().sent_back, 1);
    // It is given back like any offer; the value kept the lease until then.
    let release = Sent::of(&Message::Release(offer.offer, &[]));
    assert!(matches!(
        hear(&mut channel, &release),
        Ok(Heard::Released(1))
    ));
}

#[test]
fn what_comes_back_is_the_value_on_offer_until_it_is_released() {
    let mut channel = up_knowing_key();
    let offer = offered(&mut channel, readable(999));
    let heard = heard_back(&mut channel, 999, offer).expect("it is lent");
    assert_eq!(heard.offer, offer);
    assert_eq!(channel.lent(heard), Some(&readable(999)));
    let release = Sent::of(&Message::Release(offer, &[]));
    hear(&mut channel, &release).expect("a release");
    assert_eq!(channel.lent(heard), None);
    // Another value in the same place, and in the end under the same ticket: another region says so.
    let other = Value {
        region: readable(999).region.map(|region| Region {
            generation: 9,
            ..region
        }),
        ..value(999)
    };
    let mut lines = 1_u16;
    loop {
        let next = offered(&mut channel, other.clone());
        if next == offer {
            break;
        }
        lines = lines.wrapping_add(1);
        let frames = channel.counters().frames_sent as u16;
        let release = Sent::of(&Message::Release(next, &[])).crediting(frames, lines);
        hear(&mut channel, &release).expect("a release");
    }
    assert_eq!(channel.lent(heard), None);
}

#[test]
fn an_offer_that_is_gone_gives_no_bytes_and_no_offence() {
    let mut channel = up_knowing_key();
    let offer = offered(&mut channel, readable(999));
    let past = ticket(offer.index, offer.generation + 1);
    for stale in [past, ticket(4000, 0)] {
        assert_eq!(heard_back(&mut channel, 999, stale), None);
    }
    assert_eq!(channel.counters().stale, 2);
}

#[test]
fn what_was_not_lent_is_not_sent_back() {
    let mut channel = up_knowing_key();
    let hidden = offered(&mut channel, value(999));
    let shown = offered(&mut channel, readable(999));
    for (offer, len) in [(hidden, 999), (shown, 998), (shown, 1000)] {
        let heard = hear(&mut channel, &back(len, offer)).map(drop);
        assert_eq!(heard, Err(Violation::Lease), "{offer:?} of {len} bytes");
    }
    // A later life of the peer holds no lease of what the first one was offered.
    channel.lose();
    let other = Hello {
        incarnation: Incarnation(99),
        ..hello_of_theirs()
    };
    greet(&mut channel, other);
    interned(&mut channel, NUMBER, KEY);
    let heard = hear(&mut channel, &back(999, shown)).map(drop);
    assert_eq!(heard, Err(Violation::Lease));
}

/// A recall has told the peer under which epoch its lease goes on: it may send it back.
#[test]
fn what_an_ended_epoch_left_may_come_back() {
    let mut channel = up_knowing_key();
    let offer = offered(&mut channel, readable(999));
    channel.lose();
    greet(&mut channel, hello_of_theirs());
    interned(&mut channel, NUMBER, KEY);
    assert!(heard_back(&mut channel, 999, offer).is_some());
}

#[test]
fn the_end_of_a_step_leaves_it_and_the_end_of_an_epoch_does_not() {
    let mut channel = up();
    offered(&mut channel, lent(999));
    offered(&mut channel, value(999));
    channel.drop_offers(point(1).step);
    assert_eq!(channel.load()[1], 1, "the other one had to be asked for");
    channel.lose();
    assert_eq!(channel.load()[1], 0);
}
