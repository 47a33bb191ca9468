//! Two channels back to back over a connection that is slow, full, and breaks at any time.
//!
//! What must hold whatever happens: every value that one side was allowed to push comes out at the other exactly
//! once and in order, small ones and offered ones alike; credit is conserved; and at rest nothing is left.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Side 0 or 1 pushes a value of so many bytes under one of a few keys, and posts it at once if it may and the
    /// fabric has room.
    Push(usize, usize, u32, bool),
    /// A side posts, as far as the fabric has room.
    Post(usize, usize),
    /// A side's peer hears so many of its frames.
    Hear(usize, usize),
    /// A side takes so many of the values that wait there.
    Take(usize, usize),
    /// The connection breaks; what was under way is lost.
    Break,
}

fn any_step() -> impl Strategy<Value = Step> {
    let side = 0..2_usize;
    prop_oneof![
        6 => (side.clone(), prop_oneof![0..20_usize, 50..90_usize, 200..210_usize], 0..7_u32, any::<bool>())
            .prop_map(|(side, len, key, has_room)| Step::Push(side, len, key, has_room)),
        4 => (side.clone(), 0..12_usize).prop_map(|(side, room)| Step::Post(side, room)),
        4 => (side.clone(), 0..12_usize).prop_map(|(side, count)| Step::Hear(side, count)),
        2 => (side, 0..9_usize).prop_map(|(side, count)| Step::Take(side, count)),
        1 => Just(Step::Break),
    ]
}

/// What one side has pushed, and what its peer has seen of it.
#[derive(Default)]
struct Side {
    pushed: Vec<(KeyId, usize)>,
    heard: usize,
    /// Lines of values that wait at this side.
    waiting: VecDeque<u32>,
    /// Offers of this side that came back to it.
    released: usize,
    offered: usize,
}

struct Pair {
    channels: [Channel<Value>; 2],
    sides: [Side; 2],
    /// Frames on their way from each side.
    wire: [VecDeque<Sent>; 2],
    now: Nanos,
}

/// Pushes a value as a shard does that finds nothing before it. False if the way is not clear.
fn push_now(
    channel: &mut Channel<Value>,
    key: KeyId,
    ordinal: u32,
    len: usize,
    post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool,
) -> bool {
    let value = value(len);
    let subject = subject_of(key, point(1), ordinal);
    let push = Push::usual(subject, value.meta(), false, &value.bytes);
    let Some(frame) = channel.frame_now(key, &push) else {
        return false;
    };
    let (is_whole, dim) = (frame.body_is_inline(), (len as u64).to_le_bytes());
    let beside: [&[u8]; 2] = [&dim, &value.bytes];
    let is_posted = post(&frame, if is_whole { [&[], &[]] } else { beside });
    if is_posted {
        channel.keep_posted(key, &frame);
        if !is_whole {
            channel.keep_value(value);
        }
    }
    is_posted
}

impl Pair {
    fn new() -> Self {
        let mut pair = Self {
            channels: [OURS, THEIRS].map(|incarnation| Channel::new(settings(incarnation))),
            sides: [Side::default(), Side::default()],
            wire: [VecDeque::new(), VecDeque::new()],
            now: NOW,
        };
        pair.connect();
        pair
    }

    fn connect(&mut self) {
        for channel in &mut self.channels {
            channel.connected();
        }
    }

    fn step(&mut self, step: Step) {
        self.now = self.now + 100;
        match step {
            Step::Push(side, len, key, has_room) => self.push(side, len, KeyId(key), has_room),
            Step::Post(side, room) => self.post(side, room),
            Step::Hear(side, count) => self.hear(side, count),
            Step::Take(side, count) => self.take(side, count),
            Step::Break => {
                for side in 0..2 {
                    self.wire[side].clear();
                    self.channels[side].disconnected();
                }
                self.connect();
            }
        }
        for side in 0..2 {
            let [_, _, _, kept] = self.channels[side].load();
            assert!(kept <= 4 * (1 + self.sides[0].pushed.len() + self.sides[1].pushed.len()));
            agrees_with_itself(&mut self.channels[side], self.now);
        }
    }

    fn push(&mut self, side: usize, len: usize, key: KeyId, has_room: bool) {
        let ordinal = self.sides[side].pushed.len() as u32;
        let (channel, wire) = (&mut self.channels[side], &mut self.wire[side]);
        let (at, mut sending) = (point(1), Some(value(len)));
        let mut post = |frame: &Frame, parts: [&[u8]; 2]| {
            if has_room {
                wire.push_back(Sent::new(frame, parts));
            }
            has_room
        };
        // Every other key's by the short way, where it is open.
        if key.0 % 2 == 1 && push_now(channel, key, ordinal, len, &mut post) {
            return self.sides[side].pushed.push((key, len));
        }
        let pushed = match channel.push_whole(key, at, ordinal, &mut sending, None, &mut post) {
            Err(NoPush::Long) => {
                channel.push_offer(key, at, ordinal, &mut sending, None, &mut post)
            }
            pushed => pushed,
        };
        if pushed.is_ok() {
            self.sides[side].pushed.push((key, len));
        }
    }

    fn post(&mut self, side: usize, room: usize) {
        let now = self.now;
        let sent = out_to(&mut self.channels[side], now, room);
        let is_all = sent.len() < room;
        assert!(!is_all || !self.channels[side].must_transmit(now));
        self.wire[side].extend(sent);
    }

    /// The peer of `side` hears up to `count` frames of it.
    fn hear(&mut self, side: usize, count: usize) {
        for _ in 0..count {
            let Some(sent) = self.wire[side].pop_front() else {
                return;
            };
            self.hear_one(side, &sent);
        }
    }

    fn hear_one(&mut self, side: usize, sent: &Sent) {
        let to = &mut self.channels[1 - side];
        match sent.kind() {
            Kind::Push => {
                let push = hear_push(to, sent).expect("both are honest");
                assert_eq!(push.data, &value(push.data.len()).bytes[..]);
                return self.came(side, push.key, push.data.len(), push.ordinal, push.lines);
            }
            Kind::Offer => {
                let (offer, _) = hear_offer(to, sent).expect("both are honest");
                // It is looked at and given back at once.
                to.release(offer.offer.ticket);
                self.sides[side].offered += 1;
                let len = offer.offer.size as usize;
                return self.came(side, offer.key, len, offer.ordinal, offer.offer.lines);
            }
            _ => {}
        }
        match to
            .handle_frame(self.now, &sent.frame, &sent.tail, &sent.body)
            .expect("both are honest")
        {
            Heard::Nothing | Heard::Up { .. } => {}
            Heard::Intern { number, text } => {
                let key = text
                    .rsplit(';')
                    .next()
                    .and_then(|key| key.parse().ok())
                    .expect("ours");
                to.interned(number, KeyId(key)).expect("within the bound");
            }
            Heard::Released(count) => self.sides[1 - side].released += count,
            other => panic!("unexpected: {other:?}"),
        }
    }

    /// A value of `side` came out at its peer.
    fn came(&mut self, side: usize, key: KeyId, len: usize, ordinal: u32, lines: u32) {
        let at = self.sides[side].heard;
        assert_eq!(ordinal as usize, at, "in order, and once");
        assert_eq!(self.sides[side].pushed[at], (key, len));
        self.sides[side].heard += 1;
        self.sides[1 - side].waiting.push_back(lines);
        let held: u32 = self.sides[1 - side].waiting.iter().sum();
        assert!(
            held <= u32::from(LINES),
            "more waits than there is credit for"
        );
    }

    fn take(&mut self, side: usize, count: usize) {
        for _ in 0..count {
            let Some(lines) = self.sides[side].waiting.pop_front() else {
                return;
            };
            self.channels[side].take_lines(self.now, lines);
        }
    }

    /// Lets everything happen that is due, with time enough for every delayed acknowledgement.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.now = self.now + 2000;
            for side in 0..2 {
                self.take(side, usize::MAX);
                self.post(side, usize::MAX);
                self.hear(side, usize::MAX);
            }
        }
    }

    fn assert_at_rest(&self) {
        for side in 0..2 {
            let Side {
                pushed,
                heard,
                released,
                ..
            } = &self.sides[side];
            assert_eq!(*heard, pushed.len(), "every value of side {side} came out");
            assert!(
                self.channels[side].is_at_rest(),
                "side {side}: {:?}",
                self.channels[side].load()
            );
            assert_eq!(
                self.channels[side].lines_open(),
                u32::from(LINES),
                "credit of side {side} is back"
            );
            assert_eq!(*released, self.sides[side].offered);
            assert_eq!(self.channels[side].counters().stale, 0);
        }
    }
}

/// Whether there is something to post, when there will be, and what is posted are one thing.
fn agrees_with_itself(channel: &mut Channel<Value>, now: Nanos) {
    let (must, at) = (channel.must_transmit(now), channel.poll_timeout());
    let mut is_tried = false;
    channel.transmit(now, &text_of, &mut |_, _| {
        is_tried = true;
        false
    });
    assert_eq!(must, is_tried, "a full fabric changes nothing");
    assert_eq!(channel.must_transmit(now), must);
    if !must {
        assert!(at > now);
        assert!(!channel.must_transmit(Nanos(at.0 - 1)));
        assert!(at == Nanos::NEVER || channel.must_transmit(at));
    }
}

proptest! {
    #[test]
    fn every_value_comes_out_once_and_in_order(steps in prop::collection::vec(any_step(), 0..200)) {
        let mut pair = Pair::new();
        for step in steps {
            pair.step(step);
        }
        pair.settle();
        pair.assert_at_rest();
    }
}

/// The worst of habits: a break after every few frames, with both sides pushing all they may.
#[test]
fn a_connection_that_breaks_all_the_time_still_makes_progress() {
    let mut pair = Pair::new();
    for round in 0..2000_u32 {
        for side in 0..2 {
            pair.step(Step::Push(
                side,
                (round % 100) as usize,
                round % 7,
                round % 3 > 0,
            ));
            pair.step(Step::Post(side, 3));
            pair.step(Step::Hear(side, 2));
            pair.step(Step::Take(side, 1));
        }
        if round % 5 == 4 {
            pair.step(Step::Break);
        }
    }
    pair.settle();
    pair.assert_at_rest();
    let heard: usize = pair.sides.iter().map(|side| side.heard).sum();
    assert!(heard > 1000, "only {heard} values came out");
}

/// A side that forgot its peer meets it again by a link that served another, or by a new one. What its peer remembers
/// of the former link is taken for nothing of this one's.
#[test]
fn a_channel_that_is_bound_anew_begins_another_epoch() {
    for begins_anew in [0, 1] {
        let mut pair = Pair::new();
        pair.settle();
        for key in 0..3 {
            pair.push(0, 10, KeyId(key), false);
            pair.push(1, 20, KeyId(key), false);
        }
        pair.settle();
        pair.assert_at_rest();
        let epoch = pair.channels[begins_anew].epoch();
        let mut channel = Channel::new(settings([OURS, THEIRS][begins_anew]));
        channel.rebind(epoch + 1);
        pair.channels[1 - begins_anew].disconnected();
        pair.channels[begins_anew] = channel;
        pair.sides = [Side::default(), Side::default()];
        pair.connect();
        pair.settle();
        pair.push(0, 10, KeyId(1), false);
        pair.push(1, 20, KeyId(1), false);
        pair.settle();
        pair.assert_at_rest();
        let heard = [0, 1].map(|side| pair.sides[side].heard);
        assert_eq!(heard, [1, 1]);
    }
}

/// Frames that no honest peer sends end the connection, and never the process.
#[test]
fn noise_in_place_of_frames_is_a_violation_or_nothing() {
    let mut rng = crate::ground::rng::Rng::new(7);
    let mut channel = up_knowing_key();
    let template = [
        push_of(100, 0, None),
        offer_of(999, ticket(0, 0), None),
        request_of(ticket(0, 0), None, None),
    ];
    for _ in 0..20_000 {
        let mut sent = template[rng.next_u64() as usize % template.len()].clone();
        let at = rng.next_u64() as usize % 8;
        sent.frame.words[at] ^= 1 << (rng.next_u64() % 64);
        sent.tail = sent.frame.tail();
        if hear(&mut channel, &sent).is_err() {
            channel = up_knowing_key();
        }
    }
}
