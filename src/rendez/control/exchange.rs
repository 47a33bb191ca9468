//! The exchange: requests and their answers, one at a time, over a stream on which nothing else is said yet.
//!
//! Knows messages and their seals; nothing of what is greeted, and no deadline (kept by the caller).

use futures_lite::io::{AsyncRead, AsyncWrite};

use crate::ground::Code;
use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, Envelope};

use super::frame::{self, FrameError};
use super::hello::{self, Refusal, status_from_wire};
use super::secret::{Role, Seal, Session};

/// What seals the messages of a stream, each way; nothing where the stream itself keeps others out.
#[derive(Debug, Default)]
pub(crate) struct Seals {
    pub(crate) incoming: Option<Seal>,
    pub(crate) outgoing: Option<Seal>,
}

impl Seals {
    /// The seals of the side that has `role` in `session`.
    pub(crate) fn new(session: &Session, role: Role) -> Self {
        let other = match role {
            Role::Dialler => Role::Acceptor,
            Role::Acceptor => Role::Dialler,
        };
        Self {
            incoming: Some(session.seal(other)),
            outgoing: Some(session.seal(role)),
        }
    }
}

/// A greeting's requests over one stream.
pub(crate) struct Exchange<'a, S> {
    stream: &'a mut S,
    seals: Seals,
    /// The peer's task, as far as it is known: for messages.
    pub(crate) task: String,
    next_id: u64,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Exchange<'a, S> {
    /// Nothing has been said.
    pub(crate) fn new(stream: &'a mut S, seals: Seals) -> Self {
        Self {
            stream,
            seals,
            task: String::from("(unnamed)"),
            next_id: 1,
        }
    }

    /// What is left when all is said: the seals go on where they stand.
    pub(crate) fn into_seals(self) -> Seals {
        self.seals
    }

    /// A request, and the answer to it.
    pub(crate) async fn call(&mut self, body: Body) -> Result<Body, Refusal> {
        let id = self.next_id;
        self.next_id += 1;
        self.write(Envelope {
            id,
            reply: false,
            body: Some(body),
        })
        .await?;
        let Envelope {
            id: answered,
            reply,
            body,
        } = self.read().await?;
        match body {
            Some(Body::Error(error)) if answered == id || answered == 0 => {
                Err(status_from_wire(&self.task, error.code, &error.reason, &error.message).into())
            }
            Some(Body::Bye(bye)) => Err(self.left(&bye)),
            Some(body) if reply && answered == id => Ok(body),
            _ => Err(self.broken("something else than the answer that is due")),
        }
    }

    /// The peer's next request.
    pub(crate) async fn request(&mut self) -> Result<(u64, Body), Refusal> {
        let Envelope { id, reply, body } = self.read().await?;
        match body {
            Some(Body::Bye(bye)) => Err(self.left(&bye)),
            Some(Body::Error(error)) => {
                Err(status_from_wire(&self.task, error.code, &error.reason, &error.message).into())
            }
            Some(body) if !reply && id != 0 => Ok((id, body)),
            _ => Err(self.broken("something else than the request that is due")),
        }
    }

    pub(crate) async fn answer(&mut self, id: u64, body: Body) -> Result<(), Refusal> {
        self.write(Envelope {
            id,
            reply: true,
            body: Some(body),
        })
        .await
    }

    /// Answers request `id`, or none if it is zero, with an error and gives the refusal back. That the answer cannot
    /// be written changes nothing.
    pub(crate) async fn fail(&mut self, id: u64, refusal: Refusal) -> Refusal {
        let proto::Refusal {
            code,
            reason,
            message,
            ..
        } = refusal.to_wire();
        let _ = self
            .answer(
                id,
                Body::Error(proto::Error {
                    code,
                    reason,
                    message,
                }),
            )
            .await;
        refusal
    }

    async fn read(&mut self) -> Result<Envelope, Refusal> {
        frame::read(self.stream, self.seals.incoming.as_mut())
            .await
            .map_err(|error| frame_refusal(&self.task, &error))
    }

    async fn write(&mut self, envelope: Envelope) -> Result<(), Refusal> {
        frame::write(self.stream, &envelope, self.seals.outgoing.as_mut())
            .await
            .map_err(|error| frame_refusal(&self.task, &error))
    }

    fn left(&self, bye: &proto::Bye) -> Refusal {
        Refusal::later(
            "PEER_LOST",
            format!(
                "task {} left in the greeting: {}",
                self.task,
                hello::clip(&bye.reason)
            ),
        )
    }

    pub(crate) fn broken(&self, what: &str) -> Refusal {
        protocol_refusal(&self.task, what)
    }
}

/// `task` broke the protocol.
pub(crate) fn protocol_refusal(task: &str, what: &str) -> Refusal {
    Refusal::fatal(
        Code::Internal,
        "PEER_PROTOCOL",
        format!("task {task} broke the protocol: {what}"),
    )
}

/// The stream of `task` failed: for good if it holds no messages, for now if it ended.
pub(crate) fn frame_refusal(task: &str, error: &FrameError) -> Refusal {
    match error {
        FrameError::TooLong(_) | FrameError::Malformed(_) | FrameError::Unsealed => {
            protocol_refusal(task, &error.to_string())
        }
        FrameError::Ended | FrameError::Truncated | FrameError::System(_) => Refusal::later(
            "PEER_LOST",
            format!("the connection to task {task}: {error}"),
        ),
    }
}
