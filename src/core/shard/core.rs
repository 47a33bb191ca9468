//! The shard's state, without its ports and tasks: where channels, table and memory meet.
//!
//! It is apart from the ports so that a port can be polled while what it brings is handled here; nothing in this
//! file posts. What must be posted is left in channels, and in `port_ops` for the few other things.

use std::sync::Arc;

use super::asked::Requests;
use super::budget::LandingPlace;
use super::deadlines::StepDeadlines;
use super::events::{EventHead, Events};
use super::ids::{LinkId, NO_LINK, TaskId};
use super::keys::{KeyEntry, Keys, Route};
use super::last_ends::LastEnds;
use super::links::{Links, NextConnection};
use super::lives_over::LivesOver;
use super::neighbour_queues::NeighbourQueues;
use super::partings::Partings;
use super::peers::Peers;
use super::reorder::Reorder;
use super::send_queue::SendQueue;
use super::transfers::{ToOpen, Transfers};
use super::value::{Arriving, Value, Waiter};
use super::waits::{Wait, Waits};
use super::{Observer, Settings, TaskEvent};
use crate::fabric::{QpId, Write};
use crate::ground::device::TaskName;
use crate::ground::{FrameIter, Incarnation, Key, Nanos, Status, TensorMeta, faults};
use crate::mail::call::{MessageKey, ShardMessage};
use crate::mail::{Handed, Received, ShardStats};
use crate::memory::{Leases, Pool};
use crate::rendezvous::{Arrived, KeyId, Origin, Slot, Table};
use crate::trace::Path;
use crate::trace::stages::Stages;
use crate::wire::Point;

/// What a port must be told, once it is not being polled.
#[derive(Debug)]
pub(crate) enum PortOp {
    Write {
        link: LinkId,
        write: Write,
    },
    /// A link's writes that found their queue pair full: here once for all of them.
    WriteLate {
        link: LinkId,
    },
    OpenAndAsk(ToOpen),
    CloseLanding(LandingPlace),
    Close {
        port: usize,
        qp: QpId,
    },
    Attach {
        link: LinkId,
    },
    /// A connection that is not wanted any more before it began: the peer at its other end must hear that.
    Discard(NextConnection),
}

/// Where a request wants its value written, and whether it has accepted an offer of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) landing: Option<(crate::ground::Region, TensorMeta)>,
    pub(crate) is_accepted: bool,
}

/// See the module.
pub(crate) struct Core {
    pub(crate) index: u16,
    pub(crate) task: TaskName,
    pub(crate) incarnation: Incarnation,
    pub(crate) settings: Settings,
    pub(crate) now: Nanos,
    pub(crate) next_timer: Nanos,
    pub(crate) keys: Keys,
    pub(crate) table: Table<Value, Waiter>,
    pub(crate) pool: Pool,
    pub(crate) leases: Leases,
    pub(crate) links: Links,
    pub(crate) peers: Peers,
    pub(crate) last_ends: LastEnds,
    pub(crate) lives_over: LivesOver,
    /// Sends that wait for room.
    pub(crate) send_queue: SendQueue,
    pub(crate) deadlines: StepDeadlines,
    pub(crate) waits: Waits,
    pub(crate) asked: Requests,
    pub(crate) transfers: Transfers,
    pub(crate) events: Events,
    pub(crate) port_ops: Vec<PortOp>,
    pub(crate) neighbour_queues: NeighbourQueues,
    /// What came before its turn.
    pub(crate) early: Reorder<Arrived<Value>>,
    pub(crate) observer: Arc<dyn Observer>,
    /// Which peers' shards are done with which steps.
    pub(crate) partings: Partings,
    pub(crate) stages: Stages,
    pub(crate) stats: ShardStats,
}

impl Drop for Core {
    fn drop(&mut self) {
        for op in self.port_ops.drain(..) {
            if let PortOp::OpenAndAsk(landing) = op {
                self.transfers.come_home(landing.room);
            }
        }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("index", &self.index)
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}

impl Core {
    /// The number of a key, given if it has none.
    #[inline]
    pub(crate) fn intern(&mut self, key: &Key) -> Result<KeyId, Status> {
        match self.keys.find(key) {
            Some(id) => Ok(id),
            None => self.intern_new(key),
        }
    }

    #[cold]
    #[inline(never)]
    fn intern_new(&mut self, key: &Key) -> Result<KeyId, Status> {
        self.forget_some();
        if self.keys.is_full() {
            return Err(faults::keys_exhausted(self.settings.keys));
        }
        self.number(key)
    }

    /// As [`Core::intern`], for a key that a peer names. No bound of ours is the peer's fault: it names as many as its
    /// link has numbers for.
    pub(crate) fn intern_heard(&mut self, key: &Key) -> Result<KeyId, Status> {
        if let Some(id) = self.keys.find(key) {
            return Ok(id);
        }
        self.forget_some();
        self.number(key)
    }

    fn number(&mut self, key: &Key) -> Result<KeyId, Status> {
        let route = self.route_of(key)?;
        let owner = key.shard_of(u32::from(self.settings.shards)) as u16;
        let link = match route {
            Route::Out { peer } | Route::In { peer } => self.link_for(peer, key.hash()),
            Route::Local | Route::Foreign => NO_LINK,
        };
        let key = key.at(FrameIter::default());
        if self.stages.is_on() {
            self.stages.name(key.hash(), &key.to_string());
        }
        let entry = KeyEntry::new(key, route, owner, link);
        if let Some(peer) = entry.peer() {
            self.peers[peer].keys += 1;
        }
        Ok(self.keys.insert(entry))
    }

    /// Which of the key's ends are here.
    fn route_of(&mut self, key: &Key) -> Result<Route, Status> {
        let source = key.source().task_name();
        let destination = key.destination().task_name();
        let (Some(source), Some(destination)) = (source, destination) else {
            return Ok(Route::Foreign);
        };
        Ok(match (source == self.task, destination == self.task) {
            (true, true) => Route::Local,
            (true, false) => Route::Out {
                peer: self.peer_of(&destination)?,
            },
            (false, true) => Route::In {
                peer: self.peer_of(&source)?,
            },
            (false, false) => Route::Foreign,
        })
    }

    /// True if `transmit` has something to do.
    #[inline]
    pub(crate) fn has_output(&self) -> bool {
        self.links.is_dirty() || !self.port_ops.is_empty() || !self.neighbour_queues.is_empty()
    }

    /// Brings an outcome to its waiter. A value that the waiter does not want any more goes to the next.
    #[inline]
    pub(crate) fn complete(&mut self, waiter: Waiter, outcome: Result<Handed, Status>) {
        if let Some(unread) = self.bring(waiter, outcome) {
            self.unread(unread);
        }
    }

    /// Brings an outcome to its waiter. A value that the waiter does not want any more comes back.
    #[inline(always)]
    pub(super) fn bring(
        &mut self,
        waiter: Waiter,
        outcome: Result<Handed, Status>,
    ) -> Option<Handed> {
        let trace = self.stages.take_handing();
        let Waiter::Task { task, token } = waiter else {
            return self.bring_outside(waiter, trace, outcome);
        };
        self.tell_received(task, token, trace, self.index, outcome);
        None
    }

    /// Brings a value that was never in the table to its waiter, as [`Core::complete`] does.
    #[inline(always)]
    pub(super) fn bring_value(&mut self, waiter: Waiter, from: Origin, arriving: impl Arriving) {
        let Waiter::Task { task, token } = waiter else {
            let received = arriving.received();
            return self.bring_elsewhere(waiter, Handed { received, from });
        };
        put(self.place_for(task, from), token, arriving);
    }

    /// Where a task's event is to be put that brings it a value from there.
    #[inline(always)]
    pub(super) fn place_for(&mut self, task: TaskId, from: Origin) -> &mut TaskEvent {
        let (trace, shard) = (self.stages.take_handing(), self.index);
        let (head, place) = self.events.place();
        *head = EventHead {
            task,
            trace,
            shard,
            from,
        };
        place
    }

    /// As [`Core::bring_value`], to what is no task of this shard. Apart, so that what brings a task its value is
    /// short.
    #[inline(never)]
    pub(super) fn bring_elsewhere(&mut self, waiter: Waiter, handed: Handed) {
        if waiter != Waiter::Leader {
            return self.complete(waiter, Ok(handed));
        }
        let trace = self.stages.take_handing();
        let waking = self.waking_of(trace);
        self.waits.tell_leader(waking, Ok(handed));
    }

    /// What the stages have to say of a value that an application thread takes.
    #[inline]
    pub(super) fn waking_of(&mut self, trace: u16) -> u64 {
        if trace == 0 {
            return 0;
        }
        self.stages.hands_to_thread(trace)
    }

    /// As [`Core::bring`], to a waiter that is no task of this shard.
    #[inline(never)]
    fn bring_outside(
        &mut self,
        waiter: Waiter,
        trace: u16,
        outcome: Result<Handed, Status>,
    ) -> Option<Handed> {
        match waiter {
            Waiter::Task { .. } => return outcome.ok(),
            Waiter::Wait(ticket) => match self.waits.remove(ticket) {
                Some(Wait::Outside { cell, stops, .. }) => {
                    return self.bring_to_thread(&cell, stops.as_ref(), trace, outcome);
                }
                Some(Wait::Neighbour { shard, theirs, .. }) => {
                    self.neighbour_queues.push(
                        shard,
                        ShardMessage::Deliver {
                            wait: theirs,
                            outcome,
                        },
                    );
                }
                Some(Wait::Away { shard, task, token }) => {
                    self.tell_received(task, token, 0, shard, outcome);
                }
                // He has left: what he was to have goes back.
                None => return outcome.ok(),
            },
            Waiter::Leader => {
                let waking = self.waking_of(trace);
                self.waits.tell_leader(waking, outcome);
            }
            Waiter::Asked(ticket) => {
                if let (Some(asked), Err(status)) = (self.asked.remove(ticket), outcome)
                    && let Some(link) = self.links.at_mut(asked.link)
                {
                    link.channel.unpark_request(asked.request);
                    link.channel.fail_request(asked.request, &status);
                    self.links.touch(asked.link);
                }
            }
        }
        None
    }

    /// A value goes to its waiter: the credit it held goes back.
    #[inline]
    pub(crate) fn hand_over(&mut self, waiter: Waiter, value: Value, from: Origin) {
        let handed = self.handed(value, from);
        self.complete(waiter, Ok(handed));
    }

    /// A value leaves the table for a waiter.
    #[inline]
    pub(super) fn handed(&mut self, value: Value, from: Origin) -> Handed {
        self.stats.delivered += 1;
        self.stages.meets(value.trace);
        let received = self.taken(value);
        Handed { received, from }
    }

    /// A value leaves the table for good.
    #[inline]
    pub(crate) fn taken(&mut self, value: Value) -> Received {
        if value.lines > 0 {
            self.return_lines(value.link, value.lines);
        }
        if value.path == Path::Lease {
            self.hold(&value.tensor);
        }
        Received {
            tensor: value.tensor,
            is_dead: value.is_dead,
            path: value.path,
        }
    }

    #[inline(always)]
    pub(crate) fn return_lines(&mut self, link: LinkId, lines: u32) {
        if let Some(entry) = self.links.at_mut(link) {
            entry.channel.take_lines(self.now, lines);
            self.watch_link(link);
        }
    }

    /// The link has something to say, at once or by a time.
    #[inline(always)]
    pub(crate) fn watch_link(&mut self, link: LinkId) {
        let Some(entry) = self.links.at(link) else {
            return;
        };
        if !entry.is_plain() {
            return self.watch_besides(link);
        }
        if entry.must_post(self.now) {
            self.links.touch(link);
        } else {
            self.next_timer = self.next_timer.min(entry.channel.poll_timeout());
        }
    }

    /// As [`Core::watch_link`], for a link whose credit a send waits for, or whose time is not noted.
    #[cold]
    fn watch_besides(&mut self, link: LinkId) {
        self.links.note_timer(link);
        let entry = &self.links[link];
        if entry.is_awaited() {
            self.stir(link);
            // It is looked at again when it has been posted to.
            return self.links.touch(link);
        }
        if entry.must_post(self.now) {
            self.links.touch(link);
        } else {
            self.next_timer = self.next_timer.min(entry.channel.poll_timeout());
        }
    }

    /// How a neighbour knows a key of ours. What is made here must be sent: a whole key is answered.
    pub(crate) fn message_key(&mut self, id: KeyId) -> Option<MessageKey> {
        let entry = self.keys.at_mut(id)?;
        Some(match entry.owner_id {
            Some(theirs) => MessageKey::Id(theirs),
            None => {
                entry.asked += 1;
                MessageKey::Key(entry.key.clone(), id)
            }
        })
    }

    /// The full key of a slot, for messages to people.
    pub(crate) fn key_of(&self, slot: Slot) -> Option<Key> {
        self.keys.at(slot.key).map(|entry| entry.key.at(slot.at))
    }

    #[inline]
    pub(crate) const fn slot_of(key: KeyId, point: Point) -> Slot {
        Slot {
            step: point.step,
            key,
            at: point.at,
        }
    }

    #[inline]
    pub(crate) const fn point_of(slot: Slot) -> Point {
        Point {
            step: slot.step,
            at: slot.at,
        }
    }
}

/// Puts a value where its task's event is to be. There is none to drop.
#[inline(always)]
pub(super) fn put(place: &mut TaskEvent, token: u64, arriving: impl Arriving) {
    let outcome = Ok(arriving.received());
    std::mem::forget(std::mem::replace(
        place,
        TaskEvent::Received { token, outcome },
    ));
}
