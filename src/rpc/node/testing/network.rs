//! Network: what lies between workers, and what goes wrong there by a seed. Messages are lost, delayed, repeated and
//! reordered; connections stall, and are given up by both sides; workers pause, and die. Virtual time.
//!
//! As the engine does, it tells a worker that another is gone: at any time after it is, and before anything comes from
//! a later connection.

use std::collections::BTreeMap;
use std::time::Duration;

use rendez::ground::rng::Rng;
use rendez::ground::{Nanos, Status, catalogue};

use crate::id::WorkerId;

/// Numbers by a seed.
#[derive(Clone, Debug)]
pub struct Dice(Rng);

impl Dice {
    /// The numbers of that seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end.max(1)
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A time below `end`.
    pub fn time(&mut self, end: Duration) -> Duration {
        Duration::from_nanos(self.below(end.as_nanos() as u64))
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// What goes wrong, in percent of messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Messages that are lost.
    pub lose: u64,
    /// Messages that come twice.
    pub repeat: u64,
    /// The most that a message is delayed: differently, so that they overtake each other.
    pub delay: Duration,
}

/// What comes to a worker.
#[derive(Clone, Debug)]
pub enum Arrival {
    /// A message.
    Message(Vec<u8>),
    /// The sender is gone in that life, or its connection is.
    Lost {
        /// The life that is meant.
        life: u32,
        /// What is said of it.
        status: Status,
    },
}

/// Something under way.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Whose it is, or whom it is about.
    pub from: WorkerId,
    /// For whom.
    pub to: WorkerId,
    /// What.
    pub arrival: Arrival,
}

/// What is between two workers.
#[derive(Clone, Copy, Debug, Default)]
struct Pair {
    /// Nothing comes before.
    stalled: Option<Nanos>,
    /// What is sent before is lost.
    cut: Option<Nanos>,
    /// So many of the two have not been told that the connection is gone.
    untold: u8,
}

/// See the module.
#[derive(Debug)]
pub struct Network {
    /// What goes wrong with messages.
    pub faults: Faults,
    dice: Dice,
    wires: BTreeMap<(Nanos, u64), Packet>,
    sent: u64,
    lost: u64,
    pairs: BTreeMap<(WorkerId, WorkerId), Pair>,
    paused: BTreeMap<WorkerId, Nanos>,
}

fn pair(one: WorkerId, other: WorkerId) -> (WorkerId, WorkerId) {
    (one.min(other), one.max(other))
}

impl Network {
    /// A network of that seed.
    #[must_use]
    pub const fn new(seed: u64, faults: Faults) -> Self {
        Self {
            faults,
            dice: Dice::new(seed ^ 0x5eed),
            wires: BTreeMap::new(),
            sent: 0,
            lost: 0,
            pairs: BTreeMap::new(),
            paused: BTreeMap::new(),
        }
    }

    fn insert(&mut self, at: Nanos, packet: Packet) {
        self.sent += 1;
        self.wires.insert((at, self.sent), packet);
    }

    /// A message sets out, and may be lost.
    pub fn post(&mut self, now: Nanos, from: WorkerId, to: WorkerId, bytes: &[u8]) {
        if self.is_cut(now, from, to) {
            return;
        }
        if self.dice.chance(self.faults.lose) {
            self.lost += 1;
            return;
        }
        self.carry(now, from, to, bytes);
    }

    /// How many messages were lost singly, and not with their connection.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// A message sets out that is lost with the connection only.
    pub fn post_whole(&mut self, now: Nanos, from: WorkerId, to: WorkerId, bytes: &[u8]) {
        if !self.is_cut(now, from, to) {
            self.carry(now, from, to, bytes);
        }
    }

    fn is_cut(&mut self, now: Nanos, from: WorkerId, to: WorkerId) -> bool {
        let between = self.pairs.entry(pair(from, to)).or_default();
        between.untold > 0 || between.cut.is_some_and(|until| until > now)
    }

    fn carry(&mut self, now: Nanos, from: WorkerId, to: WorkerId, bytes: &[u8]) {
        let copies = 1 + u64::from(self.dice.chance(self.faults.repeat));
        for _ in 0..copies {
            let delay = Duration::from_micros(1) + self.dice.time(self.faults.delay);
            let arrival = Arrival::Message(bytes.to_vec());
            self.insert(now.after(delay), Packet { from, to, arrival });
        }
    }

    /// Nothing passes between two workers before `until`; nothing is lost.
    pub fn stall(&mut self, one: WorkerId, other: WorkerId, until: Nanos) {
        self.pairs.entry(pair(one, other)).or_default().stalled = Some(until);
    }

    /// Nothing comes to a worker before `until`.
    pub fn pause(&mut self, worker: WorkerId, until: Nanos) {
        self.paused.insert(worker, until);
    }

    /// Both sides give a connection up, each at some time within `patience`. What is under way is lost, and so is what
    /// is sent before both know and before `heals`.
    pub fn sever(
        &mut self,
        now: Nanos,
        ends: [(WorkerId, u32); 2],
        patience: Duration,
        heals: Nanos,
    ) {
        let [(one, _), (other, _)] = ends;
        let between = self.pairs.entry(pair(one, other)).or_default();
        if between.untold > 0 {
            return;
        }
        (between.untold, between.cut) = (2, Some(heals));
        let is_between = |packet: &Packet| pair(packet.from, packet.to) == pair(one, other);
        self.wires.retain(|_, packet| !is_between(packet));
        for ((to, _), (from, life)) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            let at = now.after(self.dice.time(patience));
            self.tell(at, from, life, to);
        }
    }

    /// `to` is told within `patience` that a worker is gone which it has never met.
    pub fn tell_of(
        &mut self,
        now: Nanos,
        (gone, life): (WorkerId, u32),
        to: WorkerId,
        patience: Duration,
    ) {
        let at = now.after(self.dice.time(patience));
        self.tell(at, gone, life, to);
    }

    /// `to` is told at `at` that `from` is gone.
    fn tell(&mut self, at: Nanos, from: WorkerId, life: u32, to: WorkerId) {
        let status = Status::of(catalogue::PEER_LOST, format!("worker {from} is lost"));
        let arrival = Arrival::Lost { life, status };
        self.insert(at, Packet { from, to, arrival });
    }

    /// A worker is dead: what is for it is lost, and what is of it may be. Each of `others` is told within `patience`.
    pub fn kill(
        &mut self,
        now: Nanos,
        (dead, life): (WorkerId, u32),
        others: &[WorkerId],
        patience: Duration,
    ) {
        let is_lost = self.dice.chance(50);
        self.wires.retain(|_, packet| {
            let is_message = matches!(packet.arrival, Arrival::Message(_));
            packet.to != dead && !(packet.from == dead && is_message && is_lost)
        });
        for &other in others {
            let at = now.after(self.dice.time(patience));
            self.tell(at, dead, life, other);
        }
        self.begin_anew(dead);
    }

    /// A worker begins another life. Those that have not been told of its death are to be told now, which are returned,
    /// or learn of it by the new life itself: those that `knew` the former, of which messages may still come.
    pub fn restart(&mut self, worker: WorkerId, knew: impl Fn(WorkerId) -> bool) -> Vec<Packet> {
        self.begin_anew(worker);
        let is_told = self.dice.chance(50);
        let is_of = |packet: &Packet| {
            packet.from == worker && matches!(packet.arrival, Arrival::Lost { .. })
        };
        let told: Vec<_> = self
            .wires
            .iter()
            .filter(|(_, packet)| is_of(packet))
            .map(|(key, _)| *key)
            .collect();
        let told: Vec<Packet> = told
            .iter()
            .filter_map(|key| self.wires.remove(key))
            .collect();
        // What was sent to the former life is lost with its connections.
        self.wires.retain(|_, packet| packet.to != worker);
        // Who never heard of a life takes none of it for a later one: connections come one after the other.
        self.wires
            .retain(|_, packet| packet.from != worker || (!is_told && knew(packet.to)));
        if is_told { told } else { Vec::new() }
    }

    /// All that is of a worker, or for it, is lost: the others have been told.
    pub fn forget(&mut self, worker: WorkerId) {
        self.wires
            .retain(|_, packet| packet.from != worker && packet.to != worker);
        self.begin_anew(worker);
    }

    fn begin_anew(&mut self, worker: WorkerId) {
        self.paused.remove(&worker);
        self.pairs
            .retain(|(one, other), _| *one != worker && *other != worker);
    }

    /// When something comes next.
    #[must_use]
    pub fn next(&self) -> Nanos {
        self.wires.keys().next().map_or(Nanos::NEVER, |key| key.0)
    }

    /// What has come by `now`; `None` if it was held up.
    pub fn take(&mut self, now: Nanos) -> Option<Packet> {
        let ((_, serial), packet) = self.wires.pop_first()?;
        let between = self.pairs.entry(pair(packet.from, packet.to)).or_default();
        let held = match packet.arrival {
            Arrival::Message(_) => between.stalled,
            Arrival::Lost { .. } => None,
        };
        let held = held.max(self.paused.get(&packet.to).copied());
        if let Some(until) = held.filter(|until| *until > now) {
            // In the order in which they were to come.
            self.wires.insert((until, serial), packet);
            return None;
        }
        if matches!(packet.arrival, Arrival::Lost { .. }) {
            between.untold = between.untold.saturating_sub(1);
            // Nothing of a connection comes after its end.
            let (from, to) = (packet.from, packet.to);
            self.wires.retain(|_, other| {
                let is_message = matches!(other.arrival, Arrival::Message(_));
                (other.from, other.to) != (from, to) || !is_message
            });
        }
        Some(packet)
    }

    /// True while a side of the connection has not been told that it is gone.
    #[must_use]
    pub fn is_severed(&self, one: WorkerId, other: WorkerId) -> bool {
        self.pairs
            .get(&pair(one, other))
            .is_some_and(|between| between.untold > 0)
    }

    /// True if a worker is still to be told that another is gone.
    #[must_use]
    pub fn has_news(&self) -> bool {
        let is_news = |packet: &Packet| matches!(packet.arrival, Arrival::Lost { .. });
        self.wires.values().any(is_news)
    }

    /// Nothing goes wrong from here on.
    pub fn heal(&mut self) {
        self.faults.lose = 0;
        self.faults.repeat = 0;
        for between in self.pairs.values_mut() {
            (between.cut, between.stalled) = (None, None);
        }
    }
}
