//! Interrupts: the first ends what is being measured, and leaves what was measured until then; a second ends the
//! process at once.
//!
//! Knows signals; not what is measured. Loops that measure look at the flag where they look at the clock: one more load
//! of a line that is not written to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use signal_hook::consts::SIGINT;
use signal_hook::flag;

use crate::error::CliError;
use rendez::ground::{Status, catalogue};

/// An interrupt from a terminal may end a far side that has just started: so long one is looked for after a failure.
const GRACE: Duration = Duration::from_millis(300);
/// How often.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The flag of this process.
static CAME: OnceLock<Interrupts> = OnceLock::new();

/// Tells of an interrupt.
#[derive(Clone, Default, Debug)]
pub(crate) struct Interrupts {
    came: Arc<AtomicBool>,
}

impl Interrupts {
    /// Those of this process; none come before [`Interrupts::listen`].
    pub(crate) fn of_process() -> Self {
        CAME.get_or_init(Self::default).clone()
    }

    /// From now on an interrupt ends what is measured, and not the process.
    pub(crate) fn listen() -> Result<Self, CliError> {
        let Self { came } = Self::of_process();
        // In this order: the one that comes first finds that none came. They stay when the run has ended: without them
        // an interrupt would end nothing at all.
        flag::register_conditional_default(SIGINT, Arc::clone(&came))
            .and_then(|_| flag::register(SIGINT, Arc::clone(&came)))
            .map_err(unhandled)?;
        Ok(Self { came })
    }

    /// From now on they pass this process by: it ends with the side that measures, which prints what it has.
    pub(crate) fn pass_by() -> Result<(), CliError> {
        flag::register(SIGINT, Arc::default())
            .map(drop)
            .map_err(unhandled)
    }

    /// Whether one came.
    #[inline(always)]
    pub(crate) fn came(&self) -> bool {
        self.came.load(Ordering::Relaxed)
    }

    /// # Errors
    /// `INTERRUPTED` if one came.
    pub(crate) fn check(&self) -> Result<(), CliError> {
        match self.came() {
            true => {
                let status = interrupted();
                Err(CliError::failure(status.reason(), status.message()))
            }
            false => Ok(()),
        }
    }

    /// Does `work`, unless an interrupt came.
    ///
    /// # Errors
    /// Its own; `INTERRUPTED` in place of it if that is why.
    pub(crate) fn or<T>(&self, work: impl FnOnce() -> Result<T, CliError>) -> Result<T, CliError> {
        self.check()?;
        let error = match work() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        for _ in 0..GRACE.as_millis() / LOOK_EVERY.as_millis() {
            self.check()?;
            std::thread::sleep(LOOK_EVERY);
        }
        Err(error)
    }

    /// Does `work`, which waits for others and measures nothing, on a thread that is left behind if an interrupt comes.
    ///
    /// # Errors
    /// Its own; `INTERRUPTED`.
    pub(crate) fn leave<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, CliError> + Send + 'static,
    ) -> Result<T, CliError> {
        let working = std::thread::spawn(work);
        while !working.is_finished() {
            self.check()?;
            std::thread::sleep(LOOK_EVERY);
        }
        working
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// What ends a measurement that has nothing to show yet.
pub(crate) fn interrupted() -> Status {
    Status::of(
        catalogue::INTERRUPTED,
        "what was measured until then stands above",
    )
}

fn unhandled(error: std::io::Error) -> CliError {
    let message = format!("signals cannot be handled: {error}");
    CliError::failure(catalogue::CONTROL_SYSTEM, message)
}
