//! Sends and receives that only this crate's tests make: of the thread that turns the shard, and sends that no caller
//! hears of.

use super::Solo;
use crate::ground::{Key, Nanos, Status, StepId};
use crate::mail::Handed;
use crate::mail::mailbox::{Command, bytes_of};
use crate::memory::Tensor;

impl Solo {
    /// What a thread asks its shard for before it sleeps: true if there is nothing to do.
    pub(crate) fn arm(&mut self) -> bool {
        self.shard.arm()
    }

    /// A value of the thread that turns the shard, which lays it down then.
    ///
    /// # Errors
    /// Why it was not taken.
    pub(crate) fn send_of_caller(
        &mut self,
        step: StepId,
        key: &Key,
        tensor: Tensor,
    ) -> Result<(), Status> {
        self.shard.resume(true);
        let sent = self.shard.send_of_caller(key, step, tensor, false);
        self.shard.turn_after_send();
        sent
    }

    /// A receive of the thread that turns the shard; its outcome comes by [`Solo::take_led`].
    pub(crate) fn recv_of_leader(&mut self, step: StepId, key: &Key) {
        self.shard.resume(true);
        self.shard.recv_of_leader(key, step, Nanos::NEVER);
    }

    /// The outcome of a receive of the thread that turns the shard, if it is there.
    pub(crate) fn take_led(&mut self) -> Option<Result<Handed, Status>> {
        self.shard.take_led().map(|led| led.outcome)
    }

    /// A send through the mailbox whose outcome no caller waits for.
    pub(crate) fn send_unheard(&mut self, step: StepId, key: &Key, tensor: Tensor) {
        self.mailbox.weigh(bytes_of(&tensor), u64::MAX);
        let command = Command::Send {
            key: key.clone(),
            step,
            tensor,
            is_dead: false,
            answer: None,
            queued_at: Nanos::ZERO,
        };
        assert!(self.mailbox.command(command).is_ok(), "the mailbox is full");
    }
}
