//! Receives that are waited for a while at a time, by threads that must look after other things in between: signals,
//! as a thread of Python does, or a user who gives up. And receives whose value is looked at before it is taken.

use std::task::{Context, Poll};
use std::time::Duration;

use super::{Recv, State, may_wait, spare_cell};
use crate::drive::Drive;
use crate::ground::{Status, faults};
use crate::mail::{Handed, Received};

impl Recv {
    /// Blocks this thread until the value is here, for at most `patience`. `None` says that it is not here yet: then
    /// the receive still waits, keeps its place, and nothing that is sent or said meanwhile is lost.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rendez::{Config, Engine, Key, StepId, Tensor};
    ///
    /// # let mut config = Config::new("/job:a/task:0");
    /// # (config.shards, config.share_cores, config.control) = (1, true, false);
    /// # let engine = Engine::start(config)?;
    /// let (step, key) = (engine.step(StepId(1)), Key::between("a", "a", "x")?);
    /// let mut receive = step.recv(&key);
    /// assert!(receive.wait_at_most(Duration::from_millis(1)).is_none());
    /// step.send(&key, Tensor::scalar(1_u8))?;
    /// let received = receive.wait_at_most(Duration::from_secs(10)).expect("it was sent")?;
    /// assert_eq!(received.item::<u8>()?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Recv::wait`].
    pub fn wait_at_most(&mut self, patience: Duration) -> Option<Result<Received, Status>> {
        let outcome = self.wait_slice(patience)?;
        Some(outcome.map(|handed| handed.received))
    }

    /// As [`Recv::wait_at_most`]; `look` says what becomes of the value. What it refuses goes back to the front of its
    /// key, for the next receive.
    ///
    /// # Errors
    /// As [`Recv::wait`], and what `look` returns.
    pub fn wait_at_most_and<T>(
        &mut self,
        patience: Duration,
        look: impl FnOnce(&Received) -> Result<T, Status>,
    ) -> Option<Result<T, Status>> {
        let outcome = self.wait_slice(patience)?;
        Some(outcome.and_then(|handed| self.look(handed, look)))
    }

    /// Polls it, as its future does; `look` says what becomes of the value. What it refuses goes back to the front of
    /// its key, for the next receive.
    ///
    /// # Errors
    /// As [`Recv::wait`], and what `look` returns.
    pub fn poll_and<T>(
        &mut self,
        context: &mut Context<'_>,
        look: impl FnOnce(&Received) -> Result<T, Status>,
    ) -> Poll<Result<T, Status>> {
        self.poll_handed(context)
            .map(|outcome| outcome.and_then(|handed| self.look(handed, look)))
    }

    fn look<T>(
        &self,
        handed: Handed,
        look: impl FnOnce(&Received) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let taken = look(&handed.received);
        if taken.is_err() {
            self.unread(handed);
        }
        taken
    }

    fn wait_slice(&mut self, mut patience: Duration) -> Option<Result<Handed, Status>> {
        if let Err(status) = may_wait() {
            return Some(Err(self.ended.take().unwrap_or(status)));
        }
        let begins = match self.prepare() {
            Ok(begins) => begins,
            Err(status) => return Some(Err(status)),
        };
        if let Some((deadline, stops)) = begins {
            let shard = self.engine.reach(&self.key);
            // As `wait`: a thread that turns the shard hears of the outcome there.
            let turn = shard.drive.filter(|_| self.hook.is_loose());
            if let Some(turn) = turn.and_then(Drive::enter_soon) {
                let led = turn.receive_for(&self.key, self.step, deadline, patience, spare_cell);
                match led {
                    Ok(led) => {
                        self.engine.woke(&self.key, led.waking);
                        self.state = State::Done;
                        return Some(led.outcome);
                    }
                    Err((cell, left)) => {
                        self.state = State::Waiting(cell);
                        patience = left;
                    }
                }
            } else {
                let cell = spare_cell();
                let command = self.command(&cell, deadline, stops);
                self.state = State::Waiting(cell);
                let shard = self.engine.reach(&self.key);
                if shard.command(command).is_err() {
                    return Some(Err(self.refused()));
                }
            }
        }
        if let Some(cell) = self.cancelled_cell() {
            return Some(self.cancel(cell));
        }
        let State::Waiting(cell) = &self.state else {
            return Some(Err(faults::cancelled()));
        };
        let outcome = self.engine.reach(&self.key).wait(cell, Some(patience))?;
        self.engine.woke(&self.key, cell.woke().unwrap_or(0));
        self.recycle();
        Some(outcome)
    }
}
