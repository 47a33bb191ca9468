//! The plane: all that the control thread does, and the only place where connections are opened, counted and closed.
//!
//! Knows every part of this room; anything outside only through the handler.
//!
//! One task for each connection and each dial, one loop for commands, all on one thread: state lies in cells, and no
//! borrow outlives an `await` or a call of the handler.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::future::or;
use futures_lite::io::{AsyncRead, AsyncWrite};

use tracing::Instrument;

use crate::ground::rng::Rng;

use super::address::Address;
use super::answers::CallKey;
use super::calls::{Asked, Calls};
use super::complaints::Complaints;
use super::config::ControlConfig;
use super::conversation::{Conversation, ConversationOpening};
use super::credentials::Credentials;
use super::data::Carrier;
use super::departed::Departed;
use super::dial::{Dialled, Route};
use super::errand::Errands;
use super::exchange::Seals;
use super::greeting::Agreed;
use super::hello::Identity;
use super::lane::Lane;
use super::mailbox::Receiver;
use super::meet_tcp::Nonces;
use super::names::Names;
use super::peer::{Handler, PeerGone, PeerHello, PeerId, PeerUp, SegmentOffer};
use super::refusal::Refusal;
use super::registry::Registry;
use super::runtime::Runtime;
use super::service::Outcome;
use super::side::Gained;
use super::signal::Signal;
use super::tickets::Tickets;
use super::watch::{Sight, Watch};

/// How long a task that leaves waits for the greetings that are under way.
const MEETING_MAX: Duration = Duration::from_millis(100);
/// And how often it looks whether they are over.
const MEETING_PAUSE: Duration = Duration::from_millis(2);

/// What other threads want of the control thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// The watch saw something.
    Sight(Sight),
    /// Connect to a task.
    Dial { task: String, to: Dialled },
    /// Connect to it after a pause, if nothing has done so by then.
    DialLater {
        task: String,
        address: Address,
        pause: Duration,
        patience: Duration,
    },
    /// Ask a service of a task.
    Call { request: u64, asked: Asked },
    /// Wait for the answer no longer.
    GiveUp(u64),
    /// A service of ours is done.
    Served { key: CallKey, outcome: Outcome },
    /// End a connection as if it were lost, after a pause.
    HangUp { peer: PeerId, why: String },
    /// Tell all peers of a segment.
    Announce(SegmentOffer),
    /// Say goodbye and end.
    Stop { reason: String, deadline: Instant },
}

/// The control thread's state.
pub(crate) struct Plane {
    pub(super) config: ControlConfig,
    pub(super) identity: Identity,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) runtime: Runtime,
    pub(super) watch: Watch,
    /// Where this task listens on its machine.
    pub(super) local: Address,
    calls: Rc<Calls>,
    pub(super) errands: Errands,
    pub(super) names: Names,
    pub(super) tickets: Rc<RefCell<Tickets<Carrier>>>,
    /// The nonces of the last handshakes.
    pub(super) nonces: RefCell<Nonces>,
    pub(super) complaints: Complaints,
    began: Instant,
    pub(super) registry: RefCell<Registry>,
    pub(super) peers: RefCell<BTreeMap<PeerId, Rc<Conversation>>>,
    /// Peers whose connection is over and whose process is still followed.
    departed: RefCell<Departed>,
    /// Tasks that are being dialled, as was asked last.
    pub(super) dials: RefCell<BTreeMap<String, Dialled>>,
    /// Tasks that are dialled after a pause.
    pub(super) put_off: RefCell<BTreeSet<String>>,
    pub(super) next_peer: Cell<u32>,
    /// Counts announcements, so that a greeting sees whether it missed one.
    pub(super) announced: Cell<u64>,
    pub(super) rng: RefCell<Rng>,
    /// Why this task leaves, once it does.
    leaving: RefCell<Option<String>>,
    /// Set when all tasks must end.
    closing: Signal,
    tasks: Cell<usize>,
    /// Set when they have.
    idle: Signal,
}

/// A connection that counts, before its conversation runs.
pub(super) struct Established {
    pub(super) conversation: Rc<Conversation>,
    pub(super) claim: Claim,
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    pub(super) exit_provable: bool,
}

/// Half of a stream.
pub(super) type Reader = Box<dyn AsyncRead + Unpin>;
/// The other half.
pub(super) type Writer = Box<dyn AsyncWrite + Unpin>;

/// A greeting that succeeded, and what is left of it.
pub(super) struct Met {
    pub(super) peer: PeerId,
    pub(super) agreed: Agreed,
    pub(super) gained: Gained<Claim>,
    pub(super) is_dialler: bool,
    pub(super) socket: OwnedFd,
    pub(super) lane: Option<Lane>,
    pub(super) seals: Seals,
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    /// The kernel's word of the peer, if it has one.
    pub(super) credentials: Option<Credentials>,
    /// Announcements when the greeting began.
    pub(super) announced: u64,
}

/// Something the registry counts for a task; dropped, it counts no more.
pub(super) struct Claim {
    plane: Rc<Plane>,
    task: String,
    kind: ClaimKind,
}

#[derive(Clone, Copy)]
pub(super) enum ClaimKind {
    Accept,
    Dial,
    Up(PeerId),
}

/// A task that runs; dropped, it does no more.
struct Running(Rc<Plane>);

impl Plane {
    /// A plane without connections.
    pub(crate) fn new(
        config: ControlConfig,
        handler: Arc<dyn Handler>,
        watch: Watch,
        local: Address,
        calls: Rc<Calls>,
        runtime: Runtime,
    ) -> Rc<Self> {
        let mut seed = [0u8; 8];
        // For jitter only: without randomness the incarnation tells tasks apart well enough.
        if getrandom::fill(&mut seed).is_err() {
            seed = config.incarnation.0.to_le_bytes();
        }
        let counting = Arc::clone(&handler);
        Rc::new(Self {
            registry: RefCell::new(Registry::new(&config.task)),
            identity: Identity::read(config.boot.as_deref()),
            rng: RefCell::new(Rng::new(u64::from_le_bytes(seed))),
            tickets: Rc::new(RefCell::new(Tickets::new(config.incarnation))),
            config,
            handler,
            runtime,
            watch,
            local,
            calls,
            errands: Errands::default(),
            names: Names::default(),
            nonces: RefCell::default(),
            complaints: Complaints::new(move |reason| counting.refused(reason)),
            began: Instant::now(),
            peers: RefCell::default(),
            departed: RefCell::default(),
            dials: RefCell::default(),
            put_off: RefCell::default(),
            next_peer: Cell::new(1),
            announced: Cell::new(0),
            leaving: RefCell::default(),
            closing: Signal::default(),
            tasks: Cell::new(0),
            idle: Signal::default(),
        })
    }

    /// Obeys commands until told to stop, and ends everything then.
    pub(crate) async fn run(self: Rc<Self>, commands: Receiver<Command>) {
        loop {
            let next = self.calls.lookout().next(&commands, &self.runtime);
            match next.await {
                Command::Sight(Sight::Arrived(arrived)) => {
                    let span = tracing::debug_span!("welcome", over = "unix");
                    self.spawn(Rc::clone(&self).welcome(arrived).instrument(span));
                }
                Command::Sight(Sight::Called(called)) => {
                    let span = tracing::debug_span!("welcome", over = "tcp");
                    self.spawn(Rc::clone(&self).welcome_tcp(called).instrument(span));
                }
                Command::Sight(Sight::Data(data)) => match data.preamble {
                    Some(preamble) => self.handle_data(data, &preamble),
                    None => self.spawn(Rc::clone(&self).welcome_data(data)),
                },
                Command::Sight(Sight::Exited(peer)) => self.handle_exit(peer),
                Command::Dial { task, to } => self.handle_dial(task, to),
                Command::DialLater {
                    task,
                    address,
                    pause,
                    patience,
                } => self.put_off(task, address, pause, patience),
                Command::Call { request, asked } => self.calls.begin(request, asked),
                Command::GiveUp(request) => self.calls.give_up(request),
                Command::Served { key, outcome } => self.calls.finish(&key, outcome),
                Command::HangUp { peer, why } => self.handle_hang_up(peer, &why),
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
                let is_followed = self.departed.borrow_mut().exit(peer);
                if is_followed {
                    let now = Instant::now();
                    self.handler.peer_gone(peer, PeerGone::ProcessExited, now);
                }
            }
        }
    }

    pub(super) fn handle_dial(self: &Rc<Self>, task: String, mut to: Dialled) {
        let before = self.dials.borrow_mut().remove(&task);
        // One that is under way may count and not stand yet: its peer's last word is still to come.
        if before.is_none() && self.stands(&task) {
            return;
        }
        to.until = before
            .as_ref()
            .map_or(to.until, |before| before.until.max(to.until));
        let span = tracing::debug_span!("dial", task, address = %to.address);
        let route = Route::new(&to);
        self.dials.borrow_mut().insert(task.clone(), to);
        // One that is under way takes the new address at its next attempt.
        if before.is_none() {
            self.spawn(Rc::clone(self).dial(task, route).instrument(span));
        }
    }

    /// True if `task` is connected, and nothing has begun to end that connection.
    pub(super) fn stands(&self, task: &str) -> bool {
        let peer = self.registry.borrow().peer(task);
        let conversation = peer.and_then(|peer| self.peers.borrow().get(&peer).cloned());
        // One without a conversation is just beginning.
        peer.is_some() && conversation.is_none_or(|conversation| !conversation.is_ending())
    }

    fn handle_hang_up(&self, peer: PeerId, why: &str) {
        let conversation = self.peers.borrow().get(&peer).cloned();
        if let Some(conversation) = conversation {
            conversation.hang_up(why);
        }
    }

    fn handle_announce(&self, segment: SegmentOffer) {
        self.announced.set(self.announced.get() + 1);
        let segment = Rc::new(segment);
        for conversation in self.conversations() {
            conversation.announce(Rc::clone(&segment));
        }
    }

    /// Says goodbye to all, as long as `deadline` lets, until they know, and waits until every task has ended.
    async fn end(self: Rc<Self>, reason: &str, deadline: Instant) {
        *self.leaving.borrow_mut() = Some(reason.to_owned());
        for conversation in self.conversations() {
            conversation.say_bye(reason);
        }
        // Whom we are greeting may count us already, and must hear the reason too.
        let all_met = async {
            let converses = |peer| self.peers.borrow().contains_key(&peer);
            while self.registry.borrow().is_meeting(converses) {
                self.runtime.sleep(MEETING_PAUSE).await;
            }
        };
        let all_know = async {
            self.runtime.within(MEETING_MAX, all_met).await;
            for conversation in self.conversations() {
                conversation.parted().await;
            }
        };
        let time = deadline.saturating_duration_since(Instant::now());
        self.runtime.within(time, all_know).await;
        for conversation in self.conversations() {
            conversation.shut_down();
        }
        self.closing.set();
        if self.tasks.get() > 0 {
            self.idle.wait().await;
        }
        self.peers.borrow_mut().clear();
    }

    /// Refuses what would only be ended at once.
    pub(super) fn stays(&self) -> Result<(), Refusal> {
        match &*self.leaving.borrow() {
            Some(reason) => {
                let message = format!("task {} leaves: {reason}", self.config.task);
                Err(Refusal::later("PEER_BUSY", message))
            }
            None => Ok(()),
        }
    }

    /// A greeting succeeded: the handler knows now.
    pub(super) fn establish(&self, met: Met) -> Established {
        let Met {
            peer,
            agreed,
            gained,
            is_dialler,
            socket,
            lane,
            seals,
            reader,
            writer,
            credentials,
            announced,
        } = met;
        let Agreed {
            peer: hello,
            read_domain,
            path,
            why: path_why,
            fell_back,
        } = agreed;
        let Gained {
            descriptors,
            passing,
            claim,
        } = gained;
        let opening = ConversationOpening {
            peer,
            hello: hello.clone(),
            read_domain,
            path,
            socket,
            lane,
            seals,
            calls: Rc::clone(&self.calls),
            offered: passing.offered,
            known: passing.known,
        };
        let conversation = Rc::new(Conversation::new(opening));
        self.peers
            .borrow_mut()
            .insert(peer, Rc::clone(&conversation));
        self.put_off.borrow_mut().remove(&hello.task);
        let exit_provable = credentials.is_some_and(|credentials| self.follow(peer, credentials));
        if exit_provable {
            self.forget_former(&hello);
        }
        let protection = descriptors.protection();
        self.handler.peer_up(PeerUp {
            peer,
            task: hello.task.clone(),
            incarnation: hello.incarnation,
            hello,
            path,
            path_why,
            protection,
            fell_back,
            descriptors,
            dialler: is_dialler,
            read_domain,
            exit_provable,
        });
        if self.announced.get() != announced {
            self.offer_again(&conversation);
        }
        if let Some(reason) = &*self.leaving.borrow() {
            conversation.say_bye(reason);
        }
        self.calls.up(&conversation);
        Established {
            conversation,
            claim,
            reader,
            writer,
            exit_provable,
        }
    }

    /// Converses until the end, and tells it.
    pub(super) async fn converse(self: Rc<Self>, established: Established) {
        let Established {
            conversation,
            claim,
            reader,
            writer,
            exit_provable,
        } = established;
        let peer = conversation.peer;
        let mut gone = conversation
            .run(reader, writer, &self.runtime, &self.config, &*self.handler)
            .await;
        if exit_provable && matches!(gone, PeerGone::ConnectionLost(_)) {
            // A dying process closes its sockets a moment before its exit is told: the better news may be on its way.
            let proof = self
                .runtime
                .within(self.config.proof_grace, conversation.exited.wait())
                .await;
            gone = proof.map_or(gone, |()| PeerGone::ProcessExited);
        }
        self.peers.borrow_mut().remove(&peer);
        self.calls.down(peer);
        // The proof may have come while its goodbye was still to be read: it comes only once, so it is passed on here.
        let is_late_proof = conversation.exited.is_set() && !gone.is_proof();
        if exit_provable && !gone.is_proof() && !is_late_proof {
            self.keep_following(peer, &conversation.hello);
        }
        if !conversation.has_said_bye() {
            let proved = conversation.proved();
            self.handler.peer_gone(peer, gone, proved);
            if is_late_proof {
                self.handler
                    .peer_gone(peer, PeerGone::ProcessExited, proved);
            }
        }
        drop(claim);
    }

    pub(super) fn claim(self: &Rc<Self>, task: &str, kind: ClaimKind) -> Claim {
        Claim {
            plane: Rc::clone(self),
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
                self.watch.follow(peer, process, pidfd);
                true
            }
            _ => false,
        }
    }

    /// Keeps a peer followed whose connection is over; beyond the bound the longest gone is given up.
    fn keep_following(&self, peer: PeerId, hello: &PeerHello) {
        let given_up = {
            let mut departed = self.departed.borrow_mut();
            departed.leave(peer, &hello.task, hello.incarnation)
        };
        if let Some(given_up) = given_up {
            self.watch.forget(given_up);
            self.handler.peer_forgotten(given_up);
        }
    }

    /// A life that is up again is followed by its new connection: those before tell no more.
    fn forget_former(&self, hello: &PeerHello) {
        let mut departed = self.departed.borrow_mut();
        for former in departed.rejoin(&hello.task, hello.incarnation) {
            self.watch.forget(former);
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
                tracing::warn!(task = %conversation.hello.task, %status, "cannot offer a segment: the connection ends");
                conversation.shut_down();
            }
        }
    }

    /// A number for the next connection.
    pub(super) fn number(&self) -> PeerId {
        PeerId(self.next_peer.replace(self.next_peer.get().wrapping_add(1)))
    }

    /// Milliseconds of this control plane's life.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn conversations(&self) -> Vec<Rc<Conversation>> {
        self.peers.borrow().values().cloned().collect()
    }

    /// A time between half of `pause` and all of it, so that tasks started together do not stay in step.
    pub(super) fn jitter(&self, pause: Duration) -> Duration {
        let nanos = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(nanos / 2 + self.rng.borrow_mut().below(nanos / 2 + 1))
    }

    pub(super) fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        self.tasks.set(self.tasks.get() + 1);
        let running = Running(Rc::clone(self));
        self.runtime.spawn(async move {
            or(running.0.closing.wait(), task).await;
            drop(running);
        });
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut registry = self.plane.registry.borrow_mut();
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

/// True if `process` is this very process, which cannot be told of its own exit.
fn is_self(process: Option<i32>) -> bool {
    process.and_then(|process| u32::try_from(process).ok()) == Some(std::process::id())
}
