//! Credit: frames in flight and lines that wait, told as cumulative counters in every frame.

use super::*;
use crate::channel::NoPush;

const PUSH_LINES: u32 = 2;

/// Pushes one value of one line of bytes: with its dimension it costs two lines.
fn push_one(channel: &mut Channel<Value>, ordinal: u32) -> Result<(), NoPush> {
    channel.push(KEY, point(1), ordinal, &mut Some(value(32)), None)
}

fn credit(frames: u16, lines: u16) -> Sent {
    Sent::of(&Message::Credit).crediting(frames, lines)
}

#[test]
fn frames_beyond_the_window_wait_for_acknowledgement() {
    let mut channel = up();
    for ordinal in 0..12 {
        push_one(&mut channel, ordinal).expect("24 lines of 64");
    }
    assert_eq!(
        out(&mut channel).len(),
        usize::from(FRAMES),
        "one of them the intern"
    );
    assert!(out(&mut channel).is_empty(), "the window is full");
    assert!(matches!(
        hear(&mut channel, &credit(3, 0)),
        Ok(Heard::Nothing)
    ));
    assert_eq!(out(&mut channel).len(), 3);
    assert!(
        matches!(hear(&mut channel, &credit(3, 0)), Ok(Heard::Nothing)),
        "the same again says nothing new"
    );
    assert!(out(&mut channel).is_empty());
}

#[test]
fn an_acknowledgement_of_what_was_not_sent_is_a_violation() {
    let mut channel = up();
    push_one(&mut channel, 0).expect("credit");
    out(&mut channel);
    let mut other = up();
    push_one(&mut other, 0).expect("credit");
    out(&mut other);
    assert!(
        hear(&mut channel, &credit(2, 0)).is_ok(),
        "the intern and the push"
    );
    assert!(matches!(
        hear(&mut other, &credit(3, 0)),
        Err(Violation::Credit)
    ));
    // One less than before is, modulo 2¹⁶, far more.
    assert!(matches!(
        hear(&mut channel, &credit(1, 0)),
        Err(Violation::Credit)
    ));
}

#[test]
fn a_push_without_line_credit_comes_back() {
    let mut channel = up();
    let room = u32::from(LINES) / PUSH_LINES;
    for ordinal in 0..room {
        push_one(&mut channel, ordinal).expect("credit");
    }
    assert_eq!(channel.lines_open(), 0);
    let mut kept = Some(value(32));
    let refused = channel.push(KEY, point(1), room, &mut kept, None);
    assert_eq!(refused, Err(NoPush::NoCredit));
    assert_eq!(kept, Some(value(32)), "what is refused is where it was");
    assert_eq!(channel.counters().no_credit, 1);
    // Rule 1: a requested value needs none.
    channel
        .push(
            KEY,
            point(1),
            room,
            &mut Some(value(32)),
            Some(ticket(1, 1)),
        )
        .expect("it was asked for");
    while !out(&mut channel).is_empty() {
        let sent = channel.counters().frames_sent as u16;
        hear(&mut channel, &credit(sent, 0)).expect("they are consumed");
    }
    assert_eq!(channel.lines_open(), 0, "consumed is not taken");
    let sent = channel.counters().frames_sent as u16;
    hear(&mut channel, &credit(sent, 2)).expect("one is taken");
    push_one(&mut channel, room + 1).expect("the credit is back");
}

#[test]
fn more_lines_returned_than_pushed_is_a_violation() {
    let mut channel = up();
    push_one(&mut channel, 0).expect("credit");
    out(&mut channel);
    assert!(matches!(
        hear(&mut channel, &credit(2, 3)),
        Err(Violation::Credit)
    ));
}

#[test]
fn without_a_connection_a_push_comes_back() {
    let mut channel = Channel::new(settings(OURS));
    assert!(matches!(push_one(&mut channel, 0), Err(NoPush::NotUp)));
    channel.connected();
    assert!(matches!(push_one(&mut channel, 0), Err(NoPush::NotUp)));
    assert_eq!(channel.lines_open(), 0);
}

#[test]
fn more_offers_than_places_come_back_and_cost_nothing() {
    let mut channel = up();
    for ordinal in 0..16 {
        channel
            .push(KEY, point(1), ordinal, &mut Some(value(999)), None)
            .expect("a place");
    }
    let open = channel.lines_open();
    assert!(!channel.takes_push());
    let refused = channel.push(KEY, point(1), 16, &mut Some(value(999)), None);
    assert!(matches!(refused, Err(NoPush::NoOffer)));
    assert_eq!(
        channel.lines_open(),
        open,
        "what was not taken costs nothing"
    );
}

#[test]
fn unrequested_values_beyond_our_window_are_a_violation() {
    let mut channel = up_knowing_key();
    for ordinal in 0..u32::from(LINES) / PUSH_LINES {
        let push = push_of(32, ordinal, None);
        let heard = hear_push(&mut channel, &push).expect("it was within the credit");
        assert_eq!((heard.lines, heard.ordinal), (PUSH_LINES, ordinal));
    }
    assert!(channel.is_pressed());
    let request = asked(&mut channel, None);
    let answer = push_of(32, 90, Some(request));
    let heard = hear_push(&mut channel, &answer).expect("a requested value needs no credit");
    assert_eq!(heard.lines, 0);
    let beyond = push_of(32, 91, None);
    assert!(matches!(
        hear(&mut channel, &beyond),
        Err(Violation::LineCredit)
    ));
}

#[test]
fn a_taken_value_makes_room_for_another() {
    let mut channel = up_knowing_key();
    for ordinal in 0..10 * u32::from(LINES) {
        let push = push_of(32, ordinal, None);
        let heard = hear_push(&mut channel, &push).expect("each is taken before the next comes");
        channel.take_lines(NOW, heard.lines);
    }
    assert!(!channel.is_pressed());
}

#[test]
fn credit_goes_alone_when_a_quarter_of_the_window_is_untold() {
    let mut channel = up_knowing_key();
    assert!(out(&mut channel).is_empty(), "one frame of eight can wait");
    assert_eq!(channel.poll_timeout(), NOW + 1000);
    let push = push_of(32, 0, None);
    hear(&mut channel, &push).expect("credit");
    assert!(channel.must_transmit(NOW));
    let sent = out(&mut channel);
    assert_eq!(kinds(&sent), [Kind::Credit]);
    assert_eq!(sent[0].frame.credit(), (2, 0), "two consumed, none taken");
    assert_eq!(channel.poll_timeout(), Nanos::NEVER);
    assert!(out(&mut channel).is_empty());
}

#[test]
fn credit_goes_alone_when_it_waited_long_enough() {
    let mut channel = up_knowing_key();
    let late = NOW + 1000;
    assert!(out_to(&mut channel, Nanos(late.0 - 1), 9).is_empty());
    assert_eq!(kinds(&out_to(&mut channel, late, 9)), [Kind::Credit]);
}

#[test]
fn credit_rides_on_any_frame_and_then_does_not_go_alone() {
    let mut channel = up_knowing_key();
    let push = push_of(32, 0, None);
    hear(&mut channel, &push).expect("credit");
    channel.take_lines(NOW, PUSH_LINES);
    channel.release(ticket(1, 0));
    let sent = out(&mut channel);
    assert_eq!(kinds(&sent), [Kind::Release]);
    assert_eq!(sent[0].frame.credit(), (2, 2));
}

/// If credit frames cost credit, two full windows would wait for each other for ever.
#[test]
fn credit_needs_no_credit() {
    let mut channel = up_knowing_key();
    for ordinal in 0..12 {
        push_one(&mut channel, ordinal).expect("credit");
    }
    assert_eq!(out(&mut channel).len(), usize::from(FRAMES));
    for ordinal in 0..4 {
        let push = push_of(32, ordinal, None);
        hear(&mut channel, &push).expect("credit");
    }
    assert_eq!(
        kinds(&out(&mut channel)),
        [Kind::Credit],
        "though our window is full"
    );
    let consumed = channel.counters().frames_received;
    hear(&mut channel, &credit(0, 0)).expect("nothing new");
    assert_eq!(
        channel.counters().frames_received,
        consumed,
        "a credit frame is not counted"
    );
}

#[test]
fn a_full_fabric_keeps_the_rest_in_order() {
    let mut channel = up();
    for ordinal in 0..4 {
        push_one(&mut channel, ordinal).expect("credit");
    }
    let mut sent = out_to(&mut channel, NOW, 1);
    assert_eq!(kinds(&sent), [Kind::Intern]);
    sent.extend(out_to(&mut channel, NOW, 2));
    sent.extend(out(&mut channel));
    let ordinals: Vec<_> = sent[1..].iter().map(|sent| sent.frame.ordinal()).collect();
    assert_eq!(ordinals, [0, 1, 2, 3]);
}

/// Both counters are sixteen bits wide: three rounds of each.
#[test]
fn the_counters_wrap() {
    let mut ours = up();
    let mut theirs = up_with(settings(THEIRS));
    let (mut heard, mut ordinal) = (0_u32, 0);
    while heard < 200_000 {
        while push_one(&mut ours, ordinal).is_ok() {
            ordinal += 1;
        }
        for sent in out(&mut ours) {
            if sent.kind() == Kind::Push {
                let push = hear_push(&mut theirs, &sent).expect("an honest peer");
                assert_eq!(push.ordinal, heard);
                heard += 1;
                let lines = push.lines;
                theirs.take_lines(NOW, lines);
                continue;
            }
            match hear(&mut theirs, &sent).expect("an honest peer") {
                Heard::Intern { number, .. } => {
                    theirs.interned(number, KEY).expect("within the bound");
                }
                other => panic!("not expected: {other:?}"),
            }
        }
        for sent in out(&mut theirs) {
            hear(&mut ours, &sent).expect("an honest peer");
        }
    }
}
