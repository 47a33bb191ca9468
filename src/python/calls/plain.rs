//! Plain values, as bytes with tensors and references beside them: what needs no pickle, between any two workers.
//!
//! These are None, truth values, numbers, texts, bytes, lists, tuples, dicts and sets of exactly Python's own types;
//! arrays and scalars of NumPy's; tensors; references. Their bytes begin with their kind.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet,
    PyString, PyTuple,
};
use rendez::{Path, Tensor as Inner};

use super::body::{Body, Reader};
use super::core::{Core, failed};
use super::reference::RRef;
use crate::convert::{Taking, tensor_of};
use crate::errors::is_failure;
use crate::source::{Lent, Source};
use crate::tensor::Tensor;
use crate::writable::TensorMut;

const NONE: u8 = 0;
const FALSE: u8 = 1;
const TRUE: u8 = 2;
const INT: u8 = 3;
const LONG_INT: u8 = 4;
const FLOAT: u8 = 5;
const COMPLEX: u8 = 6;
const TEXT: u8 = 7;
const BYTES: u8 = 8;
const BYTE_ARRAY: u8 = 9;
const LIST: u8 = 10;
const TUPLE: u8 = 11;
const DICT: u8 = 12;
const SET: u8 = 13;
const FROZEN_SET: u8 = 14;
const TENSOR: u8 = 15;
const ARRAY: u8 = 16;
const SCALAR: u8 = 17;
const REFERENCE: u8 = 18;

/// Values within values may be so deep: reading deeper ones would overflow the stack.
const DEPTH_MAX: usize = 128;
/// The name of the error handler by which every text of Python's has bytes.
const SURROGATES: &str = "surrogatepass";

/// Why a value was not written.
pub(crate) enum NotPlain {
    /// It is none of these; pickle may write it.
    Because(String),
    Raised(PyErr),
}

impl From<PyErr> for NotPlain {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl From<rendez_rpc::ValueError> for NotPlain {
    fn from(error: rendez_rpc::ValueError) -> Self {
        Self::Raised(failed(error))
    }
}

/// Tensors that a call has taken from what could be written before: they are taken once, however often they are met.
/// Those of a call that does not begin are given back.
#[derive(Default)]
pub(crate) struct Taken(HashMap<usize, (Py<TensorMut>, Inner)>);

impl Taken {
    pub(crate) fn take(&mut self, given: &Bound<'_, TensorMut>) -> PyResult<Inner> {
        let at = given.as_ptr() as usize;
        if let Some((_, tensor)) = self.0.get(&at) {
            return Ok(tensor.clone());
        }
        let tensor = given.get().finish()?;
        let keep = given.clone().unbind();
        self.0.insert(at, (keep, tensor.clone()));
        Ok(tensor)
    }

    /// The call has begun.
    pub(crate) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        for (_, (given, tensor)) in self.0.drain() {
            given.get().put_back(tensor);
        }
    }
}

/// Writes a value.
pub(crate) fn write(
    core: &Core,
    body: &mut Body,
    value: &Bound<'_, PyAny>,
    taken: &mut Taken,
) -> Result<(), NotPlain> {
    Writer { core, body, taken }.value(value, 0)
}

struct Writer<'a> {
    core: &'a Core,
    body: &'a mut Body,
    taken: &'a mut Taken,
}

impl Writer<'_> {
    fn value(&mut self, value: &Bound<'_, PyAny>, depth: usize) -> Result<(), NotPlain> {
        if depth > DEPTH_MAX {
            let why = format!("a value of more than {DEPTH_MAX} values within each other");
            return Err(NotPlain::Because(why));
        }
        if value.is_none() {
            self.body.byte(NONE);
        } else if let Ok(truth) = value.cast_exact::<PyBool>() {
            self.body.byte(if truth.is_true() { TRUE } else { FALSE });
        } else if let Ok(number) = value.cast_exact::<PyInt>() {
            self.whole(number)?;
        } else if let Ok(number) = value.cast_exact::<PyFloat>() {
            self.body.byte(FLOAT);
            self.body.fixed(&number.value().to_le_bytes());
        } else if let Ok(text) = value.cast_exact::<PyString>() {
            self.text(text)?;
        } else if let Ok(bytes) = value.cast_exact::<PyBytes>() {
            self.body.byte(BYTES);
            write_buffer(self.core, self.body, bytes.as_any())?;
        } else if let Ok(bytes) = value.cast_exact::<PyByteArray>() {
            self.body.byte(BYTE_ARRAY);
            write_buffer(self.core, self.body, bytes.as_any())?;
        } else if let Ok(list) = value.cast_exact::<PyList>() {
            self.all(LIST, &list.to_tuple(), depth)?;
        } else if let Ok(tuple) = value.cast_exact::<PyTuple>() {
            self.all(TUPLE, tuple, depth)?;
        } else if let Ok(dict) = value.cast_exact::<PyDict>() {
            self.dict(dict, depth)?;
        } else {
            return self.rarer(value, depth);
        }
        Ok(())
    }

    fn rarer(&mut self, value: &Bound<'_, PyAny>, depth: usize) -> Result<(), NotPlain> {
        if let Ok(reference) = value.cast::<RRef>() {
            self.body.byte(REFERENCE);
            self.body.reference(reference.get().inner.clone());
        } else if let Ok(tensor) = value.cast::<Tensor>() {
            self.body.byte(TENSOR);
            self.body
                .tensor(tensor.get().inner().map_err(PyErr::from)?)?;
        } else if let Ok(tensor) = value.cast::<TensorMut>() {
            self.body.byte(TENSOR);
            self.body.tensor(self.taken.take(tensor)?)?;
        } else if let Ok(number) = value.cast_exact::<PyComplex>() {
            self.body.byte(COMPLEX);
            self.body.fixed(&number.real().to_le_bytes());
            self.body.fixed(&number.imag().to_le_bytes());
        } else if let Ok(set) = value.cast_exact::<PySet>() {
            self.set(SET, set.as_any(), depth)?;
        } else if let Ok(set) = value.cast_exact::<PyFrozenSet>() {
            self.set(FROZEN_SET, set.as_any(), depth)?;
        } else if let Some(kind) = numpy_kind(value)? {
            self.array(kind, value)?;
        } else if value.hasattr("__dlpack__")? {
            self.array(TENSOR, value)?;
        } else {
            return Err(NotPlain::Because(named(value)));
        }
        Ok(())
    }

    fn whole(&mut self, number: &Bound<'_, PyInt>) -> PyResult<()> {
        if let Ok(small) = number.extract::<i64>() {
            self.body.byte(INT);
            // Small ones of either sign are short.
            self.body.number((small << 1 ^ small >> 63) as u64);
            return Ok(());
        }
        let bits: u64 = number.call_method0("bit_length")?.extract()?;
        let kwargs = PyDict::new(number.py());
        kwargs.set_item("signed", true)?;
        let args = (bits / 8 + 1, "little");
        let bytes = number.call_method("to_bytes", args, Some(&kwargs))?;
        self.body.byte(LONG_INT);
        self.blob(&bytes)
    }

    fn text(&mut self, text: &Bound<'_, PyString>) -> PyResult<()> {
        self.body.byte(TEXT);
        if let Ok(text) = text.to_str() {
            return self
                .body
                .blob(&self.core.engine, text.as_bytes())
                .map_err(failed);
        }
        let bytes = text.call_method1("encode", ("utf-8", SURROGATES))?;
        self.blob(&bytes)
    }

    fn blob(&mut self, bytes: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = bytes.cast::<PyBytes>()?;
        self.body
            .blob(&self.core.engine, bytes.as_bytes())
            .map_err(failed)
    }

    fn all(&mut self, kind: u8, all: &Bound<'_, PyTuple>, depth: usize) -> Result<(), NotPlain> {
        self.body.byte(kind);
        self.body.number(all.len() as u64);
        all.iter_borrowed()
            .try_for_each(|one| self.value(&one, depth + 1))
    }

    fn set(&mut self, kind: u8, set: &Bound<'_, PyAny>, depth: usize) -> Result<(), NotPlain> {
        let all = set.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        self.body.byte(kind);
        self.body.number(all.len() as u64);
        all.iter().try_for_each(|one| self.value(one, depth + 1))
    }

    fn dict(&mut self, dict: &Bound<'_, PyDict>, depth: usize) -> Result<(), NotPlain> {
        // All at once: another thread may change the dict while an array is copied.
        let items = dict.items();
        self.body.byte(DICT);
        self.body.number(items.len() as u64);
        for item in items {
            let (key, value) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
            self.value(&key, depth + 1)?;
            self.value(&value, depth + 1)?;
        }
        Ok(())
    }

    fn array(&mut self, kind: u8, array: &Bound<'_, PyAny>) -> Result<(), NotPlain> {
        let tensor = array_of(self.core, array).map_err(|error| {
            // Pickle would need the same memory.
            match is_failure(error.value(array.py())) {
                true => NotPlain::Raised(error),
                false => NotPlain::Because(format!("{} ({error})", named(array))),
            }
        })?;
        self.body.byte(kind);
        Ok(self.body.tensor(tensor)?)
    }
}

/// Writes what has the buffer protocol as bytes: long ones once to the engine's memory, unless they lie there.
pub(crate) fn write_buffer(core: &Core, body: &mut Body, bytes: &Bound<'_, PyAny>) -> PyResult<()> {
    let source = Source::of(bytes)?.ok_or_else(|| crate::errors::argument("it has no bytes"))?;
    if source.bytes().len() <= super::body::INLINE || body.is_full() {
        let written = body.blob(&core.engine, source.bytes()).map_err(failed);
        source.release(bytes.py());
        return written;
    }
    if let Some(tensor) = lent(bytes, &source)? {
        return body.long(tensor).map_err(failed);
    }
    source.release(bytes.py());
    let tensor = tensor_of(&core.engine, bytes, &Taking::default())?;
    body.long(tensor).map_err(failed)
}

/// The tensor of an array: the engine's own if it lies there, else a copy.
pub(crate) fn array_of(core: &Core, array: &Bound<'_, PyAny>) -> PyResult<Inner> {
    let ordered = match Lent::of(array) {
        // A call brings values to the processor's memory.
        Ok(Some(Lent::OnDevice(offer))) => return Err(offer.refusal().into()),
        Ok(Some(Lent::Here(source))) => {
            if let Some(tensor) = lent(array, &source)? {
                return Ok(tensor);
            }
            source.release(array.py());
            None
        }
        Ok(None) => None,
        // Its elements do not follow each other: those of a copy do.
        Err(_) if array.hasattr("flags")? => Some(array.call_method1("copy", ("C",))?),
        Err(error) => return Err(error),
    };
    let array = ordered.as_ref().unwrap_or(array);
    tensor_of(&core.engine, array, &Taking::default())
}

/// The engine's tensor, if `object` is a view of all of its memory.
fn lent(object: &Bound<'_, PyAny>, source: &Source) -> PyResult<Option<Inner>> {
    let mut at = object.clone();
    for _ in 0..8 {
        if let Ok(tensor) = at.cast::<Tensor>() {
            // One that was released has views still, and no handle.
            let Ok(inner) = tensor.get().inner() else {
                return Ok(None);
            };
            let lies_there = inner.host().is_ok_and(|has| {
                std::ptr::eq(has.as_ptr(), source.bytes().as_ptr())
                    && has.len() == source.bytes().len()
            });
            return match lies_there {
                true => Ok(inner.recast(source.meta).ok()),
                false => Ok(None),
            };
        }
        let next = ["obj", "base"]
            .into_iter()
            .find_map(|name| at.getattr(name).ok());
        match next {
            Some(next) if !next.is_none() => at = next,
            _ => break,
        }
    }
    Ok(None)
}

/// Whether it is an array of NumPy's, or a scalar. It is not imported for that.
fn numpy_kind(value: &Bound<'_, PyAny>) -> Result<Option<u8>, NotPlain> {
    let modules = value.py().import("sys")?.getattr("modules")?;
    let Ok(numpy) = modules.get_item("numpy") else {
        return Ok(None);
    };
    let is = |name: &str, exactly: bool| -> PyResult<bool> {
        let Ok(class) = numpy.getattr(name) else {
            return Ok(false);
        };
        match exactly {
            true => Ok(value.get_type().is(&class)),
            false => value.is_instance(&class),
        }
    };
    let is_number = || -> PyResult<bool> {
        let dtype = value.getattr("dtype")?;
        let kind: char = dtype.getattr("kind")?.extract()?;
        Ok("biufc".contains(kind) || dtype.getattr("name")?.eq("bfloat16")?)
    };
    Ok(match (is("ndarray", true)?, is("generic", false)?) {
        (true, _) => Some(ARRAY),
        // Texts, dates and records lend their bytes, without what these are.
        (_, true) if is_number()? => Some(SCALAR),
        (_, true) => return Err(NotPlain::Because(named(value))),
        // A file's part is an array as any; other classes add what the bytes are without: a mask, names, a unit.
        _ if is("memmap", true)? => Some(ARRAY),
        _ if is("ndarray", false)? => return Err(NotPlain::Because(named(value))),
        _ => None,
    })
}

fn named(value: &Bound<'_, PyAny>) -> String {
    let name = value.get_type().fully_qualified_name();
    name.map_or_else(
        |_| "a value".to_owned(),
        |name| format!("a value of the type `{name}`"),
    )
}

/// Reads a value.
pub(crate) fn read<'py>(
    py: Python<'py>,
    core: &Arc<Core>,
    from: &mut Reader,
) -> PyResult<Bound<'py, PyAny>> {
    value(py, core, from, 0)
}

fn value<'py>(
    py: Python<'py>,
    core: &Arc<Core>,
    from: &mut Reader,
    depth: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let wrong = |what: &str| failed(rendez_rpc::ValueError::new(what));
    if depth > DEPTH_MAX {
        return Err(wrong("values lie too deep within each other"));
    }
    let float = |from: &mut Reader| from.fixed().map(f64::from_le_bytes).map_err(failed);
    let all = |from: &mut Reader| -> PyResult<Vec<Bound<'py, PyAny>>> {
        let count = from.count().map_err(failed)?;
        (0..count)
            .map(|_| value(py, core, from, depth + 1))
            .collect()
    };
    Ok(match from.byte().map_err(failed)? {
        NONE => py.None().into_bound(py),
        FALSE => PyBool::new(py, false).to_owned().into_any(),
        TRUE => PyBool::new(py, true).to_owned().into_any(),
        INT => {
            let number = from.number().map_err(failed)?;
            let number = (number >> 1) as i64 ^ -((number & 1) as i64);
            number.into_pyobject(py)?.into_any()
        }
        LONG_INT => long_int(py, &from.blob().map_err(failed)?)?,
        FLOAT => PyFloat::new(py, float(from)?).into_any(),
        COMPLEX => {
            let real = float(from)?;
            PyComplex::from_doubles(py, real, float(from)?).into_any()
        }
        TEXT => text(py, &from.blob().map_err(failed)?)?,
        BYTES => PyBytes::new(py, &from.blob().map_err(failed)?).into_any(),
        BYTE_ARRAY => PyByteArray::new(py, &from.blob().map_err(failed)?).into_any(),
        LIST => PyList::new(py, all(from)?)?.into_any(),
        TUPLE => PyTuple::new(py, all(from)?)?.into_any(),
        DICT => {
            let (dict, count) = (PyDict::new(py), from.count().map_err(failed)?);
            for _ in 0..count {
                let key = value(py, core, from, depth + 1)?;
                dict.set_item(key, value(py, core, from, depth + 1)?)?;
            }
            dict.into_any()
        }
        SET => PySet::new(py, all(from)?)?.into_any(),
        FROZEN_SET => PyFrozenSet::new(py, all(from)?)?.into_any(),
        TENSOR => tensor(py, core, from.tensor().map_err(failed)?)?,
        ARRAY => numpy(&tensor(py, core, from.tensor().map_err(failed)?)?)?,
        SCALAR => {
            let array = numpy(&tensor(py, core, from.tensor().map_err(failed)?)?)?;
            array.get_item(PyTuple::empty(py)).unwrap_or(array)
        }
        REFERENCE => {
            let inner = from.reference().map_err(failed)?;
            Bound::new(py, RRef::new(core, inner))?.into_any()
        }
        other => return Err(wrong(&format!("there is no value of the kind {other}"))),
    })
}

fn long_int<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let kwargs = PyDict::new(py);
    kwargs.set_item("signed", true)?;
    let args = (PyBytes::new(py, bytes), "little");
    py.get_type::<PyInt>()
        .call_method("from_bytes", args, Some(&kwargs))
}

fn text<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(PyString::new(py, text).into_any()),
        Err(_) => PyBytes::new(py, bytes).call_method1("decode", ("utf-8", SURROGATES)),
    }
}

/// A tensor that came.
pub(crate) fn tensor<'py>(
    py: Python<'py>,
    core: &Core,
    inner: Inner,
) -> PyResult<Bound<'py, PyAny>> {
    let path = match (inner.is_leased(), inner.is_inline()) {
        (true, _) => Path::Lease,
        (_, true) => Path::Inline,
        _ => Path::Copy,
    };
    let tensor = Tensor::new(inner, path, false).of(|| core.engine.clone());
    Ok(Bound::new(py, tensor)?.into_any())
}

/// A view of it as an array of NumPy's; where that is missing, itself.
fn numpy<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match tensor.py().import("numpy") {
        Ok(_) => tensor.call_method0("numpy"),
        Err(_) => Ok(tensor.clone()),
    }
}
