//! Layers of networks: biases, rectifiers, softmax and its losses, with the gradients that have operations.
//!
//! Knows the formulas; every row is computed in 32 bits at least, shifted so that no exponential overflows.

use crate::graph::{Node, attr};
use crate::kernel::Call;
use crate::kernel::broadcast::broadcast;
use crate::kernel::call::{Done, Fault};
use crate::kernel::elementwise::pairs;
use crate::kernel::make::{Cost, Made, dtype, made};
use crate::kernel::numbers::{Float, Number, Real, by_type};
use rendez::ground::{DType, Shape};
use rendez::memory::{Element, Tensor};

/// Picoseconds for each byte of one pass.
const PASS: usize = 200;
/// Picoseconds for each byte of a row's exponentials and sums.
const SOFTMAX: usize = 3500;

pub(super) fn make(node: &Node) -> Made {
    let Some(dtype) = dtype(node, "T") else {
        return Ok(None);
    };
    let op = node.op.name();
    let is_first = attr::text(&node.attrs, "data_format") == Some("NCHW");
    let found = by_type!(dtype, T: numbers => match op {
        "BiasAdd" => made(Cost::PerByte(PASS), move |call| bias_add::<T>(call, is_first)),
        "BiasAddGrad" => made(Cost::PerByte(PASS), move |call| bias_add_grad::<T>(call, is_first)),
        "Relu" => rectify::<T>(|x| Number::max(x, T::default())),
        "Relu6" => rectify::<T>(|x| Number::min(Number::max(x, T::default()), T::from_i64(6))),
        "ReluGrad" => relu_grad::<T>(node),
        _ => Ok(None),
    });
    if let Some(simple) = found.transpose()?.flatten() {
        return Ok(Some(simple));
    }
    let labels = crate::kernel::make::dtype(node, "Tlabels");
    by_type!(dtype, T: reals => match op {
        "Softmax" => made(Cost::PerByte(SOFTMAX), |call| softmax::<T>(call, false)),
        "LogSoftmax" => made(Cost::PerByte(SOFTMAX), |call| softmax::<T>(call, true)),
        "SoftmaxCrossEntropyWithLogits" => made(Cost::PerByte(SOFTMAX), dense_loss::<T>),
        "SparseSoftmaxCrossEntropyWithLogits" => made(Cost::PerByte(SOFTMAX), move |call| match labels {
            Some(DType::I32) => sparse_loss::<T, i32>(call),
            _ => sparse_loss::<T, i64>(call),
        }),
        "L2Loss" => made(Cost::PerByte(PASS), half_square::<T>),
        _ => Ok(None),
    })
    .unwrap_or(Ok(None))
}

/// How a value and its bias lie: before, along and after the channels.
struct Channels {
    outer: usize,
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
        outer: dims[..at].iter().product(),
        channels: dims[at],
        inner: dims[at + 1..].iter().product(),
    })
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

fn bias_add_grad<T: Number>(call: &mut Call<'_>, is_first: bool) -> Done {
    let gradient = call.tensor(0)?;
    let lie = channels(gradient.shape(), is_first)?;
    let elements = gradient.as_slice::<T>()?;
    let mut sums = vec![T::Wide::default(); lie.channels];
    if lie.inner == 1 {
        for row in elements.chunks_exact(lie.channels.max(1)).take(lie.outer) {
            for (sum, &element) in sums.iter_mut().zip(row) {
                *sum = sum.plus(element.wide());
            }
        }
    } else {
        let mut rows = elements.chunks_exact(lie.inner.max(1));
        for _ in 0..lie.outer {
            for (sum, row) in sums.iter_mut().zip(&mut rows) {
                *sum = row
                    .iter()
                    .fold(*sum, |sum, &element| sum.plus(element.wide()));
            }
        }
    }
    let shape = Shape::new(&[lie.channels as u64])?;
    call.output::<T>(shape, |out| {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = T::narrow(sum);
        }
    })
}

fn rectify<T: Element>(f: impl Fn(T) -> T + Copy + Send + Sync + 'static) -> Made {
    crate::kernel::elementwise::each::<T>(PASS, f)
}

/// The gradient where the feature is above zero.
fn relu_grad<T: Number>(node: &Node) -> Made {
    let pass = |gradient: T, feature: T| {
        if feature > T::default() {
            gradient
        } else {
            T::default()
        }
    };
    let simple = pairs::<T, T>(PASS, pass)?;
    Ok(simple.map(|simple| simple.of_same_shapes(node)))
}

/// The rows of a tensor: all but the last dimension, and that.
fn rows_of(shape: Shape) -> Result<(usize, usize), Fault> {
    let Some(last) = shape.rank().checked_sub(1) else {
        return Err("logits must have >= 1 dimension, got []".into());
    };
    let columns = shape.dim(last).unwrap_or(0) as usize;
    Ok((shape.elements() as usize / columns.max(1), columns))
}

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
                let shifted = element.exact().minus(largest);
                *out = T::round(match is_log {
                    true => shifted.minus(log),
                    false => shifted.exp().over(sum),
                });
            }
        }
    })
}

/// The largest of a row, and the sum of the exponentials of what each is below it.
fn largest_and_sum<T: Real>(row: &[T]) -> (T::Exact, T::Exact) {
    let lowest = T::Exact::LOWEST;
    let largest = row
        .iter()
        .fold(lowest, |largest, x| Number::max(largest, x.exact()));
    let zero = T::Exact::default();
    let sum = row
        .iter()
        .fold(zero, |sum, x| sum.plus(x.exact().minus(largest).exp()));
    (largest, sum)
}

/// The loss of each row, and its gradient: softmax less labels.
fn dense_loss<T: Real>(call: &mut Call<'_>) -> Done {
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
    let (logits, labels) = (
        widened::<T>(call, &logits, shape)?,
        widened::<T>(call, &labels, shape)?,
    );
    let (rows, columns) = rows_of(shape)?;
    let (logits, labels) = (logits.as_slice::<T>()?, labels.as_slice::<T>()?);
    let mut losses = vec![T::default(); rows];
    let gradient = call.written::<T>(shape, |out| {
        let each = logits
            .chunks_exact(columns.max(1))
            .zip(labels.chunks_exact(columns.max(1)));
        let each = each
            .zip(out.chunks_exact_mut(columns.max(1)))
            .zip(&mut losses);
        for (((logits, labels), out), loss) in each {
            let (largest, sum) = largest_and_sum(logits);
            let log = sum.ln();
            let mut total = T::Exact::default();
            for ((out, &logit), &label) in out.iter_mut().zip(logits).zip(labels) {
                let shifted = logit.exact().minus(largest);
                let label = label.exact();
                // A label of zero has no part in it, also where the logit is minus infinity.
                if label != T::Exact::default() {
                    total = total.plus(label.times(log.minus(shifted)));
                }
                *out = T::round(shifted.exp().over(sum).minus(label));
            }
            *loss = T::round(total);
        }
        Ok(())
    })?;
    call.output::<T>(Shape::new(&[rows as u64])?, |out| {
        out.copy_from_slice(&losses)
    })?;
    call.push(gradient);
    Ok(())
}

/// The tensor broadcast to `shape`; the same if it has that.
fn widened<T: Element>(call: &Call<'_>, tensor: &Tensor, shape: Shape) -> Result<Tensor, Fault> {
    if tensor.shape() == shape {
        return Ok(tensor.clone());
    }
    let elements = tensor.as_slice::<T>()?;
    let walk = crate::kernel::broadcast::Walk::broadcast(shape, [tensor.shape(), tensor.shape()]);
    call.written::<T>(shape, |out| {
        walk.zip(elements, elements, out, |element, _| element);
        Ok(())
    })
}

/// The loss of each row, and its gradient: softmax, less one at the label.
fn sparse_loss<T: Real, L: Element + Into<i64>>(call: &mut Call<'_>) -> Done {
    let (logits, labels) = (call.tensor(0)?, call.tensor(1)?);
    if logits.shape().rank() != 2 {
        return Err(format!("logits must be 2-D, but got shape {}", logits.shape()).into());
    }
    if labels.shape().rank() != 1 {
        return Err(format!("labels must be 1-D, but got shape {}", labels.shape()).into());
    }
    let (rows, columns) = rows_of(logits.shape())?;
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
    let labels: Vec<i64> = labels
        .as_slice::<L>()?
        .iter()
        .map(|&label| label.into())
        .collect();
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
    let elements = logits.as_slice::<T>()?;
    let mut losses = vec![T::default(); rows];
    let gradient = call.written::<T>(logits.shape(), |out| {
        let each = elements
            .chunks_exact(columns)
            .zip(out.chunks_exact_mut(columns));
        for (((logits, out), loss), &label) in each.zip(&mut losses).zip(&labels) {
            let (largest, sum) = largest_and_sum(logits);
            for ((at, out), &logit) in (0..).zip(out.iter_mut()).zip(logits) {
                let shifted = logit.exact().minus(largest);
                let part = shifted.exp().over(sum);
                let part = if at == label {
                    part.minus(T::Exact::ONE)
                } else {
                    part
                };
                *out = T::round(part);
                if at == label {
                    *loss = T::round(sum.ln().minus(shifted));
                }
            }
        }
        Ok(())
    })?;
    call.output::<T>(Shape::new(&[rows as u64])?, |out| {
        out.copy_from_slice(&losses)
    })?;
    call.push(gradient);
    Ok(())
}

/// Half the sum of squares.
fn half_square<T: Real>(call: &mut Call<'_>) -> Done {
    let input = call.tensor(0)?;
    let zero = T::Exact::default();
    let squares = input
        .as_slice::<T>()?
        .iter()
        .map(|x| x.exact().times(x.exact()));
    let sum = squares.fold(zero, Number::plus);
    let half = T::round(sum.over(T::Exact::from_i64(2)));
    call.push(Tensor::scalar(half));
    Ok(())
}
