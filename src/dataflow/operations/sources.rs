//! Where values come from, and what only hands them on: constants, placeholders, identities.
//!
//! What is handed on is the same tensor; nothing here copies but a constant, once.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::graph::{Node, PartialShape, attr, types};
use crate::kernel::Call;
use crate::kernel::Value;
use crate::kernel::call::{Done, Fault};
use crate::kernel::make::{Cost, Made, made};
use crate::kernel::protos;
use rendez::memory::Tensor;
use rendez_proto::tensorflow::{DataType, TensorProto};

#[cfg(test)]
mod tests;

pub(super) fn make(node: &Node) -> Made {
    match node.op.name() {
        "Const" => constant(node),
        "Placeholder" | "PlaceholderV2" => placeholder(node),
        "PlaceholderWithDefault"
        | "StopGradient"
        | "PreventGradient"
        | "Snapshot"
        | "Identity"
        | "IdentityN" => {
            let handles: Vec<_> = node
                .in_ports()
                .iter()
                .map(|port| is_handle(port.what.base()))
                .collect();
            made(Cost::Light, move |call| pass(call, &handles))
        }
        "RefIdentity" => made(Cost::Light, |call| {
            call.outputs.extend(call.inputs.first().cloned());
            Ok(())
        }),
        "NoOp" | "ControlTrigger" => made(Cost::Light, |_| Ok(())),
        _ => Ok(None),
    }
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

/// A constant: its message until it is first wanted, and from then on a tensor in the engine's memory.
///
/// A message of a few bytes can stand for gigabytes; they are taken where memory has a bound, and only if needed.
#[derive(Debug)]
struct Constant {
    message: Mutex<Option<TensorProto>>,
    tensor: OnceLock<Tensor>,
}

fn constant(node: &Node) -> Made {
    let message = attr::tensor(&node.attrs, "value").ok_or("there is no value")?;
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
    protos::meta(message)?;
    let constant = Constant {
        message: Mutex::new(Some(message.clone())),
        tensor: OnceLock::new(),
    };
    made(Cost::Light, move |call| {
        let tensor = constant.tensor(call)?;
        call.push(tensor);
        Ok(())
    })
}

impl Constant {
    fn tensor(&self, call: &Call<'_>) -> Result<Tensor, Fault> {
        if let Some(tensor) = self.tensor.get() {
            return Ok(tensor.clone());
        }
        let mut message = self.message.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tensor) = self.tensor.get() {
            return Ok(tensor.clone());
        }
        let source = message.as_ref().ok_or("its value is gone")?;
        let made = protos::read(source, |meta| call.home.allocate(meta))?;
        let tensor = self.tensor.get_or_init(|| made).clone();
        *message = None;
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
