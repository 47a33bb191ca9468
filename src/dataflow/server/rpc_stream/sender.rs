//! The sender of one direction of a line.
//!
//! Knows keys and messages. Nothing in it blocks: it may be the very shard that has to take what is sent.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use prost::Message;

use super::{RpcMessage, TENSORS, TOLD, of_status};
use rendez::engine::{Engine, SendAsync, Step, Unsent};
use rendez::ground::limits::{LINE_MESSAGE_BYTES_MAX, LINE_TENSORS_MAX};
use rendez::ground::{
    DeviceName, FrameIter, Incarnation, Key, Locked, Shape, Status, StepId, TaskName, catalogue,
};
use rendez::memory::Tensor;
use rendez_proto::services::LineMessage;

/// One direction of a line.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) step: Step,
    pub(super) messages: Key,
    pub(super) tensors: Key,
    /// How many messages have had tensors.
    frames: AtomicU64,
    /// The longest message that leaves in a frame.
    longest: usize,
}

impl Sender {
    pub(super) fn new(
        engine: &Engine,
        id: StepId,
        peer: &TaskName,
        edge: &str,
    ) -> Result<Self, Status> {
        let (messages, tensors) = keys_of((engine.task(), Incarnation::CURRENT), peer, edge)?;
        Ok(Self {
            step: engine.step(id),
            messages,
            tensors,
            frames: AtomicU64::new(0),
            longest: engine.row_in_frame(),
        })
    }

    /// Sends. What could not be sent of its tensors is told in their place.
    ///
    /// # Errors
    /// Why nothing was sent.
    pub(super) fn send(
        &self,
        mut message: LineMessage,
        mut tensors: Vec<Tensor>,
    ) -> Result<(), Status> {
        check_count(tensors.len())?;
        let len = message.encoded_len();
        if len > LINE_MESSAGE_BYTES_MAX {
            let message = format!(
                "a message has {len} bytes, the limit LINE_MESSAGE_BYTES_MAX is {LINE_MESSAGE_BYTES_MAX}"
            );
            return Err(Status::of(catalogue::CALL_TOO_LONG, message));
        }
        // With the fields that say what comes with it.
        if len + BESIDE > self.longest {
            tensors.insert(0, of_bytes(message.encode_to_vec())?);
            message = LineMessage {
                number: message.number,
                method: message.method,
                apart: true,
                ..LineMessage::default()
            };
        }
        if tensors.is_empty() {
            return self.post(message.encode_to_vec(), false);
        }
        message.tensors = tensors.len() as u32;
        message.frame = self.frames.fetch_add(1, Ordering::Relaxed);
        // First what it speaks of: the reader finds it there then.
        message.waits = !self.post_tensors(message.frame, tensors)?;
        self.post(message.encode_to_vec(), true)
            .inspect_err(|status| {
                // What it speaks of would lie there for ever.
                self.step.abort(status.clone());
            })
    }

    /// Sends a message that leaves in a frame. One that has to wait, for a place in a full mailbox, has its turn; what
    /// speaks of tensors that were sent is owed one.
    pub(super) fn post(&self, message: Vec<u8>, is_owed: bool) -> Result<(), Status> {
        let mut send = self.step.send_async(&self.messages, of_bytes(message)?);
        if is_owed {
            send = send.owed();
        }
        match begun(&mut send) {
            Poll::Ready(outcome) => Ok(outcome?),
            Poll::Pending => {
                let step = self.step.clone();
                Errand::go(async move {
                    if let Err(unsent) = send.await {
                        step.abort(unsent.into());
                    }
                });
                Ok(())
            }
        }
    }

    /// Sends the tensors of a message, each when the one before it was taken. False if one has to wait.
    ///
    /// # Errors
    /// Why not even the first may wait: then nothing was sent.
    pub(super) fn post_tensors(&self, frame: u64, tensors: Vec<Tensor>) -> Result<bool, Status> {
        let at = |iter| self.tensors.at(FrameIter { frame, iter });
        let mut tensors = (0..).map(at).zip(tensors);
        let mut is_first = true;
        while let Some((key, tensor)) = tensors.next() {
            let mut send = self.step.send_async(&key, tensor);
            let begun = match begun(&mut send) {
                Poll::Ready(Ok(())) => {
                    is_first = false;
                    continue;
                }
                Poll::Ready(Err(unsent)) if is_first => return Err(unsent.into()),
                Poll::Ready(Err(unsent)) => Begun::Refused(unsent),
                Poll::Pending => Begun::Waits(send),
            };
            let rest: Vec<_> = tensors
                .map(|(key, tensor)| (key, Begun::Not(tensor)))
                .collect();
            let all = std::iter::once((key, begun)).chain(rest);
            return Ok(Errand::go(post_in_turn(self.step.clone(), all)));
        }
        Ok(true)
    }

    pub(super) fn answer(&self, number: u64, outcome: Result<RpcMessage, Status>) {
        if number == TOLD {
            return;
        }
        let message = LineMessage {
            number,
            ..LineMessage::default()
        };
        let sent = outcome.and_then(|rpc_message| {
            let message = LineMessage {
                body: rpc_message.body,
                ..message.clone()
            };
            self.send(message, rpc_message.tensors)
        });
        if let Err(status) = sent {
            let message = LineMessage {
                failure: Some(of_status(&status)),
                ..message
            };
            if let Err(status) = self.send(message, vec![]) {
                // An answer that cannot be told would be waited for.
                self.step.abort(status);
            }
        }
    }

    pub(super) fn close(&self) {
        let status = Status::of(catalogue::LINE_CLOSED, "the line was closed");
        self.step.abort(status.derived());
    }
}

/// As far as it goes now.
pub(super) fn begun(send: &mut SendAsync) -> Poll<Result<(), Unsent>> {
    Pin::new(send).poll(&mut Context::from_waker(Waker::noop()))
}

/// Sends what is left of a message's tensors, and dead ones in place of what is refused and of what comes after that.
async fn post_in_turn(step: Step, rest: impl Iterator<Item = (Key, Begun)>) {
    let mut refused = None;
    for (key, begun) in rest {
        let why = match &refused {
            Some(why) => Tensor::clone(why),
            None => {
                let sent = match begun {
                    Begun::Not(tensor) => step.send_async(&key, tensor).await,
                    Begun::Waits(send) => send.await,
                    Begun::Refused(unsent) => Err(unsent),
                };
                let Err(unsent) = sent else {
                    continue;
                };
                match of_bytes(of_status(unsent.status()).encode_to_vec()) {
                    Ok(why) => refused.insert(why).clone(),
                    Err(status) => return step.abort(status),
                }
            }
        };
        if let Err(unsent) = step.send_dead_async(&key, why).owed().await {
            // It would be waited for.
            return step.abort(unsent.into());
        }
    }
}

/// How far the sending of a tensor is.
enum Begun {
    Not(Tensor),
    Waits(SendAsync),
    Refused(Unsent),
}

/// What is done as far as it goes now, and goes on in the thread that wakes it: a shard's that has taken what it sends.
struct Errand<F> {
    todo: Mutex<Option<Pin<Box<F>>>>,
    /// How often it was called since it was last seen to wait.
    calls: AtomicUsize,
}

impl<F: Future<Output = ()> + Send + 'static> Errand<F> {
    /// True if it is done already.
    fn go(todo: F) -> bool {
        let errand = Arc::new(Self {
            todo: Mutex::new(Some(Box::pin(todo))),
            calls: AtomicUsize::new(0),
        });
        Arc::clone(&errand).wake();
        errand.todo.locked().is_none()
    }
}

impl<F: Future<Output = ()> + Send + 'static> Wake for Errand<F> {
    fn wake(self: Arc<Self>) {
        // The thread that is at it looks once more.
        if self.calls.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let waker = Waker::from(Arc::clone(&self));
        let mut context = Context::from_waker(&waker);
        loop {
            let seen = self.calls.load(Ordering::Acquire);
            let mut todo = self.todo.locked();
            let polled = todo.as_mut().map(|todo| todo.as_mut().poll(&mut context));
            if polled.is_none_or(|polled| polled.is_ready()) {
                *todo = None;
                return;
            }
            drop(todo);
            if self.calls.fetch_sub(seen, Ordering::AcqRel) == seen {
                return;
            }
        }
    }
}

/// What a message says of its tensors has at most so many bytes.
const BESIDE: usize = 20;

/// The keys of what goes from a life of one task to another task: messages, and their tensors.
pub(super) fn keys_of(
    (from, life): (&TaskName, Incarnation),
    to: &TaskName,
    edge: &str,
) -> Result<(Key, Key), Status> {
    let (from, to) = (DeviceName::cpu(from), DeviceName::cpu(to));
    let key =
        |edge: &str| Key::new(&from, life, &to, edge, FrameIter::default()).map_err(Status::from);
    Ok((key(edge)?, key(&format!("{edge}{TENSORS}"))?))
}

/// Whether so many tensors may come with one message.
///
/// # Errors
/// `CALL_TOO_LONG`.
pub(crate) fn check_count(tensors: usize) -> Result<(), Status> {
    if tensors <= LINE_TENSORS_MAX {
        return Ok(());
    }
    let message = format!(
        "{tensors} tensors come with one message, the limit LINE_TENSORS_MAX is {LINE_TENSORS_MAX}"
    );
    Err(Status::of(catalogue::CALL_TOO_LONG, message))
}

/// A tensor of bytes.
pub(crate) fn of_bytes(bytes: Vec<u8>) -> Result<Tensor, Status> {
    let unfit = || Status::of(catalogue::TENSOR_SHAPE, "bytes beyond what a shape can say");
    let shape = Shape::row(bytes.len() as u64).ok_or_else(unfit)?;
    Ok(Tensor::from_vec(bytes, shape)?)
}
