//! A connection breaks and another takes its place: what was not consumed is repeated, and nothing else is.

use super::*;

/// The peer's hello of the same epoch, having consumed `consumed` of our frames.
fn resuming(consumed: u64) -> Hello {
    Hello {
        expected: OURS,
        peer_epoch: 1,
        consumed,
        ..hello_of_theirs()
    }
}

fn push_three(channel: &mut Channel<Value>) {
    for ordinal in 0..3 {
        channel
            .push(KEY, point(1), ordinal, &mut Some(value(100)), None)
            .expect("credit");
    }
}

/// Kinds and ordinals of what goes out.
fn replay(channel: &mut Channel<Value>) -> Vec<(Kind, u32)> {
    let sent = out(channel);
    sent.iter()
        .map(|sent| (sent.kind(), sent.frame.ordinal()))
        .collect()
}

#[test]
fn frames_posted_and_not_consumed_go_again_before_those_never_posted() {
    let mut channel = up();
    push_three(&mut channel);
    // The intern and two pushes are posted; of these the peer consumed the intern and one push.
    assert_eq!(out_to(&mut channel, NOW, 3).len(), 3);
    channel.disconnected();
    assert!(out(&mut channel).is_empty());
    let ours = greet(&mut channel, resuming(2));
    assert_eq!((ours.expected, ours.peer_epoch), (THEIRS, 1));
    assert_eq!(
        replay(&mut channel),
        [(Kind::Intern, 0), (Kind::Push, 1), (Kind::Push, 2)]
    );
}

#[test]
fn a_repeated_value_is_whole() {
    let mut channel = up();
    channel
        .push(KEY, point(1), 7, &mut Some(value(100)), Some(ticket(3, 1)))
        .expect("asked for");
    let first = out(&mut channel);
    channel.disconnected();
    greet(&mut channel, resuming(0));
    let second = out(&mut channel);
    assert_eq!(first[1].message(), second[1].message());
    assert!(
        matches!(second[1].message(), Message::Push(push) if push.request == Some(ticket(3, 1)))
    );
}

#[test]
fn what_was_acknowledged_does_not_go_again() {
    let mut channel = up();
    push_three(&mut channel);
    out(&mut channel);
    hear(&mut channel, &Sent::of(&Message::Credit).crediting(3, 0)).expect("credit");
    channel.disconnected();
    greet(&mut channel, resuming(4));
    assert_eq!(replay(&mut channel), []);
    assert!(channel.is_at_rest());
}

#[test]
fn a_peer_cannot_take_back_what_it_has_acknowledged() {
    let mut channel = up();
    push_three(&mut channel);
    out(&mut channel);
    hear(&mut channel, &Sent::of(&Message::Credit).crediting(3, 0)).expect("credit");
    channel.disconnected();
    channel.connected();
    out(&mut channel);
    let theirs = Sent::of(&Message::Hello(resuming(2)));
    assert!(matches!(
        hear(&mut channel, &theirs),
        Err(Violation::Credit)
    ));
}

#[test]
fn what_we_consumed_is_told_in_the_hello() {
    let mut channel = up_knowing_key();
    for ordinal in 0..3 {
        let push = push_of(8, ordinal, None);
        hear(&mut channel, &push).expect("credit");
    }
    channel.disconnected();
    let ours = greet(&mut channel, resuming(0));
    assert_eq!(ours.consumed, 4, "the intern and three pushes");
}

/// The last frame of a connection may have been lost with the credit that rode on it.
#[test]
fn credit_that_may_have_been_lost_is_told_again() {
    let mut channel = up_knowing_key();
    let push = push_of(8, 0, None);
    hear(&mut channel, &push).expect("credit");
    channel.take_lines(NOW, 2);
    assert_eq!(kinds(&out(&mut channel)), [Kind::Credit], "told, and lost");
    channel.disconnected();
    greet(&mut channel, resuming(0));
    let sent = out(&mut channel);
    assert_eq!(kinds(&sent), [Kind::Credit]);
    assert_eq!(sent[0].frame.credit(), (2, 2));
    assert!(out(&mut channel).is_empty(), "once");
}

#[test]
fn lines_pushed_stay_spent_until_they_are_returned() {
    let mut channel = up();
    push_three(&mut channel);
    out(&mut channel);
    let open = channel.lines_open();
    channel.disconnected();
    assert_eq!(channel.lines_open(), open);
    greet(&mut channel, resuming(0));
    assert_eq!(channel.lines_open(), open);
}

#[test]
fn numbers_start_anew_on_both_sides() {
    let mut channel = up_knowing_key();
    let push = push_of(8, 0, None);
    hear(&mut channel, &push).expect("credit");
    channel.disconnected();
    greet(&mut channel, resuming(0));
    assert!(
        matches!(hear(&mut channel, &push), Err(Violation::UnknownKey)),
        "numbers of the former connection mean nothing"
    );
}

#[test]
fn a_request_is_repeated_but_not_one_whose_landing_went_with_its_queue_pair() {
    let mut channel = up();
    let plain = asked(&mut channel, None);
    let landed = asked(&mut channel, Some(landing(999)));
    out(&mut channel);
    channel.disconnected();
    let demand = channel.demand_at(landed).expect("it stands");
    assert!(
        demand.is_bare() && !demand.has_landing(),
        "it asks for another"
    );
    greet(&mut channel, resuming(1));
    let sent = out(&mut channel);
    assert_eq!(kinds(&sent), [Kind::Intern, Kind::Request]);
    assert!(matches!(sent[1].message(), Message::Request(request) if request.request == plain));
}

/// The answer to the first request may be on its way when the demand is asked again, with a landing of the new
/// connection: the peer takes that for a new request, and would serve it into a landing that is gone.
#[test]
fn what_was_asked_again_and_answered_is_taken_back() {
    for is_again in [false, true] {
        let mut channel = up_knowing_key();
        let request = asked(&mut channel, Some(landing(999)));
        out(&mut channel);
        if is_again {
            channel.disconnected();
            greet(&mut channel, resuming(2));
            let text = text_of(KEY);
            let intern = Sent::of(&Message::Intern(NUMBER, &text)).crediting(2, 0);
            assert!(matches!(
                hear(&mut channel, &intern),
                Ok(Heard::Intern { .. })
            ));
            channel.interned(NUMBER, KEY).expect("within the bound");
            channel.ask(request, 0, Some(landing(999)));
            assert_eq!(kinds(&out(&mut channel)), [Kind::Intern, Kind::Request]);
        }
        let answer = offer_of(999, ticket(4, 0), Some(request)).crediting(2, 0);
        assert!(hear_offer(&mut channel, &answer).is_ok_and(|(_, answered)| answered.is_some()));
        let taken_back = kinds(&out(&mut channel)).contains(&Kind::Cancel);
        assert_eq!(taken_back, is_again);
        // The answer to the other request finds no demand, whichever it is.
        let cancelled = Sent::of(&Message::Cancelled(request)).crediting(2, 0);
        assert!(matches!(hear(&mut channel, &cancelled), Ok(Heard::Nothing)));
        assert!(!channel.quiet(request), "its landing is home");
    }
}

#[test]
fn a_request_with_a_landing_of_the_new_connection_goes_out() {
    let mut channel = up();
    channel.disconnected();
    channel.connected();
    out(&mut channel);
    // The landing was opened on the new queue pair, before the peer's hello came.
    let request = asked(&mut channel, Some(landing(999)));
    let theirs = Sent::of(&Message::Hello(resuming(0)));
    hear(&mut channel, &theirs).expect("up");
    let sent = out(&mut channel);
    assert_eq!(kinds(&sent), [Kind::Intern, Kind::Request]);
    assert!(matches!(sent[1].message(), Message::Request(asked) if asked.request == request));
}

#[test]
fn a_cancelled_demand_whose_answer_came_is_gone_with_the_connection() {
    let mut channel = up();
    let request = asked(&mut channel, Some(landing(999)));
    let cancelled = Sent::of(&Message::Cancelled(request));
    hear(&mut channel, &cancelled).expect("an end");
    channel.disconnected();
    assert!(channel.demand_at(request).is_none());
}

#[test]
fn what_is_said_between_two_connections_goes_out_on_the_second() {
    let mut channel = up();
    channel.disconnected();
    channel.release(ticket(1, 0));
    channel.abort(
        StepId(4),
        &crate::ground::Status::new(crate::ground::Code::Aborted, "STEP_ABORTED", "x"),
    );
    greet(&mut channel, resuming(0));
    assert_eq!(kinds(&out(&mut channel)), [Kind::Release, Kind::Abort]);
}
