//! Commands: what application threads ask of a shard, taken from its mailbox in bursts.
//!
//! It decides nothing: each is a send, a receive, or a send that waits for room.

use std::sync::Arc;
use std::time::Duration;

use super::ids::NO_LINK;
use super::owed::Owed;
use super::posting::Outlet;
use super::waits::Led;
use super::{Progress, Shard};
use crate::ground::{Key, Nanos, Status, StepId, faults};
use crate::mail::Handed;
use crate::mail::mailbox::{Command, bytes_of};
use crate::mail::stops::Stops;
use crate::mail::wait::WaitCell;
use crate::memory::Tensor;
use crate::rendezvous::WaiterId;

/// Application commands taken in one turn: enough to amortise the look, few enough that peers do not wait.
const COMMANDS_PER_TURN: usize = 32;
/// How often a thread that only sends hears peers. More often than its shard's own thread would look in.
const SENDS_HEAR_EVERY: Duration = Duration::from_micros(10);

impl Shard {
    /// A command of the thread that turns the shard, after those that it left in the mailbox. It stays where it is if
    /// one of those panics.
    #[inline]
    pub(crate) fn command(&mut self, command: &mut Option<Command>) {
        self.take_earlier();
        if let Some(command) = command.take() {
            self.take_command(command);
        }
    }

    /// A value of the thread that turns the shard, as [`Shard::command`].
    ///
    /// # Errors
    /// Why it was not taken.
    #[inline]
    pub(crate) fn send_of_caller(
        &mut self,
        key: &Key,
        step: StepId,
        tensor: Tensor,
        is_dead: bool,
    ) -> Result<(), Status> {
        // It turns a while longer, to tell its peers, and takes nothing.
        if let Some(status) = &self.failed {
            return Err(status.clone());
        }
        self.take_earlier();
        self.core.stages.count();
        let sent = self.send_from_outside(key, step, tensor, is_dead);
        self.mailbox.taken(0, self.core.is_pressed());
        sent
    }

    /// A receive of the thread that turns the shard, as [`Shard::command`]; it waits here for the outcome, which
    /// [`Shard::take_led`] gives. Where the table has it, unless the outcome is there.
    #[inline]
    pub(crate) fn recv_of_leader(
        &mut self,
        key: &Key,
        step: StepId,
        deadline: Nanos,
    ) -> Option<WaiterId> {
        self.take_earlier();
        debug_assert!(!self.has_led(), "an outcome that its leader left");
        let at = self.core.recv_of_leader(key, step, deadline);
        if !self.mailbox.pressure().is_none() {
            self.mailbox.taken(0, self.core.is_pressed());
        }
        at
    }

    /// What a send of the thread that turns the shard leaves to do: a turn, unless it could only hear peers, and one
    /// has heard them within [`SENDS_HEAR_EVERY`]. The thread's next wait hears them at once.
    #[inline]
    pub(crate) fn turn_after_send(&mut self) -> Progress {
        let since = self.core.now.0.saturating_sub(self.heard_at.0);
        if since < SENDS_HEAR_EVERY.as_nanos() as u64 && !self.has_more_to_do() {
            return Progress::Idle;
        }
        self.heard_at = self.core.now;
        self.turn()
    }

    /// True if a turn would do more than to hear peers.
    #[inline]
    fn has_more_to_do(&self) -> bool {
        self.is_due
            || self.has_posted
            || self.mailbox.has_any()
            || !self.neighbours.is_empty()
            || self.core.has_output()
            || !self.core.events.is_empty()
            || !self.again.is_empty()
            || !self.core.send_queue.is_empty()
    }

    /// True if the outcome for the thread that turns the shard and waits is there.
    #[inline]
    pub(crate) const fn has_led(&self) -> bool {
        self.core.waits.has_led()
    }

    /// The outcome for the thread that turns the shard and waits, if it is there.
    #[inline]
    pub(crate) const fn take_led(&mut self) -> Option<Led> {
        self.core.waits.take_led()
    }

    /// That thread leaves before it has its outcome, which comes to `cell`.
    pub(crate) fn leader_leaves(&mut self, at: WaiterId, cell: Arc<WaitCell<Handed>>) {
        self.core.leader_leaves(at, cell);
    }

    /// What was given up, and what was asked for, before.
    #[inline]
    fn take_earlier(&mut self) {
        self.take_cancels();
        if self.mailbox.commands_came() {
            self.take_commands_before();
            self.mailbox.more_commands();
        }
    }

    #[inline]
    fn send_from_outside(
        &mut self,
        key: &Key,
        step: StepId,
        tensor: Tensor,
        is_dead: bool,
    ) -> Result<(), Status> {
        let mut outlet = Outlet::new(&mut self.ports);
        let sent = (self.core).send_from_outside(key, step, tensor, is_dead, &mut outlet);
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

    pub(super) fn take_commands(&mut self) -> usize {
        let mut done = 0;
        loop {
            if done == COMMANDS_PER_TURN {
                self.mailbox.more_commands();
                break;
            }
            let Some(command) = self.mailbox.next_command() else {
                break;
            };
            self.take_command(command);
            done += 1;
        }
        if self.mailbox.pressure().has_overflow() {
            done += self.take_lane(done);
        }
        done
    }

    /// Takes the commands that are there now, however many, and leaves those that come meanwhile.
    #[cold]
    pub(super) fn take_commands_before(&mut self) {
        let mut done = 0;
        for _ in 0..self.mailbox.commands() {
            let Some(command) = self.mailbox.next_command() else {
                break;
            };
            self.take_command(command);
            done += 1;
        }
        // Those in the overflow wait for fewer now.
        if let Some(before) = &mut self.before_lane {
            *before = before.saturating_sub(done);
        }
    }

    #[inline]
    fn take_command(&mut self, command: Command) {
        let bytes = match &command {
            Command::Send { tensor, .. } => bytes_of(tensor),
            _ => 0,
        };
        self.handle_command(command);
        // The table counts these bytes from here on, so the mailbox may forget them only now.
        self.mailbox.taken(bytes, self.core.is_pressed());
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Send {
                key,
                step,
                tensor,
                is_dead,
                answer: None,
                ..
            } if self.core.is_pressed() => self.take_unheard(&key, step, tensor, is_dead),
            Command::Send {
                key,
                step,
                tensor,
                is_dead,
                answer,
                queued_at,
            } => {
                let answer = answer.map(Owed::new);
                self.core.stages.took(queued_at);
                let sent = self.send_from_outside(&key, step, tensor, is_dead);
                match (answer, sent) {
                    (Some(answer), sent) => {
                        answer.complete(sent);
                    }
                    (None, Err(status)) => self.core.lost(step, &status),
                    (None, Ok(())) => {}
                }
            }
            Command::SendInTurn(pending_send) => self.take_pending_send(pending_send),
            Command::Recv {
                key,
                step,
                deadline,
                cell,
                stops,
            } => self.receive(&key, step, deadline, cell, stops),
        }
    }

    #[inline]
    fn receive(
        &mut self,
        key: &Key,
        step: StepId,
        deadline: Nanos,
        cell: Arc<WaitCell<Handed>>,
        stops: Option<Stops>,
    ) {
        let cell = Owed::new(cell);
        self.take_cancels();
        if cell.is_abandoned() {
            return;
        }
        if stops.as_ref().is_some_and(Stops::is_raised) {
            cell.complete(Err(faults::cancelled()));
            return;
        }
        self.core.recv_outside(key, step, deadline, cell, stops);
    }
}
