//! Casts from one type to another.
//!
//! A cast to integers truncates towards zero; what does not fit is the nearest that does, and what is not a number is
//! zero. A cast to fewer bits of a fraction rounds to the nearest, or, if that was asked for, towards zero.

use super::row::{Row, row};
use crate::graph::gradients::{Back, Flows, is_smooth, one};
use crate::graph::infer::same;
use crate::graph::{Node, attr};
use crate::kernel::call::{Done, elements, elements_mut};
use crate::kernel::elementwise::mapped;
use crate::kernel::make::{Cost, Made, dtype, made};
use crate::kernel::numbers::{Number, by_type, odd_double, truth};
use rendez::ground::DType;
use rendez::memory::{Bool8, Element, Tensor, TensorBuilder};

#[cfg(test)]
mod tests;

/// Picoseconds for each byte.
const EACH: usize = 300;

const TYPES: &str = "SrcT: type; DstT: type; Truncate: bool = false";

pub(super) const ROWS: &[Row] = &[row("Cast", "x: SrcT -> y: DstT", TYPES, same)
    .gradient(cast_gradient)
    .kernel(cast)];

fn cast_gradient(at: &mut Back<'_>) -> Flows {
    let (g, x, y) = (at.grad(0)?, at.input(0)?, at.output(0));
    let base = at.base(x);
    if !is_smooth(base) || !is_smooth(at.base(y)) {
        return Ok(vec![None]);
    }
    one(at.cast(g, base))
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
    let is_cut = attr::bool(&node.attrs, "Truncate").unwrap_or(false);
    let read = match read_cut(from, to).filter(|_| is_cut) {
        Some(cut) => cut,
        None if from == DType::U64 && to != DType::F64 => read_odd,
        None => read_floats,
    };
    // Integers keep their low bits; only a large one without sign must not become a float by way of i64.
    let by_integers = from_integer && (to_integer || from != DType::U64);
    made(Cost::PerByte(EACH), move |call| {
        mapped(call, to, &mut |input, room| match by_integers {
            true => cast_by(input, room, read_integers, write_integers),
            false => cast_by(input, room, read, write_floats),
        })
    })
}

/// Reads a piece of a tensor, from an element on.
type Read<W> = fn(&Tensor, usize, &mut [W]) -> Done;

/// Elements that are cast at once, on the stack.
const CAST_ELEMENTS: usize = 512;

/// Casts by way of the widest type of a kind, a piece at a time: code for each type, not for each pair of types.
fn cast_by<W: Copy + Default>(
    input: &Tensor,
    room: &mut TensorBuilder,
    read: Read<W>,
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

/// Large integers on their way to fewer bits than 64: they are rounded there, and must not have been before.
fn read_odd(input: &Tensor, from: usize, piece: &mut [f64]) -> Done {
    read(input, from, piece, odd_double)
}

/// How floats are read of which the low bits go that the smaller type lacks: of these pairs, as in the original.
fn read_cut(from: DType, to: DType) -> Option<Read<f64>> {
    match (from, to) {
        (DType::F64, DType::F32) => {
            Some(|input, from, piece| read(input, from, piece, cut64::<29>))
        }
        (DType::F64, DType::F16) => {
            Some(|input, from, piece| read(input, from, piece, cut64::<42>))
        }
        (DType::F32, DType::F16) => {
            Some(|input, from, piece| read(input, from, piece, cut32::<13>))
        }
        (DType::F32, DType::BF16) => {
            Some(|input, from, piece| read(input, from, piece, cut32::<16>))
        }
        _ => None,
    }
}

/// Without its low bits; what is not a number stays that.
fn cut64<const BITS: u32>(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    f64::from_bits(x.to_bits() >> BITS << BITS)
}

fn cut32<const BITS: u32>(x: f32) -> f64 {
    if x.is_nan() {
        return x.into();
    }
    f32::from_bits(x.to_bits() >> BITS << BITS).into()
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
        // Halves have a `from_f64` of their own, which cuts before it rounds: the trait's is meant.
        dtype => by_type!(dtype, U: all => write::<_, U>(room, from, piece, Number::from_f64))
            .unwrap_or(Ok(())),
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
