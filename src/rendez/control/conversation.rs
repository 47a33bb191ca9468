//! The conversation: one connected peer from its greeting to its end, on any two halves of a stream.
//!
//! Knows messages, the lane and the handler; not why a connection came to be, nor what follows its end.
//!
//! Three loops in one task: one reads and answers, one writes what is queued, one asks whether the peer still runs.
//! Segments to announce wait in their own queue until the window of unanswered batches has room, so the lane never
//! fills.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;

use futures_lite::future::{or, poll_fn};
use futures_lite::io::{AsyncRead, AsyncWrite, BufReader};

use crate::ground::limits::{CALL_WINDOW, CONTROL_QUEUE_MAX, DESCRIPTOR_WINDOW};
use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, Envelope};

use super::calls::Calls;
use super::config::ControlConfig;
use super::descriptors::{accept_segment, describe_segment, lane_refusal, number_segment};
use super::exchange::Seals;
use super::frame;
use super::lane::{Lane, LaneError};
use super::outbox::Outbox;
use super::peer::{Handler, PeerGone, PeerHello, PeerId, SegmentOffer};
use super::refusal::{Refusal, clip, frame_refusal, protocol_refusal, status_from_wire};
use super::rivals::Rivals;
use super::runtime::Runtime;
use super::secret::Seal;
use super::signal::Signal;
use super::transport::Path;

mod asking;
mod ending;
mod saying;

/// Messages that are read without a wait before others have their turn: a socket that is never empty would keep them
/// from it for ever.
const READ_AT_ONCE: usize = 16;
/// Bytes that are read at once, if they are there: some short messages.
const READ_BYTES: usize = 2048;

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
    /// Calls of ours on this connection without an answer: the number of the envelope, and of the request.
    called: RefCell<BTreeMap<u64, u64>>,
    calls: Rc<Calls>,
    next_id: Cell<u64>,
    heard: Cell<Instant>,
    /// When the last question went out that was answered: then, at the latest, the peer heard us and lived.
    proved: Cell<Instant>,
    rivals: RefCell<Rivals>,
    /// Calls of ours whose answers have come and are to be acknowledged.
    answered: RefCell<Vec<u64>>,
    /// Lets others run although there may be something to read.
    is_resting: Cell<bool>,
    /// What runs this.
    waker: RefCell<Option<Waker>>,
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

/// What became of a segment that a peer made.
enum Taken {
    Whole(SegmentOffer),
    /// There was no descriptor left for it: its arena, and which it is there.
    Missed(u16, u16),
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
            rivals: RefCell::default(),
            answered: RefCell::default(),
            is_resting: Cell::new(false),
            waker: RefCell::default(),
        }
    }

    /// Converses until the end, which it gives back. The socket is shut down then, so that the peer knows too.
    pub(crate) async fn run<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &self,
        reader: R,
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
            runtime.sleep(self.put_off_time(config)).await;
            let why = self.hang_up_why.borrow().clone();
            PeerGone::ConnectionLost(Refusal::later("PEER_LOST", why).status)
        };
        let Seals { incoming, outgoing } = self.seals.take();
        let mut reader = BufReader::with_capacity(READ_BYTES, reader);
        let reading = self.read(&mut reader, incoming, runtime, handler);
        let writing = self.write(&mut writer, outgoing);
        let asking = self.ask(runtime, config);
        // In this order: what was read is answered before the task rests.
        let mut whole = pin!(or(or(reading, or(exit, hang_up)), or(writing, asking)));
        let gone = poll_fn(|context| {
            let mut waker = self.waker.borrow_mut();
            if !waker
                .as_ref()
                .is_some_and(|waker| waker.will_wake(context.waker()))
            {
                *waker = Some(context.waker().clone());
            }
            drop(waker);
            whole.as_mut().poll(context)
        })
        .await;
        self.waker.take();
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

    /// Calls of ours that the peer has yet to answer, with those that were given up.
    pub(crate) fn unanswered(&self) -> usize {
        self.called.borrow().len()
    }

    /// Each call of ours that the peer has yet to answer, with those that were given up.
    pub(crate) fn each_unanswered(&self, mut each: impl FnMut(u64)) {
        self.called
            .borrow()
            .values()
            .for_each(|&request| each(request));
    }

    /// Gives a call up: it is not sent if it waits, and the peer is told if it may have it, from this connection or one
    /// before.
    pub(crate) fn give_up(&self, request: u64, is_repeated: bool) {
        let is_it = |envelope: &Envelope| matches!(&envelope.body, Some(Body::Call(call)) if call.request == request);
        let withdrawn = self.outbox.withdraw(is_it);
        if let Some(call) = &withdrawn {
            self.called.borrow_mut().remove(&call.id);
        }
        if withdrawn.is_none() || is_repeated {
            self.cancel(request);
        }
    }

    /// Tells the peer that no caller waits for this call.
    pub(crate) fn cancel(&self, request: u64) {
        self.tell(Body::CallCancel(proto::CallCancel { request }));
    }

    /// What is written next, in place of the loop that writes.
    #[cfg(test)]
    pub(crate) fn next_said(&self) -> Option<Envelope> {
        self.outbox.next()
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

    /// Has what came read.
    pub(crate) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// True if it runs: what comes is read.
    pub(crate) fn is_reading(&self) -> bool {
        self.waker.borrow().is_some()
    }

    /// True if there may be something to read, and it is left for later.
    pub(crate) const fn is_resting(&self) -> bool {
        self.is_resting.get()
    }

    /// True while more may be said.
    pub(crate) fn is_open(&self) -> bool {
        !self.ending.is_set() && !self.has_said_bye.get()
    }

    /// True if the peer may be gone without a word: nothing proves it over TCP, but it was not heard for long.
    pub(crate) fn is_doubtful(&self, config: &ControlConfig) -> bool {
        self.path.is_far() && self.heard.get().elapsed() >= config.doubtful_after
    }

    /// When the peer was last proved to live and to hear us.
    pub(crate) fn proved(&self) -> Instant {
        self.proved.get()
    }

    /// Reads and answers until the end.
    async fn read<R: AsyncRead + Unpin>(
        &self,
        reader: &mut R,
        mut seal: Option<Seal>,
        runtime: &Runtime,
        handler: &dyn Handler,
    ) -> PeerGone {
        let mut read = 0usize;
        loop {
            if read >= READ_AT_ONCE {
                read = 0;
                self.is_resting.set(true);
                runtime.rest().await;
                self.is_resting.set(false);
            }
            let mut next = pin!(frame::read(reader, seal.as_mut()));
            read += 1;
            let envelope = poll_fn(|context| {
                let polled = next.as_mut().poll(context);
                if polled.is_pending() {
                    // Others run meanwhile.
                    read = 0;
                }
                polled
            });
            let envelope = match envelope.await {
                Ok(envelope) => envelope,
                Err(error) => {
                    return PeerGone::ConnectionLost(
                        frame_refusal(&self.hello.task, &error).status,
                    );
                }
            };
            self.heard.set(Instant::now());
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
        let is_answered = !matches!(body, Body::CallCancel(_) | Body::CallDone(_));
        if is_answered && self.outbox.unwritten_replies() >= CONTROL_QUEUE_MAX {
            return Err(protocol_refusal(
                &self.hello.task,
                "requests without reading the answers",
            ));
        }
        let answer = match body {
            Body::Ping(_) => Body::Pong(proto::Pong {}),
            Body::Call(call) => match self.calls.serve(self, id, call)? {
                Some(answer) => answer,
                // It will be answered when it is carried out.
                None => return Ok(()),
            },
            Body::CallCancel(cancel) => {
                self.calls.cancel(self, cancel.request);
                return Ok(());
            }
            Body::CallDone(done) if done.requests.len() > CALL_WINDOW => {
                let what = "more answers acknowledged than can be under way";
                return Err(protocol_refusal(&self.hello.task, what));
            }
            Body::CallDone(done) => {
                self.calls.acknowledge(self, &done.requests);
                return Ok(());
            }
            Body::SegmentAdded(added) => {
                match self.take_segment(&added)? {
                    Taken::Whole(segment) => handler.segment_added(self.peer, segment),
                    Taken::Missed(arena, segment) => {
                        handler.segment_missed(self.peer, arena, segment);
                    }
                }
                Body::Ack(proto::Ack {})
            }
            _ => {
                return Err(protocol_refusal(
                    &self.hello.task,
                    "a request that has no place after the greeting",
                ));
            }
        };
        self.outbox.put(Envelope {
            id,
            reply: true,
            body: Some(answer),
        });
        Ok(())
    }

    fn take_segment(&self, added: &proto::SegmentAdded) -> Result<Taken, Refusal> {
        let task = &self.hello.task;
        let mut known = self.known.borrow_mut();
        let mut lane = self.lane.borrow_mut();
        let lane = lane
            .as_mut()
            .ok_or_else(|| protocol_refusal(task, "a segment over TCP"))?;
        let taken = lane.receive(added.batch, 1);
        let Some(arena) = &added.arena else {
            return Err(protocol_refusal(task, "a segment without a description"));
        };
        if !self.read_domain {
            return Err(protocol_refusal(
                task,
                "a segment from outside our read domain",
            ));
        }
        let fd = match taken.map(|mut taken| taken.pop()) {
            Ok(Some(fd)) => fd,
            Ok(None) => return Err(protocol_refusal(task, "a segment without a descriptor")),
            // The peer knows nothing of it: it goes on offering what lies there, and is asked for the bytes.
            Err(error @ LaneError::Short) => {
                let (arena, segment) = number_segment(arena, &self.hello, &mut known)?;
                tracing::warn!(task, %error, "a new segment of a peer did not arrive: values in it are copied");
                return Ok(Taken::Missed(arena, segment));
            }
            Err(error) => return Err(lane_refusal(task, &error)),
        };
        accept_segment(arena, fd, &self.hello, &mut known).map(Taken::Whole)
    }

    fn take_answer(&self, id: u64, answer: proto::CallReply) -> Result<(), Refusal> {
        let request = self.called.borrow_mut().remove(&id);
        let request = request.ok_or_else(|| {
            protocol_refusal(&self.hello.task, "an answer to no call that was made")
        })?;
        if self
            .outbox
            .withdraw(|call| !call.reply && call.id == id)
            .is_some()
        {
            let what = "an answer to a call that was not sent yet";
            return Err(protocol_refusal(&self.hello.task, what));
        }
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
                    tracing::warn!(task = %self.hello.task, %error, "cannot send a segment: the connection ends");
                    self.shut_down();
                    return;
                }
            }
        }
    }

    /// Queues a request, behind what is to be acknowledged, and gives its number.
    fn request(&self, body: Body) -> u64 {
        let requests = self.answered.take();
        if !requests.is_empty() {
            self.request(Body::CallDone(proto::CallDone { requests }));
        }
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        self.outbox.put(Envelope {
            id,
            reply: false,
            body: Some(body),
        });
        id
    }
}

impl AsFd for Conversation {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
