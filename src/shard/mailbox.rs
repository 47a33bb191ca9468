//! The mailbox: how application and control threads reach a shard.
//!
//! `Command`s are fire and forget and bounded; `Call`s are rare, come from the control plane, and may carry an
//! answer. The mailbox does not know what they do. Whoever puts something in rings the shard's doorbell, which
//! costs the kernel only when the shard sleeps.

use std::sync::Arc;

use crossbeam::utils::CachePadded;

use super::call::Call;
use super::value::Received;
use super::wait::WaitCell;
use crate::fabric::doorbell::Doorbell;
use crate::ground::{Key, Nanos, Status, StepId};
use crate::memory::Tensor;
use crate::sync::{ArrayQueue, AtomicBool, AtomicU64, Ordering, SegQueue};

/// What an application thread asks of a shard.
#[derive(Debug)]
pub(crate) enum Command {
    /// Hand a value over. With a cell the sender waits to hear whether it was taken.
    Send {
        key: Key,
        step: StepId,
        tensor: Tensor,
        is_dead: bool,
        answer: Option<Arc<WaitCell<()>>>,
    },
    /// Wait for a value.
    Recv {
        key: Key,
        step: StepId,
        deadline: Nanos,
        cell: Arc<WaitCell<Received>>,
    },
}

/// A shard's mailbox.
#[derive(Debug)]
pub(crate) struct Mailbox {
    commands: ArrayQueue<Command>,
    calls: SegQueue<Call>,
    /// Receives given up. As many as there are receives at most, so it needs no bound of its own.
    cancels: SegQueue<Arc<WaitCell<Received>>>,
    has_calls: CachePadded<AtomicBool>,
    /// Looked at instead of the queue, whose own look when it is empty costs a fence.
    has_commands: CachePadded<AtomicBool>,
    /// Bytes of values in `commands`.
    bytes: CachePadded<AtomicU64>,
    /// The shard holds so much that a send must wait for its answer.
    is_pressed: AtomicBool,
    /// The shard has stopped: nothing is taken any more.
    is_closed: AtomicBool,
    doorbell: Arc<Doorbell>,
}

impl Mailbox {
    pub(crate) fn new(capacity: usize, doorbell: Arc<Doorbell>) -> Self {
        Self {
            commands: ArrayQueue::new(capacity.max(2)),
            calls: SegQueue::new(),
            cancels: SegQueue::new(),
            has_calls: CachePadded::new(AtomicBool::new(false)),
            has_commands: CachePadded::new(AtomicBool::new(false)),
            bytes: CachePadded::new(AtomicU64::new(0)),
            is_pressed: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            doorbell,
        }
    }

    /// Puts a command in, or hands it back when there is no room or the shard has stopped.
    #[allow(clippy::result_large_err)] // The command comes back by value: boxing it would allocate for each refusal.
    pub(crate) fn command(&self, command: Command) -> Result<(), Command> {
        if self.is_closed() {
            return Err(command);
        }
        let bytes = bytes_of(&command);
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Ordering::AcqRel);
        }
        let pushed = self.commands.push(command);
        match &pushed {
            Ok(()) => {
                // Pairs with the Acquire swap in `has_commands`: whoever sees the flag sees the command.
                self.has_commands.store(true, Ordering::Release);
                self.doorbell.ring();
                self.look_again();
            }
            Err(_) if bytes > 0 => {
                self.bytes.fetch_sub(bytes, Ordering::AcqRel);
            }
            Err(_) => {}
        }
        pushed
    }

    pub(crate) fn call(&self, call: Call) {
        if self.is_closed() {
            return;
        }
        self.calls.push(call);
        // Pairs with the Acquire swap in `next_call`: whoever sees the flag sees the call.
        self.has_calls.store(true, Ordering::Release);
        self.doorbell.ring();
        self.look_again();
    }

    /// True once the shard has stopped.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// The shard may have closed between the look and the push: then what was pushed is answered from here.
    fn look_again(&self) {
        if self.is_closed() {
            self.close(&super::faults::shutdown());
        }
    }

    pub(crate) fn cancel(&self, cell: Arc<WaitCell<Received>>) {
        self.cancels.push(cell);
        self.has_calls.store(true, Ordering::Release);
        self.doorbell.ring();
    }

    /// True if a send should wait for its answer: `size` more bytes could be refused.
    pub(crate) fn wants_answer(&self, size: u64, limit: u64) -> bool {
        self.is_pressed.load(Ordering::Acquire)
            || self.bytes.load(Ordering::Acquire) + size > limit / 4
    }

    // The shard's side.

    /// True if there may be commands. Whoever stops before the last one calls [`Mailbox::more_commands`].
    #[inline]
    pub(crate) fn has_commands(&self) -> bool {
        self.has_commands.load(Ordering::Relaxed)
            && self.has_commands.swap(false, Ordering::Acquire)
    }

    /// Commands were left for the next turn.
    pub(crate) fn more_commands(&self) {
        self.has_commands.store(true, Ordering::Release);
    }

    #[inline]
    pub(crate) fn next_command(&self) -> Option<Command> {
        self.commands.pop()
    }

    #[inline]
    pub(crate) fn has_calls(&self) -> bool {
        self.has_calls.load(Ordering::Relaxed) && self.has_calls.swap(false, Ordering::Acquire)
    }

    pub(crate) fn next_call(&self) -> Option<Call> {
        self.calls.pop()
    }

    pub(crate) fn next_cancel(&self) -> Option<Arc<WaitCell<Received>>> {
        self.cancels.pop()
    }

    /// The bytes of a command taken out are counted by the shard from here on.
    pub(crate) fn taken(&self, bytes: u64, is_pressed: bool) {
        if self.is_pressed.load(Ordering::Relaxed) != is_pressed {
            self.is_pressed.store(is_pressed, Ordering::Release);
        }
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.calls.is_empty() && self.cancels.is_empty()
    }

    /// The mailbox closes: everything in it is answered with `status`, and nothing comes in any more.
    pub(crate) fn close(&self, status: &Status) {
        // Sequentially consistent with the load in `look_again`: of a push and a close at the same time, one sees
        // the other.
        self.is_closed.store(true, Ordering::SeqCst);
        while let Some(command) = self.commands.pop() {
            match command {
                Command::Send {
                    answer: Some(answer),
                    ..
                } => answer.complete(Err(status.clone())),
                Command::Send { .. } => {}
                Command::Recv { cell, .. } => cell.complete(Err(status.clone())),
            }
        }
        while let Some(call) = self.calls.pop() {
            match call {
                Call::Pending { answer } => answer.complete(Err(status.clone())),
                Call::Stats { answer } => answer.complete(Err(status.clone())),
                _ => {}
            }
        }
        while self.cancels.pop().is_some() {}
    }
}

/// Bytes a command brings into the table.
#[inline]
pub(crate) fn bytes_of(command: &Command) -> u64 {
    match command {
        Command::Send { tensor, .. } if !tensor.is_leased() => tensor.bytes().len() as u64,
        _ => 0,
    }
}
