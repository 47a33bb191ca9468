//! Commands: what application threads ask of a shard, taken from its mailbox in bursts.
//!
//! It decides nothing: each is a send, a receive, or a send that waits for room.

use super::Shard;
use super::faults;
use super::ids::NO_LINK;
use super::mailbox::{Command, bytes_of};
use super::stops::Stops;

/// Application commands taken in one turn: enough to amortise the look, few enough that peers do not wait.
const COMMANDS_PER_TURN: usize = 32;

impl Shard {
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
                let sent =
                    self.core
                        .send_from_outside(&mut self.ports, &key, step, tensor, is_dead);
                self.has_posted = true;
                if let Ok(link) = sent
                    && link != NO_LINK
                {
                    self.transmit_link(link);
                }
                match (answer, sent) {
                    (Some(answer), sent) => {
                        answer.complete(sent.map(drop));
                    }
                    (None, Err(status)) => self.core.lost(step, &status),
                    (None, Ok(_)) => {}
                }
            }
            Command::SendInTurn(parcel) => self.take_parcel(parcel),
            Command::Recv {
                key,
                step,
                deadline,
                cell,
                stops,
            } => {
                self.take_cancels();
                if cell.is_abandoned() {
                    return;
                }
                if stops.as_ref().is_some_and(Stops::is_raised) {
                    cell.complete(Err(faults::cancelled()));
                    return;
                }
                self.core.recv_for_cell(&key, step, deadline, cell, stops);
            }
        }
    }
}
