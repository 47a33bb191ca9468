//! Receives of application threads: a future for any runtime, and a blocking wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::Inner;
use super::cancel::{CancelToken, Hook};
use crate::ground::{Key, Nanos, Status, StepId};
use crate::shard::mailbox::{Cancel, Command, give_up};
use crate::shard::run::is_shard_thread;
use crate::shard::value::Handed;
use crate::shard::wait::WaitCell;
use crate::shard::{Received, faults, forks};

/// A receive. It begins when it is started, or first polled or waited for; dropping it cancels it and unlinks the
/// waiter.
///
/// It may be dropped at any moment, as in a `select!` loop or by a timeout around it, and nothing is lost: a value that
/// it had been brought and had not given out goes back to the front of its key, before all that was sent after it. A
/// receive that begins after the drop finds it there. Others that waited at the same time may have had later values.
/// Only if the step has ended meanwhile, or its peer was given up, the value goes with that.
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
/// assert_eq!(step.recv(&key).wait()?.tensor.bytes(), [1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a receive does nothing until it is awaited or waited for"]
pub struct Recv {
    engine: Arc<Inner>,
    step: StepId,
    key: Key,
    deadline: Option<Duration>,
    ended: Option<Status>,
    hook: Hook,
    state: State,
}

#[derive(Debug)]
enum State {
    New,
    Waiting(Arc<WaitCell<Handed>>),
    Done,
}

impl Recv {
    pub(super) fn new(engine: Arc<Inner>, step: StepId, key: Key, ended: Option<Status>) -> Self {
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
    /// [`CancelToken::cancel`] has returned, this takes no value that is sent afterwards, also if nobody polls it: such
    /// a value is the next receive's.
    pub fn cancel_on(mut self, token: &CancelToken) -> Self {
        self.hook = Hook::on(token);
        self
    }

    /// Begins now, and is waited for later. What a peer sends last, before it goes, is sure to be received only by
    /// who waits already: a peer that is gone takes with it what nobody has received.
    ///
    /// # Errors
    /// As [`Recv::wait`], as far as it is known at once.
    pub fn start(mut self) -> Result<Self, Status> {
        self.begin()?;
        Ok(self)
    }

    /// Blocks this thread until the value is here.
    ///
    /// # Errors
    /// `WAIT_IN_SHARD` on the thread of a shard, which would wait for itself; `ENGINE_FORKED` in a child of `fork`;
    /// `DeadlineExceeded`, `Cancelled`, the status the step ended with, `Unavailable` if the peer is gone, and what
    /// [`super::Step::send`] names for keys that are not ours to receive.
    pub fn wait(mut self) -> Result<Received, Status> {
        if let Err(status) = may_wait() {
            return Err(self.ended.take().unwrap_or(status));
        }
        if !self.hook.is_loose() {
            return futures_lite::future::block_on(self);
        }
        self.begin()?;
        let State::Waiting(cell) = &self.state else {
            return Err(faults::cancelled());
        };
        let outcome = block_on_cell(cell, None).unwrap_or_else(|| Err(faults::cancelled()));
        self.engine.woke(&self.key, cell);
        self.recycle();
        outcome.map(|handed| handed.received)
    }

    fn begin(&mut self) -> Result<(), Status> {
        if !matches!(self.state, State::New) {
            return Ok(());
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
        let cell = self.engine.cell();
        let command = Command::Recv {
            key: self.key.clone(),
            step: self.step,
            deadline,
            cell: Arc::clone(&cell),
            stops: self.hook.stops(),
        };
        let mailbox = self.engine.mailbox_of(&self.key);
        if mailbox.command(command).is_err() {
            let status = self.engine.refusal(mailbox);
            self.state = State::Done;
            return Err(status);
        }
        self.state = State::Waiting(cell);
        Ok(())
    }

    fn recycle(&mut self) {
        self.hook.loosen();
        if let State::Waiting(cell) = std::mem::replace(&mut self.state, State::Done) {
            // A full store of cells just lets this one go.
            let _ = self.engine.cells.push(cell);
        }
    }

    /// Its token was cancelled. A value that came just before is its own still.
    fn cancel(&mut self, cell: Arc<WaitCell<Handed>>) -> Result<Received, Status> {
        if cell.give_up() {
            self.state = State::Done;
            let mailbox = self.engine.mailbox_of(&self.key);
            mailbox.cancel(Cancel::Recv(cell));
            return Err(faults::cancelled());
        }
        let outcome = cell.take().unwrap_or_else(|| Err(faults::cancelled()));
        drop(cell);
        self.recycle();
        outcome.map(|handed| handed.received)
    }

    /// Ends it before it has told its outcome: what it was brought goes back.
    fn end(&mut self) {
        if let State::Waiting(cell) = &self.state {
            if give_up(self.engine.mailbox_of(&self.key), cell) {
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
        if let Err(status) = self.begin() {
            return Poll::Ready(Err(status));
        }
        let State::Waiting(cell) = &self.state else {
            return Poll::Ready(Err(faults::cancelled()));
        };
        match cell.poll(context.waker()) {
            Poll::Ready(outcome) => {
                self.engine.woke(&self.key, cell);
                self.recycle();
                Poll::Ready(outcome.map(|handed| handed.received))
            }
            Poll::Pending => {
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

impl Inner {
    /// A wait cell that nobody else holds.
    fn cell(&self) -> Arc<WaitCell<Handed>> {
        match self.cells.pop() {
            // The shard may still be letting go of it after it woke us: then it is left to that.
            Some(cell) if Arc::strong_count(&cell) == 1 => {
                cell.reset();
                cell
            }
            _ => Arc::new(WaitCell::default()),
        }
    }
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

/// Looks before the thread sleeps: about 20 µs, as long as ending a sleep takes.
const LOOKS: u32 = 2_000;
/// Looks between two yields: a shard may need this very core to bring the outcome.
const LOOKS_PER_YIELD: u32 = 32;

/// Waits for a cell's outcome: spins a little, then sleeps. `None` if `patience` ran out first.
pub(crate) fn block_on_cell<T>(
    cell: &WaitCell<T>,
    patience: Option<Duration>,
) -> Option<Result<T, Status>> {
    for look in 1..=LOOKS {
        if let Some(outcome) = cell.take() {
            return Some(outcome);
        }
        std::hint::spin_loop();
        if look.is_multiple_of(LOOKS_PER_YIELD) {
            std::thread::yield_now();
        }
    }
    let until = patience.and_then(|patience| Instant::now().checked_add(patience));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(outcome) = cell.poll(&waker) {
            return Some(outcome);
        }
        match until {
            None => std::thread::park(),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return cell.take();
                }
                std::thread::park_timeout(left);
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
