//! Our side of a greeting: what its machine asks, answered from the settings, the handler, and what has been passed.
//!
//! Knows no machine's state and no stream. What may block is done as an errand.

use std::cell::RefCell;
use std::future::{Future, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use futures_lite::io::{AsyncRead, AsyncWrite};
use rendez_proto as proto;

use crate::ground::faults::more_descriptors;
use crate::ground::limits::DATA_CHANNELS_MAX;
use crate::ground::{Code, Status, catalogue};

use super::address::Address;
use super::config::ControlConfig;
use super::data::{Carrier, DataDial};
use super::descriptors::Passing;
use super::errand::{ErrandError, Errands};
use super::exchange::{self, Seals, Works};
use super::greeting::{
    Acceptor, Agreed, Dialler, Expected, GreetingTerms, Job, Outcome, Rung, Side,
};
use super::hello::{self, Evidence, Identity};
use super::lane::Lane;
use super::peer::{DataSocket, Descriptors, Handler, PeerHello};
use super::refusal::{Refusal, clip};
use super::secret::Session;
use super::tickets::{Awaited, Tickets};
use super::transport::{Ends, Offers, Path, PathWish};

/// What greetings need of this task.
#[derive(Clone, Copy)]
pub(super) struct Own<'a> {
    pub(super) config: &'a ControlConfig,
    pub(super) identity: &'a Identity,
    pub(super) handler: &'a Arc<dyn Handler>,
    pub(super) errands: &'a Errands,
    /// Where this task listens on its machine.
    pub(super) near: &'a Address,
}

/// What the connection is, and so by which means tensors may go.
pub(super) enum Means<'a> {
    /// A Unix socket with this lane.
    Lane(&'a mut Lane),
    /// A TCP connection that we dialled to this address; the session signs the tickets, if anything does.
    Dialled {
        to: SocketAddr,
        session: Option<Session>,
    },
    /// A TCP connection that we accepted.
    Accepted {
        tickets: &'a Rc<RefCell<Tickets<Carrier>>>,
        session: Option<Session>,
        expires_ms: u64,
    },
}

/// Whether a peer is admitted, or counts: a claim if so.
type Judge<'a, C> = Box<dyn Fn(&PeerHello) -> Result<C, Refusal> + 'a>;

/// What the caller of a greeting says about it.
pub(super) struct Greeting<'a, C> {
    pub(super) is_dialler: bool,
    pub(super) evidence: Evidence<'a>,
    /// The path that our hello demands.
    pub(super) asks: PathWish,
    /// Why there is no shared memory, if we have tried.
    pub(super) no_shm: &'a str,
    /// When the greeting ends.
    pub(super) deadline: Instant,
    pub(super) admit: Judge<'a, C>,
    pub(super) count: Judge<'a, C>,
}

/// Our side.
pub(super) struct Ours<'a, C> {
    own: Own<'a>,
    greeting: Greeting<'a, C>,
    means: Means<'a>,
    transports: Vec<Arc<dyn Offers>>,
    passing: Passing,
    ends: Option<Box<dyn Ends>>,
    carriers: Vec<Carrier>,
    awaited: Option<Awaited<Carrier>>,
    job: Option<Running>,
    admitted: Option<C>,
    counted: Option<C>,
}

/// What a greeting that succeeded has brought.
pub(super) struct Gained<C> {
    pub(super) descriptors: Descriptors,
    /// What was passed of memory, and who has it.
    pub(super) passing: Passing,
    pub(super) claim: C,
}

/// What comes of a greeting.
pub(super) enum Greeted<C> {
    /// The connection counts.
    Here(Box<(Agreed, Gained<C>)>),
    /// The peer may be on this machine, at this address; nothing came of this connection.
    Elsewhere(String),
}

/// What comes of a job.
enum Made {
    Ends(Box<dyn Ends>),
    Carriers(Vec<Carrier>),
}

type Running = Pin<Box<dyn Future<Output = Result<Made, Refusal>>>>;

impl<'a, C> Ours<'a, C> {
    /// A side that has not been asked anything.
    pub(super) fn new(own: Own<'a>, greeting: Greeting<'a, C>, means: Means<'a>) -> Self {
        Self {
            own,
            greeting,
            means,
            transports: own.handler.transports(),
            passing: Passing::default(),
            ends: None,
            carriers: Vec::new(),
            awaited: None,
            job: None,
            admitted: None,
            counted: None,
        }
    }

    /// Greets over `stream`, as dialler if there is a task that was dialled.
    pub(super) async fn greet<S: AsyncRead + AsyncWrite + Unpin>(
        mut self,
        terms: GreetingTerms<'_>,
        dialled: Option<&str>,
        stream: &mut S,
        seals: &mut Seals,
    ) -> Result<Greeted<C>, Refusal> {
        let outcome = match dialled {
            Some(task) => {
                let mut machine = Dialler::new(terms, task);
                exchange::run(&mut machine, &mut self, stream, seals).await?
            }
            None => {
                let mut machine = Acceptor::new(terms);
                exchange::run(&mut machine, &mut self, stream, seals).await?
            }
        };
        match outcome {
            Outcome::Elsewhere(address) => Ok(Greeted::Elsewhere(address)),
            Outcome::Met(agreed) => {
                let uncounted = || Status::of(catalogue::PEER_PROTOCOL, "it does not count");
                let gained = self.gained().ok_or_else(uncounted)?;
                Ok(Greeted::Here(Box::new((*agreed, gained))))
            }
        }
    }

    /// What the greeting has brought, if the connection counts.
    fn gained(mut self) -> Option<Gained<C>> {
        let sockets = (0..)
            .zip(self.carriers)
            .map(|(channel, Carrier { fd, secured })| DataSocket {
                channel,
                fd,
                secured,
            })
            .collect();
        let descriptors = Descriptors {
            segments: std::mem::take(&mut self.passing.segments),
            doorbells: std::mem::take(&mut self.passing.doorbells),
            link: self.passing.link.take(),
            sockets,
            ends: self.ends,
        };
        Some(Gained {
            descriptors,
            passing: self.passing,
            claim: self.counted?,
        })
    }

    /// The lane, which a machine asks of a greeting over a Unix socket alone.
    fn lane(&mut self) -> Result<(&mut Lane, &mut Passing), Refusal> {
        match &mut self.means {
            Means::Lane(lane) => Ok((lane, &mut self.passing)),
            _ => Err(Status::of(catalogue::PEER_PROTOCOL, "descriptors over TCP").into()),
        }
    }

    fn errand(&self, work: impl FnOnce() -> Result<Made, Refusal> + Send + 'static) -> Running {
        let begun = match self.greeting.is_dialler {
            true => self.own.errands.begin(work),
            false => self.own.errands.begin_for_caller(work),
        };
        match begun {
            Ok(mut outcome) => Box::pin(async move { outcome.receive().await }),
            Err(error) => Box::pin(ready(Err(no_errand(error)))),
        }
    }

    /// Something done with our ends.
    fn with_ends(
        &mut self,
        work: impl FnOnce(&mut dyn Ends) -> Result<(), Status> + Send + 'static,
    ) -> Running {
        let Some(mut ends) = self.ends.take() else {
            let status = Status::of(catalogue::PATH_REFUSED, "its ends are gone");
            return Box::pin(ready(Err(status.into())));
        };
        self.errand(move || {
            work(&mut *ends)?;
            Ok(Made::Ends(ends))
        })
    }

    fn open(&self, path: Path, peer: PeerHello) -> Running {
        let offers = self.transports.iter().find(|offers| offers.path() == path);
        let (offers, deadline) = (offers.cloned(), self.greeting.deadline);
        let is_dialler = self.greeting.is_dialler;
        self.errand(move || {
            let none = || Status::of(catalogue::PATH_REFUSED, "this task has no such transport");
            let ends = offers.ok_or_else(none)?.open(&peer, is_dialler, deadline)?;
            Ok(Made::Ends(ends))
        })
    }

    fn dial(&self, expected: Expected) -> Running {
        let Means::Dialled { to, session } = &self.means else {
            return Box::pin(ready(Ok(Made::Carriers(Vec::new()))));
        };
        let work = DataDial {
            to: *to,
            expected,
            session: session.clone(),
            tls: self.own.config.tls.clone(),
            deadline: self.greeting.deadline,
            lost_after: self.own.config.lost_after,
        };
        self.errand(move || {
            let carriers = work.run().map_err(|error| error.refusal())?;
            Ok(Made::Carriers(carriers))
        })
    }
}

impl<C> Side for Ours<'_, C> {
    fn hello(&self, dialled: &str) -> proto::Hello {
        let mut hello = hello::our_hello(self.own.config, self.own.identity, dialled);
        for offers in &self.transports {
            match offers.lack() {
                Some(lack) => hello.lacks.push(proto::Lack {
                    transport: offers.path().number(),
                    why: clip(&lack.why),
                }),
                None => hello.abilities |= offers.path().ability(),
            }
        }
        if !dialled.is_empty() {
            let number = self.greeting.asks.number();
            hello.path = i32::try_from(number).unwrap_or_default();
            hello.no_shm = clip(self.greeting.no_shm);
        }
        hello
    }

    fn judge(&self, hello: &proto::Hello) -> Result<(PeerHello, bool), Refusal> {
        let Own {
            config, identity, ..
        } = self.own;
        hello::judge(hello, config, identity, self.greeting.evidence)
    }

    fn admit(&mut self, peer: &PeerHello) -> Result<(), Refusal> {
        self.admitted = Some((self.greeting.admit)(peer)?);
        Ok(())
    }

    fn count(&mut self, peer: &PeerHello) -> Result<(), Refusal> {
        self.counted = Some((self.greeting.count)(peer)?);
        // From here on it is that claim which keeps others of the same name out.
        self.admitted = None;
        Ok(())
    }

    fn near_address(&self) -> String {
        self.own.near.to_string()
    }

    fn rungs(&self) -> Vec<Rung> {
        let rung = |offers: &Arc<dyn Offers>| Rung {
            path: offers.path(),
            lack: offers.lack(),
        };
        self.transports.iter().map(rung).collect()
    }

    fn channels(&self, peer: &PeerHello) -> Result<u32, Refusal> {
        let channels = self.own.handler.data_channels(peer)?;
        if channels > DATA_CHANNELS_MAX {
            let message = format!(
                "{channels} channels to {}; the limit DATA_CHANNELS_MAX is {DATA_CHANNELS_MAX}",
                peer.task
            );
            let reason = catalogue::PEER_REFUSED;
            return Err(Refusal::fatal(Code::ResourceExhausted, reason, message));
        }
        Ok(channels)
    }

    fn gather(&mut self, peer: &PeerHello, read_domain: bool) -> Result<(), Refusal> {
        let handler = self.own.handler;
        if self.greeting.is_dialler {
            self.passing.link = Some(handler.make_link(peer)?);
        }
        let local = handler.local(peer)?;
        let filled = self
            .passing
            .fill(local, self.greeting.is_dialler, read_domain);
        filled.map_err(no_stream)
    }

    fn pass(&mut self, peer: &PeerHello) -> Result<proto::Descriptors, Refusal> {
        let (lane, passing) = self.lane()?;
        passing.pass(lane, &peer.task)
    }

    fn take(
        &mut self,
        peer: &PeerHello,
        read_domain: bool,
        batch: proto::Descriptors,
    ) -> Result<(), Refusal> {
        let wants_link = !self.greeting.is_dialler;
        let (lane, passing) = self.lane()?;
        passing.take(lane, peer, batch, read_domain, wants_link)
    }

    fn accept_link(&mut self, peer: &PeerHello) -> Result<(), Refusal> {
        match &self.passing.link {
            Some(link) => Ok(self.own.handler.accept_link(peer, link)?),
            None => Err(Status::of(catalogue::PEER_PROTOCOL, "a greeting without a link").into()),
        }
    }

    fn ends(&self) -> (Vec<Vec<u8>>, String) {
        let ends = self.ends.as_ref();
        ends.map_or_else(Default::default, |ends| (ends.told(), clip(ends.device())))
    }

    fn drop_ends(&mut self) {
        self.ends = None;
    }

    fn expect(&mut self, channels: u32) -> Result<proto::DataOpenReply, Refusal> {
        let busy = || {
            Refusal::later(
                catalogue::PEER_BUSY,
                "the maximum number of greetings already waits for data connections",
            )
        };
        let Means::Accepted {
            tickets,
            session,
            expires_ms,
        } = &self.means
        else {
            return Err(busy());
        };
        let awaited = Awaited::begin(tickets, channels, session.clone(), *expires_ms);
        let awaited = self.awaited.insert(awaited.ok_or_else(busy)?);
        Ok(proto::DataOpenReply {
            ticket: awaited.id.to_vec(),
            expires_ms: awaited.expires_ms,
        })
    }

    fn begin(&mut self, job: Job) {
        let deadline = self.greeting.deadline;
        self.job = Some(match job {
            Job::Open(path, peer) => self.open(path, peer),
            Job::Connect(told) => self.with_ends(move |ends| ends.connect(&told, deadline)),
            Job::Prove => {
                // Half of what is left is for the proof: the other is for doing without.
                let left = deadline.saturating_duration_since(Instant::now());
                let until = Instant::now() + left / 2;
                self.with_ends(move |ends| ends.prove(until))
            }
            Job::Dial(expected) => self.dial(expected),
            Job::Gather => {
                let awaited = self.awaited.take();
                Box::pin(async move {
                    let carriers = match awaited {
                        Some(awaited) => awaited.sockets().await,
                        None => Vec::new(),
                    };
                    Ok(Made::Carriers(carriers))
                })
            }
        });
    }
}

impl<C> Works for Ours<'_, C> {
    async fn done(&mut self) -> Result<(), Refusal> {
        if let Some(job) = self.job.take() {
            match job.await? {
                Made::Ends(ends) => self.ends = Some(ends),
                Made::Carriers(carriers) => self.carriers = carriers,
            }
        }
        Ok(())
    }
}

/// A socket or a descriptor that cannot be used.
pub(super) fn no_stream(error: std::io::Error) -> Refusal {
    let mend = error.raw_os_error().map_or("", more_descriptors);
    let message = format!("a socket could not be used: {error}{mend}");
    Refusal::later("PEER_REFUSED", message)
}

pub(super) fn no_errand(error: ErrandError) -> Refusal {
    Refusal::later(catalogue::PEER_BUSY, error.to_string())
}
