//! Softmax, and losses with their gradients.
//!
//! Every row is computed in 32 bits at least, shifted so that no exponential overflows.

use super::reduce::Fold;
use super::row::{Row, row};
use crate::graph::gradients::{Back, Flows, one};
use crate::graph::infer::{Inferred, Known, merged, merged_size, same, scalar};
use crate::graph::{Output, PartialShape};
use crate::kernel::Call;
use crate::kernel::arrange::{Strided, arranged};
use crate::kernel::broadcast::{Walk, broadcast, count};
use crate::kernel::call::{Done, Fault, elements, elements_mut, integers};
use crate::kernel::elementwise::broadcast_cost;
use crate::kernel::make::{Cost, made, typed};
use crate::kernel::numbers::{Float, Number, Real};
use rendez::ground::{Shape, Status};
use rendez::memory::{Tensor, TensorBuilder};

/// Picoseconds for each byte of a row's exponentials and sums.
const SOFTMAX: usize = 3500;
/// Picoseconds for each byte of one pass.
const PASS: usize = 200;

const FP: &str = "T: fp";

pub(super) const ROWS: &[Row] = &[
    row("Softmax", "logits: T -> softmax: T", FP, same)
        .gradient(|at| {
            let (g, softmax) = (at.grad(0)?, at.output(0));
            one(through_softmax(at, g, softmax))
        })
        .kernel(|node| {
            typed!(node, T: reals => made(Cost::PerByte(SOFTMAX), |call| {
                softmax::<T>(call, false)
            }))
        }),
    row("LogSoftmax", "logits: T -> logsoftmax: T", FP, same)
        .gradient(|at| {
            let (g, y) = (at.grad(0)?, at.output(0));
            let total = sum_of_rows(at, g)?;
            let softmax = at.op("Exp", &[y])?;
            let part = at.op("Mul", &[total, softmax])?;
            one(at.op("Sub", &[g, part]))
        })
        .kernel(|node| {
            typed!(node, T: reals => made(Cost::PerByte(SOFTMAX), |call| {
                softmax::<T>(call, true)
            }))
        }),
    row(
        "SoftmaxCrossEntropyWithLogits",
        "features: T, labels: T -> loss: T, backprop: T",
        FP,
        dense_loss_shape,
    )
    .gradient(dense_loss_gradient)
    .kernel(|node| typed!(node, T: reals => made(broadcast_cost(SOFTMAX), dense_loss::<T>))),
    row(
        "SparseSoftmaxCrossEntropyWithLogits",
        "features: T, labels: Tlabels -> loss: T, backprop: T",
        "T: fp; Tlabels: index = int64",
        sparse_loss_shape,
    )
    .gradient(|at| {
        let logits = at.input(0)?;
        Ok(vec![Some(loss(at, logits)?), None])
    })
    .kernel(|node| typed!(node, T: reals => made(Cost::PerByte(SOFTMAX), sparse_loss::<T>))),
    row("L2Loss", "t: T -> output: T", FP, scalar)
        .gradient(|at| {
            let (g, x) = (at.grad(0)?, at.input(0)?);
            one(at.op("Mul", &[x, g]))
        })
        .kernel(|node| typed!(node, T: reals => made(Cost::PerByte(PASS), half_square::<T>))),
];

fn softmax<T: Real>(call: &mut Call<'_>, is_log: bool) -> Done {
    let logits = call.tensor(0)?;
    let (_, columns) = rows_of(logits.shape())?;
    let elements = logits.as_slice::<T>()?;
    call.output::<T>(logits.shape(), |out| {
        let rows = elements.chunks_exact(columns.max(1));
        for (row, out) in rows.zip(out.chunks_exact_mut(columns.max(1))) {
            let (largest, sum) = largest_and_sum(row);
            let log = sum.ln();
            for (out, &element) in out.iter_mut().zip(row) {
                let shifted = element.wide().minus(largest);
                *out = T::narrow(match is_log {
                    true => shifted.minus(log),
                    false => shifted.exp().over(sum),
                });
            }
        }
    })
}

/// The sum of each row, as a column.
fn sum_of_rows(at: &mut Back<'_>, of: Output) -> Result<Output, Status> {
    let last = at.ints(&[1], &[-1])?;
    at.op_with("Sum", &[of, last], |node| node.attr("keep_dims", true))
}

/// The gradient of the logits from the gradient `g` of their softmax.
fn through_softmax(at: &mut Back<'_>, g: Output, softmax: Output) -> Result<Output, Status> {
    let weighted = at.op("Mul", &[g, softmax])?;
    let total = sum_of_rows(at, weighted)?;
    let rest = at.op("Sub", &[g, total])?;
    at.op("Mul", &[rest, softmax])
}

/// The rows of a tensor, which there are also where they have no columns: all but the last dimension, and that.
fn rows_of(shape: Shape) -> Result<(usize, usize), Fault> {
    let Some(last) = shape.rank().checked_sub(1) else {
        return Err("logits must have >= 1 dimension, got []".into());
    };
    let columns = shape.dim(last).unwrap_or(0) as usize;
    let rows = shape.dims().take(last).map(|dim| dim as usize);
    Ok((count(rows), columns))
}

/// The largest of a row, and the sum of the exponentials of what each is below it.
fn largest_and_sum<T: Real>(row: &[T]) -> (T::Wide, T::Wide) {
    let lowest = T::Wide::LOWEST;
    let largest = row
        .iter()
        .fold(lowest, |largest, x| Number::max(largest, x.wide()));
    let exp = |x: T| x.wide().minus(largest).exp();
    let exps = Fold::new(T::Wide::default(), exp, Number::plus);
    (largest, exps.row(row))
}

/// One loss for each row, and the gradient.
fn dense_loss_shape(known: Known<'_>) -> Inferred {
    let together = known.shape(0).broadcast(&known.shape(1)).ok_or_else(|| {
        format!(
            "logits {} and labels {} do not fit",
            known.shape(0),
            known.shape(1)
        )
    })?;
    let together = merged(&together, &PartialShape::of_rank(2))?;
    Ok(vec![PartialShape::of(vec![together.dim(0)]), together])
}

fn dense_loss_gradient(at: &mut Back<'_>) -> Flows {
    let (logits, labels) = (at.input(0)?, at.input(1)?);
    // Broadcast as the loss was: of a single logit for all classes a softmax would be one.
    let whole = at.output(1);
    let whole = at.shape(whole)?;
    let spread = at.op("BroadcastTo", &[logits, whole])?;
    let by_logits = loss(at, spread)?;
    let mut by_labels = vec![];
    if let Some(g) = at.given(0) {
        let log = at.op("LogSoftmax", &[spread])?;
        let log = at.op("Neg", &[log])?;
        let column = column(at, g)?;
        by_labels.push(at.op("Mul", &[column, log])?);
    }
    // The other output is the softmax less the labels.
    if let Some(g) = at.given(1) {
        by_labels.push(at.op("Neg", &[g])?);
    }
    let by_labels = sum(at, &by_labels)?;
    at.unbroadcast([logits, labels], [Some(by_logits), Some(by_labels)])
}

/// The loss of each row, and its gradient: softmax less labels.
fn dense_loss<T: Real>(call: &mut Call<'_>) -> Done {
    let (logits, labels) = dense_inputs(call)?;
    let shape = logits.shape();
    let (rows, columns) = rows_of(shape)?;
    let (logits, labels) = (elements::<T>(&logits)?, elements::<T>(&labels)?);
    let mut losses = losses_of::<T>(call, rows)?;
    let each_loss = elements_mut::<T>(&mut losses)?;
    let gradient = call.written::<T>(shape, |out| {
        let each = logits
            .chunks_exact(columns.max(1))
            .zip(labels.chunks_exact(columns.max(1)));
        let each = each
            .zip(out.chunks_exact_mut(columns.max(1)))
            .zip(each_loss);
        for (((logits, labels), out), loss) in each {
            let (largest, sum) = largest_and_sum(logits);
            let log = sum.ln();
            // In 64 bits: a running sum of many in 32 is off by per cents.
            let mut total = 0f64;
            for ((out, &logit), &label) in out.iter_mut().zip(logits).zip(labels) {
                let shifted = logit.wide().minus(largest);
                let label = label.wide();
                // A label of zero has no part in it, also where the logit is minus infinity.
                if label != T::Wide::default() {
                    total += label.times(log.minus(shifted)).to_f64();
                }
                *out = T::narrow(shifted.exp().over(sum).minus(label));
            }
            *loss = T::from_f64(total);
        }
        Ok(())
    })?;
    call.push(losses.finish());
    call.push(gradient);
    Ok(())
}

/// Logits and labels, both broadcast to what they make together.
fn dense_inputs(call: &Call<'_>) -> Result<(Tensor, Tensor), Fault> {
    let (logits, labels) = (call.tensor(0)?, call.tensor(1)?);
    let wrong = || {
        format!(
            "logits and labels must be broadcastable: logits_size={} labels_size={}",
            logits.shape(),
            labels.shape()
        )
    };
    let shape = broadcast(logits.shape(), labels.shape()).map_err(|_| wrong())?;
    if shape.rank() != 2 {
        return Err(format!(
            "logits and labels must be either 2-dimensional, or broadcasted to be 2-dimensional: \
             {shape}"
        )
        .into());
    }
    Ok((
        widened(call, &logits, shape)?,
        widened(call, &labels, shape)?,
    ))
}

/// Room for the loss of each row: zero, which is that of a row without columns.
fn losses_of<T: Number>(call: &Call<'_>, rows: usize) -> Result<TensorBuilder, Fault> {
    let mut losses = call.room(T::DTYPE, Shape::new(&[rows as u64])?)?;
    elements_mut::<T>(&mut losses)?.fill(T::default());
    Ok(losses)
}

/// The tensor broadcast to `shape`; the same if it has that.
fn widened(call: &Call<'_>, tensor: &Tensor, shape: Shape) -> Result<Tensor, Fault> {
    if tensor.shape() == shape {
        return Ok(tensor.clone());
    }
    let walk = Walk::broadcast(shape, [tensor.shape()]);
    arranged(call, &[tensor], shape, &Strided { base: 0, walk })
}

/// The same for labels that are numbers of classes.
fn sparse_loss_shape(known: Known<'_>) -> Inferred {
    let (logits, labels) = (known.of_rank(0, 2)?, known.of_rank(1, 1)?);
    let batch = merged_size(logits.dim(0), labels.dim(0))?;
    let logits = PartialShape::of(vec![batch, logits.dim(1)]);
    Ok(vec![PartialShape::of(vec![batch]), logits])
}

/// The loss of each row, and its gradient: softmax, less one at the label.
fn sparse_loss<T: Real>(call: &mut Call<'_>) -> Done {
    let (logits, labels, columns) = sparse_inputs(call)?;
    let (rows, elements) = (labels.len(), elements::<T>(&logits)?);
    let mut losses = losses_of::<T>(call, rows)?;
    let each_loss = elements_mut::<T>(&mut losses)?;
    let gradient = call.written::<T>(logits.shape(), |out| {
        let each = elements
            .chunks_exact(columns)
            .zip(out.chunks_exact_mut(columns));
        for (((logits, out), loss), &label) in each.zip(each_loss).zip(&labels) {
            let (largest, sum) = largest_and_sum(logits);
            for ((at, out), &logit) in (0..).zip(out.iter_mut()).zip(logits) {
                let shifted = logit.wide().minus(largest);
                let part = shifted.exp().over(sum);
                let part = if at == label {
                    part.minus(T::Wide::ONE)
                } else {
                    part
                };
                *out = T::narrow(part);
                if at == label {
                    *loss = T::narrow(sum.ln().minus(shifted));
                }
            }
        }
        Ok(())
    })?;
    call.push(losses.finish());
    call.push(gradient);
    Ok(())
}

/// Logits, the label of each of their rows, and how many columns those have.
fn sparse_inputs(call: &Call<'_>) -> Result<(Tensor, Vec<i64>, usize), Fault> {
    let (logits, labels) = (call.tensor(0)?, call.tensor(1)?);
    if logits.shape().rank() != 2 {
        return Err(format!("logits must be 2-D, but got shape {}", logits.shape()).into());
    }
    if labels.shape().rank() != 1 {
        return Err(format!("labels must be 1-D, but got shape {}", labels.shape()).into());
    }
    let (_, columns) = rows_of(logits.shape())?;
    if logits.shape().dim(0) != labels.shape().dim(0) {
        return Err(format!(
            "logits and labels must have the same first dimension, got logits shape {} and labels shape {}",
            logits.shape(),
            labels.shape()
        )
        .into());
    }
    if columns == 0 {
        return Err(format!(
            "Must have at least one class, but got logits shape {}",
            logits.shape()
        )
        .into());
    }
    let labels = integers(&labels)?;
    if let Some(wrong) = labels
        .iter()
        .find(|&&label| !(0..columns as i64).contains(&label))
    {
        let shown: Vec<_> = labels.iter().take(16).map(i64::to_string).collect();
        return Err(format!(
            "Received a label value of {wrong} which is outside the valid range of [0, {columns}).  Label values: {}",
            shown.join(" ")
        )
        .into());
    }
    Ok((logits, labels, columns))
}

/// The gradient of the logits of a loss, which have its shape: what its second output is, times the gradient of each
/// row, and what flows back through that output itself, for gradients of gradients.
fn loss(at: &mut Back<'_>, logits: Output) -> Result<Output, Status> {
    let (of_loss, of_gradient) = (at.given(0), at.given(1));
    let mut parts = vec![];
    if let Some(g) = of_loss {
        let (column, gradient) = (column(at, g)?, at.output(1));
        parts.push(at.op("Mul", &[column, gradient])?);
    }
    if let Some(g) = of_gradient {
        let softmax = at.op("Softmax", &[logits])?;
        parts.push(through_softmax(at, g, softmax)?);
    }
    sum(at, &parts)
}

fn sum(at: &mut Back<'_>, parts: &[Output]) -> Result<Output, Status> {
    match parts {
        [part] => Ok(*part),
        _ => at.op("AddN", parts),
    }
}

/// A value for each row, as a column beside the rows.
fn column(at: &mut Back<'_>, values: Output) -> Result<Output, Status> {
    let last = at.int(-1)?;
    at.op("ExpandDims", &[values, last])
}

/// Half the sum of squares.
fn half_square<T: Real>(call: &mut Call<'_>) -> Done {
    let input = call.tensor(0)?;
    let square = |x: T| x.wide().times(x.wide());
    let squares = Fold::new(T::Wide::default(), square, Number::plus);
    let sum = squares.row(input.as_slice::<T>()?);
    let half = T::narrow(sum.over(T::Wide::from_i64(2)));
    call.push(Tensor::scalar(half));
    Ok(())
}
