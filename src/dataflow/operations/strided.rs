//! Slices with strides, masks, new and vanishing dimensions, and what flows back through them.
//!
//! The rules are those of the original's `ValidateStridedSliceOp`: masks are bits, one for each entry of the
//! specification; a stride may be negative; bounds that lie outside are moved in.

use super::row::{Row, row};
use crate::graph::gradients::{Back, Flows};
use crate::graph::infer::unknown;
use crate::graph::{Node, attr};
use crate::kernel::arrange::{Arrange, Strided, arranged, strides};
use crate::kernel::broadcast::Walk;
use crate::kernel::call::{Done, Fault, shape_of};
use crate::kernel::make::{Cost, Made, made, product};
use crate::kernel::{Call, Value};
use rendez::ground::Shape;
use rendez::ground::shape::RANK_MAX;
use rendez_proto::tensorflow::DataType;

/// Picoseconds for each byte that moves.
const MOVE: usize = 200;

const SPECIFICATION: &str = "T: type; Index: {int16, int32, int64}; begin_mask: int = 0; end_mask: int = 0; \
                             ellipsis_mask: int = 0; new_axis_mask: int = 0; shrink_axis_mask: int = 0";
const MASKS: [&str; 5] = [
    "begin_mask",
    "end_mask",
    "ellipsis_mask",
    "new_axis_mask",
    "shrink_axis_mask",
];

pub(super) const ROWS: &[Row] = &[
    row(
        "StridedSlice",
        "input: T, begin: Index, end: Index, strides: Index -> output: T",
        SPECIFICATION,
        unknown,
    )
    .gradient(strided_slice_gradient)
    .kernel(strided_slice),
    row(
        "StridedSliceGrad",
        "shape: Index, begin: Index, end: Index, strides: Index, dy: T -> output: T",
        SPECIFICATION,
        unknown,
    )
    .kernel(strided_slice_grad),
];

fn strided_slice_gradient(at: &mut Back<'_>) -> Flows {
    let (g, x) = (at.grad(0)?, at.input(0)?);
    // A dimension may be longer than the bounds' type counts, and what is sliced of it need not.
    let mut wide = |input| at.cast(at.input(input)?, DataType::DtInt64);
    let [begin, end, strides] = [wide(1)?, wide(2)?, wide(3)?];
    let shape = at.shape(x)?;
    let masks = MASKS.map(|name| (name, attr::int(at.attrs(), name).unwrap_or(0)));
    let flow = at.op_with(
        "StridedSliceGrad",
        &[shape, begin, end, strides, g],
        |node| {
            masks
                .into_iter()
                .fold(node, |node, (name, mask)| node.attr(name, mask))
        },
    )?;
    Ok(vec![Some(flow), None, None, None])
}

fn strided_slice(node: &Node) -> Made {
    let masks = Masks::of(node);
    made(Cost::PerByte(MOVE), move |call| {
        let input = call.tensor(0)?;
        let Piece { base, walk, shape } = piece(call, input.shape(), masks)?;
        let sliced = arranged(call, &[&input], shape, &Strided { base, walk })?;
        call.push(sliced);
        Ok(())
    })
}

fn strided_slice_grad(node: &Node) -> Made {
    let masks = Masks::of(node);
    let cost = Cost::Picoseconds(Box::new(|inputs| {
        let Some(Ok(gradient)) = inputs.get(4).map(Value::tensor) else {
            return 0;
        };
        let size = gradient.dtype().size().unwrap_or(1);
        let written = product(inputs, 0).saturating_mul(size);
        written.saturating_mul(4 * MOVE)
    }));
    made(cost, move |call| {
        let whole = shape_of(&call.dims(0)?)?;
        let gradient = call.tensor(4)?;
        let Piece { base, walk, shape } = piece(call, whole, masks)?;
        if gradient.shape() != shape {
            return Err(format!("shape of dy was {} instead of {shape}", gradient.shape()).into());
        }
        let spread = arranged(call, &[&gradient], whole, &Into { base, walk })?;
        call.push(spread);
        Ok(())
    })
}

/// What an entry of the specification does, as bits.
#[derive(Clone, Copy)]
struct Masks {
    begin: i64,
    end: i64,
    ellipsis: i64,
    new_axis: i64,
    shrink: i64,
}

impl Masks {
    fn of(node: &Node) -> Self {
        let [begin, end, ellipsis, new_axis, shrink] =
            MASKS.map(|name| attr::int(&node.attrs, name).unwrap_or(0));
        Self {
            begin,
            end,
            ellipsis,
            new_axis,
            shrink,
        }
    }
}

/// Every element goes to where a walk leads; what none goes to is zero.
struct Into {
    base: usize,
    walk: Walk<1>,
}

impl Arrange for Into {
    fn arrange<E: Copy>(&self, inputs: &[&[E]], zero: E, out: &mut [E]) -> Done {
        out.fill(zero);
        let mut elements = inputs.first().copied().unwrap_or_default().iter();
        let [step] = self.walk.step;
        self.walk.rows(|[place]| {
            let mut at = self.base.wrapping_add(place);
            for element in elements.by_ref().take(self.walk.row) {
                if let Some(out) = out.get_mut(at) {
                    *out = *element;
                }
                at = at.wrapping_add(step);
            }
        });
        Ok(())
    }
}

/// What a slice takes: where it begins, how it goes on, and the shape it has.
struct Piece {
    base: usize,
    walk: Walk<1>,
    shape: Shape,
}

/// The slice of `whole` that inputs 1 to 3 and the masks say.
fn piece(call: &Call<'_>, whole: Shape, masks: Masks) -> Result<Piece, Fault> {
    let (begin, end, step) = (call.dims(1)?, call.dims(2)?, call.dims(3)?);
    if begin.len() != end.len() || begin.len() != step.len() {
        return Err(format!(
            "Expected begin, end, and strides to be 1D equal size tensors, but got shapes [{}], [{}], and [{}] \
             instead.",
            begin.len(),
            end.len(),
            step.len()
        )
        .into());
    }
    let is = |mask: i64, entry: usize| mask >> entry & 1 != 0;
    let entries = begin.len();
    let ellipses: Vec<_> = (0..entries)
        .filter(|&entry| is(masks.ellipsis, entry))
        .collect();
    if ellipses.len() > 1 {
        return Err("Multiple ellipses in slice spec not allowed".into());
    }
    let ellipsis = ellipses.first().copied();
    let takes = |&entry: &usize| Some(entry) != ellipsis && !is(masks.new_axis, entry);
    let taken = (0..entries).filter(takes).count();
    let Some(spanned) = whole.rank().checked_sub(taken) else {
        return Err(format!(
            "Index out of range using input dim {}; input has only {} dims",
            whole.rank(),
            whole.rank()
        )
        .into());
    };
    let own = strides(whole);
    let mut base = 0usize;
    let mut walked: Vec<(usize, [usize; 1])> = vec![];
    let mut dims: Vec<u64> = vec![];
    let mut at = 0;
    let pass = |at: &mut usize,
                dims: &mut Vec<u64>,
                walked: &mut Vec<(usize, [usize; 1])>,
                count: usize| {
        for _ in 0..count {
            let size = whole.dim(*at).unwrap_or(0);
            dims.push(size);
            walked.push((size as usize, [own.get(*at).copied().unwrap_or(0)]));
            *at += 1;
        }
    };
    for entry in 0..entries {
        if Some(entry) == ellipsis {
            pass(&mut at, &mut dims, &mut walked, spanned);
            continue;
        }
        if is(masks.new_axis, entry) {
            dims.push(1);
            continue;
        }
        let (size, stride) = (
            whole.dim(at).unwrap_or(0).cast_signed(),
            own.get(at).copied().unwrap_or(0),
        );
        let (first, count) = if is(masks.shrink, entry) {
            let index = begin[entry];
            let place = if index < 0 {
                index.saturating_add(size)
            } else {
                index
            };
            if step[entry] <= 0 {
                return Err(
                    format!("only stride 1 allowed on non-range indexing: entry {entry}").into(),
                );
            }
            if !(0..size).contains(&place) {
                return Err(format!("slice index {index} of dimension {at} out of bounds.").into());
            }
            (place, None)
        } else {
            let bounds = [
                (!is(masks.begin, entry)).then_some(begin[entry]),
                (!is(masks.end, entry)).then_some(end[entry]),
            ];
            let (first, count) = range(bounds, step[entry], size)
                .ok_or_else(|| format!("strides[{entry}] must be non-zero"))?;
            (first, Some(count))
        };
        base = base.wrapping_add((first as usize).wrapping_mul(stride));
        if let Some(count) = count {
            dims.push(count as u64);
            walked.push((count as usize, [stride.wrapping_mul(step[entry] as usize)]));
        }
        at += 1;
    }
    if ellipsis.is_none() {
        pass(&mut at, &mut dims, &mut walked, spanned);
    }
    if dims.len() > RANK_MAX {
        return Err(rendez::ground::shape::ShapeError::Rank(dims.len()).into());
    }
    Ok(Piece {
        base,
        walk: Walk::over(walked.into_iter()),
        shape: Shape::new(&dims)?,
    })
}

/// Where a range within `size` begins, and how many it takes; `None` for a step of zero. A bound that is missing is the
/// end of the dimension that the step comes from, or goes to.
fn range(bounds: [Option<i64>; 2], step: i64, size: i64) -> Option<(i64, i64)> {
    if step == 0 {
        return None;
    }
    let (lowest, highest) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let place = |bound: i64| {
        let bound = if bound < 0 {
            bound.saturating_add(size)
        } else {
            bound
        };
        bound.clamp(lowest, highest)
    };
    let (from, to) = if step > 0 {
        (lowest, highest)
    } else {
        (highest, lowest)
    };
    let first = bounds[0].map_or(from, place);
    let end = bounds[1].map_or(to, place);
    let distance = if step > 0 { end - first } else { first - end };
    if distance <= 0 {
        return Some((0, 0));
    }
    let count = distance.unsigned_abs().div_ceil(step.unsigned_abs());
    Some((first, count.cast_signed()))
}
