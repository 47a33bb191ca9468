//! Values as pickle writes them: protocol 5, its buffers out of band, tensors and references beside it.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView};

use super::body::{Blob, Body, Reader};
use super::core::{Core, failed};
use super::plain::{Taken, tensor, write_buffer};
use super::reference::RRef;
use crate::tensor::Tensor;
use crate::writable::TensorMut;

const TENSOR: u8 = 0;
const REFERENCE: u8 = 1;

/// Writes a value: what it carries, its buffers, and the pickle.
pub(crate) fn write(
    py: Python<'_>,
    core: &Arc<Core>,
    body: &mut Body,
    value: &Bound<'_, PyAny>,
    taken: &mut Taken,
) -> PyResult<()> {
    let dumps = py.import("rendez.rpc._pickle")?.getattr("dumps")?;
    let written = dumps.call1((value,))?;
    type Written<'py> = (Bound<'py, PyBytes>, Bound<'py, PyList>, Bound<'py, PyList>);
    let (bytes, buffers, carried) = written.extract::<Written<'_>>()?;
    body.number(carried.len() as u64);
    for one in carried {
        carry(body, &one, taken)?;
    }
    body.number(buffers.len() as u64);
    for buffer in buffers {
        write_buffer(core, body, &buffer)?;
    }
    write_buffer(core, body, bytes.as_any())
}

fn carry(body: &mut Body, one: &Bound<'_, PyAny>, taken: &mut Taken) -> PyResult<()> {
    if let Ok(reference) = one.cast::<RRef>() {
        body.byte(REFERENCE);
        body.reference(reference.get().inner.clone());
        return Ok(());
    }
    let tensor = match one.cast::<TensorMut>() {
        Ok(tensor) => taken.take(tensor)?,
        Err(_) => one.cast::<Tensor>()?.get().inner()?,
    };
    body.byte(TENSOR);
    body.tensor(tensor).map_err(failed)
}

/// Reads a value. The caller has checked that pickle is allowed.
pub(crate) fn read<'py>(
    py: Python<'py>,
    core: &Arc<Core>,
    from: &mut Reader,
) -> PyResult<Bound<'py, PyAny>> {
    let carried = PyList::empty(py);
    for _ in 0..from.count().map_err(failed)? {
        carried.append(match from.byte().map_err(failed)? {
            REFERENCE => {
                let inner = from.reference().map_err(failed)?;
                Bound::new(py, RRef::new(core, inner))?.into_any()
            }
            _ => tensor(py, core, from.tensor().map_err(failed)?)?,
        })?;
    }
    let buffers = PyList::empty(py);
    for _ in 0..from.count().map_err(failed)? {
        buffers.append(view(py, core, from.blob().map_err(failed)?)?)?;
    }
    let bytes = view(py, core, from.blob().map_err(failed)?)?;
    let loads = py.import("rendez.rpc._pickle")?.getattr("loads")?;
    loads.call1((bytes, buffers, carried))
}

/// A view of bytes that came, read only.
fn view<'py>(py: Python<'py>, core: &Core, blob: Blob) -> PyResult<Bound<'py, PyAny>> {
    Ok(match blob {
        Blob::Short(bytes) => PyBytes::new(py, &bytes).into_any(),
        Blob::Long(inner) => PyMemoryView::from(&tensor(py, core, inner)?)?.into_any(),
    })
}
