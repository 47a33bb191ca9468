//! Elements picked by index, and added up by it.
//!
//! Knows indices as claims: each is looked at before it is used.

use super::row::{Row, row};
use crate::graph::gradients::{Back, Flows};
use crate::graph::infer::{Inferred, Known, unknown};
use crate::graph::{Output, PartialShape, attr};
use crate::kernel::arrange::{Arrange, arranged, strides};
use crate::kernel::broadcast::{count, count_of};
use crate::kernel::call::{Done, Fault, axis_of, axis_within, elements, integers};
use crate::kernel::make::{Cost, made, product, typed};
use crate::kernel::numbers::Number;
use crate::kernel::{Call, Value};
use rendez::ground::{Shape, Status};
use rendez::memory::{Element, Tensor};
use rendez_proto::tensorflow::DataType;

/// Picoseconds for each byte.
const PICK: usize = 300;

pub(super) const ROWS: &[Row] = &[
    row(
        "Gather",
        "params: Tparams, indices: Tindices -> output: Tparams",
        "validate_indices: bool = true; Tparams: type; Tindices: index",
        |known| taken(&known.shape(0), &known.shape(1), Some(0)),
    )
    .gradient(|at| {
        let axis = at.int(0)?;
        let flow = gathered(at, axis)?;
        Ok(vec![Some(flow), None])
    })
    .kernel(|_| made(gather_cost(0), |call| gather(call, 0, 0))),
    row(
        "GatherV2",
        "params: Tparams, indices: Tindices, axis: Taxis -> output: Tparams",
        "batch_dims: int = 0; Tparams: type; Tindices: {int16, int32, int64}; Taxis: index",
        gather_v2_shape,
    )
    .gradient(gather_v2_gradient)
    .kernel(|node| {
        let batch = attr::int(&node.attrs, "batch_dims").unwrap_or(0);
        made(gather_cost(batch), move |call| {
            let axis = call.integer(2)?;
            gather(call, axis, batch)
        })
    }),
    row(
        "UnsortedSegmentSum",
        "data: T, segment_ids: Tindices, num_segments: Tnumsegments -> output: T",
        "T: num; Tindices: {int16, int32, int64}; Tnumsegments: index = int32",
        unknown,
    )
    .kernel(|node| typed!(node, T: numbers => made(segment_cost(), segment_sum::<T>))),
];

fn gather_v2_shape(known: Known<'_>) -> Inferred {
    let (params, indices) = (known.shape(0), known.shape(1));
    if attr::int(known.attrs, "batch_dims").unwrap_or(0) != 0 {
        return Ok(vec![PartialShape::UNKNOWN]);
    }
    let axis = match params.rank() {
        Some(rank) => known.axis(2, rank)?,
        None => None,
    };
    taken(&params, &indices, axis)
}

/// `params` with `indices` in the place of dimension `axis`.
fn taken(params: &PartialShape, indices: &PartialShape, axis: Option<usize>) -> Inferred {
    let (Some(outer), Some(inner)) = (params.dims(), indices.dims()) else {
        return Ok(vec![PartialShape::UNKNOWN]);
    };
    if outer.is_empty() {
        return Err("Shape must be at least rank 1 but is rank 0".to_owned());
    }
    let rank = outer.len() - 1 + inner.len();
    let Some(axis) = axis else {
        return Ok(vec![PartialShape::of_rank(rank)]);
    };
    let dims = [&outer[..axis], inner, &outer[axis + 1..]].concat();
    Ok(vec![PartialShape::of(dims)])
}

fn gather_v2_gradient(at: &mut Back<'_>) -> Flows {
    if attr::int(at.attrs(), "batch_dims").unwrap_or(0) != 0 {
        return Err(at.refuse("has one only without batch_dims"));
    }
    let axis = at.input(2)?;
    let axis = at.cast(axis, DataType::DtInt32)?;
    let flow = gathered(at, axis)?;
    Ok(vec![Some(flow), None, None])
}

/// What was gathered, added up where it came from: the gradient as outer × picks × inner, turned so that the picks come
/// first, summed by their indices, and turned back.
fn gathered(at: &mut Back<'_>, axis: Output) -> Result<Output, Status> {
    let (g, params, indices) = (at.grad(0)?, at.input(0)?, at.input(1)?);
    let shape = at.shape(params)?;
    let rank = at.op("Rank", &[params])?;
    let axis = at.op("FloorMod", &[axis, rank])?;
    let row = at.ints(&[1], &[-1])?;
    let unit = at.ints(&[1], &[1])?;
    let start = at.ints(&[1], &[0])?;
    let at_axis = at.op("Reshape", &[axis, row])?;
    let after = at.op("AddV2", &[at_axis, unit])?;
    let before = at.op("Slice", &[shape, start, at_axis])?;
    let behind = at.op("Slice", &[shape, after, row])?;
    let along = at.op("Slice", &[shape, at_axis, unit])?;
    let mut product = |of| {
        let of = at.cast(of, DataType::DtInt64)?;
        at.op_with("Prod", &[of, start], |node| node.attr("keep_dims", true))
    };
    let (outer, inner) = (product(before)?, product(behind)?);
    let picks = at.size(indices)?;
    let picks = at.op("Reshape", &[picks, row])?;
    let zero = at.int(0)?;
    let folded = at.op("ConcatV2", &[outer, picks, inner, zero])?;
    let g = at.op("Reshape", &[g, folded])?;
    let turn = at.ints(&[3], &[1, 0, 2])?;
    let g = at.op("Transpose", &[g, turn])?;
    let flat = at.op("Reshape", &[indices, row])?;
    let scalar = at.ints(&[0], &[])?;
    let segments = at.op("Reshape", &[along, scalar])?;
    let sums = at.op("UnsortedSegmentSum", &[g, flat, segments])?;
    let sums = at.op("Transpose", &[sums, turn])?;
    at.op("Reshape", &[sums, shape])
}

/// The cost of what is written: a slice for each index, however often it is the same one.
fn gather_cost(batch: i64) -> Cost {
    Cost::Picoseconds(Box::new(move |inputs| {
        let own: usize = inputs.iter().map(Value::bytes).sum();
        let written = gathered_bytes(inputs, batch).unwrap_or(0);
        own.max(written).saturating_mul(PICK)
    }))
}

/// Bytes of what is gathered; `None` where the kernel refuses it.
fn gathered_bytes(inputs: &[Value], batch: i64) -> Option<usize> {
    let (params, indices) = (
        inputs.first()?.tensor().ok()?,
        inputs.get(1)?.tensor().ok()?,
    );
    let axis = match inputs.get(2) {
        Some(axis) => {
            let axis = axis.tensor().ok()?;
            if axis.shape().elements() != 1 {
                return None;
            }
            *integers(&axis).ok()?.first()?
        }
        None => 0,
    };
    let (shape, picked) = (params.shape(), indices.shape());
    let batch = usize::try_from(batch).or_else(|_| {
        let from_end = batch.saturating_add(picked.rank() as i64);
        usize::try_from(from_end)
    });
    let size = shape.dim(axis_of(axis, shape.rank())?)? as usize;
    // Each batch has indices of its own for its part of the slices.
    let batches = picked.dims().take(batch.ok()?);
    let batches = count(batches.map(|dim| dim as usize));
    let slices = params.size() / size.max(1) / batches.max(1);
    Some(slices.saturating_mul(picked.elements() as usize))
}

fn gather(call: &mut Call<'_>, axis: i64, batch: i64) -> Done {
    let (params, indices) = (call.tensor(0)?, call.tensor(1)?);
    let (shape, picked) = (params.shape(), indices.shape());
    let axis = axis_within(axis, shape.rank(), "Expected axis")?;
    let batch_at = if batch < 0 {
        batch.saturating_add(picked.rank() as i64)
    } else {
        batch
    };
    let batch = usize::try_from(batch_at)
        .ok()
        .filter(|&batch| batch <= axis && batch <= picked.rank());
    let Some(batch) = batch else {
        return Err(format!(
            "batch_dims must be at most axis {axis} and the rank of indices {}",
            picked.rank()
        )
        .into());
    };
    let (own, index_dims): (Vec<_>, Vec<_>) = (shape.dims().collect(), picked.dims().collect());
    if own[..batch] != index_dims[..batch] {
        return Err(format!(
            "params{shape} and indices{picked} differ in their first {batch} dimensions"
        )
        .into());
    }
    let size = own[axis];
    let places = call.places(&indices, |at, index| {
        let place = u64::try_from(index).ok().filter(|&index| index < size);
        place.ok_or_else(|| {
            let at = position(picked, at);
            format!("indices{at} = {index} is not in [0, {size})").into()
        })
    })?;
    let dims = [&own[..axis], &index_dims[batch..], &own[axis + 1..]].concat();
    let how = Picks {
        indices: places.as_slice()?,
        per_batch: count_of(&index_dims[batch..]),
        outer: count_of(&own[batch..axis]),
        size: size as usize,
        inner: count_of(&own[axis + 1..]),
    };
    let picked = arranged(call, &[&params], Shape::new(&dims)?, &how)?;
    call.push(picked);
    Ok(())
}

/// Slices picked by index, for each batch, and for each element before the dimension they are picked from.
struct Picks<'a> {
    /// For each batch and each of its indices, which slice.
    indices: &'a [u64],
    per_batch: usize,
    /// Elements between batches and the dimension.
    outer: usize,
    /// The dimension's size.
    size: usize,
    /// Elements of a slice.
    inner: usize,
}

impl Arrange for Picks<'_> {
    fn arrange<E: Copy>(&self, inputs: &[&[E]], _: E, out: &mut [E]) -> Done {
        if out.is_empty() {
            return Ok(());
        }
        let params = inputs.first().copied().unwrap_or_default();
        let mut slices = out.chunks_exact_mut(self.inner.max(1));
        for (batch, indices) in self.indices.chunks_exact(self.per_batch.max(1)).enumerate() {
            for outer in 0..self.outer {
                let start = (batch * self.outer + outer) * self.size;
                for &index in indices {
                    let at = (start + index as usize) * self.inner;
                    let (Some(out), Some(slice)) = (slices.next(), params.get(at..at + self.inner))
                    else {
                        return Ok(());
                    };
                    out.copy_from_slice(slice);
                }
            }
        }
        Ok(())
    }
}

/// Where element `at` of a shape stands, as `[1,2]`.
fn position(shape: Shape, mut at: usize) -> String {
    let mut places = vec![];
    for stride in strides(shape) {
        places.push((at / stride.max(1)).to_string());
        at %= stride.max(1);
    }
    format!("[{}]", places.join(","))
}

/// Slices added up by where their index says; a negative index drops its slice.
fn segment_cost() -> Cost {
    Cost::Picoseconds(Box::new(|inputs| {
        let [data, ids, _] = inputs else {
            return 0;
        };
        let (Ok(data), Ok(ids)) = (data.tensor(), ids.tensor()) else {
            return 0;
        };
        let (shape, by) = (data.shape(), ids.shape());
        let inner = shape.dims().skip(by.rank());
        let inner = count(inner.map(|dim| dim as usize));
        let written = product(inputs, 2).saturating_mul(inner);
        let written = written.saturating_mul(data.dtype().size().unwrap_or(1));
        let bytes = written.saturating_add(data.size() + ids.size());
        bytes.saturating_mul(PICK)
    }))
}

fn segment_sum<T: Number>(call: &mut Call<'_>) -> Done {
    let Segments {
        data,
        places,
        inner,
        shape,
    } = segments(call)?;
    let (places, slices) = (elements::<u64>(&places)?, elements::<T>(&data)?);
    // Halves are added up in more bits, as Sum does: in their own a sum of many stands still.
    let sums = call.written::<T::Wide>(shape, |out| {
        out.fill(T::Wide::default());
        for (&place, slice) in places.iter().zip(slices.chunks_exact(inner.max(1))) {
            let place = out.get_mut(place as usize * inner..).unwrap_or_default();
            for (sum, &element) in place.iter_mut().zip(slice) {
                *sum = sum.plus(element.wide());
            }
        }
        Ok(())
    })?;
    if T::DTYPE == T::Wide::DTYPE {
        call.push(sums);
        return Ok(());
    }
    let sums = elements::<T::Wide>(&sums)?;
    call.output::<T>(shape, |out| {
        for (out, &sum) in out.iter_mut().zip(sums) {
            *out = T::narrow(sum);
        }
    })
}

/// Slices, and the segment that each is added to.
struct Segments {
    data: Tensor,
    /// Beyond all segments for a slice that goes nowhere.
    places: Tensor,
    /// Elements of a slice.
    inner: usize,
    /// The output's.
    shape: Shape,
}

fn segments(call: &Call<'_>) -> Result<Segments, Fault> {
    let (data, ids) = (call.tensor(0)?, call.tensor(1)?);
    let count = call.integer(2)?;
    let Ok(count) = u64::try_from(count) else {
        return Err(format!("Input num_segments == {count} must not be negative.").into());
    };
    let (shape, by) = (data.shape(), ids.shape());
    let dims: Vec<_> = shape.dims().collect();
    if by.rank() > dims.len() || by.dims().zip(&dims).any(|(id, &dim)| id != dim) {
        return Err(
            format!("data.shape = {shape} does not start with segment_ids.shape = {by}").into(),
        );
    }
    let rest = &dims[by.rank()..];
    let places = call.places(&ids, |at, id| match u64::try_from(id) {
        Ok(id) if id >= count => {
            let at = position(by, at);
            Err(format!("segment_ids{at} = {id} is out of range [0, {count})").into())
        }
        id => Ok(id.unwrap_or(count)),
    })?;
    Ok(Segments {
        data,
        places,
        inner: count_of(rest),
        shape: Shape::new(&[&[count], rest].concat())?,
    })
}
