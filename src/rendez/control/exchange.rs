//! The exchange: runs a greeting over a stream on which nothing else is said yet.
//!
//! Knows messages and their seals; nothing of what is greeted, and no deadline (kept by the caller).

use futures_lite::future::yield_now;
use futures_lite::io::{AsyncRead, AsyncWrite};

use super::frame;
use super::greeting::{Event, Machine, Outcome, Side, Wants};
use super::refusal::{Refusal, frame_refusal};
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

/// A side of a greeting whose jobs are carried out.
pub(crate) trait Works: Side {
    /// How the job ends that was begun last.
    async fn done(&mut self) -> Result<(), Refusal>;
}

/// Runs a greeting's machine over `stream` until it has an outcome.
pub(crate) async fn run<S: AsyncRead + AsyncWrite + Unpin>(
    machine: &mut impl Machine,
    side: &mut impl Works,
    stream: &mut S,
    seals: &mut Seals,
) -> Result<Outcome, Refusal> {
    machine.begin(side);
    loop {
        // A peer that is never silent would otherwise keep the deadline from being looked at.
        yield_now().await;
        for envelope in machine.talk().take() {
            let written = frame::write(stream, &envelope, seals.outgoing.as_mut()).await;
            if let Err(error) = written {
                let lost = Err(frame_refusal(&machine.talk().task, &error));
                // That a refusal cannot be told changes nothing about it.
                return match machine.wants() {
                    Wants::Nothing => machine.outcome().and(lost),
                    _ => lost,
                };
            }
        }
        let event = match machine.wants() {
            Wants::Message => frame::read(stream, seals.incoming.as_mut())
                .await
                .map(Event::Heard)
                .map_err(|error| frame_refusal(&machine.talk().task, &error))?,
            Wants::Job => Event::Done(side.done().await),
            Wants::Nothing => return machine.outcome(),
        };
        machine.handle(event, side);
    }
}
