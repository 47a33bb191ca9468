//! Where along a dimension the largest or smallest element stands.

use super::row::{Row, row};
use crate::graph::gradients::none;
use crate::graph::infer::{Inferred, Known};
use crate::graph::{Node, PartialShape};
use crate::kernel::Call;
use crate::kernel::broadcast::count_of;
use crate::kernel::call::{Done, Fault, axis_within, elements, heap};
use crate::kernel::make::{Cost, Made, dtype, made};
use crate::kernel::numbers::{Number, by_type};
use rendez::ground::{DType, Shape};
use rendez::memory::{Bool8, Element, Tensor};

/// Picoseconds for each byte that is looked at.
const LOOK: usize = 300;

const PLACE: &str = "input: T, dimension: Tidx -> output: output_type";

const OF_LARGEST: &str = "T: {float, double, half, bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, uint64, \
                          bool}; Tidx: index = int32; output_type: {int16, uint16, int32, int64} = int64";
const OF_SMALLEST: &str = "T: {float, double, half, bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, \
                           uint64, bool}; Tidx: index = int32; output_type: index = int64";

pub(super) const ROWS: &[Row] = &[
    row("ArgMax", PLACE, OF_LARGEST, place_shape)
        .gradient(none)
        .kernel(|node| arg(node, true)),
    row("ArgMin", PLACE, OF_SMALLEST, place_shape)
        .gradient(none)
        .kernel(|node| arg(node, false)),
];

/// The input without one dimension.
fn place_shape(known: Known<'_>) -> Inferred {
    let input = known.shape(0);
    let Some(dims) = input.dims() else {
        return Ok(vec![PartialShape::UNKNOWN]);
    };
    if dims.is_empty() {
        return Err("Shape must be at least rank 1 but is rank 0".to_owned());
    }
    let Some(axis) = known.axis(1, dims.len())? else {
        return Ok(vec![PartialShape::of_rank(dims.len() - 1)]);
    };
    let mut dims = dims.to_vec();
    dims.remove(axis);
    Ok(vec![PartialShape::of(dims)])
}

fn arg(node: &Node, is_largest: bool) -> Made {
    let (Some(dtype), Some(output)) = (dtype(node, "T"), dtype(node, "output_type")) else {
        return Ok(None);
    };
    if dtype == DType::Bool {
        let rank = |truth: Bool8| u8::from(truth.is_true());
        return made(Cost::PerByte(LOOK), move |call| {
            place::<Bool8, u8>(call, output, is_largest, rank)
        });
    }
    by_type!(dtype, T: numbers => made(Cost::PerByte(LOOK), move |call| {
        place::<T, T>(call, output, is_largest, |element| element)
    }))
    .unwrap_or(Ok(None))
}

/// Where along a dimension the largest or smallest stands; the first of equals. What is not a number is neither.
fn place<T: Element, K: Number>(
    call: &mut Call<'_>,
    output: DType,
    is_largest: bool,
    key: impl Fn(T) -> K,
) -> Done {
    placed(call, output, &mut |input, along, width| {
        let elements = elements::<T>(input)?;
        let mut best = heap(elements.len() / along)?;
        for block in elements.chunks_exact(along.saturating_mul(width).max(1)) {
            for column in 0..width {
                let column = block.iter().skip(column).step_by(width);
                let mut found: Option<(i64, K)> = None;
                for (at, &element) in (0i64..).zip(column) {
                    let key = key(element);
                    let wins = found.is_none_or(|(_, best)| {
                        best.is_nan() && !key.is_nan()
                            || if is_largest { key > best } else { key < best }
                    });
                    if wins {
                        found = Some((at, key));
                    }
                }
                best.push(found.map_or(0, |(at, _)| at));
            }
        }
        Ok(best)
    })
}

/// Says of a tensor where along a dimension, which has so many places, each of so many columns has its element.
type Find<'a> = &'a mut dyn FnMut(&Tensor, usize, usize) -> Result<Vec<i64>, Fault>;

/// What is the same for every type, compiled once.
fn placed(call: &mut Call<'_>, output: DType, find: Find<'_>) -> Done {
    let input = call.tensor(0)?;
    let shape = input.shape();
    let axis = call.integer(1)?;
    let axis = axis_within(axis, shape.rank(), "Expected dimension")?;
    let dims: Vec<_> = shape.dims().collect();
    let (outer, along, inner) = (&dims[..axis], dims[axis] as usize, &dims[axis + 1..]);
    if along == 0 {
        return Err(format!("Reduction axis {axis} is empty in shape {shape}").into());
    }
    let best = find(&input, along, count_of(inner))?;
    let shape = Shape::new(&[outer, inner].concat())?;
    match output {
        DType::I16 => call.output::<i16>(shape, |out| narrow(out, &best, |at| at as i16)),
        DType::U16 => call.output::<u16>(shape, |out| narrow(out, &best, |at| at as u16)),
        wide => call.output_ints(wide, shape, &best),
    }
}

fn narrow<T>(out: &mut [T], places: &[i64], f: impl Fn(i64) -> T) {
    for (out, &place) in out.iter_mut().zip(places) {
        *out = f(place);
    }
}
