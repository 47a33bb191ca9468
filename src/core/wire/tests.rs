//! Tests of the wire: what is emitted parses to the same, and no bytes do harm.

mod malformed;
mod values;

use proptest::prelude::*;

use super::message::{Push, Subject};
use super::{Flags, Frame, INLINE_BODY_MAX, Kind, Malformed, Message, Ticket};
use crate::ground::limits::{BODY_MAX, STATUS_TEXT_MAX};
use crate::ground::{Code, DType, Shape, StepId, TensorMeta};
use values::{AnyValue, any_value};

/// What a fabric delivers of a message: the frame, and the body if it does not fit the tail.
fn sent(message: &Message<'_>) -> (Frame, Vec<u8>) {
    let (frame, body) = message.emit();
    let mut beside = body.as_bytes().to_vec();
    beside.extend_from_slice(message.trailing());
    assert_eq!(
        frame.body_len() as usize,
        beside.len(),
        "the frame counts its body"
    );
    if frame.body_is_inline() {
        beside.clear();
    }
    (Frame::from_bytes(&frame.to_bytes()), beside)
}

fn parsed_back(message: &Message<'_>) {
    let (frame, beside) = sent(message);
    let tail = frame.tail();
    assert_eq!(
        Message::parse(&frame, &tail, &beside).as_ref(),
        Ok(message),
        "from {frame:?}"
    );
}

proptest! {
    #[test]
    fn what_is_emitted_parses_to_the_same(value in any_value()) {
        parsed_back(&value.message());
    }

    #[test]
    fn no_frame_and_no_body_do_harm(
        bytes in any::<[u8; 32]>(),
        more in any::<[u8; 32]>(),
        beside in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut whole = [0; 64];
        whole[..32].copy_from_slice(&bytes);
        whole[32..].copy_from_slice(&more);
        let frame = Frame::from_bytes(&whole);
        prop_assert_eq!(frame.to_bytes(), whole);
        let _ = Message::parse(&frame, &frame.tail(), &beside);
    }

    /// Nearly right is likelier to do harm than noise: every field but one is what an honest peer sends.
    #[test]
    fn a_true_message_with_a_byte_changed_does_no_harm(
        value in any_value(),
        at in 0..64_usize,
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let (frame, beside) = sent(&value.message());
        let mut bytes = frame.to_bytes();
        bytes[at] = byte;
        let mut frame = Frame::from_bytes(&bytes);
        let _ = Message::parse(&frame, &frame.tail(), &beside);
        // A shorter body, of a length that the frame tells truly.
        let len = cut.index(beside.len() + 1);
        frame.words[1] = (frame.words[1] & 0xffff_ffff) | (len as u64) << 32;
        let _ = Message::parse(&frame, &frame.tail(), &beside[..len]);
    }

    /// What parses has one meaning: emitted and parsed again it is the same.
    #[test]
    fn what_parses_at_all_survives_another_round(
        value in any_value(),
        at in 8..64_usize,
        byte in any::<u8>(),
    ) {
        let (frame, beside) = sent(&value.message());
        let mut bytes = frame.to_bytes();
        bytes[at] = byte;
        let frame = Frame::from_bytes(&bytes);
        let tail = frame.tail();
        if let Ok(message) = Message::parse(&frame, &tail, &beside) {
            parsed_back(&message);
        }
    }

    /// What fits the tail lies there as it would lie beside the frame: the dimensions, the data, and zeros behind them.
    #[test]
    fn the_tail_of_a_push_is_its_body(value in any_value(), len in 0..20_usize) {
        let mut value = AnyValue { kind: Kind::Push, other: None, ..value };
        for is_row in [false, true] {
            if is_row {
                let shape = Shape::new(&[len as u64]).expect("a shape");
                value.small = TensorMeta { dtype: DType::U8, shape };
                value.data = (0..len).map(|byte| byte as u8).collect();
            }
            let Message::Push(push) = value.message() else {
                unreachable!("its kind is push");
            };
            let frame = Push { stamp: 0, ..push }.frame();
            let mut body = [Push::lead(&push.meta, push.request).as_bytes(), push.data].concat();
            prop_assert_eq!(frame.body_len() as usize, body.len());
            body.resize(INLINE_BODY_MAX, 0);
            let expected = if frame.body_is_inline() { &body[..INLINE_BODY_MAX] } else { &[0; INLINE_BODY_MAX] };
            prop_assert_eq!(&frame.tail()[..], expected);
        }
    }

    /// What is read as the usual push is the push that it says, whatever a frame holds.
    #[test]
    fn a_row_is_the_push_that_it_says(
        words in any::<[u64; 8]>(),
        dead in any::<bool>(),
        dtype in 0..20_u8,
        rank in 0..3_u8,
        elements in 0..20_u64,
        len in 0..180_u64,
        is_exact in any::<bool>(),
    ) {
        let mut frame = Frame { words };
        let size = DType::from_wire(dtype).and_then(DType::size).map(|size| size as u64);
        let bytes = match rank {
            0 => size,
            _ => size.map(|size| 8 + elements * size),
        };
        let len = bytes.filter(|_| is_exact).unwrap_or(len);
        let flags = if dead { Flags::DEAD.0 } else { 0 };
        let head = [Kind::Push as u8, flags, dtype, rank];
        frame.words[0] = u64::from(u32::from_le_bytes(head)) << 32;
        frame.words[1] = (frame.words[1] & 0xffff_ffff) | len << 32;
        let mut beside = vec![7; len as usize];
        if len > 16 {
            beside[..8].copy_from_slice(&elements.to_le_bytes());
        } else {
            beside.clear();
            frame.words[6] = if rank > 0 { elements } else { frame.words[6] };
        }
        let tail = frame.tail();
        let body = if len > 16 { &beside[..] } else { &tail[..len as usize] };
        let is_usual = rank < 2 && bytes == Some(len);
        match Push::parse_row(&frame, body) {
            Some(push) => prop_assert_eq!(Message::parse(&frame, &tail, &beside), Ok(Message::Push(push))),
            None => prop_assert!(!is_usual),
        }
        for flag in [Flags::SOLICITED, Flags::STAMPED, Flags::REGION] {
            let mut other = frame;
            other.words[0] |= u64::from(flag.0) << 40;
            prop_assert_eq!(Push::parse_row(&other, body), None);
        }
        if let Some(shorter) = body.len().checked_sub(1) {
            prop_assert_eq!(Push::parse_row(&frame, &body[..shorter]), None);
        }
        frame.words[0] = frame.words[0] & !(0xff << 32) | u64::from(Kind::Offer as u8) << 32;
        prop_assert_eq!(Push::parse_row(&frame, body), None);
    }

    #[test]
    fn a_ticket_and_its_packed_word_are_one(word in any::<u32>()) {
        let ticket = Ticket::unpack(word);
        prop_assert_eq!(ticket.packed(), word);
        prop_assert!(ticket.index < 1 << Ticket::INDEX_BITS);
        prop_assert!(ticket.generation < 1 << Ticket::GENERATION_BITS);
    }

    #[test]
    fn credit_and_slot_change_nothing_else(
        words in any::<[u64; 8]>(),
        frames in any::<u16>(),
        lines in any::<u16>(),
        slot in any::<u32>(),
    ) {
        let mut frame = Frame { words };
        frame.set_credit(frames, lines);
        frame.set_slot(slot);
        prop_assert_eq!(frame.credit(), (frames, lines));
        prop_assert_eq!(frame.slot(), slot);
        prop_assert_eq!(frame.ordinal(), Frame { words }.ordinal());
        prop_assert_eq!(frame.body_len(), Frame { words }.body_len());
        for at in [0, 2, 3, 4, 6, 7] {
            prop_assert_eq!(frame.words[at], words[at]);
        }
    }
}

/// The strategies reach every kind: an identity that was never tried proves nothing.
#[test]
fn every_kind_is_tried() {
    for &kind in Kind::ALL {
        let value = AnyValue::plain(kind);
        let message = value.message();
        assert_eq!(message.emit().0.kind(), kind as u8);
        parsed_back(&message);
    }
}

#[test]
fn numbers_of_kinds_are_unique_and_below_the_fabrics_own() {
    let mut seen = [false; 256];
    for &kind in Kind::ALL {
        assert!(!std::mem::replace(&mut seen[kind as usize], true));
        assert!((kind as u8) < 0xf0, "{kind:?} would be a fabric's");
        assert_eq!(Kind::from_wire(kind as u8), Some(kind));
    }
    let known = (0..=255).filter_map(Kind::from_wire).count();
    assert_eq!(known, Kind::ALL.len());
    assert_eq!(Kind::from_wire(13), None, "a number that is taken back");
}

/// A value of exactly the tail's length lies in the frame; one byte more goes beside it.
#[test]
fn the_tail_is_used_to_its_last_byte() {
    for len in [0, 1, 7, 8, 9, 16, 17] {
        let data: Vec<u8> = (0..len).map(|byte| byte as u8).collect();
        let shape = Shape::new(&[len]).expect("a shape");
        let solid = TensorMeta::new(DType::U8, shape).expect("small");
        let push = Push {
            subject: Subject::default(),
            meta: solid,
            is_dead: false,
            request: None,
            data: &data,
            stamp: 0,
        };
        let (frame, beside) = sent(&Message::Push(push));
        assert_eq!(frame.body_is_inline(), 8 + data.len() <= INLINE_BODY_MAX);
        assert_eq!(beside.is_empty(), frame.body_is_inline());
        parsed_back(&Message::Push(push));
    }
}

/// A stamp stands where `put_stamp` puts one and nowhere else, so that what parses has one meaning.
#[test]
fn a_stamp_where_none_is_put_is_refused() {
    let data = [7_u8; 16];
    let row = Shape::new(&[16]).expect("a shape");
    for (dtype, shape, request, expected) in [
        (DType::U8, row, Some(Ticket::default()), Malformed::Flags),
        (DType::C128, Shape::SCALAR, None, Malformed::Shape),
    ] {
        let push = Push {
            subject: Subject::default(),
            meta: TensorMeta::new(dtype, shape).expect("small"),
            is_dead: false,
            request,
            data: &data,
            stamp: 0,
        };
        let (mut frame, beside) = sent(&Message::Push(push));
        frame.words[0] |= u64::from(Flags::STAMPED.0) << 40;
        // Of a scalar the stamp would stand before it.
        let beside = if shape.rank() == 0 {
            vec![7; 24]
        } else {
            beside
        };
        if shape.rank() == 0 {
            frame.words[1] = frame.words[1] & 0xffff_ffff | 24 << 32;
        }
        let tail = frame.tail();
        assert_eq!(
            Message::parse(&frame, &tail, &beside),
            Err(expected),
            "{dtype:?}"
        );
    }
}

/// A status longer than a frame carries is cut where a character ends, not inside one.
#[test]
fn a_long_status_is_cut_between_characters() {
    for lead in 0..4 {
        let text = format!("{}{}", "x".repeat(lead), "é".repeat(STATUS_TEXT_MAX));
        let status = super::message::StatusText {
            code: Code::Aborted,
            is_derived: false,
            message: &text,
        };
        let message = Message::Abort(StepId(1), status);
        let (frame, beside) = sent(&message);
        assert!(beside.len() <= STATUS_TEXT_MAX && beside.len() + 1 >= STATUS_TEXT_MAX);
        let tail = frame.tail();
        let Ok(Message::Abort(step, back)) = Message::parse(&frame, &tail, &beside) else {
            panic!("a cut status parses");
        };
        assert_eq!(step, StepId(1));
        assert!(text.starts_with(back.message));
    }
}

/// The body's length is the frame's word against the fabric's: a body that is not there is not read.
#[test]
fn a_body_of_another_length_than_the_frame_says_is_refused() {
    let mut frame = AnyValue::plain(Kind::Intern).message().emit().0;
    for (said, came) in [
        (17, 16),
        (17, 18),
        (17, 0),
        (BODY_MAX + 1, BODY_MAX + 1),
        (u32::MAX as usize, 64),
    ] {
        frame.words[1] = (frame.words[1] & 0xffff_ffff) | (said as u64) << 32;
        let tail = frame.tail();
        let body = vec![b'x'; came];
        assert_eq!(
            Message::parse(&frame, &tail, &body),
            Err(Malformed::Body),
            "{said} said, {came} came"
        );
    }
}

#[test]
fn flags_are_a_set() {
    let both = Flags::default()
        .with(Flags::DEAD, true)
        .with(Flags::REGION, true)
        .with(Flags::OFFER, false);
    assert!(both.has(Flags::DEAD) && both.has(Flags::REGION));
    assert!(!both.has(Flags::OFFER) && !both.has(Flags::SOLICITED));
    assert!(Flags::ALL.has(both));
}
