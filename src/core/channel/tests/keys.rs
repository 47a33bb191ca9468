//! Keys' numbers on a connection: given at first use, bounded, with generations.

use super::*;

/// Pushes a value of `key` and acknowledges what went out; what went out.
fn use_key(channel: &mut Channel<Value>, key: u32) -> Vec<Sent> {
    channel
        .push(
            KeyId(key),
            point(1),
            0,
            &mut Some(value(8)),
            Some(ticket(0, 0)),
        )
        .expect("asked for");
    let sent = out(channel);
    let all = channel.counters().frames_sent as u16;
    hear(channel, &Sent::of(&Message::Credit).crediting(all, 0)).expect("consumed");
    sent
}

#[test]
fn a_text_crosses_once() {
    let mut channel = up();
    let first = use_key(&mut channel, 9);
    assert_eq!(kinds(&first), [Kind::Intern, Kind::Push]);
    assert_eq!(first[0].message(), Message::Intern(ticket(0, 0), "a;b;9"));
    assert_eq!(Ticket::unpack(first[1].frame.slot()), ticket(0, 0));
    assert_eq!(kinds(&use_key(&mut channel, 9)), [Kind::Push]);
}

#[test]
fn a_number_that_was_not_used_lately_is_given_anew_with_another_generation() {
    let mut channel = up();
    for key in 0..4 {
        use_key(&mut channel, key);
    }
    let fifth = use_key(&mut channel, 4);
    assert_eq!(
        fifth[0].message(),
        Message::Intern(ticket(0, 1), "a;b;4"),
        "all were used: the hand goes round once"
    );
    assert_eq!(Ticket::unpack(fifth[1].frame.slot()), ticket(0, 1));
    assert_eq!(
        kinds(&use_key(&mut channel, 1)),
        [Kind::Push],
        "key 1 is used since the hand came by"
    );
    let again = use_key(&mut channel, 0);
    assert_eq!(
        again[0].message(),
        Message::Intern(ticket(2, 1), "a;b;0"),
        "so key 2 is the next"
    );
    assert_eq!(kinds(&use_key(&mut channel, 1)), [Kind::Push]);
}

#[test]
fn an_intern_that_finds_the_fabric_full_goes_before_its_first_use() {
    let mut channel = up();
    channel
        .push(KEY, point(1), 0, &mut Some(value(8)), None)
        .expect("credit");
    assert!(out_to(&mut channel, NOW, 0).is_empty());
    assert_eq!(kinds(&out_to(&mut channel, NOW, 1)), [Kind::Intern]);
    assert_eq!(kinds(&out(&mut channel)), [Kind::Push]);
}

#[test]
fn a_number_that_was_not_given_is_a_violation() {
    let mut channel = up_knowing_key();
    for (sent, what) in [
        (push_of(8, 0, None), "a push"),
        (offer_of(999, ticket(0, 0), None), "an offer"),
        (request_of(ticket(0, 0), None, None), "a request"),
    ] {
        let mut unknown = sent.clone();
        unknown.frame.set_slot(ticket(1, 0).packed());
        assert!(
            matches!(hear(&mut channel, &unknown), Err(Violation::UnknownKey)),
            "{what}"
        );
        let mut stale = sent.clone();
        stale.frame.set_slot(ticket(0, 1).packed());
        assert!(
            matches!(hear(&mut channel, &stale), Err(Violation::UnknownKey)),
            "{what}"
        );
        assert!(hear(&mut channel, &sent).is_ok(), "{what}");
    }
}

#[test]
fn a_number_given_to_another_key_means_the_other() {
    let mut channel = up_knowing_key();
    let other = KeyId(8);
    let former = channel
        .interned(ticket(0, 1), other)
        .expect("within the bound");
    assert_eq!(former, Some(KEY));
    let old = push_of(8, 0, None);
    assert!(matches!(
        hear(&mut channel, &old),
        Err(Violation::UnknownKey)
    ));
    let mut new = old.clone();
    new.frame.set_slot(ticket(0, 1).packed());
    assert!(hear_push(&mut channel, &new).is_ok_and(|push| push.key == other));
}

#[test]
fn a_number_beyond_the_bound_is_a_violation() {
    let bound = crate::ground::limits::INTERNED_KEYS as u32;
    let mut channel = up();
    assert!(channel.interned(ticket(bound - 1, 0), KEY).is_ok());
    assert_eq!(
        channel.interned(ticket(bound, 0), KEY),
        Err(Violation::Intern)
    );
}

#[test]
fn every_key_in_use_is_known() {
    let mut channel = up();
    interned(&mut channel, ticket(0, 0), KeyId(1));
    channel
        .push(KeyId(2), point(1), 0, &mut Some(value(8)), None)
        .expect("credit");
    channel
        .push(KeyId(3), point(1), 0, &mut Some(value(999)), None)
        .expect("credit");
    channel
        .demand(Demand::new(0, KeyId(4), point(1), 0))
        .expect("a place");
    channel
        .begin_write(ticket(0, 0), KeyId(5), point(1), 0, false)
        .expect("a place");
    let busy = |channel: &Channel<Value>| -> Vec<u32> {
        (0..9)
            .filter(|&key| channel.is_busy_with(KeyId(key)))
            .collect()
    };
    assert_eq!(busy(&channel), [2, 3, 4, 5]);
    let called: Vec<_> = (0..9)
        .filter(|&key| channel.is_called(KeyId(key)))
        .collect();
    assert_eq!(called, [1]);
    let sent = out(&mut channel);
    assert_eq!(busy(&channel), [2, 3, 4, 5], "posted is not over");
    let frames = channel.counters().frames_sent as u16;
    hear(
        &mut channel,
        &Sent::of(&Message::Credit).crediting(frames - 2, 0),
    )
    .expect("consumed");
    assert_eq!(kinds(&sent).len(), 4);
    assert_eq!(busy(&channel), [3, 4, 5], "the first frame is acknowledged");
    hear(
        &mut channel,
        &Sent::of(&Message::Credit).crediting(frames, 0),
    )
    .expect("consumed");
    assert_eq!(busy(&channel), [3, 4, 5], "what is on offer is not over");
    channel.lose();
    assert_eq!(busy(&channel), [] as [u32; 0]);
}

#[test]
fn frames_that_a_reconnect_repeats_keep_their_keys() {
    let mut channel = up();
    for key in [2, 3] {
        channel
            .push(KeyId(key), point(1), 0, &mut Some(value(8)), None)
            .expect("credit");
    }
    let request = channel
        .demand(Demand::new(0, KeyId(4), point(1), 0))
        .expect("a place");
    channel.ask(request, 0, None);
    assert_eq!(out(&mut channel).len(), 6);
    channel.disconnected();
    channel.connected();
    for key in [2, 3, 4] {
        assert!(channel.is_busy_with(KeyId(key)), "key {key}");
    }
}

#[test]
fn a_number_that_is_taken_back_is_told_and_given_to_the_next_key() {
    let (mut channel, mut other) = (up(), up());
    for key in [1, 2] {
        use_key(&mut channel, key);
    }
    interned(&mut other, ticket(0, 0), KeyId(11));
    interned(&mut other, ticket(1, 0), KeyId(12));
    assert!(channel.forget_key(KeyId(1)));
    assert!(!channel.forget_key(KeyId(1)), "it has none any more");
    let told = out(&mut channel);
    assert_eq!(told[0].message(), Message::Intern(ticket(0, 0), ""));
    assert!(hear(&mut other, &told[0]).is_ok());
    assert!(!other.is_called(KeyId(11)) && other.is_called(KeyId(12)));
    let next = use_key(&mut channel, 3);
    assert_eq!(next[0].message(), Message::Intern(ticket(0, 1), "a;b;3"));
    // A peer that has heard that the number is another key's does not take that one's away.
    interned(&mut other, ticket(0, 1), KeyId(13));
    assert!(hear(&mut other, &told[0]).is_ok());
    assert!(other.is_called(KeyId(13)));
}

#[test]
fn without_a_connection_a_number_is_taken_back_in_silence() {
    let mut channel = up();
    use_key(&mut channel, 1);
    channel.disconnected();
    assert!(!channel.forget_key(KeyId(1)));
    assert!(channel.is_at_rest());
}
