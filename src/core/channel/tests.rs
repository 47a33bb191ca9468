//! Tests of the channel as a pure machine: a frame is built, handled, and what must follow is stated.
//!
//! `hello`, `bounds`, `credit`, `keys`, `flows`, `lent`, `drain` and `resume` hold one channel in the hand and play its
//! peer frame by frame; `pair` and `asking` wire two back to back over a connection that breaks.

mod asking;
mod bounds;
mod credit;
mod drain;
mod dropped;
mod flows;
mod hello;
mod keys;
mod lent;
mod pair;
mod resume;

use super::{
    Channel, ChannelSettings, Demand, Heard, NoPush, OfferHeard, Payload, PushHeard, Rules,
    Violation, subject_of,
};
use crate::ground::{DType, Incarnation, Nanos, Region, Shape, StepId, TensorMeta};
use crate::rendezvous::KeyId;
use crate::wire::message::{Hello, Offer, Push, Request, Subject};
use crate::wire::{Frame, INLINE_BODY_MAX, Kind, Message, Point, Ticket};

pub(super) const NOW: Nanos = Nanos(1_000_000);
const OURS: Incarnation = Incarnation(0xa);
const THEIRS: Incarnation = Incarnation(0xb);
/// Frames that may be in flight, either way.
pub(super) const FRAMES: u16 = 8;
/// Lines that may wait, either way.
pub(super) const LINES: u16 = 64;

pub(super) const fn settings(incarnation: Incarnation) -> ChannelSettings {
    ChannelSettings {
        incarnation,
        frame_window: FRAMES,
        line_window: LINES,
        inline_max: 128,
        read_domain: true,
        requests: 16,
        offers: 16,
        interned: 4,
        ack_delay_ns: 1000,
        rules: Rules::ALL,
    }
}

/// A value: bytes, where a peer could read them, and of which of its offers they are a lease.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Value {
    bytes: Vec<u8>,
    region: Option<Region>,
    lent: Option<Ticket>,
    is_host: bool,
}

impl Payload for Value {
    fn meta(&self) -> TensorMeta {
        bytes_meta(self.bytes.len())
    }

    fn size(&self) -> usize {
        self.bytes.len()
    }

    fn data(&self) -> Option<&[u8]> {
        self.is_host.then_some(&self.bytes)
    }

    fn is_dead(&self) -> bool {
        false
    }

    fn region(&self) -> Option<Region> {
        self.region
    }

    fn lent(&self) -> Option<Ticket> {
        self.lent
    }
}

fn value(len: usize) -> Value {
    let bytes = (0..len).map(|at| at as u8).collect();
    Value {
        bytes,
        region: None,
        lent: None,
        is_host: true,
    }
}

fn readable(len: usize) -> Value {
    let region = Region {
        len: len as u64,
        ..Region::default()
    };
    Value {
        region: Some(region),
        ..value(len)
    }
}

fn bytes_meta(len: usize) -> TensorMeta {
    let shape = Shape::new(&[len as u64]).expect("a shape");
    TensorMeta::new(DType::U8, shape).expect("small")
}

const fn ticket(index: u32, generation: u32) -> Ticket {
    Ticket { index, generation }
}

const fn point(step: u64) -> Point {
    Point {
        step: StepId(step),
        at: crate::ground::FrameIter { frame: 0, iter: 0 },
    }
}

/// A frame as a fabric delivers it.
#[derive(Clone, Debug)]
struct Sent {
    frame: Frame,
    tail: [u8; INLINE_BODY_MAX],
    body: Vec<u8>,
}

impl Sent {
    fn new(frame: &Frame, parts: [&[u8]; 2]) -> Self {
        let body = if frame.body_is_inline() {
            vec![]
        } else {
            parts.concat()
        };
        Self {
            frame: *frame,
            tail: frame.tail(),
            body,
        }
    }

    fn of(message: &Message<'_>) -> Self {
        let (frame, body) = message.emit();
        Self::new(&frame, [body.as_bytes(), message.trailing()])
    }

    /// With cumulative credit: frames consumed, lines taken.
    fn crediting(mut self, frames: u16, lines: u16) -> Self {
        self.frame.set_credit(frames, lines);
        self
    }

    fn message(&self) -> Message<'_> {
        Message::parse(&self.frame, &self.tail, &self.body).expect("a channel sends only messages")
    }

    fn kind(&self) -> Kind {
        Kind::from_wire(self.frame.kind()).expect("a kind")
    }
}

fn kinds(sent: &[Sent]) -> Vec<Kind> {
    sent.iter().map(Sent::kind).collect()
}

fn text_of(key: KeyId) -> Box<str> {
    format!("a;b;{}", key.0).into()
}

/// Everything `channel` posts now, up to `room` frames: then the fabric is full.
fn out_to(channel: &mut Channel<Value>, now: Nanos, room: usize) -> Vec<Sent> {
    let mut sent = vec![];
    channel.transmit(now, &text_of, &mut |frame, parts| {
        let has_room = sent.len() < room;
        if has_room {
            sent.push(Sent::new(frame, parts));
        }
        has_room
    });
    sent
}

fn out(channel: &mut Channel<Value>) -> Vec<Sent> {
    out_to(channel, NOW, usize::MAX)
}

/// By kind, as a shard does. What a value says is for [`hear_push`] and [`hear_offer`] to tell.
fn hear<'a>(channel: &mut Channel<Value>, sent: &'a Sent) -> Result<Heard<'a, Value>, Violation> {
    match Kind::from_wire(sent.frame.kind()) {
        Some(Kind::Push) => hear_push(channel, sent).map(|_| Heard::Nothing),
        Some(Kind::Offer) => hear_offer(channel, sent).map(|_| Heard::Nothing),
        _ => channel.handle_frame(NOW, &sent.frame, &sent.tail, &sent.body),
    }
}

fn hear_push<'a>(channel: &mut Channel<Value>, sent: &'a Sent) -> Result<PushHeard<'a>, Violation> {
    let push = Push::parse(&sent.frame, &sent.tail, &sent.body)?;
    channel.handle_push(NOW, &sent.frame, &push)
}

fn hear_offer(
    channel: &mut Channel<Value>,
    sent: &Sent,
) -> Result<(OfferHeard, Option<(Ticket, Demand)>), Violation> {
    let mut answered = None;
    let offer = channel.handle_offer(NOW, &sent.frame, &sent.tail, &sent.body, &mut answered)?;
    Ok((offer, answered))
}

fn hello_of_theirs() -> Hello {
    Hello {
        incarnation: THEIRS,
        epoch: 1,
        frame_window: FRAMES,
        line_window: LINES,
        ..Hello::default()
    }
}

/// A channel that has exchanged hellos.
fn up_with(settings: ChannelSettings) -> Channel<Value> {
    let mut channel = Channel::new(settings);
    greet(&mut channel, hello_of_theirs());
    channel
}

fn up() -> Channel<Value> {
    up_with(settings(OURS))
}

/// Connects `channel` and exchanges hellos. What ours said.
fn greet(channel: &mut Channel<Value>, theirs: Hello) -> Hello {
    channel.connected();
    let sent = out(channel);
    assert_eq!(kinds(&sent), [Kind::Hello]);
    let Message::Hello(ours) = sent[0].message() else {
        unreachable!("its kind is hello");
    };
    let theirs = Sent::of(&Message::Hello(theirs));
    assert!(matches!(hear(channel, &theirs), Ok(Heard::Up { .. })));
    ours
}

/// The peer gives `number` to `key`.
fn interned(channel: &mut Channel<Value>, number: Ticket, key: KeyId) {
    let text = text_of(key);
    let intern = Sent::of(&Message::Intern(number, &text));
    let Ok(Heard::Intern { number, .. }) = hear(channel, &intern) else {
        panic!("an intern is heard as one");
    };
    channel.interned(number, key).expect("within the bound");
}

const KEY: KeyId = KeyId(3);
const NUMBER: Ticket = ticket(0, 0);

/// A channel that is up and knows the peer's number of `KEY`.
fn up_knowing_key() -> Channel<Value> {
    let mut channel = up();
    interned(&mut channel, NUMBER, KEY);
    channel
}

const fn subject(ordinal: u32) -> Subject {
    Subject {
        key: NUMBER,
        point: point(1),
        ordinal,
    }
}

/// The peer's push of `len` bytes.
fn push_of(len: usize, ordinal: u32, request: Option<Ticket>) -> Sent {
    let value = value(len);
    Sent::of(&Message::Push(Push {
        subject: subject(ordinal),
        meta: value.meta(),
        is_dead: false,
        request,
        data: &value.bytes,
        stamp: 0,
    }))
}

fn offer_of(len: usize, offer: Ticket, request: Option<Ticket>) -> Sent {
    Sent::of(&Message::Offer(Offer {
        subject: subject(0),
        meta: bytes_meta(len),
        is_dead: false,
        request,
        offer,
        size: len as u64,
        region: None,
        lent: None,
        stamp: 0,
    }))
}

fn request_of(
    request: Ticket,
    offer: Option<Ticket>,
    landing: Option<(Region, TensorMeta)>,
) -> Sent {
    Sent::of(&Message::Request(Request {
        subject: subject(0),
        request,
        offer,
        patience_ns: 0,
        landing,
    }))
}

fn landing(len: usize) -> (Region, TensorMeta) {
    let region = Region {
        len: len as u64,
        ..Region::default()
    };
    (region, bytes_meta(len))
}

/// A demand of ours, asked with or without a landing.
fn asked(channel: &mut Channel<Value>, landing: Option<(Region, TensorMeta)>) -> Ticket {
    let ticket = channel
        .demand(Demand::new(77, KEY, point(1), 0))
        .expect("a place");
    channel.ask(ticket, 0, landing);
    ticket
}

/// Offers a value that is too long to be pushed; its ticket.
fn offered(channel: &mut Channel<Value>, value: Value) -> Ticket {
    channel
        .push(KEY, point(1), 0, &mut Some(value), None)
        .expect("credit");
    let sent = out(channel);
    let offer = sent.iter().find_map(|sent| match sent.message() {
        Message::Offer(offer) => Some(offer.offer),
        _ => None,
    });
    offer.expect("an offer went out")
}
