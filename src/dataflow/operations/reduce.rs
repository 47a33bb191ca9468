//! Reductions: many elements to one, over some dimensions.
//!
//! Knows folds. The input is read once, in order; each of its rows goes to one element, or to as many as it has. What
//! became one element gets its gradient back, whole or in parts.

use super::row::{Row, row};
use crate::graph::gradients::{Back, Flows, all_axes};
use crate::graph::infer::{self, Inferred, Known};
use crate::graph::{Node, Output, PartialShape, attr};
use crate::kernel::broadcast::{Walk, count};
use crate::kernel::call::{Done, Fault, axis_of, elements, elements_mut};
use crate::kernel::make::{Cost, Made, made, typed};
use crate::kernel::numbers::Number;
use crate::kernel::{Call, Value};
use rendez::ground::shape::RANK_MAX;
use rendez::ground::{DType, Shape, Status};
use rendez::memory::{Bool8, Tensor, TensorBuilder};
use rendez_proto::tensorflow::DataType;

#[cfg(test)]
mod tests;

/// Picoseconds for each byte that is folded.
const FOLD: usize = 300;
/// Partial sums of a row: independent, so that they are added at once, and rounded less than one sum is.
const LANES: usize = 16;
/// Elements added up before their sum is set aside: long sums are sums of sums.
const BLOCK: usize = 4096;
/// The same for rows that go to many places in turn: elements for each place before the sums of all are set aside.
const EACH: usize = 64;

const TRUTHS: &str = "input: bool, reduction_indices: Tidx -> output: bool";
const OF_TRUTHS: &str = "keep_dims: bool = false; Tidx: index = int32";

pub(super) const ROWS: &[Row] = &[
    reduction("Sum")
        .gradient(sum_gradient)
        .kernel(|node| typed!(node, T: numbers => sum::<T>(keeps(node)))),
    reduction("Mean")
        .gradient(mean_gradient)
        .kernel(|node| typed!(node, T: numbers => mean::<T>(keeps(node)))),
    reduction("Prod").kernel(|node| typed!(node, T: numbers => product::<T>(keeps(node)))),
    reduction("Max")
        .gradient(extreme)
        .kernel(|node| typed!(node, T: numbers => largest::<T>(keeps(node)))),
    reduction("Min")
        .gradient(extreme)
        .kernel(|node| typed!(node, T: numbers => smallest::<T>(keeps(node)))),
    row("All", TRUTHS, OF_TRUTHS, reduced_shape).kernel(|node| {
        let keep = keeps(node);
        made(fold_cost(), move |call| truths(call, keep, true))
    }),
    row("Any", TRUTHS, OF_TRUTHS, reduced_shape).kernel(|node| {
        let keep = keeps(node);
        made(fold_cost(), move |call| truths(call, keep, false))
    }),
];

/// A reduction over some dimensions.
const fn reduction(name: &'static str) -> Row {
    row(
        name,
        "input: T, reduction_indices: Tidx -> output: T",
        "keep_dims: bool = false; T: num; Tidx: index = int32",
        reduced_shape,
    )
}

/// The input without the dimensions that are named, or with 1 in their place.
fn reduced_shape(known: Known<'_>) -> Inferred {
    let input = known.shape(0);
    let keep = attr::bool(known.attrs, "keep_dims").unwrap_or(false);
    let (Some(dims), Some(axes)) = (input.dims(), known.value(1)) else {
        let rank = input.rank().filter(|_| keep);
        return Ok(vec![
            rank.map_or(PartialShape::UNKNOWN, PartialShape::of_rank),
        ]);
    };
    let mut gone = vec![false; dims.len()];
    for &axis in axes {
        gone[infer::axis_of(axis, dims.len())?] = true;
    }
    let left = dims
        .iter()
        .zip(gone)
        .filter_map(|(&dim, gone)| match (gone, keep) {
            (false, _) => Some(dim),
            (true, true) => Some(Some(1)),
            (true, false) => None,
        });
    Ok(vec![PartialShape::of(left.collect())])
}

/// Whether the dimensions that are reduced stay as ones.
fn keeps(node: &Node) -> bool {
    attr::bool(&node.attrs, "keep_dims").unwrap_or(false)
}

fn sum<T: Number>(keep: bool) -> Made {
    widely::<T>(keep, T::Wide::default(), Number::plus)
}

fn sum_gradient(at: &mut Back<'_>) -> Flows {
    let g = at.grad(0)?;
    let flow = spread(at, g)?;
    Ok(vec![Some(flow), None])
}

fn mean<T: Number>(keep: bool) -> Made {
    if T::IS_INTEGER {
        // In 64 bits, as TensorFlow's: neither the sum nor the count need fit into the type.
        let sum = Fold::new(0i64, T::to_i64, Number::plus);
        return reduce(keep, sum, |sum, count| T::from_i64(sum.over(count as i64)));
    }
    let sum = Fold::new(T::Wide::default(), T::wide, Number::plus);
    reduce(keep, sum, |sum, count| {
        T::narrow(sum.over(T::Wide::from_i64(count as i64)))
    })
}

fn mean_gradient(at: &mut Back<'_>) -> Flows {
    let (g, x, y) = (at.grad(0)?, at.input(0)?, at.output(0));
    let (all, left) = (at.size(x)?, at.size(y)?);
    let unit = at.long(1)?;
    let left = at.op("Maximum", &[left, unit])?;
    let count = at.op("FloorDiv", &[all, left])?;
    let base = at.base(x);
    let (g, count) = (at.cast(g, counted(base))?, at.cast(count, counted(base))?);
    let part = at.op("RealDiv", &[g, count])?;
    let part = at.cast(part, base)?;
    let flow = spread(at, part)?;
    Ok(vec![Some(flow), None])
}

/// In what type elements of type `base` are counted: halves reach 65504, or have eight bits.
const fn counted(base: DataType) -> DataType {
    match base {
        DataType::DtHalf | DataType::DtBfloat16 => DataType::DtFloat,
        other => other,
    }
}

/// What is shaped as the result, given to every element of the input.
fn spread(at: &mut Back<'_>, g: Output) -> Result<Output, Status> {
    let (g, x) = (kept(at, g)?, at.input(0)?);
    let shape = at.shape(x)?;
    at.op("BroadcastTo", &[g, shape])
}

fn product<T: Number>(keep: bool) -> Made {
    widely::<T>(keep, T::Wide::ONE, Number::times)
}

fn largest<T: Number>(keep: bool) -> Made {
    widely::<T>(keep, T::LOWEST.wide(), Number::max)
}

fn smallest<T: Number>(keep: bool) -> Made {
    widely::<T>(keep, T::HIGHEST.wide(), Number::min)
}

/// The gradient goes to the elements that are the largest, in equal parts.
fn extreme(at: &mut Back<'_>) -> Flows {
    let (g, x, axes) = (at.grad(0)?, at.input(0)?, at.input(1)?);
    let result = at.output(0);
    let (g, result) = (kept(at, g)?, kept(at, result)?);
    let is_it = at.op("Equal", &[result, x])?;
    let base = at.base(x);
    let (is_it, g) = (at.cast(is_it, counted(base))?, at.cast(g, counted(base))?);
    let count = at.op_with("Sum", &[is_it, axes], |node| node.attr("keep_dims", true))?;
    let part = at.op("RealDiv", &[is_it, count])?;
    let flow = at.op("Mul", &[part, g])?;
    let flow = at.cast(flow, base)?;
    Ok(vec![Some(flow), None])
}

/// `value`, shaped as the result, with the dimensions that were reduced as ones; and the shape of the input.
fn kept(at: &mut Back<'_>, value: Output) -> Result<Output, Status> {
    if attr::bool(at.attrs(), "keep_dims").unwrap_or(false) {
        return Ok(value);
    }
    if let Some([axis]) = at.constant(1).as_deref()
        && let Ok(axis) = i32::try_from(*axis)
    {
        // The dimension that went comes back; counted from the end it is the same one.
        let axis = at.int(axis)?;
        return at.op("ExpandDims", &[value, axis]);
    }
    let shape = kept_shape(at)?;
    at.op("Reshape", &[value, shape])
}

/// The shape of the input, with ones where it was reduced.
fn kept_shape(at: &mut Back<'_>) -> Result<Output, Status> {
    let (x, axes) = (at.input(0)?, at.input(1)?);
    let shape = at.shape(x)?;
    let rank = at.op("Rank", &[x])?;
    // Of a scalar there are no axes, and none is to be divided by its rank.
    let unit = at.int(1)?;
    let rank = at.op("Maximum", &[rank, unit])?;
    let column = at.ints(&[2], &[-1, 1])?;
    let axes = at.cast(axes, DataType::DtInt32)?;
    let axes = at.op("Reshape", &[axes, column])?;
    let axes = at.op("FloorMod", &[axes, rank])?;
    let all = all_axes(at, x)?;
    let is_gone = at.op("Equal", &[axes, all])?;
    let first = at.ints(&[1], &[0])?;
    let is_gone = at.op("Any", &[is_gone, first])?;
    let unit = at.long(1)?;
    at.op("SelectV2", &[is_gone, unit, shape])
}

/// What is reduced to what.
struct Plan {
    /// The output.
    shape: Shape,
    /// The rows of the input, and where in the output each goes.
    walk: Walk<1>,
    /// Elements that become one.
    count: usize,
}

fn plan(call: &Call<'_>, input: Shape, keep: bool) -> Result<Plan, Fault> {
    let mut gone = [false; RANK_MAX];
    for axis in call.dims(1)? {
        let Some(index) = axis_of(axis, input.rank()) else {
            return Err(format!(
                "Invalid reduction dimension ({axis} for input with {} dimension(s)",
                input.rank()
            )
            .into());
        };
        if std::mem::replace(&mut gone[index], true) {
            return Err(format!(
                "Invalid reduction arguments: Axes contains duplicate dimension: {index}"
            )
            .into());
        }
    }
    let each = || input.dims().zip(gone);
    let dims: Vec<u64> = each()
        .filter_map(|(dim, gone)| match (gone, keep) {
            (false, _) => Some(dim),
            (true, true) => Some(1),
            (true, false) => None,
        })
        .collect();
    let mut strides = [[0; RANK_MAX]; 1];
    let mut stride = 1usize;
    for (index, (dim, gone)) in each().enumerate().collect::<Vec<_>>().into_iter().rev() {
        if !gone {
            strides[0][index] = stride;
            stride = stride.saturating_mul(dim as usize);
        }
    }
    let counts = each()
        .filter(|(_, gone)| *gone)
        .map(|(dim, _)| dim as usize);
    Ok(Plan {
        shape: Shape::new(&dims)?,
        walk: Walk::strided(input, strides),
        count: count(counts),
    })
}

/// The cost of reading what is folded; of nothing, that of writing as much as may be made of it.
pub(super) fn fold_cost() -> Cost {
    Cost::Picoseconds(Box::new(|inputs| {
        let own: usize = inputs.iter().map(Value::bytes).sum();
        let written = inputs.first().map_or(0, made_of_nothing);
        own.max(written).saturating_mul(FOLD)
    }))
}

/// Bytes of the starts of folds over nothing, if that is what a tensor has: all dimensions may stay that have a size.
fn made_of_nothing(input: &Value) -> usize {
    let tensor = input.tensor().ok();
    let Some(tensor) = tensor.filter(|tensor| tensor.shape().elements() == 0) else {
        return 0;
    };
    let (shape, size) = (tensor.shape(), tensor.dtype().size().unwrap_or(1));
    let dims = shape.dims().filter(|&dim| dim != 0);
    size.saturating_mul(count(dims.map(|dim| dim as usize)))
}

/// Folds elements in their wide type.
fn widely<T: Number>(
    keep: bool,
    start: T::Wide,
    both: impl Fn(T::Wide, T::Wide) -> T::Wide + Copy + Send + Sync + 'static,
) -> Made {
    let fold = Fold::new(start, T::wide, both);
    reduce(keep, fold, |all, _| T::narrow(all))
}

/// `end` makes an element of what became of some, and of how many they were.
fn reduce<T: Number, A: Number>(
    keep: bool,
    fold: Fold<
        A,
        impl Fn(T) -> A + Copy + Send + Sync + 'static,
        impl Fn(A, A) -> A + Copy + Send + Sync + 'static,
    >,
    end: impl Fn(A, usize) -> T + Copy + Send + Sync + 'static,
) -> Made {
    made(fold_cost(), move |call| {
        reduced(
            call,
            keep,
            [T::DTYPE, A::DTYPE],
            &mut |plan, input, [room, all]| {
                let all = elements_mut::<A>(all)?;
                all.fill(fold.start);
                gather(plan.walk, elements::<T>(input)?, all, fold);
                for (out, &all) in elements_mut::<T>(room)?.iter_mut().zip(&*all) {
                    *out = end(all, plan.count);
                }
                Ok(())
            },
        )
    })
}

/// What is the same for every type and fold, compiled once: `write` has the loops alone. It writes the output by way of
/// what is folded so far, which is wider and has its room in the engine's memory too: that is bounded.
fn reduced(
    call: &mut Call<'_>,
    keep: bool,
    [dtype, wide]: [DType; 2],
    write: &mut dyn FnMut(&Plan, &Tensor, [&mut TensorBuilder; 2]) -> Done,
) -> Done {
    let input = call.tensor(0)?;
    let plan = plan(call, input.shape(), keep)?;
    if plan.count == 1 {
        call.push(input.reshaped(plan.shape)?);
        return Ok(());
    }
    let mut room = call.room(dtype, plan.shape)?;
    let mut all = call.room(wide, plan.shape)?;
    write(&plan, &input, [&mut room, &mut all])?;
    call.push(room.finish());
    Ok(())
}

/// Gives each row of the input to the element of the output that it goes to, or its elements to theirs.
pub(super) fn gather<T: Copy, A: Copy>(
    mut walk: Walk<1>,
    elements: &[T],
    out: &mut [A],
    fold: Fold<A, impl Fn(T) -> A + Copy, impl Fn(A, A) -> A + Copy>,
) {
    let row = walk.row.saturating_mul(walk.take_repeats()).max(1);
    let is_one = walk.step == [0];
    let width = if is_one { 1 } else { walk.row };
    let mut rows = elements.chunks_exact(row);
    // Few elements for each place go there at once. Many go to a part of each first, and the parts to their places
    // after `most` rows.
    let (mut part, mut most) = (vec![], usize::MAX);
    if elements.len() / BLOCK > out.len() {
        part.resize(out.len(), fold.start);
        most = (out.len().saturating_mul(EACH).max(BLOCK) / row).max(1);
    }
    let (into, all) = match part.as_mut_slice() {
        [] => (out, [].as_mut_slice()),
        part => (part, out),
    };
    let mut left = most;
    walk.rows(|[place]| {
        if left == 0 {
            fold.put(all, into);
            into.fill(fold.start);
            left = most;
        }
        left -= 1;
        let (Some(rows), Some(into)) = (rows.next(), into.get_mut(place..place + width)) else {
            return;
        };
        match into {
            [into] if is_one => *into = (fold.both)(*into, fold.row(rows)),
            into => fold.rows(into, rows),
        }
    });
    fold.put(all, into);
}

/// How elements become one: what there is without any, what each is in it, and how two are put together.
#[derive(Clone, Copy)]
pub(super) struct Fold<A, I, F> {
    start: A,
    into: I,
    both: F,
}

impl<A: Copy, I: Copy, F: Fn(A, A) -> A + Copy> Fold<A, I, F> {
    pub(super) const fn new(start: A, into: I, both: F) -> Self {
        Self { start, into, both }
    }

    /// Folds a row; a long one in lanes and blocks.
    pub(super) fn row<T: Copy>(self, row: &[T]) -> A
    where
        I: Fn(T) -> A,
    {
        if row.len() < 2 * LANES {
            return self.some(row);
        }
        // Numbers that are widened to 64 bits need registers for that, too.
        let are_few = size_of::<A>() > size_of::<T>().max(4);
        let mut total = self.start;
        for block in row.chunks(BLOCK) {
            let block = match are_few {
                true => self.lanes::<T, { LANES / 2 }>(block),
                false => self.lanes::<T, LANES>(block),
            };
            total = (self.both)(total, block);
        }
        total
    }

    fn lanes<T: Copy, const COUNT: usize>(self, block: &[T]) -> A
    where
        I: Fn(T) -> A,
    {
        let mut lanes = [self.start; COUNT];
        let chunks = block.chunks_exact(COUNT);
        let rest = self.some(chunks.remainder());
        for chunk in chunks {
            for (lane, &element) in lanes.iter_mut().zip(chunk) {
                *lane = (self.both)(*lane, (self.into)(element));
            }
        }
        lanes.into_iter().fold(rest, self.both)
    }

    fn some<T: Copy>(self, elements: &[T]) -> A
    where
        I: Fn(T) -> A,
    {
        let fold = |all, &element: &T| (self.both)(all, (self.into)(element));
        elements.iter().fold(self.start, fold)
    }

    /// Folds rows into `out`, which is as long as each, in blocks of rows.
    pub(super) fn rows<T: Copy>(self, out: &mut [A], rows: &[T])
    where
        I: Fn(T) -> A,
    {
        let mut blocks = rows.chunks(out.len().saturating_mul(BLOCK).max(1));
        // The first needs no place of its own, and mostly there is no other.
        if let Some(first) = blocks.next() {
            self.each(out, first);
        }
        for block in blocks {
            let mut part = vec![self.start; out.len()];
            self.each(&mut part, block);
            self.put(out, &part);
        }
    }

    /// Puts what was set aside into `out`.
    fn put(self, out: &mut [A], part: &[A]) {
        for (out, &part) in out.iter_mut().zip(part) {
            *out = (self.both)(*out, part);
        }
    }

    fn each<T: Copy>(self, out: &mut [A], rows: &[T])
    where
        I: Fn(T) -> A,
    {
        for row in rows.chunks_exact(out.len().max(1)) {
            for (out, &element) in out.iter_mut().zip(row) {
                *out = (self.both)(*out, (self.into)(element));
            }
        }
    }
}

fn truths(call: &mut Call<'_>, keep: bool, is_all: bool) -> Done {
    let input = call.tensor(0)?;
    let plan = plan(call, input.shape(), keep)?;
    let elements = input.as_slice::<Bool8>()?;
    call.output::<Bool8>(plan.shape, |out| {
        out.fill(is_all.into());
        let both = |one: Bool8, other: Bool8| match is_all {
            true => (one.is_true() && other.is_true()).into(),
            false => (one.is_true() || other.is_true()).into(),
        };
        let fold = Fold::new(is_all.into(), |truth: Bool8| truth, both);
        gather(plan.walk, elements, out, fold);
    })
}
