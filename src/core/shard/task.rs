//! In-shard tasks: polled callbacks for code that wants no thread hop between itself and the loop.
//!
//! A task runs in its shard's thread, between two polls. It must return soon; a task that blocks stops the shard.

mod waking;

pub use waking::TaskWaker;

use super::Shard;
use super::ids::TaskId;
use super::keys::Route;
use super::value::{Value, Waiter};
use crate::ground::{FrameIter, Incarnation, Key, Nanos, Status, StepId, TensorMeta, faults};
use crate::mail::Received;
use crate::memory::{MemoryError, Tensor, TensorBuilder};
use crate::rendezvous::{KeyId, Slot};

/// Code that runs inside a shard.
pub trait Task: Send {
    /// Something happened. Send and receive through `context`; return soon.
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>);

    /// True if any thread that turns the shard may run it, one at a time. Else only the shard's own thread runs it,
    /// and no other thread turns the shard as long as it is there. Asked once, before [`TaskEvent::Started`].
    fn roams(&self) -> bool {
        false
    }
}

/// What a task hears.
#[derive(Debug)]
#[non_exhaustive]
pub enum TaskEvent {
    /// The task is in place: its first event.
    Started,
    /// A receive ended.
    Received {
        /// What the task gave to `recv`.
        token: u64,
        /// The value, or why there is none.
        outcome: Result<Received, Status>,
    },
    /// The task asked to be called again in the next turn.
    Again,
    /// The task's [`TaskWaker`] was used since it was called for the last wake.
    Woken,
    /// The shard stops.
    Stopping,
}

/// A key prepared for one shard: the look-up of its names is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PreparedKey {
    pub(crate) id: KeyId,
    /// Which of all keys: its number may be another's when it was released.
    pub(crate) serial: u32,
    pub(crate) at: FrameIter,
    /// The life of the source that the key names.
    pub(crate) expected: Incarnation,
}

impl PreparedKey {
    /// The same key in another loop frame or iteration.
    #[must_use]
    pub const fn at(self, at: FrameIter) -> Self {
        Self { at, ..self }
    }

    #[inline]
    const fn slot(self, step: StepId) -> Slot {
        Slot {
            step,
            key: self.id,
            at: self.at,
        }
    }
}

/// What a task can do while it is called.
#[derive(Debug)]
pub struct TaskContext<'a> {
    pub(crate) shard: &'a mut Shard,
    pub(crate) task: TaskId,
}

impl TaskContext<'_> {
    /// Looks a key up once, for any number of sends and receives on this shard.
    ///
    /// # Errors
    /// `InvalidArgument` if neither end is this task; `ResourceExhausted` when the shard knows too many keys.
    pub fn prepare(&mut self, key: &Key) -> Result<PreparedKey, Status> {
        let core = &mut self.shard.core;
        let id = core.intern(key)?;
        let mut serial = 0;
        if let Some(entry) = core.keys.at_mut(id) {
            if entry.way.route == Route::Foreign {
                return Err(faults::foreign_source(key, &core.task));
            }
            entry.prepared = entry.prepared.saturating_add(1);
            serial = entry.serial;
        }
        Ok(PreparedKey {
            id,
            serial,
            at: key.frame_iter(),
            expected: key.source_incarnation(),
        })
    }

    /// Gives a prepared key back, once for each time it was prepared: the shard may then forget it, and its copies name
    /// nothing any more.
    pub fn release(&mut self, key: PreparedKey) {
        if let Some(entry) = self.shard.core.keys.at_mut(key.id)
            && entry.serial == key.serial
        {
            entry.prepared = entry.prepared.saturating_sub(1);
        }
    }

    /// Hands a value over. Never blocks.
    ///
    /// # Errors
    /// The status of an ended step; `ResourceExhausted` naming the bound; `InvalidArgument` for a foreign source.
    #[inline]
    pub fn send(&mut self, step: StepId, key: PreparedKey, tensor: Tensor) -> Result<(), Status> {
        self.send_value(step, key, tensor, false)
    }

    /// Hands a dead value over: the receiver learns that nothing will come.
    ///
    /// # Errors
    /// As [`TaskContext::send`].
    pub fn send_dead(
        &mut self,
        step: StepId,
        key: PreparedKey,
        tensor: Tensor,
    ) -> Result<(), Status> {
        self.send_value(step, key, tensor, true)
    }

    #[inline]
    fn send_value(
        &mut self,
        step: StepId,
        key: PreparedKey,
        tensor: Tensor,
        is_dead: bool,
    ) -> Result<(), Status> {
        let way = self.shard.core.keys.way(key.id, key.serial);
        let way = way.ok_or_else(faults::stale_key)?;
        let slot = key.slot(step);
        if !matches!(way.route, Route::Out { .. }) {
            return self.shard.send_here(way, &slot, tensor, is_dead);
        }
        if self.shard.send_short(way, &slot, &tensor, is_dead) {
            return Ok(());
        }
        let mut sending = Some(Value::local(tensor, is_dead));
        if self.shard.send_row(way, &slot, &mut sending) {
            return Ok(());
        }
        self.shard.send(way, slot, &mut sending)
    }

    /// Whether a tensor may go by that key now, as far as its memory decides: for who announces a value before it sends
    /// it. It may be otherwise later, when the peer is gone or has no credit for what it has lent us.
    ///
    /// # Errors
    /// `TENSOR_DEVICE` for a device's tensor that the peer could not read where it lies, or whose key is another
    /// shard's, which is not asked.
    pub fn may_send(&self, key: PreparedKey, tensor: &Tensor) -> Result<(), Status> {
        if !tensor.is_device() {
            return Ok(());
        }
        let way = self.shard.core.keys.way(key.id, key.serial);
        let way = way.ok_or_else(faults::stale_key)?;
        self.shard.core.may_go(way, key.slot(StepId(0)), tensor)
    }

    /// Waits for a value: [`TaskEvent::Received`] with `token` follows, always, once; now if the value is here.
    #[inline]
    pub fn recv(&mut self, step: StepId, key: PreparedKey, token: u64) {
        self.recv_by(step, key, token, Nanos::NEVER);
    }

    /// As [`TaskContext::recv`], until `deadline` on the shard's clock.
    #[inline]
    pub fn recv_by(&mut self, step: StepId, key: PreparedKey, token: u64, deadline: Nanos) {
        let Some(way) = self.shard.core.keys.way(key.id, key.serial) else {
            let waiter = Waiter::Task {
                task: self.task,
                token,
            };
            return self.shard.core.complete(waiter, Err(faults::stale_key()));
        };
        if !key.expected.is_current()
            && let Some(status) = self.shard.core.stranger_fault(key.id, key.expected)
        {
            let waiter = Waiter::Task {
                task: self.task,
                token,
            };
            return self.shard.core.complete(waiter, Err(status));
        }
        self.shard.recv_for_task(
            self.task,
            way,
            key.slot(step),
            token,
            deadline,
            key.expected,
        );
    }

    /// Loads what the table holds of these keys, all at once: a burst of sends or receives at keys of a large table
    /// then waits for memory once, and not for each key.
    #[inline]
    pub fn touch(&self, step: StepId, keys: &[PreparedKey]) {
        const BURST: usize = 32;
        let mut slots = [Slot {
            step,
            key: KeyId(0),
            at: FrameIter::default(),
        }; BURST];
        for burst in keys.chunks(BURST) {
            for (slot, key) in slots.iter_mut().zip(burst) {
                *slot = Slot {
                    step,
                    key: key.id,
                    at: key.at,
                };
            }
            std::hint::black_box(self.shard.core.table.touch(&slots[..burst.len()]));
        }
    }

    /// Memory to write a tensor into in place.
    ///
    /// # Errors
    /// [`MemoryError`] if the arena is full.
    #[inline]
    pub fn builder(&mut self, meta: TensorMeta) -> Result<TensorBuilder, MemoryError> {
        self.shard.core.pool.builder(meta)
    }

    /// A tensor of this task with a copy of `bytes`, which may be strings.
    ///
    /// # Errors
    /// As [`TaskContext::builder`]; [`MemoryError::Tensor`] if `bytes` are not as many as `meta` takes.
    pub fn tensor_from(&mut self, meta: TensorMeta, bytes: &[u8]) -> Result<Tensor, MemoryError> {
        self.shard.core.pool.tensor_from(meta, bytes)
    }

    /// As [`TaskContext::builder`], for a tensor whose bytes own whole pages: see [`Pool::paged_builder`].
    ///
    /// # Errors
    /// As [`TaskContext::builder`].
    ///
    /// [`Pool::paged_builder`]: crate::memory::Pool::paged_builder
    pub fn paged_builder(&mut self, meta: TensorMeta) -> Result<TensorBuilder, MemoryError> {
        self.shard.core.pool.paged_builder(meta)
    }

    /// Ends a step with `status`, as `rendez::engine::Step::abort` does: all that waits in it hears
    /// so, here and at every peer that has anything pending. The first status of a step wins.
    pub fn abort(&mut self, step: StepId, status: &Status) {
        self.shard.core.fail_step(step, status);
    }

    /// The shard's clock, now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.shard.clock.stamp()
    }

    /// Which shard this is.
    #[must_use]
    pub fn shard_index(&self) -> u16 {
        self.shard.core.index
    }

    /// Asks for [`TaskEvent::Again`] in the next turn.
    pub fn again(&mut self) {
        self.shard.again.push(self.task);
    }

    /// The task is done: it is dropped after this call, and its receives are cancelled. A value that it has not heard
    /// of yet goes back to the front of its key.
    pub fn finish(&mut self) {
        self.shard.finished.push(self.task);
    }
}
