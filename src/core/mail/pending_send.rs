//! Pending sends: values that wait for room, on their way from an application thread to a shard.
//!
//! The tensor lies where both sides can take it, and the first to take it has it: the shard, when there is room, or its
//! sender, which cancelled or was told of a failure. Until then it is its sender's memory.

use std::fmt;
use std::sync::Arc;

use super::mailbox::Mailbox;
use super::stops::Stops;
use super::wait::WaitCell;
use crate::ground::limits;
use crate::ground::{Key, Nanos, StepId};
use crate::memory::Tensor;
use crate::sync::ArrayQueue;

/// Where a sender waits for room, with what it sends.
#[derive(Debug)]
pub struct SendCell {
    /// How it ended.
    pub outcome: WaitCell<()>,
    tensor: ArrayQueue<Tensor>,
    /// What may cancel it.
    stops: Option<Stops>,
}

impl SendCell {
    /// A cell that keeps the tensor until it is taken.
    pub fn new(tensor: Tensor, stops: Option<Stops>) -> Self {
        let place = ArrayQueue::new(1);
        let _ = place.push(tensor);
        Self {
            outcome: WaitCell::default(),
            tensor: place,
            stops,
        }
    }

    /// True once it was cancelled: the shard takes its value no more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.outcome.is_stopped() || self.stops.as_ref().is_some_and(Stops::is_raised)
    }

    /// Takes the tensor, unless it was taken.
    pub fn take_tensor(&self) -> Option<Tensor> {
        self.tensor.pop()
    }

    /// The shard took the tensor and could not use it.
    pub(crate) fn put_back(&self, tensor: Tensor) {
        let _ = self.tensor.push(tensor);
    }
}

/// A send that waits for room. Whatever becomes of it, dropping it gives its place in the queue back.
#[derive(Debug)]
pub struct PendingSend {
    /// Which key.
    pub key: Key,
    /// Which step.
    pub step: StepId,
    /// It says that no value will come.
    pub is_dead: bool,
    /// Until when.
    pub deadline: Nanos,
    /// The waiter.
    pub cell: Arc<SendCell>,
    /// Its share of the mailbox.
    pub permit: Permit,
}

/// One of the places for sends that wait for room in a shard.
#[derive(Debug)]
pub struct Permit(Arc<dyn Places>);

/// Where such places are given back.
pub(super) trait Places: fmt::Debug + Send + Sync {
    /// One send no longer waits.
    fn end_wait(&self);
}

impl Permit {
    /// A place, if there is one. There are as many again for what is owed.
    pub fn take<T: Send + 'static>(mailbox: &Arc<Mailbox<T>>, is_owed: bool) -> Option<Self> {
        let is_in = mailbox.begin_wait(limits::WAITING_SENDS << u32::from(is_owed));
        is_in.then(|| Self(Arc::<Mailbox<T>>::clone(mailbox)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.end_wait();
    }
}
