//! Services of Python's: functions that other tasks' calls reach, and calls to theirs.
//!
//! The modules of the package use them, as `rendez.torch.checkpoint`; the numbers are those of the command's pushes and
//! the package's own. A function runs on a thread of the engine's that serves calls, with the interpreter's lock.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rendez::Status;
use rendez::control::{Incoming, Services};
use rendez::ground::{Locked, catalogue};

use super::calls::exit;
use super::errors::{Outcome, argument, status_of};

/// The numbers that Python may serve.
const METHODS: RangeInclusive<u32> = 48..=63;

/// The functions of one engine, by number.
#[derive(Clone, Default)]
pub(crate) struct Table(Arc<Mutex<HashMap<u32, Py<PyAny>>>>);

impl Table {
    /// What the engine is started with: for each number, what the table has for it when it is called.
    pub(crate) fn services(&self) -> Services {
        METHODS.fold(Services::new(), |services, method| {
            let table = self.clone();
            services.on(method, move |call| table.answer(call))
        })
    }

    /// Has `function` answer calls of `method` from now on; without one they are refused.
    pub(crate) fn set(&self, method: u32, function: Option<Py<PyAny>>) -> Outcome<()> {
        if !METHODS.contains(&method) {
            let (first, last) = (METHODS.start(), METHODS.end());
            return Err(argument(format!(
                "service {method}: they are {first} to {last}"
            )));
        }
        let mut table = self.0.locked();
        let before = match function {
            Some(function) => table.insert(method, function),
            None => table.remove(&method),
        };
        // Its own end may come back here.
        drop(table);
        drop(before);
        Ok(())
    }

    /// Refuses all from now on. The functions hold what serves, and that the engine.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.0.locked());
        drop(all);
    }

    fn answer(&self, call: &Incoming) -> Result<Vec<u8>, Status> {
        let method = call.method;
        let ending = || Status::of(catalogue::SHUTDOWN, "the interpreter has ended");
        let _active = exit::SERVICES.enter().ok_or_else(ending)?;
        let answered = Python::try_attach(|py| {
            let table = self.0.locked();
            let found = table.get(&method).map(|function| function.clone_ref(py));
            drop(table);
            let Some(function) = found else {
                let message = format!("this task has no service {method}");
                return Err(Status::of(catalogue::CALL_UNKNOWN, message));
            };
            let payload = PyBytes::new(py, &call.payload);
            let answer = function.bind(py).call1((&call.task, payload));
            let answer = answer.and_then(|answer| answer.extract::<Vec<u8>>());
            answer.map_err(|error| failure(&error, py))
        });
        answered.unwrap_or_else(|| Err(ending()))
    }
}

/// What the caller hears of an exception.
fn failure(error: &PyErr, py: Python<'_>) -> Status {
    let status = status_of(error.value(py));
    if status.reason() == catalogue::STEP_ABORTED {
        return Status::of(catalogue::SERVICE_FAILED, status.message().to_owned());
    }
    status
}
