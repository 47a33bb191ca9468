//! Arguments and results as JSON: written and read by the types of a function's signature.

use rendez::ground::{DType, Shape, TensorMeta, catalogue};
use rendez::memory::Tensor;
use rendez_rpc::{Packer, Signature, Type, Unpacker, ValueError};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::run::show;
use crate::weights::printable;

/// Gives the tensor that a text after `@` names.
type Load<'a> = &'a mut dyn FnMut(&str) -> Result<Tensor, CliError>;

/// The result does not have its signature's type.
pub(super) fn unreadable(error: ValueError) -> CliError {
    CliError::failure(
        catalogue::RPC_ARGUMENTS,
        format!("the result cannot be read: {error}"),
    )
}

fn wrong(message: String) -> CliError {
    CliError::failure(catalogue::RPC_ARGUMENTS, message)
}

/// Packs the arguments of a call.
pub(super) fn pack(
    signature: &Signature,
    arguments: &[String],
    load: Load<'_>,
) -> Result<Packer, CliError> {
    let types = signature.arguments();
    if types.len() != arguments.len() {
        let message = format!(
            "{} takes {} argument{}, but {} {} given",
            printable(&signature.to_string()),
            types.len(),
            if types.len() == 1 { "" } else { "s" },
            arguments.len(),
            if arguments.len() == 1 { "was" } else { "were" }
        );
        return Err(wrong(message));
    }
    let mut packer = Packer::default();
    for (at, (one, text)) in types.iter().zip(arguments).enumerate() {
        let value = read(one, text);
        put(one, &value, load, &mut packer).map_err(|fault| match fault {
            Fault::Value(why) => {
                let signature = printable(&signature.to_string());
                wrong(format!("argument {} of {signature}: {why}", at + 1))
            }
            Fault::File(error) => error,
        })?;
    }
    Ok(packer)
}

/// A text of the command line: JSON, and where a text is wanted also what is none.
fn read(wanted: &Type, text: &str) -> Value {
    let is_text = match wanted {
        Type::Plain(name) => name == "String" || name == "char",
        Type::Tensor => text.starts_with('@'),
        _ => false,
    };
    match serde_json::from_str(text) {
        Ok(Value::String(value)) => Value::String(value),
        Ok(value) if !is_text => value,
        _ => Value::String(text.to_owned()),
    }
}

enum Fault {
    Value(String),
    File(CliError),
}

impl From<String> for Fault {
    fn from(why: String) -> Self {
        Self::Value(why)
    }
}

impl From<ValueError> for Fault {
    fn from(error: ValueError) -> Self {
        Self::Value(error.to_string())
    }
}

fn mismatch(value: &Value, wanted: &str) -> Fault {
    let mut text = value.to_string();
    if text.chars().count() > 60 {
        text = text.chars().take(60).chain(['…']).collect();
    }
    Fault::Value(format!("{text} is no {wanted}"))
}

fn put(wanted: &Type, value: &Value, load: Load<'_>, to: &mut Packer) -> Result<(), Fault> {
    match wanted {
        Type::Plain(name) => put_plain(name, value, to),
        Type::Tensor => {
            let tensor = match value.as_str().and_then(|text| text.strip_prefix('@')) {
                Some(file) => load(file).map_err(Fault::File)?,
                None => tensor(value)?,
            };
            Ok(to.tensor(tensor).map(drop)?)
        }
        Type::Option(inner) => {
            to.plain(&!value.is_null())?;
            match value.is_null() {
                true => Ok(()),
                false => put(inner, value, load, to),
            }
        }
        Type::List(inner) => {
            let all = value.as_array().ok_or_else(|| mismatch(value, "list"))?;
            to.plain(&(all.len() as u64))?;
            all.iter().try_for_each(|one| put(inner, one, load, to))
        }
        Type::Tuple(types) => {
            let all = value.as_array().filter(|all| all.len() == types.len());
            let wanted = format!("list of {} values", types.len());
            let all = all.ok_or_else(|| mismatch(value, &wanted))?;
            let mut pairs = types.iter().zip(all);
            pairs.try_for_each(|(one, value)| put(one, value, load, to))
        }
        Type::Map(key, item) => {
            let pairs = pairs(value)?;
            to.plain(&(pairs.len() as u64))?;
            pairs.iter().try_for_each(|(name, value)| {
                put(key, name, load, to)?;
                put(item, value, load, to)
            })
        }
        Type::Reference => Err(Fault::Value(
            "a reference cannot be given from a command line: it would end with the command".into(),
        )),
        Type::Other(name) => Err(Fault::Value(format!(
            "the type {name} is the program's own; the command writes numbers, texts, lists, maps, tuples and tensors"
        ))),
    }
}

/// An object, or a list of pairs where keys are no texts.
fn pairs(value: &Value) -> Result<Vec<(Value, Value)>, Fault> {
    let pair = |one: &Value| match one.as_array().map(Vec::as_slice) {
        Some([key, value]) => Ok((key.clone(), value.clone())),
        _ => Err(mismatch(one, "pair of a key and a value")),
    };
    match value {
        Value::Object(all) => Ok(all
            .iter()
            .map(|(key, value)| (Value::String(key.clone()), value.clone()))
            .collect()),
        Value::Array(all) => all.iter().map(pair).collect(),
        _ => Err(mismatch(value, "object, nor list of pairs")),
    }
}

/// A whole number. Those beyond 64 bits are texts in JSON.
fn whole(value: &Value) -> Option<i128> {
    match value {
        Value::Number(number) => number
            .as_i64()
            .map(i128::from)
            .or_else(|| number.as_u64().map(i128::from)),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// A number. JSON has none for what is no number or without end: those are texts.
fn real(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => {
            let number: f64 = text.parse().ok()?;
            // `1e400` has an end, and is beyond the type.
            let has_digits = text.contains(|c: char| c.is_ascii_digit());
            (number.is_finite() || !has_digits).then_some(number)
        }
        _ => None,
    }
}

/// The same as a type that has fewer; `None` beyond that type.
fn narrow<T: Copy + Into<f64>>(value: &Value, narrow: impl Fn(f64) -> T) -> Option<T> {
    let number = real(value)?;
    let narrowed = narrow(number);
    (number.is_infinite() || !narrowed.into().is_infinite()).then_some(narrowed)
}

fn put_plain(name: &str, value: &Value, to: &mut Packer) -> Result<(), Fault> {
    macro_rules! integer {
        ($type:ty) => {{
            let number = whole(value).and_then(|number| <$type>::try_from(number).ok());
            to.plain(&number.ok_or_else(|| mismatch(value, name))?)?
        }};
    }
    let no = || mismatch(value, name);
    match name {
        "()" if value.is_null() => {}
        "bool" => to.plain(&value.as_bool().ok_or_else(no)?)?,
        "char" => {
            let mut letters = value.as_str().ok_or_else(no)?.chars();
            match (letters.next(), letters.next()) {
                (Some(letter), None) => to.plain(&letter)?,
                _ => return Err(no()),
            }
        }
        "i8" => integer!(i8),
        "i16" => integer!(i16),
        "i32" => integer!(i32),
        "i64" => integer!(i64),
        "i128" => integer!(i128),
        "isize" => integer!(isize),
        "u8" => integer!(u8),
        "u16" => integer!(u16),
        "u32" => integer!(u32),
        "u64" => integer!(u64),
        "u128" => {
            let number = value.as_str().and_then(|text| text.parse::<u128>().ok());
            let number = number.or_else(|| whole(value).and_then(|number| number.try_into().ok()));
            to.plain(&number.ok_or_else(no)?)?;
        }
        "usize" => integer!(usize),
        "f32" => to.plain(&narrow(value, |number| number as f32).ok_or_else(no)?)?,
        "f64" => to.plain(&real(value).ok_or_else(no)?)?,
        "String" => to.plain(value.as_str().ok_or_else(no)?)?,
        _ => return Err(no()),
    }
    Ok(())
}

/// A tensor that is written out: lists in lists of numbers, of type f32, or an object that says the type.
fn tensor(value: &Value) -> Result<Tensor, Fault> {
    let no = || {
        mismatch(
            value,
            "tensor: write @FILE.npy, numbers in lists, or {\"dtype\":…,\"shape\":…,\"data\":…}",
        )
    };
    let (dtype, data) = match value.as_object() {
        None => (DType::F32, value),
        Some(object) => {
            let name = object.get("dtype").and_then(Value::as_str);
            let find = |name| DType::ALL.iter().copied().find(|one| one.name() == name);
            let dtype = name.and_then(find).ok_or_else(no)?;
            (dtype, object.get("data").ok_or_else(no)?)
        }
    };
    let (mut dims, mut bytes) = (Vec::new(), Vec::new());
    flatten(data, 0, &mut dims, dtype, &mut bytes).ok_or_else(no)?;
    if let Some(shape) = value.get("shape") {
        dims = serde_json::from_value(shape.clone()).map_err(|_| no())?;
    }
    let shape = Shape::new(&dims).map_err(|error| error.to_string())?;
    let made = Tensor::from_bytes(TensorMeta { dtype, shape }, bytes.into());
    made.map_err(|error| Fault::Value(error.to_string()))
}

/// Appends the elements of `value`, and notes how long its lists are; `None` if those differ, or it is no number.
fn flatten(
    value: &Value,
    depth: usize,
    dims: &mut Vec<u64>,
    dtype: DType,
    to: &mut Vec<u8>,
) -> Option<()> {
    let Some(all) = value.as_array() else {
        return (depth == dims.len()).then(|| element(dtype, value, to))?;
    };
    match dims.get(depth) {
        None if to.is_empty() => dims.push(all.len() as u64),
        Some(&dim) if dim == all.len() as u64 => {}
        _ => return None,
    }
    all.iter()
        .try_for_each(|one| flatten(one, depth + 1, dims, dtype, to))
}

fn element(dtype: DType, value: &Value, to: &mut Vec<u8>) -> Option<()> {
    macro_rules! integer {
        ($type:ty) => {
            to.extend(<$type>::try_from(whole(value)?).ok()?.to_le_bytes())
        };
    }
    match dtype {
        DType::Bool => to.push(u8::from(value.as_bool()?)),
        DType::U8 => integer!(u8),
        DType::I8 => integer!(i8),
        DType::U16 => integer!(u16),
        DType::I16 => integer!(i16),
        DType::U32 => integer!(u32),
        DType::I32 => integer!(i32),
        DType::U64 => integer!(u64),
        DType::I64 => integer!(i64),
        DType::F32 => to.extend(narrow(value, |number| number as f32)?.to_le_bytes()),
        DType::F64 => to.extend(real(value)?.to_le_bytes()),
        DType::F16 => to.extend(narrow(value, half::f16::from_f64)?.to_le_bytes()),
        DType::BF16 => to.extend(narrow(value, half::bf16::from_f64)?.to_le_bytes()),
        _ => return None,
    }
    Some(())
}

/// Reads a result. Of a tensor at most so many elements are shown.
pub(super) fn unpack(wanted: &Type, from: &mut Unpacker, most: usize) -> Result<Value, ValueError> {
    Ok(match wanted {
        Type::Plain(name) => plain(name, from)?,
        Type::Tensor => shown(&from.tensor()?, most)?,
        Type::Reference => json!("a reference, which ends with this command"),
        Type::Option(inner) => match from.plain::<bool>()? {
            true => unpack(inner, from, most)?,
            false => Value::Null,
        },
        Type::List(inner) => {
            let count = from.count()?;
            let all = (0..count).map(|_| unpack(inner, from, most));
            Value::Array(all.collect::<Result<_, _>>()?)
        }
        Type::Tuple(types) => {
            let all = types.iter().map(|one| unpack(one, from, most));
            Value::Array(all.collect::<Result<_, _>>()?)
        }
        Type::Map(key, item) => {
            let count = from.count()?;
            let pair = |_| Ok((unpack(key, from, most)?, unpack(item, from, most)?));
            map((0..count).map(pair).collect::<Result<_, _>>()?)
        }
        Type::Other(name) => {
            let message =
                format!("it is a {name}, a type of the program's own, which only that can show");
            return Err(ValueError::new(message));
        }
    })
}

/// An object if all keys are texts, else a list of pairs.
fn map(pairs: Vec<(Value, Value)>) -> Value {
    if pairs.iter().all(|(key, _)| key.is_string()) {
        let text = |key: Value| key.as_str().unwrap_or_default().to_owned();
        return Value::Object(
            pairs
                .into_iter()
                .map(|(key, value)| (text(key), value))
                .collect(),
        );
    }
    let pair = |(key, value)| Value::Array(vec![key, value]);
    Value::Array(pairs.into_iter().map(pair).collect())
}

fn plain(name: &str, from: &mut Unpacker) -> Result<Value, ValueError> {
    let real = |value: f64| match value.is_finite() {
        true => json!(value),
        false => json!(value.to_string()),
    };
    Ok(match name {
        "()" => Value::Null,
        "bool" => json!(from.plain::<bool>()?),
        "char" => json!(from.plain::<char>()?),
        "i8" => json!(from.plain::<i8>()?),
        "i16" => json!(from.plain::<i16>()?),
        "i32" => json!(from.plain::<i32>()?),
        "i64" => json!(from.plain::<i64>()?),
        "i128" => json!(from.plain::<i128>()?.to_string()),
        "isize" => json!(from.plain::<isize>()?),
        "u8" => json!(from.plain::<u8>()?),
        "u16" => json!(from.plain::<u16>()?),
        "u32" => json!(from.plain::<u32>()?),
        "u64" => json!(from.plain::<u64>()?),
        "u128" => json!(from.plain::<u128>()?.to_string()),
        "usize" => json!(from.plain::<usize>()?),
        // By its own decimals: widened it would show digits that it does not have.
        "f32" => show::Shown::Single(from.plain::<f32>()?).into_json(),
        "f64" => real(from.plain::<f64>()?),
        "String" => json!(from.plain::<String>()?),
        _ => return Err(ValueError::new(format!("{name} is no plain type"))),
    })
}

fn shown(tensor: &Tensor, most: usize) -> Result<Value, ValueError> {
    let no = |why: &dyn std::fmt::Display| ValueError::new(why.to_string());
    let values = show::values(tensor, most).map_err(|status| no(&status.message()))?;
    let data: Vec<Value> = values.into_iter().map(show::Shown::into_json).collect();
    let dims: Vec<u64> = tensor.shape().dims().collect();
    let elements: u64 = dims.iter().product();
    let mut object = json!({ "dtype": tensor.dtype().name(), "shape": dims, "data": data });
    let left = elements.saturating_sub(most as u64);
    if left > 0 {
        object["left_out"] = json!(left);
    }
    Ok(object)
}

#[cfg(test)]
mod tests;
