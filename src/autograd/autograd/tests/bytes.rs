//! Golden bytes of autograd: every kind of message, and the envelope of a call.

use rendez::control::PROTOCOL_VERSION;

use rendez::ground::{Status, catalogue};

use super::super::codec::{decode, decode_envelope, encode, encode_envelope};
use super::super::ids::{ContextId, MessageId, PassId, WorkerId};
use super::super::message::{Body, Envelope, Message, Mode, Options, Port, Session, Standing};

#[path = "../../../../tests/golden/mod.rs"]
mod golden;

/// No two numbers alike, so that exchanged ones show.
const CONTEXT: ContextId = ContextId::from_wire(0x0102_0304_0506_0708);
const MESSAGE: MessageId = MessageId::from_wire(0x1112_1314_1516_1718);
const PASS: PassId = PassId {
    context: CONTEXT,
    root: WorkerId(0x2122),
    number: 0x3132_3334,
};
const OPTIONS: Options = Options {
    mode: Mode::Smart,
    retain: false,
};

fn bodies() -> Vec<(&'static str, Body<u8>)> {
    let options = Options {
        mode: Mode::Fast,
        retain: true,
    };
    let ports = vec![Port {
        message: MESSAGE,
        index: 0x4142,
    }];
    let standing = |example| Standing {
        version: 0x5152_5354,
        outstanding: 0x6162_6364,
        example,
        to_root: 0x7172_7374,
    };
    let standings = vec![
        (WorkerId(0x4344), standing(Some(MESSAGE))),
        (WorkerId(0x4546), standing(None)),
    ];
    let error = Status::of(catalogue::AUTOGRAD_WORKER_DEAD, "worker 3 is dead");
    vec![
        ("joined", Body::Joined { context: CONTEXT }),
        (
            "release",
            Body::Release {
                context: CONTEXT,
                oldest: 0x8182_8384_8586_8788,
            },
        ),
        (
            "mark",
            Body::Mark {
                pass: PASS,
                options: OPTIONS,
                ports,
            },
        ),
        (
            "gradient",
            Body::Gradient {
                pass: PASS,
                options,
                message: MESSAGE,
                gradients: vec![Some(1), None, Some(2)],
            },
        ),
        (
            "ack",
            Body::Ack {
                pass: PASS,
                of: 0x9192_9394_9596_9798,
                standings,
            },
        ),
        ("fail", Body::Fail { pass: PASS, error }),
        ("forgot", Body::Forgot),
        ("doubt", Body::Doubt { pass: PASS }),
    ]
}

#[test]
fn every_message_has_the_bytes_it_always_had() {
    let session = |life| Session {
        life,
        losses: 0xa1a2_a3a4,
    };
    let mut messages = vec![];
    for (name, body) in bodies() {
        let message = Message {
            from: session(0xb1b2_b3b4_b5b6_b7b8),
            to: (name != "joined").then(|| session(0xc1c2_c3c4_c5c6_c7c8)),
            number: 0xd1d2_d3d4_d5d6_d7d8,
            body,
        };
        let (bytes, beside) = encode(&message);
        assert_eq!(decode(&bytes, beside), Ok(message));
        messages.push((name, bytes));
    }
    let envelope = Envelope {
        context: CONTEXT,
        message: MESSAGE,
        requires: vec![true, false, true],
    };
    let bytes = encode_envelope(&envelope);
    assert_eq!(decode_envelope(&bytes), Ok(envelope));
    messages.push(("envelope", bytes));
    golden::hold(&format!("autograd_v{PROTOCOL_VERSION}"), &messages);
}
