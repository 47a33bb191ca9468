//! Lanes: the keys between this worker and another, and what is on its way on them.
//!
//! To each worker lead three keys, and three come from it: for heads, for small tensors, and for large ones. A key is
//! first in, first out, so the head says how many tensors follow on which, and no more is needed to put them together.
//! A large tensor that is read slowly holds up neither heads nor small ones. Tensors go under the lives of both
//! workers, so one that a former life has left is never taken for another's.

mod opening;
mod sending;

use std::collections::{HashMap, VecDeque};

use rendez::ground::{DeviceName, FrameIter, Key, Status, StepId, TaskName, catalogue};
use rendez::mail::Received;
use rendez::memory::Tensor;
use rendez::shard::{PreparedKey, TaskContext};

use crate::codec::{decode, may_have_tensors};
use crate::id::WorkerId;
use crate::message::{Body, Call, Message, Outcome};
use crate::payload::{OUT_OF_REACH, Payload};
use sending::{Outbox, why_dead};

/// Kinds of keys: of heads, small tensors and large ones.
const KINDS: [&str; 3] = ["heads", "small", "large"];
/// A number divisible by all counts of shards up to eight: a key that the first of as many shards owns is owned by the
/// first of each such count.
const SHARDS: u32 = 840;

/// Tensors that heads of one worker may have announced and that have not come: it sends each before it sends more than
/// its window of heads.
const AWAITED_MAX: usize = 1 << 18;

/// Receives that wait for tensors of a worker at once, of each size: fewer than the engine lets wait at a key.
const POSTED_MAX: usize = 1024;

/// Why the engine ends the receive of one tensor alone, where it has no room for it.
const NO_ROOM_HERE: [&str; 3] = [
    catalogue::ARENA_FULL,
    catalogue::ARENA_UNFIT,
    catalogue::LANDING_UNOPENED,
];

/// A token that stands for a tensor of a partial message, and not for a head.
const OF_TENSOR: u64 = 1 << 63;
/// Bits of a token that say which tensor.
const INDEX_BITS: u32 = 13;

#[derive(Debug)]
struct Lane {
    worker: WorkerId,
    task: TaskName,
    /// Ours to the worker, by kind.
    out: [Option<PreparedKey>; 3],
    /// The worker's to us.
    back: [Option<PreparedKey>; 3],
    /// What could not be sent for want of room.
    outbox: Outbox,
    /// Tensors that are announced and have not come.
    awaited: usize,
    /// Of them, small and large, those that no receive waits for yet: their tokens and lives.
    queued: [VecDeque<(u64, FrameIter)>; 2],
    /// Receives that wait for the others.
    posted: [usize; 2],
    is_listening: bool,
    /// The life of its worker that the last head is of.
    life: u32,
    /// That its worker leaves: not told before the messages that it has sent are whole, whose tensors come by other
    /// keys.
    leave: Option<Message<Payload>>,
    /// Its worker is gone, and another may have its place.
    is_free: bool,
}

/// A message whose tensors have not all come.
#[derive(Debug)]
struct Partial {
    lane: usize,
    message: Message<Payload>,
    tensors: Vec<Option<Tensor>>,
    left: usize,
    /// One of them cannot come: something dead came in its place, or it cannot be read here.
    lacking: Option<Status>,
}

/// A message that was given up, of whose tensors some are still waited for: a receive in a shard cannot be taken back.
#[derive(Debug)]
struct Orphan {
    lane: usize,
    /// Of each of its tensors.
    is_large: Vec<bool>,
    /// Receives that have not ended.
    posted: usize,
}

/// What an event of the shard brought.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "it is moved once, and a box would be an allocation a message"
)]
pub(crate) enum Brought {
    /// A whole message.
    Message(WorkerId, Message<Payload>),
    /// Something that is no message.
    Garbage(WorkerId, String),
    /// The worker cannot be heard, and has said that it leaves.
    Left(WorkerId),
    /// The worker cannot be heard.
    Lost(WorkerId, Status),
    /// Nothing that matters yet.
    Nothing,
}

/// The lanes of one worker.
#[derive(Debug)]
pub(crate) struct Lanes {
    step: StepId,
    task: TaskName,
    group: String,
    lanes: Vec<Lane>,
    /// Where the lane of each is, by its number.
    by_worker: Vec<Option<u32>>,
    partials: HashMap<u64, Partial>,
    orphans: HashMap<u64, Orphan>,
    next_partial: u64,
    /// Heads are written here first.
    scratch: Vec<u8>,
    /// Some outbox is not empty, perhaps.
    has_waiting: bool,
    /// The lane whose head has just come, and whose next one is not waited for yet.
    heard: Option<usize>,
    /// The lane whose tensors have just completed a message.
    whole: Option<usize>,
}

impl Lanes {
    pub(crate) fn new(task: TaskName, group: &str, step: StepId) -> Self {
        Self {
            step,
            task,
            group: group.to_owned(),
            lanes: Vec::new(),
            by_worker: Vec::new(),
            partials: HashMap::new(),
            orphans: HashMap::new(),
            next_partial: 0,
            scratch: Vec::new(),
            has_waiting: false,
            heard: None,
            whole: None,
        }
    }

    /// Looks the keys of a lane up that it has not.
    fn prepare(&mut self, at: usize, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let (ours, group) = (&self.task, &self.group);
        let Lane {
            task, out, back, ..
        } = &mut self.lanes[at];
        for (keys, from, to) in [(out, ours, &*task), (back, &*task, ours)] {
            for (kind, key) in keys.iter_mut().enumerate() {
                if key.is_none() {
                    *key = Some(context.prepare(&key_of(group, from, to, kind)?)?);
                }
            }
        }
        Ok(())
    }

    /// Listens for heads of a worker, unless it does.
    pub(crate) fn listen(
        &mut self,
        worker: WorkerId,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        let Some(at) = self.lane_of(worker) else {
            return Ok(());
        };
        self.prepare(at, context)?;
        let lane = &mut self.lanes[at];
        if let (Some(heads), false) = (lane.back[0], lane.is_listening) {
            lane.is_listening = true;
            context.recv(self.step, heads, at as u64);
        }
        Ok(())
    }

    /// Waits for the next head where one has come: after that is handled, so that an answer does not wait for it.
    pub(crate) fn listen_on(&mut self, context: &mut TaskContext<'_>) {
        let lane = self
            .heard
            .take()
            .and_then(|at| Some((at, self.lanes.get(at)?)));
        if let Some((at, lane)) = lane
            && let Some(heads) = lane.back[0]
        {
            context.recv(self.step, heads, at as u64);
        }
    }

    /// A receive of ours has ended.
    pub(crate) fn brought(
        &mut self,
        token: u64,
        outcome: Result<Received, Status>,
        context: &mut TaskContext<'_>,
    ) -> Brought {
        if token & OF_TENSOR != 0 {
            return self.tensor_came(token, outcome, context);
        }
        let at = token as usize;
        let Some(lane) = self.lanes.get_mut(at) else {
            return Brought::Nothing;
        };
        let worker = lane.worker;
        let head = match outcome {
            Ok(head) => head.tensor,
            Err(status) => {
                lane.is_listening = false;
                let brought = match lane.is_free {
                    true => Brought::Nothing,
                    false => self.lost(at, status, context),
                };
                self.lanes[at].outbox.clear();
                // The engine may have forgotten the keys with the peer.
                self.close_keys(at, context);
                self.forget_partials(at);
                return brought;
            }
        };
        self.heard = Some(at);
        if lane.is_free {
            return Brought::Nothing;
        }
        let bytes = match head.host() {
            Ok(bytes) => bytes,
            Err(error) => return Brought::Garbage(worker, error.to_string()),
        };
        match decode::<Payload>(bytes) {
            Ok(message) => self.begin(at, message, context),
            // The tensors that it may have announced would be taken for those of the next message.
            Err(error) if may_have_tensors(bytes) => {
                self.forget_partials(at);
                let status = Status::of(catalogue::RPC_MESSAGE, error.to_string());
                self.lost(at, status, context)
            }
            Err(error) => Brought::Garbage(worker, error.to_string()),
        }
    }

    fn begin(
        &mut self,
        at: usize,
        message: Message<Payload>,
        context: &mut TaskContext<'_>,
    ) -> Brought {
        let worker = self.lanes[at].worker;
        self.lanes[at].life = message.from_life;
        let awaited = match payload_of(&message) {
            Some(payload) if !payload.awaited.is_empty() => payload.awaited.clone(),
            _ if matches!(message.body, Body::Leave) && self.has_partial(at, message.from_life) => {
                self.lanes[at].leave = Some(message);
                return Brought::Nothing;
            }
            _ => {
                if matches!(message.body, Body::Over(_)) {
                    let FrameIter { frame, iter } = lives_of(&message);
                    let ours = FrameIter {
                        frame: iter,
                        iter: frame,
                    };
                    self.lanes[at].pay(self.step, Some(ours), context);
                }
                return Brought::Message(worker, message);
            }
        };
        let serial = self.next_partial;
        self.next_partial += 1;
        let (left, lives) = (awaited.len(), lives_of(&message));
        self.lanes[at].awaited += left;
        if self.lanes[at].awaited > AWAITED_MAX {
            self.forget_partials(at);
            let what = format!("it has announced {AWAITED_MAX} tensors that it does not send");
            return self.lost(at, Status::of(catalogue::RPC_MESSAGE, what), context);
        }
        for (index, is_large) in awaited.iter().enumerate() {
            let token = token_of(serial, index);
            self.lanes[at].queued[usize::from(*is_large)].push_back((token, lives));
        }
        let tensors = vec![None; left];
        self.partials.insert(
            serial,
            Partial {
                lane: at,
                message,
                tensors,
                left,
                lacking: None,
            },
        );
        self.post(at, context);
        Brought::Nothing
    }

    /// Whether a message of that life of the lane's worker has not all come.
    fn has_partial(&self, at: usize, life: u32) -> bool {
        let mut partials = self.partials.values();
        partials.any(|partial| partial.lane == at && partial.message.from_life == life)
    }

    /// What a worker said last, if that has waited for what it sent before and need not any more.
    pub(crate) fn last_word(&mut self) -> Brought {
        let whole = self.whole.take();
        let leave = whole.and_then(|at| Some((at, self.lanes[at].leave.as_ref()?.from_life)));
        if let Some((at, life)) = leave
            && !self.has_partial(at, life)
            && let Some(message) = self.lanes[at].leave.take()
        {
            return Brought::Message(self.lanes[at].worker, message);
        }
        Brought::Nothing
    }

    /// The worker of a lane cannot be heard any more: it may have said that it leaves, in the life that is lost.
    fn lost(&mut self, at: usize, status: Status, context: &mut TaskContext<'_>) -> Brought {
        let lane = &mut self.lanes[at];
        lane.lose(self.step, &status, context);
        let leave = lane.leave.take();
        let has_left = leave.is_some_and(|leave| leave.from_life == lane.life);
        match has_left {
            true => Brought::Left(lane.worker),
            false => Brought::Lost(lane.worker, status),
        }
    }

    /// Nothing that is announced is waited for any more, except by receives that wait already: they take room until
    /// they end, so that no worker has more of them wait by announcing again and again.
    fn forget_partials(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        lane.awaited = 0;
        let mut queued: HashMap<u64, usize> = HashMap::new();
        for (token, _) in lane.queued.iter_mut().flat_map(|tokens| tokens.drain(..)) {
            *queued.entry(parts_of(token).0).or_default() += 1;
        }
        let orphans = &mut self.orphans;
        self.partials.retain(|serial, partial| {
            if partial.lane != at {
                return true;
            }
            let queued = queued.get(serial).copied().unwrap_or_default();
            let posted = partial.left.saturating_sub(queued);
            if posted > 0 {
                let payload = payload_of(&partial.message);
                let orphan = Orphan {
                    lane: at,
                    is_large: payload.map(|one| one.awaited.clone()).unwrap_or_default(),
                    posted,
                };
                orphans.insert(*serial, orphan);
            }
            false
        });
    }

    /// A receive has ended that waited for a tensor of a message which was given up.
    fn orphan_ended(&mut self, serial: u64, index: usize, context: &mut TaskContext<'_>) {
        let Some(orphan) = self.orphans.get_mut(&serial) else {
            return;
        };
        let (at, is_large) = (orphan.lane, orphan.is_large.get(index) == Some(&true));
        orphan.posted -= 1;
        if orphan.posted == 0 {
            self.orphans.remove(&serial);
        }
        self.made_room(at, is_large, context);
    }

    /// A receive has ended: another may wait.
    fn made_room(&mut self, at: usize, is_large: bool, context: &mut TaskContext<'_>) {
        let posted = &mut self.lanes[at].posted[usize::from(is_large)];
        *posted = posted.saturating_sub(1);
        self.post(at, context);
    }

    /// Waits for what is announced, as far as there is room.
    fn post(&mut self, at: usize, context: &mut TaskContext<'_>) {
        let lane = &mut self.lanes[at];
        for (size, key) in [lane.back[1], lane.back[2]].into_iter().enumerate() {
            while lane.posted[size] < POSTED_MAX
                && let Some(key) = key
                && let Some((token, lives)) = lane.queued[size].pop_front()
            {
                lane.posted[size] += 1;
                context.recv(self.step, key.at(lives), token);
            }
        }
    }

    fn tensor_came(
        &mut self,
        token: u64,
        outcome: Result<Received, Status>,
        context: &mut TaskContext<'_>,
    ) -> Brought {
        let (serial, index) = parts_of(token);
        let (tensor, lacking) = match outcome {
            Ok(received) if received.is_dead => {
                let why = why_dead(&received.tensor);
                (received.tensor, Some(why))
            }
            Ok(received) => (received.tensor, None),
            // It was sent, and cannot be read here. Its place is gone with it: those that follow are for the others.
            Err(status) if status.reason() == catalogue::TENSOR_DEVICE => {
                let why = Status::of(catalogue::TENSOR_DEVICE, OUT_OF_REACH);
                (Tensor::scalar(0_u8), Some(why))
            }
            Err(status) if NO_ROOM_HERE.contains(&status.reason()) => {
                (Tensor::scalar(0_u8), Some(status))
            }
            // Without it those that follow would be taken for it.
            Err(status) => {
                let lane = self.partials.get(&serial).map(|partial| partial.lane);
                if let Some(at) = lane {
                    self.forget_partials(at);
                }
                self.orphan_ended(serial, index, context);
                return match lane {
                    Some(at) => self.lost(at, status, context),
                    None => Brought::Nothing,
                };
            }
        };
        let Some(partial) = self.partials.get_mut(&serial) else {
            self.orphan_ended(serial, index, context);
            return Brought::Nothing;
        };
        partial.lacking = partial.lacking.take().or(lacking);
        partial.tensors[index] = Some(tensor);
        partial.left -= 1;
        let lane = &mut self.lanes[partial.lane];
        lane.awaited = lane.awaited.saturating_sub(1);
        let size = payload_of(&partial.message).and_then(|payload| payload.awaited.get(index));
        let is_large = size.is_some_and(|is_large| *is_large);
        let (at, is_whole) = (partial.lane, partial.left == 0);
        self.made_room(at, is_large, context);
        if !is_whole {
            return Brought::Nothing;
        }
        let Some(mut partial) = self.partials.remove(&serial) else {
            return Brought::Nothing;
        };
        if let Some(payload) = payload_mut(&mut partial.message) {
            payload.tensors = partial.tensors.into_iter().flatten().collect();
            payload.awaited.clear();
            payload.lacking = partial.lacking;
        }
        self.whole = Some(at);
        Brought::Message(self.lanes[at].worker, partial.message)
    }
}

/// A key whose owner is the first shard of either task, if both have as many as usual: then nothing that passes it
/// changes threads.
pub(crate) fn key_of(
    group: &str,
    from: &TaskName,
    to: &TaskName,
    kind: usize,
) -> Result<Key, Status> {
    let (from, to) = (DeviceName::cpu(from), DeviceName::cpu(to));
    let edge = format!("rpc/{group}/{}/", KINDS[kind]);
    let key = Key::new(&from, Default::default(), &to, &edge, Default::default())?;
    Ok(key.owned_by_first(SHARDS, 16 * SHARDS).unwrap_or(key))
}

/// By which a receive of a tensor is known.
pub(crate) const fn token_of(serial: u64, index: usize) -> u64 {
    OF_TENSOR | serial << INDEX_BITS | index as u64
}

/// The message that a token of a tensor is of, and which of its tensors.
const fn parts_of(token: u64) -> (u64, usize) {
    let token = token & !OF_TENSOR;
    let index = token as usize & ((1 << INDEX_BITS) - 1);
    (token >> INDEX_BITS, index)
}

/// Both lives of a message, by which the engine tells its tensors from those of others.
const fn lives_of(message: &Message<Payload>) -> FrameIter {
    FrameIter {
        frame: message.from_life as u64,
        iter: message.to_life as u64,
    }
}

fn payload_of(message: &Message<Payload>) -> Option<&Payload> {
    match &message.body {
        Body::Call(Call { payload, .. })
        | Body::Reply {
            outcome: Outcome::Value { payload, .. },
            ..
        } => Some(payload),
        _ => None,
    }
}

/// A message may reach its receiver from now on, with the header of observers that it has.
pub(crate) fn leaves(message: &mut Message<Payload>) {
    if let Some(header) = payload_mut(message).and_then(|payload| payload.header.as_mut()) {
        header.leaves();
    }
}

fn payload_mut(message: &mut Message<Payload>) -> Option<&mut Payload> {
    match &mut message.body {
        Body::Call(Call { payload, .. })
        | Body::Reply {
            outcome: Outcome::Value { payload, .. },
            ..
        } => Some(payload),
        _ => None,
    }
}
