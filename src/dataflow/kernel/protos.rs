//! Tensors as TensorFlow's messages, read and written. Knows no node and no graph.
//!
//! A message is a claim: its type, shape and elements are checked against each other before memory is taken, and one
//! element that stands for a whole shape is written into memory that the caller gives, under the caller's bound.

use half::{bf16, f16};
use num_complex::Complex;

use crate::graph::{PartialShape, types};
use rendez::ground::limits::STRING_TENSOR_BYTES_MAX;
use rendez::ground::{DType, Shape, Status, TensorMeta, catalogue};
use rendez::memory::{Bool8, Element, Tensor, TensorBuilder};
use rendez_proto::tensorflow::{DataType, TensorProto, TensorShapeProto};

#[cfg(test)]
mod tests;

/// The type and shape of a message whose elements fit them.
///
/// # Errors
/// `TENSOR_MALFORMED` for a type that is none or has no elements, a shape that is unknown in part or too large, more
/// elements than the shape has, or bytes that are not as many as type and shape take.
pub fn meta(message: &TensorProto) -> Result<TensorMeta, Status> {
    let base = DataType::try_from(message.dtype).unwrap_or(DataType::DtInvalid);
    let Some(dtype) = types::dtype(base) else {
        return Err(malformed(&format!(
            "type {} has no elements",
            message.dtype
        )));
    };
    let scalar = TensorShapeProto::default();
    let dims = PartialShape::from_proto(message.tensor_shape.as_ref().unwrap_or(&scalar))
        .and_then(|shape| shape.fully());
    let Some(dims) = dims else {
        return Err(malformed("its shape is no fully known shape"));
    };
    let shape = Shape::new(&dims).and_then(|shape| TensorMeta::new(dtype, shape));
    let meta = shape.map_err(|error| malformed(&error.to_string()))?;
    let elements = meta.shape.elements();
    if message.tensor_content.is_empty() {
        let given = given(message, dtype);
        if given as u64 > elements {
            return Err(malformed(&format!(
                "{given} elements are given for shape {}",
                meta.shape
            )));
        }
    } else if let Some(size) = meta.size() {
        let given = message.tensor_content.len();
        if given as u64 != size {
            return Err(malformed(&format!(
                "tensor_content has {given} bytes, and {}{} takes {size}",
                types::name(base),
                meta.shape
            )));
        }
    } else if message.tensor_content.len() as u64 <= elements.saturating_sub(1) {
        return Err(malformed(&format!(
            "tensor_content has {} bytes for {elements} strings",
            message.tensor_content.len()
        )));
    }
    Ok(meta)
}

/// The tensor of a message, in memory that `allocate` gives.
///
/// # Errors
/// As [`meta`]; what `allocate` says; `TENSOR_MALFORMED` for strings of more than
/// [`STRING_TENSOR_BYTES_MAX`] bytes.
pub fn read(
    message: &TensorProto,
    allocate: impl FnOnce(TensorMeta) -> Result<TensorBuilder, Status>,
) -> Result<Tensor, Status> {
    let meta = meta(message)?;
    if meta.dtype == DType::String {
        return read_strings(message, meta.shape, allocate);
    }
    let mut room = allocate(meta)?;
    if !message.tensor_content.is_empty() {
        let bytes = room.bytes_mut();
        if bytes.len() == message.tensor_content.len() {
            bytes.copy_from_slice(&message.tensor_content);
        }
        return Ok(room.finish());
    }
    let ints = &message.int_val;
    let halves = |number: &i32| *number as u16;
    let done = match meta.dtype {
        DType::Bool => spread(&mut room, &message.bool_val, |&truth| Bool8::from(truth)),
        DType::I8 => spread(&mut room, ints, |&number| number as i8),
        DType::U8 => spread(&mut room, ints, |&number| number as u8),
        DType::I16 => spread(&mut room, ints, |&number| number as i16),
        DType::U16 => spread(&mut room, ints, |&number| number as u16),
        DType::I32 => spread(&mut room, ints, |&number| number),
        DType::I64 => spread(&mut room, &message.int64_val, |&number| number),
        DType::U32 => spread(&mut room, &message.uint32_val, |&number| number),
        DType::U64 => spread(&mut room, &message.uint64_val, |&number| number),
        DType::F16 => spread(&mut room, &message.half_val, |bits| {
            f16::from_bits(halves(bits))
        }),
        DType::BF16 => spread(&mut room, &message.half_val, |bits| {
            bf16::from_bits(halves(bits))
        }),
        DType::F32 => spread(&mut room, &message.float_val, |&number| number),
        DType::F64 => spread(&mut room, &message.double_val, |&number| number),
        DType::C64 => {
            let pairs: Vec<_> = message.scomplex_val.chunks_exact(2).collect();
            spread(&mut room, &pairs, |pair| Complex::new(pair[0], pair[1]))
        }
        DType::C128 => {
            let pairs: Vec<_> = message.dcomplex_val.chunks_exact(2).collect();
            spread(&mut room, &pairs, |pair| Complex::new(pair[0], pair[1]))
        }
        DType::String => Ok(()),
        _ => return Err(malformed("its type has no list of its own")),
    };
    done.map_err(|error| malformed(&error.to_string()))?;
    Ok(room.finish())
}

/// Elements that stand in the message's list for `dtype`.
fn given(message: &TensorProto, dtype: DType) -> usize {
    match dtype {
        DType::Bool => message.bool_val.len(),
        DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32 => message.int_val.len(),
        DType::I64 => message.int64_val.len(),
        DType::U32 => message.uint32_val.len(),
        DType::U64 => message.uint64_val.len(),
        DType::F16 | DType::BF16 => message.half_val.len(),
        DType::F32 => message.float_val.len(),
        DType::F64 => message.double_val.len(),
        DType::C64 => message.scomplex_val.len().div_ceil(2),
        DType::C128 => message.dcomplex_val.len().div_ceil(2),
        DType::String => message.string_val.len(),
        _ => 0,
    }
}

/// Writes `given`, and its last element into what is left; zeros if there is none.
fn spread<S, T: Element + Default>(
    room: &mut TensorBuilder,
    given: &[S],
    element: impl Fn(&S) -> T,
) -> Result<(), rendez::memory::TensorError> {
    let out = room.as_mut_slice::<T>()?;
    for (place, given) in out.iter_mut().zip(given) {
        *place = element(given);
    }
    let last = given.last().map(element).unwrap_or_default();
    if let Some(rest) = out.get_mut(given.len()..) {
        rest.fill(last);
    }
    Ok(())
}

fn read_strings(
    message: &TensorProto,
    shape: Shape,
    allocate: impl FnOnce(TensorMeta) -> Result<TensorBuilder, Status>,
) -> Result<Tensor, Status> {
    if message.tensor_content.is_empty() {
        return spread_strings(
            message.string_val.iter().map(Vec::as_slice),
            shape,
            allocate,
        );
    }
    let given = packed(&message.tensor_content, shape.elements());
    let given = given.ok_or_else(|| malformed("tensor_content is no list of strings"))?;
    spread_strings(given, shape, allocate)
}

/// As [`spread`]: `given`, and the last of them for each that is left.
fn spread_strings<'a>(
    given: impl Iterator<Item = &'a [u8]> + Clone,
    shape: Shape,
    allocate: impl FnOnce(TensorMeta) -> Result<TensorBuilder, Status>,
) -> Result<Tensor, Status> {
    let (mut count, mut bytes, mut last) = (0, 0, &b""[..]);
    for item in given.clone() {
        (count, bytes, last) = (count + 1, bytes + item.len() as u64 + 8, item);
    }
    let missing = shape.elements().saturating_sub(count);
    let bytes = missing
        .checked_mul(last.len() as u64 + 8)
        .and_then(|more| bytes.checked_add(more))
        .filter(|&bytes| bytes <= STRING_TENSOR_BYTES_MAX as u64);
    if bytes.is_none() {
        return Err(malformed(&format!(
            "its strings take more than {STRING_TENSOR_BYTES_MAX} bytes (STRING_TENSOR_BYTES_MAX)"
        )));
    }
    let all = given.chain(std::iter::repeat_n(last, missing as usize));
    super::strings(shape, all, allocate)
}

/// The strings of `tensor_content`: their lengths as variable-length integers, then their bytes.
fn packed(content: &[u8], count: u64) -> Option<impl Iterator<Item = &[u8]> + Clone> {
    let (mut data, mut whole) = (content, 0usize);
    for _ in 0..count {
        whole = whole.checked_add(length(&mut data)?)?;
    }
    let mut lengths = content;
    let each = (0..count).map_while(move |_| {
        let (item, after) = data.split_at_checked(length(&mut lengths)?)?;
        data = after;
        Some(item)
    });
    (data.len() == whole).then_some(each)
}

/// Takes a variable-length integer off `rest`.
fn length(rest: &mut &[u8]) -> Option<usize> {
    let mut length = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        length |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            break;
        }
    }
    usize::try_from(length).ok()
}

fn malformed(what: &str) -> Status {
    let message = format!("Cannot parse tensor from tensor_proto: {what}");
    Status::of(catalogue::TENSOR_MALFORMED, message)
}
