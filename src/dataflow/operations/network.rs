//! Layers of networks: biases and rectifiers, with the operations that their gradients are computed with.
//!
//! Knows where the channels of a value lie.

use super::reduce::{Fold, fold_cost, gather};
use super::row::{Row, row};
use crate::graph::gradients::{Back, Flows, one};
use crate::graph::infer::{Inferred, Known, all_same, merged_size, same};
use crate::graph::{Node, PartialShape, attr};
use crate::kernel::Call;
use crate::kernel::broadcast::{Walk, count};
use crate::kernel::call::{Done, Fault, elements_mut};
use crate::kernel::elementwise::{each, pairs};
use crate::kernel::make::{Cost, made, of_same_shapes, typed};
use crate::kernel::numbers::Number;
use rendez::ground::Shape;
use rendez::ground::shape::RANK_MAX;
use rendez::memory::Element;

#[cfg(test)]
mod tests;

/// Picoseconds for each byte of one pass.
const PASS: usize = 200;

const REAL: &str = "T: real";
const LAYOUT: &str = "T: num; data_format: {'NHWC', 'NCHW'} = 'NHWC'";
const RECTIFIER: &str = "features: T -> activations: T";

pub(super) const ROWS: &[Row] = &[
    row(
        "BiasAdd",
        "value: T, bias: T -> output: T",
        LAYOUT,
        bias_add_shape,
    )
    .gradient(bias_add_gradient)
    .kernel(|node| {
        let is_first = is_first(node);
        typed!(node, T: numbers => made(Cost::PerByte(PASS), move |call| {
            bias_add::<T>(call, is_first)
        }))
    }),
    row(
        "BiasAddGrad",
        "out_backprop: T -> output: T",
        LAYOUT,
        bias_add_grad_shape,
    )
    .kernel(|node| {
        let is_first = is_first(node);
        typed!(node, T: numbers => made(fold_cost(), move |call| {
            bias_add_grad::<T>(call, is_first)
        }))
    }),
    row("Relu", RECTIFIER, REAL, same)
        .gradient(|at| {
            let (g, y) = (at.grad(0)?, at.output(0));
            one(at.op("ReluGrad", &[g, y]))
        })
        .kernel(
            |node| typed!(node, T: numbers => each::<T>(PASS, |x| Number::max(x, Default::default()))),
        ),
    row("Relu6", RECTIFIER, REAL, same)
        .gradient(relu6_gradient)
        .kernel(|node| {
            typed!(node, T: numbers => each::<T>(PASS, |x| {
                Number::min(Number::max(x, Default::default()), Number::from_i64(6))
            }))
        }),
    // The gradient where the feature is above zero.
    row(
        "ReluGrad",
        "gradients: T, features: T -> backprops: T",
        REAL,
        all_same,
    )
    .gradient(|at| {
        let (g, features) = (at.grad(0)?, at.input(1)?);
        let flow = at.op("ReluGrad", &[g, features])?;
        Ok(vec![Some(flow), None])
    })
    .kernel(|node| {
        of_same_shapes(
            node,
            typed!(node, T: numbers => pairs::<T>(PASS, |gradient, feature| {
                if feature > Default::default() { gradient } else { Default::default() }
            })),
        )
    }),
];

/// A row added along the last dimension.
fn bias_add_shape(known: Known<'_>) -> Inferred {
    let (value, bias) = (known.shape(0), known.of_rank(1, 1)?);
    let Some(dims) = value.dims() else {
        return Ok(vec![value]);
    };
    if dims.len() < 2 {
        return Err(format!("Shape must be at least rank 2 but is {value}"));
    }
    let mut dims = dims.to_vec();
    let channels = match attr::text(known.attrs, "data_format") {
        Some("NCHW") => 1,
        _ => dims.len() - 1,
    };
    dims[channels] = merged_size(dims[channels], bias.dim(0))?;
    Ok(vec![PartialShape::of(dims)])
}

fn bias_add_gradient(at: &mut Back<'_>) -> Flows {
    let g = at.grad(0)?;
    let format = attr::text(at.attrs(), "data_format")
        .unwrap_or("NHWC")
        .to_owned();
    let bias = at.op_with("BiasAddGrad", &[g], |node| node.attr("data_format", format))?;
    Ok(vec![Some(g), Some(bias)])
}

fn bias_add<T: Number>(call: &mut Call<'_>, is_first: bool) -> Done {
    let (value, bias) = (call.tensor(0)?, call.tensor(1)?);
    let lie = channels(value.shape(), is_first)?;
    if bias.shape().rank() != 1 {
        return Err(format!("Biases must be 1D: {}", bias.shape()).into());
    }
    if bias.shape().elements() != lie.channels as u64 {
        return Err(format!(
            "Must provide as many biases as the last dimension of the input tensor: {} vs. {}",
            bias.shape(),
            value.shape()
        )
        .into());
    }
    let (elements, biases) = (value.as_slice::<T>()?, bias.as_slice::<T>()?);
    call.output::<T>(value.shape(), |out| {
        if lie.inner == 1 {
            let rows = out.chunks_exact_mut(lie.channels.max(1));
            for (out, row) in rows.zip(elements.chunks_exact(lie.channels.max(1))) {
                for ((out, &element), &bias) in out.iter_mut().zip(row).zip(biases) {
                    *out = element.plus(bias);
                }
            }
            return;
        }
        let rows = out.chunks_exact_mut(lie.inner.max(1));
        let rows = rows.zip(elements.chunks_exact(lie.inner.max(1)));
        for ((out, row), &bias) in rows.zip(biases.iter().cycle()) {
            for (out, &element) in out.iter_mut().zip(row) {
                *out = element.plus(bias);
            }
        }
    })
}

/// The length of the last dimension.
fn bias_add_grad_shape(known: Known<'_>) -> Inferred {
    let shape = known.shape(0);
    let channels = match (attr::text(known.attrs, "data_format"), shape.rank()) {
        (_, None) => None,
        (_, Some(rank)) if rank < 2 => {
            return Err(format!("Shape must be at least rank 2 but is {shape}"));
        }
        (Some("NCHW"), _) => shape.dim(1),
        (_, Some(rank)) => shape.dim(rank - 1),
    };
    Ok(vec![PartialShape::of(vec![channels])])
}

fn bias_add_grad<T: Number>(call: &mut Call<'_>, is_first: bool) -> Done {
    let gradient = call.tensor(0)?;
    let lie = channels(gradient.shape(), is_first)?;
    let mut strides = [[0; RANK_MAX]; 1];
    strides[0][lie.at] = 1;
    let walk = Walk::strided(gradient.shape(), strides);
    let elements = gradient.as_slice::<T>()?;
    let shape = Shape::new(&[lie.channels as u64])?;
    // In the engine's memory, which is bounded: of a gradient of nothing there may be more channels than fit any.
    let mut sums = call.room(T::Wide::DTYPE, shape)?;
    let sums = elements_mut::<T::Wide>(&mut sums)?;
    call.output::<T>(shape, |out| {
        sums.fill(T::Wide::default());
        let adding = Fold::new(T::Wide::default(), T::wide, Number::plus);
        gather(walk, elements, sums, adding);
        for (out, sum) in out.iter_mut().zip(&*sums) {
            *out = T::narrow(*sum);
        }
    })
}

/// True if the channels are the second dimension, not the last.
fn is_first(node: &Node) -> bool {
    attr::text(&node.attrs, "data_format") == Some("NCHW")
}

/// How a value and its bias lie: which dimension the channels are, and what is along and after it.
struct Channels {
    at: usize,
    channels: usize,
    inner: usize,
}

fn channels(shape: Shape, is_first: bool) -> Result<Channels, Fault> {
    if shape.rank() < 2 {
        return Err(format!("Input tensor must be at least 2D: {shape}").into());
    }
    let dims: Vec<_> = shape.dims().map(|dim| dim as usize).collect();
    let at = if is_first { 1 } else { dims.len() - 1 };
    Ok(Channels {
        at,
        channels: dims[at],
        inner: count(dims[at + 1..].iter().copied()),
    })
}

fn relu6_gradient(at: &mut Back<'_>) -> Flows {
    let (g, x) = (at.grad(0)?, at.input(0)?);
    let zero = at.scalar_like(x, 0.0)?;
    let six = at.scalar_like(x, 6.0)?;
    let above = at.op("Greater", &[x, zero])?;
    let below = at.op("Less", &[x, six])?;
    let inside = at.op("LogicalAnd", &[above, below])?;
    let zeros = at.op("ZerosLike", &[g])?;
    one(at.op("SelectV2", &[inside, g, zeros]))
}
