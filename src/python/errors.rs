//! Failures as Python sees them: an exception for each code, made by the package's own classes.

use pyo3::exceptions::PyLookupError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use rendez::ground::catalogue;
use rendez::{Code, Status};

/// A failure on its way to Python.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Status);

impl<S: Into<Status>> From<S> for Failure {
    fn from(status: S) -> Self {
        Self(status.into())
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        Python::attach(|py| raise(py, &failure.0))
    }
}

/// What most calls return.
pub(crate) type Outcome<T> = Result<T, Failure>;

/// The classes of exceptions, by their codes.
fn classes(py: Python<'_>) -> PyResult<&'static [(u8, Py<PyType>)]> {
    static CLASSES: PyOnceLock<Vec<(u8, Py<PyType>)>> = PyOnceLock::new();
    let classes = CLASSES.get_or_try_init(py, || {
        let classes = py.import("rendez._errors")?.getattr("_classes")?;
        let classes = classes.cast::<PyDict>()?.iter();
        let classes = classes.map(|(code, class)| {
            let class = class.cast::<PyType>()?.clone().unbind();
            Ok((code.extract::<u8>()?, class))
        });
        classes.collect::<PyResult<_>>()
    });
    Ok(classes?)
}

/// Finds the classes of exceptions: at the interpreter's end, when they may be wanted for the first time, nothing can
/// be imported.
pub(crate) fn prepare(py: Python<'_>) -> PyResult<()> {
    classes(py).map(|_| ())
}

/// The exception of a status. No code of Python's runs for it: that might be where the thread loses the interpreter's
/// lock, within a call of ours, and at the interpreter's end it would not come back.
pub(crate) fn raise(py: Python<'_>, status: &Status) -> PyErr {
    let made = classes(py).and_then(|classes| {
        let of = |code: Code| classes.iter().find(|(its, _)| *its == code as u8);
        let class = of(status.code()).or_else(|| of(Code::Unknown));
        let (_, class) = class.ok_or_else(|| PyLookupError::new_err("it has no class"))?;
        let class = class.bind(py);
        // As `RendezError.__init__` does.
        let made = class.call_method1("__new__", (class, status.message()))?;
        made.setattr("args", (status.message(),))?;
        made.setattr("message", status.message())?;
        made.setattr("reason", status.reason())?;
        made.setattr("secondary", status.is_derived())?;
        Ok(PyErr::from_value(made))
    });
    made.unwrap_or_else(|error| error)
}

/// The status that an exception stands for, as the reason why a step was aborted.
pub(crate) fn status_of(exception: &Bound<'_, PyAny>) -> Status {
    let text = |name: &str| {
        exception
            .getattr(name)
            .and_then(|it| it.extract::<String>())
    };
    let known = text("reason")
        .ok()
        .and_then(|reason| catalogue::find(&reason));
    if let (Some(entry), Ok(message)) = (known, text("message")) {
        return Status::new(entry.code, entry.reason, message);
    }
    let class = exception.get_type();
    let class = class
        .name()
        .map_or_else(|_| "an exception".into(), |name| name.to_string());
    let said = exception
        .str()
        .map_or_else(|_| String::new(), |said| said.to_string());
    Status::new(
        Code::Aborted,
        catalogue::STEP_ABORTED,
        format!("{class}: {said}"),
    )
}

/// Whether an exception tells that the engine failed, and not that a value is none that can be sent.
pub(crate) fn is_failure(exception: &Bound<'_, PyAny>) -> bool {
    let reason = exception.getattr("reason");
    let reason = reason.and_then(|reason| reason.extract::<String>());
    let of_values = [catalogue::PYTHON_ARGUMENT, catalogue::RPC_ARGUMENTS];
    reason.is_ok_and(|reason| {
        catalogue::find(&reason).is_some() && !of_values.contains(&reason.as_str())
    })
}

/// What Python passed makes no sense.
pub(crate) fn argument(message: impl Into<std::sync::Arc<str>>) -> Failure {
    Failure(Status::of(catalogue::PYTHON_ARGUMENT, message))
}

/// What Python passed was given away before.
pub(crate) fn spent(message: impl Into<std::sync::Arc<str>>) -> Failure {
    Failure(Status::of(catalogue::PYTHON_SPENT, message))
}
