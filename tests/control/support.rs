//! A handler that offers small memory files and notes what it is told.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rendez::control::{
    Control, ControlConfig, DoorbellOffer, Handler, LinkOffer, LocalOffer, PeerGone, PeerHello,
    PeerId, PeerUp, RuntimeKind, SegmentOffer, Services,
};
use rendez::ground::{Incarnation, Status};
use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;

/// Long enough for any machine: only a failing test waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const BOTH: [RuntimeKind; 2] = [RuntimeKind::Glommio, RuntimeKind::Poll];

#[derive(Debug)]
pub(crate) enum Event {
    Up(Box<PeerUp>),
    Segment(PeerId, SegmentOffer),
    Gone(PeerId, PeerGone),
    DialFailed(String, Status),
}

/// What the next answers of a [`Notes`] handler are.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Segments in the greeting.
    pub(crate) segments: u16,
    pub(crate) refuse_all: Option<Status>,
    pub(crate) refuse_link: Option<Status>,
    pub(crate) refuse_local: Option<Status>,
    pub(crate) refuse_tcp: Option<Status>,
    /// Data connections over TCP.
    pub(crate) channels: u32,
    pub(crate) services: Services,
}

#[derive(Debug)]
pub(crate) struct Notes {
    events: Mutex<Sender<Event>>,
    /// The last proof of life of each connection that was over, in turn.
    pub(crate) proofs: Mutex<Vec<Instant>>,
    pub(crate) answers: Mutex<Answers>,
    task: String,
}

/// A control plane and what its handler was told.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) control: Control,
    pub(crate) events: Receiver<Event>,
    pub(crate) handler: Arc<Notes>,
}

pub(crate) fn config(task: &str, incarnation: u64, kind: RuntimeKind) -> ControlConfig {
    let mut config = ControlConfig::new(task, Incarnation(incarnation), 2);
    config.force_runtime = Some(kind);
    config
}

pub(crate) fn start(config: ControlConfig) -> Task {
    start_with(config, Answers::default())
}

pub(crate) fn start_with(config: ControlConfig, answers: Answers) -> Task {
    let (events, received) = channel();
    let task = config.task.clone();
    let handler = Arc::new(Notes {
        events: Mutex::new(events),
        proofs: Mutex::default(),
        answers: Mutex::new(answers),
        task,
    });
    let control =
        Control::start(config, Arc::clone(&handler) as Arc<dyn Handler>).expect("control starts");
    Task {
        control,
        events: received,
        handler,
    }
}

impl Task {
    pub(crate) fn next(&self) -> Event {
        self.events
            .recv_timeout(PATIENCE)
            .expect("an event in time")
    }

    pub(crate) fn up(&self) -> Box<PeerUp> {
        match self.next() {
            Event::Up(up) => up,
            other => panic!("expected a peer up, got {other:?}"),
        }
    }

    pub(crate) fn gone(&self) -> (PeerId, PeerGone) {
        match self.next() {
            Event::Gone(peer, gone) => (peer, gone),
            other => panic!("expected a peer gone, got {other:?}"),
        }
    }

    pub(crate) fn segment(&self) -> (PeerId, SegmentOffer) {
        match self.next() {
            Event::Segment(peer, segment) => (peer, segment),
            other => panic!("expected a segment, got {other:?}"),
        }
    }

    pub(crate) fn dial_failed(&self) -> Status {
        match self.next() {
            Event::DialFailed(task, status) => {
                assert!(!task.is_empty());
                status
            }
            other => panic!("expected a failed dial, got {other:?}"),
        }
    }

    pub(crate) fn dial(&self, other: &Self, name: &str) {
        self.control
            .dial(name, other.control.address().clone(), PATIENCE)
            .expect("the dial is taken");
    }

    pub(crate) fn stop(&self) {
        self.control.stop("test over", PATIENCE);
    }
}

impl Notes {
    fn tell(&self, event: Event) {
        // The test may be over already.
        let _ = self.events.lock().expect("no panic").send(event);
    }
}

impl Handler for Notes {
    fn judge(&self, _peer: &PeerHello) -> Result<(), Status> {
        let answers = self.answers.lock().expect("no panic");
        answers.refuse_all.clone().map_or(Ok(()), Err)
    }

    fn local(&self, _peer: &PeerHello) -> Result<LocalOffer, Status> {
        let answers = self.answers.lock().expect("no panic");
        if let Some(status) = &answers.refuse_local {
            return Err(status.clone());
        }
        let segments = (0..answers.segments)
            .map(|segment| offer(&self.task, 0, segment))
            .collect();
        let doorbells = (0..2)
            .map(|shard| DoorbellOffer {
                shard,
                fd: eventfd(),
            })
            .collect();
        Ok(LocalOffer {
            segments,
            doorbells,
        })
    }

    fn make_link(&self, peer: &PeerHello) -> Result<LinkOffer, Status> {
        let text = format!("link {} {}", self.task, peer.task);
        Ok(LinkOffer {
            len: text.len() as u64,
            numbers: vec![1, 2, u64::MAX],
            fd: memory(&text),
        })
    }

    fn accept_link(&self, peer: &PeerHello, link: &LinkOffer) -> Result<(), Status> {
        assert_eq!(
            contents(&link.fd),
            format!("link {} {}", peer.task, self.task)
        );
        assert_eq!(link.numbers, [1, 2, u64::MAX]);
        match &self.answers.lock().expect("no panic").refuse_link {
            Some(status) => Err(status.clone()),
            None => Ok(()),
        }
    }

    fn data_channels(&self, _peer: &PeerHello) -> Result<u32, Status> {
        let answers = self.answers.lock().expect("no panic");
        answers.refuse_tcp.clone().map_or(Ok(answers.channels), Err)
    }

    fn services(&self) -> Services {
        let answers = self.answers.lock().expect("no panic");
        answers.services.clone()
    }

    fn peer_up(&self, up: PeerUp) {
        self.tell(Event::Up(Box::new(up)));
    }

    fn segment_added(&self, peer: PeerId, segment: SegmentOffer) {
        self.tell(Event::Segment(peer, segment));
    }

    fn segment_missed(&self, peer: PeerId, arena: u16, segment: u16) {
        panic!("no descriptor was left for segment {segment} of arena {arena} of {peer:?}");
    }

    fn peer_gone(&self, peer: PeerId, gone: PeerGone, proved: Instant) {
        self.proofs.lock().expect("no panic").push(proved);
        self.tell(Event::Gone(peer, gone));
    }

    fn dial_failed(&self, task: &str, status: Status, _last: Status) {
        self.tell(Event::DialFailed(task.to_owned(), status));
    }
}

/// A segment whose bytes say whose it is and which.
pub(crate) fn offer(task: &str, arena: u16, segment: u16) -> SegmentOffer {
    let text = segment_text(task, arena, segment);
    SegmentOffer {
        arena,
        segment,
        len: text.len() as u64,
        fd: memory(&text).into(),
        kind: rendez::ground::MemoryKind::Host,
        uuid: [0; 16],
    }
}

pub(crate) fn segment_text(task: &str, arena: u16, segment: u16) -> String {
    format!("{task} {arena} {segment}")
}

pub(crate) fn memory(text: &str) -> OwnedFd {
    let file =
        File::from(rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).expect("a memory file"));
    file.write_all_at(text.as_bytes(), 0).expect("written");
    file.into()
}

pub(crate) fn contents(fd: &OwnedFd) -> String {
    let file = File::from(fd.try_clone().expect("a clone"));
    let mut bytes =
        vec![0; usize::try_from(file.metadata().expect("a length").len()).expect("short")];
    file.read_exact_at(&mut bytes, 0).expect("read");
    String::from_utf8(bytes).expect("text")
}

pub(crate) fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")
}
