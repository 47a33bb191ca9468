//! Shard: the per-core instance and its loop. The one room where the pure column and the machine column meet.
//!
//! A shard owns a slice of the rendezvous table, an arena, its ends of the fabrics, and the channels to the peers'
//! shards. Nothing of it is shared: others reach it through its mailbox, its neighbours' rings, and the fabrics.
//! [`Shard::turn`] is the whole loop; `run.rs` calls it from a pinned thread, a simulation from its own.

pub mod call;
pub mod clock;
pub(crate) mod core;
mod ending;
pub(crate) mod faults;
mod fetch;
pub(crate) mod keys;
mod local;
pub(crate) mod mailbox;
mod peers;
mod remote;
pub mod run;
pub mod solo;
pub mod task;
pub(crate) mod value;
pub mod wait;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

pub use call::{PendingItem, ShardStats};
pub use clock::Clock;
pub use task::{PreparedKey, Task, TaskContext, TaskEvent};
pub use value::{Path, Received};

use self::core::{Core, Event, PortOp, Room, Wait};
use call::{Call, Note};
use keys::Keys;
use mailbox::{Command, Mailbox, bytes_of};
use value::{NO_LINK, Waiter};

use crate::channel::Rules;
use crate::channel::slab::Slab;
use crate::fabric::spsc::{Consumer, Producer};
use crate::fabric::{AnyPort, DownReason, Landing, Port, Refusal};
use crate::ground::device::TaskName;
use crate::ground::{FrameIter, Incarnation, Nanos, Status, StepId, limits};
use crate::memory::{Leases, Pool, Tensor};
use crate::rendezvous::{self, KeyId, Table};

/// What happened in a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Something was done.
    Busy,
    /// Nothing was there to do.
    Idle,
    /// The shard has stopped.
    Stopped,
}

/// A shard's settings.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Shards of this task.
    pub shards: u16,
    /// Bounds of the table.
    pub table: rendezvous::Limits,
    /// Keys known at once.
    pub keys: usize,
    /// Receives of application threads and neighbours that may wait.
    pub waiters: usize,
    /// Notes that may wait for a neighbour.
    pub notes: usize,
    /// Frames in flight towards this shard, for each link.
    pub frame_window: u16,
    /// Lines of unrequested values that may wait here, for each link.
    pub line_window: u16,
    /// Values up to this many bytes (with their dimensions) travel in a frame; longer ones by lease or landing.
    pub inline_max: usize,
    /// Read large values of peers of the same read domain in place.
    pub lease: bool,
    /// Leases held at once.
    pub leases: u32,
    /// Bytes of landings open at once.
    pub landing_bytes: u64,
    /// Keys with a number on one link, in each direction.
    pub interned: usize,
    /// Values of ours on offer on one link.
    pub offers: usize,
    /// How long an acknowledgement waits for a frame to ride on.
    pub ack_delay_ns: u64,
    /// How long a peer that a key names may take to be there.
    pub connect_timeout_ns: u64,
    /// Which rules of the protocol are on. All, outside simulations.
    pub rules: Rules,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            shards: 1,
            table: rendezvous::Limits::default(),
            keys: limits::KEYS,
            waiters: limits::WAITS,
            notes: limits::NOTES,
            frame_window: limits::FRAME_WINDOW,
            line_window: limits::LINE_WINDOW,
            inline_max: limits::INLINE_MAX,
            lease: true,
            leases: limits::LEASES,
            landing_bytes: limits::LANDING_BYTES,
            interned: limits::INTERNED_KEYS,
            offers: limits::OFFERS,
            ack_delay_ns: limits::ACK_DELAY_NS,
            connect_timeout_ns: limits::CONNECT_TIMEOUT_NS,
            rules: Rules::ALL,
        }
    }
}

/// What a shard tells those above it. Called on cold paths, from the shard's thread; must not block.
pub trait Observer: Send + Sync {
    /// A key names a task that is not connected: dial it.
    fn peer_wanted(&self, task: &TaskName);
    /// A step ended here, by a peer's word or a failure.
    fn step_ended(&self, step: StepId, status: &Status);
    /// A queue pair went down.
    fn link_down(&self, task: &TaskName, reason: DownReason);
    /// A peer broke the protocol.
    fn violated(&self, task: &TaskName, status: &Status);
    /// The shard's arena grew.
    fn segment_added(&self, segment: Arc<crate::memory::Segment>);
}

/// A neighbour in the same process: a ring each way.
#[derive(Debug)]
pub(crate) struct Neighbour {
    pub(crate) to: Producer<Note>,
    pub(crate) from: Consumer<Note>,
}

/// What a shard is made of.
pub(crate) struct Parts {
    pub(crate) index: u16,
    pub(crate) task: TaskName,
    pub(crate) incarnation: Incarnation,
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) pool: Pool,
    pub(crate) ports: Vec<AnyPort>,
    pub(crate) mailbox: Arc<Mailbox>,
    /// By shard index; `None` at its own.
    pub(crate) neighbours: Vec<Option<Neighbour>>,
    pub(crate) observer: Arc<dyn Observer>,
}

/// One core's instance. See the module.
pub struct Shard {
    pub(crate) core: Core,
    pub(crate) clock: Clock,
    ports: Vec<AnyPort>,
    mailbox: Arc<Mailbox>,
    neighbours: Vec<Option<Neighbour>>,
    tasks: Vec<Option<Box<dyn Task>>>,
    pub(crate) again: Vec<u32>,
    called: Vec<u32>,
    pub(crate) finished: Vec<u32>,
    segments_told: usize,
    /// Something was posted since doorbells were rung.
    has_posted: bool,
    /// Turns since the clock was read.
    unstamped: u32,
    /// Turns since memory was given back.
    untidied: u32,
    stopping: Option<Nanos>,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard").field("core", &self.core).finish_non_exhaustive()
    }
}

/// Application commands taken in one turn: enough to amortise the look, few enough that peers do not wait.
const COMMANDS_PER_TURN: usize = 32;
/// Arrivals taken from one port in one turn.
const ARRIVALS_PER_TURN: usize = 64;
/// Notes taken from one neighbour in one turn.
const NOTES_PER_TURN: usize = 32;
/// Events delivered in one turn: a task that answers itself may not keep the loop.
const EVENTS_PER_TURN: usize = 256;
/// Empty turns between two readings of the clock.
const TURNS_PER_STAMP: u32 = 64;
/// Turns between two rounds of giving memory back.
const TURNS_PER_TIDY: u32 = 64;

impl Shard {
    pub(crate) fn new(parts: Parts) -> Self {
        let settings = parts.settings;
        let now = parts.clock.stamp();
        let count = usize::from(settings.shards);
        let core = Core {
            index: parts.index,
            task: parts.task,
            incarnation: parts.incarnation,
            settings,
            now,
            next_timer: Nanos::NEVER,
            keys: Keys::new(settings.keys),
            table: Table::new(settings.table),
            pool: parts.pool,
            leases: Leases::new(settings.leases),
            links: Vec::new(),
            by_qp: vec![Vec::new(); parts.ports.len()],
            peers: Vec::new(),
            waits: Slab::new(settings.waiters),
            asked: Slab::new(limits::PARKED_REQUESTS),
            incoming: Slab::new(limits::INCOMING),
            events: VecDeque::with_capacity(EVENTS_PER_TURN),
            port_ops: Vec::new(),
            dirty: Vec::new(),
            notes: (0..count).map(|_| VecDeque::new()).collect(),
            notes_waiting: 0,
            landing_bytes: 0,
            ahead_bytes: 0,
            early: Vec::new(),
            fetch_backlog: VecDeque::new(),
            observer: parts.observer,
            stats: ShardStats { index: parts.index, ..ShardStats::default() },
        };
        Self {
            core,
            clock: parts.clock,
            ports: parts.ports,
            mailbox: parts.mailbox,
            neighbours: parts.neighbours,
            tasks: Vec::new(),
            again: Vec::new(),
            called: Vec::new(),
            finished: Vec::new(),
            segments_told: 0,
            has_posted: false,
            unstamped: 0,
            untidied: 0,
            stopping: None,
        }
    }

    /// Those above know the segments there are now.
    pub(crate) fn segments_are_told(&mut self) {
        self.segments_told = self.core.pool.segments().len();
    }

    /// One turn of the loop: everything that is there now, in bursts, and no waiting.
    #[inline]
    pub fn turn(&mut self) -> Progress {
        let mut done = 0;
        if self.mailbox.has_calls() {
            done += self.take_calls();
        }
        if self.mailbox.has_commands() {
            done += self.take_commands();
        }
        if !self.neighbours.is_empty() {
            done += self.take_notes();
        }
        done += self.poll_fabric();
        if self.core.has_output() {
            self.transmit();
        }
        if !self.core.events.is_empty() || !self.again.is_empty() {
            done += self.deliver();
        }
        if self.has_posted {
            self.flush();
        }
        self.after_turn(done)
    }

    /// Hands a value over from inside the shard, and posts at once what it gave a link to say.
    #[inline]
    pub(crate) fn send(
        &mut self,
        step: StepId,
        key: KeyId,
        at: FrameIter,
        tensor: Tensor,
        is_dead: bool,
    ) -> Result<(), Status> {
        let link = self.core.send(&mut self.ports, step, key, at, tensor, is_dead)?;
        self.has_posted = true;
        if link != NO_LINK {
            self.transmit_link(link);
        }
        Ok(())
    }

    /// A receive of an in-shard task.
    #[inline]
    pub(crate) fn recv_for_task(
        &mut self,
        task: u32,
        step: StepId,
        key: KeyId,
        at: FrameIter,
        token: u64,
        deadline: Nanos,
    ) {
        let owner = self.core.keys.at(key).map_or(self.core.index, |entry| entry.owner);
        if owner == self.core.index {
            self.core.recv(None, step, key, at, Waiter::Task { task, token }, deadline);
            return;
        }
        let waiter = Waiter::Task { task, token };
        let Ok(ticket) = self.core.waits.insert(Wait::Away { shard: owner, task, token }) else {
            let status = faults::waiters_exhausted(self.core.settings.waiters);
            return self.core.complete(waiter, Err(status));
        };
        match self.core.note_key(key) {
            Some(key) => self.core.note(owner, Note::Recv { key, step, at, wait: ticket.packed(), deadline }),
            None => self.core.complete(Waiter::Wait(ticket), Err(faults::stale_key())),
        }
    }

    // ─────────────────────────────────────────── the parts of a turn ───────────────────────────────────────────

    #[cold]
    fn take_calls(&mut self) -> usize {
        self.core.now = self.clock.stamp();
        let mut done = 0;
        while let Some(call) = self.mailbox.next_call() {
            self.handle_call(call);
            done += 1;
        }
        while let Some(cell) = self.mailbox.next_cancel() {
            self.core.cancel_cell(&cell);
            done += 1;
        }
        done
    }

    fn take_commands(&mut self) -> usize {
        let mut done = 0;
        loop {
            if done == COMMANDS_PER_TURN {
                self.mailbox.more_commands();
                break;
            }
            let Some(command) = self.mailbox.next_command() else { break };
            let bytes = bytes_of(&command);
            self.handle_command(command);
            // The table counts these bytes from here on, so the mailbox may forget them only now.
            self.mailbox.taken(bytes, self.core.is_pressed());
            done += 1;
        }
        done
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Send { key, step, tensor, is_dead, answer } => {
                let sent = self.core.send_from_outside(&mut self.ports, &key, step, tensor, is_dead);
                self.has_posted = true;
                if let Ok(link) = sent
                    && link != NO_LINK
                {
                    self.transmit_link(link);
                }
                match (answer, sent) {
                    (Some(answer), sent) => answer.complete(sent.map(drop)),
                    (None, Err(_)) => self.core.stats.dropped += 1,
                    (None, Ok(_)) => {}
                }
            }
            Command::Recv { key, step, deadline, cell } => {
                if cell.is_abandoned() {
                    return;
                }
                self.core.recv_for_cell(&key, step, deadline, cell);
            }
        }
    }

    fn take_notes(&mut self) -> usize {
        let mut done = 0;
        for from in 0..self.neighbours.len() {
            for _ in 0..NOTES_PER_TURN {
                let Some(Some(neighbour)) = self.neighbours.get_mut(from) else { break };
                let Some(note) = neighbour.from.pop() else { break };
                self.core.heed(&mut self.ports, from as u16, note);
                done += 1;
            }
        }
        done
    }

    #[inline]
    fn poll_fabric(&mut self) -> usize {
        let Self { core, ports, .. } = self;
        let mut done = 0;
        for (index, port) in ports.iter_mut().enumerate() {
            done += port.poll(core.now, ARRIVALS_PER_TURN, &mut |arrival| core.arrived(index, arrival));
        }
        done
    }

    fn transmit(&mut self) {
        if !self.core.port_ops.is_empty() {
            self.run_port_ops();
        }
        if !self.core.dirty.is_empty() {
            let mut dirty = std::mem::take(&mut self.core.dirty);
            for link in dirty.drain(..) {
                if let Some(entry) = self.core.links.get_mut(link as usize) {
                    entry.is_dirty = false;
                }
                self.transmit_link(link);
            }
            // What could not be posted now is dirty again, in the new list: keep the larger allocation.
            if self.core.dirty.is_empty() {
                self.core.dirty = dirty;
            }
        }
        if self.core.notes_waiting > 0 {
            for at in 0..self.core.notes.len() {
                self.send_notes(at);
            }
        }
    }

    fn send_notes(&mut self, at: usize) {
        let Some(Some(neighbour)) = self.neighbours.get_mut(at) else { return };
        while let Some(note) = self.core.notes[at].pop_front() {
            if let Err(note) = neighbour.to.push(note) {
                self.core.notes[at].push_front(note);
                return;
            }
            self.core.notes_waiting -= 1;
        }
    }

    /// Posts what a link owes, and lets parked values follow while there is room.
    #[inline]
    fn transmit_link(&mut self, link: u32) {
        let Self { core, ports, .. } = self;
        let Core { links, keys, now, .. } = core;
        let Some(entry) = links.get_mut(link as usize) else { return };
        let Some((port, qp)) = entry.qp else { return };
        let Some(port) = ports.get_mut(port) else { return };
        self.has_posted = true;
        entry.channel.transmit(*now, &|key| keys.text(key), &mut |frame, body| port.post_send(qp, frame, body).is_ok());
        if !entry.parked.is_empty() && entry.channel.takes_push() {
            core.pump(link);
        }
        // Credit that was refused is due as well, and no timer runs for it.
        if core.links[link as usize].channel.must_transmit(core.now) {
            core.touch(link);
        }
    }

    #[cold]
    fn run_port_ops(&mut self) {
        let ops = std::mem::take(&mut self.core.port_ops);
        for op in ops {
            self.run_port_op(op);
        }
    }

    fn run_port_op(&mut self, op: PortOp) {
        match op {
            PortOp::Write { link, write } => {
                let Some((port, _)) = self.core.links.get(link as usize).and_then(|entry| entry.qp) else {
                    return self.core.write_refused(link, write);
                };
                match self.ports[port].post_write(write) {
                    Ok(()) => {}
                    Err(refused) if refused.refusal == Refusal::Full => {
                        self.core.port_ops.push(PortOp::Write { link, write: refused.write });
                    }
                    Err(refused) => self.core.write_refused(link, refused.write),
                }
            }
            PortOp::OpenAndAsk { link, ticket, meta, patience_ns, room } => {
                self.open_and_ask(link, ticket, meta, patience_ns, room);
            }
            PortOp::CloseLanding { port, qp, landing } => self.ports[port].close_landing(qp, landing),
            PortOp::Close { port, qp } => self.ports[port].close(qp),
            PortOp::Attach { link } => self.core.attach_next(link, &mut self.ports),
        }
    }

    /// Opens a landing for a demand and sends its request.
    fn open_and_ask(
        &mut self,
        link: u32,
        ticket: crate::wire::Ticket,
        meta: crate::ground::TensorMeta,
        patience_ns: u64,
        room: Room,
    ) {
        let Some(entry) = self.core.links.get(link as usize) else { return };
        let demand = entry.channel.demand_at(ticket);
        let is_wanted = demand.is_some_and(|demand| !demand.is_cancelled && !demand.has_landing);
        let Some((port, qp)) = entry.qp.filter(|_| is_wanted) else {
            // Taken back meanwhile; or without a connection, and then it is asked with the next.
            return self.core.leave(room);
        };
        let Ok(buffer) = self.core.pool.buffer(room.bytes as usize) else {
            self.core.leave(room);
            return self.core.no_landing(link, ticket, room.bytes as usize);
        };
        let landing = Landing { index: ticket.index, generation: ticket.generation };
        match self.ports[port].open_landing(qp, landing, buffer) {
            Ok(region) => {
                if let Some(entry) = self.core.links.get_mut(link as usize) {
                    entry.channel.ask(ticket, patience_ns, Some((region, meta)));
                }
                self.core.touch(link);
            }
            // The queue pair is going down.
            Err(_) => self.core.leave(room),
        }
    }

    fn deliver(&mut self) -> usize {
        let mut done = 0;
        if !self.again.is_empty() {
            // Two lists that change places, so that neither is made anew in each turn.
            std::mem::swap(&mut self.again, &mut self.called);
            for at in 0..self.called.len() {
                self.call_task(self.called[at], TaskEvent::Again);
                done += 1;
            }
            self.called.clear();
        }
        while done < EVENTS_PER_TURN {
            let Some(Event { task, event }) = self.core.events.pop_front() else { break };
            self.call_task(task, event);
            done += 1;
        }
        done
    }

    /// Rings the doorbells of peers that were posted to and may sleep.
    fn flush(&mut self) {
        self.has_posted = false;
        for port in &mut self.ports {
            port.flush();
        }
    }

    #[inline]
    fn call_task(&mut self, task: u32, event: TaskEvent) {
        let Some(mut body) = self.tasks.get_mut(task as usize).and_then(Option::take) else { return };
        body.handle(event, &mut TaskContext { shard: self, task });
        if self.finished.is_empty() {
            self.tasks[task as usize] = Some(body);
        } else {
            self.end_task(task, body);
        }
    }

    #[cold]
    fn end_task(&mut self, task: u32, body: Box<dyn Task>) {
        let is_done = self.finished.contains(&task);
        self.finished.clear();
        if is_done {
            self.core.forget_task(task);
        } else {
            self.tasks[task as usize] = Some(body);
        }
    }

    /// Timers, memory that came home, and the clock.
    #[inline]
    fn after_turn(&mut self, done: usize) -> Progress {
        self.unstamped += 1;
        if done == 0 && self.unstamped < TURNS_PER_STAMP {
            return Progress::Idle;
        }
        self.after_some_turns(done)
    }

    fn after_some_turns(&mut self, done: usize) -> Progress {
        let turns = std::mem::take(&mut self.unstamped);
        self.core.stats.turns += u64::from(turns);
        self.core.stats.idle_turns += u64::from(turns - u32::from(done > 0));
        // After something was done the next turn's time is read here, when the answer has left, and not before.
        self.core.now = self.clock.stamp();
        self.untidied += 1;
        if done == 0 || self.untidied > TURNS_PER_TIDY {
            self.untidied = 0;
            self.tidy();
        }
        if self.core.now >= self.core.next_timer {
            self.poll_timers();
        }
        if let Some(deadline) = self.stopping
            && self.may_stop(deadline)
        {
            return Progress::Stopped;
        }
        if done > 0 { Progress::Busy } else { Progress::Idle }
    }

    /// What may wait for an empty turn: leases let go, segments to tell, landings that found no room.
    #[cold]
    fn tidy(&mut self) {
        if self.core.return_leases() > 0 {
            self.core.lease_more();
        }
        self.core.pool.reclaim();
        self.core.fetch_more();
        let segments = self.core.pool.segments();
        for segment in &segments[self.segments_told..] {
            self.core.observer.segment_added(Arc::clone(segment));
        }
        self.segments_told = segments.len();
        if !self.core.dirty.is_empty() || !self.core.port_ops.is_empty() {
            self.transmit();
            self.flush();
        }
    }

    #[cold]
    fn poll_timers(&mut self) {
        self.core.expire();
        self.core.give_up_awaited();
        for link in 0..self.core.links.len() as u32 {
            if self.core.links[link as usize].channel.poll_timeout() <= self.core.now {
                self.core.touch(link);
            }
        }
        self.transmit();
        self.flush();
        self.core.next_timer = self.core.find_next_timer();
    }

    /// Takes what the rings still hold, within what they can hold.
    fn poll_last(&mut self) {
        let most = 2 * limits::LINK_SLOTS as usize / ARRIVALS_PER_TURN;
        for _ in 0..most {
            if self.poll_fabric() == 0 {
                return;
            }
        }
    }

    fn handle_call(&mut self, call: Call) {
        match call {
            Call::PeerUp(up) => {
                self.core.peer_up(*up, &mut self.ports);
                // The hello leaves before the peer's can be polled.
                self.transmit();
                self.flush();
            }
            Call::PeerLost { task, status } | Call::PeerUnreachable { task, status } => {
                // What the peer had said before it went is still in the rings: it counts.
                self.poll_last();
                if let Some(at) = self.core.peers.iter().position(|peer| peer.task == task) {
                    self.core.peer_lost(at as u32, &status);
                }
            }
            Call::PeerSegment { task, segment } => self.core.peer_segment(&task, segment),
            Call::Abort { step, status } => {
                if self.core.abort(step, &status) {
                    self.core.tell_neighbours(step, &status);
                }
            }
            Call::Finish { step } => self.core.finish(step),
            Call::Spawn { task } => {
                let at = self.tasks.len() as u32;
                self.tasks.push(Some(task));
                self.call_task(at, TaskEvent::Started);
            }
            Call::Pending { answer } => answer.complete(Ok(self.core.pending())),
            Call::Stats { answer } => answer.complete(Ok(self.stats())),
            Call::Stop { deadline } => {
                self.stopping = Some(deadline);
                for task in 0..self.tasks.len() as u32 {
                    self.call_task(task, TaskEvent::Stopping);
                }
                self.core.drain_for_stop();
            }
        }
    }

    /// What was counted, and what is held now.
    #[must_use]
    pub fn stats(&self) -> ShardStats {
        self.core.stats()
    }

    /// True when the shard may end: nothing is owed any more, or the time is up.
    fn may_stop(&mut self, deadline: Nanos) -> bool {
        if self.core.now < deadline && !self.core.is_drained() {
            return false;
        }
        self.core.end_everything(&faults::shutdown());
        peers::close_all(&self.core.links, &mut self.ports);
        self.mailbox.close(&faults::shutdown());
        true
    }

    /// Before sleep, with the doorbell armed: true if there is nothing to do.
    pub(crate) fn arm(&mut self) -> bool {
        self.mailbox.is_empty()
            && self.again.is_empty()
            && self.core.events.is_empty()
            && self.core.port_ops.is_empty()
            && self.core.dirty.is_empty()
            && self.neighbours.iter().flatten().all(|neighbour| !neighbour.from.is_ready())
            && self.ports.iter_mut().all(AnyPort::arm)
    }

    pub(crate) fn disarm(&mut self) {
        for port in &mut self.ports {
            port.disarm();
        }
        self.core.now = self.clock.stamp();
        self.core.stats.sleeps += 1;
    }

    /// When the shard must be called again at the latest.
    pub(crate) const fn next_timer(&self) -> Nanos {
        self.core.next_timer
    }
}
