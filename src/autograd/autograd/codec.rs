//! Messages and envelopes as bytes; gradients go beside them, in the order in which the bytes name them.
//!
//! Numbers are little-endian. What is read comes from another worker: any bytes give a message or an error, and memory
//! is taken only for what is there.

use super::ids::{ContextId, MessageId, PassId, WorkerId};
use super::message::{Body, Envelope, Message, Mode, Options, Port, Session, Standing};
use rendez::ground::{Code, Status, catalogue};

/// Bytes that are none of these.
fn malformed(what: &str) -> Status {
    Status::of(
        catalogue::AUTOGRAD_MESSAGE,
        format!("a message of autograd is malformed: {what}"),
    )
}

struct Writer(Vec<u8>);

/// Bytes that most messages have fewer than.
const USUAL: usize = 128;

impl Default for Writer {
    fn default() -> Self {
        Self(Vec::with_capacity(USUAL))
    }
}

impl Writer {
    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.0.extend(value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    fn len(&mut self, value: usize) {
        self.u32(u32::try_from(value).unwrap_or(u32::MAX));
    }

    fn text(&mut self, text: &str) {
        self.len(text.len());
        self.0.extend(text.bytes());
    }

    fn session(&mut self, session: Session) {
        self.u64(session.life);
        self.u32(session.losses);
    }

    fn pass(&mut self, pass: PassId) {
        self.u64(pass.context.to_wire());
        self.u16(pass.root.0);
        self.u32(pass.number);
    }

    fn options(&mut self, options: Options) {
        self.u8(u8::from(options.mode == Mode::Smart) | u8::from(options.retain) << 1);
    }

    fn bits(&mut self, bits: impl ExactSizeIterator<Item = bool>) {
        self.len(bits.len());
        bits.for_each(|bit| self.u8(bit.into()));
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Status> {
        let (taken, rest) = self
            .0
            .split_at_checked(len)
            .ok_or_else(|| malformed("it ends too soon"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Status> {
        let (taken, rest) = self
            .0
            .split_first_chunk()
            .ok_or_else(|| malformed("it ends too soon"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, Status> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u16(&mut self) -> Result<u16, Status> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, Status> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Status> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number of things, each of `each` bytes at least.
    fn len(&mut self, each: usize) -> Result<usize, Status> {
        let len = self.u32()? as usize;
        let is_there = len
            .checked_mul(each)
            .is_some_and(|bytes| bytes <= self.0.len());
        if is_there {
            Ok(len)
        } else {
            Err(malformed("it says that more follows than does"))
        }
    }

    fn text(&mut self) -> Result<&'a str, Status> {
        let len = self.len(1)?;
        std::str::from_utf8(self.take(len)?).map_err(|_| malformed("a text is not UTF-8"))
    }

    fn bool(&mut self) -> Result<bool, Status> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(malformed("neither yes nor no")),
        }
    }

    fn session(&mut self) -> Result<Session, Status> {
        Ok(Session {
            life: self.u64()?,
            losses: self.u32()?,
        })
    }

    fn pass(&mut self) -> Result<PassId, Status> {
        let context = ContextId::from_wire(self.u64()?);
        Ok(PassId {
            context,
            root: WorkerId(self.u16()?),
            number: self.u32()?,
        })
    }

    fn options(&mut self) -> Result<Options, Status> {
        match self.u8()? {
            bits @ 0..=3 => {
                let mode = if bits & 1 == 1 {
                    Mode::Smart
                } else {
                    Mode::Fast
                };
                Ok(Options {
                    mode,
                    retain: bits & 2 == 2,
                })
            }
            _ => Err(malformed("options that there are not")),
        }
    }

    fn bits(&mut self) -> Result<Vec<bool>, Status> {
        let len = self.len(1)?;
        (0..len).map(|_| self.bool()).collect()
    }

    fn end(self) -> Result<(), Status> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(malformed("it goes on behind its end"))
        }
    }
}

/// The bytes of an envelope.
#[must_use]
pub fn encode_envelope(envelope: &Envelope) -> Vec<u8> {
    let mut to = Writer::default();
    to.u64(envelope.context.to_wire());
    to.u64(envelope.message.to_wire());
    to.bits(envelope.requires.iter().copied());
    to.0
}

/// The envelope of these bytes.
///
/// # Errors
/// `AUTOGRAD_MESSAGE` if they are none.
pub fn decode_envelope(bytes: &[u8]) -> Result<Envelope, Status> {
    let mut from = Reader(bytes);
    let envelope = Envelope {
        context: ContextId::from_wire(from.u64()?),
        message: MessageId::from_wire(from.u64()?),
        requires: from.bits()?,
    };
    from.end()?;
    Ok(envelope)
}

/// The bytes of a message, and the gradients that go beside them.
#[must_use]
pub fn encode<G: Clone>(message: &Message<G>) -> (Vec<u8>, Vec<G>) {
    let mut to = Writer::default();
    let mut beside = vec![];
    to.session(message.from);
    to.u8(message.to.is_some().into());
    message
        .to
        .into_iter()
        .for_each(|session| to.session(session));
    to.u64(message.number);
    match &message.body {
        Body::Joined { context } => {
            to.u8(0);
            to.u64(context.to_wire());
        }
        Body::Release { context, oldest } => {
            to.u8(1);
            to.u64(context.to_wire());
            to.u64(*oldest);
        }
        Body::Mark {
            pass,
            options,
            ports,
        } => {
            to.u8(2);
            to.pass(*pass);
            to.options(*options);
            to.len(ports.len());
            for port in ports {
                to.u64(port.message.to_wire());
                to.u16(port.index);
            }
        }
        Body::Gradient {
            pass,
            options,
            message,
            gradients,
        } => {
            to.u8(3);
            to.pass(*pass);
            to.options(*options);
            to.u64(message.to_wire());
            to.bits(gradients.iter().map(Option::is_some));
            beside.extend(gradients.iter().flatten().cloned());
        }
        Body::Ack {
            pass,
            of,
            standings,
        } => {
            to.u8(4);
            to.pass(*pass);
            to.u64(*of);
            to.len(standings.len());
            for (worker, standing) in standings {
                to.u16(worker.0);
                to.u32(standing.version);
                to.u32(standing.outstanding);
                to.u8(standing.example.is_some().into());
                to.u64(standing.example.map_or(0, MessageId::to_wire));
                to.u32(standing.to_root);
            }
        }
        Body::Fail { pass, error } => {
            to.u8(5);
            to.pass(*pass);
            to.u8(error.code() as u8);
            to.text(error.reason());
            to.text(error.message());
        }
        Body::Forgot => to.u8(6),
        Body::Doubt { pass } => {
            to.u8(7);
            to.pass(*pass);
        }
    }
    (to.0, beside)
}

/// The message of these bytes and of the gradients that came beside them.
///
/// # Errors
/// `AUTOGRAD_MESSAGE` if they are none.
pub fn decode<G>(bytes: &[u8], beside: Vec<G>) -> Result<Message<G>, Status> {
    let mut from = Reader(bytes);
    let mut beside = beside.into_iter();
    let session = from.session()?;
    let to = match from.bool()? {
        true => Some(from.session()?),
        false => None,
    };
    let number = from.u64()?;
    let body = match from.u8()? {
        0 => Body::Joined {
            context: ContextId::from_wire(from.u64()?),
        },
        1 => Body::Release {
            context: ContextId::from_wire(from.u64()?),
            oldest: from.u64()?,
        },
        2 => {
            let (pass, options) = (from.pass()?, from.options()?);
            let len = from.len(10)?;
            let port = |_| {
                Ok(Port {
                    message: MessageId::from_wire(from.u64()?),
                    index: from.u16()?,
                })
            };
            let ports = (0..len).map(port).collect::<Result<_, Status>>()?;
            Body::Mark {
                pass,
                options,
                ports,
            }
        }
        3 => {
            let (pass, options) = (from.pass()?, from.options()?);
            let message = MessageId::from_wire(from.u64()?);
            let mut gradients = vec![];
            for is_there in from.bits()? {
                let gradient = if is_there { beside.next() } else { None };
                if is_there && gradient.is_none() {
                    return Err(malformed("a gradient is missing"));
                }
                gradients.push(gradient);
            }
            Body::Gradient {
                pass,
                options,
                message,
                gradients,
            }
        }
        4 => {
            let (pass, of) = (from.pass()?, from.u64()?);
            let len = from.len(23)?;
            let standings = (0..len)
                .map(|_| standing(&mut from))
                .collect::<Result<_, Status>>()?;
            Body::Ack {
                pass,
                of,
                standings,
            }
        }
        5 => {
            let (pass, code) = (from.pass()?, from.u8()?);
            let (reason, message) = (from.text()?, from.text()?);
            let error = Status::from_wire(code, false, message);
            let known = catalogue::find(reason).filter(|_| error.code() != Code::Ok);
            let error = match known {
                Some(known) => error.with_reason(known.reason),
                None => error,
            };
            Body::Fail { pass, error }
        }
        6 => Body::Forgot,
        7 => Body::Doubt { pass: from.pass()? },
        _ => return Err(malformed("it is of a kind that there is not")),
    };
    from.end()?;
    if beside.next().is_some() {
        return Err(malformed("a gradient came that it does not name"));
    }
    Ok(Message {
        from: session,
        to,
        number,
        body,
    })
}

fn standing(from: &mut Reader<'_>) -> Result<(WorkerId, Standing), Status> {
    let (worker, version, outstanding) = (WorkerId(from.u16()?), from.u32()?, from.u32()?);
    let (has_example, example) = (from.bool()?, MessageId::from_wire(from.u64()?));
    Ok((
        worker,
        Standing {
            version,
            outstanding,
            example: has_example.then_some(example),
            to_root: from.u32()?,
        },
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
