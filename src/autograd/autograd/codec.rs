//! Messages and envelopes as bytes, in postcard's format; gradients go beside them, in the order in which the bytes
//! name them.
//!
//! What is read comes from another worker: any bytes give a message or an error, and memory is taken only for what is
//! there.

use std::convert::Infallible;

use postcard::Error;
use serde::{Deserialize, Serialize};

use super::message::{Envelope, Message};
use rendez::ground::{Status, catalogue};

/// Bytes that are none of these.
fn malformed(what: &str) -> Status {
    Status::of(
        catalogue::AUTOGRAD_MESSAGE,
        format!("a message of autograd is malformed: {what}"),
    )
}

/// Bytes that most messages have fewer than.
const USUAL: usize = 128;

/// All that is in them has bytes. What had none would come as nothing, which is refused.
fn written(value: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(value, Vec::with_capacity(USUAL)).unwrap_or_default()
}

fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Status> {
    Err(malformed(match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => return Ok(value),
        Ok(_) => "it goes on behind its end",
        Err(Error::DeserializeUnexpectedEnd) => "it ends too soon",
        Err(Error::SerdeDeCustom) => "it is of a kind that there is not",
        Err(_) => "it is not well written",
    }))
}

/// The bytes of an envelope.
#[must_use]
pub fn encode_envelope(envelope: &Envelope) -> Vec<u8> {
    written(envelope)
}

/// The envelope of these bytes.
///
/// # Errors
/// `AUTOGRAD_MESSAGE` if they are none.
pub fn decode_envelope(bytes: &[u8]) -> Result<Envelope, Status> {
    read(bytes)
}

/// The bytes of a message, and the gradients that go beside them.
#[must_use]
pub fn encode<G: Clone>(message: &Message<G>) -> (Vec<u8>, Vec<G>) {
    let mut beside = vec![];
    let Ok(message) = message.clone().with(|gradient| {
        beside.push(gradient);
        Ok::<_, Infallible>(())
    });
    (written(&message), beside)
}

/// The message of these bytes and of the gradients that came beside them.
///
/// # Errors
/// `AUTOGRAD_MESSAGE` if they are none.
pub fn decode<G>(bytes: &[u8], beside: Vec<G>) -> Result<Message<G>, Status> {
    let message: Message<()> = read(bytes)?;
    let mut beside = beside.into_iter();
    let gradient = |()| {
        beside
            .next()
            .ok_or_else(|| malformed("a gradient is missing"))
    };
    let message = message.with(gradient)?;
    if beside.next().is_some() {
        return Err(malformed("a gradient came that it does not name"));
    }
    Ok(message)
}

/// What failed, as its code, its reason and its text.
pub(super) mod status {
    use rendez::ground::{Code, Status, catalogue};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        error: &Status,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        (error.code() as u8, error.reason(), error.message()).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Status, D::Error> {
        let (code, reason, message) = <(u8, &str, &str)>::deserialize(from)?;
        let error = Status::from_wire(code, false, message);
        let known = catalogue::find(reason).filter(|_| error.code() != Code::Ok);
        Ok(match known {
            Some(known) => error.with_reason(known.reason),
            None => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::autograd::{
        Body, ContextId, MessageId, Mode, Options, PassId, Port, Session, Standing, WorkerId,
    };

    fn pass() -> impl Strategy<Value = PassId> {
        (any::<u64>(), any::<u16>(), any::<u32>()).prop_map(|(context, root, number)| PassId {
            context: ContextId::from_wire(context),
            root: WorkerId(root),
            number,
        })
    }

    fn options() -> impl Strategy<Value = Options> {
        (any::<bool>(), any::<bool>()).prop_map(|(smart, retain)| {
            let mode = if smart { Mode::Smart } else { Mode::Fast };
            Options { mode, retain }
        })
    }

    fn body() -> impl Strategy<Value = Body<i64>> {
        let context = any::<u64>().prop_map(ContextId::from_wire);
        let message = any::<u64>().prop_map(MessageId::from_wire);
        let port =
            (message.clone(), any::<u16>()).prop_map(|(message, index)| Port { message, index });
        let example = proptest::option::of(message.clone());
        let counts = (any::<u32>(), any::<u32>(), any::<u32>());
        let standing = (any::<u16>(), counts, example).prop_map(
            |(worker, (version, outstanding, to_root), example)| {
                (
                    WorkerId(worker),
                    Standing {
                        version,
                        outstanding,
                        example,
                        to_root,
                    },
                )
            },
        );
        let gradients = proptest::collection::vec(proptest::option::of(any::<i64>()), 0..5);
        prop_oneof![
            context.clone().prop_map(|context| Body::Joined { context }),
            (context, any::<u64>()).prop_map(|(context, oldest)| Body::Release { context, oldest }),
            (pass(), options(), proptest::collection::vec(port, 0..5)).prop_map(
                |(pass, options, ports)| Body::Mark {
                    pass,
                    options,
                    ports
                }
            ),
            (pass(), options(), message, gradients).prop_map(
                |(pass, options, message, gradients)| {
                    Body::Gradient {
                        pass,
                        options,
                        message,
                        gradients,
                    }
                }
            ),
            (
                pass(),
                any::<u64>(),
                proptest::collection::vec(standing, 0..5)
            )
                .prop_map(|(pass, of, standings)| Body::Ack {
                    pass,
                    of,
                    standings
                }),
            (pass(), ".*").prop_map(|(pass, text)| {
                let error = Status::of(catalogue::AUTOGRAD_WORKER_DEAD, text);
                Body::Fail { pass, error }
            }),
            Just(Body::Forgot),
            pass().prop_map(|pass| Body::Doubt { pass }),
        ]
    }

    /// Also what is long only as it says takes no memory.
    #[test]
    fn what_is_wrong_is_said() {
        let pass = PassId {
            context: ContextId::from_wire(0),
            root: WorkerId(0),
            number: 0,
        };
        let session = Session { life: 1, losses: 1 };
        let bytes = |body: Body<()>| {
            let message = Message {
                from: session,
                to: None,
                number: 1,
                body,
            };
            encode(&message).0
        };
        let (options, ports) = (Options::default(), vec![]);
        // Its last byte says how many ports there are.
        let mark = bytes(Body::Mark {
            pass,
            options,
            ports,
        });
        let forgot = bytes(Body::Forgot);
        let (count, kind) = (mark.len() - 1, forgot.len() - 1);
        for (bytes, wrong) in [
            (mark[..count].to_vec(), "it ends too soon"),
            (
                [&mark[..count], &[255, 255, 255, 255, 15, 1, 2]].concat(),
                "it ends too soon",
            ),
            (
                [&forgot[..kind], &[99]].concat(),
                "it is of a kind that there is not",
            ),
            (
                [&forgot[..2], &[2], &forgot[3..]].concat(),
                "it is not well written",
            ),
            ([&forgot[..], &[0]].concat(), "it goes on behind its end"),
        ] {
            let error = decode::<()>(&bytes, vec![]).expect_err(wrong);
            let text = format!("a message of autograd is malformed: {wrong}");
            assert_eq!(error.message(), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(number: u64, to: Option<u64>, body in body()) {
            let session = |life| Session { life, losses: number as u32 };
            let message = Message { from: session(number), to: to.map(session), number, body };
            let (bytes, beside) = encode(&message);
            prop_assert_eq!(decode(&bytes, beside.clone()), Ok(message));
            // Neither a part of it is one, nor more than it.
            for len in 0..bytes.len() {
                prop_assert!(decode(&bytes[..len], beside.clone()).is_err());
            }
            let longer: Vec<_> = bytes.iter().copied().chain([0]).collect();
            prop_assert!(decode(&longer, beside).is_err());
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes: Vec<u8>, beside: u8) {
            let _ = decode(&bytes, vec![1i64; usize::from(beside % 3)]);
            let _ = decode_envelope(&bytes);
        }

        #[test]
        fn envelopes_come_back(context: u64, message: u64, requires: Vec<bool>) {
            let (context, message) = (ContextId::from_wire(context), MessageId::from_wire(message));
            let envelope = Envelope { context, message, requires };
            prop_assert_eq!(decode_envelope(&encode_envelope(&envelope)), Ok(envelope));
        }
    }
}
