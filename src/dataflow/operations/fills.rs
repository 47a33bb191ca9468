//! Tensors made of little: filled, counted up, repeated.
//!
//! Knows no arithmetic but counting; sizes come as values, and memory for them is asked before anything is done.

use super::row::{Row, row};
use crate::graph::gradients::{Back, Flows, all_axes, none};
use crate::graph::infer::{self, Inferred, Known, merged, said, same, size, unknown};
use crate::graph::{Node, Output, PartialShape, attr};
use crate::kernel::arrange::{Arrange, Strided, arranged};
use crate::kernel::broadcast::{Walk, broadcast, count_of};
use crate::kernel::call::{Done, axis_of, shape_of};
use crate::kernel::make::{Cost, Made, dtype, made, product, typed};
use crate::kernel::numbers::Number;
use crate::kernel::{Call, Value};
use rendez::ground::shape::RANK_MAX;
use rendez::ground::{DType, Shape, Status};
use rendez::memory::{Bool8, Tensor};
use rendez_proto::tensorflow::DataType;

/// Picoseconds for each byte that is written.
const WRITE: usize = 150;

pub(super) const ROWS: &[Row] = &[
    row(
        "Fill",
        "dims: index_type, value: T -> output: T",
        "T: type; index_type: index = int32",
        fill_shape,
    )
    .gradient(|at| {
        let g = at.grad(0)?;
        let axes = all_axes(at, g)?;
        let mut flow = at.op("Sum", &[g, axes])?;
        // A row of one passes for a scalar, where its shape is not known before.
        if at.known_shape(1).rank() != Some(0) {
            let value = at.input(1)?;
            flow = at.reshaped_as(flow, value)?;
        }
        Ok(vec![None, Some(flow)])
    })
    .kernel(|_| made(written(0, 1), fill)),
    row(
        "BroadcastTo",
        "input: T, shape: Tidx -> output: T",
        "T: type; Tidx: index = int32",
        |known| Ok(vec![said(known, 1)?]),
    )
    .gradient(|at| {
        let (g, x) = (at.grad(0)?, at.input(0)?);
        let result = at.output(0);
        let flow = at.unbroadcast([x, result], [Some(g), None])?.swap_remove(0);
        Ok(vec![flow, None])
    })
    .kernel(|_| made(written(1, 0), broadcast_to)),
    row(
        "Tile",
        "input: T, multiples: Tmultiples -> output: T",
        "T: type; Tmultiples: index = int32",
        unknown,
    )
    .gradient(tile_gradient)
    .kernel(|_| made(tile_cost(), tile)),
    row("ZerosLike", "x: T -> y: T", "T: type", same)
        .gradient(none)
        .kernel(|_| made(Cost::PerByte(WRITE), zeros_like)),
    row("OnesLike", "x: T -> y: T", "T: type", same)
        .gradient(none)
        .kernel(ones_like),
    row(
        "Range",
        "start: Tidx, limit: Tidx, delta: Tidx -> output: Tidx",
        "Tidx: {bfloat16, half, float, double, int8, int16, int32, int64, uint16, uint32} = int32",
        range_shape,
    )
    .gradient(none)
    .kernel(|node| typed!(node, "Tidx", T: numbers => made(range_cost::<T>(), range::<T>))),
    row(
        "OneHot",
        "indices: TI, depth: int32, on_value: T, off_value: T -> output: T",
        "axis: int = -1; T: type; TI: {uint8, int8, int32, int64} = int64",
        one_hot_shape,
    )
    .kernel(|node| {
        let axis = attr::int(&node.attrs, "axis").unwrap_or(-1);
        made(one_hot_cost(), move |call| one_hot(call, axis))
    }),
];

fn fill_shape(known: Known<'_>) -> Inferred {
    merged(&known.shape(1), &PartialShape::scalar())?;
    Ok(vec![said(known, 0)?])
}

fn fill(call: &mut Call<'_>) -> Done {
    let shape = shape_of(&call.dims(0)?)?;
    let value = call.tensor(1)?;
    // A row of one passes for a scalar, as it always did.
    if value.shape().rank() > 1 || value.shape().elements() != 1 {
        return Err(format!("value must be a scalar, got shape {}", value.shape()).into());
    }
    spread(call, &value, shape)
}

fn broadcast_to(call: &mut Call<'_>) -> Done {
    let input = call.tensor(0)?;
    let dims = call.dims(1)?;
    let shape = shape_of(&dims)?;
    if shape.rank() < input.shape().rank() {
        return Err(format!(
            "Rank of input ({}) must be no greater than rank of output shape ({}).",
            input.shape().rank(),
            shape.rank()
        )
        .into());
    }
    if broadcast(input.shape(), shape) != Ok(shape) {
        return Err(format!(
            "Incompatible shapes: {} vs. {shape}: the first cannot be broadcast to the second",
            input.shape()
        )
        .into());
    }
    if input.shape() == shape {
        call.push(input);
        return Ok(());
    }
    spread(call, &input, shape)
}

/// The cost of writing a shape that comes as input `index`, of elements as large as those of input `value`.
fn written(index: usize, value: usize) -> Cost {
    Cost::Picoseconds(Box::new(move |inputs| {
        let value = inputs.get(value).and_then(|value| value.tensor().ok());
        let each = value.map_or(0, |value| {
            value.size() / (value.shape().elements() as usize).max(1)
        });
        product(inputs, index)
            .saturating_mul(each.max(4))
            .saturating_mul(WRITE)
    }))
}

/// The next output: `input` broadcast to `shape`, of whatever type.
fn spread(call: &mut Call<'_>, input: &Tensor, shape: Shape) -> Done {
    let walk = Walk::broadcast(shape, [input.shape()]);
    let spread = arranged(call, &[input], shape, &Strided { base: 0, walk })?;
    call.push(spread);
    Ok(())
}

/// Every repetition adds to what was repeated.
fn tile_gradient(at: &mut Back<'_>) -> Flows {
    let (x, times) = (at.known_shape(0), at.known_shape(1));
    let rank = x.rank().map(|rank| rank as u64).or_else(|| times.dim(0));
    let flow = match rank {
        Some(rank) if 2 * rank <= RANK_MAX as u64 => tile_folded(at),
        // Also where nothing is known of it.
        _ => tile_placed(at),
    }?;
    Ok(vec![Some(flow), None])
}

/// The gradient with two dimensions for each, of which one goes.
fn tile_folded(at: &mut Back<'_>) -> Result<Output, Status> {
    let (g, x, times) = (at.grad(0)?, at.input(0)?, at.input(1)?);
    let (times, shape) = (at.cast(times, DataType::DtInt64)?, at.shape(x)?);
    let pairs = at.op_with("Pack", &[times, shape], |node| node.attr("axis", 1i64))?;
    let row = at.ints(&[1], &[-1])?;
    let pairs = at.op("Reshape", &[pairs, row])?;
    let g = at.op("Reshape", &[g, pairs])?;
    let size = at.op("Size", &[pairs])?;
    let (zero, two) = (at.int(0)?, at.int(2)?);
    let axes = at.op("Range", &[zero, size, two])?;
    at.op("Sum", &[g, axes])
}

/// The same where a tensor cannot have as many dimensions: places are repeated as what stood there was, and say where
/// each element of the gradient goes. That takes ten times as long.
fn tile_placed(at: &mut Back<'_>) -> Result<Output, Status> {
    let (g, x, times) = (at.grad(0)?, at.input(0)?, at.input(1)?);
    let (shape, size) = (at.shape(x)?, at.size(x)?);
    let (zero, unit, row) = (at.long(0)?, at.long(1)?, at.ints(&[1], &[-1])?);
    let places = at.op("Range", &[zero, size, unit])?;
    let places = at.op("Reshape", &[places, shape])?;
    let places = at.op("Tile", &[places, times])?;
    let places = at.op("Reshape", &[places, row])?;
    let g = at.op("Reshape", &[g, row])?;
    let sums = at.op("UnsortedSegmentSum", &[g, places, size])?;
    at.op("Reshape", &[sums, shape])
}

fn tile_cost() -> Cost {
    Cost::Picoseconds(Box::new(|inputs| {
        let bytes = inputs.first().map_or(0, Value::bytes);
        let written = bytes.saturating_mul(product(inputs, 1));
        written.saturating_mul(4 * WRITE)
    }))
}

fn tile(call: &mut Call<'_>) -> Done {
    let input = call.tensor(0)?;
    let shape = input.shape();
    let times = call.dims(1)?;
    if times.len() != shape.rank() {
        return Err(format!(
            "Expected multiples argument to be a vector of length {} but got length {}",
            shape.rank(),
            times.len()
        )
        .into());
    }
    let mut dims = vec![];
    for (index, (&times, dim)) in times.iter().zip(shape.dims()).enumerate() {
        let size = u64::try_from(times)
            .ok()
            .and_then(|times| dim.checked_mul(times));
        dims.push(
            size.ok_or_else(|| format!("Expected multiples[{index}] >= 0, but got {times}"))?,
        );
    }
    let out = Shape::new(&dims)?;
    let mut stride = shape.elements() as usize;
    let own = shape.dims().map(|dim| {
        stride /= (dim as usize).max(1);
        (dim as usize, stride)
    });
    let own: Vec<_> = own.collect();
    // Each dimension is two: how often, which goes back to the start, and how far.
    let pairs = times
        .iter()
        .zip(own)
        .flat_map(|(&times, (dim, stride))| [(times as usize, [0]), (dim, [stride])]);
    let pairs: Vec<_> = pairs.collect();
    let walk = Walk::over(pairs.into_iter());
    let tiled = arranged(call, &[&input], out, &Strided { base: 0, walk })?;
    call.push(tiled);
    Ok(())
}

fn zeros_like(call: &mut Call<'_>) -> Done {
    let input = call.tensor(0)?;
    if input.dtype() == DType::String {
        let count = input.shape().elements() as usize;
        return call.output_strings(input.shape(), std::iter::repeat_n(b"", count));
    }
    let mut room = call.home.allocate(input.meta())?;
    room.bytes_mut().fill(0);
    call.push(room.finish());
    Ok(())
}

fn ones_like(node: &Node) -> Made {
    if dtype(node, "T") == Some(DType::Bool) {
        return made(Cost::PerByte(WRITE), |call| {
            let shape = call.tensor(0)?.shape();
            call.output::<Bool8>(shape, |out| out.fill(true.into()))
        });
    }
    typed!(node, T: numbers => made(Cost::PerByte(WRITE), |call| {
        let shape = call.tensor(0)?.shape();
        call.output::<T>(shape, |out| out.fill(T::ONE))
    }))
}

fn range_shape(known: Known<'_>) -> Inferred {
    let one = |index: usize| match known.value(index) {
        Some(&[value]) => Some(i128::from(value)),
        _ => None,
    };
    let (Some(start), Some(limit), Some(delta)) = (one(0), one(1), one(2)) else {
        return Ok(vec![PartialShape::of_rank(1)]);
    };
    if delta == 0 {
        return Err("Requires delta != 0".to_owned());
    }
    if (limit - start).signum() * delta.signum() < 0 {
        return Err(format!(
            "Requires start {start} and limit {limit} in the direction of delta {delta}"
        ));
    }
    let steps = ((limit - start).abs() + delta.abs() - 1) / delta.abs();
    Ok(vec![PartialShape::of(vec![u64::try_from(steps).ok()])])
}

fn range_cost<T: Number>() -> Cost {
    Cost::Picoseconds(Box::new(|inputs| {
        let mut bounds = [T::default(); 3];
        for (bound, input) in bounds.iter_mut().zip(inputs) {
            let tensor = input.tensor().ok();
            let one = tensor.as_ref().and_then(|one| one.as_slice::<T>().ok());
            *bound = one.and_then(<[T]>::first).copied().unwrap_or_default();
        }
        let count = steps(bounds).and_then(|count| usize::try_from(count).ok());
        count.unwrap_or(0).saturating_mul(4 * WRITE)
    }))
}

/// How often `delta` fits between the bounds, counting one that does not as a whole. `None` if that has no end.
fn steps<T: Number>([start, limit, delta]: [T; 3]) -> Option<u64> {
    if delta == T::default() {
        return None;
    }
    // Integers of 64 bits are counted in 128: their distance may have a bit more than they have.
    if let (Some(start), Some(limit), Some(delta)) =
        (start.to_i128(), limit.to_i128(), delta.to_i128())
    {
        let (distance, step) = ((limit - start).unsigned_abs(), delta.unsigned_abs());
        return u64::try_from(distance.div_ceil(step)).ok();
    }
    // In the type itself, as TensorFlow: in 64 bits 0.3 is more than three times 0.1.
    let steps = limit.minus(start).over(delta).absolute();
    let count = steps.to_f64().ceil();
    (count < 1e18).then_some(count as u64)
}

fn range<T: Number>(call: &mut Call<'_>) -> Done {
    let mut bounds = [T::default(); 3];
    for (index, (bound, name)) in bounds
        .iter_mut()
        .zip(["start", "limit", "delta"])
        .enumerate()
    {
        let tensor = call.tensor(index)?;
        *bound = match tensor.as_slice::<T>()? {
            [bound] if tensor.shape().rank() <= 1 => *bound,
            _ => {
                return Err(
                    format!("{name} must be a scalar, not shape {}", tensor.shape()).into(),
                );
            }
        };
    }
    let [start, limit, delta] = bounds;
    let zero = T::default();
    if delta == zero {
        return Err("Requires delta != 0: 0".into());
    }
    if delta > zero && start > limit {
        return Err(format!("Requires start <= limit when delta > 0: {start:?}/{limit:?}").into());
    }
    if delta < zero && start < limit {
        return Err(format!("Requires start >= limit when delta < 0: {start:?}/{limit:?}").into());
    }
    let count = steps(bounds).ok_or("the range has no end")?;
    call.output::<T>(Shape::new(&[count])?, |out| {
        // Each by itself: a sum that goes on drifts, and in few bits it stands still.
        for (at, out) in (0..).zip(out) {
            *out = start.plus(T::from_i64(at).times(delta));
        }
    })
}

fn one_hot_shape(known: Known<'_>) -> Inferred {
    let indices = known.shape(0);
    let Some(dims) = indices.dims() else {
        return Ok(vec![PartialShape::UNKNOWN]);
    };
    let depth = match known.value(1) {
        Some(&[depth]) => size(depth)?,
        _ => None,
    };
    let axis = infer::axis_of(attr::int(known.attrs, "axis").unwrap_or(-1), dims.len() + 1)?;
    let mut dims = dims.to_vec();
    dims.insert(axis, depth);
    Ok(vec![PartialShape::of(dims)])
}

fn one_hot_cost() -> Cost {
    Cost::Picoseconds(Box::new(|inputs| {
        let [indices, _, on, _] = inputs else {
            return 0;
        };
        // Indices have a byte at least.
        let written = indices.bytes().saturating_mul(on.bytes());
        let written = written.saturating_mul(product(inputs, 1));
        written.saturating_mul(4 * WRITE)
    }))
}

fn one_hot(call: &mut Call<'_>, axis: i64) -> Done {
    let (indices, on, off) = (call.tensor(0)?, call.tensor(2)?, call.tensor(3)?);
    let depth = call.integer(1)?;
    let rank = indices.shape().rank();
    let axis = if axis == -1 {
        Some(rank)
    } else {
        axis_of(axis, rank + 1).filter(|_| axis >= 0)
    };
    let Some(axis) = axis else {
        return Err("Expected axis to be -1 or between [0, rank of indices]".into());
    };
    for (name, value) in [("on_value", &on), ("off_value", &off)] {
        if value.shape().rank() != 0 {
            return Err(format!("{name} must be a scalar, but got: {}", value.shape()).into());
        }
    }
    let Ok(depth) = u64::try_from(depth) else {
        return Err(format!("depth must be non-negative, got: {depth}").into());
    };
    let mut dims: Vec<u64> = indices.shape().dims().collect();
    let inner = count_of(&dims[axis..]);
    dims.insert(axis, depth);
    let shape = Shape::new(&dims)?;
    // What is none of the classes is beyond all of them.
    let classes = call.places(&indices, |_, index| {
        Ok(u64::try_from(index).unwrap_or(depth))
    })?;
    let how = OneHot {
        on: classes.as_slice()?,
        depth: depth as usize,
        inner,
    };
    let hot = arranged(call, &[&on, &off], shape, &how)?;
    call.push(hot);
    Ok(())
}

/// On where an index says, off elsewhere.
struct OneHot<'a> {
    /// For each index, the class that is on; `depth` or more if it is none of them.
    on: &'a [u64],
    depth: usize,
    /// Indices that lie behind the new dimension.
    inner: usize,
}

impl Arrange for OneHot<'_> {
    fn arrange<E: Copy>(&self, inputs: &[&[E]], _: E, out: &mut [E]) -> Done {
        let (Some([on]), Some([off])) = (inputs.first(), inputs.get(1)) else {
            return Err("on_value and off_value must be scalars".into());
        };
        out.fill(*off);
        let blocks = out.chunks_exact_mut(self.depth.saturating_mul(self.inner).max(1));
        for (block, classes) in blocks.zip(self.on.chunks_exact(self.inner.max(1))) {
            for (column, &class) in classes.iter().enumerate() {
                let class = usize::try_from(class).ok();
                let place = class.and_then(|class| class.checked_mul(self.inner));
                // Behind the last class nothing lies in the block.
                if let Some(place) = place.and_then(|place| block.get_mut(place..)?.get_mut(column))
                {
                    *place = *on;
                }
            }
        }
        Ok(())
    }
}
