//! Work: what the engine does for an operation, and what comes of it.
//!
//! Knows the engine's futures, and whose memory comes back; not who waits, nor Python's exceptions.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rendez::ground::{catalogue, faults};
use rendez::{
    Engine, Filled, Key, Received, Recv as Receive, SendAsync, Status, Step, Tensor, Unsent,
};

use super::copying::Copying;
use crate::calls::call::{Answered, Underway};
use crate::convert::LONG;
use crate::room::{Into, object_of};
use crate::tensor::Tensor as PyTensor;
use crate::writable::TensorMut;

/// What the engine does.
pub(crate) enum Work {
    Receive(Receive),
    ReceiveInto(Receive, Into),
    Send(SendAsync, Sender),
    /// A send that begins once its value is copied.
    Copy(Box<Copying>),
    Call(Box<Underway>),
}

/// Who sends, and what becomes of a value that is not taken.
pub(crate) struct Sender {
    /// What could be written: it has the tensor back if this fails.
    pub(super) room: Option<Py<TensorMut>>,
    /// How a device's value is sent by way of the host, where it cannot be read in place.
    by_host: Option<Box<ByHost>>,
    /// The device's value that goes by way of the host, if it could be written.
    kept: Option<Tensor>,
}

/// A send of a device's value, to begin it again.
pub(crate) struct ByHost {
    pub(crate) engine: Engine,
    pub(crate) step: Step,
    pub(crate) key: Key,
    pub(crate) until: Option<Instant>,
}

impl ByHost {
    /// Sends a copy in the host's memory; waits until it is there.
    fn send(self, tensor: &Tensor) -> Result<SendAsync, Status> {
        let copied = self.engine.devices()?.to_host(tensor)?;
        let send = self.step.send_async(&self.key, copied);
        Ok(match self.until {
            Some(until) => send.deadline(until.saturating_duration_since(Instant::now())),
            None => send,
        })
    }
}

impl Sender {
    pub(crate) const fn new(room: Option<Py<TensorMut>>, by_host: Option<Box<ByHost>>) -> Self {
        Self {
            room,
            by_host,
            kept: None,
        }
    }

    /// What goes in place of a value that was not taken; or why nothing does: then it is its sender's again.
    fn again(&mut self, unsent: Unsent) -> Result<SendAsync, Status> {
        let is_here = unsent.status().reason() == catalogue::TENSOR_DEVICE;
        let by_host = self
            .by_host
            .take_if(|by_host| is_here && by_host.engine.devices().is_ok());
        let (Some(by_host), status) = (by_host, unsent.status().clone()) else {
            return Err(self.put_back(unsent));
        };
        let tensor = unsent.into_tensor().ok_or(status)?;
        let sent = by_host.send(&tensor);
        match (&sent, &self.room) {
            (Err(_), Some(room)) => room.get().put_back(tensor),
            (Ok(_), Some(_)) => self.kept = Some(tensor),
            (_, None) => {}
        }
        sent
    }

    /// Why a value that was given up was not sent. That it was to go by way of the host is no reason.
    pub(super) fn given_up(&mut self, unsent: Unsent) -> Status {
        let goes_on =
            self.by_host.is_some() && unsent.status().reason() == catalogue::TENSOR_DEVICE;
        let status = self.put_back(unsent);
        match goes_on {
            true => faults::send_cancelled(),
            false => status,
        }
    }

    /// Why a value was not sent, which is its sender's again.
    pub(super) fn put_back(&mut self, unsent: Unsent) -> Status {
        let status = unsent.status().clone();
        let tensor = unsent.into_tensor();
        if let (Some(room), Some(tensor)) = (&self.room, self.kept.take().or(tensor)) {
            room.get().put_back(tensor);
        }
        status
    }
}

/// Whether its outcome counts, or it was given up before: who comes first decides.
#[derive(Default)]
pub(super) struct Fate(OnceLock<bool>);

impl Fate {
    /// An outcome is here: whether it counts.
    pub(super) fn keep(&self) -> bool {
        *self.0.get_or_init(|| true)
    }

    /// Whether it is given up, now or before.
    pub(super) fn give_up(&self) -> bool {
        !*self.0.get_or_init(|| false)
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.0.get() == Some(&false)
    }

    /// What `take` makes of a value that is here; the value of a receive that was given up is the next one's.
    fn taken<T>(&self, take: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
        match self.keep() {
            true => take(),
            false => Err(faults::cancelled()),
        }
    }
}

/// How a wait of one slice ended.
pub(super) enum Slice {
    Later(Work),
    /// With the memory that it was to fill.
    Done(Result<Done, Status>, Option<Into>),
}

/// An outcome, not yet an object of Python's.
pub(super) enum Done {
    Value(Box<PyTensor>),
    Filled(Filled),
    Sent,
    Answered(Box<Answered>),
}

impl Done {
    pub(super) fn object(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Self::Value(tensor) => Py::new(py, *tensor)?.into_any(),
            Self::Filled(filled) => object_of(py, &filled)?.unbind(),
            Self::Sent => py.None(),
            Self::Answered(answered) => answered.object(py)?,
        })
    }
}

fn value(receive: &Receive, received: Received) -> Done {
    let tensor = PyTensor::received(received, || receive.engine());
    Done::Value(Box::new(tensor))
}

impl Work {
    /// Whether an outcome takes a while to be taken.
    pub(super) fn is_long(&self) -> bool {
        match self {
            Self::ReceiveInto(_, into) => into.len() >= LONG || into.may_wait,
            Self::Send(_, sender) => sender.by_host.is_some(),
            Self::Copy(_) => true,
            _ => false,
        }
    }

    pub(super) fn poll(&mut self, waker: &Waker, fate: &Fate) -> Poll<Result<Done, Status>> {
        let mut context = Context::from_waker(waker);
        match self {
            Self::Receive(receive) => receive
                .poll_and(&mut context, |it| fate.taken(|| Ok(it.clone())))
                .map_ok(|received| value(receive, received)),
            Self::ReceiveInto(receive, into) => receive
                .poll_and(&mut context, |it| fate.taken(|| into.fill(it)))
                .map_ok(Done::Filled),
            Self::Send(send, sender) => loop {
                let Poll::Ready(sent) = Pin::new(&mut *send).poll(&mut context) else {
                    return Poll::Pending;
                };
                match sent.map_err(|unsent| sender.again(unsent)) {
                    Ok(()) => return Poll::Ready(Ok(Done::Sent)),
                    Err(Ok(again)) => *send = again,
                    Err(Err(status)) => return Poll::Ready(Err(status)),
                }
            },
            Self::Copy(copying) => match copying.poll() {
                Poll::Pending => Poll::Pending,
                Poll::Ready(Err(status)) => Poll::Ready(Err(status)),
                Poll::Ready(Ok(send)) => {
                    *self = Self::Send(send, Sender::new(None, None));
                    self.poll(waker, fate)
                }
            },
            Self::Call(call) => {
                let polled = call.poll(&mut context);
                polled.map(|answered| Ok(Done::Answered(Box::new(answered))))
            }
        }
    }

    /// Waits for at most so long, without the interpreter's lock.
    pub(super) fn wait(mut self, patience: Duration, fate: &Fate) -> Slice {
        if let Self::Call(call) = self {
            return match call.wait(patience) {
                Ok(answered) => Slice::Done(Ok(Done::Answered(Box::new(answered))), None),
                Err(call) => Slice::Later(Self::Call(Box::new(call))),
            };
        }
        let outcome = match &mut self {
            Self::Receive(receive) => receive
                .wait_at_most_and(patience, |it| fate.taken(|| Ok(it.clone())))
                .map(|outcome| outcome.map(|received| value(receive, received))),
            Self::ReceiveInto(receive, into) => receive
                .wait_at_most_and(patience, |it| fate.taken(|| into.fill(it)))
                .map(|outcome| outcome.map(Done::Filled)),
            Self::Send(..) | Self::Copy(_) | Self::Call(_) => {
                let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
                match self.poll(&waker, fate) {
                    Poll::Ready(done) => Some(done),
                    Poll::Pending => {
                        std::thread::park_timeout(patience);
                        match self.poll(&waker, fate) {
                            Poll::Ready(done) => Some(done),
                            Poll::Pending => None,
                        }
                    }
                }
            }
        };
        match outcome {
            Some(done) => Slice::Done(done, self.room()),
            None => Slice::Later(self),
        }
    }

    /// Ends it: the memory that it was to fill.
    pub(super) fn room(self) -> Option<Into> {
        match self {
            Self::ReceiveInto(_, into) => Some(into),
            _ => None,
        }
    }
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
