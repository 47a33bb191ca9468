//! The hello: both orders, what it must say, and what it ends.

use super::*;

#[test]
fn ours_goes_first_and_theirs_brings_the_channel_up() {
    let mut channel = Channel::<Value>::new(settings(OURS));
    assert!(out(&mut channel).is_empty(), "no connection, no frames");
    channel.connected();
    assert!(channel.must_transmit(NOW));
    let sent = out(&mut channel);
    let Message::Hello(hello) = sent[0].message() else {
        panic!("the first frame is a hello");
    };
    assert_eq!(
        hello,
        Hello {
            incarnation: OURS,
            expected: Incarnation::CURRENT,
            epoch: 1,
            peer_epoch: 0,
            consumed: 0,
            frame_window: FRAMES,
            line_window: LINES,
        }
    );
    assert!(!channel.is_up() && !channel.must_transmit(NOW));
    let theirs = Sent::of(&Message::Hello(hello_of_theirs()));
    assert!(matches!(
        hear(&mut channel, &theirs),
        Ok(Heard::Up {
            incarnation: THEIRS,
            former: None,
            has_dropped: false,
        })
    ));
    assert!(channel.is_up());
    assert_eq!(channel.session.peer(), Some(THEIRS));
}

/// The side that hears first answers: its hello says so, and what is due follows at once.
#[test]
fn theirs_comes_first_and_ours_answers() {
    let mut channel = Channel::<Value>::new(settings(OURS));
    channel.connected();
    let theirs = Sent::of(&Message::Hello(hello_of_theirs()));
    assert!(matches!(hear(&mut channel, &theirs), Ok(Heard::Up { .. })));
    assert!(channel.is_up() && channel.must_transmit(NOW));
    let credit = Sent::of(&Message::Credit);
    assert!(
        matches!(hear(&mut channel, &credit), Err(Violation::BeforeHello)),
        "they have not heard ours"
    );
    channel
        .push(KEY, point(1), 0, &mut Some(value(8)), None)
        .expect("credit");
    assert!(out_to(&mut channel, NOW, 0).is_empty());
    let sent = out(&mut channel);
    assert_eq!(kinds(&sent), [Kind::Hello, Kind::Intern, Kind::Push]);
    let Message::Hello(ours) = sent[0].message() else {
        panic!("a hello");
    };
    assert_eq!((ours.expected, ours.peer_epoch), (THEIRS, 1));
    assert!(hear(&mut channel, &credit).is_ok());
}

#[test]
fn a_full_fabric_refuses_the_hello_and_it_goes_later() {
    let mut channel = Channel::<Value>::new(settings(OURS));
    channel.connected();
    assert!(out_to(&mut channel, NOW, 0).is_empty());
    assert!(channel.must_transmit(NOW), "the hello is still due");
    assert_eq!(kinds(&out(&mut channel)), [Kind::Hello]);
}

#[test]
fn nothing_but_a_hello_may_come_first() {
    let credit = Sent::of(&Message::Credit);
    let mut channel = Channel::<Value>::new(settings(OURS));
    assert!(matches!(
        hear(&mut channel, &credit),
        Err(Violation::BeforeHello)
    ));
    channel.connected();
    assert!(matches!(
        hear(&mut channel, &credit),
        Err(Violation::BeforeHello)
    ));
    out(&mut channel);
    assert!(matches!(
        hear(&mut channel, &credit),
        Err(Violation::BeforeHello)
    ));
}

#[test]
fn a_second_hello_is_a_violation() {
    let theirs = Sent::of(&Message::Hello(hello_of_theirs()));
    assert!(matches!(
        hear(&mut up(), &theirs),
        Err(Violation::SecondHello)
    ));
}

#[test]
fn windows_that_nothing_fits_through_are_violations() {
    for (frame_window, line_window) in [
        (0, LINES),
        (FRAMES, 0),
        (FRAMES, 1 << 15),
        (FRAMES, u16::MAX),
    ] {
        let mut channel = Channel::<Value>::new(settings(OURS));
        channel.connected();
        out(&mut channel);
        let theirs = Sent::of(&Message::Hello(Hello {
            frame_window,
            line_window,
            ..hello_of_theirs()
        }));
        assert!(
            matches!(hear(&mut channel, &theirs), Err(Violation::Window)),
            "{frame_window} frames, {line_window} lines"
        );
    }
}

#[test]
fn bytes_that_are_no_message_are_a_violation() {
    let mut noise = Sent::of(&Message::Credit);
    noise.frame.words[0] = u64::MAX;
    let heard = hear(&mut up(), &noise);
    assert!(matches!(heard, Err(Violation::Malformed(_))));
}

#[test]
fn a_peer_that_restarted_ends_what_was_of_its_former_life() {
    let mut channel = up_knowing_key();
    channel
        .push(KEY, point(1), 0, &mut Some(value(8)), None)
        .expect("credit");
    channel
        .push(KEY, point(1), 1, &mut Some(readable(999)), None)
        .expect("credit");
    asked(&mut channel, None);
    out(&mut channel);
    channel.disconnected();
    channel.connected();
    let hello = out(&mut channel);
    let Message::Hello(ours) = hello[0].message() else {
        panic!("a hello");
    };
    assert_eq!(
        (ours.expected, ours.peer_epoch, ours.consumed),
        (THEIRS, 1, 1)
    );
    let reborn = Incarnation(0xbb);
    let theirs = Sent::of(&Message::Hello(Hello {
        incarnation: reborn,
        ..hello_of_theirs()
    }));
    assert!(matches!(
        hear(&mut channel, &theirs),
        Ok(Heard::Up {
            former: Some(THEIRS),
            ..
        })
    ));
    assert!(channel.is_at_rest(), "nothing of the former life is owed");
    assert_eq!(channel.lines_open(), u32::from(LINES));
    assert!(out(&mut channel).is_empty());
    let late = push_of(8, 0, None);
    assert!(matches!(
        hear(&mut channel, &late),
        Err(Violation::UnknownKey)
    ));
}

/// A process that comes back hears what its peer thinks of the one before it: that is no debt of this one.
#[test]
fn a_view_of_our_predecessor_is_not_a_view_of_us() {
    let mut channel = Channel::<Value>::new(settings(OURS));
    greet(
        &mut channel,
        Hello {
            expected: Incarnation(0xaa),
            peer_epoch: 1,
            consumed: 500,
            ..hello_of_theirs()
        },
    );
}

#[test]
fn a_peer_that_has_consumed_more_than_was_sent_lies() {
    let mut channel = up();
    channel
        .push(KEY, point(1), 0, &mut Some(value(8)), None)
        .expect("credit");
    assert_eq!(kinds(&out(&mut channel)), [Kind::Intern, Kind::Push]);
    channel.disconnected();
    channel.connected();
    out(&mut channel);
    let theirs = Sent::of(&Message::Hello(Hello {
        expected: OURS,
        peer_epoch: 1,
        consumed: 3,
        ..hello_of_theirs()
    }));
    assert!(matches!(
        hear(&mut channel, &theirs),
        Err(Violation::Credit)
    ));
}

/// One side gave the other up, the other did not: both must come to think of the same epochs, or the next
/// reconnect ends what lives.
#[test]
fn after_a_loss_on_one_side_the_next_reconnect_resumes() {
    let mut ours = Channel::<Value>::new(settings(OURS));
    let mut theirs = Channel::<Value>::new(settings(THEIRS));
    meet(&mut ours, &mut theirs);
    talk(&mut ours, &mut theirs);
    ours.lose();
    theirs.disconnected();
    assert_eq!(
        meet(&mut ours, &mut theirs),
        (false, false),
        "nothing of the lost epoch goes on"
    );
    talk(&mut ours, &mut theirs);
    ours.disconnected();
    theirs.disconnected();
    assert_eq!(
        meet(&mut ours, &mut theirs),
        (true, true),
        "what was not lost goes on"
    );
    talk(&mut ours, &mut theirs);
}

/// Connects two channels. Whether each resumed.
fn meet(ours: &mut Channel<Value>, theirs: &mut Channel<Value>) -> (bool, bool) {
    ours.connected();
    theirs.connected();
    let (from_ours, from_theirs) = (out(ours), out(theirs));
    let resumed = |channel: &mut Channel<Value>, hello| {
        let knew = channel.session.peer().is_some();
        match hear(channel, hello) {
            Ok(Heard::Up { former, .. }) => knew && former.is_none(),
            other => panic!("a hello brings a channel up, not {other:?}"),
        }
    };
    (
        resumed(ours, &from_theirs[0]),
        resumed(theirs, &from_ours[0]),
    )
}

/// A value each way, consumed and acknowledged.
fn talk(ours: &mut Channel<Value>, theirs: &mut Channel<Value>) {
    for _ in 0..2 {
        say(ours, theirs);
        say(theirs, ours);
    }
}

fn say(from: &mut Channel<Value>, to: &mut Channel<Value>) {
    from.push(KEY, point(1), 0, &mut Some(value(8)), None)
        .expect("credit");
    for sent in out(from) {
        if sent.kind() == Kind::Push {
            let push = hear_push(to, &sent).expect("an honest peer");
            to.take_lines(NOW, push.lines);
            continue;
        }
        match hear(to, &sent).expect("an honest peer") {
            Heard::Intern { number, .. } => {
                to.interned(number, KEY).expect("within the bound");
            }
            other => panic!("not expected: {other:?}"),
        }
    }
}
