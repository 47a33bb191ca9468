//! Scripts: some workers whose messages a test delivers, holds back or loses one by one.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use rendez::ground::{Nanos, Status, catalogue};

use super::super::testing::world::limits;
use super::super::*;
use super::plain;
use crate::id::{ForkId, GlobalId};
use crate::message::{Call, Standing};

/// A message on its way.
pub(super) struct Mail {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) message: Message<u64>,
}

impl Mail {
    /// What it is, as tests name it.
    pub(super) fn kind(&self) -> &'static str {
        kind(&self.message.body)
    }

    /// True if it is of that kind and goes that way.
    pub(super) fn is(&self, kind: &str, from: usize, to: usize) -> bool {
        self.kind() == kind && (self.from, self.to) == (from, to)
    }
}

fn kind(body: &Body<u64>) -> &'static str {
    match body {
        Body::Hello(_) => "hello",
        Body::Leave => "leave",
        Body::Over(_) => "over",
        Body::Call(call) => match call.target {
            Target::Function(_) => "call",
            Target::Remote { .. } => "create",
            Target::Fetch(_) => "fetch",
        },
        Body::Reply { .. } => "reply",
        Body::Control { control, .. } => match control {
            Control::Cancel(_) => "cancel",
            Control::Took(_) => "took",
            Control::Delete { .. } => "delete",
            Control::Fork { .. } => "fork",
            Control::Probe => "probe",
            Control::Proceed => "proceed",
        },
        Body::Ack { .. } => "ack",
    }
}

/// A share as a program holds it; `None` at the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) rref: RRefId,
    pub(super) owner: usize,
    pub(super) fork: Option<ForkId>,
}

/// A call that a worker carries out.
#[derive(Clone, Debug)]
pub(super) struct Served {
    pub(super) at: usize,
    pub(super) from: WorkerId,
    pub(super) id: CallId,
    pub(super) target: Target,
    pub(super) job: u64,
    pub(super) shares: Vec<Held>,
}

/// See the module.
pub(super) struct Script {
    pub(super) now: Nanos,
    pub(super) nodes: Vec<Node<u64, u64>>,
    pub(super) mail: VecDeque<Mail>,
    /// Kinds of all messages between two workers that were ever sent, in order.
    pub(super) said: Vec<(usize, usize, &'static str)>,
    pub(super) serving: Vec<Served>,
    pub(super) ended: BTreeMap<u64, Ending<u64>>,
    pub(super) released: Vec<(usize, RRefId)>,
    pub(super) left: BTreeMap<usize, Result<(), Vec<String>>>,
    jobs: u64,
    locals: u64,
}

/// A call of a plain function.
pub(super) fn plain_call(id: u64, payload: u64) -> Call<u64> {
    Call {
        id: CallId(id),
        settled: CallId(id),
        after: None,
        budget: None,
        target: plain(),
        references: Vec::new(),
        payload,
    }
}

fn group(is_dynamic: bool) -> Group {
    let hello = Hello {
        roster: u64::from(!is_dynamic),
        name: "w".into(),
        task: String::new(),
        address: String::new(),
        wants_answer: false,
    };
    Group { hello, is_dynamic }
}

impl Script {
    /// So many workers of a static group, who have met.
    pub(super) fn new(count: usize) -> Self {
        Self::of(count, false)
    }

    pub(super) fn of(count: usize, is_dynamic: bool) -> Self {
        let mut script = Self {
            now: Nanos(1),
            nodes: Vec::new(),
            mail: VecDeque::new(),
            said: Vec::new(),
            serving: Vec::new(),
            ended: BTreeMap::new(),
            released: Vec::new(),
            left: BTreeMap::new(),
            jobs: 0,
            locals: 0,
        };
        for at in 0..count {
            let life = at as u32 + 1;
            let node = Node::new(WorkerId(at as u16), life, group(is_dynamic), limits());
            script.nodes.push(node);
        }
        (0..count).for_each(|at| script.join(at));
        script.deliver();
        script.said.clear();
        script
    }

    fn join(&mut self, at: usize) {
        let (now, count) = (self.now, self.nodes.len());
        let node = &mut self.nodes[at];
        let others = (0..count).filter(|other| *other != at);
        others.for_each(|other| node.add_peer(now, WorkerId(other as u16)));
        node.join(now);
        self.pump(at);
    }

    /// Worker `at` dies, and starts again in another life.
    pub(super) fn restart(&mut self, at: usize, life: u32) {
        self.serving.retain(|served| served.at != at);
        let is_dynamic = self.nodes[at].group.is_dynamic;
        self.nodes[at] = Node::new(WorkerId(at as u16), life, group(is_dynamic), limits());
        self.join(at);
    }

    /// All others hear that worker `at` is gone.
    pub(super) fn lose(&mut self, at: usize) {
        for other in (0..self.nodes.len()).filter(|other| *other != at) {
            self.cut(other, at);
        }
    }

    /// Worker `at` gives the connection to `other` up.
    pub(super) fn cut(&mut self, at: usize, other: usize) {
        self.end(at, other, catalogue::PEER_LOST);
    }

    /// Worker `at` can take nothing of `other` any more, which is there all the same.
    pub(super) fn give_up(&mut self, at: usize, other: usize) {
        self.end(at, other, catalogue::ARENA_FULL);
    }

    fn end(&mut self, at: usize, other: usize, reason: &'static str) {
        let status = Status::of(reason, "it is over");
        self.turn(at, |node, now| {
            node.handle_lost(now, WorkerId(other as u16), &status)
        });
    }

    /// Worker `at` does this now, and what follows from it.
    pub(super) fn turn<R>(
        &mut self,
        at: usize,
        does: impl FnOnce(&mut Node<u64, u64>, Nanos) -> R,
    ) -> R {
        let done = does(&mut self.nodes[at], self.now);
        self.pump(at);
        done
    }

    /// Worker `at` hears `body` of worker `from` in that life of it, whether it was said or not.
    pub(super) fn hear(&mut self, at: usize, (from, from_life): (WorkerId, u32), body: Body<u64>) {
        let to_life = self.nodes[at].life;
        let message = Message {
            from_life,
            to_life,
            body,
        };
        self.turn(at, |node, now| node.handle_message(now, from, message));
    }

    /// An identity that nothing else has.
    pub(super) fn fresh(&mut self, at: usize) -> GlobalId {
        self.locals += 1;
        GlobalId {
            on: WorkerId(at as u16),
            local: self.locals,
        }
    }

    pub(super) fn references(&mut self, at: usize, shares: &[Held]) -> Vec<Reference> {
        let one = |share: &Held| Reference {
            rref: share.rref,
            owner: WorkerId(share.owner as u16),
            fork: self.fresh(at),
            parent: share.fork.unwrap_or(share.rref),
            standing: Standing::Known,
        };
        shares.iter().map(one).collect()
    }

    pub(super) fn call(&mut self, at: usize, to: usize, shares: &[Held]) -> u64 {
        self.call_within(at, to, plain(), None, shares)
    }

    pub(super) fn call_within(
        &mut self,
        at: usize,
        to: usize,
        target: Target,
        patience: Option<Duration>,
        shares: &[Held],
    ) -> u64 {
        self.jobs += 1;
        let job = self.jobs;
        let references = self.references(at, shares);
        let deadline = patience.map_or(Nanos::NEVER, |patience| self.now.after(patience));
        let call = NewCall {
            token: job,
            target,
            deadline,
            references,
            payload: job,
        };
        self.turn(at, |node, now| node.call(now, WorkerId(to as u16), call));
        job
    }

    /// Worker `at` asks `owner` for a value, and holds the share.
    pub(super) fn create(&mut self, at: usize, owner: usize) -> Held {
        let (rref, fork) = (self.fresh(at), self.fresh(at));
        if at == owner {
            self.nodes[at].create_owned(rref, false);
        }
        let function = "make".into();
        let target = Target::Remote {
            function,
            rref,
            fork,
        };
        self.call_within(at, owner, target, None, &[]);
        let fork = (at != owner).then_some(fork);
        Held { rref, owner, fork }
    }

    /// A value of `owner` that `at` holds, confirmed.
    pub(super) fn value(&mut self, at: usize, owner: usize) -> Held {
        let share = self.create(at, owner);
        self.deliver();
        self.finish_all();
        self.deliver();
        self.said.clear();
        share
    }

    pub(super) fn fetch(&mut self, at: usize, share: Held, patience: Option<Duration>) -> u64 {
        self.call_within(at, share.owner, Target::Fetch(share.rref), patience, &[])
    }

    pub(super) fn drop_share(&mut self, at: usize, share: Held) {
        let now = self.now;
        match share.fork {
            Some(fork) => self.nodes[at].drop_user(now, fork),
            None => self.nodes[at].drop_owned(now, share.rref),
        }
        self.pump(at);
    }

    /// Ends the call that carries `job`; its answer brings `shares`, and what came with it is kept.
    pub(super) fn finish(&mut self, job: u64, shares: &[Held]) {
        let place = self.serving.iter().position(|served| served.job == job);
        let served = self.serving.swap_remove(place.expect("it is carried out"));
        self.finish_served(&served, shares);
    }

    pub(super) fn finish_served(&mut self, served: &Served, shares: &[Held]) {
        let references = self.references(served.at, shares);
        let outcome = Outcome::Value {
            payload: served.job,
            references,
        };
        let now = self.now;
        self.nodes[served.at].finish(now, served.from, served.id, outcome);
        self.pump(served.at);
    }

    /// True if the call was answered with its own value.
    pub(super) fn is_answered(&self, job: u64) -> bool {
        matches!(
            self.ended.get(&job),
            Some(Ending::Answered(Outcome::Value { payload, .. })) if *payload == job
        )
    }

    /// Workers 0 and 1 call each other, and are answered.
    pub(super) fn both_answer(&mut self) {
        for (at, to) in [(0, 1), (1, 0)] {
            let job = self.call(at, to, &[]);
            self.deliver();
            self.finish_all();
            self.deliver();
            assert!(self.is_answered(job), "{:?}", self.ended.get(&job));
        }
    }

    pub(super) fn finish_all(&mut self) {
        for served in std::mem::take(&mut self.serving) {
            self.finish_served(&served, &[]);
        }
    }

    /// Whether `job` is carried out now.
    pub(super) fn runs(&self, job: u64) -> Option<&Served> {
        self.serving.iter().find(|served| served.job == job)
    }

    /// Delivers the first message that `is_it` says. False if there is none.
    pub(super) fn deliver_one(&mut self, is_it: impl Fn(&Mail) -> bool) -> bool {
        let Some(place) = self.mail.iter().position(is_it) else {
            return false;
        };
        if let Some(Mail { from, to, message }) = self.mail.remove(place) {
            self.turn(to, |node, now| {
                node.handle_message(now, WorkerId(from as u16), message)
            });
        }
        true
    }

    /// Delivers what `is_it` says, and what follows from it, until nothing is left of it.
    pub(super) fn deliver_if(&mut self, is_it: impl Fn(&Mail) -> bool) {
        while self.deliver_one(&is_it) {}
    }

    pub(super) fn deliver(&mut self) {
        self.deliver_if(|_| true);
    }

    /// Loses what `is_it` says. How many messages that was.
    pub(super) fn lose_if(&mut self, is_it: impl Fn(&Mail) -> bool) -> usize {
        let before = self.mail.len();
        self.mail.retain(|mail| !is_it(mail));
        before - self.mail.len()
    }

    /// Time passes, in steps of a millisecond; no message is delivered.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.now.after(time);
        while self.now < until {
            self.now = until.min(self.now.after(Duration::from_millis(1)));
            for at in 0..self.nodes.len() {
                self.turn(at, |node, now| node.handle_time(now));
            }
        }
    }

    /// Time passes, and all that is sent is delivered at once.
    pub(super) fn live(&mut self, time: Duration) {
        let until = self.now.after(time);
        while self.now < until {
            self.pass(Duration::from_millis(1));
            self.deliver();
        }
    }

    /// How many messages of that kind went that way.
    pub(super) fn count(&self, kind: &str, from: usize, to: usize) -> usize {
        let is_it = |said: &&(usize, usize, &str)| **said == (from, to, kind);
        self.said.iter().filter(is_it).count()
    }

    pub(super) fn pump(&mut self, at: usize) {
        let me = WorkerId(at as u16);
        while let Some(output) = self.nodes[at].poll() {
            match output {
                Output::Send { to, message } => {
                    let to = usize::from(to.0);
                    if to != at {
                        self.said.push((at, to, kind(&message.body)));
                    }
                    let from = at;
                    self.mail.push_back(Mail { from, to, message });
                }
                Output::Serve {
                    from,
                    id,
                    target,
                    payload,
                    references,
                    ..
                } => {
                    let share = |one: &Reference| Held {
                        rref: one.rref,
                        owner: usize::from(one.owner.0),
                        fork: (one.owner != me).then_some(one.fork),
                    };
                    let served = Served {
                        at,
                        from,
                        id,
                        job: payload,
                        shares: references.iter().map(share).collect(),
                        target,
                    };
                    // The value of a reference is there when it is asked for.
                    match served.target {
                        Target::Fetch(_) => self.finish_served(&served, &[]),
                        _ => self.serving.push(served),
                    }
                }
                Output::Ended { token, ending, .. } => {
                    let before = self.ended.insert(token, ending);
                    assert_eq!(before, None, "job {token} ended twice");
                }
                Output::Release(rref) => self.released.push((at, rref)),
                Output::Left(how) => {
                    self.left.insert(at, how);
                }
                Output::Refused(why) => panic!("worker {at}: {why}"),
                Output::Broken(..)
                | Output::Named(..)
                | Output::Stop { .. }
                | Output::Up(_)
                | Output::Down(..)
                | Output::Joined => {}
            }
        }
    }
}
