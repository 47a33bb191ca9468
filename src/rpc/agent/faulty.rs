//! A faulty agent, for tests of programs that call: it drops, delays, repeats and reorders what it sends, by a seed.
//!
//! As PyTorch's `FaultyTensorPipeAgent` it is told which kinds of messages to fail. Calls and answers are sent once, so
//! a call whose message or answer is dropped ends by its time; what is repeated until it is acknowledged survives.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use rendez::ground::Nanos;
use rendez::ground::rng::Rng;

use crate::id::WorkerId;
use crate::message::{Body, Control, Message, Target};
use crate::payload::Payload;

/// What a message is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MessageKind {
    /// A call of a function.
    Call,
    /// A call whose result stays.
    Remote,
    /// The question for a reference's value.
    Fetch,
    /// The answer to any of these.
    Reply,
    /// A caller gives a call up.
    Cancel,
    /// A caller has the answer, and all references in it are confirmed.
    Took,
    /// A share of a reference ends.
    Delete,
    /// A share of a reference, given by another user, is made known.
    Fork,
    /// A message of the four before has come.
    Ack,
    /// Workers meet.
    Hello,
    /// Workers agree to leave, or have left.
    Shutdown,
}

impl MessageKind {
    fn of(message: &Message<Payload>) -> Self {
        match &message.body {
            Body::Hello(_) => Self::Hello,
            Body::Call(call) => match call.target {
                Target::Function(_) => Self::Call,
                Target::Remote { .. } => Self::Remote,
                Target::Fetch(_) => Self::Fetch,
            },
            Body::Reply { .. } => Self::Reply,
            Body::Control { control, .. } => match control {
                Control::Cancel(_) => Self::Cancel,
                Control::Took(_) => Self::Took,
                Control::Delete { .. } => Self::Delete,
                Control::Fork { .. } => Self::Fork,
                Control::Probe | Control::Proceed => Self::Shutdown,
            },
            Body::Ack { .. } => Self::Ack,
            Body::Leave | Body::Over(_) => Self::Shutdown,
        }
    }
}

/// What an agent does to what it sends. The same seed and the same messages give the same faults.
///
/// Given to [`Options::faulty`](crate::Options::faulty), which is there with the feature `testing`.
#[derive(Clone, Debug, Default)]
pub struct Faulty {
    seed: u64,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    kinds: Vec<MessageKind>,
    does: Does,
}

#[derive(Clone, Debug)]
enum Does {
    DropFirst(usize),
    Drop(f64),
    Repeat(f64),
    Delay(RangeInclusive<Duration>),
}

impl Faulty {
    /// One that does nothing yet.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            rules: Vec::new(),
        }
    }

    fn with(mut self, kinds: &[MessageKind], does: Does) -> Self {
        let kinds = kinds.to_vec();
        self.rules.push(Rule { kinds, does });
        self
    }

    /// The first `count` messages of these kinds are dropped.
    #[must_use]
    pub fn drop_first(self, kinds: &[MessageKind], count: usize) -> Self {
        self.with(kinds, Does::DropFirst(count))
    }

    /// Of messages of these kinds that share is dropped: from 0 to 1.
    #[must_use]
    pub fn drop_some(self, kinds: &[MessageKind], share: f64) -> Self {
        self.with(kinds, Does::Drop(share))
    }

    /// Of messages of these kinds that share is sent twice.
    #[must_use]
    pub fn repeat_some(self, kinds: &[MessageKind], share: f64) -> Self {
        self.with(kinds, Does::Repeat(share))
    }

    /// Messages of these kinds are held back for a time out of that range, so they overtake each other.
    #[must_use]
    pub fn delay(self, kinds: &[MessageKind], range: RangeInclusive<Duration>) -> Self {
        self.with(kinds, Does::Delay(range))
    }
}

/// What an agent's faults have come to: what is held back, and how far the dice are.
pub(crate) struct AgentFaults {
    rules: Vec<Rule>,
    dice: Rng,
    serial: u64,
    held: BTreeMap<(Nanos, u64), (WorkerId, Message<Payload>)>,
}

impl AgentFaults {
    pub(crate) fn new(faulty: Faulty) -> Self {
        Self {
            rules: faulty.rules,
            dice: Rng::new(faulty.seed),
            serial: 0,
            held: BTreeMap::new(),
        }
    }

    /// A number from zero up to one.
    fn roll(&mut self) -> f64 {
        self.dice.next_u64() as f64 / (u64::MAX as f64 + 1.0)
    }

    /// Takes a message, to be sent never, once or twice.
    pub(crate) fn take(&mut self, now: Nanos, to: WorkerId, message: Message<Payload>) {
        let kind = MessageKind::of(&message);
        let (mut copies, mut delay) = (1, Duration::ZERO);
        for at in 0..self.rules.len() {
            // Rolled for every rule, so that what one does changes nothing of what another does.
            let roll = self.roll();
            let Rule { kinds, does } = &mut self.rules[at];
            if !kinds.contains(&kind) {
                continue;
            }
            match does {
                Does::DropFirst(0) => {}
                Does::DropFirst(left) => {
                    *left -= 1;
                    return;
                }
                Does::Drop(share) if roll < *share => return,
                Does::Repeat(share) if roll < *share => copies += 1,
                Does::Delay(range) => {
                    delay +=
                        *range.start() + (range.end().saturating_sub(*range.start())).mul_f64(roll);
                }
                Does::Drop(_) | Does::Repeat(_) => {}
            }
        }
        for _ in 1..copies {
            self.hold(now.after(delay), to, message.clone());
        }
        self.hold(now.after(delay), to, message);
    }

    fn hold(&mut self, until: Nanos, to: WorkerId, message: Message<Payload>) {
        self.serial += 1;
        self.held.insert((until, self.serial), (to, message));
    }

    /// A message whose time has come.
    pub(crate) fn due(&mut self, now: Nanos) -> Option<(WorkerId, Message<Payload>)> {
        let first = self.held.first_entry().filter(|entry| entry.key().0 <= now);
        first.map(|entry| entry.remove())
    }

    /// When the next is due.
    pub(crate) fn next(&self) -> Nanos {
        self.held.keys().next().map_or(Nanos::NEVER, |(at, _)| *at)
    }
}
