//! RPC streams, lines for short: questions and answers between two tasks as values of the engine, in microseconds.
//!
//! Knows methods by their numbers and messages, and not what they do. A line is a step of its own, which lives as long
//! as what it is for: messages go by one key each way, in order, and the tensors that belong to a message by another,
//! under the number that it gives them.
//!
//! ```text
//!   caller                                                     server
//!   RpcStream::open ············ a call ·····················▶ ServerEnd::open
//!   RpcStream::ask ──── "rendez.line.ask" ─────▶ Reader ─▶ Service::asked
//!         done ◀─ Reader ◀── "rendez.line.answer" ──── Responder::give
//! ```
//!
//! A message that is longer than a frame goes as the first of its tensors. So what goes by the key of messages always
//! fits a frame, waits for no room, and never stands behind tensors that do. What is longer, or has tensors, is
//! announced, and what was said after it may be heard before it. Where some of its tensors have to wait, a message says
//! so, and the reader keeps copies of those that it has, not the sender's memory. A tensor that is refused is replaced
//! by a dead one that says why, and so are those after it: the reader hears that in their message's place, and answers
//! a question with it. So it does where there is no room for one at the reader.
//!
//! Each end hears one life of the other: a receive bound to no life would wait for ever if the other end died between
//! two messages.
//!
//! Readers are tasks of the shard that owns their key: nothing waits in a thread. So hearers must not block.

mod failure;
mod reader;
mod sender;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use prost::Message;

pub(crate) use failure::{of_status, status_of};
use reader::{Handler, Reader};
use sender::{Sender, keys_of};
pub(crate) use sender::{check_count, of_bytes};

use rendez::control::read_answer;
use rendez::engine::Engine;
use rendez::ground::limits::LINE_QUESTIONS_MAX;
use rendez::ground::{Incarnation, Locked, Status, StepId, TaskName, catalogue};
use rendez::memory::Tensor;
use rendez_proto::Method;
use rendez_proto::services::LineMessage;

/// The edges of a line: what is asked, and what is answered.
const ASK: &str = "rendez.line.ask";
const ANSWER: &str = "rendez.line.answer";
/// What the edge of its tensors ends in.
const TENSORS: &str = ".tensors";

/// What is told without a question has no number.
const TOLD: u64 = 0;

/// What is asked or answered: a message, and tensors beside it.
#[derive(Clone, Debug, Default)]
pub(crate) struct RpcMessage {
    body: Vec<u8>,
    pub(crate) tensors: Vec<Tensor>,
}

/// What a method answers, and the tensors beside it; or why it does not.
pub(crate) type Answer<M> = Result<(<M as Method>::Answer, Vec<Tensor>), Status>;

/// What becomes of a question.
type Done = Box<dyn FnOnce(Result<RpcMessage, Status>) + Send>;

/// The caller's end.
pub(crate) struct RpcStream {
    out: Sender,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    done: BTreeMap<u64, Done>,
    /// Why nothing is answered any more.
    lost: Option<Status>,
}

/// The serving end. The line ends when it is dropped.
#[derive(Debug)]
pub(crate) struct ServerEnd {
    out: Arc<Sender>,
    service: Weak<dyn Service>,
    /// Why nothing comes any more.
    lost: OnceLock<Status>,
}

/// The answering side. Called by a shard: nothing in it may block.
pub(crate) trait Service: Send + Sync + std::fmt::Debug {
    /// A question came whose tensors are on their way, or which is longer than a frame: it is asked when all of it is
    /// there, and what comes after it, or speaks of it, may come before.
    fn announced(&self, number: u64, method: u32) {
        let _ = (number, method);
    }
    /// Something was asked or told.
    fn asked(self: Arc<Self>, question: Question);
    /// What was announced is not asked: its tensors could not be sent. Its caller hears so.
    fn withdrawn(&self, number: u64) {
        let _ = number;
    }
    /// The line is over; nothing comes any more.
    fn lost(self: Arc<Self>, line: StepId, status: Status);
}

/// A question.
#[derive(Debug)]
pub(crate) struct Question {
    /// Its number on its line; zero for what is only told.
    pub(crate) number: u64,
    /// What is asked.
    pub(crate) method: u32,
    /// The question.
    pub(crate) rpc_message: RpcMessage,
    /// Takes the answer.
    pub(crate) answer: Responder,
}

/// Takes the answer of one question. Dropped without one it says so, so that the caller does not wait for ever.
#[derive(Debug)]
pub(crate) struct Responder {
    out: Arc<Sender>,
    number: u64,
}

impl RpcStream {
    /// Opens the caller's end of the line that lives in step `id`. `call` has `peer` serve its other end, and gives the
    /// life of it that does.
    ///
    /// # Errors
    /// That of `call`. Then what may be served there all the same is ended.
    pub(crate) fn open(
        engine: &Engine,
        id: StepId,
        peer: &TaskName,
        call: impl FnOnce() -> Result<Incarnation, Status>,
    ) -> Result<Arc<Self>, Status> {
        let line = Arc::new(Self {
            out: Sender::new(engine, id, peer, ASK)?,
            waiting: Mutex::default(),
        });
        let life = call()?;
        let handler: Weak<Self> = Arc::downgrade(&line);
        let keys = keys_of((peer, life), engine.task(), ANSWER)?;
        Reader::spawn(engine, id, keys, handler)?;
        Ok(line)
    }

    /// Asks. `done` is called once: with the answer, or with why there is none; by a shard, or before this returns.
    /// Gives the question's number, by which it can be given up.
    pub(crate) fn ask<M: Method>(
        &self,
        request: &M::Request,
        tensors: Vec<Tensor>,
        done: impl FnOnce(Answer<M>) + Send + 'static,
    ) -> u64 {
        let question = RpcMessage {
            body: request.encode_to_vec(),
            tensors,
        };
        self.ask_raw(M::NUMBER, question, |outcome| {
            done(outcome.and_then(|answer| {
                let message = read_answer(&M::NAME, &answer.body)?;
                Ok((message, answer.tensors))
            }));
        })
    }

    fn ask_raw(
        &self,
        method: u32,
        rpc_message: RpcMessage,
        done: impl FnOnce(Result<RpcMessage, Status>) + Send + 'static,
    ) -> u64 {
        let mut waiting = self.waiting.locked();
        let refusal = waiting.lost.clone().or_else(|| {
            (waiting.done.len() >= LINE_QUESTIONS_MAX).then(|| {
                let message = format!(
                    "{LINE_QUESTIONS_MAX} questions wait on one line, the limit LINE_QUESTIONS_MAX"
                );
                Status::of(catalogue::LINE_BUSY, message)
            })
        });
        if let Some(status) = refusal {
            drop(waiting);
            done(Err(status));
            return TOLD;
        }
        waiting.next += 1;
        let number = waiting.next;
        waiting.done.insert(number, Box::new(done));
        drop(waiting);
        let message = LineMessage {
            number,
            method,
            body: rpc_message.body,
            ..LineMessage::default()
        };
        if let Err(status) = self.out.send(message, rpc_message.tensors)
            && let Some(done) = self.take(number)
        {
            done(Err(status));
        }
        number
    }

    /// Says something that has no answer.
    ///
    /// # Errors
    /// Why it could not be sent.
    pub(crate) fn tell<M: Method>(&self, told: &M::Request) -> Result<(), Status> {
        self.tell_raw(M::NUMBER, told.encode_to_vec())
    }

    fn tell_raw(&self, method: u32, body: Vec<u8>) -> Result<(), Status> {
        let message = LineMessage {
            number: TOLD,
            method,
            body,
            ..LineMessage::default()
        };
        self.out.send(message, vec![])
    }

    /// Why nothing is answered any more, if that is so.
    pub(crate) fn lost_with(&self) -> Option<Status> {
        self.waiting.locked().lost.clone()
    }

    /// Ends the line, at both ends.
    pub(crate) fn close(&self) {
        self.out.close();
    }

    fn take(&self, number: u64) -> Option<Done> {
        self.waiting.locked().done.remove(&number)
    }
}

impl Handler for RpcStream {
    fn announced(&self, _: &LineMessage) {}

    fn heard(self: Arc<Self>, number: u64, message: Result<(LineMessage, Vec<Tensor>), Status>) {
        // No caller waits for what was given up, or never asked.
        if let Some(done) = self.take(number) {
            done(
                message.and_then(|(message, tensors)| match &message.failure {
                    Some(failure) => Err(status_of(failure)),
                    None => Ok(RpcMessage {
                        body: message.body,
                        tensors,
                    }),
                }),
            );
        }
    }

    fn lost(self: Arc<Self>, status: Status) {
        // Where it is lost here alone the other end would serve it for ever.
        self.out.close();
        let mut waiting = self.waiting.locked();
        waiting.lost.get_or_insert_with(|| status.clone());
        let all = std::mem::take(&mut waiting.done);
        drop(waiting);
        for done in all.into_values() {
            done(Err(status.clone()));
        }
    }
}

impl Drop for RpcStream {
    fn drop(&mut self) {
        self.out.close();
    }
}

impl std::fmt::Debug for RpcStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RpcStream").field(&self.out).finish()
    }
}

impl ServerEnd {
    /// Serves the line that lives in step `id`, whose caller is `peer`, in that life of it.
    ///
    /// # Errors
    /// None that a correct caller meets: a name that is no name.
    pub(crate) fn open(
        engine: &Engine,
        id: StepId,
        (peer, life): (&TaskName, Incarnation),
        service: Weak<dyn Service>,
    ) -> Result<Arc<Self>, Status> {
        let served = Arc::new(Self {
            out: Arc::new(Sender::new(engine, id, peer, ANSWER)?),
            service,
            lost: OnceLock::new(),
        });
        let handler: Weak<Self> = Arc::downgrade(&served);
        let keys = keys_of((peer, life), engine.task(), ASK)?;
        Reader::spawn(engine, id, keys, handler)?;
        Ok(served)
    }

    /// Ends the line with `why`, for its caller as well.
    pub(crate) fn fail(&self, why: &Status) {
        self.out.step.abort(why.clone());
    }

    /// Why nothing comes any more, if that is so: set before the service hears of it, which may be before
    /// [`ServerEnd::open`] has returned.
    pub(crate) fn lost_with(&self) -> Option<&Status> {
        self.lost.get()
    }

    /// Which line it is.
    pub(crate) fn id(&self) -> StepId {
        self.out.step.id()
    }
}

impl Handler for ServerEnd {
    fn announced(&self, message: &LineMessage) {
        if let Some(service) = self.service.upgrade() {
            service.announced(message.number, message.method);
        }
    }

    fn heard(self: Arc<Self>, number: u64, message: Result<(LineMessage, Vec<Tensor>), Status>) {
        let service = self.service.upgrade();
        let answer = Responder {
            out: Arc::clone(&self.out),
            number,
        };
        let (message, tensors) = match message {
            Ok(message) => message,
            Err(status) => {
                if let Some(service) = service {
                    service.withdrawn(number);
                }
                return answer.refuse(status);
            }
        };
        let question = Question {
            number,
            method: message.method,
            rpc_message: RpcMessage {
                body: message.body,
                tensors,
            },
            answer,
        };
        if let Some(service) = service {
            service.asked(question);
        }
    }

    fn lost(self: Arc<Self>, status: Status) {
        let id = self.id();
        let _ = self.lost.set(status.clone());
        if let Some(service) = self.service.upgrade() {
            service.lost(id, status);
        }
    }
}

impl Drop for ServerEnd {
    fn drop(&mut self) {
        self.out.close();
    }
}

impl Question {
    /// The line it came by.
    pub(crate) fn line(&self) -> StepId {
        self.answer.out.step.id()
    }

    /// What `M` is asked.
    ///
    /// # Errors
    /// `CALL_MALFORMED` if it is no message of it.
    pub(crate) fn read<M: Method>(&self) -> Result<M::Request, Status> {
        M::Request::decode(&*self.rpc_message.body).map_err(|error| {
            let message = format!("what {} was asked is no question: {error}", M::NAME);
            Status::of(catalogue::CALL_MALFORMED, message)
        })
    }

    /// Answers with what `serve` makes of the question and of the tensors beside it.
    pub(crate) fn serve<M: Method>(
        self,
        serve: impl FnOnce(M::Request, &[Tensor]) -> Result<M::Answer, Status>,
    ) {
        let read = self.read::<M>();
        let outcome = read.and_then(|asked| serve(asked, &self.rpc_message.tensors));
        if let Err(status) = &outcome {
            tracing::debug!(line = %self.line(), method = M::NAME, %status, "asked in vain");
        }
        self.answer
            .give::<M>(outcome.map(|answer| (answer, vec![])));
    }
}

impl Responder {
    /// Answers. What is only told gets no answer.
    pub(crate) fn give<M: Method>(self, outcome: Answer<M>) {
        self.give_raw(outcome.map(|(answer, tensors)| RpcMessage {
            body: answer.encode_to_vec(),
            tensors,
        }));
    }

    /// Says why there is no answer.
    pub(crate) fn refuse(self, why: Status) {
        self.give_raw(Err(why));
    }

    fn give_raw(mut self, outcome: Result<RpcMessage, Status>) {
        let number = std::mem::replace(&mut self.number, TOLD);
        self.out.answer(number, outcome);
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if self.number != TOLD {
            let status = Status::of(
                catalogue::SERVICE_FAILED,
                "the question was dropped unanswered",
            );
            self.out.answer(self.number, Err(status));
        }
    }
}
