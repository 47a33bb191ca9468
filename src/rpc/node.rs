//! One worker as a pure machine: its calls, those of others, its references, and its group. No clock, no I/O.
//!
//! Inputs are the `handle_…` methods, and what the worker's program does; what is to be done comes out of
//! [`Node::poll`], in order. Time is an argument. A payload `P` and the token `T`, by which the driver knows a call of
//! its own again, are opaque.
//!
//! The network below may lose, delay, repeat and reorder messages. Calls are sent once and carried out at most once:
//! each has a number, and the receiver keeps those that it has seen, above a mark that the sender moves
//! ([`Call::settled`](crate::message::Call::settled)). Control messages are repeated until they are acknowledged.

pub(crate) mod calling;
mod controls;
mod group;
mod holding;
mod judging;
mod leaving;
mod order;
mod report;
mod rules;
mod sequence;
mod serving;
mod unsent;
mod window;

#[cfg(any(test, feature = "testing"))]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rendez::ground::{Nanos, Status};

use crate::id::{CallId, RRefId, WorkerId};
use crate::message::{Body, Control, Fault, Hello, Message, Outcome, Reference, Target};
use crate::references::References;
pub use calling::NewCall;
use calling::{Out, Waiting};
use group::Phase;
pub use group::{Group, PeerState};
use order::Order;
pub use report::{Outgoing, Progress};
pub use rules::{Rule, Rules};
use sequence::Seen;
use serving::Serving;
use window::Window;

/// Bounds and times of a node.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Calls under way to one worker, with those that it has not yet heard to be given up; more wait here.
    pub window: usize,
    /// Calls that wait here for one worker; more are refused.
    pub waiting: usize,
    /// Calls of one worker that are carried out or wait for it; more are refused.
    pub serving: usize,
    /// After how long a control message is repeated first; each time half as long again.
    pub retry: Duration,
    /// The longest time between two repeats.
    pub retry_max: Duration,
    /// How often a worker that has not been heard is greeted.
    pub greeting: Duration,
    /// How often the group is asked whether it is at rest.
    pub probing: Duration,
    /// Each worker carries our calls out one after another, in the order in which they were made.
    pub in_order: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            window: 4096,
            waiting: 1 << 16,
            serving: 8192,
            retry: Duration::from_secs(1),
            retry_max: Duration::from_secs(30),
            greeting: Duration::from_millis(250),
            probing: Duration::from_millis(5),
            in_order: false,
        }
    }
}

/// How a call ended at its caller.
#[derive(Clone, PartialEq, Debug)]
pub enum Ending<P> {
    /// The other side answered.
    Answered(Outcome<P>),
    /// Its time was over first.
    Timeout,
    /// The caller gave it up.
    Cancelled,
    /// The other side is gone.
    Lost(Status),
    /// It could not go: what it carries cannot reach the other side.
    Unsent(Status),
    /// Too many wait already.
    Busy,
    /// This worker has left.
    Shutdown,
}

/// What is to be done.
#[derive(Clone, PartialEq, Debug)]
pub enum Output<P, T> {
    /// Send this.
    Send {
        /// To that worker.
        to: WorkerId,
        /// What.
        message: Message<P>,
    },
    /// Carry this call out, and tell the end by [`Node::finish`].
    Serve {
        /// The caller.
        from: WorkerId,
        /// Its number.
        id: CallId,
        /// What is called.
        target: Target,
        /// The arguments.
        payload: P,
        /// References among them: all are confirmed.
        references: Vec<Reference>,
        /// When the caller gives up.
        deadline: Nanos,
    },
    /// The caller of that call gave it up: do not begin it, and tell it if it has begun. It is finished all the same.
    Stop {
        /// The caller.
        from: WorkerId,
        /// The call.
        id: CallId,
    },
    /// A call of ours has ended.
    Ended {
        /// Which.
        token: T,
        /// The worker that was called.
        at: WorkerId,
        /// How.
        ending: Ending<P>,
    },
    /// That value of ours could not be made: it is this failure.
    Broken(RRefId, Fault),
    /// No one has a share of that value of ours any more.
    Release(RRefId),
    /// A worker has said its name.
    Named(WorkerId, String),
    /// A worker is there.
    Up(WorkerId),
    /// A worker is gone, with all that depended on it, and whether its life is over: else it may come back in it.
    Down(WorkerId, Status, bool),
    /// All workers of a static group are there.
    Joined,
    /// A worker does not agree with us about the group.
    Refused(String),
    /// We have left: in good order, or when time was over, with what was outstanding.
    Left(Result<(), Vec<String>>),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// The earliest deadline of the calls to a worker, or one that was.
    Calls(WorkerId),
    /// The deadline of a call that waits to be made.
    Waiting(WorkerId, u64),
    /// A control message is repeated.
    Retry(WorkerId, CallId),
    /// The earliest deadline of the calls that are served for a worker, or one that was.
    Serves(WorkerId),
    /// A worker is greeted again.
    Greet(WorkerId),
    /// A worker that only others know has not come.
    Unmet(WorkerId),
    /// The group is asked again.
    Probe,
    /// Shutdown has no more time.
    Leave,
}

/// Bits of a call's number as it travels.
const WIRE_BITS: u32 = 48;
const WIRE_MASK: u64 = (1 << WIRE_BITS) - 1;

/// What we know of another worker, or of ourselves: a call to oneself goes the same way.
#[derive(Debug)]
struct Peer<P, T> {
    state: PeerState,
    /// It is in the group, where that meets: it is waited for and greeted.
    is_member: bool,
    /// Lives that are over.
    past: VecDeque<u32>,
    /// The life that was heard last; zero before the first.
    latest: u32,
    /// The life that it seems to be in by now; zero if there is no doubt. It is asked until it answers.
    doubted: u32,
    /// How many lives came before it: the upper bits of the numbers that its messages have here.
    former: u16,
    /// The number of the next call or control message.
    next: CallId,
    out: Window<Out<P, T>>,
    /// When the deadlines of calls are looked at: no later than the earliest.
    calls_due: Nanos,
    /// Of them, calls that are not answered.
    calls: usize,
    /// Of them, calls that were given up, and answers whose references are not all confirmed.
    lingering: usize,
    waiting: VecDeque<Waiting<P, T>>,
    /// What it is told of references when it is there.
    early: Vec<Control>,
    seen: Seen,
    /// Calls that were given up before they came: they are not carried out when they come.
    refused: BTreeSet<CallId>,
    serving: Window<Serving<P>>,
    /// As `calls_due`.
    serves_due: Nanos,
    order: Order,
}

impl<P, T> Peer<P, T> {
    fn new(state: PeerState) -> Self {
        Self {
            latest: state.life().unwrap_or_default(),
            doubted: 0,
            state,
            is_member: true,
            past: VecDeque::new(),
            former: 0,
            next: CallId(1),
            out: Window::default(),
            calls_due: Nanos::NEVER,
            calls: 0,
            lingering: 0,
            waiting: VecDeque::new(),
            early: Vec::new(),
            seen: Seen::default(),
            refused: BTreeSet::new(),
            serving: Window::default(),
            serves_due: Nanos::NEVER,
            order: Order::default(),
        }
    }

    /// The number that a message of this peer has here: those of its former lives are smaller. A call of a former life
    /// may still run, and what it comes to must not answer another.
    const fn here(&self, id: CallId) -> CallId {
        CallId((self.former as u64) << WIRE_BITS | id.0 & WIRE_MASK)
    }

    /// Whether one more call may be under way. What lingers has a place, too: else a worker that stands still would be
    /// sent calls without end, as long as each is given up in its time.
    const fn has_place(&self, window: usize) -> bool {
        self.calls + self.lingering < window
    }

    /// The lowest number that is not over.
    fn settled(&self, id: CallId) -> CallId {
        self.out.first().map_or(id, |lowest| lowest.min(id))
    }
}

/// One worker.
#[derive(Debug)]
pub struct Node<P, T> {
    me: WorkerId,
    life: u32,
    group: Group,
    limits: Limits,
    peers: BTreeMap<WorkerId, Peer<P, T>>,
    /// Of them, those that call and are no workers of the group.
    guests: BTreeSet<WorkerId>,
    timers: BTreeSet<(Nanos, Timer)>,
    outputs: VecDeque<Output<P, T>>,
    references: References,
    phase: Phase,
    /// Something that this worker has sent waits for room.
    is_sending: bool,
    /// What the program still held when this worker left.
    leaks: Vec<String>,
    activity: u64,
    /// Calls that have waited for the window.
    waited: u64,
    /// Control messages that were repeated.
    repeated: u64,
    /// Messages that no worker sends that keeps the protocol.
    implausible: u64,
    rules: Rules,
    now: Nanos,
}

impl<P, T> Node<P, T> {
    /// The worker `me` of `group` in a life of that number, which is not zero.
    #[must_use]
    pub fn new(me: WorkerId, life: u32, group: Group, limits: Limits) -> Self {
        Self {
            me,
            life,
            group,
            limits,
            peers: BTreeMap::new(),
            guests: BTreeSet::new(),
            timers: BTreeSet::new(),
            outputs: VecDeque::new(),
            references: References::new(me, life),
            phase: Phase::Joining,
            is_sending: false,
            leaks: Vec::new(),
            activity: 0,
            waited: 0,
            repeated: 0,
            implausible: 0,
            rules: Rules::ALL,
            now: Nanos::ZERO,
        }
    }

    /// The same with only these rules on, which has an effect with debug assertions alone.
    #[must_use]
    pub const fn with(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self.references.rules = rules;
        self
    }

    /// Where the identities begin that this life makes: another life gives none of them.
    #[must_use]
    pub fn first_local(&self) -> u64 {
        match self.rules.on(Rule::IdsOfALife) {
            true => u64::from(self.life) << 16,
            false => 0,
        }
    }

    /// This worker.
    #[must_use]
    pub const fn me(&self) -> WorkerId {
        self.me
    }

    /// It is `now`: what follows happens then.
    pub const fn tick(&mut self, now: Nanos) {
        self.now = now;
        self.references.at(now);
    }

    /// The next thing to be done.
    pub fn poll(&mut self) -> Option<Output<P, T>> {
        if self.outputs.is_empty() {
            self.drain_references();
        }
        self.outputs.pop_front()
    }

    /// When [`Node::handle_time`] is wanted next.
    #[must_use]
    pub fn next_timer(&self) -> Nanos {
        self.timers.first().map_or(Nanos::NEVER, |timer| timer.0)
    }

    /// Time has passed.
    pub fn handle_time(&mut self, now: Nanos) {
        self.now = now;
        while let Some(&(at, timer)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Calls(to) => self.calls_are_due(to),
                Timer::Retry(to, id) => self.repeat_control(to, id),
                Timer::Serves(from) => self.serves_are_due(from),
                Timer::Waiting(to, serial) => self.waiting_timed_out(to, serial),
                Timer::Greet(to) => self.greet(to),
                Timer::Unmet(to) => self.unmet(to),
                Timer::Probe => self.probe(),
                Timer::Leave => self.leave_late(),
            }
        }
    }

    /// A message of another worker has come.
    pub fn handle_message(&mut self, now: Nanos, from: WorkerId, message: Message<P>) {
        self.now = now;
        self.references.at(now);
        if matches!(self.phase, Phase::Left) {
            // It may not have heard so. It is told in the life that it speaks from, which this worker may not know.
            if !message.body.is_last_word() {
                self.send_to_life(from, message.from_life, Body::Leave);
            }
            return;
        }
        if let Body::Hello(hello) = message.body {
            return self.hear_hello(from, message.from_life, message.to_life, hello);
        }
        let is_meant = message.to_life == self.life || !self.rules.on(Rule::LivesCompared);
        if !is_meant {
            return self.correct(from, message.from_life);
        }
        if !self.is_current(from, message.from_life) {
            if !message.body.is_last_word() {
                self.end_there(from, message.from_life);
            }
            return;
        }
        if !self.is_plausible(from, &message) {
            self.implausible += 1;
            return;
        }
        let Some(peer) = self.peers.get(&from) else {
            return;
        };
        match message.body {
            Body::Hello(_) => {}
            Body::Leave => self.hear_leave(from),
            Body::Over(why) => self.hear_over(from, &why),
            Body::Call(mut call) => {
                (call.id, call.settled) = (peer.here(call.id), peer.here(call.settled));
                // Before the first there is none, in no life.
                if let Some(after) = &mut call.after
                    && after.0 != 0
                {
                    *after = peer.here(*after);
                }
                self.hear_call(from, call);
            }
            Body::Reply { id, outcome } => self.hear_reply(from, id, outcome),
            Body::Control {
                id,
                settled,
                control,
            } => {
                let (id, settled) = (peer.here(id), peer.here(settled));
                let control = match control {
                    Control::Cancel(call) => Control::Cancel(peer.here(call)),
                    Control::Took(call) => Control::Took(peer.here(call)),
                    other => other,
                };
                self.hear_control(from, id, settled, control);
            }
            Body::Ack { id, answer } => self.hear_ack(from, id, answer),
        }
    }

    /// In which life that worker is, as far as is known here; zero for one that is not there.
    fn present_life(&self, worker: WorkerId) -> u32 {
        let peer = self.peers.get(&worker);
        peer.and_then(|peer| peer.state.life()).unwrap_or(0)
    }

    fn send(&mut self, to: WorkerId, mut body: Body<P>) {
        if let Body::Reply { id, .. } | Body::Ack { id, .. } = &mut body {
            id.0 &= WIRE_MASK;
        }
        self.send_to_life(to, self.present_life(to), body);
    }

    fn send_to_life(&mut self, to: WorkerId, to_life: u32, body: Body<P>) {
        let message = Message {
            from_life: self.life,
            to_life,
            body,
        };
        self.outputs.push_back(Output::Send { to, message });
    }

    fn hello(&self, wants_answer: bool) -> Hello {
        Hello {
            wants_answer,
            ..self.group.hello.clone()
        }
    }
}
