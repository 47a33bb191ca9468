//! The core: all that the control thread does, and the only place where connections are begun, counted and buried.
//!
//! Knows every part of this room; nothing outside of it but through the handler.
//!
//! One task for each connection and each dial, one loop for commands, all on one thread: state lies in cells, and no borrow
//! outlives an `await` or a call of the handler.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::future::or;

use crate::ground::limits::DEPARTED_MAX;
use crate::ground::rng::Rng;
use crate::ground::{Code, Status};

use super::address::Address;
use super::config::ControlConfig;
use super::conversation::{Conversation, Opening};
use super::credentials::Credentials;
use super::greet::{Greeted, Greeting, Local, lane_refusal};
use super::hello::{Identity, Refusal};
use super::lane::Lane;
use super::mailbox::Receiver;
use super::peer::{Handler, PeerGone, PeerHello, PeerId, PeerUp, SegmentOffer};
use super::registry::Registry;
use super::runtime::{Executor, Stream};
use super::signal::Signal;
use super::watch::{Arrived, Sight, Watch};

/// What other threads want of the control thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// The watch saw something.
    Sight(Sight),
    /// Connect to a task.
    Dial {
        task: String,
        address: Address,
        deadline: Instant,
    },
    /// Tell all peers of a segment.
    Announce(SegmentOffer),
    /// Say goodbye and end.
    Stop { reason: String, deadline: Instant },
}

/// The control thread's state.
pub(crate) struct Core {
    config: ControlConfig,
    identity: Identity,
    handler: Arc<dyn Handler>,
    executor: Executor,
    watch: Watch,
    registry: RefCell<Registry>,
    peers: RefCell<BTreeMap<PeerId, Rc<Conversation>>>,
    /// Peers whose connection is over and whose process is still followed.
    departed: RefCell<BTreeSet<PeerId>>,
    dials: RefCell<BTreeSet<String>>,
    next_peer: Cell<u32>,
    /// Counts announcements, so that a greeting sees whether it missed one.
    announced: Cell<u64>,
    rng: RefCell<Rng>,
    /// Set when all tasks must end.
    closing: Signal,
    tasks: Cell<usize>,
    /// Set when they have.
    idle: Signal,
}

/// A connection that counts, before its conversation runs.
struct Established {
    conversation: Rc<Conversation>,
    claim: Claim,
    reader: Stream,
    writer: Stream,
    exit_provable: bool,
}

/// What a connection consists of before it is greeted.
struct Fresh {
    socket: UnixStream,
    lane: Lane,
    credentials: Credentials,
    deadline: Instant,
}

/// Something the registry counts for a task; dropped, it counts no more.
struct Claim {
    core: Rc<Core>,
    task: String,
    kind: ClaimKind,
}

#[derive(Clone, Copy)]
enum ClaimKind {
    Accept,
    Dial,
    Up(PeerId),
}

/// A task that runs; dropped, it does no more.
struct Running(Rc<Core>);

impl Core {
    /// A core with nobody connected.
    pub(crate) fn new(
        config: ControlConfig,
        handler: Arc<dyn Handler>,
        watch: Watch,
        executor: Executor,
    ) -> Rc<Self> {
        let mut seed = [0u8; 8];
        // For jitter only: without randomness the incarnation tells tasks apart well enough.
        if getrandom::fill(&mut seed).is_err() {
            seed = config.incarnation.0.to_le_bytes();
        }
        Rc::new(Self {
            registry: RefCell::new(Registry::new(&config.task)),
            identity: Identity::read(),
            rng: RefCell::new(Rng::new(u64::from_le_bytes(seed))),
            config,
            handler,
            executor,
            watch,
            peers: RefCell::default(),
            departed: RefCell::default(),
            dials: RefCell::default(),
            next_peer: Cell::new(1),
            announced: Cell::new(0),
            closing: Signal::default(),
            tasks: Cell::new(0),
            idle: Signal::default(),
        })
    }

    /// Obeys commands until told to stop, and ends everything then.
    pub(crate) async fn run(self: Rc<Self>, mut commands: Receiver<Command>) {
        loop {
            match commands.receive().await {
                Command::Sight(Sight::Arrived(arrived)) => {
                    self.spawn(Rc::clone(&self).welcome(arrived))
                }
                Command::Sight(Sight::Exited(peer)) => self.handle_exit(peer),
                Command::Dial {
                    task,
                    address,
                    deadline,
                } => self.handle_dial(task, address, deadline),
                Command::Announce(segment) => self.handle_announce(segment),
                Command::Stop { reason, deadline } => {
                    drop(commands);
                    return self.end(&reason, deadline).await;
                }
            }
        }
    }

    fn handle_exit(&self, peer: PeerId) {
        let conversation = self.peers.borrow().get(&peer).cloned();
        match conversation {
            Some(conversation) => conversation.exited.set(),
            None => {
                let is_followed = self.departed.borrow_mut().remove(&peer);
                if is_followed {
                    self.handler.peer_gone(peer, PeerGone::ProcessExited);
                }
            }
        }
    }

    fn handle_dial(self: &Rc<Self>, task: String, address: Address, deadline: Instant) {
        if self.registry.borrow().is_up(&task) || !self.dials.borrow_mut().insert(task.clone()) {
            return;
        }
        self.spawn(Rc::clone(self).dial(task, address, deadline));
    }

    fn handle_announce(&self, segment: SegmentOffer) {
        self.announced.set(self.announced.get() + 1);
        let segment = Rc::new(segment);
        for conversation in self.conversations() {
            conversation.announce(Rc::clone(&segment));
        }
    }

    /// Says goodbye to all, as long as `deadline` lets, and waits until every task has ended.
    async fn end(self: Rc<Self>, reason: &str, deadline: Instant) {
        let conversations = self.conversations();
        for conversation in &conversations {
            conversation.say_bye(reason);
        }
        let all_said = async {
            for conversation in &conversations {
                conversation.drained().await;
            }
        };
        let time = deadline.saturating_duration_since(Instant::now());
        self.executor.within(time, all_said).await;
        for conversation in &conversations {
            conversation.shut_down();
        }
        drop(conversations);
        self.closing.set();
        if self.tasks.get() > 0 {
            self.idle.wait().await;
        }
        self.peers.borrow_mut().clear();
    }

    /// Greets somebody who dialled us, and converses.
    async fn welcome(self: Rc<Self>, arrived: Arrived) {
        let Arrived {
            socket,
            lane,
            credentials,
            deadline,
            permit,
        } = arrived;
        let fresh = Fresh {
            socket,
            lane,
            credentials,
            deadline,
        };
        let greeted = self.greet(fresh, None).await;
        drop(permit);
        match greeted {
            Ok(established) => self.converse(established).await,
            // The one who dialled was told, if it could be; on our side nobody waits for it.
            Err(refusal) => {
                tracing::info!(task = %self.config.task, refusal = %refusal.status, "a connection was refused")
            }
        }
    }

    /// Connects to `task`, again and again until `deadline`, and converses.
    async fn dial(self: Rc<Self>, task: String, address: Address, deadline: Instant) {
        let mut pause = self.config.backoff_min;
        let status = loop {
            let refusal = match self.attempt(&task, &address, deadline).await {
                Ok(established) => {
                    self.dials.borrow_mut().remove(&task);
                    return self.converse(established).await;
                }
                Err(refusal) => refusal,
            };
            if self.registry.borrow().is_up(&task) {
                self.dials.borrow_mut().remove(&task);
                return;
            }
            if !refusal.retry && !self.registry.borrow().is_accepting(&task) {
                break refusal.status;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!(
                    "no connection to task {task} at {address} by the deadline; {}",
                    refusal.status.message()
                );
                break Status::new(Code::Unavailable, "CONNECT_DEADLINE", message);
            }
            self.executor.sleep(self.jitter(pause).min(left)).await;
            pause = (pause * 2).min(self.config.backoff_max);
        };
        self.dials.borrow_mut().remove(&task);
        self.handler.dial_failed(&task, status);
    }

    /// One attempt to connect and be greeted.
    async fn attempt(
        self: &Rc<Self>,
        task: &str,
        address: &Address,
        deadline: Instant,
    ) -> Result<Established, Refusal> {
        if self.registry.borrow().is_up(task) {
            return Err(Refusal::later("PEER_BUSY", "connected from the other side"));
        }
        let unreachable = |errno: io::Error| {
            Refusal::later("CONNECT_DEADLINE", format!("the last attempt: {errno}"))
        };
        let socket = address
            .connect()
            .map_err(|errno| unreachable(errno.into()))?;
        let credentials = Credentials::of(socket.as_fd()).map_err(unreachable)?;
        self.registry.borrow_mut().begin_dial(task)?;
        let claim = self.claim(task, ClaimKind::Dial);
        let lane = Lane::open(socket.as_fd()).map_err(|error| {
            let refusal = lane_refusal(task, &error);
            // Whatever befell a connection this young may be over by the next.
            Refusal {
                retry: true,
                ..refusal
            }
        })?;
        let deadline = deadline.min(Instant::now() + self.config.greet_deadline);
        let outcome = self
            .greet(
                Fresh {
                    socket,
                    lane,
                    credentials,
                    deadline,
                },
                Some(task),
            )
            .await;
        drop(claim);
        outcome
    }

    /// Greets over a fresh connection, as dialler if there is a task that was dialled. Once it counts, the handler knows.
    async fn greet(
        self: &Rc<Self>,
        fresh: Fresh,
        dialled: Option<&str>,
    ) -> Result<Established, Refusal> {
        let Fresh {
            socket,
            mut lane,
            credentials,
            deadline,
        } = fresh;
        let no_stream = |error: io::Error| {
            Refusal::later(
                "PEER_REFUSED",
                format!("a socket could not be used: {error}"),
            )
        };
        let mut reader = self.adopt(&socket).map_err(no_stream)?;
        let writer = self.adopt(&socket).map_err(no_stream)?;
        let peer = PeerId(self.next_peer.replace(self.next_peer.get().wrapping_add(1)));
        let announced = self.announced.get();
        let local = Local {
            config: &self.config,
            identity: &self.identity,
            handler: &*self.handler,
        };
        let greeting = Greeting::new(&mut reader, &mut lane, local, &credentials);
        let whole = async {
            match dialled {
                Some(task) => {
                    greeting
                        .dial(task, |hello| self.count(peer, hello, true))
                        .await
                }
                None => {
                    let (greeted, accepting) = greeting.accept(|hello| self.admit(hello)).await?;
                    let counted = self.count(peer, &greeted.hello, false)?;
                    drop(accepting);
                    Ok((greeted, counted))
                }
            }
        };
        let time = deadline.saturating_duration_since(Instant::now());
        let late = || {
            Err(Refusal::later(
                "PEER_LOST",
                "the greeting was not over by its deadline",
            ))
        };
        let (greeted, claim) = self
            .executor
            .within(time, whole)
            .await
            .unwrap_or_else(late)?;
        let Greeted {
            hello,
            read_domain,
            descriptors,
            offered,
            known,
        } = greeted;
        let opening = Opening {
            peer,
            hello: hello.clone(),
            read_domain,
            socket,
            lane,
            offered,
            known,
        };
        let conversation = Rc::new(Conversation::new(opening));
        self.peers
            .borrow_mut()
            .insert(peer, Rc::clone(&conversation));
        let exit_provable = self.follow(peer, credentials);
        self.handler.peer_up(PeerUp {
            peer,
            task: hello.task.clone(),
            incarnation: hello.incarnation,
            hello,
            descriptors,
            dialler: dialled.is_some(),
            read_domain,
            exit_provable,
        });
        if self.announced.get() != announced {
            self.offer_again(&conversation);
        }
        Ok(Established {
            conversation,
            claim,
            reader,
            writer,
            exit_provable,
        })
    }

    /// Converses until the end, and tells it.
    async fn converse(self: Rc<Self>, established: Established) {
        let Established {
            conversation,
            claim,
            reader,
            writer,
            exit_provable,
        } = established;
        let peer = conversation.peer;
        let mut gone = conversation
            .run(reader, writer, &self.executor, &self.config, &*self.handler)
            .await;
        if exit_provable && matches!(gone, PeerGone::ConnectionLost(_)) {
            // A dying process closes its sockets a moment before its exit is told: the better news may be on its way.
            let proof = self
                .executor
                .within(self.config.proof_grace, conversation.exited.wait())
                .await;
            gone = proof.map_or(gone, |()| PeerGone::ProcessExited);
        }
        self.peers.borrow_mut().remove(&peer);
        if exit_provable && !gone.is_proof() {
            self.keep_following(peer);
        }
        if !conversation.has_said_bye() {
            self.handler.peer_gone(peer, gone);
        }
        drop(claim);
    }

    /// May a hello be greeted?
    fn admit(self: &Rc<Self>, hello: &PeerHello) -> Result<Claim, Refusal> {
        let is_ending = |peer: PeerId| {
            // One that counts but has no conversation is just beginning or just over: asked again, the answer is clear.
            self.peers
                .borrow()
                .get(&peer)
                .is_none_or(|conversation| conversation.is_ending())
        };
        self.registry
            .borrow_mut()
            .begin_accept(&hello.task, hello.incarnation, is_ending)?;
        Ok(self.claim(&hello.task, ClaimKind::Accept))
    }

    /// Does a greeted connection count?
    fn count(
        self: &Rc<Self>,
        peer: PeerId,
        hello: &PeerHello,
        is_dialler: bool,
    ) -> Result<Claim, Refusal> {
        self.registry
            .borrow_mut()
            .up(&hello.task, peer, hello.incarnation, is_dialler)?;
        Ok(self.claim(&hello.task, ClaimKind::Up(peer)))
    }

    fn claim(self: &Rc<Self>, task: &str, kind: ClaimKind) -> Claim {
        Claim {
            core: Rc::clone(self),
            task: task.to_owned(),
            kind,
        }
    }

    /// Has the peer's process followed; false if its exit cannot be proved.
    fn follow(&self, peer: PeerId, credentials: Credentials) -> bool {
        match credentials {
            Credentials {
                pidfd: Some(pidfd),
                process,
                ..
            } if !is_self(process) => {
                self.watch.follow(peer, pidfd);
                true
            }
            _ => false,
        }
    }

    /// Keeps a peer followed whose connection is over; beyond the bound the longest gone is given up.
    fn keep_following(&self, peer: PeerId) {
        let mut departed = self.departed.borrow_mut();
        departed.insert(peer);
        if departed.len() > DEPARTED_MAX
            && let Some(oldest) = departed.pop_first()
        {
            self.watch.forget(oldest);
        }
    }

    /// Offers what was announced while the peer was being greeted.
    fn offer_again(&self, conversation: &Conversation) {
        match self.handler.local(&conversation.hello) {
            Ok(offer) => offer
                .segments
                .into_iter()
                .for_each(|segment| conversation.announce(Rc::new(segment))),
            Err(status) => {
                tracing::warn!(task = %conversation.hello.task, %status, "a segment could not be announced; the connection ends");
                conversation.shut_down();
            }
        }
    }

    fn adopt(&self, socket: &UnixStream) -> io::Result<Stream> {
        self.executor.adopt(socket.try_clone()?)
    }

    fn conversations(&self) -> Vec<Rc<Conversation>> {
        self.peers.borrow().values().cloned().collect()
    }

    /// A time between half of `pause` and all of it, so that tasks started together do not stay in step.
    fn jitter(&self, pause: Duration) -> Duration {
        let nanos = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(nanos / 2 + self.rng.borrow_mut().below(nanos / 2 + 1))
    }

    fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        self.tasks.set(self.tasks.get() + 1);
        let running = Running(Rc::clone(self));
        self.executor.spawn(async move {
            or(running.0.closing.wait(), task).await;
            drop(running);
        });
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut registry = self.core.registry.borrow_mut();
        match self.kind {
            ClaimKind::Accept => registry.end_accept(&self.task),
            ClaimKind::Dial => registry.end_dial(&self.task),
            ClaimKind::Up(peer) => registry.down(&self.task, peer),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.tasks.set(self.0.tasks.get().saturating_sub(1));
        if self.0.tasks.get() == 0 && self.0.closing.is_set() {
            self.0.idle.set();
        }
    }
}

/// True if `process` is this very process, whose exit nobody here can be told of.
fn is_self(process: Option<i32>) -> bool {
    process.and_then(|process| u32::try_from(process).ok()) == Some(std::process::id())
}
