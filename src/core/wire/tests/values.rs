//! Messages of every kind, as proptest makes them and as plain examples.

use proptest::prelude::*;

use crate::ground::{
    Code, DType, FrameIter, Incarnation, MemoryKind, Region, Shape, StepId, TensorMeta,
};
use crate::wire::message::{Hello, Offer, Push, Request, StatusText, Subject};
use crate::wire::{Kind, Message, Point, Ticket};

/// The owned parts of any message.
#[derive(Clone, Debug)]
pub(super) struct AnyValue {
    pub(super) kind: Kind,
    pub(super) subject: Subject,
    pub(super) ticket: Ticket,
    pub(super) other: Option<Ticket>,
    pub(super) small: TensorMeta,
    pub(super) data: Vec<u8>,
    pub(super) large: TensorMeta,
    pub(super) size: u64,
    pub(super) region: Option<Region>,
    pub(super) flag: bool,
    pub(super) number: u64,
    pub(super) code: Code,
    pub(super) text: String,
    pub(super) hello: Hello,
}

impl AnyValue {
    /// An unremarkable message of `kind`.
    pub(super) fn plain(kind: Kind) -> Self {
        let scalar = TensorMeta::new(DType::F64, Shape::SCALAR).expect("a scalar");
        Self {
            kind,
            subject: Subject::default(),
            ticket: Ticket {
                index: 5,
                generation: 2,
            },
            other: None,
            small: scalar,
            data: vec![1, 2, 3, 4, 5, 6, 7, 8],
            large: scalar,
            size: 8,
            region: None,
            flag: false,
            number: 7,
            code: Code::Aborted,
            text: "a;b;c".into(),
            hello: Hello {
                frame_window: 4,
                line_window: 4,
                ..Hello::default()
            },
        }
    }

    /// The region, where the value can lie in one: no memory is of 2⁵⁶ bytes.
    fn region(&self) -> Option<Region> {
        self.region.filter(|_| self.size < 1 << 56)
    }

    /// A stamp, where a push of this value has a place for one.
    fn stamp(&self) -> u64 {
        let dims: Vec<u64> = self.small.shape.dims().collect();
        let has_place = match (dims.as_slice(), self.small.dtype.size()) {
            (_, None) => false,
            ([], Some(size)) => size <= 8,
            ([_, rest @ ..], Some(_)) => rest.len() < 4 && rest.iter().all(|dim| *dim != 0),
        };
        // Small numbers are of plain examples.
        if self.other.is_none() && has_place && self.number > 7 {
            self.number | 1
        } else {
            0
        }
    }

    pub(super) fn message(&self) -> Message<'_> {
        let status = StatusText {
            code: self.code,
            is_derived: self.flag,
            message: &self.text,
        };
        match self.kind {
            Kind::Push => Message::Push(Push {
                subject: self.subject,
                meta: self.small,
                is_dead: self.flag,
                request: self.other,
                data: &self.data,
                // What answers a request says no stamp, nor does what has no place for one.
                stamp: self.stamp(),
            }),
            Kind::Offer => Message::Offer(Offer {
                subject: self.subject,
                meta: self.large,
                is_dead: self.flag,
                request: self.other,
                offer: self.ticket,
                size: self.size,
                region: self.region().map(|region| Region {
                    len: self.size,
                    ..region
                }),
                // Bytes lie in one place.
                lent: self
                    .region()
                    .is_none()
                    .then(|| Ticket::unpack(self.number as u32))
                    .filter(|_| self.number.is_multiple_of(2)),
                stamp: u64::from(self.ticket.index),
            }),
            Kind::Request => Message::Request(Request {
                subject: self.subject,
                request: self.ticket,
                offer: self.other,
                patience_ns: self.number,
                landing: self.region.map(|region| (region, self.large)),
            }),
            Kind::Cancel => Message::Cancel(self.ticket),
            Kind::Cancelled => Message::Cancelled(self.ticket),
            Kind::Failed => Message::Failed(self.ticket, status),
            Kind::Release => {
                Message::Release(self.ticket, &self.data[..self.data.len().min(16) & !3])
            }
            Kind::Recall => Message::Recall(self.ticket),
            Kind::Credit => Message::Credit,
            Kind::Intern => Message::Intern(self.ticket, &self.text),
            Kind::Abort => Message::Abort(StepId(self.number), status),
            Kind::Hello => Message::Hello(self.hello),
            Kind::Finish => Message::Finish(StepId(self.number)),
            Kind::Drain => Message::Drain,
            Kind::Held => Message::Held(self.ticket, &self.data[..self.data.len().min(16) & !3]),
        }
    }
}

fn any_ticket() -> impl Strategy<Value = Ticket> {
    any::<u32>().prop_map(Ticket::unpack)
}

fn any_subject() -> impl Strategy<Value = Subject> {
    (any_ticket(), any::<[u64; 3]>(), any::<u32>()).prop_map(
        |(key, [step, frame, iter], ordinal)| Subject {
            key,
            point: Point {
                step: StepId(step),
                at: FrameIter { frame, iter },
            },
            ordinal,
        },
    )
}

fn any_dtype() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL)
}

/// Metadata whose value fits a push.
fn small_meta() -> impl Strategy<Value = TensorMeta> {
    (any_dtype(), prop::collection::vec(0..4_u64, 0..=8)).prop_filter_map(
        "fits a push",
        |(dtype, dims)| {
            let meta = TensorMeta::new(dtype, Shape::new(&dims).ok()?).ok()?;
            (meta.size().unwrap_or(0) <= 1024).then_some(meta)
        },
    )
}

/// Any metadata at all.
fn large_meta() -> impl Strategy<Value = TensorMeta> {
    let dim = prop_oneof![0..5_u64, 0..1_u64 << 20, Just(1 << 31), Just(1 << 33)];
    (any_dtype(), prop::collection::vec(dim, 0..=8))
        .prop_filter_map("is a shape", |(dtype, dims)| {
            TensorMeta::new(dtype, Shape::new(&dims).ok()?).ok()
        })
}

fn any_region() -> impl Strategy<Value = Region> {
    let kinds = prop::sample::select(MemoryKind::ALL);
    let numbers = (any::<[u16; 2]>(), any::<u32>(), any::<[u64; 2]>());
    (numbers, kinds, any::<bool>()).prop_map(
        |(([arena, segment], generation, [offset, len]), kind, owns_pages)| Region {
            arena,
            segment,
            generation,
            offset,
            len: len >> 8,
            kind,
            owns_pages,
        },
    )
}

fn any_hello() -> impl Strategy<Value = Hello> {
    (any::<[u64; 5]>(), any::<[u16; 2]>()).prop_map(|(numbers, [frame_window, line_window])| {
        let [incarnation, expected, epoch, peer_epoch, consumed] = numbers;
        Hello {
            incarnation: Incarnation(incarnation),
            expected: Incarnation(expected),
            epoch,
            peer_epoch,
            consumed,
            frame_window,
            line_window,
        }
    })
}

/// A message of any kind, with any fields that an honest peer can give them.
pub(super) fn any_value() -> impl Strategy<Value = AnyValue> {
    let names = (
        prop::sample::select(Kind::ALL),
        any_subject(),
        any_ticket(),
        prop::option::of(any_ticket()),
    );
    let metas = (small_meta(), large_meta(), any::<u64>());
    let rest = (
        prop::option::of(any_region()),
        any::<bool>(),
        any::<u64>(),
        prop::sample::select(Code::ALL),
        ".{0,40}",
        any_hello(),
    );
    let data = prop::collection::vec(any::<u8>(), 1024);
    (names, metas, rest, data, 0..200_usize).prop_map(
        |(names, metas, rest, mut data, of_strings)| {
            let (kind, subject, ticket, other) = names;
            let (small, large, size) = metas;
            let (region, flag, number, code, text, hello) = rest;
            // The bytes of a fixed-size type are as many as its shape says; of strings any number.
            data.truncate(small.size().map_or(of_strings, |size| size as usize));
            AnyValue {
                kind,
                subject,
                ticket,
                other,
                small,
                data,
                large,
                size: large.size().unwrap_or(size),
                region,
                flag,
                number,
                code,
                text,
                hello,
            }
        },
    )
}
