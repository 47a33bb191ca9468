//! What goes out by a lane, and what of it waits for room.
//!
//! A head announces its tensors, so whether they can go is asked before: [`Lanes::may_send`]. One that could go then
//! and cannot when its turn comes, for its memory is a device's and the connection was lost meanwhile or has no credit,
//! goes as something dead: its message alone is lost, and no tensor that follows is taken for it.

use std::collections::{BTreeSet, VecDeque};

use rendez::ground::{DType, FrameIter, Shape, Status, StepId, TensorMeta, catalogue};
use rendez::memory::Tensor;
use rendez::shard::{PreparedKey, TaskContext};

use super::{Lane, Lanes, lives_of, payload_mut, payload_of};
use crate::codec::{decode, encode_into};
use crate::id::{CallId, WorkerId};
use crate::message::{Body, Control, Message};
use crate::payload::{GIVEN_UP_FIRST, LARGE, LEFT_FIRST, OUT_OF_REACH, Payload};

/// What goes in place of a tensor is a number that says why: it cannot go, its worker has left first, or its call was
/// given up.
const CANNOT_GO: u8 = 0;
const HAS_LEFT: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Tensors that heads on their way may have announced and that wait here: with those of one message more they are fewer
/// than a receiver waits for.
const AHEAD_MAX: usize = 1 << 16;

/// What a bound of the engine says that is reached and will not stay so: what was refused is sent again.
const NO_ROOM: [&str; 7] = [
    catalogue::PARKED_BYTES,
    catalogue::PARKED_BYTES_OF_STEP,
    catalogue::PARKED_VALUES,
    catalogue::OFFERS_EXHAUSTED,
    catalogue::SEND_BEHIND,
    catalogue::MAILBOX_FULL,
    catalogue::KEYS,
];

/// A head that waits for room.
#[derive(Debug)]
struct Head {
    bytes: Tensor,
    /// How many small and large tensors it announces.
    announced: [usize; 2],
    /// Of a control message, its number.
    control: Option<CallId>,
}

/// A tensor that waits for room.
#[derive(Debug)]
struct Carried {
    lives: FrameIter,
    /// None if its call was given up: then something dead goes, for it is announced.
    tensor: Option<Tensor>,
    /// The call of ours that it is of.
    call: Option<CallId>,
}

/// What waits for room at a lane: each kind in order, and no tensor before its head.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    heads: VecDeque<Head>,
    /// Of them, the numbers of control messages: one that is repeated waits once.
    controls: BTreeSet<CallId>,
    /// Small and large.
    tensors: [VecDeque<Carried>; 2],
    /// Of them, those whose heads wait.
    held: [usize; 2],
    /// Calls that were given up since these tensors were last looked through.
    given_up: BTreeSet<CallId>,
}

impl Outbox {
    fn is_empty(&self) -> bool {
        self.heads.is_empty() && self.tensors.iter().all(VecDeque::is_empty)
    }

    /// True if the next head may go, as far as the tensors are concerned that those before it have announced.
    fn may_go_ahead(&self) -> bool {
        let waiting: usize = self.tensors.iter().map(VecDeque::len).sum();
        waiting - self.held.iter().sum::<usize>() <= AHEAD_MAX
    }

    fn hold(&mut self, bytes: Tensor, announced: [usize; 2], control: Option<CallId>) {
        for (held, more) in self.held.iter_mut().zip(announced) {
            *held += more;
        }
        self.controls.extend(control);
        self.heads.push_back(Head {
            bytes,
            announced,
            control,
        });
    }

    /// What is carried by calls that were given up is let go: their worker may stand still for long.
    fn let_go(&mut self) {
        let given_up = std::mem::take(&mut self.given_up);
        if given_up.is_empty() {
            return;
        }
        for carried in self.tensors.iter_mut().flatten() {
            if carried.call.is_some_and(|call| given_up.contains(&call)) {
                carried.tensor = None;
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Lanes {
    /// Whether all that a message announces can go, as things are.
    pub(crate) fn may_send(
        &self,
        to: WorkerId,
        message: &Message<Payload>,
        context: &TaskContext<'_>,
    ) -> Result<(), Status> {
        let Some(payload) = payload_of(message).filter(|payload| !payload.tensors.is_empty())
        else {
            return Ok(());
        };
        let Some(at) = self.lane_of(to) else {
            return Ok(());
        };
        let keys = &self.lanes[at].out;
        let mut tensors = payload.tensors.iter();
        tensors.try_for_each(|tensor| match keys[kind_of(tensor)] {
            Some(key) if tensor.is_device() => context.may_send(key, tensor),
            _ => Ok(()),
        })
    }

    /// Sends a message. What finds no room waits in the outbox, and goes with [`Lanes::flush`]. Its tensors are taken.
    ///
    /// # Errors
    /// The lane is lost, with all that waited there.
    pub(crate) fn send(
        &mut self,
        to: WorkerId,
        message: &mut Message<Payload>,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        let Some(at) = self.lane_of(to) else {
            return Ok(());
        };
        let (mut call, mut control) = (None, None);
        match &message.body {
            Body::Call(one) => call = Some(one.id),
            Body::Control { id, .. } if self.lanes[at].outbox.controls.contains(id) => {
                return Ok(());
            }
            Body::Control {
                id, control: of, ..
            } => {
                control = Some(*id);
                if let Control::Cancel(given_up) = of
                    && !self.lanes[at].outbox.is_empty()
                {
                    self.lanes[at].outbox.given_up.insert(*given_up);
                }
            }
            _ => {}
        }
        if self.lanes[at].out[0].is_none() {
            self.prepare(at, context)?;
        }
        self.scratch.clear();
        encode_into(message, &mut self.scratch);
        let lives = lives_of(message);
        let mut payload = payload_mut(message);
        let with_tensors = payload.as_mut().filter(|one| !one.tensors.is_empty());
        let tensors = with_tensors.map(|payload| std::mem::take(&mut payload.tensors));
        let mut announced = [0; 2];
        for tensor in tensors.iter().flatten() {
            announced[kind_of(tensor) - 1] += 1;
        }
        let head = head_tensor(&self.scratch, context)?;
        let Lane { out, outbox, .. } = &mut self.lanes[at];
        match out[0] {
            // Most heads wait for nothing.
            Some(key) if outbox.heads.is_empty() && outbox.may_go_ahead() => {
                match context.send(self.step, key, head) {
                    Err(status) if has_no_room(&status) => {
                        outbox.hold(head_tensor(&self.scratch, context)?, announced, control);
                    }
                    sent => sent?,
                }
            }
            _ => outbox.hold(head, announced, control),
        }
        if let Some(header) = payload.and_then(|payload| payload.header.as_mut()) {
            header.leaves();
        }
        for tensor in tensors.into_iter().flatten() {
            outbox.tensors[kind_of(&tensor) - 1].push_back(Carried {
                lives,
                tensor: Some(tensor),
                call,
            });
        }
        match outbox.is_empty() {
            true => Ok(()),
            false => self.flush_lane(at, context).map(drop),
        }
    }

    /// True if something waits for room, perhaps.
    pub(crate) const fn has_waiting(&self) -> bool {
        self.has_waiting
    }

    /// What waits for room to a worker is not sent: its life is over.
    pub(crate) fn drop_waiting(&mut self, to: WorkerId) {
        if let Some(at) = self.lane_of(to) {
            self.lanes[at].outbox.clear();
        }
    }

    /// This worker has left, and what still waits for room does not go any more, beside the word that it leaves. Its
    /// receivers hear that when they wait for nothing that it has announced.
    pub(crate) fn give_up(&mut self, context: &mut TaskContext<'_>) {
        self.has_waiting = false;
        for lane in &mut self.lanes {
            lane.give_up(self.step, context);
        }
    }

    /// The same for one worker, which lives on without this one.
    pub(crate) fn give_up_to(&mut self, to: WorkerId, context: &mut TaskContext<'_>) {
        if let Some(at) = self.lane_of(to) {
            self.lanes[at].give_up(self.step, context);
        }
    }

    /// A message could not be sent: what waits before it does not go either.
    pub(crate) fn lose(&mut self, to: WorkerId, status: &Status, context: &mut TaskContext<'_>) {
        if let Some(at) = self.lane_of(to) {
            self.lanes[at].lose(self.step, status, context);
        }
    }

    /// Sends what waits for room, and says whether something of it has gone. Workers whose lanes are lost, with all
    /// that waited there, and why.
    pub(crate) fn flush(
        &mut self,
        context: &mut TaskContext<'_>,
    ) -> (bool, Vec<(WorkerId, Status)>) {
        self.has_waiting = false;
        let (mut has_gone, mut lost) = (false, Vec::new());
        for at in 0..self.lanes.len() {
            self.lanes[at].outbox.let_go();
            match self.flush_lane(at, context) {
                Ok(goes) => has_gone |= goes,
                Err(_) if self.lanes[at].is_free => {}
                Err(status) => lost.push((self.lanes[at].worker, status)),
            }
        }
        (has_gone, lost)
    }

    fn flush_lane(&mut self, at: usize, context: &mut TaskContext<'_>) -> Result<bool, Status> {
        let flushed = self.lanes[at].flush(self.step, context);
        if let Err(status) = &flushed {
            let lane = &mut self.lanes[at];
            lane.lose(self.step, status, context);
            // The step has ended, or the keys are gone.
            lane.outbox.clear();
        }
        self.has_waiting |= !self.lanes[at].outbox.is_empty();
        flushed
    }
}

impl Lane {
    fn give_up(&mut self, step: StepId, context: &mut TaskContext<'_>) {
        self.pay(step, None, context);
        let mut heads = std::mem::take(&mut self.outbox).heads;
        let word = heads.pop_back().map(|head| head.bytes);
        if let (Some(key), Some(word)) = (self.out[0], word.filter(is_last_word))
            && let Err(status) = context.send(step, key, word)
        {
            tracing::warn!(worker = %self.worker, %status, "cannot tell a worker that this worker has left");
        }
    }

    /// The lane is lost. Its worker may live on, unless that is what was lost.
    pub(super) fn lose(&mut self, step: StepId, status: &Status, context: &mut TaskContext<'_>) {
        if status.reason() != catalogue::PEER_LOST {
            self.pay(step, None, context);
            self.outbox.clear();
        }
    }

    /// What waits for room does not go any more: something dead, which takes little room, goes in place of each tensor
    /// whose head has gone, and is of these lives. Else its receiver would wait for it, and for all that follows.
    pub(super) fn pay(&self, step: StepId, of: Option<FrameIter>, context: &mut TaskContext<'_>) {
        for (size, tensors) in self.outbox.tensors.iter().enumerate() {
            let owed = tensors.len() - self.outbox.held[size];
            for Carried { lives, .. } in tensors.iter().take(owed) {
                if let Some(key) = self.out[size + 1]
                    && of.is_none_or(|of| of == *lives)
                    && let Err(status) =
                        context.send_dead(step, key.at(*lives), Tensor::scalar(HAS_LEFT))
                {
                    // What follows would be taken for it.
                    tracing::warn!(worker = %self.worker, %status, "a worker waits for a value that never comes");
                    break;
                }
            }
        }
    }

    /// Sends what there is room for, and says whether there was some: what one key has none for holds up none of the
    /// others.
    fn flush(&mut self, step: StepId, context: &mut TaskContext<'_>) -> Result<bool, Status> {
        let outbox = &mut self.outbox;
        let mut has_gone = false;
        while outbox.may_go_ahead()
            && let Some(head) = outbox.heads.front()
        {
            if !goes(step, self.out[0], Some(&head.bytes), context)? {
                break;
            }
            for (held, less) in outbox.held.iter_mut().zip(head.announced) {
                *held -= less;
            }
            if let Some(control) = head.control {
                outbox.controls.remove(&control);
            }
            outbox.heads.pop_front();
            has_gone = true;
        }
        for (size, tensors) in outbox.tensors.iter_mut().enumerate() {
            while tensors.len() > outbox.held[size]
                && let Some(Carried { lives, tensor, .. }) = tensors.front()
            {
                let key = self.out[size + 1].map(|key| key.at(*lives));
                if !goes(step, key, tensor.as_ref(), context)? {
                    break;
                }
                tensors.pop_front();
                has_gone = true;
            }
        }
        Ok(has_gone)
    }
}

/// Sends what has waited for room, or something dead in its place. False if there is no room.
fn goes(
    step: StepId,
    key: Option<PreparedKey>,
    tensor: Option<&Tensor>,
    context: &mut TaskContext<'_>,
) -> Result<bool, Status> {
    let none = || Status::of(catalogue::PEER_LOST, "its lane is closed");
    let key = key.ok_or_else(none)?;
    let sent = tensor.and_then(|tensor| match context.send(step, key, tensor.clone()) {
        Err(status) if is_out_of_reach(tensor, &status) => None,
        sent => Some(sent),
    });
    let sent = sent.unwrap_or_else(|| {
        let why = tensor.map_or(GIVEN_UP, |_| CANNOT_GO);
        context.send_dead(step, key, Tensor::scalar(why))
    });
    match sent {
        Err(status) if has_no_room(&status) => Ok(false),
        sent => sent.map(|()| true),
    }
}

/// Why a tensor does not come in whose place this dead one has come.
pub(super) fn why_dead(dead: &Tensor) -> Status {
    match dead.as_slice::<u8>() {
        Ok([HAS_LEFT]) => Status::of(catalogue::PEER_LOST, LEFT_FIRST),
        Ok([GIVEN_UP]) => Status::of(catalogue::RPC_CANCELLED, GIVEN_UP_FIRST),
        _ => Status::of(catalogue::TENSOR_DEVICE, OUT_OF_REACH),
    }
}

fn is_last_word(head: &Tensor) -> bool {
    let message = head.host().ok().map(decode::<Payload>);
    message.is_some_and(|message| message.is_ok_and(|message| message.body.is_last_word()))
}

/// By which of the keys a tensor goes.
const fn kind_of(tensor: &Tensor) -> usize {
    if tensor.size() >= LARGE { 2 } else { 1 }
}

fn has_no_room(status: &Status) -> bool {
    NO_ROOM.contains(&status.reason())
}

/// True if it is the tensor that cannot go, and not the lane.
fn is_out_of_reach(tensor: &Tensor, status: &Status) -> bool {
    tensor.is_device() && status.reason() == catalogue::TENSOR_DEVICE
}

fn head_tensor(bytes: &[u8], context: &mut TaskContext<'_>) -> Result<Tensor, Status> {
    let shape = Shape::row(bytes.len() as u64).unwrap_or_default();
    let meta = TensorMeta {
        dtype: DType::U8,
        shape,
    };
    // In the arena it costs no call to the heap. Without room there it travels as a copy.
    if let Ok(mut builder) = context.builder(meta) {
        builder.bytes_mut().copy_from_slice(bytes);
        return Ok(builder.finish());
    }
    Ok(Tensor::from_vec(bytes.to_vec(), shape)?)
}
