//! Golden frames: the wire format, byte for byte, so that a change of it is a decision and never an accident.
//!
//! Each file of `tests/golden/v<n>/` is one message: the frame's 64 bytes, four lines of sixteen, and after a blank
//! line the body that travels beside it, if it is longer than the tail. Text after `#` is a comment.
//!
//! Greetings, remote calls and autograd have golden files too, in folders of their own: their tests stand beside what
//! writes them, and `tests/golden/mod.rs` holds them against the files.
//!
//! If a test here fails, the release would not understand its predecessor. Then either the change was a mistake, or
//! the format is to change knowingly:
//!
//! 1. Raise `PROTOCOL_VERSION` in `src/rendez/control/hello.rs`: a peer of another version is refused at its greeting.
//! 2. `GOLDEN=write cargo test --test wire` writes the files of the new version that are not there yet; it
//!    never overwrites one. `GOLDEN=write cargo test -p rendez -p rendez-rpc -p rendez-autograd --lib tests::bytes`
//!    does the same for the others. Look at each, then commit them.
//! 3. Remove the older version's folders unless this release still speaks it, and say in `src/core/wire/WIRE.md` what
//!    changed.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use rendez::control::PROTOCOL_VERSION;
use rendez::ground::{
    Code, DType, FrameIter, Incarnation, MemoryKind, Region, Shape, StepId, TensorMeta,
};
use rendez::wire::message::{Hello, Offer, Push, Request, StatusText, Subject};
use rendez::wire::{Frame, Kind, Message, Point, Ticket};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{PROTOCOL_VERSION}"))
}

fn meta(dtype: DType, dims: &[u64]) -> TensorMeta {
    TensorMeta::new(dtype, Shape::new(dims).expect("a shape")).expect("of a size")
}

const fn ticket(index: u32, generation: u32) -> Ticket {
    Ticket { index, generation }
}

/// No two fields alike, so that exchanged ones show.
const SUBJECT: Subject = Subject {
    key: ticket(0x1_2345, 0x678),
    point: Point {
        step: StepId(0x0102_0304_0506_0708),
        at: FrameIter {
            frame: 0x1112_1314_1516_1718,
            iter: 0x2122_2324_2526_2728,
        },
    },
    ordinal: 0x3132_3334,
};

const REGION: Region = Region {
    arena: 0x4142,
    segment: 0x5152,
    generation: 0x6162_6364,
    offset: 0x7172_7374_7576_7778,
    len: 24,
    kind: MemoryKind::Host,
    owns_pages: false,
};

const DEVICE: Region = Region {
    kind: MemoryKind::Cuda,
    ..REGION
};

const PAGES: Region = Region {
    owns_pages: true,
    ..REGION
};

const STAMP: u64 = 0xe1e2_e3e4_e5e6_e7e8;

const STATUS: StatusText<'_> = StatusText {
    code: Code::Aborted,
    is_derived: true,
    message: "step 7 was aborted: out of memory",
};

const fn push(meta: TensorMeta, request: Option<Ticket>, data: &[u8]) -> Push<'_> {
    Push {
        subject: SUBJECT,
        meta,
        is_dead: false,
        request,
        data,
        stamp: 0,
    }
}

const fn offer(meta: TensorMeta, request: Option<Ticket>, region: Option<Region>) -> Offer {
    Offer {
        subject: SUBJECT,
        meta,
        is_dead: true,
        request,
        offer: ticket(9, 8),
        size: 24,
        region,
        lent: None,
        stamp: 0,
    }
}

const fn request(offer: Option<Ticket>, landing: Option<(Region, TensorMeta)>) -> Request {
    Request {
        subject: SUBJECT,
        request: ticket(7, 6),
        offer,
        patience_ns: 0x8182_8384_8586_8788,
        landing,
    }
}

/// Every kind at least once, and every field that is only sometimes there, there and not there.
fn messages() -> Vec<(&'static str, Message<'static>)> {
    let matrix = meta(DType::F32, &[2, 3]);
    let deep = meta(DType::U8, &[1, 2, 3, 4, 1]);
    let hello = Hello {
        incarnation: Incarnation(0x9192_9394_9596_9798),
        expected: Incarnation(0xa1a2_a3a4_a5a6_a7a8),
        epoch: 3,
        peer_epoch: 2,
        consumed: 0xb1b2_b3b4,
        frame_window: 256,
        line_window: 16_384,
    };
    const DATA: &[u8; 24] = b"abcdefghijklmnopqrstuvwx";
    vec![
        (
            "push_scalar",
            Message::Push(push(meta(DType::F64, &[]), None, &DATA[..8])),
        ),
        ("push_beside", Message::Push(push(matrix, None, DATA))),
        (
            "push_answer",
            Message::Push(push(deep, Some(ticket(7, 6)), DATA)),
        ),
        (
            "push_stamped",
            Message::Push(Push {
                stamp: STAMP,
                ..push(meta(DType::U8, &[5]), None, &DATA[..5])
            }),
        ),
        (
            "push_stamped_scalar",
            Message::Push(Push {
                stamp: STAMP,
                ..push(meta(DType::F64, &[]), None, &DATA[..8])
            }),
        ),
        (
            "offer_stamped",
            Message::Offer(Offer {
                stamp: STAMP,
                ..offer(matrix, None, Some(REGION))
            }),
        ),
        ("offer", Message::Offer(offer(matrix, None, None))),
        (
            "offer_lent",
            Message::Offer(Offer {
                lent: Some(ticket(11, 10)),
                stamp: STAMP,
                ..offer(matrix, None, None)
            }),
        ),
        (
            "offer_answer_lent",
            Message::Offer(Offer {
                lent: Some(ticket(11, 10)),
                ..offer(deep, Some(ticket(7, 6)), None)
            }),
        ),
        (
            "offer_answer_region",
            Message::Offer(offer(deep, Some(ticket(7, 6)), Some(REGION))),
        ),
        (
            "offer_region_device",
            Message::Offer(offer(matrix, None, Some(DEVICE))),
        ),
        (
            "offer_region_pages",
            Message::Offer(offer(matrix, None, Some(PAGES))),
        ),
        ("request", Message::Request(request(None, None))),
        (
            "request_landing",
            Message::Request(request(Some(ticket(9, 8)), Some((REGION, matrix)))),
        ),
        ("cancel", Message::Cancel(ticket(7, 6))),
        ("cancelled", Message::Cancelled(ticket(7, 6))),
        ("failed", Message::Failed(ticket(7, 6), STATUS)),
        ("release", Message::Release(ticket(9, 8), &[])),
        (
            "releases",
            Message::Release(ticket(9, 8), &[1, 0, 16, 0, 2, 0, 32, 0, 3, 0, 48, 0]),
        ),
        ("recall", Message::Recall(ticket(9, 8))),
        ("credit", Message::Credit),
        (
            "intern",
            Message::Intern(
                ticket(5, 4),
                "/job:a/replica:0/task:0/device:CPU:0;/job:b/replica:0/task:0/device:CPU:0;x",
            ),
        ),
        ("intern_back", Message::Intern(ticket(5, 4), "")),
        ("abort", Message::Abort(StepId(7), STATUS)),
        ("hello", Message::Hello(hello)),
        ("finish", Message::Finish(StepId(7))),
        ("drain", Message::Drain),
        (
            "held",
            Message::Held(ticket(9, 8), &[1, 0, 16, 0, 2, 0, 32, 0]),
        ),
    ]
}

/// The bytes a fabric carries, with a credit in every frame, as the channel would write it.
fn bytes_of(message: &Message<'_>) -> (Frame, Vec<u8>) {
    let (mut frame, body) = message.emit();
    frame.set_credit(0xc1c2, 0xd1d2);
    let mut beside = vec![];
    if !frame.body_is_inline() {
        beside.extend_from_slice(body.as_bytes());
        beside.extend_from_slice(message.trailing());
    }
    (frame, beside)
}

fn text_of(name: &str, frame: &Frame, beside: &[u8]) -> String {
    let mut text = format!("# {name}: the frame\n");
    lines(&mut text, &frame.to_bytes());
    if !beside.is_empty() {
        text.push_str("\n# its body\n");
        lines(&mut text, beside);
    }
    text
}

fn lines(text: &mut String, bytes: &[u8]) {
    for line in bytes.chunks(16) {
        for (at, byte) in line.iter().enumerate() {
            let gap = if at == 0 { "" } else { " " };
            let _ = write!(text, "{gap}{byte:02x}");
        }
        text.push('\n');
    }
}

/// The frame and the body of a golden file.
fn read(name: &str, text: &str) -> (Frame, Vec<u8>) {
    let bytes: Vec<u8> = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .flat_map(str::split_whitespace)
        .map(|hex| {
            u8::from_str_radix(hex, 16)
                .unwrap_or_else(|_| panic!("{name}: {hex:?} is no byte in hex"))
        })
        .collect();
    let (frame, beside) = bytes
        .split_first_chunk::<64>()
        .unwrap_or_else(|| panic!("{name}: shorter than a frame"));
    (Frame::from_bytes(frame), beside.to_vec())
}

fn golden(name: &str) -> String {
    let path = folder().join(format!("{name}.hex"));
    fs::read_to_string(&path).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; the head of tests/wire/frames.rs says how it is made",
            path.display()
        )
    })
}

/// Writes what is missing if it is asked to; everything else here reads.
fn write_missing() {
    if std::env::var("GOLDEN").as_deref() != Ok("write") {
        return;
    }
    fs::create_dir_all(folder()).expect("a folder");
    for (name, message) in messages() {
        let path = folder().join(format!("{name}.hex"));
        if !path.exists() {
            let (frame, beside) = bytes_of(&message);
            fs::write(path, text_of(name, &frame, &beside)).expect("written");
        }
    }
}

#[test]
fn every_kind_has_the_bytes_it_always_had() {
    write_missing();
    let mut wrong = String::new();
    for (name, message) in messages() {
        let (frame, beside) = bytes_of(&message);
        let now = text_of(name, &frame, &beside);
        let was = golden(name);
        for (at, (was, now)) in was.lines().zip(now.lines()).enumerate() {
            if was != now {
                let _ = writeln!(wrong, "{name}.hex:{}:\n  was {was}\n  now {now}", at + 1);
            }
        }
        if was.lines().count() != now.lines().count() {
            let _ = writeln!(wrong, "{name}.hex: another length; now it is\n{now}");
        }
    }
    assert!(
        wrong.is_empty(),
        "the wire format has changed; the head of tests/wire/frames.rs says what to do\n{wrong}"
    );
}

#[test]
fn the_golden_bytes_mean_what_they_always_meant() {
    write_missing();
    for (name, message) in messages() {
        let (frame, beside) = read(name, &golden(name));
        let tail = frame.tail();
        let parsed = Message::parse(&frame, &tail, &beside);
        assert_eq!(parsed, Ok(message), "{name}.hex is read as something else");
        assert_eq!(frame.credit(), (0xc1c2, 0xd1d2), "{name}.hex");
    }
}

#[test]
fn no_kind_and_no_file_is_left_out() {
    write_missing();
    let messages = messages();
    for kind in Kind::ALL {
        assert!(
            messages
                .iter()
                .any(|(_, message)| message.emit().0.kind() == *kind as u8),
            "{kind:?} has no golden message"
        );
    }
    for entry in fs::read_dir(folder()).expect("the folder of this version") {
        let name = entry
            .expect("a file")
            .file_name()
            .into_string()
            .expect("a plain name");
        assert!(
            messages
                .iter()
                .any(|(known, _)| format!("{known}.hex") == name),
            "{name} is the golden file of nothing"
        );
    }
}
