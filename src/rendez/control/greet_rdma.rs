//! The greeting's part about RDMA: both sides make their ends, tell each other, and prove each way before it is taken.
//!
//! Knows messages and the handler; no queue pair, no device. What the handler does here may block, and is done as an
//! errand. Whatever fails leaves the connection as it was: the two go on with TCP, unless one of them demands RDMA.
//!
//! ```text
//!   dialler                                   acceptor
//!   make ends
//!   RdmaOpen: ends ─────────────────────────▶ make ends, connect them to the dialler's
//!   connect ends ◀──────────── RdmaOpenReply: ends, or why not
//!   RdmaCheck ──────────────────────────────▶
//!   a word on each queue pair ◀════════════▶ a word on each queue pair
//!         ◀─────────────────── RdmaCheckReply: good, or why not
//!   counts: RdmaDone, or why not ───────────▶ counts
//!   up, or DataOpen ◀─────────────────── Ack  up, or waits for DataOpen
//! ```

use std::sync::Arc;
use std::time::Instant;

use futures_lite::future::zip;
use futures_lite::io::{AsyncRead, AsyncWrite};

use crate::ground::limits::RDMA_ENDS_MAX;
use crate::ground::{Code, Status, catalogue};
use rendez_proto as proto;
use rendez_proto::envelope::Body;

use super::errand::Errands;
use super::exchange::Exchange;
use super::hello::{Refusal, clip};
use super::peer::{Handler, PathWish, PeerHello, RdmaEnd, RdmaLinks};

/// The ability of a hello: the task has RDMA.
pub(crate) const RDMA_ABILITY: u64 = 2;

/// What this side has to try with.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    pub(crate) handler: &'a Arc<dyn Handler>,
    pub(crate) errands: &'a Errands,
    /// The way that we wish to go.
    pub(crate) wish: PathWish,
    /// When the greeting ends.
    pub(crate) deadline: Instant,
}

/// What became of it.
#[derive(Debug)]
pub(crate) enum Tried {
    /// The way is good; the dialler has not said so yet, and the acceptor has not acknowledged it.
    Good {
        links: Box<dyn RdmaLinks>,
        /// For people.
        why: String,
        /// The request that the acceptor owes an answer.
        request: u64,
    },
    /// There is none.
    No(No),
}

/// Why there is no way over RDMA.
#[derive(Debug)]
pub(crate) struct No {
    pub(crate) why: String,
    /// There is RDMA here, and it stands idle.
    pub(crate) fell_back: bool,
    /// The same may succeed later.
    pub(crate) retry: bool,
}

impl No {
    pub(crate) fn for_good(why: impl Into<String>, fell_back: bool) -> Self {
        Self {
            why: why.into(),
            fell_back,
            retry: false,
        }
    }

    /// It was tried and did not work.
    fn tried(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            fell_back: true,
            retry: true,
        }
    }

    /// As the end of a greeting whose side demands RDMA.
    pub(crate) fn refusal(&self, task: &str) -> Refusal {
        let message = format!("RDMA is demanded to {task}: {}", self.why);
        match self.retry {
            true => Refusal::later(catalogue::PATH_REFUSED, message),
            false => Refusal::fatal(Code::FailedPrecondition, catalogue::PATH_REFUSED, message),
        }
    }
}

impl Means<'_> {
    /// Why there is nothing to try, by what both have said so far.
    pub(crate) fn unable(&self, peer: &PeerHello) -> Option<No> {
        match self.wish {
            PathWish::Tcp => return Some(No::for_good("TCP is demanded here", false)),
            PathWish::Shm => return Some(No::for_good("shared memory is demanded here", false)),
            PathWish::Auto | PathWish::Verbs => {}
        }
        if let Some(no) = self.handler.no_rdma() {
            return Some(No::for_good(
                format!("no RDMA here: {}", no.why),
                no.is_fault,
            ));
        }
        if peer.abilities & RDMA_ABILITY != 0 {
            return None;
        }
        let why = match peer.no_rdma.as_str() {
            "" => "its release knows none",
            why => why,
        };
        Some(No::for_good(format!("no RDMA there: {why}"), true))
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, No> {
        match self.errands.begin(work) {
            Ok(mut outcome) => Ok(outcome.receive().await),
            Err(error) => Err(No::tried(error.to_string())),
        }
    }

    async fn open(&self, peer: &PeerHello, is_dialler: bool) -> Result<Box<dyn RdmaLinks>, No> {
        let (handler, peer) = (Arc::clone(self.handler), peer.clone());
        let deadline = self.deadline;
        let made = self
            .run(move || handler.rdma(&peer, is_dialler, deadline))
            .await?;
        made.map_err(|status| No::tried(status.message()))
    }

    async fn connect(
        &self,
        mut links: Box<dyn RdmaLinks>,
        ends: Vec<RdmaEnd>,
    ) -> Result<Box<dyn RdmaLinks>, No> {
        let deadline = self.deadline;
        self.run(move || links.connect(&ends, deadline).map(|()| links))
            .await?
            .map_err(|status: Status| No::tried(status.message()))
    }

    /// Half of what is left is for the proof: the other is for doing without.
    async fn check(&self, mut links: Box<dyn RdmaLinks>) -> Result<Box<dyn RdmaLinks>, No> {
        let now = Instant::now();
        let until = now + self.deadline.saturating_duration_since(now) / 2;
        self.run(move || links.check(until).map(|()| links))
            .await?
            .map_err(|status: Status| No::tried(status.message()))
    }
}

/// The dialler's side, up to the point where it knows.
pub(crate) async fn dial<S: AsyncRead + AsyncWrite + Unpin>(
    exchange: &mut Exchange<'_, S>,
    means: Means<'_>,
    peer: &PeerHello,
    channels: u32,
) -> Result<Tried, Refusal> {
    if let Some(no) = means.unable(peer) {
        return Ok(Tried::No(no));
    }
    let links = match means.open(peer, true).await {
        Ok(links) => links,
        Err(no) => return Ok(Tried::No(no)),
    };
    let open = proto::RdmaOpen {
        ends: to_wire(links.ends()),
        device: clip(links.device()),
    };
    let Body::RdmaOpenReply(reply) = exchange.call(Body::RdmaOpen(open)).await? else {
        return Err(exchange.broken("an answer that names no queue pairs"));
    };
    if !reply.no.is_empty() {
        return Ok(Tried::No(said(&peer.task, &reply.no)));
    }
    let Some(ends) = from_wire(&reply.ends, channels) else {
        return Err(exchange.broken("queue pairs that cannot be"));
    };
    let why = format!(
        "RDMA from {} to {}",
        links.device(),
        clip(&reply.device).escape_default()
    );
    let tried = match means.connect(links, ends).await {
        Ok(links) => {
            let asked = Body::RdmaCheck(proto::RdmaCheck {});
            let (checked, answer) = zip(means.check(links), exchange.call(asked)).await;
            let Body::RdmaCheckReply(answer) = answer? else {
                return Err(exchange.broken("an answer that is no verdict"));
            };
            match (checked, answer.no.as_str()) {
                (Ok(links), "") => Ok(links),
                (Err(no), _) => Err(no),
                (Ok(_), no) => Err(said(&peer.task, no)),
            }
        }
        Err(no) => Err(no),
    };
    match tried {
        Ok(links) => Ok(Tried::Good {
            links,
            why,
            request: 0,
        }),
        Err(no) => {
            done(exchange, &no.why).await?;
            Ok(Tried::No(no))
        }
    }
}

/// The dialler says what it found; empty is good.
pub(crate) async fn done<S: AsyncRead + AsyncWrite + Unpin>(
    exchange: &mut Exchange<'_, S>,
    no: &str,
) -> Result<(), Refusal> {
    let done = proto::RdmaDone { no: clip(no) };
    match exchange.call(Body::RdmaDone(done)).await? {
        Body::Ack(_) => Ok(()),
        _ => Err(exchange.broken("an answer that is no ack")),
    }
}

/// The acceptor's side, from the dialler's question on. Of a good way the dialler's last request is still to be
/// answered.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    exchange: &mut Exchange<'_, S>,
    means: Means<'_>,
    peer: &PeerHello,
    channels: u32,
    (id, open): (u64, proto::RdmaOpen),
) -> Result<Tried, Refusal> {
    let Some(ends) = from_wire(&open.ends, channels) else {
        let refusal = exchange.broken("queue pairs that cannot be");
        return Err(exchange.fail(id, refusal).await);
    };
    let made = match means.unable(peer) {
        Some(no) => Err(no),
        None => match means.open(peer, false).await {
            Ok(links) => means.connect(links, ends).await,
            Err(no) => Err(no),
        },
    };
    let links = match made {
        Ok(links) => links,
        Err(no) => {
            let reply = proto::RdmaOpenReply {
                no: said_aloud(&no),
                ..proto::RdmaOpenReply::default()
            };
            exchange.answer(id, Body::RdmaOpenReply(reply)).await?;
            return Ok(Tried::No(no));
        }
    };
    let reply = proto::RdmaOpenReply {
        ends: to_wire(links.ends()),
        device: clip(links.device()),
        no: String::new(),
    };
    let why = format!(
        "RDMA from {} to {}",
        links.device(),
        clip(&open.device).escape_default()
    );
    exchange.answer(id, Body::RdmaOpenReply(reply)).await?;
    let (id, body) = exchange.request().await?;
    let checked = match body {
        Body::RdmaCheck(_) => means.check(links).await,
        Body::RdmaDone(done) if !done.no.is_empty() => {
            exchange.answer(id, Body::Ack(proto::Ack {})).await?;
            return Ok(Tried::No(said(&peer.task, &done.no)));
        }
        _ => return Err(exchange.broken("a request that proves no way")),
    };
    let no = checked.as_ref().err().map(said_aloud).unwrap_or_default();
    let reply = Body::RdmaCheckReply(proto::RdmaCheckReply { no });
    exchange.answer(id, reply).await?;
    let (id, body) = exchange.request().await?;
    let Body::RdmaDone(done) = body else {
        return Err(exchange.broken("a request that does not end the proof"));
    };
    match (checked, done.no.as_str()) {
        (Ok(links), "") => Ok(Tried::Good {
            links,
            why,
            request: id,
        }),
        (Err(_), "") => Err(exchange.broken("a way that is taken though it is not good")),
        (checked, no) => {
            exchange.answer(id, Body::Ack(proto::Ack {})).await?;
            let own = checked.err();
            Ok(Tried::No(own.unwrap_or_else(|| said(&peer.task, no))))
        }
    }
}

/// The peer's no.
pub(crate) fn said(task: &str, no: &str) -> No {
    No::tried(format!("{task} says: {}", clip(no)))
}

/// A no as it is said: never empty, which would be a yes.
fn said_aloud(no: &No) -> String {
    match no.why.as_str() {
        "" => "no reason".into(),
        why => clip(why),
    }
}

fn to_wire(ends: &[RdmaEnd]) -> Vec<proto::RdmaEnd> {
    ends.iter()
        .map(|end| proto::RdmaEnd {
            queue_pair: end.queue_pair,
            first_packet: end.first_packet,
            lid: end.lid.into(),
            gid: end.gid.to_vec(),
            mtu: end.mtu.into(),
            window: end.window.into(),
            body_max: end.body_max,
        })
        .collect()
}

/// The ends of a peer, one for each channel; nothing if their number or a number in them cannot be.
pub(crate) fn from_wire(ends: &[proto::RdmaEnd], channels: u32) -> Option<Vec<RdmaEnd>> {
    if ends.len() > RDMA_ENDS_MAX || ends.len() != channels as usize {
        return None;
    }
    let end = |end: &proto::RdmaEnd| {
        Some(RdmaEnd {
            queue_pair: end.queue_pair,
            first_packet: end.first_packet,
            lid: u16::try_from(end.lid).ok()?,
            gid: end.gid.as_slice().try_into().ok()?,
            mtu: u8::try_from(end.mtu).ok()?,
            window: u16::try_from(end.window).ok()?,
            body_max: end.body_max,
        })
    };
    ends.iter().map(end).collect()
}

#[cfg(test)]
mod tests;
