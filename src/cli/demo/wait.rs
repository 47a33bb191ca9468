//! How a side of the demonstration waits for the other, and learns that there is no other any more.
//!
//! Knows engines and receives; nothing of tensors and files. Until the two have met only the system can tell that the
//! other process ended, so it is asked from time to time. From then on the engine tells: a receive of something that
//! never comes ends when the other side does, whatever else this side waits for at that moment.

use std::time::{Duration, Instant};

use futures_lite::future::or;

use super::plan;
use super::tasks::Failure;
use crate::clock::before;
use crate::error::CliError;
use crate::exchange::lost;
use rendez::engine::{Engine, Recv};
use rendez::ground::{Key, Status, catalogue};
use rendez::memory::Tensor;

/// Time for two processes of one machine to meet; a loaded one starts a process in milliseconds.
pub(super) const MEET_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the system is asked whether the other process lives, and a task whether it has given up.
const LOOK: Duration = Duration::from_millis(20);

/// How long a process that has closed its connections may take to be gone.
const DYING: Duration = Duration::from_millis(200);

/// One side's view of the other.
pub(super) struct PairWait<'a> {
    engine: &'a Engine,
    /// Ends with the other side and not before.
    end: Recv,
    pub(super) failure: Failure,
    has_met: bool,
    since: Instant,
    /// What the system knows of the other process's end.
    ended: &'a mut dyn FnMut() -> Option<String>,
    other: &'static str,
}

impl<'a> PairWait<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        (this, other): (&'static str, &'static str),
        ended: &'a mut dyn FnMut() -> Option<String>,
    ) -> Result<Self, CliError> {
        let end = engine
            .step(plan::TALK)
            .recv(&plan::key(other, this, "never")?);
        let (failure, since) = (Failure::default(), Instant::now());
        Ok(Self {
            engine,
            end,
            failure,
            has_met: false,
            since,
            ended,
            other,
        })
    }

    /// Waits for a tensor of the talk between the two sides.
    pub(super) fn hear(&mut self, key: &Key) -> Result<Tensor, CliError> {
        let heard = self.value(self.engine.step(plan::TALK).recv(key))?;
        self.has_met = true;
        Ok(heard)
    }

    /// Says something in the talk.
    pub(super) fn say(&self, key: &Key, tensor: Tensor) -> Result<(), CliError> {
        Ok(self.engine.step(plan::TALK).send(key, tensor)?)
    }

    /// Waits for a value of the step of tensors.
    pub(super) fn value_of(&mut self, key: &Key) -> Result<Tensor, CliError> {
        self.value(self.engine.step(plan::TENSORS).recv(key))
    }

    fn value(&mut self, mut value: Recv) -> Result<Tensor, CliError> {
        loop {
            // What came before the other was lost counts.
            let came = async { (&mut value).await.map(|received| received.tensor) };
            let next = before(Instant::now() + LOOK, or(came, lost(&mut self.end)));
            let lost = match next.transpose() {
                Ok(Some(tensor)) => return Ok(tensor),
                Ok(None) => None,
                Err(status) => Some(status),
            };
            // A failure of this side is the cause of what the other does.
            if let Some(status) = self.failure.get().cloned().or(lost) {
                return Err(self.explain(&status));
            }
            if !self.has_met {
                self.look()?;
            }
        }
    }

    /// Before they have met only the system knows the other process.
    fn look(&mut self) -> Result<(), CliError> {
        let other = self.other;
        if let Some(how) = (self.ended)() {
            let message = format!("the {other} {how} before the two had met");
            return Err(CliError::failure(catalogue::PEER_LOST, message));
        }
        if self.since.elapsed() > MEET_TIMEOUT {
            let message = format!(
                "the {other} is there but does not answer after {} s; is it stopped, or the machine overloaded?",
                MEET_TIMEOUT.as_secs()
            );
            return Err(CliError::failure(catalogue::CONNECT_DEADLINE, message));
        }
        Ok(())
    }

    /// A status as it is told: of a lost peer with what the system knows of its end. A connection ends a little before
    /// its process does, so the system is given a moment.
    fn explain(&mut self, status: &Status) -> CliError {
        let until = Instant::now() + DYING;
        while status.reason() == catalogue::PEER_LOST {
            if let Some(how) = (self.ended)() {
                return CliError::failure(
                    status.reason(),
                    format!("the {} {how}; {}", self.other, status.message()),
                );
            }
            if Instant::now() > until {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        CliError::from(status.clone())
    }
}

/// True if the first thread of a process has ended, though others may still be on their way out of the kernel.
///
/// The kernel takes the rings of a killed process down before it reports the end, on threads of its own that wait for a
/// core like all others: on a loaded machine that was seen to take seconds. Of both sides here the first thread is the
/// last to leave by itself, so that its end proves that of the process. Whether it was killed is not known yet.
pub(super) fn is_leaving(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
}
