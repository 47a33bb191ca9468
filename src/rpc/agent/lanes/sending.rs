//! What goes out by a lane, and what of it waits for room.
//!
//! A head announces its tensors, so whether they can go is asked before: [`Lanes::may_send`]. One that could go then
//! and cannot when its turn comes, for its memory is a device's and the connection was lost meanwhile or has no credit,
//! goes as something dead: its message alone is lost, and no tensor that follows is taken for it.

use rendez::ground::{DType, FrameIter, Shape, Status, TensorMeta, catalogue};
use rendez::memory::Tensor;
use rendez::shard::TaskContext;

use super::{Lanes, lives_of, payload_mut, payload_of};
use crate::codec::encode_into;
use crate::id::WorkerId;
use crate::message::Message;
use crate::payload::{LARGE, Payload};

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
        if self.lanes[at].out[0].is_none() {
            self.prepare(at, context)?;
        }
        self.scratch.clear();
        encode_into(message, &mut self.scratch);
        let lives = lives_of(message);
        let mut payload = payload_mut(message);
        let with_tensors = payload.as_mut().filter(|one| !one.tensors.is_empty());
        let tensors = with_tensors.map(|payload| std::mem::take(&mut payload.tensors));
        let head = head_tensor(&self.scratch, context)?;
        let lane = &mut self.lanes[at];
        match lane.out[0] {
            // Most heads wait for nothing.
            Some(key) if lane.outbox.is_empty() => match context.send(self.step, key, head) {
                Err(status) if has_no_room(&status) => {
                    let head = head_tensor(&self.scratch, context)?;
                    lane.outbox.push_back((0, FrameIter::default(), head));
                }
                sent => sent?,
            },
            _ => lane.outbox.push_back((0, FrameIter::default(), head)),
        }
        if let Some(header) = payload.and_then(|payload| payload.header.as_mut()) {
            header.leaves();
        }
        if let Some(tensors) = tensors {
            let tensors = tensors.into_iter();
            lane.outbox
                .extend(tensors.map(|tensor| (kind_of(&tensor), lives, tensor)));
        }
        match lane.outbox.is_empty() {
            true => Ok(()),
            false => self.flush_lane(at, context),
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

    /// Sends what waits for room. Workers whose lanes are lost, with all that waited there, and why.
    pub(crate) fn flush(&mut self, context: &mut TaskContext<'_>) -> Vec<(WorkerId, Status)> {
        self.has_waiting = false;
        let mut lost = Vec::new();
        for at in 0..self.lanes.len() {
            if let Err(status) = self.flush_lane(at, context)
                && !self.lanes[at].is_free
            {
                lost.push((self.lanes[at].worker, status));
            }
        }
        lost
    }

    fn flush_lane(&mut self, at: usize, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let step = self.step;
        let lane = &mut self.lanes[at];
        while let Some((kind, lives, tensor)) = lane.outbox.front() {
            let Some(key) = lane.out[*kind] else {
                lane.outbox.clear();
                break;
            };
            let key = key.at(*lives);
            let sent = match context.send(step, key, tensor.clone()) {
                Err(status) if is_out_of_reach(tensor, &status) => {
                    context.send_dead(step, key, Tensor::scalar(0_u8))
                }
                sent => sent,
            };
            match sent {
                Ok(()) => {
                    lane.outbox.pop_front();
                }
                Err(status) if has_no_room(&status) => {
                    self.has_waiting = true;
                    break;
                }
                // The step has ended, or the keys are gone.
                Err(status) => {
                    lane.outbox.clear();
                    return Err(status);
                }
            }
        }
        Ok(())
    }
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
