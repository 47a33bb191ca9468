//! Requests and their answers, one at a time: which message is due, and what is to be said.

use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, Envelope};

use super::{Agreed, Outcome};
use crate::control::refusal::{Refusal, clip, protocol_refusal, status_from_wire};

/// One side's part of the exchange.
#[derive(Debug)]
pub(crate) struct Talk {
    /// The peer's task, as far as it is known: for messages.
    pub(crate) task: String,
    next_id: u64,
    /// Our request whose answer is due; without one the peer's next request is.
    asked: Option<u64>,
    /// The peer's request that we owe an answer; 0 for none.
    owed: u64,
    said: Vec<Envelope>,
    /// The peer needs no word from us about the end: it was the one to say so, or it counts already.
    pub(super) is_silent: bool,
    /// How the greeting has ended, if it has.
    pub(super) outcome: Option<Result<Outcome, Refusal>>,
}

impl Talk {
    pub(super) fn new(task: &str) -> Self {
        Self {
            task: task.to_owned(),
            next_id: 1,
            asked: None,
            owed: 0,
            said: Vec::new(),
            is_silent: false,
            outcome: None,
        }
    }

    /// A request.
    pub(super) fn ask(&mut self, body: Body) {
        let id = self.next_id;
        self.next_id += 1;
        self.asked = Some(id);
        self.say(id, false, body);
    }

    /// The answer that is owed.
    pub(super) fn answer(&mut self, body: Body) {
        let id = std::mem::take(&mut self.owed);
        self.say(id, true, body);
    }

    pub(super) fn acknowledge(&mut self) {
        self.answer(Body::Ack(proto::Ack {}));
    }

    /// The end, told to the peer unless it knows.
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        if !self.is_silent {
            self.tell(&refusal);
        }
        self.outcome = Some(Err(refusal));
    }

    /// The end: the connection counts.
    pub(super) fn agree(&mut self, agreed: Agreed) {
        self.outcome = Some(Ok(Outcome::Met(Box::new(agreed))));
    }

    fn tell(&mut self, refusal: &Refusal) {
        let proto::Refusal {
            code,
            reason,
            message,
            retry,
        } = refusal.to_wire();
        self.answer(Body::Error(proto::Error {
            code,
            reason,
            message,
            retry,
        }));
    }

    /// What the peer said, if it is what is due: an answer to our request, or else a request.
    pub(super) fn hear(&mut self, envelope: Envelope) -> Result<Body, Refusal> {
        let Envelope { id, reply, body } = envelope;
        let is_due = match self.asked {
            Some(asked) => reply && id == asked,
            None => !reply && id != 0,
        };
        match body {
            Some(Body::Error(error)) if is_due || id == 0 || self.asked.is_none() => {
                self.is_silent = true;
                let status =
                    status_from_wire(&self.task, error.code, &error.reason, &error.message);
                let retry = error.retry;
                Err(Refusal { status, retry })
            }
            Some(Body::Bye(bye)) => {
                self.is_silent = true;
                let reason = clip(&bye.reason);
                let message = format!("task {} left in the greeting: {reason}", self.task);
                Err(Refusal::later("PEER_LOST", message))
            }
            Some(body) if is_due => {
                if self.asked.take().is_none() {
                    self.owed = id;
                }
                Ok(body)
            }
            _ => Err(self.broken(match self.asked {
                Some(_) => "something other than the expected answer",
                None => "something other than the expected request",
            })),
        }
    }

    /// What is to be said.
    pub(crate) fn take(&mut self) -> Vec<Envelope> {
        std::mem::take(&mut self.said)
    }

    pub(super) fn broken(&self, what: &str) -> Refusal {
        protocol_refusal(&self.task, what)
    }

    fn say(&mut self, id: u64, reply: bool, body: Body) {
        self.said.push(Envelope {
            id,
            reply,
            body: Some(body),
        });
    }
}
