//! Calls: what the control plane asks of a shard, done between two polls.
//!
//! Rare and cold; a call may allocate and format.

use std::time::Duration;

use super::Call;
use super::ids::{Id, PeerId, TaskId};
use super::owed::Owed;
use super::panicking::quietly;
use super::{ARRIVALS_PER_TURN, Shard, Task, TaskEvent};
use crate::fabric::{AnyPort, Arrival, Port};
use crate::ground::{Nanos, faults};
use crate::mail::ShardStats;
use crate::trace::recorder::What;

/// Looks at a queue pair of a peer that goes: more than a ring or the buffer of a socket takes, and no more for one
/// that says on and on.
const LAST_LOOKS: usize = 256;

/// How often a shard that stops drops what peers send it.
const DROP_AGAIN: Duration = Duration::from_millis(20);

impl Shard {
    #[cold]
    pub(super) fn take_calls(&mut self) -> usize {
        self.core.now = self.clock.stamp();
        let mut done = 0;
        while let Some(call) = self.mailbox.next_call() {
            // Cancels made before the call count in what it asks for. It stands where it is refused if one panics.
            self.for_home.push(call);
            done += 1 + self.take_cancels();
            let Some(call) = self.for_home.pop() else {
                break;
            };
            self.handle_call(call);
        }
        done + self.take_cancels()
    }

    /// Receives given up, and values left unread: heeded before whatever was asked for later.
    #[inline]
    pub(super) fn take_cancels(&mut self) -> usize {
        if self.mailbox.cancels_came() {
            self.take_all_cancels()
        } else {
            0
        }
    }

    #[cold]
    fn take_all_cancels(&mut self) -> usize {
        let mut done = 0;
        while let Some(cancel) = self.mailbox.next_cancel() {
            self.core.cancel(cancel);
            done += 1;
        }
        done
    }

    /// Takes what the peer's queue pairs still hold, within what they can hold.
    fn poll_last(&mut self, at: PeerId) {
        for link in self.core.peers[at].links.clone() {
            for _ in 0..LAST_LOOKS {
                let Self { core, ports, .. } = self;
                let Some((port, qp)) = core.links.at(link).and_then(|link| link.qp) else {
                    break;
                };
                let (now, sink) = (core.now, &mut |arrival: Arrival<'_>| {
                    core.arrived(port, arrival)
                });
                if ports[port].poll_one(qp, now, ARRIVALS_PER_TURN, sink) == 0 {
                    break;
                }
            }
        }
    }

    #[cold]
    pub(super) fn end_task(&mut self, task: TaskId, body: Box<dyn Task>) {
        let is_done = self.finished.contains(&task);
        self.finished.clear();
        if is_done {
            let dropped = quietly(|| drop(body));
            self.core.forget_task(task);
            self.tell_end(task, dropped);
        } else {
            self.tasks[task] = Some(body);
        }
    }

    /// A place for a task: that of one that has ended, or a new one.
    fn place_of_task(&mut self) -> TaskId {
        self.vacant.pop().unwrap_or_else(|| {
            self.seats.push(None);
            self.tasks.push(None)
        })
    }

    pub(super) fn handle_call(&mut self, call: Call) {
        let Some(call) = self.unless_for_home(call) else {
            return;
        };
        match call {
            Call::PeerUp(up) => {
                self.core.remember_peer(What::PeerUp, &up.task);
                self.core.peer_up(*up, &mut self.ports);
                // The hello leaves before the peer's can be polled.
                self.transmit();
                self.flush();
            }
            Call::PeerLost { task, status } => {
                // What was asked for before it went ends with it, and does not wait for its next life.
                if !mutant!("earlier_receives_outlive_peers") {
                    self.take_commands_before();
                }
                if let Some(at) = self.core.peers.find(&task) {
                    // What the peer had said before it went is still in the rings: it counts.
                    self.poll_last(at);
                    self.core.remember_peer(What::PeerDown, &task);
                    self.core.peer_lost(at, &status);
                }
            }
            Call::PeerExited { task, incarnation } => self.core.peer_exited(&task, incarnation),
            Call::PeerAway {
                task,
                status,
                until,
            } => self.core.peer_away(&task, status, until),
            Call::PeerSegment {
                task,
                incarnation,
                segment,
            } => self.core.peer_segment(&task, incarnation, segment),
            Call::Ports(work) => work(&mut self.ports),
            Call::PeerClock { task, clock } => {
                if let Some(at) = self.core.peers.find(&task) {
                    self.core.stages.compare(at.row(), Some(clock));
                }
            }
            Call::Traced { step, trace } => self.core.stages.traced(step, &trace),
            Call::Abort { step, status } => {
                if self.core.abort(step, &status) {
                    self.core.tell_neighbours(step, &status);
                }
            }
            Call::Finish { step } => {
                // What was sent before it was called is sent.
                self.take_commands_before();
                self.core.finish(step);
            }
            Call::Deadline {
                step,
                deadline,
                answer,
            } => {
                Owed::new(answer).complete(self.core.end_by(step, deadline));
            }
            Call::Spawn { task, seat } => {
                let roams = task.roams();
                let at = self.place_of_task();
                self.tasks[at] = Some(task);
                seat.sit(at.number(), roams);
                self.bound += usize::from(!roams);
                self.seats[at] = Some(seat);
                self.call_task(at, TaskEvent::Started);
            }
            Call::Wake { seat } => {
                self.call_task(TaskId::from_number(seat.answer()), TaskEvent::Woken)
            }
            Call::Pending { answer } => {
                Owed::new(answer).complete(Ok(self.core.pending()));
            }
            Call::Stats { answer } => {
                Owed::new(answer).complete(Ok(self.stats()));
            }
            Call::Stop { deadline } => {
                // What was taken before it leaves before the end.
                self.take_commands_before();
                self.stopping = Some(deadline);
                for task in self.tasks.ids() {
                    self.call_task(task, TaskEvent::Stopping);
                }
                self.core.drain_for_stop();
            }
            Call::Fail { status } => self.fail(&status),
        }
    }

    /// What was counted, and what is held now.
    #[must_use]
    pub fn stats(&self) -> ShardStats {
        ShardStats {
            verbs: self
                .ports
                .iter()
                .find_map(AnyPort::verbs_stats)
                .unwrap_or_default(),
            ..self.core.stats()
        }
    }

    /// True when the shard may end: nothing is owed any more, by it or by another of its process, or the time is up.
    pub(super) fn may_stop(&mut self, deadline: Nanos) -> bool {
        if self.core.now < deadline && !(self.core.is_drained() && self.are_all_drained()) {
            // What has come since. Now and then: it looks at all keys.
            if self.core.table.stats().values > 0 && self.drops_at <= self.core.now {
                self.core.drop_unreceived();
                self.drops_at = self.core.now.after(DROP_AGAIN);
            }
            return false;
        }
        if self.failed.is_none() {
            for (peer, dropped) in self.core.unsent(None) {
                let task = &self.core.peers[peer].task;
                self.core
                    .observer
                    .dropped(task, dropped, &faults::shutdown());
            }
        }
        let status = self.failed.take().unwrap_or_else(faults::shutdown);
        self.core.lose_taken_sends(&status);
        self.core.end_everything(&status);
        self.core.links.close_all(&mut self.ports);
        self.mailbox.close(&status);
        true
    }
}

impl Shard {
    /// True if the others of the process owe nothing either: one of them may still have a value to send by a key of
    /// ours. Where a shard has failed, none waits for it.
    fn are_all_drained(&mut self) -> bool {
        if self.failed.is_some() || mutant!("shards_stop_alone") {
            return true;
        }
        self.core.neighbour_queues.say_drained(self.core.index);
        self.transmit();
        let mut neighbours = self.neighbours.iter().flatten();
        let has_told = self.core.neighbour_queues.is_empty();
        has_told
            && self.core.neighbour_queues.are_drained()
            && !neighbours.any(|one| one.from.is_ready())
    }
}

/// What stands in the mailbox of a shard that is gone is answered, also where it did not end in good order; and it
/// keeps the mailbox alive no longer.
impl Drop for Shard {
    fn drop(&mut self) {
        self.mailbox.close(&faults::shutdown());
        self.refuse_for_home(&self.mailbox.end());
        self.drop_tasks(&Ok(()));
    }
}
