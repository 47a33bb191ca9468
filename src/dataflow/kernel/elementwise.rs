//! Elements computed one by one: of one tensor, or of two that broadcasting brings together.
//!
//! Knows no operation: it is given functions of elements. How elements meet is [`broadcast`](super::broadcast)'s.

use super::broadcast::{Walk, broadcast};
use super::call::{Done, elements, elements_mut};
use super::make::{Cost, Made, made};
use super::{Call, Value};
use rendez::ground::{DType, Shape};
use rendez::memory::{Element, Tensor, TensorBuilder};

/// Picoseconds for each byte of adding and its like, which wait for memory.
pub(crate) const LIGHT: usize = 200;
/// Picoseconds for each byte of an exponential and its like.
pub(crate) const DEEP: usize = 2500;

/// `f` of each pair.
pub(crate) fn pairs<T: Element, U: Element>(
    picoseconds: usize,
    f: impl Fn(T, T) -> U + Copy + Send + Sync + 'static,
) -> Made {
    made(broadcast_cost(picoseconds), move |call| zip(call, f))
}

/// `f` of each element.
pub(crate) fn each<T: Element>(
    picoseconds: usize,
    f: impl Fn(T) -> T + Copy + Send + Sync + 'static,
) -> Made {
    made(Cost::PerByte(picoseconds), move |call| map(call, f))
}

/// Writes `f` of each element of the input.
pub(crate) fn map<T: Element, U: Element>(call: &mut Call<'_>, f: impl Fn(T) -> U) -> Done {
    mapped(call, U::DTYPE, &mut |input, room| {
        for (out, &element) in elements_mut::<U>(room)?
            .iter_mut()
            .zip(elements::<T>(input)?)
        {
            *out = f(element);
        }
        Ok(())
    })
}

/// What is the same for every type and function of [`map`], compiled once: `write` has the loop alone.
pub(crate) fn mapped(
    call: &mut Call<'_>,
    out: DType,
    write: &mut dyn FnMut(&Tensor, &mut TensorBuilder) -> Done,
) -> Done {
    let input = call.tensor(0)?;
    let mut room = call.room(out, input.shape())?;
    write(&input, &mut room)?;
    call.push(room.finish());
    Ok(())
}

/// Refuses inputs of different shapes.
pub(crate) fn same_shapes(call: &Call<'_>, name: &str, op: &str) -> Done {
    let first = call.tensor(0)?.shape();
    for index in 1..call.inputs.len() {
        let other = call.tensor(index)?.shape();
        if other != first {
            return Err(format!(
                "Inputs to operation {name} of type {op} must have the same size and shape.  Input 0: {first} != \
                 input {index}: {other}"
            )
            .into());
        }
    }
    Ok(())
}

/// Two inputs, and how their elements meet.
struct Pair {
    left: Tensor,
    right: Tensor,
    walk: Walk<2>,
}

/// Writes `f` of each pair of elements of the inputs, which are broadcast.
pub(crate) fn zip<T: Element, U: Element>(
    call: &mut Call<'_>,
    f: impl Fn(T, T) -> U + Copy,
) -> Done {
    zipped(call, U::DTYPE, &mut |pair, room| {
        let (left, right) = (elements::<T>(&pair.left)?, elements::<T>(&pair.right)?);
        pair.walk.zip(left, right, elements_mut::<U>(room)?, f);
        Ok(())
    })
}

/// What is the same for every type and function of [`zip`], compiled once: `write` has the loops alone.
fn zipped(
    call: &mut Call<'_>,
    out: DType,
    write: &mut dyn FnMut(&Pair, &mut TensorBuilder) -> Done,
) -> Done {
    let (left, right) = (call.tensor(0)?, call.tensor(1)?);
    let shape = broadcast(left.shape(), right.shape())?;
    let walk = Walk::broadcast(shape, [left.shape(), right.shape()]);
    let mut room = call.room(out, shape)?;
    write(&Pair { left, right, walk }, &mut room)?;
    call.push(room.finish());
    Ok(())
}

/// The cost of an operation on what inputs make together, not of their own bytes: a column and a row make a table.
pub(crate) fn broadcast_cost(picoseconds: usize) -> Cost {
    Cost::Picoseconds(Box::new(move |inputs| {
        let own: usize = inputs.iter().map(Value::bytes).sum();
        let together = together(inputs).unwrap_or(0);
        own.max(together).saturating_mul(picoseconds)
    }))
}

/// Bytes of what inputs make together, if each element is as large as those of the largest: strings, as they are on
/// average. `None` where a kernel refuses them.
fn together(inputs: &[Value]) -> Option<usize> {
    let (mut shape, mut size) = (Shape::SCALAR, 0);
    for input in inputs {
        let tensor = input.tensor().ok()?;
        shape = broadcast(shape, tensor.shape()).ok()?;
        let elements = tensor.shape().elements() as usize;
        size = tensor.size().div_ceil(elements.max(1)).max(size);
    }
    Some((shape.elements() as usize).saturating_mul(size))
}
