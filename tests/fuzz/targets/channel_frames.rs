//! A peer that says anything at all: the channel hears a violation or a frame, and never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez::channel::{Channel, ChannelSettings, Demand, Heard, Payload, Rules, Violation};
use rendez::ground::{DType, FrameIter, Incarnation, Nanos, Region, Shape, StepId, TensorMeta};
use rendez::rendezvous::KeyId;
use rendez::wire::message::{Hello, Push};
use rendez::wire::{Frame, Kind, Message, Point};

#[derive(Debug)]
struct Value(Vec<u8>);

impl Payload for Value {
    fn meta(&self) -> TensorMeta {
        let shape = Shape::new(&[self.0.len() as u64]).expect("a shape");
        TensorMeta::new(DType::U8, shape).expect("small")
    }

    fn size(&self) -> usize {
        self.0.len()
    }

    fn data(&self) -> Option<&[u8]> {
        Some(&self.0)
    }

    fn is_dead(&self) -> bool {
        false
    }

    fn region(&self) -> Option<Region> {
        let len = self.0.len() as u64;
        (len >= LENT).then(|| Region {
            len,
            ..Region::default()
        })
    }
}

/// Values as long as this can be read in place, and come back.
const LENT: u64 = 500;

const POINT: Point = Point {
    step: StepId(1),
    at: FrameIter { frame: 0, iter: 0 },
};

fn settings() -> ChannelSettings {
    ChannelSettings {
        incarnation: Incarnation(1),
        frame_window: 8,
        line_window: 64,
        inline_max: 64,
        read_domain: true,
        requests: 8,
        offers: 8,
        interned: 4,
        ack_delay_ns: 10,
        rules: Rules::ALL,
    }
}

fn transmit(channel: &mut Channel<Value>, now: Nanos) {
    channel.transmit(now, &|_| "a;b;c".into(), &mut |_, _| true);
}

/// A channel that is up, with something of everything under way.
fn busy() -> Channel<Value> {
    let mut channel = Channel::new(settings());
    channel.connected();
    transmit(&mut channel, Nanos(0));
    let hello = Hello {
        incarnation: Incarnation(2),
        epoch: 1,
        frame_window: 8,
        line_window: 64,
        ..Hello::default()
    };
    let (frame, body) = Message::Hello(hello).emit();
    let tail = frame.tail();
    channel
        .handle_frame(Nanos(0), &frame, &tail, body.as_bytes())
        .expect("an honest hello");
    for len in [8, 40, 400, LENT as usize] {
        let _ = channel.push(KeyId(0), POINT, 0, &mut Some(Value(vec![0; len])), None);
    }
    if let Ok(ticket) = channel.demand(Demand::new(0, KeyId(0), POINT, 0)) {
        channel.ask(ticket, 0, None);
    }
    transmit(&mut channel, Nanos(1));
    channel
}

fuzz_target!(|bytes: &[u8]| {
    let mut channel = busy();
    let mut now = Nanos(2);
    let mut rest = bytes;
    while let Some((head, after)) = rest.split_first_chunk::<64>() {
        let frame = Frame::from_bytes(head);
        let tail = frame.tail();
        let len = if frame.body_is_inline() {
            0
        } else {
            frame.body_len() as usize
        };
        let (body, after) = after.split_at(len.min(after.len()));
        rest = after;
        now = now + 1;
        // By kind, as a shard does.
        if frame.kind() == Kind::Push as u8 {
            let heard = Push::parse(&frame, &tail, body).map_err(Violation::from);
            match heard.and_then(|push| channel.handle_push(now, &frame, &push)) {
                Ok(push) => channel.take_lines(now, push.lines),
                Err(_) => return,
            }
            transmit(&mut channel, now);
            continue;
        }
        if frame.kind() == Kind::Offer as u8 {
            match channel.handle_offer(now, &frame, &tail, body, &mut None) {
                Ok(offer) => {
                    if let Some(lent) = offer.lent {
                        let value = channel.lent(lent).expect("it was on offer just now");
                        assert_eq!(value.0.len() as u64, offer.offer.size);
                    }
                    channel.take_lines(now, offer.offer.lines);
                }
                Err(_) => return,
            }
            transmit(&mut channel, now);
            continue;
        }
        match channel.handle_frame(now, &frame, &tail, body) {
            Ok(Heard::Intern { number, .. }) => {
                let _ = channel.interned(number, KeyId(0));
            }
            Ok(Heard::Request(request)) => channel.park_request(request.request, 1),
            Ok(Heard::Cancel { request, .. }) => channel.answer_cancel(request),
            Ok(_) => {}
            Err(_) => return,
        }
        transmit(&mut channel, now);
    }
});
