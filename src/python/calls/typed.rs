//! Values as signatures name their types: what functions of other languages take and return, and what Python's own
//! take that are annotated.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyList, PyMapping, PyString, PyTuple};
use rendez_rpc::{
    Functions, Packer, RRef as Reference, Signature, Type, Unpacker, Value, ValueError,
};

use super::core::{Core, failed};
use super::plain::{Taken, array_of, tensor};
use super::promise::Outcome;
use super::reference::{Object, RRef};
use super::serve::{self, Begun};
use crate::errors::is_failure;
use crate::tensor::Tensor;
use crate::writable::TensorMut;

/// Writes arguments of a function.
pub(crate) fn pack(
    core: &Core,
    signature: &Signature,
    arguments: &Bound<'_, PyTuple>,
) -> PyResult<(Packer, Taken)> {
    let types = signature.arguments();
    if types.len() != arguments.len() {
        return Err(wrong(format!(
            "{signature} takes {} arguments, and {} are given",
            types.len(),
            arguments.len()
        )));
    }
    let mut to = Writing::default();
    for (at, (wanted, value)) in types.iter().zip(arguments).enumerate() {
        put(core, wanted, &value, &mut to).map_err(|error| {
            if is_failure(error.value(value.py())) {
                return error;
            }
            let said = error.value(value.py()).getattr("message");
            let said = said.map_or_else(|_| error.to_string(), |said| said.to_string());
            wrong(format!("argument {} of {signature}: {said}", at + 1))
        })?;
    }
    Ok((to.packer, to.taken))
}

/// What is written, and the tensors that were taken for it.
#[derive(Default)]
struct Writing {
    packer: Packer,
    taken: Taken,
}

fn wrong(message: String) -> PyErr {
    failed(ValueError::new(message))
}

fn put(core: &Core, wanted: &Type, value: &Bound<'_, PyAny>, to: &mut Writing) -> PyResult<()> {
    let no = |what: &str| wrong(format!("{} is no {what}", shown(value)));
    let plain = |done: Result<(), ValueError>| done.map_err(failed);
    match wanted {
        Type::Plain(name) => put_plain(name, value, &mut to.packer),
        Type::Tensor => {
            let tensor = if let Ok(tensor) = value.cast::<Tensor>() {
                tensor.get().inner()?
            } else if let Ok(tensor) = value.cast::<TensorMut>() {
                to.taken.take(tensor)?
            } else {
                array_of(core, value)?
            };
            to.packer.tensor(tensor).map(drop).map_err(failed)
        }
        Type::Reference => {
            let reference = value.cast::<RRef>().map_err(|_| no("reference"))?;
            plain(reference.get().inner.put(&mut to.packer))
        }
        Type::Option(inner) => {
            plain(to.packer.plain(&!value.is_none()))?;
            match value.is_none() {
                true => Ok(()),
                false => put(core, inner, value, to),
            }
        }
        Type::List(inner) => {
            let is_bytes = **inner == Type::Plain("u8".into());
            if let (Ok(bytes), true) = (value.cast::<PyBytes>(), is_bytes) {
                return plain(to.packer.bytes(bytes.as_bytes()));
            }
            if value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>() {
                return Err(no("list"));
            }
            let all = value.try_iter()?.collect::<PyResult<Vec<_>>>()?;
            plain(to.packer.plain(&(all.len() as u64)))?;
            all.iter().try_for_each(|one| put(core, inner, one, to))
        }
        Type::Tuple(types) => {
            let all = value.cast::<PyTuple>().map_err(|_| no("tuple"))?;
            if all.len() != types.len() {
                return Err(no(&format!("tuple of {} values", types.len())));
            }
            types
                .iter()
                .zip(all)
                .try_for_each(|(one, value)| put(core, one, &value, to))
        }
        Type::Map(key, item) => {
            let all = value.cast::<PyMapping>().map_err(|_| no("mapping"))?;
            let all = all.items()?;
            plain(to.packer.plain(&(all.len() as u64)))?;
            for pair in all {
                let (name, value) = pair.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
                put(core, key, &name, to)?;
                put(core, item, &value, to)?;
            }
            Ok(())
        }
        Type::Other(name) => Err(wrong(format!(
            "the type {name} is the other program's own: numbers, texts, lists, mappings, tuples and tensors can be \
             written"
        ))),
    }
}

fn put_plain(name: &str, value: &Bound<'_, PyAny>, to: &mut Packer) -> PyResult<()> {
    let no = || wrong(format!("{} is no {name}", shown(value)));
    macro_rules! whole {
        ($($type:ident)+) => {
            match name {
                $(stringify!($type) => {
                    // Indices too, as NumPy's integers are.
                    let number = value.extract::<$type>().map_err(|_| no())?;
                    return to.plain(&number).map_err(failed);
                })+
                _ => {}
            }
        };
    }
    if !value.is_instance_of::<PyFloat>() && !value.is_instance_of::<PyString>() {
        whole!(i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize);
    }
    match name {
        "()" if value.is_none() => Ok(()),
        "bool" => to.plain(&value.extract::<bool>().map_err(|_| no())?),
        "f32" => to.plain(&(value.extract::<f64>().map_err(|_| no())? as f32)),
        "f64" => to.plain(&value.extract::<f64>().map_err(|_| no())?),
        "char" => to.plain(&value.extract::<char>().map_err(|_| no())?),
        "String" => to.plain(&value.extract::<String>().map_err(|_| no())?),
        _ => return Err(no()),
    }
    .map_err(failed)
}

fn shown(value: &Bound<'_, PyAny>) -> String {
    let text = value
        .repr()
        .map_or_else(|_| "it".into(), |text| text.to_string());
    match text.chars().count() > 60 {
        true => text.chars().take(60).chain(['…']).collect(),
        false => text,
    }
}

/// Reads a result, to its end.
pub(crate) fn unpack(
    py: Python<'_>,
    core: &Arc<Core>,
    wanted: &Type,
    mut from: Unpacker,
) -> PyResult<Py<PyAny>> {
    let value = take(py, core, wanted, &mut from)?;
    from.end().map_err(failed)?;
    Ok(value.unbind())
}

fn take<'py>(
    py: Python<'py>,
    core: &Arc<Core>,
    wanted: &Type,
    from: &mut Unpacker,
) -> PyResult<Bound<'py, PyAny>> {
    Ok(match wanted {
        Type::Plain(name) => take_plain(py, name, from)?,
        Type::Tensor => tensor(py, core, from.tensor().map_err(failed)?)?,
        Type::Reference => {
            let inner = Reference::<Object>::take(from).map_err(failed)?;
            Bound::new(py, RRef::new(core, inner))?.into_any()
        }
        Type::Option(inner) => match from.plain::<bool>().map_err(failed)? {
            true => take(py, core, inner, from)?,
            false => py.None().into_bound(py),
        },
        Type::List(inner) if **inner == Type::Plain("u8".into()) => {
            PyBytes::new(py, from.bytes().map_err(failed)?).into_any()
        }
        Type::List(inner) => {
            let count = from.count().map_err(failed)?;
            let list = PyList::empty(py);
            for _ in 0..count {
                list.append(take(py, core, inner, from)?)?;
            }
            list.into_any()
        }
        Type::Tuple(types) => {
            let all = types.iter().map(|one| take(py, core, one, from));
            PyTuple::new(py, all.collect::<PyResult<Vec<_>>>()?)?.into_any()
        }
        Type::Map(key, item) => {
            let (count, dict) = (from.count().map_err(failed)?, PyDict::new(py));
            for _ in 0..count {
                let name = take(py, core, key, from)?;
                dict.set_item(name, take(py, core, item, from)?)?;
            }
            dict.into_any()
        }
        Type::Other(name) => {
            return Err(wrong(format!(
                "it is a {name}, a type of the other program's own, which only that can read"
            )));
        }
    })
}

fn take_plain<'py>(
    py: Python<'py>,
    name: &str,
    from: &mut Unpacker,
) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! whole {
        ($($type:ident)+) => {
            match name {
                $(stringify!($type) => {
                    let number = from.plain::<$type>().map_err(failed)?;
                    return Ok(number.into_pyobject(py)?.into_any());
                })+
                _ => {}
            }
        };
    }
    whole!(i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize);
    Ok(match name {
        "()" => py.None().into_bound(py),
        "bool" => {
            let truth = from.plain::<bool>().map_err(failed)?;
            pyo3::types::PyBool::new(py, truth).to_owned().into_any()
        }
        "f32" => PyFloat::new(py, f64::from(from.plain::<f32>().map_err(failed)?)).into_any(),
        "f64" => PyFloat::new(py, from.plain::<f64>().map_err(failed)?).into_any(),
        "char" => PyString::new(py, &from.plain::<char>().map_err(failed)?.to_string()).into_any(),
        "String" => PyString::new(py, &from.plain::<String>().map_err(failed)?).into_any(),
        _ => return Err(wrong(format!("{name} is no plain type"))),
    })
}

/// What a function of Python's failed with, as programs in other languages see it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

/// The functions of Python's that say what types they have, for programs in all languages.
pub(crate) fn functions(
    py: Python<'_>,
    core: &Arc<Core>,
    mut functions: Functions,
) -> PyResult<Functions> {
    let described = py.import("rendez.rpc._signatures")?.getattr("described")?;
    let all = described.call1((core.functions.bind(py),))?;
    for one in all.cast::<PyList>()? {
        let (text, adapted) = one.extract::<(String, Py<PyAny>)>()?;
        let Some(signature) = Signature::parse(&text) else {
            return Err(wrong(format!("`{text}` is no signature")));
        };
        let (core, its) = (Arc::clone(core), Arc::new(signature.clone()));
        let adapted = Held(Some(adapted));
        let run = move |from: Unpacker| carry_out(&core, &its, &adapted, from).end();
        functions = functions.add_raw_async(&signature, run);
    }
    Ok(functions)
}

/// A function of Python's, dropped where the interpreter's lock is.
struct Held(Option<Py<PyAny>>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(function) = self.0.take() {
            crate::errands::leave(move |_| drop(function));
        }
    }
}

fn carry_out(
    core: &Arc<Core>,
    signature: &Arc<Signature>,
    function: &Held,
    mut from: Unpacker,
) -> Begun<Result<Packer, Raised>> {
    let (its, here) = (Arc::clone(signature), Arc::clone(core));
    let made = move |py: Python<'_>, outcome: Outcome<'_>| {
        let packed = outcome.and_then(|value| {
            let mut to = Writing::default();
            put(&here, its.result(), &value, &mut to)?;
            to.taken.keep();
            Ok(to.packer)
        });
        packed.map_err(|error| told(py, &error))
    };
    let begun = serve::begin(
        |py| {
            let mut arguments = Vec::new();
            for wanted in signature.arguments() {
                arguments.push(take(py, core, wanted, &mut from)?);
            }
            let arguments = PyTuple::new(py, arguments)?;
            let served = serve::Served::current(py, core, signature.name())?;
            let apply = py.import("rendez.rpc._serve")?.getattr("apply")?;
            let about = (&served, function.0.as_ref(), arguments, PyDict::new(py));
            let outcome = apply.call1(about)?;
            Ok((served, outcome))
        },
        made,
    );
    begun.unwrap_or_else(|| Begun::Ended(Err(Raised("the interpreter is about to end".into()))))
}

fn told(py: Python<'_>, error: &PyErr) -> Raised {
    let name = error.get_type(py).name();
    let name = name.map_or_else(|_| String::new(), |name| name.to_string());
    let said = error.value(py).str();
    let said = said.map_or_else(|_| String::new(), |said| said.to_string());
    Raised(format!("{name}: {said}"))
}
