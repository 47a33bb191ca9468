//! The mailbox: how application and control threads reach a shard.
//!
//! A send that may wait for room joins the overflow beside the commands if its `Command` finds none. As long as a send
//! stands there, one that does not wait finds the mailbox full, so that it overtakes none.
//!
//! `Command`s are fire and forget and bounded; `Call`s are rare, come from the control plane, and may carry an
//! answer. The mailbox does not know what they do. Each of them rings the shard's doorbell, which costs a system call
//! only when the shard sleeps.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crossbeam::utils::CachePadded;

use super::call::Call;
use super::delivery::Handed;
use super::forks;
use super::pending_send::{PendingSend, Places, SendCell};
use super::stops::Stops;
use super::wait::WaitCell;
use crate::fabric::doorbell::Doorbell;
use crate::ground::{Key, Nanos, Status, StepId, faults, limits};
use crate::memory::Tensor;
use crate::sync::{ArrayQueue, AtomicBool, AtomicU32, AtomicU64, Ordering, SegQueue};

/// What an application thread asks of a shard.
#[derive(Debug)]
pub enum Command {
    /// Hand a value over. With a cell the sender waits to hear whether it was taken.
    Send {
        /// Which key.
        key: Key,
        /// Which step.
        step: StepId,
        /// The tensor.
        tensor: Tensor,
        /// It says that no value will come.
        is_dead: bool,
        /// The waiter for the outcome, if any.
        answer: Option<Arc<WaitCell<()>>>,
        /// When its sender called; zero if that is not measured.
        queued_at: Nanos,
    },
    /// Hand a value over when there is room for it.
    SendInTurn(PendingSend),
    /// Wait for a value.
    Recv {
        /// Which key.
        key: Key,
        /// Which step.
        step: StepId,
        /// Until when.
        deadline: Nanos,
        /// The waiter.
        cell: Arc<WaitCell<Handed>>,
        /// What may cancel it.
        stops: Option<Stops>,
    },
}

/// What an application thread waits for no more.
#[derive(Debug)]
pub enum Cancel {
    /// A receive: its waiter is gone.
    Recv(Arc<WaitCell<Handed>>),
    /// What a receive was brought, and its waiter left unread.
    Unread(Handed),
    /// A send that waits for room, likewise.
    Send(Arc<SendCell>),
}

/// How much stands between a send and the table: nothing, usually.
#[derive(Clone, Copy, Debug)]
pub struct Pressure(u32);

impl Pressure {
    /// The shard holds so much that a send must wait for its answer.
    const PRESSED: u32 = 1 << 31;
    /// One send in the overflow.
    const IN_LANE: u32 = 1 << 16;
    /// One send that waits for room, in the overflow, among the commands or in the shard.
    const WAITING: u32 = 1;
    const WAITING_MASK: u32 = Self::IN_LANE - 1;
    const OVERFLOW_MASK: u32 = !(Self::PRESSED | Self::WAITING_MASK);

    /// Nothing at all.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// How many wait for room.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) const fn waits(self) -> u32 {
        self.0 & Self::WAITING_MASK
    }

    /// A send waits for room in the mailbox itself.
    #[inline]
    pub const fn has_overflow(self) -> bool {
        self.0 & Self::OVERFLOW_MASK != 0
    }
}

// Both counts fit their halves, with room for as many threads as try at once beyond the bound.
const _: () = assert!(2 * limits::WAITING_SENDS <= 1 << 14);

/// The mailbox of a shard whose tasks are `T`.
pub struct Mailbox<T> {
    commands: ArrayQueue<Command>,
    calls: SegQueue<Call<T>>,
    /// Receives given up, and values left unread. As many as there are receives at most, so it needs no bound of its
    /// own.
    cancels: SegQueue<Cancel>,
    /// Sends for which there was no room in `commands`, in order: at most `WAITING_SENDS`, and as many that are owed.
    overflow: SegQueue<PendingSend>,
    has_calls: CachePadded<AtomicBool>,
    has_cancels: CachePadded<AtomicBool>,
    /// Looked at instead of the queue, whose own look when it is empty costs a fence.
    has_commands: CachePadded<AtomicBool>,
    /// Bytes of values in `commands`.
    bytes: CachePadded<AtomicU64>,
    /// See [`Pressure`].
    pressure: AtomicU32,
    /// The shard has stopped: nothing is taken any more.
    is_closed: AtomicBool,
    /// What it stopped with, from just before it closes.
    end: OnceLock<Status>,
    doorbell: Arc<Doorbell>,
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox")
            .field("commands", &self.commands)
            .field("pressure", &self.pressure)
            .field("is_closed", &self.is_closed)
            .finish_non_exhaustive()
    }
}

impl<T> Mailbox<T> {
    /// A mailbox of so many commands, whose shard is woken by `doorbell`.
    pub fn new(capacity: usize, doorbell: Arc<Doorbell>) -> Self {
        Self {
            commands: ArrayQueue::new(capacity.max(2)),
            calls: SegQueue::new(),
            cancels: SegQueue::new(),
            overflow: SegQueue::new(),
            has_calls: CachePadded::new(AtomicBool::new(false)),
            has_cancels: CachePadded::new(AtomicBool::new(false)),
            has_commands: CachePadded::new(AtomicBool::new(false)),
            bytes: CachePadded::new(AtomicU64::new(0)),
            pressure: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
            end: OnceLock::new(),
            doorbell,
        }
    }

    /// What is rung when something was put in.
    pub fn doorbell(&self) -> Arc<Doorbell> {
        Arc::clone(&self.doorbell)
    }

    /// Puts a command in, or hands it back when there is no room or the shard has stopped.
    #[allow(clippy::result_large_err)] // The command comes back by value: boxing it would allocate for each refusal.
    pub fn command(&self, command: Command) -> Result<(), Command> {
        if self.is_closed() {
            return Err(command);
        }
        let pushed = self.commands.push(command);
        if pushed.is_ok() {
            // Pairs with the Acquire swap in `has_commands`: a thread that sees the flag sees the command.
            self.has_commands.store(true, Ordering::Release);
            self.doorbell.ring();
            self.look_again();
        }
        pushed
    }

    /// Has the shard do something, in order with the other calls.
    pub fn call(&self, call: Call<T>) {
        if self.is_closed() {
            return refuse(call, &self.end());
        }
        self.calls.push(call);
        // Pairs with the Acquire swap in `next_call`: a thread that sees the flag sees the call.
        self.has_calls.store(true, Ordering::Release);
        self.doorbell.ring();
        self.look_again();
    }

    /// True once the shard has stopped, and where it never was: in a child of `fork`.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst) || forks::is_child()
    }

    /// What the shard stopped with, or why it never was.
    pub fn end(&self) -> Status {
        match forks::is_child() {
            true => faults::forked(),
            false => self.end.get().cloned().unwrap_or_else(faults::shutdown),
        }
    }

    /// The shard may have closed between the look and the push: then what was pushed is answered from here.
    fn look_again(&self) {
        if self.is_closed() {
            self.close(&self.end());
        }
    }

    /// What is put in here is heeded before any command or call that is put in later, by this thread or one that it has
    /// told.
    pub fn cancel(&self, cancel: Cancel) {
        // In the child of a fork the doorbell is the parent's.
        if self.is_closed() || forks::is_child() {
            return;
        }
        self.cancels.push(cancel);
        // Pairs with the Acquire swap in `has_cancels`; a swap here too, so that it pairs with all before it.
        self.has_cancels.swap(true, Ordering::AcqRel);
        self.has_calls.store(true, Ordering::Release);
        self.doorbell.ring();
        self.look_again();
    }

    /// What stands between a send and the table. It includes every send that began to wait for room before, on this
    /// thread or on one that happens before it.
    #[inline]
    pub fn pressure(&self) -> Pressure {
        Pressure(self.pressure.load(Ordering::Acquire))
    }

    /// Counts the bytes of a value that is about to be put in. False if the shard could have to refuse it, with what
    /// else is in here: then its sender should wait for the answer.
    #[inline]
    pub fn weigh(&self, bytes: u64, limit: u64) -> bool {
        bytes == 0 || self.bytes.fetch_add(bytes, Ordering::AcqRel) + bytes <= limit / 4
    }

    /// The value was not put in after all.
    pub fn unweigh(&self, bytes: u64) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        }
    }

    /// Takes one of the first `places` for sends that wait for room. False if there is none.
    pub(crate) fn begin_wait(&self, places: u32) -> bool {
        let before = self.pressure.fetch_add(Pressure::WAITING, Ordering::AcqRel);
        let is_in = (before & Pressure::WAITING_MASK) < places;
        if !is_in {
            self.give_place_back();
        }
        is_in
    }

    /// Gives such a place back.
    fn give_place_back(&self) {
        self.pressure.fetch_sub(Pressure::WAITING, Ordering::AcqRel);
    }

    /// Puts a value that waits for room in, behind all that wait already. A closed mailbox answers it.
    pub fn send_in_turn(&self, pending_send: PendingSend) {
        // It may find room among the commands only if the overflow is empty.
        let pending_send = if self.pressure().has_overflow() {
            pending_send
        } else {
            match self.command(Command::SendInTurn(pending_send)) {
                Err(Command::SendInTurn(pending_send)) => pending_send,
                _ => return,
            }
        };
        // Counted before it stands there: until the shard has dealt with it, no send goes by.
        self.pressure.fetch_add(Pressure::IN_LANE, Ordering::AcqRel);
        self.overflow.push(pending_send);
        self.has_commands.store(true, Ordering::Release);
        self.doorbell.ring();
        self.look_again();
    }

    // The shard's side.

    /// True if commands may have come since this was last asked. A caller that stops before the last one calls
    /// [`Mailbox::more_commands`].
    #[inline]
    pub(crate) fn commands_came(&self) -> bool {
        self.has_commands.load(Ordering::Relaxed)
            && self.has_commands.swap(false, Ordering::Acquire)
    }

    /// True if there may be commands or calls. It takes note of none: they are still to be taken.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.has_commands.load(Ordering::Relaxed) || self.has_calls.load(Ordering::Relaxed)
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
    pub(crate) fn calls_came(&self) -> bool {
        self.has_calls.load(Ordering::Relaxed) && self.has_calls.swap(false, Ordering::Acquire)
    }

    pub(crate) fn next_call(&self) -> Option<Call<T>> {
        self.calls.pop()
    }

    /// True if cancels may have come since this was last asked. The caller takes all of them.
    #[inline]
    pub(crate) fn cancels_came(&self) -> bool {
        self.has_cancels.load(Ordering::Relaxed) && self.has_cancels.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn next_cancel(&self) -> Option<Cancel> {
        self.cancels.pop()
    }

    /// The bytes of a command taken out are counted by the shard from here on.
    pub(crate) fn taken(&self, bytes: u64, is_pressed: bool) {
        let was_pressed = self.pressure.load(Ordering::Relaxed) & Pressure::PRESSED != 0;
        if is_pressed && !was_pressed {
            self.pressure.fetch_or(Pressure::PRESSED, Ordering::AcqRel);
        } else if was_pressed && !is_pressed {
            self.pressure
                .fetch_and(!Pressure::PRESSED, Ordering::AcqRel);
        }
        self.unweigh(bytes);
    }

    /// How many commands there are now.
    pub(crate) fn commands(&self) -> usize {
        self.commands.len()
    }

    /// The next of the overflow. Its taker calls [`Mailbox::left_overflow`] once it is dealt with.
    pub(crate) fn next_in_overflow(&self) -> Option<PendingSend> {
        self.overflow.pop()
    }

    /// One of the overflow was dealt with.
    pub(crate) fn left_overflow(&self) {
        self.pressure.fetch_sub(Pressure::IN_LANE, Ordering::AcqRel);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.commands.is_empty()
            && self.calls.is_empty()
            && self.cancels.is_empty()
            && self.overflow.is_empty()
    }

    /// The mailbox closes: everything in it is answered with `status`, and nothing comes in any more. The first status
    /// stays.
    pub(crate) fn close(&self, status: &Status) {
        let status = self.end.get_or_init(|| status.clone());
        // Sequentially consistent with the load in `look_again`: of a push and a close at the same time, one sees
        // the other.
        self.is_closed.store(true, Ordering::SeqCst);
        while let Some(command) = self.commands.pop() {
            match command {
                Command::Send {
                    answer: Some(answer),
                    ..
                } => {
                    answer.complete(Err(status.clone()));
                }
                Command::Send { .. } => {}
                Command::SendInTurn(pending_send) => {
                    pending_send.cell.outcome.complete(Err(status.clone()));
                }
                Command::Recv { cell, .. } => {
                    cell.complete(Err(status.clone()));
                }
            }
        }
        while let Some(pending_send) = self.overflow.pop() {
            pending_send.cell.outcome.complete(Err(status.clone()));
            self.left_overflow();
        }
        while let Some(call) = self.calls.pop() {
            refuse(call, status);
        }
        while self.cancels.pop().is_some() {}
    }
}

impl<T: Send> Places for Mailbox<T> {
    fn end_wait(&self) {
        self.give_place_back();
    }
}

/// Ends a receive for its waiter: the waiter leaves the shard, or the value that it was brought goes back there. True
/// if no other thread has a share in the cell any more.
pub fn give_up<T>(mailbox: &Mailbox<T>, cell: &Arc<WaitCell<Handed>>) -> bool {
    if cell.give_up() {
        mailbox.cancel(Cancel::Recv(Arc::clone(cell)));
        return false;
    }
    if let Some(Ok(unread)) = cell.take() {
        mailbox.cancel(Cancel::Unread(unread));
    }
    true
}

/// Answers a call that is not taken any more, if a caller waits for its answer.
pub(crate) fn refuse<T>(call: Call<T>, status: &Status) {
    match call {
        Call::Pending { answer } => drop(answer.complete(Err(status.clone()))),
        Call::Stats { answer } => drop(answer.complete(Err(status.clone()))),
        Call::Deadline { answer, .. } => drop(answer.complete(Err(status.clone()))),
        Call::Spawn { seat, .. } => seat.ends(Err(status.clone())),
        _ => {}
    }
}

/// Bytes that a value may bring into the table. A lease is here without any, but a copy of it may have to be kept.
#[inline]
pub const fn bytes_of(tensor: &Tensor) -> u64 {
    tensor.size() as u64
}

#[cfg(test)]
mod tests;
