//! A side that is about to leave: what it asks, what is answered, and what it waits for no more.

use super::*;

/// The peer says that, and that it has heard all that was said in an epoch which began after `before` frames.
fn says<'a>(
    channel: &mut Channel<Value>,
    before: u64,
    message: &Message<'a>,
) -> Result<(), Violation> {
    let frames = (channel.counters().frames_sent - before) as u16;
    let sent = Sent::of(message).crediting(frames, 0);
    hear(channel, &sent).map(drop)
}

fn holds(channel: &mut Channel<Value>, offer: Ticket) -> Result<(), Violation> {
    says(channel, 0, &Message::Held(offer, &[]))
}

fn of_a_device(len: usize) -> Value {
    let region = readable(len).region.map(|region| Region {
        kind: crate::ground::MemoryKind::Cuda,
        ..region
    });
    Value {
        region,
        ..value(len)
    }
}

#[test]
fn what_the_peer_holds_is_waited_for_no_more() {
    let mut channel = up();
    let tickets = [(); 3].map(|()| offered(&mut channel, readable(999)));
    channel.drain();
    assert_eq!(kinds(&out(&mut channel)), [Kind::Drain]);
    let second = tickets[1].packed().to_le_bytes();
    let both = Message::Held(tickets[0], &second);
    // Said twice, it counts once.
    for held in [both, Message::Held(tickets[1], &[])] {
        says(&mut channel, 0, &held).expect("they are on offer");
        assert!(!channel.is_at_rest(), "one of them is not held");
    }
    holds(&mut channel, tickets[2]).expect("it is on offer");
    assert!(channel.is_at_rest());
    // They are kept all the same, until they come home.
    assert_eq!(channel.load()[1], 3);
    says(&mut channel, 0, &Message::Release(tickets[1], &[])).expect("a release");
    assert_eq!((channel.load()[1], channel.is_at_rest()), (2, true));
    let next = offered(&mut channel, readable(999));
    says(&mut channel, 0, &Message::Credit).expect("a credit");
    assert!(!channel.is_at_rest(), "it is not held yet");
    holds(&mut channel, next).expect("it is on offer");
    assert!(channel.is_at_rest());
}

#[test]
fn a_drain_is_told_once_an_epoch_and_only_where_values_are_on_offer() {
    let mut channel = up();
    channel.drain();
    assert_eq!(kinds(&out(&mut channel)), []);
    let push = |channel: &mut Channel<Value>| {
        let mut value = Some(readable(999));
        channel
            .push(KEY, point(1), 0, &mut value, None)
            .expect("credit");
        kinds(&out(channel))
    };
    assert_eq!(push(&mut channel), [Kind::Drain, Kind::Intern, Kind::Offer]);
    assert_eq!(push(&mut channel), [Kind::Offer]);
    channel.lose();
    greet(&mut channel, hello_of_theirs());
    let told = push(&mut channel);
    assert_eq!(
        told.iter().filter(|kind| **kind == Kind::Drain).count(),
        1,
        "{told:?}"
    );
}

#[test]
fn a_drain_that_began_without_a_connection_is_told_on_the_next() {
    let mut channel = up();
    offered(&mut channel, readable(999));
    channel.disconnected();
    channel.drain();
    let ours = Hello {
        peer_epoch: channel.epoch(),
        expected: OURS,
        consumed: u64::from(channel.counters().frames_sent as u16),
        ..hello_of_theirs()
    };
    greet(&mut channel, ours);
    let told = kinds(&out(&mut channel));
    assert_eq!(
        told.iter().filter(|kind| **kind == Kind::Drain).count(),
        1,
        "{told:?}"
    );
}

#[test]
fn what_is_held_outlives_no_epoch() {
    let mut channel = up();
    let ticket = offered(&mut channel, readable(999));
    holds(&mut channel, ticket).expect("it is on offer");
    channel.lose();
    assert!(channel.is_at_rest(), "it is of an ended epoch");
    let before = channel.counters().frames_sent;
    greet(&mut channel, hello_of_theirs());
    out(&mut channel);
    let next = offered(&mut channel, readable(999));
    for held in [ticket, next] {
        assert!(!channel.is_at_rest());
        says(&mut channel, before, &Message::Held(held, &[])).expect("it is there");
    }
    assert!(channel.is_at_rest());
}

#[test]
fn claims_of_what_cannot_be_held_are_stale_or_a_violation() {
    let mut channel = up();
    let copied = offered(&mut channel, value(999));
    let of_a_device = offered(&mut channel, of_a_device(999));
    holds(&mut channel, ticket(500, 1)).expect("it may have been");
    assert_eq!(channel.counters().stale, 1);
    // Its memory may be another's, who hears that we end.
    holds(&mut channel, of_a_device).expect("it is on offer");
    says(&mut channel, 0, &Message::Release(copied, &[])).expect("a release");
    assert!(!channel.is_at_rest());
    let copied = offered(&mut channel, value(999));
    assert_eq!(holds(&mut channel, copied), Err(Violation::Lease));
}

#[test]
fn who_hears_a_drain_tells_what_it_holds_then_and_later() {
    let mut channel = up();
    assert!(!channel.hold(ticket(1, 1)), "the peer stays");
    let drain = Sent::of(&Message::Drain);
    assert!(matches!(hear(&mut channel, &drain), Ok(Heard::Drain)));
    for index in 0..6 {
        assert!(channel.hold(ticket(index, 1)));
    }
    let sent = out(&mut channel);
    assert_eq!(kinds(&sent), [Kind::Held, Kind::Held], "five in a frame");
    // Asked again, it has answered.
    assert!(matches!(hear(&mut channel, &drain), Ok(Heard::Nothing)));
    channel.lose();
    greet(&mut channel, hello_of_theirs());
    assert!(!channel.hold(ticket(1, 1)), "another epoch asks anew");
}
