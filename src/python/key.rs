//! Keys: made once and used for every step, or given as a text.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use rendez::ground::catalogue;
use rendez::{FrameIter, Key as Inner, Status};

use super::errors::{Failure, Outcome};

/// What a value is sent and received by.
#[pyclass(frozen, eq, hash, module = "rendez")]
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key(pub(crate) Inner);

#[pymethods]
impl Key {
    #[new]
    fn new(source: &str, destination: &str, edge: &str) -> Outcome<Self> {
        Ok(Self(Inner::between(source, destination, edge)?))
    }

    /// A key of `source->destination;name`, or of its full text.
    #[staticmethod]
    fn parse(text: &str) -> Outcome<Self> {
        // In a full text the arrow may stand in the name of the value, behind the first semicolon.
        if let Some((source, rest)) = text.split_once("->")
            && !source.contains(';')
        {
            let parts = rest.split_once(';');
            let (destination, edge) = parts.ok_or_else(|| {
                let message =
                    format!("key `{text}` names no value: write source->destination;name");
                Failure(Status::of(catalogue::KEY_MALFORMED, message))
            })?;
            return Self::new(source.trim(), destination.trim(), edge.trim());
        }
        Ok(Self(Inner::parse(text)?))
    }

    /// The same key in an iteration of a loop.
    #[pyo3(signature = (frame, iteration = 0))]
    fn at(&self, frame: u64, iteration: u64) -> Self {
        Self(self.0.at(FrameIter {
            frame,
            iter: iteration,
        }))
    }

    #[getter]
    fn source(&self) -> &str {
        self.0.source_text()
    }

    #[getter]
    fn destination(&self) -> &str {
        self.0.destination_text()
    }

    #[getter]
    fn edge(&self) -> &str {
        self.0.edge()
    }

    fn __str__(&self) -> String {
        self.0.text().into_owned()
    }

    fn __repr__(&self) -> String {
        format!("Key.parse({:?})", self.0.text())
    }

    fn __reduce__(slf: &Bound<'_, Self>) -> PyResult<(Py<PyAny>, (String,))> {
        let parse = slf.get_type().getattr("parse")?.unbind();
        Ok((parse, (slf.get().__str__(),)))
    }
}

/// A key, or what is short for one: a text, or source, destination and edge.
pub(crate) fn key_of(given: &Bound<'_, PyAny>) -> PyResult<Inner> {
    if let Ok(key) = given.cast::<Key>() {
        return Ok(key.get().0.clone());
    }
    if let Ok(text) = given.cast::<PyString>() {
        return Ok(Key::parse(&text.to_cow()?)?.0);
    }
    if let Ok(parts) = given.cast::<PyTuple>()
        && let Ok((source, destination, edge)) = parts.extract::<(String, String, String)>()
    {
        return Ok(Key::new(&source, &destination, &edge)?.0);
    }
    Err(pyo3::exceptions::PyTypeError::new_err(format!(
        "a key is a rendez.Key, a text, or a tuple of source, destination and name; not {}",
        given.get_type().name()?
    )))
}
