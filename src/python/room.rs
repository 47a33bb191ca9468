//! Memory of Python's that a value is received into, and what is said of it then.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use rendez::ground::catalogue;
use rendez::{DType, Engine, Filled, Received, Status};

use super::errors::argument;
use super::source::{Lent, Source};
use super::tensor::dims_of;

/// Memory to receive into.
pub(crate) struct Into {
    source: Source,
    /// It is plain bytes in a row, which take a value of any type that is short enough.
    is_plain: bool,
    /// What copies from devices.
    engine: Engine,
    /// A value may come that lies on a device: to copy it waits for the work that writes it.
    pub(crate) may_wait: bool,
}

impl Into {
    /// Of an engine's receive.
    pub(crate) fn of(given: &Bound<'_, PyAny>, engine: Engine) -> PyResult<Self> {
        let source = match Lent::of(given)? {
            Some(Lent::Here(source)) => source,
            Some(Lent::OnDevice(_)) => {
                let message =
                    "`out` lies in the memory of a device: receive into the processor's, and copy";
                return Err(argument(message).into());
            }
            None => {
                let message = "`out` should have the buffer protocol or DLPack, and be writable";
                return Err(argument(message).into());
            }
        };
        if source.is_read_only {
            return Err(argument("`out` is read only").into());
        }
        Ok(Self {
            is_plain: source.meta.dtype == DType::U8 && source.meta.shape.rank() <= 1,
            source,
            may_wait: engine.devices().is_ok(),
            engine,
        })
    }

    /// How many bytes it has.
    pub(crate) fn len(&self) -> usize {
        self.source.bytes().len()
    }

    /// The memory is its owner's again when this returns.
    pub(crate) fn release(self, py: Python<'_>) {
        self.source.release(py);
    }

    /// Copies a value here, if it fits.
    pub(crate) fn fill(&mut self, received: &Received) -> Result<Filled, Status> {
        let meta = received.tensor.meta();
        if !self.is_plain && meta != self.source.meta && !received.is_dead {
            let has = self.source.meta;
            return Err(Status::of(
                catalogue::PYTHON_ARGUMENT,
                format!(
                    "the value is {}{}, and `out` is {}{}; the value waits for the next receive",
                    meta.dtype, meta.shape, has.dtype, has.shape
                ),
            ));
        }
        let room = self.source.bytes_mut().unwrap_or_default();
        let copied = self.engine.copy_into(received, room);
        let len = copied.map_err(|status| match received.is_dead {
            true => Status::new(
                status.code(),
                status.reason(),
                format!(
                    "no value will come, and `recv` gets why: {}",
                    status.message()
                ),
            ),
            false => status,
        })?;
        Ok(Filled {
            len,
            meta,
            path: received.path,
            is_dead: received.is_dead,
        })
    }
}

/// What came, as the package's `Filled`.
pub(crate) fn object_of<'py>(py: Python<'py>, filled: &Filled) -> PyResult<Bound<'py, PyAny>> {
    let shape: Bound<'py, PyTuple> = dims_of(py, filled.meta)?;
    let about = (
        shape,
        filled.meta.dtype.name(),
        filled.len,
        filled.path.name(),
        filled.is_dead,
    );
    py.import("rendez._types")?.getattr("Filled")?.call1(about)
}
