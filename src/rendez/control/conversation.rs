//! The conversation: one connected peer from its greeting to its end, on any two halves of a stream.
//!
//! Knows messages, the lane and the handler; not why a connection came to be, nor what follows its end.
//!
//! Three loops in one task: one reads and answers, one writes what is queued, one asks whether the peer still runs.
//! Segments to announce wait in their own queue until the window of unanswered batches has room, so the lane never
//! fills.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_lite::future::or;
use futures_lite::io::{AsyncRead, AsyncWrite};
use rustix::event::PollFlags;

use crate::ground::limits::{CONTROL_QUEUE_MAX, CONTROL_REQUESTS_MAX, DESCRIPTOR_WINDOW};
use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, Envelope};

use super::calls::Calls;
use super::config::ControlConfig;
use super::credentials::is_ready;
use super::descriptors::{accept_segment, describe_segment, lane_refusal};
use super::exchange::Seals;
use super::frame::{self, FrameError};
use super::lane::Lane;
use super::outbox::Outbox;
use super::peer::{Handler, PeerGone, PeerHello, PeerId, SegmentOffer};
use super::refusal::{Refusal, clip, frame_refusal, protocol_refusal, status_from_wire};
use super::runtime::Runtime;
use super::secret::Seal;
use super::signal::Signal;
use super::transport::Path;

/// How much more rarely a peer on this machine is asked whether it runs: among many tasks of one machine the questions
/// would be most of what they do.
const PING_EVERY_NEAR: u32 = 4;
/// Of many peers on this machine one is asked in so long at most: a question and its answer take two tasks from their
/// cores, and all of them ask.
const PING_EACH_NEAR: Duration = Duration::from_millis(8);
/// However many there are.
const PING_NEAR_MAX: Duration = Duration::from_secs(1);
/// So that what is due is due when it is looked at.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// One connected peer.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) peer: PeerId,
    pub(crate) hello: PeerHello,
    pub(crate) read_domain: bool,
    /// Set once the peer's process is proved gone.
    pub(crate) exited: Signal,
    /// Set once the end has begun, whatever it is.
    ending: Signal,
    has_said_bye: Cell<bool>,
    /// Set, with the reason, once we are told to end it.
    hung_up: Signal,
    hang_up_why: RefCell<String>,
    /// We end it after a pause.
    is_put_off: Cell<bool>,
    began: Instant,
    path: Path,
    socket: OwnedFd,
    /// None over TCP.
    lane: RefCell<Option<Lane>>,
    /// Taken by the loops that read and write.
    seals: RefCell<Seals>,
    /// Our segments the peer has or will have.
    offered: RefCell<BTreeSet<(u16, u16)>>,
    /// The peer's segments we have.
    known: RefCell<BTreeSet<(u16, u16)>>,
    outbox: Outbox,
    /// Segments that wait for room in the window.
    waiting: RefCell<VecDeque<Rc<SegmentOffer>>>,
    requests: RefCell<BTreeMap<u64, Asked>>,
    /// Calls of ours on this connection: the number of the envelope, and of the request.
    called: RefCell<BTreeMap<u64, u64>>,
    calls: Rc<Calls>,
    next_id: Cell<u64>,
    heard: Cell<Instant>,
    /// When the last question went out that was answered: then, at the latest, the peer heard us and lived.
    proved: Cell<Instant>,
    is_paused: Cell<bool>,
}

/// What an open request of ours was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Segment,
    /// And when.
    Ping(Instant),
}

/// What a greeting leaves to its conversation.
#[derive(Debug)]
pub(crate) struct ConversationOpening {
    pub(crate) peer: PeerId,
    pub(crate) hello: PeerHello,
    pub(crate) read_domain: bool,
    pub(crate) path: Path,
    pub(crate) socket: OwnedFd,
    pub(crate) lane: Option<Lane>,
    pub(crate) seals: Seals,
    pub(crate) calls: Rc<Calls>,
    pub(crate) offered: BTreeSet<(u16, u16)>,
    pub(crate) known: BTreeSet<(u16, u16)>,
}

impl Conversation {
    /// A conversation that begins.
    pub(crate) fn new(opening: ConversationOpening) -> Self {
        let ConversationOpening {
            peer,
            hello,
            read_domain,
            path,
            socket,
            lane,
            seals,
            calls,
            offered,
            known,
        } = opening;
        Self {
            peer,
            hello,
            read_domain,
            exited: Signal::default(),
            ending: Signal::default(),
            has_said_bye: Cell::new(false),
            hung_up: Signal::default(),
            hang_up_why: RefCell::default(),
            is_put_off: Cell::new(false),
            began: Instant::now(),
            path,
            socket,
            lane: RefCell::new(lane),
            seals: RefCell::new(seals),
            offered: RefCell::new(offered),
            known: RefCell::new(known),
            outbox: Outbox::default(),
            waiting: RefCell::default(),
            requests: RefCell::default(),
            called: RefCell::default(),
            calls,
            next_id: Cell::new(1),
            heard: Cell::new(Instant::now()),
            proved: Cell::new(Instant::now()),
            is_paused: Cell::new(false),
        }
    }

    /// Converses until the end, which it gives back. The socket is shut down then, so that the peer knows too.
    pub(crate) async fn run<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &self,
        mut reader: R,
        mut writer: W,
        runtime: &Runtime,
        config: &ControlConfig,
        handler: &dyn Handler,
    ) -> PeerGone {
        let exit = async {
            self.exited.wait().await;
            PeerGone::ProcessExited
        };
        let hang_up = async {
            self.hung_up.wait().await;
            if self.is_put_off.get() {
                runtime.sleep(self.put_off_time(config)).await;
            }
            let why = self.hang_up_why.borrow().clone();
            PeerGone::ConnectionLost(Refusal::later("PEER_LOST", why).status)
        };
        let Seals { incoming, outgoing } = self.seals.take();
        let reading = self.read(&mut reader, incoming, handler);
        let writing = self.write(&mut writer, outgoing);
        let asking = self.ask(runtime, config, handler);
        let gone = or(or(reading, or(exit, hang_up)), or(writing, asking)).await;
        self.ending.set();
        self.waiting.borrow_mut().clear();
        self.shut_down();
        gone
    }

    /// Sends a segment of ours to the peer, unless it has it or may not have it.
    pub(crate) fn announce(&self, segment: Rc<SegmentOffer>) {
        let is_new = self.read_domain
            && self
                .offered
                .borrow_mut()
                .insert((segment.arena, segment.segment));
        if is_new && !self.ending.is_set() {
            self.waiting.borrow_mut().push_back(segment);
            self.send_segments();
        }
    }

    /// Asks a service of the peer's.
    pub(crate) fn call(&self, request: u64, call: proto::Call) {
        let id = self.request(Body::Call(call));
        self.called.borrow_mut().insert(id, request);
    }

    /// Answers a request of the peer's that was not answered at once.
    pub(crate) fn reply(&self, id: u64, body: Body) {
        if self.is_open() {
            self.outbox.put(Envelope {
                id,
                reply: true,
                body: Some(body),
            });
        }
    }

    /// Says something that is not answered.
    pub(crate) fn tell(&self, body: Body) {
        if self.is_open() {
            let _ = self.request(body);
        }
    }

    /// True while more may be said.
    pub(crate) fn is_open(&self) -> bool {
        !self.ending.is_set() && !self.has_said_bye.get()
    }

    /// Says goodbye; nothing is said after it.
    pub(crate) fn say_bye(&self, reason: &str) {
        self.has_said_bye.set(true);
        self.waiting.borrow_mut().clear();
        self.request(Body::Bye(proto::Bye {
            reason: clip(reason),
        }));
    }

    /// Waits, after our goodbye, until it is written; over a network until the peer has heard it, which it shows by
    /// hanging up: its data connections are others, and their end must not come before the reason.
    pub(crate) async fn parted(&self) {
        let heard = async {
            self.outbox.drained().await;
            if self.path.is_far() {
                pending::<()>().await;
            }
        };
        or(heard, self.ending.wait()).await;
    }

    /// Ends the connection, as if it were lost for this reason; if it is put off, after a pause.
    pub(crate) fn hang_up(&self, why: &str, is_put_off: bool) {
        *self.hang_up_why.borrow_mut() = clip(why);
        self.is_put_off.set(is_put_off);
        self.hung_up.set();
    }

    /// How long a hang-up is put off: over the network until the connection is as old as the longest pause between two
    /// attempts. On this machine always as long: the links of a peer that leaves may end before its goodbye is read.
    fn put_off_time(&self, config: &ControlConfig) -> Duration {
        match self.path.is_far() {
            true => config.backoff_max.saturating_sub(self.began.elapsed()),
            false => config.backoff_max,
        }
    }

    /// Ends the connection for both sides at once.
    pub(crate) fn shut_down(&self) {
        // Fails only if it is over already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// True if the end has begun or the other end of the socket is gone, though we may not have got there yet.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.is_set()
            || self.hung_up.is_set()
            || self.exited.is_set()
            || is_ready(self.socket.as_fd(), PollFlags::HUP | PollFlags::RDHUP)
    }

    /// True if the peer may be gone without a word: nothing proves it over TCP, but it was not heard for long.
    pub(crate) fn is_doubtful(&self, config: &ControlConfig) -> bool {
        self.path.is_far() && self.heard.get().elapsed() >= config.paused_after
    }

    /// When the peer was last proved to live and to hear us.
    pub(crate) fn proved(&self) -> Instant {
        self.proved.get()
    }

    /// True if this side leaves.
    pub(crate) fn has_said_bye(&self) -> bool {
        self.has_said_bye.get()
    }

    /// Reads and answers until the end.
    async fn read<R: AsyncRead + Unpin>(
        &self,
        reader: &mut R,
        mut seal: Option<Seal>,
        handler: &dyn Handler,
    ) -> PeerGone {
        loop {
            let envelope = match frame::read(reader, seal.as_mut()).await {
                Ok(envelope) => envelope,
                Err(error) => {
                    return PeerGone::ConnectionLost(
                        frame_refusal(&self.hello.task, &error).status,
                    );
                }
            };
            self.heard.set(Instant::now());
            if self.is_paused.replace(false) {
                handler.peer_paused(self.peer, false);
            }
            let Envelope { id, reply, body } = envelope;
            let outcome = match body {
                Some(Body::Bye(bye)) if !reply => {
                    return PeerGone::Said {
                        reason: clip(&bye.reason),
                    };
                }
                Some(Body::CallReply(answer)) if reply => self.take_answer(id, answer),
                Some(body) if reply => self.take_reply(id, &body),
                Some(body) => self.take_request(id, body, handler),
                None => Err(protocol_refusal(
                    &self.hello.task,
                    "a message of no kind we know",
                )),
            };
            if let Err(refusal) = outcome {
                return PeerGone::ConnectionLost(refusal.status);
            }
        }
    }

    fn take_request(&self, id: u64, body: Body, handler: &dyn Handler) -> Result<(), Refusal> {
        let answer = match body {
            Body::Ping(_) => Body::Pong(proto::Pong {}),
            Body::PendingRequest(_) => Body::PendingReply(proto::PendingReply::default()),
            Body::Call(call) => match self.calls.serve(self, id, call)? {
                Some(answer) => answer,
                // It will be answered when it is carried out.
                None => return Ok(()),
            },
            Body::CallCancel(cancel) => {
                self.calls.cancel(self, cancel.request);
                return Ok(());
            }
            Body::CallDone(done) => {
                self.calls.acknowledge(self, &done.requests);
                return Ok(());
            }
            Body::SegmentAdded(added) => {
                let segment = self.take_segment(&added)?;
                handler.segment_added(self.peer, segment);
                Body::Ack(proto::Ack {})
            }
            _ => {
                return Err(protocol_refusal(
                    &self.hello.task,
                    "a request that has no place after the greeting",
                ));
            }
        };
        if self.outbox.unwritten() >= CONTROL_QUEUE_MAX {
            return Err(protocol_refusal(
                &self.hello.task,
                "requests without reading the answers",
            ));
        }
        self.outbox.put(Envelope {
            id,
            reply: true,
            body: Some(answer),
        });
        Ok(())
    }

    fn take_segment(&self, added: &proto::SegmentAdded) -> Result<SegmentOffer, Refusal> {
        let task = &self.hello.task;
        let mut lane = self.lane.borrow_mut();
        let lane = lane
            .as_mut()
            .ok_or_else(|| protocol_refusal(task, "a segment over TCP"))?;
        let mut taken = lane
            .receive(added.batch, 1)
            .map_err(|error| lane_refusal(task, &error))?;
        let (Some(fd), Some(arena)) = (taken.pop(), &added.arena) else {
            return Err(protocol_refusal(task, "a segment without a description"));
        };
        if !self.read_domain {
            return Err(protocol_refusal(
                task,
                "a segment from outside our read domain",
            ));
        }
        accept_segment(arena, fd, &self.hello, &mut self.known.borrow_mut())
    }

    fn take_answer(&self, id: u64, answer: proto::CallReply) -> Result<(), Refusal> {
        let request = self.called.borrow_mut().remove(&id);
        let request = request.ok_or_else(|| {
            protocol_refusal(&self.hello.task, "an answer to no call that was made")
        })?;
        self.calls.answered(self, request, answer);
        Ok(())
    }

    fn take_reply(&self, id: u64, body: &Body) -> Result<(), Refusal> {
        let asked = self.requests.borrow_mut().remove(&id);
        match (asked, body) {
            (Some(Asked::Ping(at)), Body::Pong(_)) => {
                self.proved.set(at);
                Ok(())
            }
            (Some(Asked::Segment), Body::Ack(_)) => {
                self.send_segments();
                Ok(())
            }
            (Some(_), Body::Error(error)) => {
                Err(
                    status_from_wire(&self.hello.task, error.code, &error.reason, &error.message)
                        .into(),
                )
            }
            _ => Err(protocol_refusal(
                &self.hello.task,
                "an answer to nothing that was asked",
            )),
        }
    }

    /// Sends as many waiting segments as the window lets.
    fn send_segments(&self) {
        loop {
            let under_way = self
                .requests
                .borrow()
                .values()
                .filter(|asked| **asked == Asked::Segment)
                .count();
            if under_way >= DESCRIPTOR_WINDOW {
                return;
            }
            let Some(segment) = self.waiting.borrow_mut().pop_front() else {
                return;
            };
            let sent = match self.lane.borrow_mut().as_mut() {
                Some(lane) => lane.send(&[segment.fd.as_fd()]),
                // Over TCP there is no read domain, so none waits.
                None => return,
            };
            match sent {
                Ok(batch) => {
                    let arena = Some(describe_segment(&segment));
                    let id = self.request(Body::SegmentAdded(proto::SegmentAdded { batch, arena }));
                    self.requests.borrow_mut().insert(id, Asked::Segment);
                }
                Err(error) => {
                    // The peer would wait for ever for memory it never gets: better no connection than half of one.
                    tracing::warn!(task = %self.hello.task, %error, "a segment is lost: the connection ends");
                    self.shut_down();
                    return;
                }
            }
        }
    }

    /// Queues a request and gives its number.
    fn request(&self, body: Body) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        self.outbox.put(Envelope {
            id,
            reply: false,
            body: Some(body),
        });
        id
    }

    /// Writes what is queued until the stream fails.
    async fn write<W: AsyncWrite + Unpin>(
        &self,
        writer: &mut W,
        mut seal: Option<Seal>,
    ) -> PeerGone {
        loop {
            let envelope = self.outbox.take().await;
            match frame::write(writer, &envelope, seal.as_mut()).await {
                Ok(()) => self.outbox.written(),
                // The peer's last words may still lie unread: the reader finds them, and after them the end.
                Err(FrameError::System(error)) if is_hang_up(&error) => {
                    self.outbox.written();
                    return pending().await;
                }
                Err(error) => {
                    return PeerGone::ConnectionLost(
                        frame_refusal(&self.hello.task, &error).status,
                    );
                }
            }
        }
    }

    /// Asks every so often whether the peer runs, and says so when it stops or starts to answer. Silence proves
    /// nothing, so where a process handle will tell of the end it ends no connection; over TCP nothing else tells of a
    /// machine that is gone, and silence ends it after its time.
    ///
    /// Over TCP only an answer counts, and for the moment of its question: what a peer says by itself does not prove
    /// that it hears. So a way that is broken in one direction is broken for both sides, from one moment on. Where a
    /// process handle tells of the end, only a pause is left to be seen: a peer heard just now is not asked, and all
    /// may take longer.
    async fn ask(
        &self,
        runtime: &Runtime,
        config: &ControlConfig,
        handler: &dyn Handler,
    ) -> PeerGone {
        let is_far = self.path.is_far();
        // Silence from before this moment may be ours.
        let mut spared = Instant::now();
        loop {
            let every = match is_far {
                true => config.ping_every,
                false => {
                    let crowd = u32::try_from(self.calls.connected()).unwrap_or(u32::MAX);
                    let in_turn = PING_EACH_NEAR.saturating_mul(crowd).min(PING_NEAR_MAX);
                    in_turn.max(PING_EVERY_NEAR * config.ping_every)
                }
            };
            let began = Instant::now();
            let time = match is_far {
                true if began < spared => every / 4,
                true => {
                    let left = config.lost_after;
                    let left = left.saturating_sub(self.proved.get().elapsed());
                    every.min(left).max(SHORTEST_SLEEP)
                }
                false => every,
            };
            runtime.sleep(time).await;
            if began.elapsed() >= time + every {
                // This process did not run: what came meanwhile is read first. It answers what was asked before, so the
                // peer has the time of another question to prove itself.
                runtime.sleep(every / 4).await;
                spared = Instant::now() + every + every / 2;
            }
            let is_asked = self
                .requests
                .borrow()
                .values()
                .any(|asked| matches!(asked, Asked::Ping(_)));
            let is_silent = is_far || self.heard.get().elapsed() >= every / 2;
            if !is_asked && is_silent && self.requests.borrow().len() < CONTROL_REQUESTS_MAX {
                let at = Instant::now();
                let id = self.request(Body::Ping(proto::Ping {}));
                self.requests.borrow_mut().insert(id, Asked::Ping(at));
            }
            if is_asked
                && self.heard.get().elapsed() >= config.paused_after
                && !self.is_paused.replace(true)
            {
                handler.peer_paused(self.peer, true);
            }
            let is_lost = self.proved.get().elapsed() >= config.lost_after;
            if is_far && is_lost && Instant::now() >= spared {
                let why = format!(
                    "nothing was answered by {} for {:?}",
                    self.hello.task, config.lost_after
                );
                return PeerGone::ConnectionLost(Refusal::later("PEER_LOST", why).status);
            }
        }
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}
