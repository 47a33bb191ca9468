//! Sends of application threads that wait for room: a future for any runtime, and a blocking wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::cancel::{CancelToken, Hook};
use super::recv::may_wait;
use super::steps::Step;
use crate::ground::{Key, Nanos, Status, catalogue, faults};
use crate::mail::forks;
use crate::mail::mailbox::{Cancel, Command, bytes_of};
use crate::mail::pending_send::{PendingSend, Permit, SendCell};
use crate::memory::Tensor;

/// A send that waits for room: see [`Step::send_async`]. Dropping it before the value was taken cancels it and gives
/// the tensor's memory back.
#[derive(Debug)]
#[must_use = "a send does nothing until it is started, awaited or waited for"]
pub struct SendAsync {
    step: Step,
    key: Key,
    is_dead: bool,
    is_owed: bool,
    patience: Option<Duration>,
    hook: Hook,
    state: State,
}

#[derive(Debug)]
enum State {
    New(Tensor),
    Waiting(Arc<SendCell>),
    /// The value was taken.
    Sent,
    /// It ended as it began, and that is still to be told.
    Refused(Unsent),
    /// It was not taken, and that was told.
    Done,
}

/// Why a value was not sent, with the tensor: it is its sender's again.
#[derive(Debug)]
pub struct Unsent(Box<(Status, Option<Tensor>)>);

impl Unsent {
    /// Why.
    #[must_use]
    pub const fn status(&self) -> &Status {
        &self.0.0
    }

    /// The tensor, to send it again. `None` if its engine ended while it was being taken, or if the send is asked again
    /// after it has returned an error, and the tensor with it.
    #[must_use]
    pub fn into_tensor(self) -> Option<Tensor> {
        self.0.1
    }
}

impl std::fmt::Display for Unsent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.status().fmt(f)
    }
}

impl std::error::Error for Unsent {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.status())
    }
}

impl From<Unsent> for Status {
    fn from(unsent: Unsent) -> Self {
        unsent.0.0
    }
}

impl SendAsync {
    pub(super) fn new(step: Step, key: Key, tensor: Tensor, is_dead: bool) -> Self {
        Self {
            step,
            key,
            is_dead,
            is_owed: false,
            patience: None,
            hook: Hook::default(),
            state: State::New(tensor),
        }
    }

    /// Gives up after `patience`, counted from when it begins, with `DeadlineExceeded`. The value was not taken then.
    pub const fn deadline(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Gives up with `Cancelled` when the token is cancelled, unless the value was taken before. When
    /// [`CancelToken::cancel`] has returned, this takes no room that comes free afterwards, even if it is not polled.
    pub fn cancel_on(mut self, token: &CancelToken) -> Self {
        self.hook = Hook::on(token);
        self
    }

    /// May wait beyond the bound of waiting sends: for a value without which others that were sent are of no use. There
    /// are as many places again for these.
    #[doc(hidden)] // For lines of the dataflow runtime.
    pub const fn owed(mut self) -> Self {
        self.is_owed = true;
        self
    }

    /// Begins now, and is waited for later: its place among the values of its key is taken.
    pub fn start(mut self) -> Self {
        self.begin();
        self
    }

    /// Gives it up, and returns how it ended: `Ok` if the value was taken before. Dropping it does the same and returns
    /// nothing.
    ///
    /// # Errors
    /// [`Unsent`], with the tensor: `Cancelled`, or why the send had failed before.
    pub fn give_up(mut self) -> Result<(), Unsent> {
        let State::Waiting(cell) = &self.state else {
            return self.refuse(faults::send_cancelled());
        };
        let cell = Arc::clone(cell);
        let Some(tensor) = cell.take_tensor() else {
            // The shard has taken it, or is taking it this moment, and says how that ends.
            cell.outcome.stop();
            self.tell_shard(&cell);
            return self.wait_as_it_is();
        };
        self.state = State::Done;
        self.hook.loosen();
        let failed = match cell.outcome.give_up() {
            true => None,
            false => cell.outcome.take().and_then(Result::err),
        };
        self.tell_shard(&cell);
        Err(unsent(
            failed.unwrap_or_else(faults::send_cancelled),
            tensor,
        ))
    }

    /// Blocks this thread until the value is taken. A device's tensor that cannot be read in place where it goes, goes
    /// by way of the host: this thread waits for the copy too, unless the send was started before.
    ///
    /// # Errors
    /// [`Unsent`], with the tensor: what [`Step::send`] names, except the bounds it waits for; `DeadlineExceeded`;
    /// `Cancelled`; `ResourceExhausted` when too many sends wait for room already.
    pub fn wait(self) -> Result<(), Unsent> {
        match &self.state {
            State::New(tensor) if tensor.is_device() => {
                let kept = tensor.clone();
                self.wait_from_device(kept)
            }
            _ => self.wait_as_it_is(),
        }
    }

    fn wait_from_device(self, kept: Tensor) -> Result<(), Unsent> {
        let (step, key, is_dead) = (self.step.clone(), self.key.clone(), self.is_dead);
        let (token, patience, began) = (self.hook.token(), self.patience, Instant::now());
        let is_owed = self.is_owed;
        let why = match self.wait_as_it_is() {
            Err(unsent) if unsent.status().reason() == catalogue::TENSOR_DEVICE => unsent.into(),
            sent => return sent,
        };
        let staged = match step.staged(&key, &kept, why) {
            Ok(staged) => staged,
            Err(status) => return Err(unsent(status, kept)),
        };
        let mut send = Self::new(step, key, staged, is_dead);
        send.is_owed = is_owed;
        if let Some(token) = token {
            send = send.cancel_on(&token);
        }
        if let Some(patience) = patience {
            send = send.deadline(patience.saturating_sub(began.elapsed()));
        }
        (send.wait_as_it_is()).map_err(|failed| unsent(failed.into(), kept))
    }

    /// Blocks this thread until the value is taken. The shard refuses a device's tensor that cannot be read in place.
    fn wait_as_it_is(mut self) -> Result<(), Unsent> {
        if let Err(status) = may_wait() {
            return self.refuse(status);
        }
        self.begin();
        if let State::Waiting(cell) = &self.state {
            let cell = Arc::clone(cell);
            let shard = self.step.engine().reach(&self.key);
            if !self.hook.is_loose() {
                let (stopped, mailbox) = (Arc::clone(&cell), Arc::clone(shard.mailbox));
                let tell_shard = move || {
                    stopped.outcome.stop();
                    mailbox.cancel(Cancel::Send(Arc::clone(&stopped)));
                };
                if self.hook.call(tell_shard) {
                    // The shard says how it ends: it may be taking the value now.
                    cell.outcome.stop();
                    self.tell_shard(&cell);
                }
            }
            let outcome = shard.wait(&cell.outcome, None);
            return self.settle(&cell, outcome.unwrap_or_else(|| Err(faults::shutdown())));
        }
        self.told()
    }

    /// Waiting is refused here: a send that has not begun does not begin, and one that has is given up.
    fn refuse(mut self, status: Status) -> Result<(), Unsent> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::New(tensor) => Err(unsent(status, tensor)),
            State::Waiting(cell) => {
                if !cell.outcome.give_up() {
                    let outcome = cell.outcome.take().unwrap_or(Err(status));
                    return self.settle(&cell, outcome);
                }
                self.tell_shard(&cell);
                Err(Unsent(Box::new((status, cell.take_tensor()))))
            }
            State::Sent => Ok(()),
            State::Refused(unsent) => Err(unsent),
            State::Done => Err(Unsent(Box::new((status, None)))),
        }
    }

    fn begin(&mut self) {
        if matches!(self.state, State::New(_))
            && let State::New(tensor) = std::mem::replace(&mut self.state, State::Done)
        {
            self.state = if self.hook.is_cancelled() {
                State::Refused(unsent(faults::send_cancelled(), tensor))
            } else {
                self.put_in(tensor)
            };
        }
    }

    /// Into the shard's mailbox: as a plain send as long as nothing presses, and in turn otherwise.
    fn put_in(&self, mut tensor: Tensor) -> State {
        if let Err(status) = self.step.may_send(&self.key, &tensor) {
            return State::Refused(unsent(status, tensor));
        }
        let engine = self.step.engine();
        let shard = engine.reach(&self.key);
        let mailbox = shard.mailbox;
        let bytes = bytes_of(&tensor);
        // A device's tensor may be refused by the shard, and is its sender's again then.
        let is_plain = !tensor.is_device() || *self.key.destination_task() == engine.task;
        if is_plain && mailbox.pressure().is_none() {
            if mailbox.weigh(bytes, engine.parked_bytes) {
                let command = Command::Send {
                    key: self.key.clone(),
                    step: self.step.id(),
                    tensor,
                    is_dead: self.is_dead,
                    answer: None,
                    queued_at: engine.stamp_of_send(),
                };
                match shard.command(command) {
                    Err(Command::Send { tensor: back, .. }) => tensor = back,
                    _ => return State::Sent,
                }
            }
            mailbox.unweigh(bytes);
        }
        let Some(permit) = Permit::take(mailbox, self.is_owed) else {
            let status = faults::sends_exhausted(crate::ground::limits::WAITING_SENDS);
            return State::Refused(unsent(status, tensor));
        };
        let cell = Arc::new(SendCell::new(tensor, self.hook.stops()));
        mailbox.send_in_turn(PendingSend {
            key: self.key.clone(),
            step: self.step.id(),
            is_dead: self.is_dead,
            deadline: self
                .patience
                .map_or(Nanos::NEVER, |patience| engine.clock.deadline(patience)),
            cell: Arc::clone(&cell),
            permit,
        });
        shard.look_again();
        State::Waiting(cell)
    }

    fn settle(&mut self, cell: &SendCell, outcome: Result<(), Status>) -> Result<(), Unsent> {
        self.state = match outcome {
            Ok(()) => State::Sent,
            Err(status) => State::Refused(Unsent(Box::new((status, cell.take_tensor())))),
        };
        self.told()
    }

    /// The outcome of a send that has ended. That it was sent is told as often as it is asked.
    fn told(&mut self) -> Result<(), Unsent> {
        self.hook.loosen();
        match std::mem::replace(&mut self.state, State::Done) {
            State::Sent => {
                self.state = State::Sent;
                Ok(())
            }
            State::Refused(unsent) => Err(unsent),
            _ => Err(Unsent(Box::new((faults::send_cancelled(), None)))),
        }
    }

    fn tell_shard(&self, cell: &Arc<SendCell>) {
        let mailbox = self.step.engine().reach(&self.key).mailbox;
        mailbox.cancel(Cancel::Send(Arc::clone(cell)));
    }
}

fn unsent(status: Status, tensor: Tensor) -> Unsent {
    Unsent(Box::new((status, Some(tensor))))
}

impl Future for SendAsync {
    type Output = Result<(), Unsent>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.begin();
        let State::Waiting(cell) = &self.state else {
            return Poll::Ready(self.told());
        };
        let cell = Arc::clone(cell);
        if forks::is_child() {
            return Poll::Ready(self.settle(&cell, Err(faults::forked())));
        }
        let shard = self.step.engine().reach(&self.key);
        if !cell.outcome.is_filled() {
            shard.progress();
        }
        if let Poll::Ready(outcome) = cell.outcome.poll(context.waker()) {
            return Poll::Ready(self.settle(&cell, outcome));
        }
        self.step.engine().reach(&self.key).summon();
        if self.hook.poll(context) {
            // The shard says how it ends: it may be taking the value now.
            cell.outcome.stop();
            self.tell_shard(&cell);
        }
        Poll::Pending
    }
}

impl Drop for SendAsync {
    fn drop(&mut self) {
        if let State::Waiting(cell) = &self.state {
            cell.outcome.give_up();
            // Its memory is free from here on, whenever the shard hears of it.
            drop(cell.take_tensor());
            self.tell_shard(cell);
        }
    }
}
