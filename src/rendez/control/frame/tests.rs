//! Any bytes give envelopes or an error; what was written is read.

mod bytes;

use futures_lite::future::block_on;
use futures_lite::io::Cursor;
use proptest::prelude::*;

use super::*;
use rendez_proto::envelope::Body;
use rendez_proto::{Bye, Ping};

fn bye(reason: &str) -> Envelope {
    Envelope {
        id: 7,
        reply: false,
        body: Some(Body::Bye(Bye {
            reason: reason.into(),
        })),
    }
}

fn read_all(bytes: &[u8]) -> (Vec<Envelope>, FrameError) {
    let mut stream = Cursor::new(bytes);
    let mut read = Vec::new();
    loop {
        match block_on(super::read(&mut stream, None)) {
            Ok(envelope) => read.push(envelope),
            Err(error) => return (read, error),
        }
    }
}

#[test]
fn what_is_written_is_read() {
    let ping = Envelope {
        id: u64::MAX,
        reply: true,
        body: Some(Body::Ping(Ping {})),
    };
    let all = [bye("one"), ping, Envelope::default(), bye("")];
    let mut bytes = Vec::new();
    for envelope in &all {
        block_on(write(&mut bytes, envelope, None)).expect("written");
    }
    let (read, error) = read_all(&bytes);
    assert_eq!(read, all);
    assert!(matches!(error, FrameError::Ended));
}

#[test]
fn the_bound_holds_both_ways() {
    let room = CONTROL_MESSAGE_MAX - bye(&"x".repeat(1 << 15)).encoded_len() + (1 << 15);
    assert_eq!(
        encode(&bye(&"x".repeat(room))).expect("fits").len(),
        HEADER + CONTROL_MESSAGE_MAX
    );
    assert!(matches!(
        encode(&bye(&"x".repeat(room + 1))),
        Err(FrameError::TooLong(_))
    ));
    let too_long = u32::try_from(CONTROL_MESSAGE_MAX + 1)
        .expect("small")
        .to_le_bytes();
    assert!(
        matches!(read_all(&too_long).1, FrameError::TooLong(_)),
        "told before a byte of it is awaited"
    );
}

#[test]
fn every_cut_is_seen() {
    let bytes = encode(&bye("a reason")).expect("fits");
    for len in 0..bytes.len() {
        match read_all(&bytes[..len]) {
            (read, FrameError::Ended) => assert!(read.is_empty() && len == 0),
            (read, FrameError::Truncated) => assert!(read.is_empty() && len > 0),
            other => panic!("{other:?}"),
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_end_in_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        read_all(&bytes);
        // Behind an honest length they reach the parser.
        let len = u32::try_from(bytes.len()).expect("small").to_le_bytes();
        read_all(&[&len[..], &bytes].concat());
    }

    #[test]
    fn one_changed_byte_is_survived(at in 0usize..200, value: u8) {
        let mut bytes = encode(&bye(&"x".repeat(150))).expect("fits");
        let at = at % bytes.len();
        bytes[at] = value;
        read_all(&bytes);
    }
}
