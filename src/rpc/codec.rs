//! The bytes of a message: a kind, numbers of variable length (LEB128), texts with their length before them.
//!
//! What comes from a peer is a claim. Reading never allocates more than the bytes that are there can fill, has no
//! recursion, and refuses what does not end where the message ends.

use crate::id::{CallId, GlobalId, WorkerId};
use crate::message::{
    Answer, Body, Call, Control, Fault, FaultKind, Hello, Message, Outcome, Reference, Rest,
    Standing, Target,
};

/// More references than one message may carry.
pub const REFERENCES_MAX: usize = 1 << 16;
/// More causes than a failure may name.
pub const CAUSES_MAX: usize = 64;
/// Bytes of what a failure says, and of each of its causes, that travel: a status shows no more.
pub(crate) const FAULT_BYTES_MAX: usize = rendez::ground::limits::STATUS_MESSAGE_BYTES_MAX;
/// Bytes of a backtrace that travel.
pub(crate) const BACKTRACE_BYTES_MAX: usize = 64 << 10;

/// Why bytes are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no message: {0}")]
pub struct Malformed(pub &'static str);

/// What a payload is on the wire.
pub trait OnWire: Sized {
    /// Writes all that travels in the head.
    fn write(&self, writer: &mut Writer);
    /// Reads what [`OnWire::write`] wrote.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// Bytes that are written.
#[derive(Debug, Default)]
pub struct Writer {
    /// The bytes so far.
    pub bytes: Vec<u8>,
}

impl Writer {
    /// A byte.
    pub fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// A number, seven bits a byte, the lowest first.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// A number of eight bytes.
    pub fn word(&mut self, word: u64) {
        self.bytes.extend_from_slice(&word.to_le_bytes());
    }

    /// Bytes, their count before them.
    pub fn block(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A text.
    pub fn text(&mut self, text: &str) {
        self.block(text.as_bytes());
    }
}

/// Bytes that are read.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What is left.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or(Malformed("it ends too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// A byte.
    ///
    /// # Errors
    /// There is none.
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    /// A number.
    ///
    /// # Errors
    /// It has more than 64 bits, or ends too early.
    pub fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(Malformed("a number of more than 64 bits"));
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed("a number of more than 64 bits"))
    }

    /// A number of eight bytes.
    ///
    /// # Errors
    /// It ends too early.
    pub fn word(&mut self) -> Result<u64, Malformed> {
        let mut word = [0; 8];
        word.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(word))
    }

    /// A count of things of at least one byte each.
    ///
    /// # Errors
    /// There are fewer bytes left, or it is over `most`.
    pub fn count(&mut self, most: usize) -> Result<usize, Malformed> {
        let count =
            usize::try_from(self.number()?).map_err(|_| Malformed("a count out of range"))?;
        match count <= self.rest.len() && count <= most {
            true => Ok(count),
            false => Err(Malformed("a count that is larger than what follows")),
        }
    }

    /// Bytes.
    ///
    /// # Errors
    /// They end too early.
    pub fn block(&mut self) -> Result<&'a [u8], Malformed> {
        let count = self.count(usize::MAX)?;
        self.take(count)
    }

    /// A text.
    ///
    /// # Errors
    /// It ends too early, or is not UTF-8.
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.block()?).map_err(|_| Malformed("a text that is not UTF-8"))
    }
}

const HELLO: u8 = 0;
const LEAVE: u8 = 1;
const CALL: u8 = 2;
const REMOTE: u8 = 3;
const FETCH: u8 = 4;
const VALUE: u8 = 5;
const FAULT: u8 = 6;
const CONTROL: u8 = 7;
const ACK: u8 = 8;
/// An agent that does not know it takes it for no message, and so ends what it says is over.
const OVER: u8 = 9;

/// The bytes of `message`.
pub fn encode<P: OnWire>(message: &Message<P>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(96);
    encode_into(message, &mut bytes);
    bytes
}

/// Writes `message` behind the bytes that there are.
pub fn encode_into<P: OnWire>(message: &Message<P>, bytes: &mut Vec<u8>) {
    let mut writer = Writer {
        bytes: std::mem::take(bytes),
    };
    writer.byte(match &message.body {
        Body::Hello(_) => HELLO,
        Body::Leave => LEAVE,
        Body::Over(_) => OVER,
        Body::Call(call) => match call.target {
            Target::Function(_) => CALL,
            Target::Remote { .. } => REMOTE,
            Target::Fetch(_) => FETCH,
        },
        Body::Reply {
            outcome: Outcome::Value { .. },
            ..
        } => VALUE,
        Body::Reply {
            outcome: Outcome::Fault(_),
            ..
        } => FAULT,
        Body::Control { .. } => CONTROL,
        Body::Ack { .. } => ACK,
    });
    writer.word(u64::from(message.from_life) << 32 | u64::from(message.to_life));
    match &message.body {
        Body::Hello(hello) => write_hello(&mut writer, hello),
        Body::Leave => {}
        Body::Over(why) => writer.text(why),
        Body::Call(call) => write_call(&mut writer, call),
        Body::Reply { id, outcome } => {
            writer.number(id.0);
            match outcome {
                Outcome::Value {
                    payload,
                    references,
                } => {
                    write_references(&mut writer, references);
                    payload.write(&mut writer);
                }
                Outcome::Fault(fault) => write_fault(&mut writer, fault),
            }
        }
        Body::Control {
            id,
            settled,
            control,
        } => {
            writer.number(id.0);
            writer.number(id.0.wrapping_sub(settled.0));
            write_control(&mut writer, *control);
        }
        Body::Ack { id, answer } => {
            writer.number(id.0);
            write_answer(&mut writer, *answer);
        }
    }
    *bytes = writer.bytes;
}

/// The message that `bytes` are.
///
/// # Errors
/// What is wrong with them.
pub fn decode<P: OnWire>(bytes: &[u8]) -> Result<Message<P>, Malformed> {
    let mut reader = Reader::new(bytes);
    let kind = reader.byte()?;
    let lives = reader.word()?;
    let (from_life, to_life) = ((lives >> 32) as u32, lives as u32);
    if from_life == 0 {
        return Err(Malformed("a life of zero"));
    }
    let reader_ref = &mut reader;
    let body = match kind {
        HELLO => Body::Hello(read_hello(reader_ref)?),
        LEAVE => Body::Leave,
        OVER => Body::Over(reader_ref.text()?.to_owned()),
        CALL | REMOTE | FETCH => Body::Call(read_call(kind, reader_ref)?),
        VALUE => {
            let id = CallId(reader_ref.number()?);
            let references = read_references(reader_ref)?;
            let payload = P::read(reader_ref)?;
            Body::Reply {
                id,
                outcome: Outcome::Value {
                    payload,
                    references,
                },
            }
        }
        FAULT => Body::Reply {
            id: CallId(reader_ref.number()?),
            outcome: Outcome::Fault(read_fault(reader_ref)?),
        },
        CONTROL => {
            let id = CallId(reader_ref.number()?);
            let settled = read_settled(id, reader_ref)?;
            Body::Control {
                id,
                settled,
                control: read_control(reader_ref)?,
            }
        }
        ACK => Body::Ack {
            id: CallId(reader_ref.number()?),
            answer: read_answer(reader_ref)?,
        },
        _ => return Err(Malformed("a kind of message that there is not")),
    };
    match reader.rest().is_empty() {
        true => Ok(Message {
            from_life,
            to_life,
            body,
        }),
        false => Err(Malformed("it goes on behind its end")),
    }
}

/// Whether bytes that are no message begin as one that tensors may follow, by other ways.
pub(crate) fn may_have_tensors(bytes: &[u8]) -> bool {
    matches!(bytes, [CALL | REMOTE | FETCH | VALUE, ..])
}

fn read_settled(id: CallId, reader: &mut Reader<'_>) -> Result<CallId, Malformed> {
    let behind = reader.number()?;
    id.0.checked_sub(behind)
        .map(CallId)
        .ok_or(Malformed("it settles what is below zero"))
}

fn write_hello(writer: &mut Writer, hello: &Hello) {
    writer.word(hello.roster);
    writer.byte(u8::from(hello.wants_answer));
    writer.text(&hello.name);
    writer.text(&hello.task);
    writer.text(&hello.address);
}

fn read_hello(reader: &mut Reader<'_>) -> Result<Hello, Malformed> {
    let roster = reader.word()?;
    let wants_answer = reader.byte()? != 0;
    Ok(Hello {
        roster,
        wants_answer,
        name: reader.text()?.into(),
        task: reader.text()?.into(),
        address: reader.text()?.into(),
    })
}

fn write_call<P: OnWire>(writer: &mut Writer, call: &Call<P>) {
    writer.number(call.id.0);
    writer.number(call.id.0.wrapping_sub(call.settled.0));
    // Zero is "no order": a call is never before itself.
    writer.number(
        call.after
            .map_or(0, |after| call.id.0.wrapping_sub(after.0)),
    );
    // Zero is "no deadline", so what is left is told by one more.
    writer.number(call.budget.map_or(0, |budget| budget.saturating_add(1)));
    match &call.target {
        Target::Function(function) => writer.text(function),
        Target::Remote {
            function,
            rref,
            fork,
        } => {
            writer.text(function);
            writer.word(rref.to_bits());
            writer.word(fork.to_bits());
        }
        Target::Fetch(rref) => writer.word(rref.to_bits()),
    }
    write_references(writer, &call.references);
    call.payload.write(writer);
}

fn read_call<P: OnWire>(kind: u8, reader: &mut Reader<'_>) -> Result<Call<P>, Malformed> {
    let id = CallId(reader.number()?);
    let settled = read_settled(id, reader)?;
    let after = match reader.number()? {
        0 => None,
        back => {
            let after = id.0.checked_sub(back);
            Some(CallId(after.ok_or(Malformed("a call before the first"))?))
        }
    };
    let budget = reader.number()?.checked_sub(1);
    let target = match kind {
        CALL => Target::Function(reader.text()?.into()),
        REMOTE => Target::Remote {
            function: reader.text()?.into(),
            rref: GlobalId::from_bits(reader.word()?),
            fork: GlobalId::from_bits(reader.word()?),
        },
        _ => Target::Fetch(GlobalId::from_bits(reader.word()?)),
    };
    let references = read_references(reader)?;
    let payload = P::read(reader)?;
    Ok(Call {
        id,
        settled,
        after,
        budget,
        target,
        references,
        payload,
    })
}

fn write_references(writer: &mut Writer, references: &[Reference]) {
    writer.number(references.len() as u64);
    for reference in references {
        writer.word(reference.rref.to_bits());
        writer.word(reference.fork.to_bits());
        writer.word(reference.parent.to_bits());
        let (standing, life) = match reference.standing {
            Standing::Known => (0, None),
            Standing::Early(life) => (1, Some(life)),
            Standing::Gone => (2, None),
        };
        writer.number(u64::from(reference.owner.0) << 2 | standing);
        life.into_iter().for_each(|life| writer.number(life.into()));
    }
}

fn read_references(reader: &mut Reader<'_>) -> Result<Vec<Reference>, Malformed> {
    let count = reader.count(REFERENCES_MAX)?;
    let mut references = Vec::new();
    for _ in 0..count {
        let rref = GlobalId::from_bits(reader.word()?);
        let fork = GlobalId::from_bits(reader.word()?);
        let parent = GlobalId::from_bits(reader.word()?);
        let number = reader.number()?;
        let owner = u16::try_from(number >> 2).map_err(|_| Malformed("no worker's number"))?;
        let standing = match number & 3 {
            0 => Standing::Known,
            1 => Standing::Early(read_life(reader)?),
            2 => Standing::Gone,
            _ => return Err(Malformed("a standing that there is not")),
        };
        references.push(Reference {
            rref,
            owner: WorkerId(owner),
            fork,
            parent,
            standing,
        });
    }
    Ok(references)
}

fn read_life(reader: &mut Reader<'_>) -> Result<u32, Malformed> {
    u32::try_from(reader.number()?).map_err(|_| Malformed("no life of a worker"))
}

fn write_fault(writer: &mut Writer, fault: &Fault) {
    writer.byte(fault.kind as u8);
    writer.text(beginning(&fault.message, FAULT_BYTES_MAX));
    writer.text(beginning(&fault.backtrace, BACKTRACE_BYTES_MAX));
    let causes = &fault.causes[..fault.causes.len().min(CAUSES_MAX)];
    writer.number(causes.len() as u64);
    let causes = causes.iter();
    causes.for_each(|cause| writer.text(beginning(cause, FAULT_BYTES_MAX)));
}

/// A head for which its receiver has no room ends all that is between two workers, and what a function says of its
/// failure may be of any length.
fn beginning(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

fn read_fault(reader: &mut Reader<'_>) -> Result<Fault, Malformed> {
    let kind = FaultKind::from_wire(reader.byte()?);
    let kind = kind.ok_or(Malformed("a kind of failure that there is not"))?;
    let message = reader.text()?.into();
    let backtrace = reader.text()?.into();
    let count = reader.count(CAUSES_MAX)?;
    let causes = (0..count)
        .map(|_| reader.text().map(Into::into))
        .collect::<Result<_, _>>()?;
    Ok(Fault {
        kind,
        message,
        causes,
        backtrace,
    })
}

fn write_control(writer: &mut Writer, control: Control) {
    match control {
        Control::Cancel(id) => {
            writer.byte(0);
            writer.number(id.0);
        }
        Control::Took(id) => {
            writer.byte(1);
            writer.number(id.0);
        }
        Control::Delete { rref, fork } => {
            writer.byte(2);
            writer.word(rref.to_bits());
            writer.word(fork.to_bits());
        }
        Control::Fork { rref, fork, early } => {
            writer.byte(if early.is_some() { 6 } else { 3 });
            writer.word(rref.to_bits());
            writer.word(fork.to_bits());
            early
                .into_iter()
                .for_each(|life| writer.number(life.into()));
        }
        Control::Probe => writer.byte(4),
        Control::Proceed => writer.byte(5),
    }
}

fn read_control(reader: &mut Reader<'_>) -> Result<Control, Malformed> {
    let pair = |reader: &mut Reader<'_>| -> Result<_, Malformed> {
        Ok((
            GlobalId::from_bits(reader.word()?),
            GlobalId::from_bits(reader.word()?),
        ))
    };
    Ok(match reader.byte()? {
        0 => Control::Cancel(CallId(reader.number()?)),
        1 => Control::Took(CallId(reader.number()?)),
        2 => {
            let (rref, fork) = pair(reader)?;
            Control::Delete { rref, fork }
        }
        kind @ (3 | 6) => {
            let (rref, fork) = pair(reader)?;
            let early = match kind {
                6 => Some(read_life(reader)?),
                _ => None,
            };
            Control::Fork { rref, fork, early }
        }
        4 => Control::Probe,
        5 => Control::Proceed,
        _ => return Err(Malformed("a control message that there is not")),
    })
}

fn write_answer(writer: &mut Writer, answer: Answer) {
    match answer {
        Answer::Done => writer.byte(0),
        Answer::Unseen => writer.byte(1),
        Answer::Gone => writer.byte(2),
        Answer::Rest(rest) => {
            writer.byte(3);
            writer.byte(u8::from(rest.is_idle));
            writer.number(rest.activity);
        }
    }
}

fn read_answer(reader: &mut Reader<'_>) -> Result<Answer, Malformed> {
    Ok(match reader.byte()? {
        0 => Answer::Done,
        1 => Answer::Unseen,
        2 => Answer::Gone,
        3 => Answer::Rest(Rest {
            is_idle: reader.byte()? != 0,
            activity: reader.number()?,
        }),
        _ => return Err(Malformed("an answer that there is not")),
    })
}

#[cfg(test)]
mod tests;
