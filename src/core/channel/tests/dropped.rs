//! What was dropped: each side hears in the hello that the other has dropped values for it, unless it knows.

use super::*;

fn theirs(expected: Incarnation, peer_epoch: u64, epoch: u64) -> Sent {
    Sent::of(&Message::Hello(Hello {
        expected,
        epoch,
        peer_epoch,
        ..hello_of_theirs()
    }))
}

/// Whether the peer is said to have dropped something.
fn has_dropped(channel: &mut Channel<Value>, hello: &Sent) -> bool {
    match hear(channel, hello) {
        Ok(Heard::Up { has_dropped, .. }) => has_dropped,
        other => panic!("{other:?}"),
    }
}

/// What our next hello says of the peer.
fn said(channel: &mut Channel<Value>) -> (Incarnation, u64) {
    let sent = out(channel);
    let Message::Hello(hello) = sent[0].message() else {
        panic!("the first frame is a hello");
    };
    (hello.expected, hello.peer_epoch)
}

#[test]
fn a_peer_that_still_knows_an_epoch_we_gave_up_drops_what_is_of_it() {
    let mut channel = Channel::<Value>::new(settings(OURS));
    channel.connected();
    assert!(!has_dropped(
        &mut channel,
        &theirs(Incarnation::CURRENT, 0, 1)
    ));
    channel.lose();
    channel.connected();
    assert!(has_dropped(&mut channel, &theirs(OURS, 1, 1)));
    channel.disconnected();
    // It is known: the epochs of both sides go on.
    channel.connected();
    assert!(!has_dropped(&mut channel, &theirs(OURS, 2, 1)));
}

#[test]
fn a_peer_that_answers_or_never_knew_us_has_dropped_nothing() {
    let mut channel = Channel::<Value>::new(settings(OURS));
    channel.connected();
    assert!(!has_dropped(&mut channel, &theirs(OURS, 1, 4)));
    channel.lose();
    channel.connected();
    assert!(!has_dropped(
        &mut channel,
        &theirs(Incarnation::CURRENT, 0, 5)
    ));
    channel.lose();
    channel.connected();
    assert!(!has_dropped(
        &mut channel,
        &theirs(Incarnation(OURS.0 + 1), 1, 5)
    ));
}

#[test]
fn a_hello_says_that_values_were_dropped_until_the_peer_has_heard_it() {
    let mut channel = up();
    assert!(!channel.holds_values());
    channel
        .push(KEY, point(1), 0, &mut Some(value(8)), None)
        .expect("credit");
    assert!(channel.holds_values());
    channel.lose();
    assert!(!channel.holds_values());
    channel.mark_dropped(THEIRS);
    for _ in 0..2 {
        // It is not heard: the connection breaks.
        channel.connected();
        assert_eq!(said(&mut channel), (THEIRS, 0));
        channel.disconnected();
    }
    channel.connected();
    assert_eq!(said(&mut channel), (THEIRS, 0));
    assert!(!has_dropped(&mut channel, &theirs(OURS, 2, 1)));
    channel.disconnected();
    channel.connected();
    assert_eq!(said(&mut channel), (THEIRS, 1));
}

#[test]
fn a_frame_of_the_peer_shows_that_it_has_heard() {
    let mut channel = up();
    channel.lose();
    channel.mark_dropped(THEIRS);
    channel.connected();
    assert_eq!(said(&mut channel), (THEIRS, 0));
    assert!(!has_dropped(
        &mut channel,
        &theirs(Incarnation::CURRENT, 0, 1)
    ));
    let intern = Sent::of(&Message::Intern(Ticket::default(), "a;b;c"));
    hear(&mut channel, &intern).expect("it is well-formed");
    channel.disconnected();
    channel.connected();
    // What was consumed of it counts again.
    assert_eq!(said(&mut channel), (THEIRS, 1));
}

#[test]
fn another_life_is_not_told_of_its_predecessors_values() {
    let mut channel = up();
    channel.lose();
    channel.mark_dropped(THEIRS);
    channel.connected();
    let other = Incarnation(THEIRS.0 + 1);
    let hello = Hello {
        incarnation: other,
        ..hello_of_theirs()
    };
    assert!(!has_dropped(
        &mut channel,
        &Sent::of(&Message::Hello(hello))
    ));
    assert_eq!(said(&mut channel), (other, 1));
}

/// A peer that begins anew makes us drop what was on its way: our answer says so.
#[test]
fn what_is_dropped_because_the_peer_began_anew_is_told_in_the_answer() {
    let mut channel = up();
    channel
        .push(KEY, point(1), 0, &mut Some(value(8)), None)
        .expect("credit");
    channel.disconnected();
    channel.connected();
    assert!(!has_dropped(
        &mut channel,
        &theirs(Incarnation::CURRENT, 0, 2)
    ));
    assert_eq!(said(&mut channel), (THEIRS, 0));
}
