//! Meetings over TCP: from a fresh connection to one that counts and has its data connections, on either side.
//!
//! Knows sockets, TLS, handshakes and tickets, and the order in which they follow each other; what is said stands in
//! the greeting.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_lite::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use futures_rustls::TlsStream;

use crate::ground::limits::NONCES_MAX;
use crate::ground::{Code, catalogue};

use super::address::Address;
use super::dial::{Attempt, Route};
use super::exchange::Seals;
use super::greeting::Agreed;
use super::handshake::{self, Terms};
use super::hello::{self, Evidence};
use super::meet::late;
use super::newcomers::TcpCaller;
use super::owner::Owner;
use super::plane::{ClaimKind, Met, Plane, Reader, Writer};
use super::preamble::{self, ConnectionKind, OPENING, VERSION, Verdict};
use super::refusal::{Refusal, protocol_refusal};
use super::runtime::{Paced, Stream};
use super::secret::{Role, Session};
use super::side::{Greeted, Greeting, Means, Ours, no_stream};
use super::tcp;
use super::transport::{Path, PathWish};

/// The nonces of the last handshakes, to know one that is played back.
#[derive(Debug, Default)]
pub(super) struct Nonces {
    seen: BTreeSet<[u8; 32]>,
    order: VecDeque<[u8; 32]>,
}

/// A conversation's stream, in the clear or under TLS.
enum Wire {
    Plain {
        reader: Box<Stream>,
        writer: Box<Stream>,
    },
    Tls(Box<TlsStream<Paced>>),
}

/// A stream on which each side knows the other.
struct Trusted {
    wire: Wire,
    seals: Seals,
    /// What signs tickets.
    session: Option<Session>,
}

impl Plane {
    /// Greets a peer that dialled us over TCP, and converses.
    pub(super) async fn welcome_tcp(self: Rc<Self>, called: TcpCaller) {
        let TcpCaller {
            socket,
            from,
            is_tls,
            deadline,
            permit,
        } = called;
        let time = deadline.saturating_duration_since(Instant::now());
        let met = self.accept_tcp(socket, is_tls, deadline);
        let met = self.runtime.within(time, met).await.unwrap_or_else(late);
        drop(permit);
        match met {
            Ok(Some(met)) => {
                let established = self.establish(met);
                self.converse(established).await;
            }
            // Sent elsewhere.
            Ok(None) => {}
            // Two that dial each other meet halfway, and one gives way: nothing is wrong.
            Err(refusal) if refusal.is_busy() => {
                tracing::debug!(task = %self.config.task, %from, refusal = %refusal.status, "a connection was put off")
            }
            Err(refusal) if hello::is_question(&refusal) => {
                let refusal = &refusal.status;
                tracing::debug!(task = %self.config.task, %from, %refusal, "an observer was told who is here")
            }
            Err(refusal) => {
                let (reason, refusal) = (refusal.status.reason(), &refusal.status);
                let task = &self.config.task;
                match self.complaints.add(reason, Instant::now()) {
                    None => {}
                    // A dialler that uses another name is told ours.
                    Some(more) if reason == catalogue::PEER_UNKNOWN => {
                        tracing::info!(%task, %from, reason, more, %refusal, "a connection was refused")
                    }
                    Some(more) => {
                        tracing::warn!(%task, %from, reason, more, %refusal, "a connection was refused")
                    }
                }
            }
        }
    }

    /// Refuses an end of this machine that is not our own user's, where nothing else would keep it out: no secret that
    /// it has to prove and no certificate that it has to show.
    pub(super) fn judge_owner(&self, socket: &TcpStream) -> Result<(), Refusal> {
        if self.config.secret.is_some() || self.config.tls.is_some() {
            return Ok(());
        }
        let peer = socket.peer_addr().map_err(no_stream)?;
        let owner = Owner::of(socket).map_err(no_stream)?;
        hello::judge_owner(owner, peer, &self.config, &self.identity)
    }

    /// True if the other end is our own user's on this machine, and such need not prove the secret.
    fn waives(&self, socket: &TcpStream) -> Result<bool, Refusal> {
        if !self.config.waives_secret || self.config.tls.is_some() {
            return Ok(false);
        }
        let owner = Owner::of(socket).map_err(no_stream)?;
        Ok(matches!(owner, Owner::User(user) if self.identity.users.is_own(user)))
    }

    /// True if no handshake has used this nonce, as far as is remembered.
    pub(super) fn is_new(&self, nonce: [u8; 32]) -> bool {
        self.nonces.borrow_mut().insert(nonce)
    }

    /// One attempt to connect to the TCP address of `route`, each step of that within `reach`, and be greeted there.
    pub(super) async fn attempt_tcp(
        self: &Rc<Self>,
        task: &str,
        route: &mut Route,
        reach: Duration,
        deadline: Instant,
    ) -> Result<Attempt, Refusal> {
        if self.registry.borrow().is_up(task) {
            return Err(Refusal::later("PEER_BUSY", "connected from the other side"));
        }
        let socket = self.reach(route, reach, deadline).await?;
        let to = socket.peer_addr().map_err(no_stream)?;
        let deadline = deadline.min(Instant::now() + self.greeting_time());
        let time = deadline.saturating_duration_since(Instant::now());
        let whole = async {
            self.registry.borrow_mut().begin_dial(task)?;
            let claim = self.claim(task, ClaimKind::Dial);
            let attempt = self.dial_tcp(socket, to, task, route, deadline).await;
            drop(claim);
            attempt
        };
        let attempt = self.runtime.within(time, whole).await.unwrap_or_else(late);
        match attempt {
            Ok(attempt) => {
                if let Attempt::Established(established) = &attempt {
                    let life = established.conversation.hello.incarnation;
                    self.names.stands(&route.address, to, life);
                }
                Ok(attempt)
            }
            Err(refusal) => Err(route.refused(refusal)),
        }
    }

    /// The dialler's side of a fresh connection.
    async fn dial_tcp(
        self: &Rc<Self>,
        socket: TcpStream,
        to: SocketAddr,
        task: &str,
        route: &Route,
        deadline: Instant,
    ) -> Result<Attempt, Refusal> {
        let wire = self.adopt_tcp(&socket).map_err(no_stream)?;
        let Trusted {
            mut wire,
            mut seals,
            session,
        } = self.trust_dialled(wire, &socket).await?;
        let peer = self.number();
        let announced = self.announced.get();
        let no_shm = route.no_shm.as_deref();
        let greeting = Greeting {
            is_dialler: true,
            evidence: Evidence::Network,
            asks: route.asks(),
            no_shm: no_shm.unwrap_or_default(),
            deadline,
            admit: Box::new(|hello| self.admit(hello)),
            count: Box::new(|hello| {
                route.judge_life(task, hello.incarnation)?;
                self.count(peer, hello, true)
            }),
        };
        let ours = Ours::new(self.own(), greeting, Means::Dialled { to, session });
        let greets = self.greets(route.wish, false);
        let greeted = ours.greet(greets, Some(task), &mut wire, &mut seals);
        let (mut agreed, gained) = match greeted.await? {
            Greeted::Here(here) => *here,
            Greeted::Elsewhere(near) => {
                let near: Option<Address> = near.parse().ok();
                let near = near.filter(|near| !near.is_tcp()).ok_or_else(|| {
                    protocol_refusal(task, "sent elsewhere, but not to a Unix address")
                })?;
                return Ok(Attempt::Near(near));
            }
        };
        let why = route.why_tcp(&self.identity.machine);
        tell(&mut agreed, &why, route.wish, no_shm.is_some());
        let (reader, writer) = wire.split();
        let established = self.establish(Met {
            peer,
            agreed,
            gained,
            is_dialler: true,
            socket: OwnedFd::from(socket),
            lane: None,
            seals,
            reader,
            writer,
            credentials: None,
            announced,
        });
        Ok(Attempt::Established(established))
    }

    /// The acceptor's side of a fresh connection; nothing if it was sent elsewhere.
    async fn accept_tcp(
        self: &Rc<Self>,
        socket: TcpStream,
        is_tls: bool,
        deadline: Instant,
    ) -> Result<Option<Met>, Refusal> {
        let mut wire = self.adopt_tcp(&socket).map_err(no_stream)?;
        if let Err(refusal) = self.judge_owner(&socket) {
            // Without the means to ask there is no verdict: the dialler comes again.
            if !refusal.retry {
                wire.say(Verdict::OtherUser).await?;
            }
            return Err(refusal);
        }
        let Trusted {
            mut wire,
            mut seals,
            session,
        } = self.trust_accepted(wire, &socket, is_tls).await?;
        let peer = self.number();
        let announced = self.announced.get();
        let left = deadline.saturating_duration_since(Instant::now());
        let left = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let means = Means::Accepted {
            tickets: &self.tickets,
            session,
            expires_ms: self.now_ms().saturating_add(left),
        };
        let greeting = Greeting {
            is_dialler: false,
            evidence: Evidence::Network,
            asks: PathWish::Auto,
            no_shm: "",
            deadline,
            admit: Box::new(|hello| self.admit(hello)),
            count: Box::new(|hello| self.count(peer, hello, false)),
        };
        let wish = self.config.path_wish;
        let ours = Ours::new(self.own(), greeting, means);
        let greeted = ours.greet(self.greets(wish, false), None, &mut wire, &mut seals);
        let Greeted::Here(here) = greeted.await? else {
            return Ok(None);
        };
        let (mut agreed, gained) = *here;
        let no_shm = agreed.peer.no_shm.clone();
        let why = match no_shm.is_empty() {
            true if self.identity.machine.is_empty() => hello::NO_BOOT.into(),
            true => "the peer came over TCP: from another machine, or by demand".into(),
            false => format!("the peer says: {no_shm}"),
        };
        tell(&mut agreed, &why, wish, !no_shm.is_empty());
        let (reader, writer) = wire.split();
        Ok(Some(Met {
            peer,
            agreed,
            gained,
            is_dialler: false,
            socket: OwnedFd::from(socket),
            lane: None,
            seals,
            reader,
            writer,
            credentials: None,
            announced,
        }))
    }

    /// Says what we want, hears the verdict, and proves what is to be proved.
    async fn trust_dialled(&self, mut wire: Wire, socket: &TcpStream) -> Result<Trusted, Refusal> {
        let kind = match self.config.tls {
            Some(_) => ConnectionKind::Tls,
            None => ConnectionKind::Control,
        };
        let mut verdict = [0; OPENING];
        let asked = async {
            wire.write_all(&preamble::opening(kind)).await?;
            wire.flush().await?;
            wire.read_exact(&mut verdict).await
        };
        asked.await.map_err(|error| {
            Refusal::later(
                "PEER_LOST",
                format!("no task of this cluster answers at that address: {error}"),
            )
        })?;
        match preamble::read_answer(verdict) {
            // Only now the connection has been accepted, and its other end has an owner.
            Some(Verdict::Welcome) => self.judge_owner(socket)?,
            Some(Verdict::OtherUser) => {
                let message = format!(
                    "the task there accepts connections within the machine only from its own user, because it has \
                     neither a cluster secret nor TLS; task {} runs as user {}",
                    self.config.task,
                    self.identity.users.own()
                );
                return Err(Refusal::fatal(
                    Code::PermissionDenied,
                    catalogue::PEER_OTHER_USER,
                    message,
                ));
            }
            Some(Verdict::OtherVersion(other)) => {
                let message = format!(
                    "task {} opens connections in version {VERSION}, the peer in version {other}; \
                     run the same release on both sides",
                    self.config.task
                );
                return Err(Refusal::fatal(
                    Code::FailedPrecondition,
                    "PEER_VERSION",
                    message,
                ));
            }
            Some(Verdict::WantsTls) => return Err(no_tls("the peer has it, this task has not")),
            Some(Verdict::NoTls) => return Err(no_tls("this task has it, the peer has not")),
            _ => {
                return Err(Refusal::fatal(
                    Code::Internal,
                    "PEER_PROTOCOL",
                    "a program other than rendez answers at that address",
                ));
            }
        }
        let (mut wire, binding) = match (&self.config.tls, wire) {
            (Some(tls), Wire::Plain { reader, .. }) => {
                let (stream, binding) = tls.connect(self.runtime.paced(*reader)).await?;
                (Wire::Tls(Box::new(stream)), Some(binding))
            }
            (_, wire) => (wire, None),
        };
        let terms = self.terms(binding, self.waives(socket)?);
        let session = handshake::dial(&mut wire, terms).await?;
        Ok(Trusted::new(wire, session, binding, Role::Dialler))
    }

    /// Gives the verdict, and proves what is to be proved.
    async fn trust_accepted(
        &self,
        mut wire: Wire,
        socket: &TcpStream,
        is_tls: bool,
    ) -> Result<Trusted, Refusal> {
        let (verdict, mismatch) = match (&self.config.tls, is_tls) {
            (Some(_), true) | (None, false) => (Verdict::Welcome, None),
            (Some(_), false) => (
                Verdict::WantsTls,
                Some("this task has it, the peer has not"),
            ),
            (None, true) => (Verdict::NoTls, Some("the peer has it, this task has not")),
        };
        wire.say(verdict).await?;
        if let Some(mismatch) = mismatch {
            return Err(no_tls(mismatch));
        }
        let (mut wire, binding) = match (&self.config.tls, wire) {
            (Some(tls), Wire::Plain { reader, .. }) => {
                let (stream, binding) = tls.accept(self.runtime.paced(*reader)).await?;
                (Wire::Tls(Box::new(stream)), Some(binding))
            }
            (_, wire) => (wire, None),
        };
        let is_new = |nonce| self.is_new(nonce);
        let terms = self.terms(binding, self.waives(socket)?);
        let session = handshake::accept(&mut wire, terms, is_new).await?;
        Ok(Trusted::new(wire, session, binding, Role::Acceptor))
    }

    fn terms(&self, binding: Option<[u8; 32]>, waives: bool) -> Terms<'_> {
        Terms {
            secret: self.config.secret.as_ref(),
            binding: binding.unwrap_or_default(),
            may_go_without: false,
            waives,
        }
    }

    fn adopt_tcp(&self, socket: &TcpStream) -> io::Result<Wire> {
        tcp::tune(socket, self.config.lost_after)?;
        Ok(Wire::Plain {
            reader: Box::new(self.runtime.adopt_tcp(socket.try_clone()?)?),
            writer: Box::new(self.runtime.adopt_tcp(socket.try_clone()?)?),
        })
    }
}

impl Trusted {
    fn new(wire: Wire, proved: Option<Session>, binding: Option<[u8; 32]>, role: Role) -> Self {
        let seals = match (&proved, binding) {
            (Some(session), None) => Seals::new(session, role),
            // TLS seals better, and without a secret there is nothing to seal with.
            _ => Seals::default(),
        };
        let session = proved.or_else(|| binding.as_ref().map(Session::new));
        Self {
            wire,
            seals,
            session,
        }
    }
}

impl Nonces {
    /// Remembers a nonce, and says whether it is new.
    fn insert(&mut self, nonce: [u8; 32]) -> bool {
        if !self.seen.insert(nonce) {
            return false;
        }
        self.order.push_back(nonce);
        if self.order.len() > NONCES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }
}

impl Wire {
    /// Both halves, for a conversation that reads and writes at once.
    fn split(self) -> (Reader, Writer) {
        match self {
            Self::Plain { reader, writer } => (reader, writer),
            Self::Tls(stream) => {
                let (reader, writer) = futures_lite::io::split(stream);
                (Box::new(reader), Box::new(writer))
            }
        }
    }

    /// Gives the verdict on what the connection is for.
    async fn say(&mut self, verdict: Verdict) -> Result<(), Refusal> {
        let told = async {
            self.write_all(&preamble::answer(verdict)).await?;
            self.flush().await
        };
        told.await.map_err(no_stream)
    }

    fn stream(&mut self) -> Pin<&mut dyn ReadWrite> {
        match self {
            Self::Plain { reader, .. } => Pin::new(&mut **reader),
            Self::Tls(stream) => Pin::new(&mut **stream),
        }
    }
}

/// Both directions of one stream.
trait ReadWrite: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> ReadWrite for S {}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_read(cx, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_close(cx)
    }
}

/// Says why this path, and why no better one; `is_near` if shared memory should be there between the two and is not.
fn tell(agreed: &mut Agreed, why_tcp: &str, wish: PathWish, is_near: bool) {
    if agreed.path == Path::Tcp {
        // Nothing else was thought of, or what is missing is shared memory: RDMA is no matter of one machine.
        let is_all = wish == PathWish::Tcp || is_near || agreed.why.is_empty();
        agreed.why = match is_all {
            true => why_tcp.to_owned(),
            false => format!("{why_tcp}; {}", agreed.why),
        };
    }
    if is_near {
        agreed.fell_back = Some(Path::Shm);
    }
}

fn no_tls(why: &str) -> Refusal {
    Refusal::fatal(
        Code::PermissionDenied,
        catalogue::TLS_REFUSED,
        format!("no TLS between the two: {why}"),
    )
}
