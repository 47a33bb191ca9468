//! Values of tensors, for people and for programs.
//!
//! Knows element types, and nothing of whose values they are.

use std::convert::Infallible;
use std::fmt;

use rendez::ground::{DType, Status, catalogue};
use rendez::memory::{Bool8, Tensor};

/// One value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Shown {
    /// A whole number or a truth value, and all else that JSON has.
    Exact(serde_json::Value),
    /// A number that JSON may not have: not a number, or without end.
    Float(f64),
    /// As many decimals as tell it from its neighbours of 32 bits.
    Single(f32),
    Complex(f64, f64),
    /// Of two as [`Self::Single`].
    SingleComplex(f32, f32),
    Bytes(Vec<u8>),
}

impl Shown {
    /// For programs. What JSON has no number for is a text; bytes that are no text are hexadecimal in an object.
    pub(crate) fn into_json(self) -> serde_json::Value {
        use serde_json::{Number, Value, json};
        match self {
            Self::Exact(value) => value,
            Self::Float(value) => {
                Number::from_f64(value).map_or_else(|| json!(value.to_string()), Value::Number)
            }
            // By its own decimals: widened to 64 bits it would show digits that were never computed.
            Self::Single(value) if value.is_finite() => value
                .to_string()
                .parse()
                .map_or(Value::Null, |number: f64| json!(number)),
            Self::Single(value) => json!(value.to_string()),
            Self::Complex(re, im) => Value::Array(vec![
                Self::Float(re).into_json(),
                Self::Float(im).into_json(),
            ]),
            Self::SingleComplex(re, im) => Value::Array(vec![
                Self::Single(re).into_json(),
                Self::Single(im).into_json(),
            ]),
            Self::Bytes(bytes) => match String::from_utf8(bytes) {
                Ok(text) => json!(text),
                Err(error) => {
                    let hex: String = error
                        .as_bytes()
                        .iter()
                        .map(|byte| format!("{byte:02x}"))
                        .collect();
                    json!({ "hex": hex })
                }
            },
        }
    }
}

/// For people.
impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value}"),
            Self::Single(value) => write!(f, "{value}"),
            Self::Complex(re, im) => write!(f, "{re}{im:+}i"),
            Self::SingleComplex(re, im) => write!(f, "{re}{im:+}i"),
            Self::Bytes(bytes) => {
                const LONGEST: usize = 40;
                let part = bytes.get(..LONGEST).unwrap_or(bytes);
                let more = if bytes.len() > LONGEST { "…" } else { "" };
                write!(f, "\"{}{more}\"", part.escape_ascii())
            }
        }
    }
}

/// At most the first `most` values.
///
/// # Errors
/// As [`each`].
pub(crate) fn values(tensor: &Tensor, most: usize) -> Result<Vec<Shown>, Status> {
    let mut found = Vec::new();
    let Ok(()) = each(tensor, most, &mut |value| {
        found.push(value);
        Ok::<_, Infallible>(())
    })?;
    Ok(found)
}

/// Gives `show` at most the first `most` values, until it fails.
///
/// # Errors
/// `TENSOR_STRINGS` for bytes that encode no strings; `TENSOR_MALFORMED` for a type that this command does not know.
pub(crate) fn each<E>(
    tensor: &Tensor,
    most: usize,
    show: &mut impl FnMut(Shown) -> Result<(), E>,
) -> Result<Result<(), E>, Status> {
    macro_rules! all {
        ($element:ty, $shown:expr) => {{
            let mut values = tensor.as_slice::<$element>()?.iter().take(most);
            values.try_for_each(|value| show($shown(*value)))
        }};
    }
    Ok(match tensor.dtype() {
        DType::Bool => all!(Bool8, |value: Bool8| Shown::Exact(value.is_true().into())),
        DType::U8 => all!(u8, |value: u8| Shown::Exact(value.into())),
        DType::I8 => all!(i8, |value: i8| Shown::Exact(value.into())),
        DType::U16 => all!(u16, |value: u16| Shown::Exact(value.into())),
        DType::I16 => all!(i16, |value: i16| Shown::Exact(value.into())),
        DType::U32 => all!(u32, |value: u32| Shown::Exact(value.into())),
        DType::I32 => all!(i32, |value: i32| Shown::Exact(value.into())),
        DType::U64 => all!(u64, |value: u64| Shown::Exact(value.into())),
        DType::I64 => all!(i64, |value: i64| Shown::Exact(value.into())),
        DType::F16 => all!(half::f16, |value: half::f16| Shown::Single(value.to_f32())),
        DType::BF16 => all!(half::bf16, |value: half::bf16| Shown::Single(
            value.to_f32()
        )),
        DType::F32 => all!(f32, Shown::Single),
        DType::F64 => all!(f64, Shown::Float),
        DType::C64 => all!(num_complex::Complex<f32>, |value: num_complex::Complex<
            f32,
        >| {
            Shown::SingleComplex(value.re, value.im)
        }),
        DType::C128 => all!(num_complex::Complex<f64>, |value: num_complex::Complex<
            f64,
        >| {
            Shown::Complex(value.re, value.im)
        }),
        DType::String => {
            let strings = tensor.strings()?;
            let mut strings = strings.iter().take(most);
            strings.try_for_each(|item| show(Shown::Bytes(item.to_vec())))
        }
        other => {
            let what = format!("elements of type {other} cannot be shown");
            return Err(Status::of(catalogue::TENSOR_MALFORMED, what));
        }
    })
}
