//! Interrupts: the first ends a run after what is being measured, and leaves what was done before it; a second ends the
//! process at once.
//!
//! Knows signals; not what is measured. An interrupt from a terminal also ends the far side, and so the measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::SIGINT;
use signal_hook::flag;

use crate::error::CliError;
use rendez::ground::catalogue;

/// The far side may end a moment before this one hears of the interrupt: so long it is looked for after a failure.
const GRACE: Duration = Duration::from_millis(300);
/// How often.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Tells of an interrupt.
pub(super) struct Interrupts {
    came: Arc<AtomicBool>,
}

impl Interrupts {
    /// From now on an interrupt ends the run, and not the process.
    pub(super) fn listen() -> Result<Self, CliError> {
        let came: Arc<AtomicBool> = Arc::default();
        let failed = |error: std::io::Error| {
            let message = format!("signals cannot be handled: {error}");
            CliError::failure(catalogue::CONTROL_SYSTEM, message)
        };
        // In this order: the one that comes first finds that none came. They stay when the run has ended: without them
        // an interrupt would end nothing at all.
        flag::register_conditional_default(SIGINT, Arc::clone(&came))
            .and_then(|_| flag::register(SIGINT, Arc::clone(&came)))
            .map_err(failed)?;
        Ok(Self { came })
    }

    /// # Errors
    /// `INTERRUPTED` if one came.
    pub(super) fn check(&self) -> Result<(), CliError> {
        match self.came.load(Ordering::Relaxed) {
            true => {
                let message = "what was measured until then stands above";
                Err(CliError::failure(catalogue::INTERRUPTED, message))
            }
            false => Ok(()),
        }
    }

    /// Does `work`, unless an interrupt came.
    ///
    /// # Errors
    /// Its own; `INTERRUPTED` in place of it if that is why.
    pub(super) fn or<T>(&self, work: impl FnOnce() -> Result<T, CliError>) -> Result<T, CliError> {
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
}
