//! Where values come from, and what only hands them on: constants, placeholders, identities.
//!
//! What is handed on is the same tensor; nothing here copies but a constant, once.

use std::sync::{Arc, Mutex, OnceLock};

use super::row::{Row, row};
use crate::graph::attr::Attrs;
use crate::graph::gradients::{none, passed};
use crate::graph::infer::{Inferred, Known, declared, nothing, same, same_integers};
use crate::graph::{Node, PartialShape, Role, attr, integers, types};
use crate::kernel::call::{Done, Fault};
use crate::kernel::make::{Cost, Made, made};
use crate::kernel::{Call, Value, protos};
use rendez::ground::{Locked, TensorMeta};
use rendez::memory::Tensor;
use rendez_proto::tensorflow::{DataType, TensorProto};

#[cfg(test)]
mod tests;

const ANY: &str = "T: type";

/// Picoseconds for each byte of a constant that is made of its message.
const MAKE: usize = 150;

pub(super) const ROWS: &[Row] = &[
    row(
        "Const",
        "-> output: dtype",
        "value: tensor; dtype: type",
        constant_shape,
    )
    .integers(|known| integers(attr::tensor(known.attrs, "value")?))
    .kernel(constant),
    row(
        "Placeholder",
        "-> output: dtype",
        "dtype: type; shape: shape = ?",
        declared,
    )
    .role(Role::Placeholder)
    .kernel(placeholder),
    row(
        "PlaceholderV2",
        "-> output: dtype",
        "dtype: type; shape: shape",
        declared,
    )
    .role(Role::Placeholder)
    .kernel(placeholder),
    row(
        "PlaceholderWithDefault",
        "input: dtype -> output: dtype",
        "dtype: type; shape: shape",
        declared,
    )
    .gradient(passed)
    .kernel(identity),
    row("Identity", "input: T -> output: T", ANY, same)
        .integers(same_integers)
        .gradient(passed)
        .kernel(identity),
    row("RefIdentity", "input: Ref(T) -> output: Ref(T)", ANY, same)
        .gradient(passed)
        .kernel(|_| {
            made(Cost::Light, |call| {
                call.outputs.extend(call.inputs.first().cloned());
                Ok(())
            })
        }),
    row(
        "IdentityN",
        "input: T -> output: T",
        "T: list(type) >= 1",
        each_same,
    )
    .gradient(passed)
    .kernel(identity),
    row("StopGradient", "input: T -> output: T", ANY, same)
        .gradient(none)
        .kernel(identity),
    row(
        "PreventGradient",
        "input: T -> output: T",
        "T: type; message: string = ''",
        same,
    )
    .kernel(identity),
    row("Snapshot", "input: T -> output: T", ANY, same)
        .gradient(passed)
        .kernel(identity),
    row("NoOp", "->", "", nothing).role(Role::Idle).kernel(idle),
    row("ControlTrigger", "->", "", nothing)
        .role(Role::ControlTrigger)
        .kernel(idle),
];

/// The attribute `value`'s.
fn constant_shape(known: Known<'_>) -> Inferred {
    let value = attr::tensor(known.attrs, "value");
    let shape = value.and_then(|value| match &value.tensor_shape {
        Some(shape) => PartialShape::from_proto(shape),
        None => Some(PartialShape::scalar()),
    });
    match shape.filter(|shape| shape.elements().is_some()) {
        Some(shape) => Ok(vec![shape]),
        None => Err("the constant has no valid shape".to_owned()),
    }
}

/// Each output has its input's.
fn each_same(known: Known<'_>) -> Inferred {
    Ok((0..known.outputs).map(|index| known.shape(index)).collect())
}

/// What hands its inputs on.
fn identity(node: &Node) -> Made {
    let ports = node.in_ports().iter();
    let handles: Vec<_> = ports.map(|port| is_handle(port.what.base())).collect();
    made(Cost::Light, move |call| pass(call, &handles))
}

fn idle(_: &Node) -> Made {
    made(Cost::Light, |_| Ok(()))
}

const fn is_handle(base: DataType) -> bool {
    matches!(base, DataType::DtResource)
}

/// Hands every input on: handles as they are, variables as the value that they have now.
fn pass(call: &mut Call<'_>, handles: &[bool]) -> Done {
    for (value, is_handle) in call.inputs.iter().zip(handles) {
        let value = match value {
            Value::Variable(_) if !is_handle => Value::Tensor(value.tensor()?),
            _ => value.clone(),
        };
        call.outputs.push(value);
    }
    Ok(())
}

/// A constant: its node's attributes until it is first wanted, and from then on a tensor in the engine's memory.
///
/// A message of a few bytes can stand for gigabytes; they are taken where memory has a bound, and only if needed.
#[derive(Debug)]
struct Constant {
    attrs: Mutex<Option<Arc<Attrs>>>,
    tensor: OnceLock<Tensor>,
}

/// The attribute that holds a constant's value.
const VALUE: &str = "value";

fn constant(node: &Node) -> Made {
    let message = attr::tensor(&node.attrs, VALUE).ok_or("there is no value")?;
    let declared = attr::data_type(&node.attrs, "dtype").unwrap_or(DataType::DtInvalid);
    if declared as i32 != message.dtype {
        let actual = DataType::try_from(message.dtype).unwrap_or(DataType::DtInvalid);
        return Err(format!(
            "the value is of type {}, and attr 'dtype' is {}",
            types::name(actual),
            types::name(declared)
        )
        .into());
    }
    let first = first_cost(message, protos::meta(message)?);
    let constant = Arc::new(Constant {
        attrs: Mutex::new(Some(Arc::clone(&node.attrs))),
        tensor: OnceLock::new(),
    });
    let known = Arc::clone(&constant);
    let cost = Cost::Picoseconds(Box::new(move |_| {
        if known.tensor.get().is_some() {
            0
        } else {
            first
        }
    }));
    made(cost, move |call| {
        let tensor = constant.tensor(call)?;
        call.push(tensor);
        Ok(())
    })
}

/// Picoseconds that it takes to make a message's tensor.
fn first_cost(message: &TensorProto, meta: TensorMeta) -> usize {
    let elements = usize::try_from(meta.shape.elements()).unwrap_or(usize::MAX);
    // Of strings the last that is given stands for all that follow.
    let given = message.string_val.iter().map(|text| text.len());
    let size = meta.dtype.size().or_else(|| given.max()).unwrap_or(0);
    elements
        .saturating_mul(size.saturating_add(8))
        .saturating_mul(MAKE)
}

impl Constant {
    fn tensor(&self, call: &Call<'_>) -> Result<Tensor, Fault> {
        if let Some(tensor) = self.tensor.get() {
            return Ok(tensor.clone());
        }
        let mut attrs = self.attrs.locked();
        if let Some(tensor) = self.tensor.get() {
            return Ok(tensor.clone());
        }
        let source = attrs.as_ref().and_then(|attrs| attr::tensor(attrs, VALUE));
        let source = source.ok_or("its value is gone")?;
        let made = protos::read(source, |meta| call.home.allocate(meta))?;
        let tensor = self.tensor.get_or_init(|| made).clone();
        *attrs = None;
        Ok(tensor)
    }
}

fn placeholder(node: &Node) -> Made {
    let base = attr::data_type(&node.attrs, "dtype").unwrap_or(DataType::DtInvalid);
    let mut text = format!(
        "You must feed a value for placeholder tensor '{}' with dtype {}",
        node.name,
        types::name(base)
    );
    let shape = attr::shape(&node.attrs, "shape").and_then(PartialShape::from_proto);
    if let Some(shape) = shape.filter(|shape| shape.rank().is_some_and(|rank| rank > 0)) {
        text.push_str(&format!(" and shape {shape}"));
    }
    made(Cost::Light, move |_| Err(text.as_str().into()))
}
