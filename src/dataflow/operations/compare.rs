//! Comparisons, logic, choices, and casts from one type to another.
//!
//! Knows truth values as bytes that are zero or not. A cast truncates towards zero; what does not fit an integer is
//! the nearest that does, and what is not a number is zero.

use crate::graph::{Node, attr};
use crate::kernel::Call;
use crate::kernel::arrange::{Arrange, arranged};
use crate::kernel::broadcast::{Walk, broadcast};
use crate::kernel::call::{Done, elements, elements_mut};
use crate::kernel::elementwise::{each, mapped, pairs};
use crate::kernel::make::{Cost, Made, dtype, made};
use crate::kernel::numbers::{Number, by_type, truth};
use rendez::ground::{DType, Shape};
use rendez::memory::{Bool8, Element, Tensor, TensorBuilder};

/// Picoseconds for each byte.
const EACH: usize = 300;

pub(super) fn make(node: &Node) -> Made {
    match node.op.name() {
        "Equal" => equal(node, true),
        "NotEqual" => equal(node, false),
        "Less" | "LessEqual" | "Greater" | "GreaterEqual" => order(node),
        "LogicalAnd" => pairs::<Bool8, Bool8>(EACH, |x, y| truth(x.is_true() && y.is_true())),
        "LogicalOr" => pairs::<Bool8, Bool8>(EACH, |x, y| truth(x.is_true() || y.is_true())),
        "LogicalNot" => each::<Bool8>(EACH, |x| truth(!x.is_true())),
        "Select" => made(Cost::PerByte(EACH), |call| select(call, true)),
        "SelectV2" => made(Cost::PerByte(EACH), |call| select(call, false)),
        "Cast" | "_HostCast" => cast(node),
        _ => Ok(None),
    }
}

fn order(node: &Node) -> Made {
    let Some(dtype) = dtype(node, "T") else {
        return Ok(None);
    };
    by_type!(dtype, T: numbers => match node.op.name() {
        "Less" => pairs::<T, Bool8>(EACH, |x, y| truth(x < y)),
        "LessEqual" => pairs::<T, Bool8>(EACH, |x, y| truth(x <= y)),
        "Greater" => pairs::<T, Bool8>(EACH, |x, y| truth(x > y)),
        _ => pairs::<T, Bool8>(EACH, |x, y| truth(x >= y)),
    })
    .unwrap_or(Ok(None))
}

/// Equality, which every type has. Shapes that do not fit are an error, or, if that was asked for, unequal.
fn equal(node: &Node, is_equal: bool) -> Made {
    let is_error = attr::bool(&node.attrs, "incompatible_shape_error").unwrap_or(true);
    let Some(dtype) = dtype(node, "T") else {
        return Ok(None);
    };
    let kernel = match dtype {
        DType::Bool => pairs::<Bool8, Bool8>(EACH, move |x, y| truth((x == y) == is_equal)),
        DType::String => made(Cost::PerByte(EACH), move |call| {
            equal_strings(call, is_equal)
        }),
        _ => by_type!(dtype, T: numbers => {
            pairs::<T, Bool8>(EACH, move |x, y| truth((x == y) == is_equal))
        })
        .unwrap_or(Ok(None)),
    };
    if is_error {
        return kernel;
    }
    Ok(kernel?.map(|simple| {
        simple.unless(move |call| {
            let shapes = (call.tensor(0)?.shape(), call.tensor(1)?.shape());
            if broadcast(shapes.0, shapes.1).is_ok() {
                return Ok(false);
            }
            call.push(Tensor::scalar(truth(!is_equal)));
            Ok(true)
        })
    }))
}

fn equal_strings(call: &mut Call<'_>, is_equal: bool) -> Done {
    let (left, right) = (call.tensor(0)?, call.tensor(1)?);
    let shape = broadcast(left.shape(), right.shape())?;
    let lefts: Vec<_> = left.strings()?.iter().collect();
    let rights: Vec<_> = right.strings()?.iter().collect();
    let walk = Walk::broadcast(shape, [left.shape(), right.shape()]);
    call.output::<Bool8>(shape, |out| {
        walk.zip(&lefts, &rights, out, |x, y| truth((x == y) == is_equal));
    })
}

/// One of two, as a condition says.
struct Choice<'a> {
    condition: &'a [Bool8],
    walk: Walk<3>,
}

impl Arrange for Choice<'_> {
    fn arrange<E: Copy>(&self, inputs: &[&[E]], _: E, out: &mut [E]) -> Done {
        let [yes, no] = inputs else {
            return Err("a choice has two sides".into());
        };
        let mut rows = out.chunks_exact_mut(self.walk.row.max(1));
        let [condition_step, yes_step, no_step] = self.walk.step;
        let mut is_whole = true;
        self.walk.rows(|[mut condition_at, mut yes_at, mut no_at]| {
            for out in rows.next().unwrap_or_default() {
                let choice = match self.condition.get(condition_at) {
                    Some(condition) if condition.is_true() => yes.get(yes_at),
                    Some(_) => no.get(no_at),
                    None => None,
                };
                match choice {
                    Some(choice) => *out = *choice,
                    None => is_whole = false,
                }
                condition_at += condition_step;
                yes_at += yes_step;
                no_at += no_step;
            }
        });
        if is_whole {
            Ok(())
        } else {
            Err("an element outside of the inputs is wanted".into())
        }
    }
}

fn select(call: &mut Call<'_>, is_first: bool) -> Done {
    let (condition, yes, no) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let mut seen = condition.shape();
    let shape = if is_first {
        // The older form does not broadcast, but takes a scalar, or a row that chooses whole lines.
        if yes.shape() != no.shape() {
            return Err(format!(
                "'then' and 'else' must have the same size.  but received: {} vs. {}",
                yes.shape(),
                no.shape()
            )
            .into());
        }
        if seen.rank() == 1 && yes.shape().rank() > 1 {
            if seen.dim(0) != yes.shape().dim(0) {
                return Err(format!(
                    "Number of batches of 'then' must match size of 'cond', but saw: {} vs. {}",
                    yes.shape().dim(0).unwrap_or(0),
                    seen.dim(0).unwrap_or(0)
                )
                .into());
            }
            let mut dims = vec![1; yes.shape().rank()];
            dims[0] = seen.elements();
            seen = Shape::new(&dims)?;
        } else if seen.rank() != 0 && seen != yes.shape() {
            return Err(format!(
                "'cond' must be a scalar, a vector as long as 'then', or have its shape: {seen} vs. {}",
                yes.shape()
            )
            .into());
        }
        yes.shape()
    } else {
        let wrong = |_| {
            format!(
                "condition {}, then {}, and else {} must be broadcastable",
                condition.shape(),
                yes.shape(),
                no.shape()
            )
        };
        broadcast(yes.shape(), no.shape())
            .and_then(|shape| broadcast(seen, shape))
            .map_err(wrong)?
    };
    let how = Choice {
        condition: condition.as_slice()?,
        walk: Walk::broadcast(shape, [seen, yes.shape(), no.shape()]),
    };
    let chosen = arranged(call, &[&yes, &no], shape, &how)?;
    call.push(chosen);
    Ok(())
}

fn cast(node: &Node) -> Made {
    let (Some(from), Some(to)) = (dtype(node, "SrcT"), dtype(node, "DstT")) else {
        return Ok(None);
    };
    if from == to {
        return made(Cost::Light, |call| {
            let input = call.tensor(0)?;
            call.push(input);
            Ok(())
        });
    }
    let is_integer = |dtype| match dtype {
        DType::Bool => Some(true),
        _ => by_type!(dtype, T: all => T::IS_INTEGER),
    };
    let (Some(from_integer), Some(to_integer)) = (is_integer(from), is_integer(to)) else {
        return Ok(None);
    };
    // Integers keep their low bits; only a large one without sign must not become a float by way of i64.
    let by_integers = from_integer && (to_integer || from != DType::U64);
    made(Cost::PerByte(EACH), move |call| {
        mapped(call, to, &mut |input, room| match by_integers {
            true => cast_by(input, room, read_integers, write_integers),
            false => cast_by(input, room, read_floats, write_floats),
        })
    })
}

/// Elements that are cast at once, on the stack.
const CAST_ELEMENTS: usize = 512;

/// Casts by way of the widest type of a kind, a piece at a time: code for each type, not for each pair of types.
fn cast_by<W: Copy + Default>(
    input: &Tensor,
    room: &mut TensorBuilder,
    read: fn(&Tensor, usize, &mut [W]) -> Done,
    write: fn(&mut TensorBuilder, usize, &[W]) -> Done,
) -> Done {
    let elements = input.shape().elements() as usize;
    let mut piece = [W::default(); CAST_ELEMENTS];
    for from in (0..elements).step_by(CAST_ELEMENTS) {
        let piece = &mut piece[..CAST_ELEMENTS.min(elements - from)];
        read(input, from, piece)?;
        write(room, from, piece)?;
    }
    Ok(())
}

fn read_integers(input: &Tensor, from: usize, piece: &mut [i64]) -> Done {
    match input.dtype() {
        DType::Bool => read(input, from, piece, |x: Bool8| i64::from(x.is_true())),
        dtype => by_type!(dtype, T: all => read(input, from, piece, T::to_i64)).unwrap_or(Ok(())),
    }
}

fn read_floats(input: &Tensor, from: usize, piece: &mut [f64]) -> Done {
    by_type!(input.dtype(), T: all => read(input, from, piece, T::to_f64)).unwrap_or(Ok(()))
}

fn write_integers(room: &mut TensorBuilder, from: usize, piece: &[i64]) -> Done {
    match room.meta().dtype {
        DType::Bool => write(room, from, piece, |x| truth(x != 0)),
        dtype => by_type!(dtype, U: all => write(room, from, piece, U::from_i64)).unwrap_or(Ok(())),
    }
}

fn write_floats(room: &mut TensorBuilder, from: usize, piece: &[f64]) -> Done {
    match room.meta().dtype {
        DType::Bool => write(room, from, piece, |x| truth(x != 0.0)),
        dtype => by_type!(dtype, U: all => write(room, from, piece, U::from_f64)).unwrap_or(Ok(())),
    }
}

fn read<T: Element, W>(input: &Tensor, from: usize, piece: &mut [W], f: impl Fn(T) -> W) -> Done {
    for (out, &element) in piece.iter_mut().zip(&elements::<T>(input)?[from..]) {
        *out = f(element);
    }
    Ok(())
}

fn write<W: Copy, U: Element>(
    room: &mut TensorBuilder,
    from: usize,
    piece: &[W],
    f: impl Fn(W) -> U,
) -> Done {
    for (out, &element) in elements_mut::<U>(room)?[from..].iter_mut().zip(piece) {
        *out = f(element);
    }
    Ok(())
}
