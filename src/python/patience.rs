//! Waits that hear signals: what blocks is done on a thread of its own, and Python's thread looks at it now and then.

use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;
use rendez::Status;
use rendez::ground::{Locked, catalogue};

use super::errors::Failure;
use super::{ending, errands};

/// So long a thread waits before it looks at signals.
const SLICE: Duration = Duration::from_millis(50);

/// Does `work` on a thread of its own, and waits for it as Python waits: signals are heard meanwhile, and then
/// `give_up` is called once.
pub(crate) fn patiently<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> R + Send + 'static,
    give_up: impl FnOnce() + Send,
) -> PyResult<R> {
    let (give, given) = channel();
    std::thread::Builder::new()
        .name("rendez-wait".into())
        .spawn(move || drop(give.send(work())))?;
    let given = Mutex::new(given);
    loop {
        let waited = ending::detach(py, || {
            let given = given.locked();
            given.recv_timeout(SLICE)
        });
        match waited {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let message = "the thread that waited has panicked";
                let status = Status::of(catalogue::RPC_REMOTE_PANIC, message);
                return Err(Failure(status).into());
            }
        }
        errands::run(py);
        if let Err(signal) = py.check_signals() {
            ending::detach(py, give_up);
            return Err(signal);
        }
    }
}
