//! The types of elements, as each of the others calls them: Python and NumPy, the buffer protocol, DLPack.

use std::ffi::CStr;

use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};
use rendez::DType;

use super::errors::{Outcome, argument};

/// The type that a name means: ours (`f32`), NumPy's (`float32`), or PyTorch's (`torch.float32`).
fn named(name: &str) -> Option<DType> {
    let name = name.strip_prefix("torch.").unwrap_or(name);
    Some(match name {
        "bool" | "bool_" => DType::Bool,
        "i8" | "int8" => DType::I8,
        "u8" | "uint8" => DType::U8,
        "i16" | "int16" | "short" => DType::I16,
        "u16" | "uint16" => DType::U16,
        "i32" | "int32" | "intc" => DType::I32,
        "u32" | "uint32" | "uintc" => DType::U32,
        "i64" | "int64" | "int" | "long" | "longlong" => DType::I64,
        "u64" | "uint64" | "ulong" | "ulonglong" => DType::U64,
        "f16" | "float16" | "half" => DType::F16,
        "bf16" | "bfloat16" => DType::BF16,
        "f32" | "float32" => DType::F32,
        "f64" | "float64" | "float" | "double" => DType::F64,
        "c64" | "complex64" => DType::C64,
        "c128" | "complex128" | "complex" => DType::C128,
        "string" => DType::String,
        _ => return None,
    })
}

/// The type that an object of Python's means: a name, a NumPy type, or another's whose name is one of these.
pub(crate) fn dtype_of(given: &Bound<'_, PyAny>) -> PyResult<DType> {
    let name = if let Ok(text) = given.cast::<PyString>() {
        text.to_string()
    } else if let Ok(class) = given.cast::<PyType>() {
        class.name()?.to_string()
    } else if let Ok(name) = given.getattr("name").and_then(|name| name.extract()) {
        // The name of NumPy's says nothing of the order.
        if let Ok(is_native) = given.getattr("isnative")
            && !is_native.is_truthy()?
        {
            let other =
                format!("dtype `{given}` is big-endian: name the type in the machine's order");
            return Err(argument(other).into());
        }
        name
    } else {
        given.str()?.to_string()
    };
    let known = named(&name).ok_or_else(|| {
        let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        argument(format!("dtype `{name}` is none of {}", names.join(", ")))
    })?;
    Ok(known)
}

/// The type of a format of the buffer protocol (PEP 3118), whose element has so many bytes.
pub(crate) fn of_format(format: &CStr, size: usize) -> Outcome<DType> {
    let refused = |why: &str| {
        let format = format.to_string_lossy();
        argument(format!(
            "elements of format `{format}` and {size} bytes are not taken: {why}"
        ))
    };
    let bytes = format.to_bytes();
    let (order, code) = match bytes {
        [b'@' | b'=' | b'<' | b'>' | b'!', rest @ ..] => (bytes[0], rest),
        _ => (b'@', bytes),
    };
    if matches!(order, b'>' | b'!') && size > 1 {
        return Err(refused(
            "they are big-endian; send a copy in the machine's order, or receive without `out`, and assign",
        ));
    }
    let dtype = match (code, size) {
        (b"?", 1) => DType::Bool,
        (b"b", 1) => DType::I8,
        (b"B" | b"c", 1) => DType::U8,
        (b"h" | b"i" | b"l" | b"q" | b"n", 2) => DType::I16,
        (b"h" | b"i" | b"l" | b"q" | b"n", 4) => DType::I32,
        (b"h" | b"i" | b"l" | b"q" | b"n", 8) => DType::I64,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 2) => DType::U16,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 4) => DType::U32,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 8) => DType::U64,
        (b"e", 2) => DType::F16,
        (b"f", 4) => DType::F32,
        (b"d", 8) => DType::F64,
        (b"Zf", 8) => DType::C64,
        (b"Zd", 16) => DType::C128,
        (b"O", _) => return Err(refused("they are Python objects")),
        _ => {
            let why = "rendez has no such type; send their bytes, `x.view(numpy.uint8)`";
            return Err(refused(why));
        }
    };
    Ok(dtype)
}

/// The format of a type in the buffer protocol; `None` if it has none.
pub(crate) const fn format_of(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::Bool => c"?",
        DType::I8 => c"b",
        DType::U8 => c"B",
        DType::I16 => c"h",
        DType::U16 => c"H",
        DType::I32 => c"i",
        DType::U32 => c"I",
        DType::I64 => c"q",
        DType::U64 => c"Q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::C64 => c"Zf",
        DType::C128 => c"Zd",
        _ => return None,
    })
}

/// The kind of a type in DLPack, and its bits; `None` if it has none.
pub(crate) const fn dlpack_of(dtype: DType) -> Option<(u8, u8)> {
    Some(match dtype {
        DType::I8 => (0, 8),
        DType::I16 => (0, 16),
        DType::I32 => (0, 32),
        DType::I64 => (0, 64),
        DType::U8 => (1, 8),
        DType::U16 => (1, 16),
        DType::U32 => (1, 32),
        DType::U64 => (1, 64),
        DType::F16 => (2, 16),
        DType::F32 => (2, 32),
        DType::F64 => (2, 64),
        DType::BF16 => (4, 16),
        DType::C64 => (5, 64),
        DType::C128 => (5, 128),
        DType::Bool => (6, 8),
        _ => return None,
    })
}

/// The type of a kind of DLPack's with so many bits.
pub(crate) fn of_dlpack(kind: u8, bits: u8, lanes: u16) -> Outcome<DType> {
    let known = DType::ALL
        .iter()
        .find(|dtype| dlpack_of(**dtype) == Some((kind, bits)));
    known.copied().filter(|_| lanes == 1).ok_or_else(|| {
        argument(format!(
            "elements of DLPack's type {kind}, {bits} bits and {lanes} lanes are not taken: rendez has no such type; \
             send their bytes, `x.view(torch.uint8)`"
        ))
    })
}
