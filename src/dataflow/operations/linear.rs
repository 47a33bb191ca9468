//! Products of matrices. Knows matrices and nothing of where they come from.
//!
//! The product is computed straight into the output: by `matrixmultiply`, through `ndarray`, for 32 and 64-bit floats,
//! by rows for everything else.

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, LinalgScalar};

use super::row::{Row, row};
use crate::graph::gradients::{Back, Flows};
use crate::graph::infer::{Inferred, Known, merged_size};
use crate::graph::{Node, Output, PartialShape, attr};
use crate::kernel::call::{Done, Fault, heap_of};
use crate::kernel::make::{Cost, Made, dtype, made, typed};
use crate::kernel::numbers::Number;
use crate::kernel::{Call, Value};
use rendez::ground::{DType, Shape};
use rendez::memory::{Element, Tensor};

#[cfg(test)]
mod tests;

/// Picoseconds for a step of the sum of products, of floats in 32 bits; those in 64 take twice as long.
const STEP: usize = 50;
/// The same where products are computed by rows: of integers, and of halves, each of which is widened first.
const STEP_BY_ROWS: usize = 900;
const STEP_OF_HALVES: usize = 2300;

const TURNS: &str = "transpose_a: bool = false; transpose_b: bool = false; T: num; grad_a: bool = false; \
                     grad_b: bool = false";

pub(super) const ROWS: &[Row] = &[
    row("MatMul", "a: T, b: T -> product: T", TURNS, product_shape)
        .gradient(product_gradient)
        .kernel(matmul),
];

/// Which operands are transposed.
#[derive(Clone, Copy)]
struct Turned {
    left: bool,
    right: bool,
}

fn matmul(node: &Node) -> Made {
    let turned = Turned {
        left: attr::bool(&node.attrs, "transpose_a").unwrap_or(false),
        right: attr::bool(&node.attrs, "transpose_b").unwrap_or(false),
    };
    match dtype(node, "T") {
        Some(DType::F32) => made(cost::<f32>(turned, STEP), move |call| {
            floats::<f32>(call, turned)
        }),
        Some(DType::F64) => made(cost::<f64>(turned, 2 * STEP), move |call| {
            floats::<f64>(call, turned)
        }),
        _ => typed!(node, T: numbers => {
            let step = if T::IS_INTEGER { STEP_BY_ROWS } else { STEP_OF_HALVES };
            made(cost::<T>(turned, step), move |call| others::<T>(call, turned))
        }),
    }
}

/// The cost of a product whose steps take so many picoseconds.
fn cost<T>(turned: Turned, step: usize) -> Cost {
    Cost::Picoseconds(Box::new(move |inputs| {
        steps(inputs, turned, size_of::<T>()).saturating_mul(step)
    }))
}

/// The product of two matrices.
fn product_shape(known: Known<'_>) -> Inferred {
    let side = |index: usize, transposed: &str| {
        let shape = known.of_rank(index, 2)?;
        let flip = attr::bool(known.attrs, transposed).unwrap_or(false);
        let (rows, columns) = (shape.dim(0), shape.dim(1));
        Ok::<_, String>(if flip {
            (columns, rows)
        } else {
            (rows, columns)
        })
    };
    let (rows, inner_left) = side(0, "transpose_a")?;
    let (inner_right, columns) = side(1, "transpose_b")?;
    merged_size(inner_left, inner_right)?;
    Ok(vec![PartialShape::of(vec![rows, columns])])
}

fn product_gradient(at: &mut Back<'_>) -> Flows {
    let (g, a, b) = (at.grad(0)?, at.input(0)?, at.input(1)?);
    let is = |at: &Back<'_>, name| attr::bool(at.attrs(), name).unwrap_or(false);
    let (turned_a, turned_b) = (is(at, "transpose_a"), is(at, "transpose_b"));
    let mut product = |left: Output, right: Output, turn_left: bool, turn_right: bool| {
        at.op_with("MatMul", &[left, right], |node| {
            node.attr("transpose_a", turn_left)
                .attr("transpose_b", turn_right)
        })
    };
    let (by_a, by_b) = match (turned_a, turned_b) {
        (false, false) => (product(g, b, false, true)?, product(a, g, true, false)?),
        (false, true) => (product(g, b, false, false)?, product(g, a, true, false)?),
        (true, false) => (product(b, g, false, true)?, product(a, g, false, false)?),
        (true, true) => (product(b, g, true, true)?, product(g, a, true, true)?),
    };
    Ok(vec![Some(by_a), Some(by_b)])
}

/// Steps of the sums of products of elements of so many bytes; a variable's are guessed from its size.
fn steps(inputs: &[Value], turned: Turned, size: usize) -> usize {
    let [left, right] = inputs else {
        return 0;
    };
    let columns = |value: &Value, is_turned: bool| match value {
        Value::Tensor(tensor) => {
            let dim = tensor.shape().dim(usize::from(!is_turned));
            dim.map_or(1, |dim| dim as usize)
        }
        Value::Variable(variable) => variable.bytes().isqrt(),
    };
    let (rows, columns) = (columns(left, !turned.left), columns(right, turned.right));
    let depth_and_rows = left.bytes() / size;
    depth_and_rows
        .saturating_mul(columns.max(1))
        .max((right.bytes() / size).saturating_mul(rows.max(1)))
        // Sums of nothing are written too.
        .max(rows.saturating_mul(columns))
}

/// The matrices, untransposed, and the shape of their product.
fn operands(call: &Call<'_>, turned: Turned) -> Result<(Tensor, Tensor, Shape), Fault> {
    let (left, right) = (call.tensor(0)?, call.tensor(1)?);
    if left.shape().rank() != right.shape().rank() || left.shape().rank() != 2 {
        return Err(format!(
            "In[0] and In[1] has different ndims: {} vs. {}: both must be matrices",
            left.shape(),
            right.shape()
        )
        .into());
    }
    let dims = |tensor: &Tensor, is_turned: bool| {
        let dim = |index| tensor.shape().dim(index).unwrap_or(0);
        if is_turned {
            (dim(1), dim(0))
        } else {
            (dim(0), dim(1))
        }
    };
    let ((rows, depth), (other_depth, columns)) =
        (dims(&left, turned.left), dims(&right, turned.right));
    if depth != other_depth {
        return Err(format!(
            "Matrix size-incompatible: In[0]: {}, In[1]: {}",
            left.shape(),
            right.shape()
        )
        .into());
    }
    let product = Shape::new(&[rows, columns])?;
    Ok((left, right, product))
}

fn matrix<T: Element>(tensor: &Tensor, is_turned: bool) -> Result<ArrayView2<'_, T>, Fault> {
    let view = tensor.view::<T>()?.into_dimensionality::<ndarray::Ix2>();
    let view = view.map_err(|error| error.to_string())?;
    Ok(if is_turned {
        view.reversed_axes()
    } else {
        view
    })
}

fn matrix_mut<T>(shape: Shape, out: &mut [T]) -> Result<ArrayViewMut2<'_, T>, Fault> {
    let dim = |index| shape.dim(index).unwrap_or(0) as usize;
    let view = ArrayViewMut2::from_shape((dim(0), dim(1)), out);
    Ok(view.map_err(|error| error.to_string())?)
}

fn floats<T: Element + LinalgScalar>(call: &mut Call<'_>, turned: Turned) -> Done {
    let (left, right, product) = operands(call, turned)?;
    let (left, right) = (
        matrix::<T>(&left, turned.left)?,
        matrix::<T>(&right, turned.right)?,
    );
    call.try_output::<T>(product, |out| {
        if left.ncols() == 0 {
            out.fill(T::zero());
            return Ok(());
        }
        let mut out = matrix_mut(product, out)?;
        general_mat_mul(T::one(), &left, &right, T::zero(), &mut out);
        Ok(())
    })
}

fn others<T: Number>(call: &mut Call<'_>, turned: Turned) -> Done {
    let (left, right, product) = operands(call, turned)?;
    let (left, right) = (
        matrix::<T>(&left, turned.left)?,
        matrix::<T>(&right, turned.right)?,
    );
    call.try_output::<T>(product, |out| {
        // Nothing may have more rows or columns than any memory has room for sums.
        if out.is_empty() {
            return Ok(());
        }
        let mut out = matrix_mut(product, out)?;
        let mut sums = heap_of(out.ncols(), T::Wide::default())?;
        for (mut out, left) in out.rows_mut().into_iter().zip(left.rows()) {
            sums.fill(T::Wide::default());
            for (&factor, right) in left.iter().zip(right.rows()) {
                let factor = factor.wide();
                for (sum, &right) in sums.iter_mut().zip(right) {
                    *sum = sum.plus(factor.times(right.wide()));
                }
            }
            for (out, &sum) in out.iter_mut().zip(&sums) {
                *out = T::narrow(sum);
            }
        }
        Ok(())
    })
}
