//! The short way of the usual value, against the long way that every frame can go: they must agree.

use proptest::prelude::*;

use super::*;
use crate::ground::limits::BODY_MAX;

/// Handles the same frame the short way and the long way, and compares what came of it.
fn both_ways(sent: &Sent) {
    let (mut short, mut long) = (up_knowing_key(), up_knowing_key());
    let heard = long.handle_frame(NOW, &sent.frame, &sent.tail, &sent.body);
    let Some(small) = short.handle_small(NOW, &sent.frame, &sent.body) else {
        return;
    };
    let Ok(Heard::Push(push)) = heard else {
        panic!("the short way took what the long way does not: {heard:?}");
    };
    let bytes = if small.long.is_empty() {
        &small.inline[..small.len]
    } else {
        small.long
    };
    assert_eq!(bytes, push.data);
    assert_eq!(small.len, push.data.len());
    assert_eq!(
        (
            small.key,
            small.point,
            small.ordinal,
            small.meta,
            small.is_dead,
            small.lines
        ),
        (
            push.key,
            push.point,
            push.ordinal,
            push.meta,
            push.is_dead,
            push.lines
        )
    );
    short.hold(small.lines).expect("the long way had credit");
    assert_eq!(
        short.counters().frames_received,
        long.counters().frames_received
    );
    assert_eq!(short.poll_timeout(), long.poll_timeout());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_short_way_hears_what_the_long_way_hears(
        len in prop_oneof![0..20_usize, 0..200_usize],
        bit in prop::option::of(0..512_usize),
        body_len in prop::option::of(0..40_u64),
    ) {
        let mut sent = push_of(len, 3, None);
        if let Some(bit) = bit {
            sent.frame.words[bit / 64] ^= 1 << (bit % 64);
        }
        if let Some(body_len) = body_len {
            sent.frame.words[1] = sent.frame.words[1] & 0xffff_ffff | body_len << 32;
        }
        sent.tail = sent.frame.tail();
        both_ways(&sent);
    }
}

#[test]
fn a_scalar_takes_the_short_way_too() {
    for dtype in DType::ALL.iter().filter(|dtype| dtype.size().is_some()) {
        let meta = TensorMeta::new(*dtype, Shape::SCALAR).expect("a scalar");
        let bytes = value(dtype.size().unwrap_or(0)).bytes;
        let sent = Sent::of(&Message::Push(Push {
            subject: subject(1),
            meta,
            is_dead: true,
            request: None,
            data: &bytes,
            stamp: 0,
        }));
        let mut channel = up_knowing_key();
        assert!(
            channel.handle_small(NOW, &sent.frame, &sent.body).is_some(),
            "{dtype}"
        );
        both_ways(&sent);
    }
}

#[test]
fn what_is_not_usual_changes_nothing() {
    let mut channel = up_knowing_key();
    let request = asked(&mut channel, None);
    let before = (channel.counters().frames_received, channel.poll_timeout());
    for sent in [
        push_of(8, 0, Some(request)),
        offer_of(999, ticket(0, 0), None),
        request_of(ticket(0, 0), None, None),
        Sent::of(&Message::Credit),
        push_of(BODY_MAX, 0, None),
    ] {
        assert!(channel.handle_small(NOW, &sent.frame, &sent.body).is_none());
        assert_eq!(
            (channel.counters().frames_received, channel.poll_timeout()),
            before
        );
    }
    let early = push_of(8, 0, None);
    let mut down = Channel::<Value>::new(settings(OURS));
    assert!(down.handle_small(NOW, &early.frame, &early.body).is_none());
}
