//! Golden bytes of remote calls: the head of every kind of message, with the payload that programs send.

use rendez::control::PROTOCOL_VERSION;

use super::super::*;
use crate::payload::{Parts, Payload};
use crate::spans::Trace;

#[path = "../../../../tests/golden/mod.rs"]
mod golden;

/// No two numbers alike, so that exchanged ones show; but one sender made both, as of a value that is created.
const RREF: GlobalId = GlobalId {
    on: WorkerId(2),
    local: 0x0304_0506_0708,
};
const FORK: GlobalId = GlobalId {
    on: WorkerId(2),
    local: 0x1314_1516_1718,
};
const PARENT: GlobalId = GlobalId {
    on: WorkerId(0x2122),
    local: 0x2324_2526_2728,
};
const ID: CallId = CallId(1000);

fn payload() -> Payload {
    Payload::from(Parts {
        types: 0x3132_3334,
        plain: [2, 3][..].into(),
        ..Parts::default()
    })
}

/// With all that a payload may have, a tensor to follow among it.
fn full() -> Payload {
    let (dtype, shape) = (rendez::ground::DType::U8, rendez::ground::Shape::new(&[1]));
    let meta = rendez::ground::TensorMeta::new(dtype, shape.expect("a shape")).expect("small");
    Payload::from(Parts {
        types: 0x3132_3334,
        header: Some(b"header".to_vec().into()),
        trace: Some(Box::new(Trace {
            trace: 0x4142_4344_4546_4748_5152_5354_5556_5758,
            recording: 0x6162_6364_6566_6768,
            span: 0x7172_7374_7576_7778,
        })),
        plain: b"plain"[..].into(),
        tensors: vec![rendez::memory::Tensor::from_bytes(meta, vec![9].into()).expect("as many")],
        ..Parts::default()
    })
}

fn references() -> Vec<Reference> {
    [Standing::Known, Standing::Early(77), Standing::Gone]
        .map(|standing| Reference {
            rref: RREF,
            owner: WorkerId(0x0809),
            fork: FORK,
            parent: PARENT,
            standing,
        })
        .into()
}

fn call(target: Target) -> Call<Payload> {
    Call {
        id: ID,
        settled: CallId(998),
        after: None,
        budget: None,
        target,
        references: vec![],
        payload: payload(),
    }
}

fn bodies() -> Vec<(&'static str, Body<Payload>)> {
    let control = |control| Body::Control {
        id: ID,
        settled: CallId(998),
        control,
    };
    let ack = |answer| Body::Ack { id: ID, answer };
    let value = |payload, references| Body::Reply {
        id: ID,
        outcome: Outcome::Value {
            payload,
            references,
        },
    };
    let function = || Target::Function("add".into());
    let fork = |early| {
        control(Control::Fork {
            rref: RREF,
            fork: FORK,
            early,
        })
    };
    let rest = Rest {
        is_idle: true,
        activity: 300,
    };
    vec![
        (
            "hello",
            Body::Hello(Hello {
                roster: 0x8182_8384_8586_8788,
                name: "w0".into(),
                task: "/job:a/task:0".into(),
                address: "unix:@a".into(),
                wants_answer: true,
            }),
        ),
        ("leave", Body::Leave),
        ("over", Body::Over("you were given up".into())),
        ("call", Body::Call(call(function()))),
        (
            "call_full",
            Body::Call(Call {
                after: Some(CallId(997)),
                budget: Some(1_000_000),
                references: references(),
                payload: full(),
                ..call(function())
            }),
        ),
        (
            "remote",
            Body::Call(call(Target::Remote {
                function: "add".into(),
                rref: RREF,
                fork: FORK,
            })),
        ),
        ("fetch", Body::Call(call(Target::Fetch(RREF)))),
        ("value", value(payload(), vec![])),
        ("value_full", value(full(), references())),
        (
            "fault",
            Body::Reply {
                id: ID,
                outcome: Outcome::Fault(Fault {
                    kind: FaultKind::Panic,
                    message: "it failed".into(),
                    causes: vec!["one".into(), "another".into()],
                    backtrace: "at main".into(),
                }),
            },
        ),
        ("cancel", control(Control::Cancel(CallId(999)))),
        ("took", control(Control::Took(CallId(999)))),
        (
            "delete",
            control(Control::Delete {
                rref: RREF,
                fork: FORK,
            }),
        ),
        ("fork", fork(None)),
        ("fork_early", fork(Some(77))),
        ("probe", control(Control::Probe)),
        ("proceed", control(Control::Proceed)),
        ("done", ack(Answer::Done)),
        ("unseen", ack(Answer::Unseen)),
        ("gone", ack(Answer::Gone)),
        ("rest", ack(Answer::Rest(rest))),
    ]
}

#[test]
fn every_message_has_the_bytes_it_always_had() {
    let messages: Vec<_> = bodies()
        .into_iter()
        .zip(1000..)
        .map(|((name, mut body), number)| {
            // One conversation: no number comes twice.
            match &mut body {
                Body::Call(call) => call.id = CallId(number),
                Body::Reply { id, .. } | Body::Control { id, .. } | Body::Ack { id, .. } => {
                    *id = CallId(number);
                }
                Body::Hello(_) | Body::Leave | Body::Over(_) => {}
            }
            let message = Message {
                from_life: 0x9192_9394,
                to_life: 0xa1a2_a3a4,
                body,
            };
            let bytes = encode(&message);
            let read = decode::<Payload>(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
            // Tensors come beside it: of them the head says only how many and how large.
            if !name.ends_with("_full") {
                assert_eq!(format!("{read:?}"), format!("{message:?}"));
            }
            (name, bytes)
        })
        .collect();
    for kind in HELLO..=OVER {
        assert!(messages.iter().any(|(_, bytes)| bytes[0] == kind), "{kind}");
    }
    let kinds = FaultKind::ALL.iter().map(|kind| *kind as u8);
    assert!(kinds.eq(0..=8));
    golden::hold(&format!("calls_v{PROTOCOL_VERSION}"), &messages);
}
