//! Drive: which thread turns a shard: its own, or any thread that sends to it or waits for it.
//!
//! A value that an application thread waits for arrives sooner if that thread polls for it itself: no other thread has
//! to be woken, and none competes with it for a core. So a thread that waits takes the shard, turns it until its own
//! value is here, and lays it down (leader and followers); one that finds it taken leaves its command in the mailbox
//! and waits, and takes over when the leader is done. One that sends takes it for a single turn, which is left out if
//! it could only hear peers, and they were heard within ten microseconds.
//!
//! ```text
//!                 ┌────────── a caller wants it: laid down after the turn ──────────┐
//!                 │                                                                 ▼
//!   thread:     turns ◀── no caller has since the last look ────────────────────── watches
//!                 │ ▲                                                               ▲
//!            idle │ │ rung, or a timer                                              │
//!                 ▼ │                                                               │
//!               sleeps ─────────── a caller takes it: rung once ────────────────────┘
//! ```
//!
//! The shard's own thread sleeps with the doorbell armed, and does not hold the shard; a caller that takes it then
//! disarms the doorbell and wakes the thread, once, to watch: as long as callers take the shard, it looks each 100 µs
//! whether they still do, each 500 µs while they come densely, and takes over when they do not. So at any moment a
//! thread turns the shard, or will within a millisecond, or the doorbell is armed and all there was to see has been
//! seen.
//!
//! An engine without threads has none that watches: there a thread that waits also turns the shards beside its own.
//!
//! A shard that has in-shard tasks is kept for its thread: tasks run only where they were pinned, unless they
//! [roam](crate::shard::Task::roams). Other foreign code that a turn calls, wakers and the release hooks of foreign
//! memory, runs on whichever thread turns the shard. It may send, by the mailbox; it may not wait, which is refused as
//! on a shard's thread. A waker that panics is contained: its future alone is the worse for it.
//!
//! A caller that the scheduler preempts within a turn stalls the shard as long, just as the shard's own thread would.

mod baton;
mod beside;
mod line;
mod thread;
mod waiting;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::OnceLock;
use std::thread::Thread;
use std::time::Duration;

pub use thread::{PollPolicy, is_shard_thread};
pub use waiting::wait_aside;

use crate::fabric::doorbell::{Doorbell, DoorbellError};
use crate::ground::{Key, Nanos, Status, StepId};
use crate::mail::forks;
use crate::mail::mailbox::Command;
use crate::memory::Tensor;
use crate::shard::{Mailbox, Progress, Shard, TaskWaker};
use crate::sync::{AtomicBool, Ordering};
use baton::{Baton, BatonGuard, CALLED, Laid, WANTED};
use beside::Beside;
use thread::Inside;

/// Which threads turn a shard.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Driver {
    /// The threads that send or wait, and its own thread when none does.
    #[default]
    Adaptive,
    /// Its thread alone.
    Thread,
    /// The threads that send or wait alone: it has no thread of its own.
    Caller,
}

impl Driver {
    /// As a setting has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Thread => "thread",
            Self::Caller => "caller",
        }
    }

    /// The driver of a shard that waits by `policy`: callers never turn one that spins on a core of its own, if it has
    /// a thread.
    #[must_use]
    pub fn with(self, policy: PollPolicy) -> Self {
        match self {
            Self::Adaptive if policy == PollPolicy::Busy => Self::Thread,
            other => other,
        }
    }
}

/// How a shard is driven.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    /// Which threads turn it.
    pub driver: Driver,
    /// How it waits for work.
    pub policy: PollPolicy,
    /// How long it finds nothing before it sleeps, where it spins a while.
    pub spin: Duration,
    /// Other threads of ours run on its core: yield it.
    pub is_shared: bool,
}

/// A shard, and which thread turns it now.
#[derive(Debug)]
pub struct Drive {
    baton: Baton<Seat>,
    running: Running,
    mailbox: Arc<Mailbox>,
    doorbell: Arc<Doorbell>,
    /// The shard's own thread.
    thread: OnceLock<Thread>,
    /// Wakes that thread while a caller has the shard, and with it the shard's own doorbell.
    home: Doorbell,
    /// The shard's thread was asked to turn the shard: a future waits, and no thread polls for its outcome.
    is_summoned: AtomicBool,
    /// The other shards of an engine without threads.
    beside: Beside,
}

/// What the holder may touch.
#[derive(Debug, Default)]
struct Seat {
    /// The shard: there from [`Drive::adopt`] or [`Drive::run`] until its end.
    shard: Option<Shard>,
    /// The thread sleeps, and the doorbell is armed for it.
    is_asleep: bool,
    /// The shard has ended.
    is_over: bool,
}

/// Turns for what others left meanwhile: as many as a full mailbox of the default size takes.
const TURNS_PER_CALL: u32 = 128;
/// How often a thread that lays the shard down does first what others have left meanwhile: threads that send on and on
/// would keep it for ever.
const ROUNDS_FOR_OTHERS: u32 = 64;

impl Drive {
    /// The drive of a shard that is yet to be made, and is reached by `mailbox`.
    ///
    /// # Errors
    /// As [`Doorbell::new`].
    pub fn new(running: Running, mailbox: Arc<Mailbox>) -> Result<Self, DoorbellError> {
        let driver = running.driver.with(running.policy);
        let running = Running { driver, ..running };
        Ok(Self {
            baton: Baton::kept(Seat::default()),
            running,
            doorbell: mailbox.doorbell(),
            mailbox,
            thread: OnceLock::new(),
            home: Doorbell::new()?,
            is_summoned: AtomicBool::new(false),
            beside: Beside::default(),
        })
    }

    /// Takes a shard that has no thread: from now on the threads that call turn it.
    ///
    /// # Errors
    /// [`DoorbellError::Os`] when the kernel gives no more descriptors.
    pub fn adopt(&self, shard: Shard) -> Result<(), DoorbellError> {
        self.beside.keep_fds(&shard)?;
        if let Some(mut held) = self.baton.take_home() {
            held.with(|seat| seat.shard = Some(shard));
            self.baton.keep(false);
            self.end(held);
        }
        Ok(())
    }

    /// True if threads that call may turn the shard.
    #[must_use]
    #[inline]
    pub const fn is_shared(&self) -> bool {
        !matches!(self.running.driver, Driver::Thread)
    }

    /// The shard, for this thread to turn, if no thread holds it. Not within a turn.
    #[inline]
    pub fn enter(&self) -> Option<Turn<'_>> {
        self.enter_or(0)
    }

    /// The same; its holder hears that a caller would turn it.
    #[inline]
    pub fn enter_soon(&self) -> Option<Turn<'_>> {
        self.enter_or(WANTED)
    }

    #[inline]
    fn enter_or(&self, call: u64) -> Option<Turn<'_>> {
        // In a child of `fork` nothing is turned: what a shard reaches is the parent's.
        if !self.is_shared() || forks::is_child() {
            return None;
        }
        if is_shard_thread() {
            // If it is this thread's own, it looks again before it lays it down. Another's is not asked for: this
            // thread could not take it, and no thread would turn it meanwhile.
            self.baton.call(call & !WANTED);
            return None;
        }
        let mut held = self.baton.take(call)?;
        held.with(|seat| self.begin(seat));
        Some(Turn {
            drive: self,
            held: Some(held),
            is_beside: false,
        })
    }

    /// True if a thread that sleeps with another shard waits for this one to be laid down.
    #[cfg(test)]
    pub(crate) fn is_wanted_beside(&self) -> bool {
        self.baton.is(baton::BESIDE)
    }

    /// One turn, if no other thread turns the shard. True if something was done.
    pub fn progress(&self) -> bool {
        self.enter()
            .is_some_and(|mut turn| turn.turn() == Progress::Busy)
    }

    /// Gives the shard a command: directly if no thread holds it, else by the mailbox, where the holder sees it.
    ///
    /// # Errors
    /// The command, if the mailbox is full or closed.
    #[allow(clippy::result_large_err)] // As `Mailbox::command`.
    pub fn command(&self, command: Command) -> Result<(), Command> {
        if let Some(mut turn) = self.enter() {
            // One that has failed turns a while longer, to tell its peers, and takes nothing.
            if self.mailbox.is_closed() {
                return Err(command);
            }
            turn.command(command)?;
            turn.turn();
            return Ok(());
        }
        self.mailbox.command(command)?;
        // Its holder may have laid it down before it could see this.
        self.look_again();
        Ok(())
    }

    /// Something was left in the mailbox: the holder of the shard looks, or it is done here.
    pub fn look_again(&self) {
        if let Some(mut turn) = self.enter_or(CALLED) {
            turn.turn();
        }
    }

    /// Wakes a task of the shard: as [`TaskWaker::wake`], but one that roams runs here and now if no other thread turns
    /// the shard. Nothing else happens here then: no peer is heard, so no other foreign code runs. What peers answer is
    /// the shard's own thread's to hear.
    pub fn wake(&self, waker: &TaskWaker) {
        if self.nudge(waker) {
            self.summon();
        }
    }

    /// As [`Drive::wake`], and leaves the shard's own thread where it is: what peers answer is heard by the thread that
    /// turns the shard next, which is the shard's own within a millisecond if no other is before it. False if the task
    /// was woken already.
    pub fn nudge(&self, waker: &TaskWaker) -> bool {
        if !waker.seat().ring() {
            return false;
        }
        if !self.enter().is_some_and(|mut turn| turn.run(waker)) {
            waker.call();
            // Its holder may have laid it down before it could see this.
            if let Some(mut turn) = self.enter_or(CALLED) {
                turn.run(waker);
            }
        }
        true
    }

    /// A future waits, and no thread polls for its outcome: the shard's own thread takes over.
    pub fn summon(&self) {
        // Its holder brings the outcome, or lays the shard down, and then it is watched.
        if !self.is_shared() || self.thread.get().is_none() || forks::is_child() {
            return;
        }
        if !self.baton.is_free() {
            return;
        }
        if !self.is_summoned.swap(true, Ordering::AcqRel) {
            self.unpark();
        }
    }

    /// This thread holds the shard: its doorbell is disarmed, and its clock is read anew.
    #[inline]
    fn begin(&self, seat: &mut Seat) {
        let Some(shard) = &mut seat.shard else {
            return;
        };
        if std::mem::take(&mut seat.is_asleep) {
            self.doorbell.disarm();
            shard.disarm();
            self.home.ring();
        }
        shard.resume(self.running.driver == Driver::Caller);
        shard.core.stats.driven += 1;
    }

    /// Lays the shard down. What others left meanwhile is done first.
    #[inline]
    fn end(&self, held: BatonGuard<'_, Seat>) -> Laid {
        self.lay_down(held, false)
            .unwrap_or_else(|again| self.end_again(again))
    }

    #[cold]
    #[inline(never)]
    fn end_again(&self, mut held: BatonGuard<'_, Seat>) -> Laid {
        let mut rounds = 0;
        loop {
            held.with(|seat| {
                if !self.goes_home(seat) {
                    seat.drain();
                }
            });
            rounds += 1;
            // Who leave so much send themselves, and take the shard for that; if none does, its thread looks soon.
            let passes_on = rounds >= ROUNDS_FOR_OTHERS && self.running.driver != Driver::Caller;
            match self.lay_down(held, passes_on) {
                Ok(laid) => return laid,
                Err(again) => held = again,
            }
        }
    }

    /// Lays the shard down, or gives it back because others have left something: where it `passes_on`, that is for
    /// the thread that takes it next.
    #[inline]
    fn lay_down<'a>(
        &self,
        mut held: BatonGuard<'a, Seat>,
        passes_on: bool,
    ) -> Result<Laid, BatonGuard<'a, Seat>> {
        let goes_home = held.with(|seat| self.goes_home(seat));
        if goes_home {
            self.baton.keep(true);
        }
        let laid = match passes_on {
            false => held.lay_down()?,
            true => held.pass_on()?,
        };
        if laid.was_slept_with() || goes_home {
            self.unpark();
        }
        Ok(laid)
    }

    /// True if only the shard's own thread may do what is next.
    #[inline]
    fn goes_home(&self, seat: &Seat) -> bool {
        let has_thread = self.running.driver != Driver::Caller;
        let wants_home = |shard: &Shard| has_thread && shard.wants_home();
        seat.is_over || seat.shard.as_ref().is_none_or(wants_home)
    }

    #[cold]
    fn unpark(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
            self.home.ring();
        }
    }

    /// One turn of a shard that has no thread and is to stop. Once it has, what is left of it comes back: its
    /// connections end with it.
    fn finish_soon(&self) -> Option<Option<Shard>> {
        // A leader hears that the shard stops before it is free.
        let mut held = self.baton.take_home()?;
        let finished =
            held.with(|seat| (seat.turn() == Progress::Stopped).then(|| seat.shard.take()));
        self.end(held);
        finished
    }
}

/// Turns shards that have no threads until all of them have stopped: each in turn, for one may wait for what another
/// owes. What is left of them comes back.
pub fn finish_all<'a>(drives: impl IntoIterator<Item = &'a Drive>) -> Vec<Option<Shard>> {
    let mut running: Vec<_> = drives.into_iter().collect();
    let mut finished = Vec::new();
    while !running.is_empty() {
        running.retain(|drive| match drive.finish_soon() {
            Some(shard) => {
                finished.push(shard);
                false
            }
            None => true,
        });
        std::thread::yield_now();
    }
    finished
}

impl Seat {
    /// One turn. A panic of the shard ends its engine, and not the thread that turned it.
    #[inline]
    fn turn(&mut self) -> Progress {
        let progress = self.inside(Shard::turn).unwrap_or(Progress::Stopped);
        self.is_over |= progress == Progress::Stopped;
        progress
    }

    /// Turns until there is nothing to do, within reason.
    #[cold]
    fn drain(&mut self) {
        for _ in 0..TURNS_PER_CALL {
            if self.turn() != Progress::Busy {
                return;
            }
        }
    }

    /// The doorbell is armed. How long the shard may sleep, if it has nothing to do.
    fn arm(&mut self) -> Option<Nanos> {
        let armed = self.inside(|shard| shard.arm().then(|| thread::patience(shard, None)));
        armed.flatten()
    }

    /// Does something with the shard, as its thread. `None` if there is none, it is over, or it panicked.
    #[inline]
    fn inside<R>(&mut self, what: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        let shard = self.shard.as_mut().filter(|_| !self.is_over)?;
        let inside = Inside::enter();
        let done = catch_unwind(AssertUnwindSafe(|| what(shard)));
        drop(inside);
        match done {
            Ok(done) => Some(done),
            Err(panic) => {
                self.is_over = true;
                shard.die(panic);
                None
            }
        }
    }
}

/// A shard in the hands of a thread that calls; it lays it down when it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    drive: &'a Drive,
    held: Option<BatonGuard<'a, Seat>>,
    /// Its thread turns another shard of the engine, and comes back to this one.
    is_beside: bool,
}

impl Turn<'_> {
    /// Runs a task that roams, for it was woken. False if it must be woken another way.
    fn run(&mut self, task: &TaskWaker) -> bool {
        let run = |shard: &mut Shard| shard.wake_roaming(task.seat());
        self.with(|seat| seat.inside(run)) == Some(Some(true))
    }

    #[inline]
    fn with<R>(&mut self, touch: impl FnOnce(&mut Seat) -> R) -> Option<R> {
        self.held.as_mut().map(|held| held.with(touch))
    }

    /// One turn of the shard.
    #[inline]
    pub fn turn(&mut self) -> Progress {
        self.with(Seat::turn).unwrap_or(Progress::Stopped)
    }

    /// A command of this thread's, after all that it left in the mailbox.
    ///
    /// # Errors
    /// The command, if the shard has ended before it came to it.
    #[inline]
    #[allow(clippy::result_large_err)] // As `Mailbox::command`.
    pub fn command(&mut self, command: Command) -> Result<(), Command> {
        let mut command = Some(command);
        self.with(|seat| seat.inside(|shard| shard.command(&mut command)));
        command.map_or(Ok(()), Err)
    }

    /// Sends a value, after all that this thread left in the mailbox, and says at once whether it was taken.
    ///
    /// # Errors
    /// Why it was not.
    #[inline]
    pub fn send(
        &mut self,
        key: &Key,
        step: StepId,
        tensor: Tensor,
        is_dead: bool,
    ) -> Result<(), Status> {
        let sent = self.with(|seat| {
            let (sent, progress) = seat.inside(|shard| {
                let sent = shard.send_of_caller(key, step, tensor, is_dead);
                (sent, shard.turn_after_send())
            })?;
            seat.is_over |= progress == Progress::Stopped;
            Some(sent)
        });
        // A shard that ended or panicked says why by its mailbox.
        sent.flatten()
            .unwrap_or_else(|| Err(self.drive.mailbox.end()))
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let laid = self.drive.end(held);
            if laid.is_wanted_beside() && !self.is_beside {
                self.drive.call_beside();
            }
        }
    }
}
