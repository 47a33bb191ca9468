//! Solo: shards without threads, for callers that turn them: a loop of their own, or a simulation.
//!
//! It starts nothing and never sleeps. The owner of a [`Solo`] does what an engine and its control plane do for a
//! shard: gives it time and ports, calls [`Solo::turn`] for as long as there is something to do, and tells it of peers.
//!
//! The same checks hold as in an engine: nothing that can be done here lets a shard hand over what it should not.

mod joining;
mod look;
#[cfg(test)]
mod sends;

pub use look::{CreditLook, Holdings};

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crossbeam::queue::SegQueue;

use joining::attach;

use crate::fabric::doorbell::Doorbell;
use crate::fabric::{AnyPort, Endpoint, QpId};
use crate::ground::device::TaskName;
use crate::ground::{Code, Incarnation, Key, Nanos, Status, StepId, catalogue, faults, limits};
use crate::mail::call::{PeerSegment, PeerUp};
use crate::mail::mailbox::{Cancel, Command, give_up};
use crate::mail::neighbour::neighbours;
use crate::mail::pending_send::{PendingSend, Permit, SendCell};
use crate::mail::stops::Stops;
use crate::mail::wait::WaitCell;
use crate::mail::{Handed, Received};
use crate::memory::{ArenaConfig, ArenaId, House, MappedSegment, Pool, Segment, Tensor};
use crate::shard::carriers::carriers;
use crate::shard::ids::TaskId;
use crate::shard::links::Link;
use crate::shard::owed::Owed;
use crate::shard::task::{Task, TaskContext, TaskEvent, TaskWaker};
use crate::shard::{Call, Mailbox, Observer, Parts, Progress, Settings, Shard, TURNS_PER_STAMP};
use crate::trace::Clock;
use crate::trace::recorder::Head;
use crate::trace::stages::{RecorderPlace, Stages};

/// What the shards of one task have in common.
#[derive(Clone, Debug)]
pub struct Team {
    /// The task.
    pub task: TaskName,
    /// Its life.
    pub incarnation: Incarnation,
    /// Settings of each shard; `shards` is how many are made.
    pub settings: Settings,
    /// The clock, often a simulated one.
    pub clock: Clock,
    /// The arena of each shard; its number is the shard's index.
    pub arena: ArenaConfig,
    /// Commands that wait for a shard, and notes in the ring between two.
    pub queues: Queues,
}

/// How long the queues to a shard are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Queues {
    /// Commands that wait in the mailbox.
    pub mailbox: usize,
    /// Notes in the ring from each neighbour; a power of two.
    pub shard_messages: usize,
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            mailbox: limits::MAILBOX,
            shard_messages: limits::SHARD_MESSAGE_RING,
        }
    }
}

/// A shard that its owner turns.
#[derive(Debug)]
pub struct Solo {
    shard: Shard,
    mailbox: Arc<Mailbox>,
    heard: Arc<SegQueue<(u64, Result<Received, Status>)>>,
    queues: Queues,
}

/// A receive that can be given up.
#[derive(Clone, Debug)]
pub struct Waiting {
    cell: Arc<WaitCell<Handed>>,
    stops: Stops,
}

/// A send that waits for room, and can be given up.
#[derive(Clone, Debug)]
pub struct Sending(Arc<SendCell>);

/// What a peer is, and how this shard reaches those of its shards that share a link with it.
#[derive(Debug)]
pub struct Greeting {
    /// The peer.
    pub task: TaskName,
    /// Its life.
    pub incarnation: Incarnation,
    /// How many shards it has.
    pub shards: u16,
    /// Its arenas may be read in place.
    pub read_domain: bool,
    /// Its arenas, mapped: arena, segment, mapping.
    pub segments: Vec<(u16, u16, Arc<MappedSegment>)>,
    /// New connections: the peer's shard, and our end.
    pub links: Vec<(u16, End)>,
}

/// Our end of a connection, for the port that the shard has.
#[derive(Debug)]
pub enum End {
    /// Of a loopback channel.
    Loopback(Endpoint),
    /// Of a connected stream socket.
    Stream(OwnedFd),
    /// A queue pair that the shard's RDMA port has connected.
    Connected(QpId),
}

/// What becomes of a value handed over by [`Solo::hand`].
#[derive(Clone, Debug)]
pub struct SendAnswer(Arc<WaitCell<()>>);

impl SendAnswer {
    /// Whether it was taken, once; `None` while that is not known.
    #[must_use]
    pub fn take(&self) -> Option<Result<(), Status>> {
        self.0.take()
    }
}

impl Waiting {
    fn new() -> Self {
        Self {
            cell: Arc::default(),
            stops: Stops::new(),
        }
    }

    /// The outcome, once; `None` while there is none.
    #[must_use]
    pub fn take(&self) -> Option<Result<Received, Status>> {
        Some(self.cell.take()?.map(|handed| handed.received))
    }

    /// True if the outcome is here, and was not taken.
    #[must_use]
    pub fn is_filled(&self) -> bool {
        self.cell.is_filled()
    }

    /// As the token of a receive that is not polled: it takes no value that is sent from here on, and gets the failure
    /// instead.
    pub fn stop(&self) {
        self.stops.raise();
    }
}

/// Brings what a solo's receives hear to its owner.
struct Ear(Arc<SegQueue<(u64, Result<Received, Status>)>>);

impl Task for Ear {
    fn handle(&mut self, event: TaskEvent, _: &mut TaskContext<'_>) {
        if let TaskEvent::Received { token, outcome } = event {
            self.0.push((token, outcome));
        }
    }
}

/// The in-shard task that every solo has.
const EAR: TaskId = TaskId::from_number(0);

impl Team {
    /// The shards of the task, each with its ports, connected to each other as in an engine.
    ///
    /// # Errors
    /// `ResourceExhausted` when the machine gives no memory or descriptor.
    pub fn muster(
        &self,
        mut ports: impl FnMut(u16) -> Vec<AnyPort>,
        mut observer: impl FnMut(u16) -> Arc<dyn Observer>,
    ) -> Result<Vec<Solo>, Status> {
        let count = self.settings.shards.max(1);
        let house = House::new();
        let mut solos = Vec::new();
        let bells: Result<Vec<_>, _> = (0..count).map(|_| Doorbell::new()).collect();
        let bells = bells.map_err(|error| no_memory(&error))?;
        let wakes: Vec<_> = bells.iter().map(Doorbell::wake).collect();
        let neighbours = neighbours(&wakes, self.queues.shard_messages);
        for (index, (neighbours, doorbell)) in neighbours.into_iter().zip(bells).enumerate() {
            let index = index as u16;
            let mailbox = Arc::new(Mailbox::new(self.queues.mailbox, Arc::new(doorbell)));
            let ports = ports(index);
            let head = Head {
                task: self.task.to_string(),
                incarnation: self.incarnation.0,
                shard: index,
                pid: 0,
                sampling: self.settings.sampling,
                clock_ns: 0,
                scale: self.clock.scale(),
                boot: 0,
            };
            let place = RecorderPlace {
                file: None,
                ring_bytes: self.settings.recorder_bytes,
            };
            let stages = Stages::new(self.clock.clone(), carriers(&ports), place, head)?;
            let shard = Shard::new(Parts {
                index,
                task: self.task.clone(),
                incarnation: self.incarnation,
                settings: self.settings,
                clock: self.clock.clone(),
                pool: Pool::of(house, ArenaId(index), self.arena)?,
                ports,
                mailbox: Arc::clone(&mailbox),
                neighbours,
                observer: observer(index),
                stages,
            });
            let mut shard = shard.expect("address space for its table");
            shard.segments_are_told();
            let heard = Arc::new(SegQueue::new());
            shard.tasks.push(Some(Box::new(Ear(Arc::clone(&heard)))));
            shard.seats.push(None);
            solos.push(Solo {
                shard,
                mailbox,
                heard,
                queues: self.queues,
            });
        }
        Ok(solos)
    }
}

impl Solo {
    /// The engine that its arena belongs to.
    #[must_use]
    pub fn house(&self) -> House {
        self.shard.core.pool.house()
    }

    /// One turn of the shard's loop, at the clock's present time.
    pub fn turn(&mut self) -> Progress {
        self.shard.core.now = self.shard.clock.stamp();
        // A thread's shard looks at the clock and its memory each so many turns; time here may jump with each.
        self.shard.unstamped = TURNS_PER_STAMP;
        self.shard.turn()
    }

    /// One turn as a pinned thread takes it: the clock is read when it is due, and not before.
    pub fn spin(&mut self) -> Progress {
        self.shard.turn()
    }

    /// Runs a task of its owner's inside the shard.
    pub fn spawn(&mut self, task: Box<dyn Task>) -> TaskWaker {
        let waker = TaskWaker::new(Arc::clone(&self.mailbox));
        let seat = Arc::clone(waker.seat());
        self.mailbox.call(Call::Spawn { task, seat });
        waker
    }

    /// Runs `body` inside the shard, as an in-shard task: to prepare keys, send, and receive. What its receives hear
    /// comes by [`Solo::heard`].
    pub fn enter<R>(&mut self, body: impl FnOnce(&mut TaskContext<'_>) -> R) -> R {
        self.shard.core.now = self.shard.clock.stamp();
        body(&mut TaskContext {
            shard: &mut self.shard,
            task: EAR,
        })
    }

    /// The next outcome of a receive made by [`Solo::enter`]: its token, and what came.
    pub fn heard(&mut self) -> Option<(u64, Result<Received, Status>)> {
        self.heard.pop()
    }

    /// The shard, for threads that drive it, and where they leave what they cannot do themselves.
    #[must_use]
    pub fn into_shard(self) -> (Shard, Arc<Mailbox>) {
        (self.shard, self.mailbox)
    }

    /// A receive that can be given up, of a key that this shard owns.
    pub fn recv(&mut self, step: StepId, key: &Key, deadline: Nanos) -> Waiting {
        let waiting = Waiting::new();
        let Waiting { cell, stops } = waiting.clone();
        self.shard.core.now = self.shard.clock.stamp();
        self.shard
            .core
            .recv_outside(key, step, deadline, Owed::new(cell), Some(stops));
        waiting
    }

    /// A value as an application thread gives it: through the mailbox, to be taken in one of the next turns. What
    /// became of it comes by the answer.
    ///
    /// # Errors
    /// `ResourceExhausted` when the mailbox is full.
    pub fn hand(&self, step: StepId, key: &Key, tensor: Tensor) -> Result<SendAnswer, Status> {
        let answer = Arc::new(WaitCell::default());
        let command = Command::Send {
            key: key.clone(),
            step,
            tensor,
            is_dead: false,
            answer: Some(Arc::clone(&answer)),
            queued_at: self.shard.clock.stamp(),
        };
        match self.mailbox.command(command) {
            Ok(()) => Ok(SendAnswer(answer)),
            Err(_) => Err(faults::mailbox_full(self.queues.mailbox)),
        }
    }

    /// A receive as an application thread asks for it: through the mailbox.
    ///
    /// # Errors
    /// `ResourceExhausted` when the mailbox is full.
    pub fn ask(&self, step: StepId, key: &Key, deadline: Nanos) -> Result<Waiting, Status> {
        let waiting = Waiting::new();
        let Waiting { cell, stops } = waiting.clone();
        let command = Command::Recv {
            key: key.clone(),
            step,
            deadline,
            cell,
            stops: Some(stops),
        };
        match self.mailbox.command(command) {
            Ok(()) => Ok(waiting),
            Err(_) => Err(faults::mailbox_full(self.queues.mailbox)),
        }
    }

    /// Gives a receive up. A value that it was brought and that was not taken goes back.
    pub fn cancel(&mut self, waiting: &Waiting) {
        give_up(&self.mailbox, &waiting.cell);
    }

    /// A send that waits for room, of a key that this shard owns. `None` if too many wait.
    pub fn send_in_turn(
        &mut self,
        step: StepId,
        key: &Key,
        tensor: Tensor,
        deadline: Nanos,
    ) -> Option<Sending> {
        let permit = Permit::take(&self.mailbox, false)?;
        let cell = Arc::new(SendCell::new(tensor, None));
        self.mailbox.send_in_turn(PendingSend {
            key: key.clone(),
            step,
            is_dead: false,
            deadline,
            cell: Arc::clone(&cell),
            permit,
        });
        Some(Sending(cell))
    }

    /// Gives a send up: its tensor, if it was not taken.
    pub fn cancel_send(&mut self, sending: &Sending) -> Option<Tensor> {
        sending.0.outcome.give_up();
        self.mailbox.cancel(Cancel::Send(Arc::clone(&sending.0)));
        sending.0.take_tensor()
    }

    /// Ends a send that still waits with `Cancelled`.
    pub fn stop_send(&mut self, sending: &Sending) {
        sending.0.outcome.stop();
        self.mailbox.cancel(Cancel::Send(Arc::clone(&sending.0)));
    }

    /// Ends a receive that still waits with `Cancelled`.
    pub fn stop(&mut self, waiting: &Waiting) {
        waiting.stop();
        let cell = Arc::clone(&waiting.cell);
        self.mailbox.cancel(Cancel::Recv(cell));
    }

    /// The step ends by then, if it has not ended before.
    pub fn end_by(&mut self, step: StepId, deadline: Nanos) {
        self.mailbox.call(Call::Deadline {
            step,
            deadline,
            answer: Arc::default(),
        });
    }

    /// Stops in good order by then.
    pub fn shut_down(&mut self, deadline: Nanos) {
        self.mailbox.call(Call::Stop { deadline });
    }

    /// True if no send waits for room.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.mailbox.pressure().waits() == 0
    }

    /// Ends a step with `status`, here and wherever it is known.
    pub fn abort(&mut self, step: StepId, status: Status) {
        self.mailbox.call(Call::Abort { step, status });
    }

    /// Cleans a step up, on this shard.
    pub fn finish(&mut self, step: StepId) {
        self.mailbox.call(Call::Finish { step });
    }

    /// How threads, and an engine over this shard, reach it.
    pub const fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// A peer is there, or has new connections.
    pub fn peer_up(&mut self, greeting: Greeting) {
        let links = greeting
            .links
            .into_iter()
            .map(|(theirs, end)| (theirs, attach(end)))
            .collect();
        let segments = greeting.segments.into_iter();
        self.mailbox.call(Call::PeerUp(Box::new(PeerUp {
            task: greeting.task,
            incarnation: greeting.incarnation,
            shards: greeting.shards,
            read_domain: greeting.read_domain,
            devices: 0,
            connection: 0,
            segments: segments
                .map(|(arena, index, mapped)| PeerSegment {
                    arena,
                    index,
                    mapped,
                })
                .collect(),
            links,
        })));
    }

    /// A peer's arena grew.
    pub fn peer_segment(
        &mut self,
        task: &TaskName,
        incarnation: Incarnation,
        arena: u16,
        index: u16,
        mapped: Arc<MappedSegment>,
    ) {
        let segment = PeerSegment {
            arena,
            index,
            mapped,
        };
        self.mailbox.call(Call::PeerSegment {
            task: task.clone(),
            incarnation,
            segment,
        });
    }

    /// A peer is given up.
    pub fn peer_lost(&mut self, task: &TaskName, status: Status) {
        self.mailbox.call(Call::PeerLost {
            task: task.clone(),
            status,
        });
    }

    /// A peer's connection is lost; it may come back in the same life, `until` then.
    pub fn peer_away(&mut self, task: &TaskName, status: Status, until: Nanos) {
        self.mailbox.call(Call::PeerAway {
            task: task.clone(),
            status,
            until,
        });
    }

    /// A life of a peer is proved over.
    pub fn peer_exited(&mut self, task: &TaskName, incarnation: Incarnation) {
        self.mailbox.call(Call::PeerExited {
            task: task.clone(),
            incarnation,
        });
    }

    /// True while there is a queue pair to that shard of a peer.
    #[must_use]
    pub fn is_linked(&self, task: &TaskName, theirs: u16) -> bool {
        self.link(task, theirs)
            .is_some_and(|link| link.qp.is_some())
    }

    /// True once that shard of a peer has said hello on it.
    #[must_use]
    pub fn is_up(&self, task: &TaskName, theirs: u16) -> bool {
        self.link(task, theirs)
            .is_some_and(|link| link.channel.is_up())
    }

    pub(super) fn link(&self, task: &TaskName, theirs: u16) -> Option<&Link> {
        let core = &self.shard.core;
        let peer = core.peers.at(core.peers.find(task)?)?;
        let link = *peer.links.get(usize::from(theirs))?;
        core.links.at(link)
    }

    /// The shard's memory, to map it elsewhere.
    #[must_use]
    pub fn segments(&self) -> &[Arc<Segment>] {
        self.shard.core.pool.segments()
    }

    /// What the shard knows, for a test that stands in its way.
    #[cfg(test)]
    pub(crate) fn core_mut(&mut self) -> &mut crate::shard::core::Core {
        &mut self.shard.core
    }

    /// How many places for tasks there are, taken or free.
    #[cfg(test)]
    pub(crate) fn task_places(&self) -> usize {
        self.shard.tasks.len()
    }

    /// The ports, for example to break their connections.
    pub fn ports_mut(&mut self) -> &mut [AnyPort] {
        &mut self.shard.ports
    }

    /// The port and the queue pair to that shard of a peer, while there is one.
    #[must_use]
    pub fn queue_pair(&self, task: &TaskName, theirs: u16) -> Option<(usize, QpId)> {
        self.link(task, theirs)?.qp
    }

    /// When [`Solo::turn`] is wanted again at the latest, if nothing arrives.
    #[must_use]
    pub fn next_timer(&self) -> Nanos {
        self.shard.next_timer()
    }
}

impl Sending {
    /// The outcome, once; `None` while there is none.
    #[must_use]
    pub fn take(&self) -> Option<Result<(), Status>> {
        self.0.outcome.take()
    }

    /// The tensor of a send that failed.
    #[must_use]
    pub fn take_tensor(&self) -> Option<Tensor> {
        self.0.take_tensor()
    }
}

fn no_memory(error: &dyn std::fmt::Display) -> Status {
    Status::new(
        Code::ResourceExhausted,
        catalogue::CONFIG,
        format!("a shard cannot be made: {error}"),
    )
}
