//! Golden bytes of a stream: how frames, bodies and chunks follow each other over TCP, as `WIRE.md` says.
//!
//! `tests/golden/stream_v<n>.hex` is what one side sends and, after the line that says so, what the other answers. If
//! this fails, read the head of `tests/wire/frames.rs`: the same holds. `GOLDEN=write cargo test --test wire`
//! writes the file of a new version, and never overwrites one.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use rendez::control::PROTOCOL_VERSION;
use rendez::fabric::tcp::fuzz::Lone;
use rendez::fabric::{Arrival, DownReason, Landing, QpId, Token, Write};
use rendez::ground::{DType, MemoryKind, Region, Shape, TensorMeta};
use rendez::memory::Tensor;
use rendez::wire::Frame;

/// Any: each piece is cut where it falls.
const CUTS: &[u8] = &[3, 0, 8, 1];

fn frame(number: u64, len: u64) -> Frame {
    let mut frame = Frame::default();
    frame.words[0] = 9 << 32;
    frame.words[1] = len << 32 | 0x0a0b_0c0d;
    frame.words[2] = number;
    frame
}

fn write(token: u64, len: u8) -> Write {
    let meta = TensorMeta::new(DType::U8, Shape::new(&[u64::from(len)]).expect("a shape"));
    let bytes: Vec<u8> = (1..=len).collect();
    Write {
        qp: QpId(0),
        token: Token(token),
        source: Tensor::from_bytes(meta.expect("small"), bytes.into()).expect("as many bytes"),
        landing: Landing {
            index: 0x2122,
            generation: 0x3132_3334,
        },
        region: Region {
            arena: 0x4142,
            segment: 0x5152,
            generation: 0x6162_6364,
            offset: 0x7172_7374_7576_7778,
            len: 99,
            kind: MemoryKind::Host,
            owns_pages: false,
        },
    }
}

fn sent() -> Vec<u8> {
    let mut lone = Lone::new();
    assert!(lone.post_send(&frame(1, 0), &[]));
    assert!(lone.post_send(&frame(2, 3), b"abc"));
    assert!(lone.post_send(&frame(3, 20), b"twenty bytes, beside"));
    assert!(lone.post_write(write(1, 5)));
    assert!(lone.post_write(write(2, 40)));
    let mut all = lone.sent(CUTS);
    lone.close();
    all.extend(lone.sent(CUTS));
    all
}

fn hex(title: &str, bytes: &[u8]) -> String {
    let mut text = format!("# {title}\n");
    for line in bytes.chunks(16) {
        let line: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(text, "{}", line.join(" "));
    }
    text
}

#[test]
fn a_stream_is_what_it_always_was() {
    let sent = sent();
    let mut frames = Vec::new();
    let (reason, answers) = Lone::new().hear(&sent, CUTS, &mut |arrival| match arrival {
        Arrival::Frame { frame, body, .. } => frames.push((frame.words[2], body.to_vec())),
        other => panic!("{other:?}"),
    });
    assert_eq!(reason, DownReason::PeerClosed, "BYE ends it");
    let bodies: [&[u8]; 3] = [b"", b"abc", b"twenty bytes, beside"];
    let expected: Vec<_> = (1..).zip(bodies.map(<[u8]>::to_vec)).collect();
    assert_eq!(frames, expected);
    let text = hex("what one side sends", &sent) + &hex("what the other answers", &answers);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join(format!("tests/golden/stream_v{PROTOCOL_VERSION}.hex"));
    if std::env::var("GOLDEN").as_deref() == Ok("write") && !path.exists() {
        fs::write(&path, &text).expect("the folder is there");
    }
    let golden = fs::read_to_string(&path).expect("the golden stream of this version");
    assert_eq!(golden, text, "the stream has changed");
}
