//! Descriptors: whatever goes wrong, none stays open. Counted in a process of its own, where nothing else opens any.

use std::io::Write;
use std::os::fd::AsFd;

use rendez::control::RuntimeKind;
use rendez::ground::{Code, Status};
use rendez_proto as proto;
use rendez_proto::envelope::Body;
use rendez_proto::hello_reply::Outcome;

use super::raw::{PREAMBLE, Raw, connect, hello, lane_pair, send};
use super::support::{Answers, BOTH, Task, config, memory, offer, start, start_with};

#[test]
fn no_descriptor_is_left_open() {
    let output = std::process::Command::new(std::env::current_exe().expect("our binary"))
        .args([
            "--exact",
            "children::child",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("RENDEZ_TEST_ROLE", "leaks")
        .output()
        .expect("a child");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn open() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .count()
}

/// In the child: every path that ends a connection, twice over what a leak of one would need to show.
pub(crate) fn run() {
    for kind in BOTH {
        let a = start_with(
            config("a", 1, kind),
            Answers {
                segments: 40,
                ..Answers::default()
            },
        );
        // The first round may open what is opened once for good.
        round(&a, 1);
        settle(&a, 2);
        let before = open();
        for index in 0..10 {
            round(&a, 100 * (index + 1));
        }
        settle(&a, 3);
        // What another thread is closing may take a moment, now as at the first count: only a leak takes for ever,
        // and ten rounds of one are more than what was still open then.
        let deadline = std::time::Instant::now() + super::support::PATIENCE;
        while open() > before {
            assert!(
                std::time::Instant::now() < deadline,
                "{kind:?}: {before} descriptors before, {} after",
                open()
            );
            std::thread::yield_now();
        }
        a.stop();
    }
}

/// Connects and leaves once more: all that came before is dealt with then.
fn settle(a: &Task, incarnation: u64) {
    let last = start(config("last", incarnation, RuntimeKind::Poll));
    last.dial(a, "a");
    let _ = (a.up(), last.up());
    last.stop();
    let _ = a.gone();
}

/// The others run on poll: a glommio executor leaves one eventfd behind whenever it ends, which is none of ours.
fn round(a: &Task, base: u64) {
    let kind = RuntimeKind::Poll;
    // A whole life with segments both ways.
    let b = start_with(
        config("b", base, kind),
        Answers {
            segments: 40,
            ..Answers::default()
        },
    );
    b.dial(a, "a");
    let _ = (a.up(), b.up());
    for segment in 100..120 {
        b.control
            .announce(offer("b", 0, segment))
            .expect("announced");
    }
    for _ in 100..120 {
        let _ = a.segment();
    }
    b.stop();
    let _ = a.gone();
    // Refused by the one dialled, after all was offered.
    let no = Some(Status::new(Code::ResourceExhausted, "PEER_REFUSED", "no"));
    let b = start_with(
        config("b", base + 1, kind),
        Answers {
            refuse_link: no,
            ..Answers::default()
        },
    );
    a.dial(&b, "b");
    let _ = a.dial_failed();
    b.stop();
    // Strangers.
    connect(a.control.address())
        .write_all(b"garbage!")
        .expect("sent");
    let spare = lane_pair();
    send(
        connect(a.control.address()),
        PREAMBLE,
        &[spare.0.as_fd(), spare.1.as_fd()],
    );
    let mut raw = Raw::connect(a.control.address());
    assert!(matches!(
        raw.greet(hello("c", "a", base + 2)),
        Outcome::Accepted(_)
    ));
    raw.pass(1, &(0..20).map(|_| memory("x")).collect::<Vec<_>>());
    let entries = vec![proto::Descriptor { kind: None }];
    raw.say(
        2,
        false,
        Body::Descriptors(proto::Descriptors {
            batch: 1,
            entries,
            last: true,
        }),
    );
    assert!(matches!(
        raw.hear().and_then(|envelope| envelope.body),
        Some(Body::Error(_))
    ));
    assert!(raw.is_closed());
    // Descriptors that are never taken out of the lane.
    let mut raw = Raw::connect(a.control.address());
    assert!(matches!(
        raw.greet(hello("c", "a", base + 3)),
        Outcome::Accepted(_)
    ));
    raw.pass(1, &(0..20).map(|_| memory("x")).collect::<Vec<_>>());
}
