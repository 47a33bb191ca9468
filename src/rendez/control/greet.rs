//! The greeting: what both sides of a fresh connection with a lane say until it counts, on any stream.
//!
//! Knows messages, lanes and the handler; no runtime, no registry (asked through `admit`), no deadline (kept by the
//! caller, which drops the greeting when it is over).
//!
//! ```text
//!   dialler                                   acceptor
//!   Hello ──────────────────────────────────▶ judge, admit
//!   judge ◀───────────────────────── HelloReply (accepted or refused)
//!   make link
//!   Descriptors: link, doorbells, segments ─▶ accept link          each batch is answered by Ack or Error
//!   take ◀───────────── Descriptors: doorbells, segments
//!   counts as up: Ack ──────────────────────▶ counts as up
//! ```

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use futures_lite::io::{AsyncRead, AsyncWrite};
use rustix::io::Errno;

use crate::ground::limits::{
    DESCRIPTORS_PER_BATCH, DESCRIPTORS_PER_GREETING, LINK_NUMBERS_MAX, SEGMENT_BYTES_MAX,
};
use crate::ground::{Code, Status, TaskName, catalogue};
use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, descriptor::Kind, hello_reply::Outcome};

use super::config::ControlConfig;
use super::exchange::{Exchange, Seals, protocol_refusal};
use super::greet_rdma::RDMA_ABILITY;
use super::hello::{self, Evidence, Identity, Refusal};
use super::lane::{Lane, LaneError};
use super::peer::{
    Descriptors, DoorbellOffer, Handler, LinkOffer, LocalOffer, PeerHello, SegmentOffer,
};

/// What a greeting needs of its own side.
#[derive(Clone, Copy)]
pub(crate) struct Local<'a> {
    pub(crate) config: &'a ControlConfig,
    pub(crate) identity: &'a Identity,
    pub(crate) handler: &'a dyn Handler,
    /// The way we wish to go, if we dial.
    pub(crate) path: proto::PathWish,
    /// Why there is no shared memory, if we dial and have tried.
    pub(crate) no_shm: &'a str,
}

/// A greeting that succeeded.
#[derive(Debug)]
pub(crate) struct Greeted {
    pub(crate) hello: PeerHello,
    pub(crate) read_domain: bool,
    pub(crate) descriptors: Descriptors,
    /// Our segments that the peer has now.
    pub(crate) offered: BTreeSet<(u16, u16)>,
    /// The peer's segments that we have now.
    pub(crate) known: BTreeSet<(u16, u16)>,
}

/// A greeting in progress.
pub(crate) struct Greeting<'a, S> {
    exchange: Exchange<'a, S>,
    lane: &'a mut Lane,
    local: Local<'a>,
    evidence: Evidence<'a>,
}

/// What has come of the peer's descriptors.
#[derive(Debug, Default)]
struct Collected {
    segments: Vec<SegmentOffer>,
    doorbells: Vec<DoorbellOffer>,
    link: Option<LinkOffer>,
    known: BTreeSet<(u16, u16)>,
    count: usize,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Greeting<'a, S> {
    /// A greeting over `stream` and `lane` with the peer that `evidence` describes.
    pub(crate) fn new(
        stream: &'a mut S,
        lane: &'a mut Lane,
        local: Local<'a>,
        evidence: Evidence<'a>,
    ) -> Self {
        Self {
            exchange: Exchange::new(stream, Seals::default()),
            lane,
            local,
            evidence,
        }
    }

    /// The dialler's side. `confirm` is asked last: after its yes the peer counts the connection as up.
    pub(crate) async fn dial<C>(
        mut self,
        task: &str,
        confirm: impl FnOnce(&PeerHello) -> Result<C, Refusal>,
    ) -> Result<(Greeted, C), Refusal> {
        task.clone_into(&mut self.exchange.task);
        let (hello, read_domain) =
            match say_hello(&mut self.exchange, self.local, self.evidence, task).await? {
                Answer::Accepted(hello, read_domain) => (hello, read_domain),
                Answer::Elsewhere(_) => {
                    return Err(self.exchange.broken("sent elsewhere from a Unix socket"));
                }
            };
        let link = self.local.handler.make_link(&hello)?;
        let offered = self.offer(&hello, read_domain, Some(&link)).await?;
        let (collected, last) = self.collect(&hello, read_domain, false).await?;
        let confirmed = match confirm(&hello) {
            Ok(confirmed) => confirmed,
            Err(refusal) => return Err(self.exchange.fail(last, refusal).await),
        };
        self.exchange.answer(last, Body::Ack(proto::Ack {})).await?;
        let descriptors = Descriptors {
            segments: collected.segments,
            doorbells: collected.doorbells,
            link: Some(link),
            sockets: Vec::new(),
            rdma: None,
        };
        Ok((
            Greeted {
                hello,
                read_domain,
                descriptors,
                offered,
                known: collected.known,
            },
            confirmed,
        ))
    }

    /// The acceptor's side. `admit` is asked once the hello is judged.
    pub(crate) async fn accept<A>(
        mut self,
        admit: impl FnOnce(&PeerHello) -> Result<A, Refusal>,
    ) -> Result<(Greeted, A), Refusal> {
        let (id, body) = self.exchange.request().await?;
        let Body::Hello(hello) = body else {
            return Err(self
                .exchange
                .broken("a connection that does not begin with a hello"));
        };
        let judged = judge_dialler(&hello, self.local, self.evidence)
            .and_then(|(hello, domain)| Ok((admit(&hello)?, hello, domain)));
        let (admitted, hello, read_domain) = match judged {
            Ok(judged) => judged,
            Err(refusal) => {
                let outcome = Some(Outcome::Refused(refusal.to_wire()));
                self.exchange
                    .answer(id, Body::HelloReply(proto::HelloReply { outcome }))
                    .await?;
                return Err(refusal);
            }
        };
        hello.task.clone_into(&mut self.exchange.task);
        let accepted = our_hello(self.local, "");
        let outcome = Some(Outcome::Accepted(accepted));
        self.exchange
            .answer(id, Body::HelloReply(proto::HelloReply { outcome }))
            .await?;
        let (collected, last) = self.collect(&hello, read_domain, true).await?;
        let Some(link) = collected.link else {
            return Err(self.exchange.broken("a greeting without a link"));
        };
        if let Err(status) = self.local.handler.accept_link(&hello, &link) {
            return Err(self.exchange.fail(last, status.into()).await);
        }
        self.exchange.answer(last, Body::Ack(proto::Ack {})).await?;
        let offered = self.offer(&hello, read_domain, None).await?;
        let descriptors = Descriptors {
            segments: collected.segments,
            doorbells: collected.doorbells,
            link: Some(link),
            sockets: Vec::new(),
            rdma: None,
        };
        Ok((
            Greeted {
                hello,
                read_domain,
                descriptors,
                offered,
                known: collected.known,
            },
            admitted,
        ))
    }

    /// Sends what we offer, batch by batch, each after the answer to the one before.
    async fn offer(
        &mut self,
        peer: &PeerHello,
        read_domain: bool,
        link: Option<&LinkOffer>,
    ) -> Result<BTreeSet<(u16, u16)>, Refusal> {
        let LocalOffer {
            segments,
            doorbells,
        } = match self.local.handler.local(peer) {
            Ok(offer) => offer,
            Err(status) => return Err(self.exchange.fail(0, status.into()).await),
        };
        let segments = if read_domain { segments } else { Vec::new() };
        let mut all: Vec<(Kind, BorrowedFd<'_>)> = Vec::new();
        all.extend(link.map(|link| (Kind::Link(describe_link(link)), link.fd.as_fd())));
        all.extend(doorbells.iter().map(|bell| {
            (
                Kind::Doorbell(proto::DoorbellDescriptor {
                    shard: bell.shard.into(),
                }),
                bell.fd.as_fd(),
            )
        }));
        all.extend(
            segments
                .iter()
                .map(|segment| (Kind::Arena(describe_segment(segment)), segment.fd.as_fd())),
        );
        let mut rest = all.as_slice();
        loop {
            let (batch, after) = rest.split_at(rest.len().min(DESCRIPTORS_PER_BATCH));
            rest = after;
            let descriptors: Vec<BorrowedFd<'_>> = batch.iter().map(|(_, fd)| *fd).collect();
            let number = self
                .lane
                .send(&descriptors)
                .map_err(|error| lane_refusal(&self.exchange.task, &error))?;
            let entries = batch
                .iter()
                .map(|(kind, _)| proto::Descriptor {
                    kind: Some(kind.clone()),
                })
                .collect();
            let body = Body::Descriptors(proto::Descriptors {
                batch: number,
                entries,
                last: rest.is_empty(),
            });
            let Body::Ack(_) = self.exchange.call(body).await? else {
                return Err(self.exchange.broken("an answer that is no ack"));
            };
            if rest.is_empty() {
                return Ok(segments
                    .iter()
                    .map(|segment| (segment.arena, segment.segment))
                    .collect());
            }
        }
    }

    /// Takes what the peer offers; the last batch is left unanswered, and its request's number given.
    async fn collect(
        &mut self,
        peer: &PeerHello,
        read_domain: bool,
        wants_link: bool,
    ) -> Result<(Collected, u64), Refusal> {
        let mut collected = Collected::default();
        loop {
            let (id, body) = self.exchange.request().await?;
            let Body::Descriptors(batch) = body else {
                return Err(self.exchange.broken("a request that names no descriptors"));
            };
            let is_last = batch.last;
            if let Err(refusal) = self.take(&mut collected, batch, peer, read_domain, wants_link) {
                return Err(self.exchange.fail(id, refusal).await);
            }
            if is_last && wants_link != collected.link.is_some() {
                let refusal = self.exchange.broken("a greeting without a link");
                return Err(self.exchange.fail(id, refusal).await);
            }
            if is_last {
                return Ok((collected, id));
            }
            self.exchange.answer(id, Body::Ack(proto::Ack {})).await?;
        }
    }

    /// Takes one batch out of the lane and sorts it. On any error all its descriptors are closed.
    fn take(
        &mut self,
        collected: &mut Collected,
        batch: proto::Descriptors,
        peer: &PeerHello,
        read_domain: bool,
        wants_link: bool,
    ) -> Result<(), Refusal> {
        let count = batch.entries.len();
        let descriptors = self
            .lane
            .receive(batch.batch, count)
            .map_err(|error| lane_refusal(&self.exchange.task, &error))?;
        collected.count += count;
        if collected.count > DESCRIPTORS_PER_GREETING {
            let message = format!(
                "more than {DESCRIPTORS_PER_GREETING} descriptors, the limit DESCRIPTORS_PER_GREETING"
            );
            return Err(Refusal::fatal(
                Code::ResourceExhausted,
                "PEER_REFUSED",
                message,
            ));
        }
        for (entry, fd) in batch.entries.into_iter().zip(descriptors) {
            match entry.kind {
                Some(Kind::Arena(arena)) if read_domain => {
                    collected.segments.push(accept_segment(
                        &arena,
                        fd,
                        peer,
                        &mut collected.known,
                    )?);
                }
                Some(Kind::Arena(_)) => {
                    return Err(self
                        .exchange
                        .broken("a segment from outside our read domain"));
                }
                Some(Kind::Doorbell(bell)) => {
                    collected.doorbells.push(accept_doorbell(&bell, fd, peer)?)
                }
                Some(Kind::Link(link)) if wants_link && collected.link.is_none() => {
                    collected.link = Some(accept_link(link, fd)?);
                }
                Some(Kind::Link(_)) => {
                    return Err(self.exchange.broken("a link that nobody asked for"));
                }
                None => return Err(self.exchange.broken("a descriptor of no kind we know")),
            }
        }
        Ok(())
    }
}

/// What becomes of a hello that was said.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The peer, and whether it is of our read domain.
    Accepted(PeerHello, bool),
    /// The peer would rather be dialled at this Unix address.
    Elsewhere(String),
}

/// Our hello, with what this task can do.
pub(crate) fn our_hello(local: Local<'_>, dialled: &str) -> proto::Hello {
    let mut hello = hello::our_hello(local.config, local.identity, dialled);
    match local.handler.no_rdma() {
        Some(no) => hello.no_rdma = hello::clip(&no.why),
        None => hello.abilities |= RDMA_ABILITY,
    }
    hello
}

/// Says hello to `task` and judges the answer.
pub(crate) async fn say_hello<S: AsyncRead + AsyncWrite + Unpin>(
    exchange: &mut Exchange<'_, S>,
    local: Local<'_>,
    evidence: Evidence<'_>,
    task: &str,
) -> Result<Answer, Refusal> {
    let hello = proto::Hello {
        path: local.path.into(),
        no_shm: hello::clip(local.no_shm),
        ..our_hello(local, task)
    };
    let Body::HelloReply(proto::HelloReply { outcome }) = exchange.call(Body::Hello(hello)).await?
    else {
        return Err(exchange.broken("an answer to a hello that is none"));
    };
    let accepted = match outcome {
        Some(Outcome::Accepted(accepted)) => accepted,
        Some(Outcome::Refused(refusal)) => return Err(Refusal::from_wire(task, &refusal)),
        Some(Outcome::Elsewhere(address)) => return Ok(Answer::Elsewhere(hello::clip(&address))),
        None => return Err(exchange.broken("an answer to a hello that is none")),
    };
    let (hello, read_domain) = hello::judge(&accepted, local.config, local.identity, evidence)?;
    if hello.task != task {
        let message = format!("dialled {task}, but {} answers at that address", hello.task);
        return Err(Refusal::fatal(Code::NotFound, "PEER_UNKNOWN", message));
    }
    Ok(Answer::Accepted(hello, read_domain))
}

/// Judges a dialler's hello, and whether it meant this task.
pub(crate) fn judge_dialler(
    hello: &proto::Hello,
    local: Local<'_>,
    evidence: Evidence<'_>,
) -> Result<(PeerHello, bool), Refusal> {
    let judged = hello::judge(hello, local.config, local.identity, evidence)?;
    let own = &local.config.task;
    if hello.dialled != *own {
        let message = format!("dialled {:?}{THIS_IS}{own}", hello::clip(&hello.dialled));
        return Err(Refusal::fatal(Code::NotFound, "PEER_UNKNOWN", message));
    }
    Ok(judged)
}

/// What stands before the name of a task that was dialled by another name.
const THIS_IS: &str = ", but this is ";

/// The name of the task that was dialled by another one, and said so.
pub fn named_in(status: &Status) -> Option<TaskName> {
    let is_told = status.reason() == catalogue::PEER_UNKNOWN;
    let (_, name) = status.message().rsplit_once(THIS_IS).filter(|_| is_told)?;
    TaskName::parse(name).ok()
}

/// A segment as it is named on the wire.
pub(crate) fn describe_segment(segment: &SegmentOffer) -> proto::ArenaDescriptor {
    proto::ArenaDescriptor {
        arena: segment.arena.into(),
        segment: segment.segment.into(),
        len: segment.len,
    }
}

/// A peer's segment, its numbers checked; `known` are those that came before, and this one then.
pub(crate) fn accept_segment(
    arena: &proto::ArenaDescriptor,
    fd: OwnedFd,
    peer: &PeerHello,
    known: &mut BTreeSet<(u16, u16)>,
) -> Result<SegmentOffer, Refusal> {
    let numbers = (u16::try_from(arena.arena), u16::try_from(arena.segment));
    let (Ok(number), Ok(segment)) = numbers else {
        return Err(protocol_refusal(
            &peer.task,
            "an arena or a segment beyond 65535",
        ));
    };
    if arena.len == 0 || arena.len > SEGMENT_BYTES_MAX {
        return Err(protocol_refusal(
            &peer.task,
            "a segment of no length we take",
        ));
    }
    if known.len() >= usize::try_from(peer.limits.segments_max).unwrap_or(usize::MAX) {
        return Err(protocol_refusal(
            &peer.task,
            "more segments than its hello allows",
        ));
    }
    if !known.insert((number, segment)) {
        return Err(protocol_refusal(
            &peer.task,
            "a segment it has offered before",
        ));
    }
    Ok(SegmentOffer {
        arena: number,
        segment,
        len: arena.len,
        fd: fd.into(),
    })
}

fn describe_link(link: &LinkOffer) -> proto::LinkDescriptor {
    proto::LinkDescriptor {
        len: link.len,
        numbers: link.numbers.clone(),
    }
}

fn accept_link(link: proto::LinkDescriptor, fd: OwnedFd) -> Result<LinkOffer, Refusal> {
    if link.numbers.len() > LINK_NUMBERS_MAX {
        let message =
            format!("a link with more than {LINK_NUMBERS_MAX} numbers, the limit LINK_NUMBERS_MAX");
        return Err(Refusal::fatal(
            Code::ResourceExhausted,
            "PEER_REFUSED",
            message,
        ));
    }
    Ok(LinkOffer {
        len: link.len,
        numbers: link.numbers,
        fd,
    })
}

fn accept_doorbell(
    bell: &proto::DoorbellDescriptor,
    fd: OwnedFd,
    peer: &PeerHello,
) -> Result<DoorbellOffer, Refusal> {
    match u16::try_from(bell.shard) {
        Ok(shard) if shard < peer.shards => Ok(DoorbellOffer { shard, fd }),
        _ => Err(protocol_refusal(
            &peer.task,
            "a doorbell of a shard it does not have",
        )),
    }
}

/// The lane of `task` failed.
pub(crate) fn lane_refusal(task: &str, error: &LaneError) -> Refusal {
    match error {
        LaneError::System {
            errno: Errno::PIPE | Errno::CONNRESET,
            ..
        } => Refusal::later("PEER_LOST", format!("descriptors of task {task}: {error}")),
        LaneError::CutOff | LaneError::Full | LaneError::System { .. } => Refusal {
            status: Status::new(
                Code::ResourceExhausted,
                "PEER_REFUSED",
                format!("descriptors of task {task}: {error}"),
            ),
            retry: true,
        },
        _ => protocol_refusal(task, &error.to_string()),
    }
}

#[cfg(test)]
mod tests;
