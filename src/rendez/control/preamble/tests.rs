//! The bytes stand fast, and any bytes give an answer.

use proptest::prelude::*;

use super::*;

fn ticket() -> Ticket {
    Ticket {
        incarnation: Incarnation(0x1122_3344_5566_7788),
        channel: 0x0a0b_0c0d,
        id: *b"0123456789abcdef",
        expires_ms: 0x0102_0304_0506_0708,
    }
}

/// Golden bytes: these layouts are what no version may change.
#[test]
fn openings_and_answers_have_these_bytes() {
    assert_eq!(&opening(ConnectionKind::Control), b"rendezC\x01");
    assert_eq!(&opening(ConnectionKind::Tls), b"rendezS\x01");
    assert_eq!(&opening(ConnectionKind::Data), b"rendezD\x01");
    assert_eq!(&opening(ConnectionKind::SealedData), b"rendezE\x01");
    assert_eq!(&answer(Verdict::Welcome), b"rendezW\x01");
    assert_eq!(&answer(Verdict::OtherVersion(7)), b"rendezV\x07");
    assert_eq!(&answer(Verdict::WantsTls), b"rendezT\x01");
    assert_eq!(&answer(Verdict::NoTls), b"rendezP\x01");
    assert_eq!(&answer(Verdict::UnknownTicket), b"rendezU\x01");
    assert_eq!(&answer(Verdict::ExpiredTicket), b"rendezE\x01");
    assert_eq!(&answer(Verdict::ReusedTicket), b"rendezR\x01");
    assert_eq!(&answer(Verdict::OtherUser), b"rendezO\x01");
}

#[test]
fn a_ticket_has_these_bytes() {
    let mut bytes = b"rendezD\x01\x88\x77\x66\x55\x44\x33\x22\x11\x0d\x0c\x0b\x0a\0\0\0\0".to_vec();
    bytes.extend_from_slice(b"0123456789abcdef\x08\x07\x06\x05\x04\x03\x02\x01");
    bytes.extend_from_slice(&[9; 32]);
    assert_eq!(ticket().emit(&[9; 32]).as_slice(), bytes);
}

#[test]
fn another_version_is_told_from_a_stranger() {
    assert_eq!(read_opening(*b"rendezC\x02"), Opening::OtherVersion(2));
    assert_eq!(read_opening(*b"rendezX\x01"), Opening::Stranger);
    assert_eq!(read_opening(*b"GET / HT"), Opening::Stranger);
    assert!(may_be_opening(b"ren") && may_be_opening(b"") && may_be_opening(b"rendez\0\x01"));
    assert!(!may_be_opening(b"x") && !may_be_opening(b"rendeX"));
}

#[test]
fn reserved_bytes_are_zero() {
    for at in 20..24 {
        let mut bytes = ticket().emit(&[0; 32]);
        bytes[at] = 1;
        assert_eq!(Ticket::read(&bytes), None);
    }
}

proptest! {
    #[test]
    fn what_is_read_is_emitted(bytes: [u8; 8], body in proptest::collection::vec(any::<u8>(), 72)) {
        if let Opening::Known(kind) = read_opening(bytes) {
            prop_assert_eq!(opening(kind), bytes);
        }
        if let Some(verdict @ Verdict::OtherVersion(_)) = read_answer(bytes) {
            prop_assert_eq!(answer(verdict), bytes);
        }
        let mut whole = [0; TICKET];
        whole[..8].copy_from_slice(&opening(ConnectionKind::Data));
        whole[8..].copy_from_slice(&body);
        whole[20..24].fill(0);
        let (ticket, mac) = Ticket::read(&whole).expect("a ticket");
        prop_assert_eq!(ticket.emit(&mac), whole);
    }
}
