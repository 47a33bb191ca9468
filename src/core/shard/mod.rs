//! Shard: the per-core instance and its loop. The one room where the pure column and the machine column meet.
//!
//! A shard owns a slice of the rendezvous table, an arena, its ends of the fabrics, and the channels to the peers'
//! shards. Nothing of it is shared: others reach it through its mailbox, its neighbours' rings, and the fabrics.
//! [`Shard::turn`] is the whole loop; the room [`drive`](crate::drive) says which thread calls it, and a simulation
//! calls it from its own.

mod admission;
mod arrivals;
mod asked;
mod backlog;
mod budget;
mod calling;
pub mod carriers;
mod commanding;
mod connecting;
pub(crate) mod core;
mod deadlines;
mod delivery;
mod ending;
mod events;
mod expiry;
mod fetch;
mod forgetting;
mod home;
pub(crate) mod ids;
pub(crate) mod keys;
mod last_ends;
mod leases;
mod link_timers;
pub(crate) mod links;
mod lives_over;
mod local;
mod neighbour_queues;
pub(crate) mod owed;
mod panicking;
mod parked;
mod partings;
mod peer_failure;
pub(crate) mod peers;
mod posting;
mod reconnect;
mod remote;
mod reorder;
mod requested;
mod send_queue;
mod sending;
mod settings;
mod shard_messages;
mod steps;
pub mod task;
mod timing;
mod transfers;
mod unread;
mod value;
pub(crate) mod waits;

use std::collections::TryReserveError;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use settings::{Observer, Settings, Unsent};
pub use task::{PreparedKey, Task, TaskContext, TaskEvent, TaskWaker};

use self::core::Core;
pub use self::waits::Led;
use asked::Requests;
use deadlines::StepDeadlines;
use events::Events;
use ids::{NO_LINK, Rows, TaskId};
use keys::{KeyLook, Keys};
use last_ends::LastEnds;
use links::Links;
use lives_over::LivesOver;
use neighbour_queues::NeighbourQueues;
use partings::Partings;
use peers::Peers;
use posting::Outlet;
use reorder::Reorder;
use send_queue::SendQueue;
use transfers::Transfers;
use value::{Value, Waiter};
use waits::Waits;

use crate::channel::Rule;
use crate::fabric::{AnyPort, Port};
use crate::ground::device::TaskName;
use crate::ground::{Incarnation, Nanos, Status, faults, limits};
use crate::mail::ShardStats;
use crate::mail::call::ShardMessage;
use crate::mail::neighbour::Neighbour;
use crate::mail::seat::Seat;
use crate::memory::{Leases, Pool};
use crate::rendezvous::{Slot, Table};
use crate::trace::Clock;
use crate::trace::stages::Stages;

/// Where others speak to a shard.
pub type Mailbox = crate::mail::mailbox::Mailbox<Box<dyn Task>>;

/// What control asks of a shard.
pub type Call = crate::mail::call::Call<Box<dyn Task>>;

/// What happened in a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Something was done, or is left for the next turn.
    Busy,
    /// Nothing was there to do, and nothing will be before the next timer or arrival.
    Idle,
    /// The shard has stopped.
    Stopped,
}

/// What a shard is made of.
pub struct Parts {
    /// Its number within the task.
    pub index: u16,
    /// The task that it belongs to.
    pub task: TaskName,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its settings.
    pub settings: Settings,
    /// What it reads the time from.
    pub clock: Clock,
    /// Its memory.
    pub pool: Pool,
    /// Its ways to peers.
    pub ports: Vec<AnyPort>,
    /// Where others speak to it.
    pub mailbox: Arc<Mailbox>,
    /// By shard index; `None` at its own.
    pub neighbours: Vec<Option<Neighbour>>,
    /// What is told of its peers.
    pub observer: Arc<dyn Observer>,
    /// What times its hand-overs.
    pub stages: Stages,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}

/// One core's instance. See the module.
pub struct Shard {
    pub(crate) core: Core,
    pub(crate) clock: Clock,
    pub(crate) ports: Vec<AnyPort>,
    mailbox: Arc<Mailbox>,
    neighbours: Vec<Option<Neighbour>>,
    pub(crate) tasks: Rows<TaskId, Option<Box<dyn Task>>>,
    /// Where the end of each is told, as long as it runs.
    pub(crate) seats: Rows<TaskId, Option<Arc<Seat>>>,
    /// Places of tasks that have ended.
    vacant: Vec<TaskId>,
    pub(crate) again: Vec<TaskId>,
    called: Vec<TaskId>,
    pub(crate) finished: Vec<TaskId>,
    segments_told: usize,
    /// The lease that was let go last when the running task was called.
    let_go: usize,
    /// Something was posted since doorbells were rung.
    has_posted: bool,
    /// Turns since the clock was read.
    pub(crate) unstamped: u32,
    /// How many of them did something.
    brief: u32,
    /// What an empty turn took when there were only such.
    empty_ns: u64,
    /// Turns since memory was given back.
    untidied: u32,
    stopping: Option<Nanos>,
    /// When what peers have sent since is dropped again.
    drops_at: Nanos,
    /// What everything ends with, if not in good order.
    failed: Option<Status>,
    /// Commands that came before the sends in the overflow.
    before_lane: Option<usize>,
    /// It is turned where its tasks may run.
    is_home: bool,
    /// Calls that must wait until it is.
    for_home: Vec<Call>,
    /// Tasks that have not ended, and that only its own thread may run.
    bound: usize,
    /// Arrivals taken from one port in the next turn: as many as a port had in this one, so that what comes alone is
    /// answered before more is looked for; one, while rings bring what tasks wait for, so that the next of a key finds
    /// its task waiting again and need not be parked, which costs more than a turn that does nothing else.
    burst: usize,
    /// A port had as many as were taken: if it is so in the next turn too, there is more, and all is taken.
    is_full: bool,
    /// A timer is due, and the next turn looks at the time whatever it does.
    is_due: bool,
    /// When a send of a thread that turns the shard last heard peers.
    heard_at: Nanos,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard")
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}

/// The most arrivals taken from one port in one turn.
const ARRIVALS_PER_TURN: usize = 64;
/// Notes taken from one neighbour in one turn.
const NOTES_PER_TURN: usize = 32;
/// Events delivered in one turn: a task that answers itself may not keep the loop.
const EVENTS_PER_TURN: usize = 256;
/// Empty turns between two readings of the clock.
pub(crate) const TURNS_PER_STAMP: u32 = 64;
/// What a turn has done that brought one value, to a task.
const BRIEF: usize = 2;
/// Turns that were no longer than that between two readings of the clock.
const BRIEF_TURNS_PER_STAMP: u32 = 8;
/// Turns between two rounds of giving memory back.
const TURNS_PER_TIDY: u32 = 64;
/// Leases that may be out before those let go are told in a busy turn: told together they cost a third.
const LEASES_PER_TELL: usize = 8;

impl Shard {
    /// A shard of these parts, which no thread turns yet.
    ///
    /// # Errors
    /// The process may have no more address space for its table.
    pub fn new(parts: Parts) -> Result<Self, TryReserveError> {
        let settings = parts.settings;
        let now = parts.clock.stamp();
        let count = usize::from(settings.shards);
        // What is opened ahead of its values may have half of it: not all of the arena, which other values need too.
        let arena_bytes = parts.pool.stats().limit_bytes;
        let landing_bytes = settings.landing_bytes.min(arena_bytes);
        let core = Core {
            index: parts.index,
            task: parts.task,
            incarnation: parts.incarnation,
            settings,
            now,
            next_timer: Nanos::NEVER,
            keys: Keys::new(settings.keys),
            table: Table::new(settings.table)?,
            pool: parts.pool,
            leases: Leases::new(settings.leases),
            links: Links::new(parts.ports.len()),
            peers: Peers::default(),
            last_ends: LastEnds::default(),
            lives_over: LivesOver::default(),
            send_queue: SendQueue::default(),
            deadlines: StepDeadlines::default(),
            waits: Waits::new(settings.waiters),
            asked: Requests::new(),
            transfers: Transfers::new(
                (settings.rules.on(Rule::LandingBudget)).then_some(landing_bytes),
            ),
            events: Events::new(EVENTS_PER_TURN),
            port_ops: Vec::new(),
            neighbour_queues: NeighbourQueues::new(count),
            early: Reorder::new(limits::EARLY),
            partings: Partings::new(settings.table.tombstones as usize),
            observer: parts.observer,
            stages: parts.stages,
            stats: ShardStats {
                index: parts.index,
                ..ShardStats::default()
            },
        };
        Ok(Self {
            core,
            clock: parts.clock,
            ports: parts.ports,
            mailbox: parts.mailbox,
            // A shard alone looks at none.
            neighbours: if count > 1 {
                parts.neighbours
            } else {
                Vec::new()
            },
            tasks: Rows::default(),
            seats: Rows::default(),
            vacant: Vec::new(),
            again: Vec::new(),
            called: Vec::new(),
            finished: Vec::new(),
            segments_told: 0,
            let_go: 0,
            has_posted: false,
            unstamped: 0,
            brief: 0,
            empty_ns: 0,
            untidied: 0,
            stopping: None,
            drops_at: Nanos::ZERO,
            failed: None,
            before_lane: None,
            is_home: true,
            for_home: Vec::new(),
            bound: 0,
            burst: 1,
            is_full: false,
            is_due: false,
            heard_at: Nanos(0),
        })
    }

    /// Those above know the segments there are now.
    pub fn segments_are_told(&mut self) {
        self.segments_told = self.core.pool.segments().len();
    }

    /// One turn of the loop: everything that is there now, in bursts, and no waiting.
    #[inline]
    pub fn turn(&mut self) -> Progress {
        let mut done = 0;
        if self.mailbox.calls_came() {
            done += self.take_calls();
        }
        if self.mailbox.commands_came() {
            done += self.take_commands();
        }
        if !self.neighbours.is_empty() {
            done += self.take_notes();
        }
        done += self.poll_fabric(done);
        if self.core.has_output() {
            self.transmit();
        }
        if !self.core.events.is_empty() || !self.again.is_empty() {
            done += self.deliver();
        }
        if !self.core.send_queue.is_empty() {
            done += self.admit();
        }
        if self.has_posted {
            self.flush();
        }
        self.after_turn(done)
    }

    /// Hands a value over from inside the shard, and posts at once what it gave a link to say.
    #[inline(never)]
    pub(crate) fn send(
        &mut self,
        way: KeyLook,
        slot: Slot,
        value: &mut Option<Value>,
    ) -> Result<(), Status> {
        // Leases that this task dropped before it sends are returned first: a peer that hears the value has that memory
        // back already.
        if self.core.leases.latest() != self.let_go {
            self.core.return_leases();
        }
        self.core.stages.count();
        let mut outlet = Outlet::new(&mut self.ports);
        let sent = self.core.send(way, slot, value, &mut outlet);
        if sent.is_err() {
            // No other value is to have its trace.
            self.core.stages.take_sending();
        }
        let link = sent?;
        self.has_posted |= outlet.must_flush();
        if link != NO_LINK {
            self.transmit_link(link);
        }
        Ok(())
    }

    /// A receive of an in-shard task.
    #[inline]
    pub(crate) fn recv_for_task(
        &mut self,
        task: TaskId,
        way: KeyLook,
        slot: Slot,
        token: u64,
        deadline: Nanos,
        expected: Incarnation,
    ) {
        self.take_cancels();
        let waiter = Waiter::Task { task, token };
        let owner = way.owner;
        if owner == self.core.index {
            let placed = self.core.recv(None, way, slot, waiter, deadline);
            if !expected.is_current()
                && let Some(id) = placed
            {
                self.core.expect_life(way.route, id, expected);
            }
            return;
        }
        let Some(ticket) = self.core.waits.add_away(owner, task, token) else {
            let status = faults::waiters_exhausted(self.core.settings.waiters);
            return self.core.complete(waiter, Err(status));
        };
        let Slot { step, key, at } = slot;
        match self.core.message_key(key) {
            Some(key) => self.core.neighbour_queues.push(
                owner,
                ShardMessage::Recv {
                    key,
                    step,
                    at,
                    wait: ticket.packed(),
                    deadline,
                    expected,
                },
            ),
            None => self
                .core
                .complete(Waiter::Wait(ticket), Err(faults::stale_key())),
        }
    }

    // ─────────────────────────────────────────── the parts of a turn ───────────────────────────────────────────

    fn take_notes(&mut self) -> usize {
        let mut done = 0;
        for from in 0..self.neighbours.len() {
            for _ in 0..NOTES_PER_TURN {
                let Some(Some(neighbour)) = self.neighbours.get_mut(from) else {
                    break;
                };
                let Some(note) = neighbour.from.pop() else {
                    break;
                };
                if matches!(note, ShardMessage::Recv { .. }) {
                    self.take_cancels();
                }
                self.core.handle_shard_message(from as u16, note);
                done += 1;
            }
        }
        done
    }

    #[inline(always)]
    fn poll_fabric(&mut self, so_far: usize) -> usize {
        let Self { core, ports, .. } = self;
        let (budget, mut done, mut most) = (self.burst, 0, 0);
        // A turn that does other things costs more than parking, and then arrivals are not to wait for it one by one.
        let mut is_awaited = so_far == 0 && core.events.is_empty();
        for (index, port) in ports.iter_mut().enumerate() {
            let brought = port.poll(core.now, budget, &mut |arrival| {
                core.arrived(index, arrival)
            });
            if brought > 0 {
                done += brought;
                most = most.max(brought);
                is_awaited &= port.has_few_rings();
            }
        }
        self.is_full = if is_awaited && !core.events.is_empty() {
            self.burst = 1;
            false
        } else if most < budget {
            self.burst = most.max(1);
            false
        } else {
            if self.is_full {
                self.burst = ARRIVALS_PER_TURN;
            }
            true
        };
        done
    }

    /// Timers, memory that came home, and the clock.
    #[inline]
    fn after_turn(&mut self, done: usize) -> Progress {
        self.unstamped += 1;
        // What may wait: the clock, and all that hangs on it. A turn that brought much may have taken long.
        let may_wait = match done {
            0 => self.unstamped < TURNS_PER_STAMP,
            1..=BRIEF => self.unstamped < BRIEF_TURNS_PER_STAMP,
            _ => false,
        };
        if may_wait && !self.is_due {
            self.brief += u32::from(done > 0);
            return if done == 0 {
                Progress::Idle
            } else {
                Progress::Busy
            };
        }
        self.after_some_turns(done)
    }

    fn after_some_turns(&mut self, done: usize) -> Progress {
        self.is_due = false;
        let turns = std::mem::take(&mut self.unstamped);
        self.core.stats.turns += u64::from(turns);
        let brief = std::mem::take(&mut self.brief);
        self.core.stats.idle_turns += u64::from(turns - u32::from(done > 0) - brief);
        // After something was done the next turn's time is read here, when the answer has left, and not before.
        let now = self.clock.stamp();
        self.account(now.0.saturating_sub(self.core.now.0), turns, done > 0);
        self.core.now = now;
        self.untidied += 1;
        if done == 0 || self.untidied > TURNS_PER_TIDY {
            self.untidied = 0;
            self.tidy();
        } else if self.core.leases.out() > LEASES_PER_TELL && self.core.return_leases() > 0 {
            self.transmit();
            self.flush();
        }
        let mut ended = 0;
        if self.core.now >= self.core.next_timer {
            ended = self.poll_timers();
            if done == 0 && ended > 0 {
                reached!("timers_alone");
            }
        }
        if let Some(deadline) = self.stopping
            && self.may_stop(deadline)
        {
            return Progress::Stopped;
        }
        // What time ended is still to be told, here or by a neighbour: this turn was not idle.
        if done + ended > 0 || !self.core.events.is_empty() {
            Progress::Busy
        } else {
            Progress::Idle
        }
    }

    /// What may wait for an empty turn: leases let go, segments to tell, landings that found no room.
    #[cold]
    fn tidy(&mut self) {
        self.core.return_leases();
        self.core.pool.reclaim();
        self.core.fetch_more();
        let segments = self.core.pool.segments();
        for segment in &segments[self.segments_told..] {
            self.core.observer.segment_added(Arc::clone(segment));
        }
        self.segments_told = segments.len();
        if self.core.links.is_dirty() || !self.core.port_ops.is_empty() {
            self.transmit();
            self.flush();
        }
    }

    #[cold]
    fn poll_timers(&mut self) -> usize {
        let ended = self.core.expire();
        self.core.give_up_awaited();
        self.core.open_again();
        self.core.links.touch_due(self.core.now);
        self.transmit();
        self.flush();
        self.core.next_timer = self.core.find_next_timer();
        ended
    }

    /// Before sleep, with the doorbell armed: true if there is nothing to do.
    pub(crate) fn arm(&mut self) -> bool {
        let is_done = self.core.port_ops.is_empty() && !self.core.links.is_dirty();
        self.mailbox.is_empty()
            && self.again.is_empty()
            && (is_done || self.retry_refused())
            && self.core.events.is_empty()
            && self.core.neighbour_queues.is_empty()
            && self
                .neighbours
                .iter()
                .flatten()
                .all(|neighbour| !neighbour.from.is_ready())
            && self.ports.iter_mut().all(AnyPort::arm)
    }

    pub(crate) fn disarm(&mut self) {
        for port in &mut self.ports {
            port.disarm();
        }
        let now = self.clock.stamp();
        self.core.stats.slept_ns += now.0.saturating_sub(self.core.now.0);
        self.core.now = now;
        self.core.stats.sleeps += 1;
    }

    /// What it must wait for in its sleep beside its doorbell.
    pub(crate) fn wake_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().filter_map(AnyPort::wake_fd)
    }

    /// When the shard must be called again at the latest.
    pub(crate) fn next_timer(&self) -> Nanos {
        let stopping = self.stopping.unwrap_or(Nanos::NEVER);
        self.core.next_timer.min(stopping)
    }
}
