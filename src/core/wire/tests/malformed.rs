//! Each way in which a frame is no message, reached, and told apart from the others.

use super::values::AnyValue;
use super::{parsed_back, sent};
use crate::ground::{MemoryKind, Region};
use crate::wire::{Flags, Frame, Kind, Malformed, Message};

/// What parsing says of `kind`'s plain message once `spoil` has been at it.
fn spoilt(kind: Kind, spoil: impl FnOnce(&mut Frame, &mut Vec<u8>)) -> Result<(), Malformed> {
    of(&AnyValue::plain(kind), spoil)
}

fn of(value: &AnyValue, spoil: impl FnOnce(&mut Frame, &mut Vec<u8>)) -> Result<(), Malformed> {
    let (mut frame, mut beside) = sent(&value.message());
    parsed_back(&value.message());
    spoil(&mut frame, &mut beside);
    let tail = frame.tail();
    Message::parse(&frame, &tail, &beside).map(drop)
}

const fn set_byte(frame: &mut Frame, byte: usize, value: u8) {
    let shift = 8 * (byte % 8);
    frame.words[byte / 8] = frame.words[byte / 8] & !(0xff << shift) | (value as u64) << shift;
}

const fn set_body_len(frame: &mut Frame, len: usize) {
    frame.words[1] = frame.words[1] & 0xffff_ffff | (len as u64) << 32;
}

#[test]
fn kind_a_number_that_is_none() {
    for number in [0, 17, 200, 0xf0, 0xff] {
        assert_eq!(
            spoilt(Kind::Credit, |frame, _| set_byte(frame, 4, number)),
            Err(Malformed::Kind)
        );
    }
}

#[test]
fn flags_one_that_is_unknown() {
    let flags = Flags::ALL.0 | 128;
    assert_eq!(
        spoilt(Kind::Credit, |frame, _| set_byte(frame, 5, flags)),
        Err(Malformed::Flags)
    );
}

/// The bytes of an offer lie with its sender or with its receiver.
#[test]
fn flags_two_places_of_one_value() {
    let value = AnyValue {
        region: Some(Region::default()),
        ..AnyValue::plain(Kind::Offer)
    };
    let both = Flags::REGION.0 | Flags::LENT.0;
    assert_eq!(
        of(&value, |frame, _| set_byte(frame, 5, both)),
        Err(Malformed::Flags)
    );
}

#[test]
fn body_one_that_is_too_short_or_too_long_for_its_kind() {
    for kind in [Kind::Hello, Kind::Offer, Kind::Request] {
        let shorter = spoilt(kind, |frame, beside| {
            let len = frame.body_len() as usize;
            set_body_len(frame, len - 1);
            beside.truncate(len - 1);
        });
        assert_eq!(shorter, Err(Malformed::Body), "{kind:?} shorter");
        let longer = spoilt(kind, |frame, beside| {
            let len = frame.body_len() as usize;
            if beside.is_empty() {
                beside.extend_from_slice(&frame.tail()[..len]);
            }
            beside.resize(len + 8, 0);
            set_body_len(frame, len + 8);
        });
        assert_eq!(longer, Err(Malformed::Body), "{kind:?} longer");
    }
    for kind in [
        Kind::Cancel,
        Kind::Cancelled,
        Kind::Release,
        Kind::Recall,
        Kind::Credit,
        Kind::Finish,
        Kind::Drain,
        Kind::Held,
    ] {
        let some = spoilt(kind, |frame, _| set_body_len(frame, 1));
        assert_eq!(some, Err(Malformed::Body), "{kind:?} has no body");
    }
}

#[test]
fn body_a_request_named_by_flag_and_not_there() {
    let mut value = AnyValue::plain(Kind::Push);
    value.data.clear();
    value.small.shape = crate::ground::Shape::new(&[0]).expect("a shape");
    let cut = of(&value, |frame, _| {
        set_byte(frame, 5, Flags::SOLICITED.0);
        set_body_len(frame, 4);
    });
    assert_eq!(cut, Err(Malformed::Body));
}

#[test]
fn dtype_a_number_that_is_none() {
    for kind in [Kind::Push, Kind::Offer] {
        for number in [0, 17, 255] {
            assert_eq!(
                spoilt(kind, |frame, _| set_byte(frame, 6, number)),
                Err(Malformed::DType)
            );
        }
    }
    // A request without a landing has no type, so the byte means nothing there.
    assert_eq!(
        spoilt(Kind::Request, |frame, _| set_byte(frame, 6, 99)),
        Ok(())
    );
}

#[test]
fn shape_more_dimensions_than_there_are() {
    for rank in [9, 255] {
        assert_eq!(
            spoilt(Kind::Push, |frame, _| set_byte(frame, 7, rank)),
            Err(Malformed::Shape)
        );
    }
}

#[test]
fn shape_more_bytes_than_a_value_can_have() {
    let huge = spoilt(Kind::Push, |frame, beside| {
        set_byte(frame, 7, 2);
        beside.resize(24, 0xff);
        set_body_len(frame, 24);
    });
    assert_eq!(huge, Err(Malformed::Shape));
}

#[test]
fn shape_that_disagrees_with_the_bytes() {
    let longer = spoilt(Kind::Push, |frame, _| set_body_len(frame, 9));
    assert_eq!(longer, Err(Malformed::Shape));
    let mut value = AnyValue::plain(Kind::Offer);
    value.size = 8;
    let size = of(&value, |frame, beside| {
        if beside.is_empty() {
            // The size is the second half of the tail.
            frame.words[7] += 1;
        } else {
            beside[8] += 1;
        }
    });
    assert_eq!(size, Err(Malformed::Shape));
}

#[test]
fn shape_of_an_offer_whose_region_has_another_length() {
    let mut value = AnyValue::plain(Kind::Offer);
    value.region = Some(Region::default());
    // Tickets and size take 16 bytes, the region's own numbers 16 more; its length comes last.
    let region = of(&value, |_, beside| beside[32] += 1);
    assert_eq!(region, Err(Malformed::Shape));
}

#[test]
fn memory_of_a_kind_that_is_none() {
    for kind in [Kind::Offer, Kind::Request] {
        let mut value = AnyValue::plain(kind);
        value.region = Some(Region {
            len: 8,
            ..Region::default()
        });
        // The last byte of the region. Its highest bit is no kind: it says that the region owns its pages.
        for number in 0..=u8::MAX {
            let known = MemoryKind::ALL
                .iter()
                .any(|kind| *kind as u8 == number & 0x7f);
            let expected = known.then_some(()).ok_or(Malformed::Memory);
            assert_eq!(of(&value, |_, beside| beside[39] = number), expected);
        }
    }
}

#[test]
fn text_that_is_not_utf8() {
    for kind in [Kind::Intern, Kind::Failed, Kind::Abort] {
        let text = spoilt(kind, |frame, _| set_byte(frame, 48, 0xff));
        assert_eq!(text, Err(Malformed::Text), "{kind:?}");
    }
}

/// A status code that this release does not know is still a failure, and says so.
#[test]
fn an_unknown_status_code_is_unknown_and_no_fault() {
    assert_eq!(
        spoilt(Kind::Failed, |frame, _| set_byte(frame, 6, 200)),
        Ok(())
    );
}
