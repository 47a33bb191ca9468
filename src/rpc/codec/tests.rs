//! Every message comes back from its bytes, and no bytes do harm.

mod bytes;

use proptest::prelude::*;

use super::*;

impl OnWire for Vec<u8> {
    fn write(&self, writer: &mut Writer) {
        writer.block(self);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(reader.block()?.to_vec())
    }
}

fn global() -> impl Strategy<Value = GlobalId> {
    any::<u64>().prop_map(GlobalId::from_bits)
}

fn references() -> impl Strategy<Value = Vec<Reference>> {
    let standing = prop_oneof![
        Just(Standing::Known),
        any::<u32>().prop_map(Standing::Early),
        Just(Standing::Gone),
    ];
    let one = (global(), global(), global(), any::<u16>(), standing);
    let one = one.prop_map(|(rref, fork, parent, owner, standing)| Reference {
        standing,
        rref,
        owner: WorkerId(owner),
        fork,
        parent,
    });
    prop::collection::vec(one, 0..4)
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        ".*".prop_map(|function| Target::Function(function.into())),
        (".*", global(), global()).prop_map(|(function, rref, fork)| Target::Remote {
            function: function.into(),
            rref,
            fork
        }),
        global().prop_map(Target::Fetch),
    ]
}

fn control() -> impl Strategy<Value = Control> {
    prop_oneof![
        any::<u64>().prop_map(|id| Control::Cancel(CallId(id))),
        any::<u64>().prop_map(|id| Control::Took(CallId(id))),
        (global(), global()).prop_map(|(rref, fork)| Control::Delete { rref, fork }),
        (global(), global(), any::<Option<u32>>()).prop_map(|(rref, fork, early)| Control::Fork {
            rref,
            fork,
            early
        }),
        Just(Control::Probe),
        Just(Control::Proceed),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        Just(Answer::Done),
        Just(Answer::Unseen),
        Just(Answer::Gone),
        (any::<bool>(), any::<u64>())
            .prop_map(|(is_idle, activity)| Answer::Rest(Rest { is_idle, activity })),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    (
        0..FaultKind::ALL.len(),
        ".*",
        prop::collection::vec(".*", 0..3),
        ".*",
    )
        .prop_map(|(kind, message, causes, backtrace)| Fault {
            kind: FaultKind::ALL[kind],
            message,
            causes,
            backtrace,
        })
}

fn body() -> impl Strategy<Value = Body<Vec<u8>>> {
    let payload = || prop::collection::vec(any::<u8>(), 0..64);
    let ids =
        || (any::<u64>(), any::<u64>()).prop_map(|(a, b)| (CallId(a.max(b)), CallId(a.min(b))));
    prop_oneof![
        (any::<u64>(), any::<bool>(), ".*", ".*", ".*").prop_map(
            |(roster, wants_answer, name, task, address)| Body::Hello(Hello {
                roster,
                wants_answer,
                name,
                task,
                address
            })
        ),
        Just(Body::Leave),
        ".*".prop_map(Body::Over),
        (
            ids(),
            prop::option::of(0..u64::MAX - 1),
            target(),
            references(),
            payload()
        )
            .prop_map(
                |((id, settled), budget, target, references, payload)| Body::Call(Call {
                    after: (id.0 % 3 > 0).then(|| CallId(id.0 - id.0 % 3)),
                    id,
                    settled,
                    budget,
                    target,
                    references,
                    payload
                })
            ),
        (any::<u64>(), references(), payload()).prop_map(|(id, references, payload)| Body::Reply {
            id: CallId(id),
            outcome: Outcome::Value {
                payload,
                references
            }
        }),
        (any::<u64>(), fault()).prop_map(|(id, fault)| Body::Reply {
            id: CallId(id),
            outcome: Outcome::Fault(fault)
        }),
        (ids(), control()).prop_map(|((id, settled), control)| Body::Control {
            id,
            settled,
            control
        }),
        (any::<u64>(), answer()).prop_map(|(id, answer)| Body::Ack {
            id: CallId(id),
            answer
        }),
    ]
}

proptest! {
    #[test]
    fn a_message_comes_back_from_its_bytes(from_life in 1..u32::MAX, to_life in any::<u32>(), body in body()) {
        let message = Message { from_life, to_life, body };
        let bytes = encode(&message);
        prop_assert_eq!(decode::<Vec<u8>>(&bytes), Ok(message.clone()));
        // Every part of it is needed.
        for cut in 0..bytes.len() {
            prop_assert!(decode::<Vec<u8>>(&bytes[..cut]).is_err());
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let _ = decode::<Vec<u8>>(&bytes);
    }
}

#[test]
fn a_count_beyond_the_bytes_allocates_nothing() {
    let mut bytes = vec![VALUE];
    bytes.extend_from_slice(&[1; 8]);
    bytes.push(0);
    bytes.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x0f]);
    let told = decode::<Vec<u8>>(&bytes);
    assert_eq!(
        told,
        Err(Malformed("a count that is larger than what follows"))
    );
}

#[test]
fn of_a_long_failure_its_beginning_travels() {
    let long = format!("x{}", "é".repeat(1 << 20));
    let fault = Fault {
        causes: vec![long.clone(); CAUSES_MAX + 1],
        backtrace: long.clone(),
        ..Fault::new(FaultKind::Error, long.clone())
    };
    let message: Message<Vec<u8>> = Message {
        from_life: 1,
        to_life: 1,
        body: Body::Reply {
            id: CallId(1),
            outcome: Outcome::Fault(fault),
        },
    };
    let told = decode::<Vec<u8>>(&encode(&message)).expect("a message");
    let Body::Reply {
        outcome: Outcome::Fault(fault),
        ..
    } = told.body
    else {
        panic!("{told:?}");
    };
    let begins = |text: &str, most: usize| long.starts_with(text) && text.len() == most - 1;
    assert!(begins(&fault.message, FAULT_BYTES_MAX));
    assert!(begins(&fault.backtrace, BACKTRACE_BYTES_MAX));
    assert_eq!(fault.causes.len(), CAUSES_MAX);
    assert!(
        fault
            .causes
            .iter()
            .all(|cause| begins(cause, FAULT_BYTES_MAX))
    );
}
