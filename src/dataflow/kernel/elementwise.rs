//! Elements computed one by one: of one tensor, or of two that broadcasting brings together.
//!
//! Knows no operation: it is given functions of elements. How elements meet is [`broadcast`](super::broadcast)'s.

use super::broadcast::{Visit, Walk, broadcast};
use super::call::{Done, elements, elements_mut};
use super::make::{Cost, Made, made};
use super::numbers::Number;
use super::{Call, Value};
use rendez::ground::{DType, Shape};
use rendez::memory::{Bool8, Element, Tensor, TensorBuilder};

/// Picoseconds for each byte of adding and its like, which wait for memory.
pub(crate) const LIGHT: usize = 200;
/// Picoseconds for each byte of an exponential and its like.
pub(crate) const DEEP: usize = 2500;

/// `f` of each pair.
pub(crate) fn pairs<T: Number>(
    picoseconds: usize,
    f: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy + Send + Sync + 'static,
) -> Made {
    made(broadcast_cost(picoseconds), move |call| zip::<T>(call, f))
}

/// Whether each pair is what `f` says.
pub(crate) fn comparisons<T: Number>(
    picoseconds: usize,
    f: impl Fn(T::Wide, T::Wide) -> bool + Copy + Send + Sync + 'static,
) -> Made {
    made(broadcast_cost(picoseconds), move |call| {
        let mut row = loops(move |left, right| Bool8::from(f(left, right)));
        zipped::<T, Bool8>(call, T::MOST, &mut |pair, out| {
            T::widened(pair, &mut |pair| row(pair, out));
        })
    })
}

/// The same for truth values.
pub(crate) fn truths(
    picoseconds: usize,
    f: impl Fn(bool, bool) -> bool + Copy + Send + Sync + 'static,
) -> Made {
    made(broadcast_cost(picoseconds), move |call| {
        let row = move |left: Bool8, right: Bool8| f(left.is_true(), right.is_true()).into();
        zipped::<Bool8, Bool8>(call, usize::MAX, &mut loops(row))
    })
}

/// `f` of each element.
pub(crate) fn each<T: Number>(
    picoseconds: usize,
    f: impl Fn(T::Wide) -> T::Wide + Copy + Send + Sync + 'static,
) -> Made {
    made(Cost::PerByte(picoseconds), move |call| {
        map::<T>(call, &mut |elements, out| {
            for (out, &element) in out.iter_mut().zip(elements) {
                *out = f(element);
            }
        })
    })
}

/// One loop for each type and function.
fn loops<T: Copy, U>(f: impl Fn(T, T) -> U) -> impl FnMut([&[T]; 2], &mut [U]) {
    move |[left, right], out| {
        for ((out, &left), &right) in out.iter_mut().zip(left).zip(right) {
            *out = f(left, right);
        }
    }
}

/// What is made of a piece of elements.
type Row<'a, T> = &'a mut dyn FnMut(&[T], &mut [T]);

/// Writes what `row` makes of the input's elements, a piece at a time.
fn map<T: Number>(call: &mut Call<'_>, row: Row<'_, T::Wide>) -> Done {
    mapped(call, T::DTYPE, &mut |input, room| {
        let (elements, out) = (elements::<T>(input)?, elements_mut::<T>(room)?);
        let most = T::MOST.min(out.len()).max(1);
        for (elements, out) in elements.chunks(most).zip(out.chunks_mut(most)) {
            T::widened([elements, &[]], &mut |[elements, _]| {
                T::narrowed(out, &mut |out| row(elements, out));
            });
        }
        Ok(())
    })
}

/// An output of the input's shape, which `write` fills. Compiled once: `write` has the loop alone.
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

/// Writes `f` of each pair of elements of the inputs, which are broadcast.
pub(crate) fn zip<T: Number>(call: &mut Call<'_>, f: impl Fn(T::Wide, T::Wide) -> T::Wide) -> Done {
    zip_by::<T>(call, &mut loops(f))
}

/// What is the same for every function of [`zip`], compiled once for each type: `row` has the loop alone.
fn zip_by<T: Number>(call: &mut Call<'_>, row: Visit<'_, T::Wide, T::Wide>) -> Done {
    zipped::<T, T>(call, T::MOST, &mut |pair, out| {
        T::widened(pair, &mut |pair| {
            T::narrowed(out, &mut |out| row(pair, out))
        });
    })
}

/// An output that `row` fills with what it makes of elements that meet, in pieces of at most `most`.
fn zipped<T: Element + Default, U: Element>(
    call: &mut Call<'_>,
    most: usize,
    row: Visit<'_, T, U>,
) -> Done {
    let (left, right) = (call.tensor(0)?, call.tensor(1)?);
    let shape = broadcast(left.shape(), right.shape())?;
    let walk = Walk::broadcast(shape, [left.shape(), right.shape()]);
    let mut room = call.room(U::DTYPE, shape)?;
    let operands = [elements::<T>(&left)?, elements::<T>(&right)?];
    walk.zip(operands, elements_mut::<U>(&mut room)?, most, row);
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
