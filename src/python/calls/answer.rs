//! Calls and answers as they travel: which function, its arguments, its result, or what it raised.
//!
//! A call is its kind, a name, and its arguments; of a method or a value the reference comes first. An answer is a
//! value, or an exception. Both write values plainly where they are plain, and else by pickle, if that is allowed.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rendez::Status;
use rendez::ground::catalogue;

use super::body::{Body, Reader};
use super::core::{Core, failed};
use super::pickled;
use super::plain::{self, NotPlain, Taken};
use crate::errors::{Failure, raise};

/// A call of a function that was registered, by its name.
pub(crate) const NAMED: u8 = 0;
/// One of a function that is imported, by its module and its name there.
pub(crate) const IMPORTED: u8 = 1;
/// One of a method of a value that is referred to.
pub(crate) const METHOD: u8 = 2;
/// The question for a value that is referred to.
pub(crate) const FETCH: u8 = 3;

const PLAIN: u8 = 0;
const PICKLED: u8 = 1;

const VALUE: u8 = 0;
const RAISED: u8 = 1;

/// Writes the arguments behind what `body` has already.
pub(crate) fn write_arguments(
    py: Python<'_>,
    core: &Arc<Core>,
    mut body: Body,
    args: &Bound<'_, PyAny>,
    kwargs: &Bound<'_, PyAny>,
) -> PyResult<(Body, Taken)> {
    let both = PyTuple::new(py, [args, kwargs])?;
    let taken = write(py, core, &mut body, both.as_any())?;
    Ok((body.sealed(&core.engine).map_err(failed)?, taken))
}

/// The answer that is a value.
pub(crate) fn value(core: &Arc<Core>, value: &Bound<'_, PyAny>) -> PyResult<Body> {
    let mut body = Body::default();
    body.byte(VALUE);
    let taken = write(value.py(), core, &mut body, value)?;
    let body = body.sealed(&core.engine).map_err(failed)?;
    taken.keep();
    Ok(body)
}

/// The answer that is an exception. It is always one that can be written.
pub(crate) fn raised(py: Python<'_>, core: &Arc<Core>, error: &PyErr) -> Body {
    describe(py, core, error).unwrap_or_else(|_| {
        let name = error.get_type(py).name();
        let name = name.map_or_else(|_| String::new(), |name| name.to_string());
        plainly_raised(&name, "its exception cannot be described", None)
    })
}

/// A failure of this worker's, where there may be no interpreter.
pub(crate) fn fault(status: &Status) -> Body {
    plainly_raised("", status.message(), Some(status))
}

fn plainly_raised(kind: &str, message: &str, status: Option<&Status>) -> Body {
    let mut body = Body::default();
    body.byte(RAISED);
    let code = status.map_or(0, |status| status.code() as u8);
    let reason = status.map_or("", |status| status.reason());
    [kind, message, "", reason]
        .into_iter()
        .for_each(|text| body.text(text));
    body.byte(code);
    body.byte(0);
    body
}

fn describe(py: Python<'_>, core: &Arc<Core>, error: &PyErr) -> PyResult<Body> {
    let describe = py.import("rendez.rpc._errors")?.getattr("describe")?;
    let about = describe.call1((error.value(py), core.allows_pickle))?;
    type About = (String, String, String, String, u8, Option<Vec<u8>>);
    let (kind, message, trace, reason, code, bytes) = about.extract::<About>()?;
    let mut body = Body::default();
    body.byte(RAISED);
    for text in [kind, message, trace, reason] {
        body.text(&text);
    }
    body.byte(code);
    body.byte(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        body.blob(&core.engine, &bytes).map_err(failed)?;
    }
    body.sealed(&core.engine).map_err(failed)
}

/// What an answer of `worker` says.
pub(crate) fn read_answer(
    py: Python<'_>,
    core: &Arc<Core>,
    worker: &str,
    body: Body,
) -> PyResult<Py<PyAny>> {
    let mut reader = body.read();
    match reader.byte().map_err(failed)? {
        VALUE => {
            let value = read(py, core, &mut reader, worker)?;
            reader.end().map_err(failed)?;
            Ok(value.unbind())
        }
        _ => Err(exception(py, core, worker, reader)?),
    }
}

fn exception(
    py: Python<'_>,
    core: &Arc<Core>,
    worker: &str,
    mut reader: Reader,
) -> PyResult<PyErr> {
    let mut texts = [const { String::new() }; 4];
    for text in &mut texts {
        *text = reader.text().map_err(failed)?;
    }
    let [kind, message, trace, reason] = texts;
    let code = reader.byte().map_err(failed)?;
    let bytes = match reader.byte().map_err(failed)? {
        0 => None,
        _ => Some(reader.blob().map_err(failed)?),
    };
    let bytes = bytes.filter(|_| core.allows_pickle);
    let rebuild = py.import("rendez.rpc._errors")?.getattr("rebuild")?;
    let about = (worker, kind, message, trace, reason, code, bytes.as_deref());
    Ok(PyErr::from_value(rebuild.call1(about)?))
}

/// Writes a value: plainly, or by pickle.
fn write(
    py: Python<'_>,
    core: &Arc<Core>,
    body: &mut Body,
    value: &Bound<'_, PyAny>,
) -> PyResult<Taken> {
    let (mark, mut taken) = (body.mark(), Taken::default());
    body.byte(PLAIN);
    match plain::write(core, body, value, &mut taken) {
        Ok(()) => Ok(taken),
        Err(NotPlain::Raised(error)) => Err(error),
        Err(NotPlain::Because(_)) if core.allows_pickle => {
            body.undo(mark);
            body.byte(PICKLED);
            pickled::write(py, core, body, value, &mut taken)?;
            Ok(taken)
        }
        Err(NotPlain::Because(why)) => Err(refused(
            py,
            format!(
                "{why} travels by pickle alone, which worker '{}' does not allow",
                core.name
            ),
        )),
    }
}

/// Reads a value that `worker` has written.
pub(crate) fn read<'py>(
    py: Python<'py>,
    core: &Arc<Core>,
    reader: &mut Reader,
    worker: &str,
) -> PyResult<Bound<'py, PyAny>> {
    match reader.byte().map_err(failed)? {
        PLAIN => plain::read(py, core, reader),
        _ if core.allows_pickle => pickled::read(py, core, reader),
        _ => Err(refused(
            py,
            format!(
                "worker '{worker}' sent what is pickled, which worker '{}' does not allow: it was not read",
                core.name
            ),
        )),
    }
}

/// Pickle would be needed, and is not allowed.
pub(crate) fn refused(py: Python<'_>, message: String) -> PyErr {
    raise(py, &Status::of(catalogue::RPC_PICKLE, message))
}

/// What was called is not there.
pub(crate) fn unknown(message: String) -> PyErr {
    Failure(Status::of(catalogue::RPC_FUNCTION, message)).into()
}
