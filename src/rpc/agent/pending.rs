//! Calls that are under way, as programs hold them.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rendez::ground::{Status, catalogue};

use super::rref::Handle;
use super::shared::{CallAnswer, Command, Shared, Ticket};
use super::slot::Slot;
use crate::error::Error;
use crate::functions::types_of;
use crate::id::WorkerId;
use crate::message::Outcome;
use crate::node::Ending;
use crate::observer::Leg;
use crate::payload::Payload;
use crate::value::{Unpacker, Value};

/// A call that is under way: await it, on any runtime, or call [`Pending::wait`].
///
/// Dropping it cancels the call, unless it has ended: the other side is told, and does not begin it if it has not. With
/// [`Pending::detach`] it goes on.
#[must_use = "a call that is dropped is cancelled"]
pub struct Pending<R> {
    shared: Arc<Shared>,
    to: WorkerId,
    ticket: Arc<Ticket>,
    is_over: bool,
    result: PhantomData<fn() -> R>,
}

impl<R> std::fmt::Debug for Pending<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Pending({} at {}, ended: {})",
            self.ticket.function,
            self.to,
            self.ticket.slot.is_filled()
        )
    }
}

impl<R> Pending<R> {
    pub(crate) fn new(shared: Arc<Shared>, to: WorkerId, ticket: Arc<Ticket>) -> Self {
        Self {
            shared,
            to,
            ticket,
            is_over: false,
            result: PhantomData,
        }
    }

    /// True once the call has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.ticket.slot.is_filled()
    }

    /// Gives the call up: it ends with `RPC_CANCELLED` unless it has ended, and the other side is told.
    pub fn cancel(&self) {
        if !self.ticket.slot.is_filled() {
            self.shared
                .push(Command::Cancel(self.to, Arc::clone(&self.ticket)));
        }
    }

    /// The call goes on, and its result is not waited for.
    pub fn detach(mut self) {
        self.is_over = true;
    }

    /// Calls `then` when the call has ended, in the thread that brings its end: the shard's, one that waits for a call,
    /// or one that gives this call up. It must return soon, and take no lock that such a thread holds. At once if the
    /// call has ended. A panic of it is told in the log, and ends nothing else.
    pub fn on_done(&self, then: impl FnOnce() + Send + 'static) {
        self.ticket.slot.then(Box::new(then));
    }

    /// Tells `then` how a call without a result ended.
    pub(crate) fn watch(mut self, then: impl FnOnce(Result<(), Error>) + Send + 'static) {
        self.is_over = true;
        let (ticket, shared, to) = (Arc::clone(&self.ticket), Arc::clone(&self.shared), self.to);
        self.ticket.slot.then(Box::new(move || {
            let ending = ticket.slot.take().map(|answer| answer.ending);
            // A failure of the function is the value's, and told by who asks for that.
            let outcome = match ending {
                Some(Ending::Answered(_)) | None => Ok(()),
                Some(ending) => {
                    let error = shared.ended(to, &ticket, &ending);
                    Err(match error.reason() {
                        catalogue::RPC_TIMEOUT => Error::local(Status::of(
                            catalogue::RPC_TIMEOUT,
                            "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner \
                             node does not exist.",
                        )),
                        _ => error,
                    })
                }
            };
            then(outcome);
        }));
    }
}

impl Shared {
    /// How a call at `to` ended that has no answer.
    fn ended(&self, to: WorkerId, ticket: &Ticket, ending: &Ending<Payload>) -> Error {
        let what = (&*ticket.what(), ticket.timeout);
        Error::ended(ending, what, &self.name_of(to), self.options.waiting)
    }

    /// The result of a call at `to`, packed.
    fn payload(
        &self,
        to: WorkerId,
        ticket: &Ticket,
        answer: Option<CallAnswer>,
    ) -> Result<(Payload, WorkerId, Vec<Handle>), Error> {
        let Some(answer) = answer else {
            return Err(Error::of(
                catalogue::RPC_CANCELLED,
                "its outcome was taken before",
            ));
        };
        let CallAnswer {
            at,
            ending,
            handles,
        } = answer;
        let payload = match ending {
            Ending::Answered(Outcome::Value { payload, .. }) => payload,
            Ending::Answered(Outcome::Fault(fault)) => {
                return Err(Error::remote(fault, &self.name_of(to), at));
            }
            ending => return Err(self.ended(to, ticket, &ending)),
        };
        Ok((payload, at, handles))
    }

    /// The result of a call at `to` that has ended.
    pub(super) fn unpack<R: Value>(
        &self,
        to: WorkerId,
        ticket: &Ticket,
        answer: Option<CallAnswer>,
    ) -> Result<R, Error> {
        let (mut payload, at, handles) = self.payload(to, ticket, answer)?;
        let function = &*ticket.function;
        if payload.types != types_of::<R>() {
            let wanted = crate::value::name_of::<R>();
            let (result, worker) = (ticket.result(), self.name_of(to));
            let message = format!("{result} at '{worker}' is no {wanted}");
            return Err(Error::of(catalogue::RPC_ARGUMENTS, message));
        }
        let leg = Leg {
            is_reply: true,
            me: self.me,
            peer: at,
            function,
        };
        let observers = &self.options.observers;
        let header = payload.header.as_deref();
        observers
            .iter()
            .for_each(|one| one.receiving(leg, header, &payload.tensors));
        let mut from = payload.unpacker(handles);
        let value = R::take(&mut from).and_then(|value| from.end().map(|()| value));
        observers.iter().for_each(|one| one.received(leg));
        value.map_err(|error| {
            let (result, worker) = (ticket.result(), self.name_of(to));
            let message = format!("{result} at '{worker}' cannot be read: {error}");
            Error::of(error.reason(), message)
        })
    }
}

impl<R> Pending<R> {
    /// Waits until it has ended, for at most `patience`; false if it has not. Then as [`Pending::wait`].
    pub(super) fn look(&mut self, patience: Option<Duration>) -> Result<bool, Error> {
        if self.ticket.slot.is_filled() {
            return Ok(true);
        }
        super::context::may_wait()?;
        match (self.shared.wait(&self.ticket.slot, patience), patience) {
            (false, None) => Err(Error::local(crate::error::shut_down())),
            (is_over, _) => Ok(is_over),
        }
    }

    /// Whether there is an end to be polled for: in a child of `fork` only one that was there before.
    fn may_come(&self) -> Result<(), Error> {
        match self.ticket.slot.is_filled() {
            true => Ok(()),
            false => super::context::may_call(),
        }
    }

    /// The result of a call that has ended, whose type only its signature says.
    pub(super) fn raw(&mut self, types: u32) -> Result<Unpacker, Error> {
        let answer = self.ticket.slot.take();
        self.unpack_raw(types, answer)
    }

    /// The same, once it is there.
    pub(super) fn poll_raw(
        &mut self,
        types: u32,
        context: &mut Context<'_>,
    ) -> Poll<Result<Unpacker, Error>> {
        if self.is_over {
            return Poll::Ready(self.unpack_raw(types, None));
        }
        self.may_come()?;
        let polled = self.ticket.slot.poll(context.waker());
        polled.map(|answer| self.unpack_raw(types, Some(answer)))
    }

    fn unpack_raw(&mut self, types: u32, answer: Option<CallAnswer>) -> Result<Unpacker, Error> {
        self.is_over = true;
        let (mut payload, _, handles) = self.shared.payload(self.to, &self.ticket, answer)?;
        match payload.types == types {
            true => Ok(payload.unpacker(handles)),
            false => {
                let message = format!("{} is not of its signature's type", self.ticket.result());
                Err(Error::of(catalogue::RPC_ARGUMENTS, message))
            }
        }
    }
}

impl<R: Value> Pending<R> {
    /// Calls `then` with the outcome when the call has ended, in the thread that brings its end: the shard's, one that
    /// waits for a call, or one that gives this call up. It must return soon, cannot wait for a call, and takes no lock
    /// that such a thread holds. At once if the call has ended. A panic of it is told in the log, and ends nothing
    /// else.
    pub fn then(mut self, then: impl FnOnce(Result<R, Error>) + Send + 'static) {
        let ticket = Arc::clone(&self.ticket);
        ticket.slot.then(Box::new(move || {
            then(self.taken());
        }));
    }

    /// Blocks this thread until the result is there. On a thread of the pool another one takes its place meanwhile.
    ///
    /// # Errors
    /// What the function failed with, at its worker; `RPC_TIMEOUT`, `RPC_CANCELLED`, `PEER_LOST` and others, if the
    /// call has no answer. In a shard's own thread, which would wait for itself, `WAIT_IN_SHARD`.
    pub fn wait(mut self) -> Result<R, Error> {
        self.look(None)?;
        self.taken()
    }

    /// Blocks this thread for at most `patience`; the call goes on if it is not over then.
    ///
    /// # Errors
    /// Itself, if the time is over; else as [`Pending::wait`].
    pub fn wait_for(mut self, patience: Duration) -> Result<Result<R, Error>, Self> {
        match self.look(Some(patience)) {
            Ok(true) => Ok(self.taken()),
            Ok(false) => Err(self),
            Err(error) => Ok(Err(error)),
        }
    }

    /// The outcome of a call that has ended.
    fn taken(&mut self) -> Result<R, Error> {
        self.is_over = true;
        let answer = self.ticket.slot.take();
        self.unpack(answer)
    }

    fn unpack(&self, answer: Option<CallAnswer>) -> Result<R, Error> {
        self.shared.unpack(self.to, &self.ticket, answer)
    }
}

impl<R: Value> Future for Pending<R> {
    type Output = Result<R, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_over {
            return Poll::Ready(self.unpack(None));
        }
        self.may_come()?;
        match self.ticket.slot.poll(context.waker()) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(answer) => {
                self.is_over = true;
                Poll::Ready(self.unpack(Some(answer)))
            }
        }
    }
}

impl<R> Drop for Pending<R> {
    fn drop(&mut self) {
        if !self.is_over {
            self.cancel();
        }
    }
}

/// Waits for all of them, and gives their results in order; the first failure cancels what is left.
///
/// # Errors
/// The failure of the first, in their order, that failed.
pub fn wait_all<R: Value>(calls: impl IntoIterator<Item = Pending<R>>) -> Result<Vec<R>, Error> {
    let calls: Vec<Pending<R>> = calls.into_iter().collect();
    // Any that fails ends the wait, also if one before it never ends: they are looked at as they end.
    let done = Arc::new((Slot::<()>::default(), AtomicUsize::new(calls.len())));
    if calls.is_empty() {
        return Ok(Vec::new());
    }
    for call in &calls {
        let (done, ticket) = (Arc::clone(&done), Arc::clone(&call.ticket));
        call.on_done(move || {
            let has_failed = ticket
                .slot
                .peek(|answer| !matches!(answer.ending, Ending::Answered(Outcome::Value { .. })));
            if done.1.fetch_sub(1, Ordering::AcqRel) == 1 || has_failed {
                done.0.fill(());
            }
        });
    }
    if !done.0.is_filled() {
        super::context::may_wait()?;
        calls[0].shared.wait(&done.0, None);
    }
    let failed = calls.iter().position(|call| {
        call.is_done()
            && call
                .ticket
                .slot
                .peek(|answer| !matches!(answer.ending, Ending::Answered(Outcome::Value { .. })))
    });
    match failed {
        Some(at) => {
            let mut calls = calls;
            calls.swap_remove(at).wait().map(|value| vec![value])
        }
        None => calls.into_iter().map(Pending::wait).collect(),
    }
}
