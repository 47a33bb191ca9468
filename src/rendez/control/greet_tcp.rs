//! The greeting over TCP: the same hellos as over a Unix socket, and then a connection for each channel of data.
//!
//! Knows messages, tickets and the handler; no socket, no registry (asked through `admit` and `confirm`), no deadline
//! (kept by the caller, which drops the greeting when it is over).
//!
//! ```text
//!   dialler                                   acceptor
//!   Hello ──────────────────────────────────▶ judge, choose the path, admit
//!   judge ◀───────────────────────── HelloReply (accepted, refused, or elsewhere: the Unix address)
//!   ◀══════ RDMA, if both have it: `greet_rdma.rs`; if that is good, what follows is not needed ══════▶
//!   DataOpen ───────────────────────────────▶ as many as we count?
//!         ◀───────────────────────── DataOpenReply (ticket)
//!   one connection per channel ═════════════▶ ticket judged, answered
//!   counts: DataReady ──────────────────────▶ all there? counts
//!   up ◀──────────────────────────────── Ack  up
//! ```

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use futures_lite::io::{AsyncRead, AsyncWrite};

use crate::ground::limits::DATA_CHANNELS_MAX;
use crate::ground::{Code, Incarnation, catalogue};
use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, hello_reply::Outcome};

use super::address::Address;
use super::data::Carrier;
use super::exchange::Exchange;
use super::greet::{Answer, Greeted, Local, judge_dialler, our_hello, say_hello};
use super::greet_rdma::{self, Means, No, Tried};
use super::hello::{self, Evidence, Refusal};
use super::peer::{DataSocket, Descriptors, Path, PathWish, PeerHello, RdmaLinks};
use super::secret::Session;
use super::tickets::{Awaited, Tickets};

/// What a dial over TCP comes to.
#[derive(Debug)]
pub(crate) enum Dialled<C> {
    /// Connected.
    Here(Box<Greeted>, C, Way),
    /// The peer may be on this machine: dial it at this Unix address.
    Elsewhere(Address),
}

/// The way that two hellos and what followed them led to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Way {
    pub(crate) path: Path,
    /// Why RDMA, or why not.
    pub(crate) why: String,
    /// There is RDMA here, and it stands idle.
    pub(crate) fell_back: bool,
}

impl Way {
    fn tcp(no: No) -> Self {
        Self {
            path: Path::Tcp,
            why: no.why,
            fell_back: no.fell_back,
        }
    }

    const fn verbs(why: String) -> Self {
        Self {
            path: Path::Verbs,
            why,
            fell_back: false,
        }
    }
}

/// The connections that a peer expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Expected {
    pub(crate) incarnation: Incarnation,
    pub(crate) channels: u32,
    pub(crate) id: [u8; 16],
    pub(crate) expires_ms: u64,
}

/// The acceptor's means to take data connections.
pub(crate) struct Door<'a> {
    pub(crate) tickets: &'a Rc<RefCell<Tickets<Carrier>>>,
    /// What signs the tickets, if anything does.
    pub(crate) session: Option<Session>,
    pub(crate) expires_ms: u64,
    /// Where this task listens on its machine.
    pub(crate) local: &'a Address,
}

/// The dialler's side. `rdma` is tried first; `open` makes the data connections if it is unavailable; `confirm` is
/// asked last, before the peer counts.
pub(crate) async fn dial<S: AsyncRead + AsyncWrite + Unpin, C>(
    exchange: &mut Exchange<'_, S>,
    local: Local<'_>,
    task: &str,
    rdma: Means<'_>,
    open: impl AsyncFnOnce(Expected) -> Result<Vec<Carrier>, Refusal>,
    confirm: impl FnOnce(&PeerHello) -> Result<C, Refusal>,
) -> Result<Dialled<C>, Refusal> {
    task.clone_into(&mut exchange.task);
    let hello = match say_hello(exchange, local, Evidence::Network, task).await? {
        Answer::Accepted(hello, _) => hello,
        Answer::Elsewhere(address) => {
            let address: Address = address
                .parse()
                .map_err(|_| exchange.broken("sent elsewhere, to no address"))?;
            let demands_far = matches!(local.path, proto::PathWish::Tcp | proto::PathWish::Rdma);
            let is_asked = !demands_far && !address.is_tcp();
            return match is_asked {
                true => Ok(Dialled::Elsewhere(address)),
                false => Err(exchange.broken("sent elsewhere against our wish")),
            };
        }
    };
    let channels = match count_channels(local, &hello) {
        Ok(channels) => channels,
        Err(refusal) => return Err(exchange.fail(0, refusal).await),
    };
    let no = match greet_rdma::dial(exchange, rdma, &hello, channels).await? {
        Tried::Good { links, why, .. } => {
            let confirmed = match confirm(&hello) {
                Ok(confirmed) => confirmed,
                Err(refusal) => return Err(exchange.fail(0, refusal).await),
            };
            greet_rdma::done(exchange, "").await?;
            let greeted = greeted(hello, Vec::new(), Some(links));
            return Ok(Dialled::Here(Box::new(greeted), confirmed, Way::verbs(why)));
        }
        Tried::No(no) if rdma.wish == PathWish::Verbs => {
            let refusal = no.refusal(task);
            return Err(exchange.fail(0, refusal).await);
        }
        Tried::No(no) => no,
    };
    let asked = Body::DataOpen(proto::DataOpen {
        channels,
        no_rdma: hello::clip(&no.why),
    });
    let Body::DataOpenReply(reply) = exchange.call(asked).await? else {
        return Err(exchange.broken("an answer that names no ticket"));
    };
    let id = <[u8; 16]>::try_from(reply.ticket.as_slice())
        .map_err(|_| exchange.broken("a ticket of another length"))?;
    let expected = Expected {
        incarnation: hello.incarnation,
        channels,
        id,
        expires_ms: reply.expires_ms,
    };
    let sockets = match open(expected).await {
        Ok(sockets) => sockets,
        Err(refusal) => return Err(exchange.fail(0, refusal).await),
    };
    let confirmed = match confirm(&hello) {
        Ok(confirmed) => confirmed,
        Err(refusal) => return Err(exchange.fail(0, refusal).await),
    };
    let Body::Ack(_) = exchange.call(Body::DataReady(proto::DataReady {})).await? else {
        return Err(exchange.broken("an answer that is no ack"));
    };
    let greeted = greeted(hello, sockets, None);
    Ok(Dialled::Here(Box::new(greeted), confirmed, Way::tcp(no)))
}

/// The acceptor's side. `admit` is asked once the hello is judged, `confirm` before the peer counts. Nothing comes of
/// a greeting that was sent elsewhere.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin, A, C>(
    exchange: &mut Exchange<'_, S>,
    local: Local<'_>,
    door: Door<'_>,
    rdma: Means<'_>,
    admit: impl FnOnce(&PeerHello) -> Result<A, Refusal>,
    confirm: impl FnOnce(&PeerHello) -> Result<C, Refusal>,
) -> Result<Option<(Greeted, C, Way)>, Refusal> {
    let (id, body) = exchange.request().await?;
    let Body::Hello(hello) = body else {
        return Err(exchange.broken("a connection that does not begin with a hello"));
    };
    let judged = judge_dialler(&hello, local, Evidence::Network).and_then(|(peer, _)| {
        if choose(&hello, local)? {
            return Ok(None);
        }
        Ok(Some((admit(&peer)?, peer)))
    });
    let (admitted, peer) = match judged {
        Ok(Some(judged)) => judged,
        Ok(None) => {
            let outcome = Some(Outcome::Elsewhere(door.local.to_string()));
            let reply = Body::HelloReply(proto::HelloReply { outcome });
            exchange.answer(id, reply).await?;
            return Ok(None);
        }
        Err(refusal) => {
            let outcome = Some(Outcome::Refused(refusal.to_wire()));
            let reply = Body::HelloReply(proto::HelloReply { outcome });
            exchange.answer(id, reply).await?;
            return Err(refusal);
        }
    };
    peer.task.clone_into(&mut exchange.task);
    let accepted = our_hello(local, "");
    let outcome = Some(Outcome::Accepted(accepted));
    let reply = Body::HelloReply(proto::HelloReply { outcome });
    exchange.answer(id, reply).await?;
    let (mut id, mut body) = exchange.request().await?;
    let mut tried = None;
    if let Body::RdmaOpen(open) = body {
        let channels = match count_channels(local, &peer) {
            Ok(channels) => channels,
            Err(refusal) => return Err(exchange.fail(id, refusal).await),
        };
        match greet_rdma::accept(exchange, rdma, &peer, channels, (id, open)).await? {
            Tried::Good {
                links,
                why,
                request,
            } => {
                let confirmed = match confirm(&peer) {
                    Ok(confirmed) => confirmed,
                    Err(refusal) => return Err(exchange.fail(request, refusal).await),
                };
                drop(admitted);
                exchange.answer(request, Body::Ack(proto::Ack {})).await?;
                let greeted = greeted(peer, Vec::new(), Some(links));
                return Ok(Some((greeted, confirmed, Way::verbs(why))));
            }
            Tried::No(no) => tried = Some(no),
        }
        (id, body) = exchange.request().await?;
    }
    let Body::DataOpen(proto::DataOpen { channels, no_rdma }) = body else {
        return Err(exchange.broken("a request that opens no data connections"));
    };
    let no = tried.unwrap_or_else(|| not_asked(rdma, &peer, &no_rdma));
    if rdma.wish == PathWish::Verbs {
        let refusal = no.refusal(&peer.task);
        return Err(exchange.fail(id, refusal).await);
    }
    let awaited = match expect(local, &peer, channels, door) {
        Ok(awaited) => awaited,
        Err(refusal) => return Err(exchange.fail(id, refusal).await),
    };
    let reply = proto::DataOpenReply {
        ticket: awaited.id.to_vec(),
        expires_ms: awaited.expires_ms,
    };
    exchange.answer(id, Body::DataOpenReply(reply)).await?;
    let (id, body) = exchange.request().await?;
    let Body::DataReady(_) = body else {
        return Err(exchange.broken("a request before its data connections are there"));
    };
    let sockets = awaited.sockets().await;
    let confirmed = match confirm(&peer) {
        Ok(confirmed) => confirmed,
        Err(refusal) => return Err(exchange.fail(id, refusal).await),
    };
    drop(admitted);
    exchange.answer(id, Body::Ack(proto::Ack {})).await?;
    let greeted = greeted(peer, sockets, None);
    Ok(Some((greeted, confirmed, Way::tcp(no))))
}

/// Why the dialler did not ask for RDMA.
fn not_asked(rdma: Means<'_>, peer: &PeerHello, told: &str) -> No {
    rdma.unable(peer).unwrap_or_else(|| match told {
        "" => No::for_good(format!("{} did not ask for RDMA", peer.task), false),
        why => greet_rdma::said(&peer.task, why),
    })
}

/// Whether the dialler is to be sent to our Unix address, by both sides' wishes and the evidence of the boots. That
/// the boots are one says only where to try: what proves one machine is that descriptors come through there.
fn choose(hello: &proto::Hello, local: Local<'_>) -> Result<bool, Refusal> {
    let wish = proto::PathWish::try_from(hello.path).unwrap_or(proto::PathWish::Auto);
    let is_near = !hello.machine.is_empty() && hello.machine == local.identity.machine;
    let refused = |why: String| {
        Err(Refusal::fatal(
            Code::FailedPrecondition,
            catalogue::PATH_REFUSED,
            why,
        ))
    };
    let own = &local.config.task;
    match (wish, local.config.path_wish) {
        (proto::PathWish::Tcp, PathWish::Shm) => refused(format!(
            "{own} demands shared memory; {} demands TCP, or has not reached the Unix address of {own}",
            hello.task
        )),
        (proto::PathWish::Shm, PathWish::Tcp) => refused(format!(
            "{} demands shared memory, and {own} demands TCP",
            hello.task
        )),
        // A dialler that found TCP to be the only way may not have considered RDMA: see below.
        (proto::PathWish::Tcp, PathWish::Verbs) if !hello.no_shm.is_empty() => Ok(false),
        (proto::PathWish::Tcp, PathWish::Verbs) => {
            refused(format!("{own} demands RDMA, and {} TCP", hello.task))
        }
        (proto::PathWish::Rdma, PathWish::Shm | PathWish::Tcp) => refused(format!(
            "{} demands RDMA, and {own} another path",
            hello.task
        )),
        (proto::PathWish::Shm, PathWish::Verbs) => refused(format!(
            "{} demands shared memory, and {own} RDMA",
            hello.task
        )),
        (proto::PathWish::Rdma, _) | (_, PathWish::Verbs) => Ok(false),
        (proto::PathWish::Shm, _) | (_, PathWish::Shm) if !is_near => refused(format!(
            "shared memory is demanded, but {} and {own} run on two machines: their boots differ",
            hello.task
        )),
        (proto::PathWish::Tcp, _) | (_, PathWish::Tcp) => Ok(false),
        _ => Ok(is_near),
    }
}

fn expect(
    local: Local<'_>,
    peer: &PeerHello,
    channels: u32,
    door: Door<'_>,
) -> Result<Awaited<Carrier>, Refusal> {
    let own = count_channels(local, peer)?;
    if own != channels {
        let message = format!(
            "{} counts {channels} channels to us, and we {own}",
            peer.task
        );
        return Err(Refusal::fatal(
            Code::FailedPrecondition,
            catalogue::PEER_REFUSED,
            message,
        ));
    }
    Awaited::begin(door.tickets, channels, door.session, door.expires_ms).ok_or_else(|| {
        Refusal::later(
            catalogue::PEER_BUSY,
            "as many greetings wait for data connections as may",
        )
    })
}

fn count_channels(local: Local<'_>, peer: &PeerHello) -> Result<u32, Refusal> {
    let channels = local.handler.data_channels(peer)?;
    if channels > DATA_CHANNELS_MAX {
        let message = format!(
            "{channels} channels to {}; the limit DATA_CHANNELS_MAX is {DATA_CHANNELS_MAX}",
            peer.task
        );
        return Err(Refusal::fatal(
            Code::ResourceExhausted,
            catalogue::PEER_REFUSED,
            message,
        ));
    }
    Ok(channels)
}

fn greeted(hello: PeerHello, carriers: Vec<Carrier>, rdma: Option<Box<dyn RdmaLinks>>) -> Greeted {
    let sockets = (0..)
        .zip(carriers)
        .map(|(channel, Carrier { fd, secured })| DataSocket {
            channel,
            fd,
            secured,
        })
        .collect();
    Greeted {
        hello,
        read_domain: false,
        descriptors: Descriptors {
            segments: Vec::new(),
            doorbells: Vec::new(),
            link: None,
            sockets,
            rdma,
        },
        offered: BTreeSet::new(),
        known: BTreeSet::new(),
    }
}

#[cfg(test)]
mod tests;
