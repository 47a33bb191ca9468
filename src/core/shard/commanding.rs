//! Commands: what application threads ask of a shard, taken from its mailbox in bursts.
//!
//! It decides nothing: each is a send, a receive, or a send that waits for room.

use std::sync::Arc;

use super::Shard;
use super::faults;
use super::ids::NO_LINK;
use super::mailbox::{Command, bytes_of};
use super::stops::Stops;
use super::value::Handed;
use super::wait::WaitCell;
use crate::ground::{Key, Nanos, Status, StepId};
use crate::memory::Tensor;

/// Application commands taken in one turn: enough to amortise the look, few enough that peers do not wait.
const COMMANDS_PER_TURN: usize = 32;

impl Shard {
    /// A command of the thread that turns the shard, after those that it left in the mailbox.
    #[inline]
    pub(crate) fn command(&mut self, command: Command) {
        self.take_earlier();
        self.take_command(command);
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
        self.take_earlier();
        self.core.stages.count();
        let sent = self.send_from_outside(key, step, tensor, is_dead);
        self.mailbox.taken(0, self.core.is_pressed());
        sent
    }

    /// A receive of the thread that turns the shard, as [`Shard::command`].
    #[inline]
    pub(crate) fn recv_of_caller(
        &mut self,
        key: &Key,
        step: StepId,
        deadline: Nanos,
        cell: Arc<WaitCell<Handed>>,
        stops: Option<Stops>,
    ) {
        self.take_earlier();
        self.receive(key, step, deadline, cell, stops);
        if !self.mailbox.pressure().is_none() {
            self.mailbox.taken(0, self.core.is_pressed());
        }
    }

    /// What was given up, and what was asked for, before.
    #[inline]
    fn take_earlier(&mut self) {
        self.take_cancels();
        if self.mailbox.has_commands() {
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
        let link = self.core.send_from_outside(key, step, tensor, is_dead)?;
        self.has_posted = true;
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
        if self.mailbox.pressure().is_laned() {
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
        // Those in the lane wait for fewer now.
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
            Command::SendInTurn(parcel) => self.take_parcel(parcel),
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
        self.take_cancels();
        if cell.is_abandoned() {
            return;
        }
        if stops.as_ref().is_some_and(Stops::is_raised) {
            cell.complete(Err(faults::cancelled()));
            return;
        }
        self.core.recv_for_cell(key, step, deadline, cell, stops);
    }
}
