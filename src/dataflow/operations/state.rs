//! Variables: found by name, read, assigned and added to.
//!
//! A reference and a handle are the same thing here. What differs is the texts of refusals, which are the original's,
//! and what a handle leads to after its variable was forgotten: the next one of that name.

use std::sync::{Arc, Mutex, Weak};

use super::row::{Row, row};
use crate::graph::gradients::{none, passed};
use crate::graph::infer::{Inferred, Known, all_same, declared, nothing, scalar, unknown, vector};
use crate::graph::{Node, PartialShape, Role, attr};
use crate::kernel::call::{Done, Fault, elements, elements_mut};
use crate::kernel::make::{Cost, Made, dtype, made, typed};
use crate::kernel::numbers::Number;
use crate::kernel::variables::Variable;
use crate::kernel::{Call, Value};
use rendez::ground::{DType, Locked, Shape, Status, catalogue};
use rendez::memory::{Bool8, Tensor, TensorBuilder};

#[cfg(test)]
mod tests;

/// Picoseconds for each byte of an assignment that adds.
const ADDING: usize = 200;
/// Picoseconds for each byte of a copy.
const COPYING: usize = 100;

/// What is assigned is kept as it is; of a peer's tensor a copy is.
fn keeping() -> Cost {
    Cost::Picoseconds(Box::new(|inputs| {
        let tensor = inputs.get(1).and_then(|input| input.tensor().ok());
        let copied = tensor.filter(Tensor::is_leased);
        copied.map_or(0, |tensor| tensor.size().saturating_mul(COPYING))
    }))
}

const VARIABLE: &str =
    "shape: shape; dtype: type; container: string = ''; shared_name: string = ''";
const ADD: &str = "T: num; use_locking: bool = false";

const HANDLE: &str = "container: string = ''; shared_name: string = ''; debug_name: string = ''; dtype: type; \
                      shape: shape; allowed_devices: list(string) = []";

pub(super) const ROWS: &[Row] = &[
    // By reference.
    row("Variable", "-> ref: Ref(dtype)", VARIABLE, declared)
        .role(Role::Variable)
        .stateful()
        .kernel(|node| variable(node, true)),
    row("VariableV2", "-> ref: Ref(dtype)", VARIABLE, declared)
        .role(Role::Variable)
        .stateful()
        .kernel(|node| variable(node, true)),
    row(
        "IsVariableInitialized",
        "ref: Ref(dtype) -> is_initialized: bool",
        "dtype: type",
        scalar,
    )
    .gradient(none)
    .kernel(|_| is_initialized(true)),
    row(
        "Assign",
        "ref: Ref(T), value: T -> output_ref: Ref(T)",
        "T: type; validate_shape: bool = true; use_locking: bool = true",
        assign_shape,
    )
    .kernel(|node| {
        let validate = attr::bool(&node.attrs, "validate_shape").unwrap_or(true);
        made(keeping(), move |call| assign(call, validate))
    }),
    row(
        "AssignAdd",
        "ref: Ref(T), value: T -> output_ref: Ref(T)",
        ADD,
        all_same,
    )
    .kernel(|node| adding(node, "T", true, true)),
    row(
        "AssignSub",
        "ref: Ref(T), value: T -> output_ref: Ref(T)",
        ADD,
        all_same,
    )
    .kernel(|node| adding(node, "T", false, true)),
    // By handle.
    row("VarHandleOp", "-> resource: resource", HANDLE, scalar)
        .role(Role::Variable)
        .stateful()
        .kernel(|node| variable(node, false)),
    row(
        "ReadVariableOp",
        "resource: resource -> value: dtype",
        "dtype: type",
        unknown,
    )
    .stateful()
    .gradient(passed)
    .kernel(|node| {
        let dtype = dtype(node, "dtype");
        made(Cost::Light, move |call| read(call, dtype))
    }),
    row(
        "VarIsInitializedOp",
        "resource: resource -> is_initialized: bool",
        "",
        scalar,
    )
    .stateful()
    .kernel(|_| is_initialized(false)),
    row(
        "DestroyResourceOp",
        "resource: resource ->",
        "ignore_lookup_error: bool = true",
        nothing,
    )
    .stateful()
    .kernel(|node| {
        let ignore = attr::bool(&node.attrs, "ignore_lookup_error").unwrap_or(true);
        made(Cost::Light, move |call| {
            let variable = call.handle(0)?;
            // A name whose variable has no content is not there for the original.
            let was_there = variable.is_initialized();
            if call.home.variables.forget(&variable) && was_there || ignore {
                return Ok(());
            }
            Err(missing(&variable).into())
        })
    }),
    row(
        "VariableShape",
        "input: resource -> output: out_type",
        "out_type: index = int32",
        vector,
    )
    .stateful()
    .gradient(none)
    .kernel(|node| {
        let out_type = dtype(node, "out_type").unwrap_or(DType::I32);
        made(Cost::Light, move |call| {
            let shape = call.handle(0)?.read()?.shape();
            let dims: Vec<_> = shape.dims().map(u64::cast_signed).collect();
            let row = Shape::new(&[dims.len() as u64])?;
            call.output_ints(out_type, row, &dims)
        })
    }),
    row(
        "AssignVariableOp",
        "resource: resource, value: dtype ->",
        "dtype: type; validate_shape: bool = false",
        nothing,
    )
    .stateful()
    .kernel(|node| {
        let validate = attr::bool(&node.attrs, "validate_shape").unwrap_or(false);
        made(keeping(), move |call| assign_handle(call, validate))
    }),
    row(
        "AssignAddVariableOp",
        "resource: resource, value: dtype ->",
        "dtype: type",
        nothing,
    )
    .stateful()
    .kernel(|node| adding(node, "dtype", true, false)),
    row(
        "AssignSubVariableOp",
        "resource: resource, value: dtype ->",
        "dtype: type",
        nothing,
    )
    .stateful()
    .kernel(|node| adding(node, "dtype", false, false)),
];

/// The variable of input `index`.
pub(super) fn found(call: &Call<'_>, index: usize, is_ref: bool) -> Result<Arc<Variable>, Fault> {
    match is_ref {
        true => call.variable(index).cloned(),
        false => call.handle(index),
    }
}

fn is_initialized(is_ref: bool) -> Made {
    made(Cost::Light, move |call| {
        let is_initialized = found(call, 0, is_ref)?.is_initialized();
        call.push(Tensor::scalar(Bool8::from(is_initialized)));
        Ok(())
    })
}

/// Adds or subtracts; attribute `attr` says the type.
fn adding(node: &Node, attr: &str, is_sum: bool, is_ref: bool) -> Made {
    typed!(node, attr, T: numbers => made(Cost::PerByte(ADDING), move |call| {
        add::<T>(call, is_sum, is_ref)
    }))
}

/// The variable of a name, looked up once and again after it was forgotten. A reference is declared with its shape.
fn variable(node: &Node, is_declared: bool) -> Made {
    // A name that is no text must not pass for none: it would be another variable's.
    let text = |name| {
        let text = attr::text(&node.attrs, name).map(str::to_owned);
        text.ok_or_else(|| format!("attr '{name}' is no text"))
    };
    let (container, shared) = (text("container")?, text("shared_name")?);
    let name = match shared.as_str() {
        "" => node.name.clone(),
        _ => shared,
    };
    let declared = attr::shape(&node.attrs, "shape")
        .and_then(PartialShape::from_proto)
        .and_then(|shape| shape.fully());
    let declared = match declared {
        Some(dims) if is_declared => Some(Shape::new(&dims)?),
        _ => None,
    };
    // The kernel lives as long as its session, and a variable that was forgotten as long as a step has it.
    let found: Mutex<Weak<Variable>> = Mutex::default();
    made(Cost::Light, move |call| {
        let mut found = found.locked();
        let known = found.upgrade().filter(|variable| !variable.is_forgotten());
        let variable = known.unwrap_or_else(|| {
            let variable = call.home.variables.find(&container, &name);
            if let Some(shape) = declared {
                variable.declare(shape);
            }
            *found = Arc::downgrade(&variable);
            variable
        });
        call.outputs.push(Value::Variable(variable));
        Ok(())
    })
}

/// The value's, which must be the variable's unless that is not asked for.
fn assign_shape(known: Known<'_>) -> Inferred {
    match attr::bool(known.attrs, "validate_shape") {
        Some(false) => Ok(vec![known.shape(1)]),
        _ => all_same(known),
    }
}

fn assign(call: &mut Call<'_>, validate: bool) -> Done {
    let (variable, content) = (call.variable(0)?, call.kept(1)?);
    let held = call.hold(variable)?;
    let old = variable.read().ok();
    // Another graph may have made it, of another type: a reference is found by name.
    if let Some(old) = &old
        && old.dtype() != content.dtype()
    {
        return Err(wrong_dtype("assign", old.dtype(), content.dtype()).into());
    }
    let shape = old.map(|old| old.shape()).or_else(|| variable.declared());
    if let Some(shape) = shape.filter(|&shape| validate && shape != content.shape()) {
        return Err(format!(
            "Assign requires shapes of both tensors to match. lhs shape= {shape} rhs shape= {}",
            content.shape()
        )
        .into());
    }
    held.replace(content);
    drop(held);
    call.outputs.push(Value::Variable(Arc::clone(variable)));
    Ok(())
}

fn assign_handle(call: &mut Call<'_>, validate: bool) -> Done {
    let (variable, content) = (call.handle(0)?, call.kept(1)?);
    let held = call.hold(&variable)?;
    if let Ok(old) = variable.read() {
        if old.dtype() != content.dtype() {
            return Err(wrong_dtype("assign", old.dtype(), content.dtype()).into());
        }
        if validate && old.shape() != content.shape() {
            return Err(format!(
                "Trying to assign to variable with tensor with wrong shape. Expected {} got {}",
                old.shape(),
                content.shape()
            )
            .into());
        }
    }
    held.replace(content);
    Ok(())
}

fn wrong_dtype(verb: &str, expected: DType, actual: DType) -> String {
    use crate::graph::types::{data_type, name};
    format!(
        "Trying to {verb} variable with wrong dtype. Expected {} got {}",
        name(data_type(expected)),
        name(data_type(actual))
    )
}

fn read(call: &mut Call<'_>, dtype: Option<DType>) -> Done {
    let variable = call.handle(0)?;
    let content = variable.read().map_err(|_| missing(&variable))?;
    if let Some(dtype) = dtype.filter(|&dtype| dtype != content.dtype()) {
        return Err(wrong_dtype("read", dtype, content.dtype()).into());
    }
    call.push(content);
    Ok(())
}

/// The original's words for a handle whose variable has no content.
pub(super) fn missing(variable: &Variable) -> Status {
    let (name, container) = (variable.name(), variable.container());
    let message = format!(
        "Could not find variable {name}. This could mean that the variable has been deleted. In TF1, it can also mean \
         the variable is uninitialized. Debug info: container={container}, status error message=Resource \
         {container}/{name} does not exist."
    );
    Status::of(catalogue::VARIABLE_EMPTY, message)
}

fn add<T: Number>(call: &mut Call<'_>, is_sum: bool, is_ref: bool) -> Done {
    added(call, is_ref, &mut |[old, by], room| {
        let (old, by) = (elements::<T>(old)?, elements::<T>(by)?);
        for ((out, &old), &by) in elements_mut::<T>(room)?.iter_mut().zip(old).zip(by) {
            *out = if is_sum { old.plus(by) } else { old.minus(by) };
        }
        Ok(())
    })
}

/// What is the same for every type, compiled once: `write` has the loop alone.
fn added(
    call: &mut Call<'_>,
    is_ref: bool,
    write: &mut dyn FnMut([&Tensor; 2], &mut TensorBuilder) -> Done,
) -> Done {
    let (variable, by) = (found(call, 0, is_ref)?, call.tensor(1)?);
    let held = call.hold(&variable)?;
    let old = match is_ref {
        true => variable.read()?,
        false => variable.read().map_err(|_| missing(&variable))?,
    };
    if old.shape() != by.shape() {
        return Err(match is_ref {
            true => Fault::from("Parameters and update must be the same size"),
            false => format!(
                "Cannot update variable with shape {} using a Tensor with shape {}, shapes must be equal.",
                old.shape(),
                by.shape()
            )
            .into(),
        });
    }
    let mut room = call.home.allocate(old.meta())?;
    write([&old, &by], &mut room)?;
    held.replace(room.finish());
    drop(held);
    if is_ref {
        call.outputs.push(Value::Variable(variable));
    }
    Ok(())
}
