//! Model: what was sent and asked for, and what may come of it. The judge of a simulated world.
//!
//! Knows steps, flows (one key in one step) and bytes; not shards, ports or time beyond a number.

use std::collections::BTreeSet;

use rendez::ground::rng::Rng;
use rendez::ground::{Code, Incarnation, Key, Status};
use rendez::mail::Received;
use rendez::testing::solo::Waiting;

/// Ticks after its deadline, or after its task heard that the sender is lost, in which a receive must end: hops between
/// shards. Before each of them every shard of its task has had a turn, and there is room in the rings between them.
const LATE_MAX: u32 = 8;

/// Ticks in which a receive comes to the shard that owns its key, as above.
const ARRIVAL_MAX: u32 = 2;

/// What becomes of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Every value arrives, then the step is finished.
    Whole,
    /// It is aborted half way.
    Abort,
    /// It is finished half way.
    Finish,
    /// Only senders use it.
    OneSided,
}

#[derive(Debug)]
pub struct Step {
    pub id: u64,
    pub fate: Fate,
    pub flows: Vec<Flow>,
    /// Pairs of tasks of which one was lost to the other, or restarted, while it was open: their values may be missing.
    /// A task that restarted is also a pair with itself.
    pub parted: BTreeSet<(usize, usize)>,
    /// It failed for a bound: any value may be missing.
    pub is_failed: bool,
    /// Bounds are reached in this world: what is refused for one says so.
    pub is_scarce: bool,
    /// It was aborted or finished, as far as is known.
    pub has_ended: bool,
    /// It was aborted on every shard.
    pub is_told: bool,
    /// It was finished on every shard.
    pub is_closed: bool,
}

/// One key in one step.
#[derive(Debug)]
pub struct Flow {
    pub key: Key,
    pub from: usize,
    pub to: usize,
    /// Which shard sends, which receives.
    pub from_shard: usize,
    pub to_shard: usize,
    /// Receives can be given up.
    pub by_cell: bool,
    pub wanted: u64,
    pub sent: Vec<Sent>,
    pub receives: Vec<Receive>,
    /// Ordinals below this have been received, or can be no more, or are in `passed`.
    taken: usize,
    /// Ordinals that later ones have passed: receives that were given up had them, and give them back.
    passed: BTreeSet<usize>,
    /// Values that found no room, of which only the receives that they were for have heard so far.
    lost: usize,
    /// How many were received.
    pub count: usize,
    /// The receive that got the last value.
    last: Option<usize>,
}

#[derive(Debug)]
pub struct Sent {
    pattern: u64,
    len: usize,
    is_dead: bool,
    /// The lives of its sender, and of its receiver if the two were connected.
    lives: (Incarnation, Option<Incarnation>),
    /// What was sent on, instead of the pattern.
    relayed: Option<Vec<u8>>,
}

#[derive(Debug)]
pub struct Receive {
    pub waiting: Option<Waiting>,
    /// The lives of its receiver, and of its sender if the two were connected when it began.
    pub lives: (Incarnation, Option<Incarnation>),
    pub deadline: Option<u64>,
    pub is_cancelled: bool,
    /// It was given up with its value in hand, unread.
    pub was_filled: bool,
    /// Its shard does not know that it was cancelled.
    pub is_unheard: bool,
    /// Ticks of its task since it began.
    pub age: u32,
    /// Its task has heard that the sender is lost.
    pub is_orphan: bool,
    pub is_over: bool,
    /// Ticks since its deadline, or since that.
    pub late: u32,
}

impl Receive {
    /// Its task hears that the sender is lost. What is still on its way to the shard that owns its key may come there
    /// after that, and waits for the next life as if it had begun a moment later.
    pub fn loses_sender(&mut self) {
        self.is_orphan |= self.age >= ARRIVAL_MAX;
    }

    /// Its task had a turn on every shard, and nothing waits between them, at `now` by its clock.
    pub fn grows_late(&mut self, now: u64) -> Result<(), String> {
        self.age += 1;
        let is_due = self.is_orphan || self.deadline.is_some_and(|deadline| now > deadline);
        if self.is_over || self.is_cancelled || !is_due {
            return Ok(());
        }
        self.late += 1;
        if self.late > LATE_MAX {
            return Err(format!(
                "a receive waits still, with a deadline of {:?}, at {now}{}",
                self.deadline,
                if self.is_orphan {
                    ", and its sender is lost"
                } else {
                    ""
                }
            ));
        }
        Ok(())
    }
}

impl Flow {
    pub fn new(key: Key, ends: [usize; 2], shards: [usize; 2], by_cell: bool, wanted: u64) -> Self {
        Self {
            key,
            from: ends[0],
            to: ends[1],
            from_shard: shards[0],
            to_shard: shards[1],
            by_cell,
            wanted,
            sent: Vec::new(),
            receives: Vec::new(),
            taken: 0,
            passed: BTreeSet::new(),
            lost: 0,
            count: 0,
            last: None,
        }
    }

    /// Receives that are not over.
    pub fn open(&self) -> usize {
        self.receives
            .iter()
            .filter(|receive| !receive.is_over)
            .count()
    }

    /// All values are where they belong.
    pub fn is_whole(&self) -> bool {
        self.count as u64 == self.wanted && self.open() == 0
    }

    /// The bytes of the next value.
    pub fn next(
        &mut self,
        lives: (Incarnation, Option<Incarnation>),
        step: u64,
        len: usize,
        is_dead: bool,
    ) -> Vec<u8> {
        let text = self.key.text().to_string();
        let name = text
            .bytes()
            .fold(step, |sum, byte| sum.rotate_left(7) ^ u64::from(byte));
        let pattern =
            Rng::new(name ^ lives.0.0.rotate_left(32) ^ (self.sent.len() as u64) << 48).next_u64();
        let sent = Sent {
            pattern,
            len,
            is_dead,
            lives,
            relayed: None,
        };
        let bytes = sent.bytes();
        self.sent.push(sent);
        bytes
    }

    /// The next value is one that its sender received from a peer.
    pub fn relay(
        &mut self,
        lives: (Incarnation, Option<Incarnation>),
        bytes: &[u8],
        is_dead: bool,
    ) {
        self.sent.push(Sent {
            pattern: 0,
            len: bytes.len(),
            is_dead,
            lives,
            relayed: Some(bytes.to_vec()),
        });
    }

    /// The last value was refused: it was never sent.
    pub fn unsend(&mut self) {
        self.sent.pop();
    }

    fn find(&self, received: &Received) -> Option<usize> {
        let bytes = received.tensor.host().unwrap();
        let is = |sent: &Sent| {
            sent.len == bytes.len() && sent.is_dead == received.is_dead && sent.bytes() == bytes
        };
        // The place it should have, first. A value that is relayed twice has two places: which of them it is makes no
        // difference, as long as one that was given back is not taken for one that is still to come. The rest of the
        // search is for the message.
        let next = self.taken..self.sent.len().min(self.taken + 1);
        let later = next.end..self.sent.len();
        #[cfg(debug_assertions)]
        if self.passed.iter().any(|&at| is(&self.sent[at]))
            && later.clone().any(|at| is(&self.sent[at]))
        {
            rendez::reached::count("two_places");
        }
        next.chain(self.passed.iter().copied())
            .chain(later)
            .chain(0..self.taken)
            .find(|&at| is(&self.sent[at]))
    }
}

impl Sent {
    /// What is wrong if it was sent by another life than the receiver was connected with, or for another than it is.
    fn is_of_others(&self, receive: &Receive) -> Option<String> {
        // One that is relayed twice looks the same both times.
        if self.relayed.is_some() {
            return None;
        }
        let ((from, to), (by, of)) = (self.lives, receive.lives);
        if to.is_some_and(|to| to != by) {
            return Some(format!("was sent to life {to:?}, and {by:?} has it"));
        }
        let is_former = of.is_some_and(|of| of != from);
        is_former.then(|| format!("was sent by life {from:?}, and asked of {of:?}"))
    }

    fn bytes(&self) -> Vec<u8> {
        if let Some(bytes) = &self.relayed {
            return bytes.clone();
        }
        let mut rng = Rng::new(self.pattern);
        let mut bytes = Vec::with_capacity(self.len + 8);
        while bytes.len() < self.len {
            bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        bytes.truncate(self.len);
        bytes
    }
}

impl Step {
    /// Two tasks part while it is open.
    pub fn part(&mut self, one: usize, other: usize) {
        self.parted.insert((one.min(other), one.max(other)));
    }

    /// True if something in it may go wrong.
    pub fn is_dirty(&self) -> bool {
        self.is_failed || !self.parted.is_empty()
    }

    /// A receive of a flow ended.
    pub fn ended(
        &mut self,
        flow: usize,
        at: usize,
        now: u64,
        outcome: &Result<Received, Status>,
    ) -> Result<(), String> {
        let place = format!("step {} flow {flow} receive {at}", self.id);
        let flow = &mut self.flows[flow];
        let pair = (flow.from.min(flow.to), flow.from.max(flow.to));
        let has_parted = self.parted.contains(&pair);
        let is_strict = !has_parted && !self.is_failed;
        let has_ended = self.has_ended || self.is_failed;
        let may_refuse = self.is_scarce;
        let receive = &mut flow.receives[at];
        if std::mem::replace(&mut receive.is_over, true) {
            return Err(format!("{place}: ended twice, now with {outcome:?}"));
        }
        // However it ended: a value that comes long after the deadline comes to a waiter that should be gone.
        if receive.late > LATE_MAX {
            return Err(format!(
                "{place}: {} ticks after its deadline of {:?}, at {now}, it ended with {outcome:?}",
                receive.late, receive.deadline
            ));
        }
        let is_cancelled = receive.is_cancelled;
        match outcome {
            Ok(_) if is_cancelled => Err(format!(
                "{place}: it was cancelled, and has a value all the same"
            )),
            Err(status) if is_cancelled && status.code() == Code::Cancelled => Ok(()),
            Err(status) if status.code() == Code::DeadlineExceeded => {
                let deadline = receive
                    .deadline
                    .ok_or_else(|| format!("{place}: {status} and it has no deadline"))?;
                if now < deadline {
                    return Err(format!("{place}: deadline {deadline}, ended {now}"));
                }
                Ok(())
            }
            Err(status) if has_parted && is_of_peer(status) => Ok(()),
            Err(status) if has_ended && is_of_step(status) => Ok(()),
            Err(status) if may_refuse && is_bound(status) => {
                flow.lost += usize::from(costs_its_receive_alone(status));
                Ok(())
            }
            Err(status) => Err(format!(
                "{place}: failed with {status:?}; parted: {:?}, ended: {has_ended}",
                self.parted
            )),
            Ok(received) => {
                let Some(found) = flow.find(received) else {
                    let (len, is_dead) = (received.tensor.size(), received.is_dead);
                    return Err(format!(
                        "{place}: bytes of no value of this key ({len} bytes, dead: {is_dead})"
                    ));
                };
                if let Some(why) = flow.sent[found].is_of_others(&flow.receives[at]) {
                    return Err(format!("{place}: value {found} {why}"));
                }
                // What was given back comes before all that is left, and was had by a receive before this one.
                let is_back = flow.passed.remove(&found);
                if found < flow.taken && !is_back {
                    return Err(format!(
                        "{place}: value {found} again or out of order, {} was next",
                        flow.taken
                    ));
                }
                let given_up = flow.receives[..at]
                    .iter()
                    .filter(|receive| receive.was_filled)
                    .count();
                let gap = found.saturating_sub(flow.taken);
                let gone = gap.min(flow.lost);
                let may_pass = flow.passed.len() + gap - gone <= given_up;
                if found > flow.taken && is_strict && !may_pass {
                    return Err(format!(
                        "{place}: value {found} came, {} was next",
                        flow.taken
                    ));
                }
                if flow.last.is_some_and(|last| last > at) {
                    return Err(format!("{place}: a later receive got an earlier value"));
                }
                if !is_back {
                    flow.lost -= gone;
                    if given_up > 0 {
                        flow.passed.extend(flow.taken..found);
                    }
                    flow.taken = found + 1;
                }
                flow.count += 1;
                flow.last = Some(at);
                Ok(())
            }
        }
    }
}

/// True for what ends one receive, for whose value there is no room, and not its step.
fn costs_its_receive_alone(status: &Status) -> bool {
    ["ARENA_FULL", "ARENA_UNFIT", "LANDING_UNOPENED"].contains(&status.reason())
}

/// True for what may end a receive whose peer was lost, or is another now.
fn is_of_peer(status: &Status) -> bool {
    let is_lost = status.reason() == "SIM" && status.code() == Code::Unavailable;
    is_lost || ["PEER_LOST", "PEER_RESTARTED"].contains(&status.reason())
}

/// True for what may end a receive whose step has ended.
fn is_of_step(status: &Status) -> bool {
    let is_ended = status.reason() == "SIM" && status.code() != Code::Unavailable;
    is_ended
        || [
            "PEER_STATUS",
            "STEP_ABORTED",
            "STEP_FINISHED",
            "STEP_ENDED",
            "STEP_UNCLAIMED",
        ]
        .contains(&status.reason())
}

/// True for a refusal that names its bound.
pub fn is_bound(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && !status.reason().is_empty()
}
