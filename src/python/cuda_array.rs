//! `__cuda_array_interface__`, both ways: how libraries of arrays on CUDA devices say where an array lies. Version 3 is
//! written; 2 and 3 are read: <https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html>.

use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rendez::{DType, Shape, TensorMeta};

use super::dlpack::{is_row_major, not_contiguous};
use super::errors::{Outcome, argument};

/// An array on a device, as its owner describes it.
pub(crate) struct CudaArray {
    pub(crate) meta: TensorMeta,
    pub(crate) address: u64,
    /// The stream whose work is to be waited for.
    pub(crate) stream: Option<u64>,
}

impl CudaArray {
    pub(crate) fn of(interface: &Bound<'_, PyAny>) -> PyResult<Self> {
        let said = interface
            .cast::<PyDict>()
            .map_err(|_| argument("`__cuda_array_interface__` is no dict"))?;
        let shape: Vec<u64> = needed(said, "shape")?.extract()?;
        let code: String = needed(said, "typestr")?.extract()?;
        let (address, _is_read_only): (u64, bool) = needed(said, "data")?.extract()?;
        if get(said, "mask")?.is_some() {
            return Err(argument("an array with a mask cannot be sent").into());
        }
        let dtype = dtype_of(&code)?;
        if let Some(strides) = get(said, "strides")? {
            let size = dtype.size().unwrap_or(1) as i64;
            let strides: Vec<i64> = strides.extract()?;
            let elements: Vec<i64> = strides.iter().map(|stride| stride / size).collect();
            let dims: Vec<i64> = shape.iter().map(|dim| *dim as i64).collect();
            let is_whole = strides.iter().all(|stride| stride % size == 0);
            if strides.len() != dims.len() || !is_whole || !is_row_major(&dims, &elements) {
                return Err(not_contiguous().into());
            }
        }
        let shape = Shape::new(&shape).map_err(|error| argument(error.to_string()))?;
        let meta = TensorMeta::new(dtype, shape).map_err(|error| argument(error.to_string()))?;
        let stream = match get(said, "stream")? {
            None => None,
            Some(stream) => match stream.extract::<u64>()? {
                0 => return Err(argument("stream 0 is ambiguous: 1 is the default stream").into()),
                handle => Some(handle),
            },
        };
        Ok(Self {
            meta,
            address,
            stream,
        })
    }
}

fn get<'py>(said: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(said.get_item(name)?.filter(|value| !value.is_none()))
}

fn needed<'py>(said: &Bound<'py, PyDict>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    Ok(get(said, name)?.ok_or_else(|| {
        argument(format!(
            "`__cuda_array_interface__` does not say its `{name}`"
        ))
    })?)
}

/// Types by the codes of NumPy's array interface, in the machine's order.
const CODES: [(&str, DType); 14] = [
    ("|b1", DType::Bool),
    ("|i1", DType::I8),
    ("|u1", DType::U8),
    ("<i2", DType::I16),
    ("<u2", DType::U16),
    ("<i4", DType::I32),
    ("<u4", DType::U32),
    ("<i8", DType::I64),
    ("<u8", DType::U64),
    ("<f2", DType::F16),
    ("<f4", DType::F32),
    ("<f8", DType::F64),
    ("<c8", DType::C64),
    ("<c16", DType::C128),
];

fn dtype_of(code: &str) -> Outcome<DType> {
    // The order of single bytes is written in several ways.
    let known = CODES.iter().find(|(known, _)| {
        *known == code
            || known
                .strip_prefix('|')
                .is_some_and(|it| code.get(1..) == Some(it))
    });
    known.map(|(_, dtype)| *dtype).ok_or_else(|| {
        argument(format!(
            "elements of type `{code}` cannot be sent: rendez has no such type, or not in that order of bytes"
        ))
    })
}

/// What an array of ours says of itself; it is read only.
pub(crate) fn interface(
    py: Python<'_>,
    meta: TensorMeta,
    address: u64,
    stream: u64,
) -> PyResult<Bound<'_, PyAny>> {
    let code = CODES.iter().find(|(_, dtype)| *dtype == meta.dtype);
    let (code, _) = code.ok_or_else(|| {
        PyAttributeError::new_err(format!(
            "the CUDA array interface has no type for {}: see DLPack, or `recast`",
            meta.dtype
        ))
    })?;
    let said = PyDict::new(py);
    let dims: Vec<u64> = meta.shape.dims().collect();
    said.set_item("shape", PyTuple::new(py, dims)?)?;
    said.set_item("typestr", *code)?;
    // An array without elements has no address.
    let address = if meta.size() == Some(0) { 0 } else { address };
    said.set_item("data", (address, true))?;
    said.set_item("strides", py.None())?;
    said.set_item("stream", stream)?;
    said.set_item("version", 3)?;
    Ok(said.into_any())
}
