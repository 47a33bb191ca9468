//! What Python sends, as a tensor: tensors of ours, numbers, and memory that others lend.

use std::cell::RefCell;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt};
use rendez::ground::catalogue;
use rendez::{Bool8, DType, Engine, Shape, Status, Tensor, TensorBuilder, TensorMeta};

use super::device;
use super::ending;
use super::errands;
use super::errors::{Failure, Outcome, argument, spent};
use super::source::{Lent, Source};
use super::tensor::Tensor as PyTensor;
use super::writable::TensorMut;

/// Values up to this many bytes lie in the handle itself.
const SMALL: usize = 16;
/// From this many bytes on a copy is made without the interpreter's lock.
pub(crate) const LONG: usize = 1 << 16;

/// How a value is taken.
#[derive(Debug, Default)]
pub(crate) struct Taking {
    /// `Some(true)`: copied in any case. `Some(false)`: read where it lies, and its owner keeps it unchanged. `None`:
    /// copied, unless nothing can change it.
    pub(crate) copy: Option<bool>,
    /// Called when the memory is read no more. It goes with what is lent.
    on_release: RefCell<Option<Py<PyAny>>>,
}

impl Taking {
    pub(crate) fn new(copy: Option<bool>, on_release: Option<Bound<'_, PyAny>>) -> PyResult<Self> {
        if let Some(hook) = on_release.as_ref().filter(|hook| !hook.is_callable()) {
            let class = hook.get_type();
            let message = format!("on_release: {} cannot be called", class.name()?);
            return Err(PyTypeError::new_err(message));
        }
        let on_release = RefCell::new(on_release.map(Bound::unbind));
        Ok(Self { copy, on_release })
    }

    /// For what is lent, which calls it from now on.
    pub(crate) fn on_release(&self) -> Option<Py<PyAny>> {
        self.on_release.take()
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        // Nothing was lent: the memory is free already. So it is of what could not be taken.
        if let Some(hook) = self.on_release.take() {
            errands::tell(move |py| errands::call_of(py, &hook));
        }
    }
}

/// What Python passed.
pub(crate) enum ToSend {
    Tensor(Tensor),
    /// It is to be copied, and the engine's memory is full: with why.
    NoRoom(Source, Status),
}

/// The tensor of what Python passed.
pub(crate) fn tensor_of(
    engine: &Engine,
    given: &Bound<'_, PyAny>,
    taking: &Taking,
) -> PyResult<Tensor> {
    match to_send(engine, given, taking)? {
        ToSend::Tensor(tensor) => Ok(tensor),
        ToSend::NoRoom(source, status) => {
            source.release(given.py());
            Err(Failure(status).into())
        }
    }
}

/// As [`tensor_of`], of a sender that waits for room.
pub(crate) fn to_send(
    engine: &Engine,
    given: &Bound<'_, PyAny>,
    taking: &Taking,
) -> PyResult<ToSend> {
    if let Ok(tensor) = given.cast::<PyTensor>() {
        return Ok(ToSend::Tensor(tensor.get().inner()?));
    }
    if let Ok(tensor) = given.cast::<TensorMut>() {
        return Ok(ToSend::Tensor(tensor.get().finish()?));
    }
    if let Some(number) = number_of(given)? {
        return Ok(ToSend::Tensor(number));
    }
    match Lent::of(given)? {
        Some(Lent::Here(source)) => Ok(take(engine, given.py(), source, taking)?),
        Some(Lent::OnDevice(offer)) => {
            device::take(engine, given.py(), offer, taking).map(ToSend::Tensor)
        }
        None => Err(PyTypeError::new_err(format!(
            "{} cannot be sent: pass a number, a tensor, or what has the buffer protocol, DLPack or the CUDA array \
             interface",
            given.get_type().name()?
        ))),
    }
}

/// A number of Python's: `bool`, `i64` (`u64` beyond it), `f64` or `c128`.
fn number_of(given: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    if let Ok(truth) = given.cast::<PyBool>() {
        return Ok(Some(Tensor::scalar(Bool8::from(truth.is_true()))));
    }
    if given.cast::<PyInt>().is_ok() {
        if let Ok(number) = given.extract::<i64>() {
            return Ok(Some(Tensor::scalar(number)));
        }
        let number = given.extract::<u64>();
        let number = number.map_err(|_| argument("the number does not fit 64 bits"))?;
        return Ok(Some(Tensor::scalar(number)));
    }
    // Exactly these: NumPy's are of them too, and lend their own type.
    if let Ok(number) = given.cast_exact::<PyFloat>() {
        return Ok(Some(Tensor::scalar(number.value())));
    }
    if let Ok(number) = given.cast_exact::<PyComplex>() {
        let parts: [f64; 2] = [number.real(), number.imag()];
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_ne_bytes()).collect();
        let meta = TensorMeta {
            dtype: DType::C128,
            shape: Shape::SCALAR,
        };
        return Ok(Some(
            Tensor::from_inline(meta, &bytes).map_err(Failure::from)?,
        ));
    }
    Ok(None)
}

fn take(engine: &Engine, py: Python<'_>, source: Source, taking: &Taking) -> Outcome<ToSend> {
    let in_place = match taking.copy {
        Some(copies) => !copies,
        None => source.is_immutable,
    };
    let is_small = source.bytes().len() <= SMALL;
    if in_place && !is_small {
        let meta = source.meta;
        let hook = taking.on_release();
        let tensor = Tensor::from_foreign(meta, source, move |source| give_back(source, hook))?;
        return Ok(ToSend::Tensor(tensor));
    }
    // A copy makes bytes of other values than 0 and 1 true.
    let tensor = match is_small && (in_place || source.meta.dtype != DType::Bool) {
        true => Tensor::from_inline(source.meta, source.bytes()).map_err(Failure::from),
        false => match room_for(engine, &source) {
            Err(status) if status.reason() == catalogue::ARENA_FULL => {
                return Ok(ToSend::NoRoom(source, status));
            }
            Err(status) => Err(Failure(status)),
            Ok(room) if source.bytes().len() < LONG => Ok(filled(room, &source)),
            Ok(room) => Ok(ending::detach_briefly(py, || filled(room, &source))),
        },
    };
    source.release(py);
    Ok(ToSend::Tensor(tensor?))
}

/// Room in the engine's memory for a copy.
pub(crate) fn room_for(engine: &Engine, source: &Source) -> Result<TensorBuilder, Status> {
    let dims: Vec<u64> = source.meta.shape.dims().collect();
    engine.tensor(source.meta.dtype, &dims)
}

/// The copy.
pub(crate) fn filled(mut room: TensorBuilder, source: &Source) -> Tensor {
    room.bytes_mut().copy_from_slice(source.bytes());
    room.finish()
}

/// Its lender has the memory back, and then `hook` is called.
pub(crate) fn give_back(source: Source, hook: Option<Py<PyAny>>) {
    let Some(hook) = hook else {
        return drop(source);
    };
    errands::tell(move |py| {
        source.release(py);
        errands::call_of(py, &hook)
    });
}

/// What is written for a type that is none.
pub(crate) fn freed() -> Failure {
    spent("the tensor was sent or released before: its memory is not here any more")
}
