//! Receives of application threads: a future for any runtime, and a blocking wait.

mod slices;

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Engine;
use super::cancel::{CancelToken, Hook};
use super::users::Users;
use crate::drive::{Drive, is_shard_thread};
use crate::ground::{Key, Nanos, Status, StepId, TensorMeta, faults, limits};
use crate::mail::mailbox::{Cancel, Command, give_up};
use crate::mail::stops::Stops;
use crate::mail::wait::WaitCell;
use crate::mail::{Handed, Received, forks};
use crate::trace::Path;

/// A receive. It begins when it is started, or first polled or waited for; dropping it cancels it and unlinks the
/// waiter.
///
/// It may be dropped at any moment, as in a `select!` loop or by a timeout around it, and nothing is lost: a value that
/// it had received and not yet returned goes back to the front of its key, before all that was sent after it. A
/// receive that begins after the drop finds it there. Others that waited at the same time may have had later values.
/// The value is lost only if the step has ended meanwhile, or its peer was given up.
///
/// ```
/// use rendez::engine::{Config, Engine};
/// use rendez::ground::{Key, StepId};
/// use rendez::memory::Tensor;
///
/// # let mut config = Config::new("/job:a/task:0");
/// # (config.shards, config.share_cores, config.control) = (1, true, false);
/// # let engine = Engine::start(config)?;
/// let (step, key) = (engine.step(StepId(1)), Key::between("a", "a", "x")?);
/// let dropped = step.recv(&key).start()?;
/// step.send(&key, Tensor::scalar(1u8))?;
/// step.send(&key, Tensor::scalar(2u8))?;
/// // It may have its value by now, or not.
/// drop(dropped);
/// assert_eq!(step.recv(&key).wait()?.tensor.host()?, [1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a receive does nothing until it is awaited or waited for"]
pub struct Recv {
    engine: Arc<Users>,
    step: StepId,
    key: Key,
    deadline: Option<Duration>,
    ended: Option<Status>,
    hook: Hook,
    state: State,
}

/// What a receive copied into memory of its caller's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    /// The value's type and shape.
    pub meta: TensorMeta,
    /// How many bytes were copied: the whole value.
    pub len: usize,
    /// True for a dead value.
    pub is_dead: bool,
    /// The way it came.
    pub path: Path,
}

#[derive(Debug)]
enum State {
    New,
    Waiting(Arc<WaitCell<Handed>>),
    Done,
}

impl Recv {
    pub(super) fn new(engine: Arc<Users>, step: StepId, key: Key, ended: Option<Status>) -> Self {
        Self {
            engine,
            step,
            key,
            deadline: None,
            ended,
            hook: Hook::default(),
            state: State::New,
        }
    }

    /// Gives up after `patience`, counted from when it begins, with `DeadlineExceeded`. The waiter is gone
    /// then: a value that comes later stays for the next receive.
    pub const fn deadline(mut self, patience: Duration) -> Self {
        self.deadline = Some(patience);
        self
    }

    /// Gives up with `Cancelled` when the token is cancelled, unless the value came before. When
    /// [`CancelToken::cancel`] has returned, this takes no value that is sent afterwards, even if it is not polled:
    /// such a value is the next receive's.
    pub fn cancel_on(mut self, token: &CancelToken) -> Self {
        self.hook = Hook::on(token);
        self
    }

    /// Begins now, and is waited for later. Only a receive that waits already is sure to get what a peer sends last
    /// before it leaves: a peer that is gone takes with it what was not received.
    ///
    /// # Errors
    /// As [`Recv::wait`], as far as it is known at once.
    pub fn start(mut self) -> Result<Self, Status> {
        self.begin()?;
        Ok(self)
    }

    /// The engine that receives.
    #[must_use]
    pub fn engine(&self) -> Engine {
        Engine {
            inner: Arc::clone(&self.engine),
        }
    }

    /// Blocks this thread until the value is here.
    ///
    /// # Errors
    /// `WAIT_IN_SHARD` on the thread of a shard, which would wait for itself; `ENGINE_FORKED` in a child of `fork`;
    /// `DeadlineExceeded`, the status the step ended with, `Unavailable` if the peer is gone, and what
    /// [`super::Step::send`] names for keys that are not ours to receive. `Cancelled` also answers a receive that
    /// is asked again after it has given its outcome.
    ///
    /// `ResourceExhausted` if the shard has no room for it: a receive waits for its value, and not for room. With
    /// `MAILBOX_FULL` the shard is behind with what it was given; a receive that was dropped counts until the shard
    /// has come to it. Try again. With `WAITERS`, `WAITERS_OF_KEY`, `KEYS` or `STEPS` the message says what there
    /// is too much of.
    #[inline]
    pub fn wait(mut self) -> Result<Received, Status> {
        self.wait_for().map(|handed| handed.received)
    }

    /// Blocks this thread until the value is here, and copies its bytes to the beginning of `room`.
    ///
    /// It is one copy, made by this thread: no other thread ever writes to `room`, which is the caller's alone again
    /// when this returns, whatever it returns. A device's bytes go by way of the engine's memory. The memory that the
    /// value came in goes back to its sender or the engine.
    ///
    /// ```
    /// use rendez::engine::{Config, Engine};
    /// use rendez::ground::{Key, Shape, StepId};
    /// use rendez::memory::Tensor;
    ///
    /// # let mut config = Config::new("/job:a/task:0");
    /// # (config.shards, config.share_cores, config.control) = (1, true, false);
    /// # let engine = Engine::start(config)?;
    /// let (step, key) = (engine.step(StepId(1)), Key::between("a", "a", "x")?);
    /// step.send(&key, Tensor::from_slice(&[1_u8, 2, 3], Shape::from([3]))?)?;
    /// let mut room = [0; 8];
    /// // Too short: the value stays for the next receive.
    /// let status = step.recv(&key).wait_into(&mut room[..2]).unwrap_err();
    /// assert_eq!(status.reason(), "RECV_ROOM");
    /// let filled = step.recv(&key).wait_into(&mut room)?;
    /// assert_eq!((filled.len, &room[..4]), (3, &[1, 2, 3, 0][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Recv::wait`]; and as [`Engine::copy_into`], and then the value goes back to the front of its key.
    pub fn wait_into(mut self, room: &mut [u8]) -> Result<Filled, Status> {
        let handed = self.wait_for()?;
        match self.engine.copy_into(&handed.received, room) {
            Ok(len) => Ok(Filled {
                meta: handed.received.tensor.meta(),
                len,
                is_dead: handed.received.is_dead,
                path: handed.received.path,
            }),
            Err(status) => {
                self.unread(handed);
                Err(status)
            }
        }
    }

    /// A value that was handed over, and not read, goes back to the front of its key.
    fn unread(&self, handed: Handed) {
        let mailbox = self.engine.reach(&self.key).mailbox;
        mailbox.cancel(Cancel::Unread(handed));
    }

    #[inline]
    fn wait_for(&mut self) -> Result<Handed, Status> {
        if let Err(status) = may_wait() {
            return Err(self.ended.take().unwrap_or(status));
        }
        let begins = self.prepare()?;
        // A thread that turns the shard itself hears of the outcome there, and needs no cell. What its token stops must
        // have one.
        let shard = self.engine.reach(&self.key);
        if let Some((deadline, _)) = &begins
            && self.hook.is_loose()
            && let Some(turn) = shard.drive.and_then(Drive::enter_soon)
        {
            self.state = State::Done;
            let led = turn.receive(&self.key, self.step, *deadline, spare_cell);
            self.engine.woke(&self.key, led.waking);
            return led.outcome;
        }
        if begins.is_some() {
            self.state = State::Waiting(spare_cell());
        }
        if let Some(cell) = self.cancelled_cell() {
            return self.cancel(cell);
        }
        let State::Waiting(cell) = &self.state else {
            return Err(faults::cancelled());
        };
        let shard = self.engine.reach(&self.key);
        if let Some((deadline, stops)) = begins {
            let command = self.command(cell, deadline, stops);
            if shard.mailbox.command(command).is_err() {
                return Err(self.refused());
            }
        }
        let outcome = shard.wait(cell, None);
        let outcome = outcome.unwrap_or_else(|| Err(faults::cancelled()));
        self.engine.woke(&self.key, cell.woke().unwrap_or(0));
        self.recycle();
        outcome
    }

    /// Begins, if it has not.
    fn begin(&mut self) -> Result<(), Status> {
        let Some((deadline, stops)) = self.prepare()? else {
            return Ok(());
        };
        let cell = spare_cell();
        let command = self.command(&cell, deadline, stops);
        self.state = State::Waiting(cell);
        match self.engine.reach(&self.key).command(command) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.refused()),
        }
    }

    /// The shard takes nothing: it has not begun, and never will.
    fn refused(&mut self) -> Status {
        self.state = State::Done;
        self.engine.refusal(self.engine.reach(&self.key).mailbox)
    }

    /// What the shard is asked for.
    fn command(
        &self,
        cell: &Arc<WaitCell<Handed>>,
        deadline: Nanos,
        stops: Option<Stops>,
    ) -> Command {
        Command::Recv {
            key: self.key.clone(),
            step: self.step,
            deadline,
            cell: Arc::clone(cell),
            stops,
        }
    }

    /// If it has not begun, and may: until when it waits, and what may stop it.
    fn prepare(&mut self) -> Result<Option<(Nanos, Option<Stops>)>, Status> {
        if !matches!(self.state, State::New) {
            return Ok(None);
        }
        if let Some(status) = self.ended.take() {
            self.state = State::Done;
            return Err(status);
        }
        if self.hook.is_cancelled() {
            self.state = State::Done;
            return Err(faults::cancelled());
        }
        if forks::is_child() {
            self.state = State::Done;
            return Err(faults::forked());
        }
        if *self.key.destination_task() != self.engine.task {
            self.state = State::Done;
            return Err(faults::foreign_destination(&self.key, &self.engine.task));
        }
        let deadline = self.deadline.map_or(Nanos::NEVER, |patience| {
            self.engine.clock.deadline(patience)
        });
        Ok(Some((deadline, self.hook.stops())))
    }

    /// What it waits in, if its token was cancelled. Else the shard hears of it when it is, and brings the thread that
    /// waits its end.
    fn cancelled_cell(&mut self) -> Option<Arc<WaitCell<Handed>>> {
        let State::Waiting(cell) = &self.state else {
            return None;
        };
        if self.hook.is_loose() {
            return None;
        }
        let (cell, stopped) = (Arc::clone(cell), Arc::clone(cell));
        let mailbox = Arc::clone(self.engine.reach(&self.key).mailbox);
        let tell_shard = move || {
            stopped.stop();
            mailbox.cancel(Cancel::Recv(Arc::clone(&stopped)));
        };
        self.hook.call(tell_shard).then_some(cell)
    }

    fn recycle(&mut self) {
        self.hook.loosen();
        if let State::Waiting(cell) = std::mem::replace(&mut self.state, State::Done) {
            keep_cell(cell);
        }
    }

    /// Its token was cancelled. A value that came just before is its own still.
    fn cancel(&mut self, cell: Arc<WaitCell<Handed>>) -> Result<Handed, Status> {
        if cell.give_up() {
            self.state = State::Done;
            let mailbox = self.engine.reach(&self.key).mailbox;
            mailbox.cancel(Cancel::Recv(cell));
            return Err(faults::cancelled());
        }
        let outcome = cell.take().unwrap_or_else(|| Err(faults::cancelled()));
        drop(cell);
        self.recycle();
        outcome
    }

    /// Ends it before it has told its outcome: what it was brought goes back.
    fn end(&mut self) {
        if let State::Waiting(cell) = &self.state {
            if give_up(self.engine.reach(&self.key).mailbox, cell) {
                self.recycle();
            } else {
                // The shard holds the cell until it has heard of this.
                self.state = State::Done;
            }
        }
    }
}

impl Future for Recv {
    type Output = Result<Received, Status>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = self.poll_handed(context);
        polled.map_ok(|handed| handed.received)
    }
}

impl Recv {
    fn poll_handed(&mut self, context: &mut Context<'_>) -> Poll<Result<Handed, Status>> {
        let is_new = matches!(self.state, State::New);
        if let Err(status) = self.begin() {
            return Poll::Ready(Err(status));
        }
        let State::Waiting(cell) = &self.state else {
            return Poll::Ready(Err(faults::cancelled()));
        };
        if forks::is_child() {
            return Poll::Ready(Err(faults::forked()));
        }
        let shard = self.engine.reach(&self.key);
        if !is_new && !cell.is_filled() {
            shard.progress();
        }
        match cell.poll(context.waker()) {
            Poll::Ready(outcome) => {
                self.engine.woke(&self.key, cell.woke().unwrap_or(0));
                self.recycle();
                Poll::Ready(outcome)
            }
            Poll::Pending => {
                shard.summon();
                if self.hook.is_loose() {
                    return Poll::Pending;
                }
                let cell = Arc::clone(cell);
                if !self.hook.poll(context) {
                    return Poll::Pending;
                }
                Poll::Ready(self.cancel(cell))
            }
        }
    }
}

impl Drop for Recv {
    fn drop(&mut self) {
        self.end();
    }
}

std::thread_local! {
    /// Wait cells of this thread, for another use.
    static CELLS: RefCell<Vec<Arc<WaitCell<Handed>>>> = const { RefCell::new(Vec::new()) };
}

/// A wait cell without another holder.
fn spare_cell() -> Arc<WaitCell<Handed>> {
    // None where the thread is ending.
    let spare = CELLS.try_with(|cells| cells.borrow_mut().pop());
    match spare.ok().flatten() {
        // The shard may still be letting go of it after it woke us: then it is left to that.
        Some(cell) if Arc::strong_count(&cell) == 1 => {
            cell.reset();
            cell
        }
        _ => Arc::default(),
    }
}

fn keep_cell(cell: Arc<WaitCell<Handed>>) {
    let _ = CELLS.try_with(|cells| {
        let mut cells = cells.borrow_mut();
        if cells.len() < limits::SPARE_CELLS {
            cells.push(cell);
        }
    });
}

/// Whether this thread may wait for a shard: not a shard's own, which would wait for itself or for those that wait for
/// it, and none of a child of `fork`.
pub(crate) fn may_wait() -> Result<(), Status> {
    if forks::is_child() {
        return Err(faults::forked());
    }
    match is_shard_thread() {
        true => Err(faults::wait_in_shard()),
        false => Ok(()),
    }
}
