//! Comparisons, logic, and choices.
//!
//! Knows truth values as bytes that are zero or not.

use super::row::{Row, row};
use crate::graph::gradients::{Back, none};
use crate::graph::infer::{
    Infer, Inferred, Known, broadcast as broadcast_shape, merged, merged_size, same,
};
use crate::graph::{Node, Output, PartialShape, attr};
use crate::kernel::Call;
use crate::kernel::arrange::{Arrange, arranged};
use crate::kernel::broadcast::{Walk, broadcast};
use crate::kernel::call::{Done, elements, elements_mut};
use crate::kernel::elementwise::{broadcast_cost, comparisons, mapped, truths};
use crate::kernel::make::{Cost, Made, dtype, made, typed};
use crate::kernel::numbers::truth;
use rendez::ground::{DType, Shape, Status};
use rendez::memory::{Bool8, Tensor};

/// Picoseconds for each byte.
const EACH: usize = 300;

const REAL: &str = "T: real";
const EQUALITY: &str = "T: type; incompatible_shape_error: bool = true";
const BOTH: &str = "x: bool, y: bool -> z: bool";
const CHOICE: &str = "condition: bool, t: T, e: T -> output: T";

pub(super) const ROWS: &[Row] = &[
    comparison("Equal", EQUALITY, equality_shape).kernel(|node| equal(node, true)),
    comparison("NotEqual", EQUALITY, equality_shape).kernel(|node| equal(node, false)),
    comparison("Less", REAL, broadcast_shape)
        .kernel(|node| typed!(node, T: numbers => comparisons::<T>(EACH, |x, y| x < y))),
    comparison("LessEqual", REAL, broadcast_shape)
        .kernel(|node| typed!(node, T: numbers => comparisons::<T>(EACH, |x, y| x <= y))),
    comparison("Greater", REAL, broadcast_shape)
        .kernel(|node| typed!(node, T: numbers => comparisons::<T>(EACH, |x, y| x > y))),
    comparison("GreaterEqual", REAL, broadcast_shape)
        .kernel(|node| typed!(node, T: numbers => comparisons::<T>(EACH, |x, y| x >= y))),
    row("LogicalAnd", BOTH, "", broadcast_shape).kernel(|_| truths(EACH, |x, y| x && y)),
    row("LogicalOr", BOTH, "", broadcast_shape).kernel(|_| truths(EACH, |x, y| x || y)),
    row("LogicalNot", "x: bool -> y: bool", "", same).kernel(|_| made(Cost::PerByte(EACH), not)),
    row("Select", CHOICE, "T: type", select_shape)
        .gradient(|at| {
            let [yes, no] = chosen(at, "Select")?;
            Ok(vec![None, Some(yes), Some(no)])
        })
        .kernel(|_| made(Cost::PerByte(EACH), |call| select(call, true))),
    row("SelectV2", CHOICE, "T: type", broadcast_shape)
        .gradient(|at| {
            let mut flows = vec![None];
            for (index, grad) in (1..).zip(chosen(at, "SelectV2")?) {
                let (operand, result) = (at.input(index)?, at.output(0));
                flows.push(
                    at.unbroadcast([operand, result], [Some(grad), None])?
                        .swap_remove(0),
                );
            }
            Ok(flows)
        })
        .kernel(|_| made(broadcast_cost(EACH), |call| select(call, false))),
];

/// A comparison of two values.
const fn comparison(name: &'static str, attrs: &'static str, shape: Infer) -> Row {
    row(name, "x: T, y: T -> z: bool", attrs, shape).gradient(none)
}

/// As for other comparisons; but where shapes that do not fit are no error, they make one element, so nothing is known
/// unless they fit.
fn equality_shape(known: Known<'_>) -> Inferred {
    let is_error = attr::bool(known.attrs, "incompatible_shape_error").unwrap_or(true);
    let together = broadcast_shape(known);
    if is_error || (together.is_ok() && fits(&known.shape(0), &known.shape(1))) {
        return together;
    }
    Ok(vec![PartialShape::UNKNOWN])
}

/// False if a size meets another that is not known. As in the original, two unknown ones are taken to fit.
fn fits(left: &PartialShape, right: &PartialShape) -> bool {
    let (left, right) = (left.dims().unwrap_or(&[]), right.dims().unwrap_or(&[]));
    let mut pairs = left.iter().rev().zip(right.iter().rev());
    pairs.all(|pair| !matches!(pair, (Some(size), None) | (None, Some(size)) if *size != 1))
}

/// The gradient of each choice: the result's where it was taken, and zeros elsewhere.
fn chosen(at: &mut Back<'_>, op: &str) -> Result<[Output; 2], Status> {
    let (g, condition) = (at.grad(0)?, at.input(0)?);
    let zeros = at.op("ZerosLike", &[g])?;
    let yes = at.op(op, &[condition, g, zeros])?;
    let no = at.op(op, &[condition, zeros, g])?;
    Ok([yes, no])
}

/// Both choices have one shape; the condition has it too, or is one element, or a row as long as they are.
fn select_shape(known: Known<'_>) -> Inferred {
    let chosen = merged(&known.shape(1), &known.shape(2))?;
    let condition = known.shape(0);
    match condition.rank() {
        None | Some(0) => {}
        Some(1) => {
            if chosen.rank().is_some_and(|rank| rank > 0) {
                merged_size(condition.dim(0), chosen.dim(0))?;
            }
        }
        Some(_) => return Ok(vec![merged(&condition, &chosen)?]),
    }
    Ok(vec![chosen])
}

/// Equality, which every type has. Shapes that do not fit are an error, or, if that was asked for, unequal.
fn equal(node: &Node, is_equal: bool) -> Made {
    let is_error = attr::bool(&node.attrs, "incompatible_shape_error").unwrap_or(true);
    let Some(dtype) = dtype(node, "T") else {
        return Ok(None);
    };
    let kernel = match dtype {
        DType::Bool => truths(EACH, move |x, y| (x == y) == is_equal),
        DType::String => made(broadcast_cost(EACH), move |call| {
            equal_strings(call, is_equal)
        }),
        _ => typed!(node, T: numbers => {
            comparisons::<T>(EACH, move |x, y| (x == y) == is_equal)
        }),
    };
    if is_error {
        return kernel;
    }
    Ok(kernel?.map(|simple| {
        simple.unless(move |call| {
            let shapes = (call.tensor(0)?.shape(), call.tensor(1)?.shape());
            if broadcast(shapes.0, shapes.1).is_ok() {
                return Ok(false);
            }
            call.push(Tensor::scalar(truth(!is_equal)));
            Ok(true)
        })
    }))
}

fn not(call: &mut Call<'_>) -> Done {
    mapped(call, DType::Bool, &mut |input, room| {
        let each = elements_mut::<Bool8>(room)?
            .iter_mut()
            .zip(elements::<Bool8>(input)?);
        each.for_each(|(out, x)| *out = truth(!x.is_true()));
        Ok(())
    })
}

fn equal_strings(call: &mut Call<'_>, is_equal: bool) -> Done {
    let (left, right) = (call.tensor(0)?, call.tensor(1)?);
    let shape = broadcast(left.shape(), right.shape())?;
    let lefts: Vec<_> = left.strings()?.iter().collect();
    let rights: Vec<_> = right.strings()?.iter().collect();
    let walk = Walk::broadcast(shape, [left.shape(), right.shape()]);
    call.output::<Bool8>(shape, |out| {
        walk.zip(
            [&lefts, &rights],
            out,
            usize::MAX,
            &mut |[left, right], out| {
                for ((out, left), right) in out.iter_mut().zip(left).zip(right) {
                    *out = truth((left == right) == is_equal);
                }
            },
        );
    })
}

/// One of two, as a condition says.
struct Choice<'a> {
    condition: &'a [Bool8],
    walk: Walk<3>,
}

impl Arrange for Choice<'_> {
    fn arrange<E: Copy>(&self, inputs: &[&[E]], _: E, out: &mut [E]) -> Done {
        let [yes, no] = inputs else {
            return Err("a choice has two sides".into());
        };
        let mut rows = out.chunks_exact_mut(self.walk.row.max(1));
        let [condition_step, yes_step, no_step] = self.walk.step;
        let mut is_whole = true;
        self.walk.rows(|[mut condition_at, mut yes_at, mut no_at]| {
            for out in rows.next().unwrap_or_default() {
                let choice = match self.condition.get(condition_at) {
                    Some(condition) if condition.is_true() => yes.get(yes_at),
                    Some(_) => no.get(no_at),
                    None => None,
                };
                match choice {
                    Some(choice) => *out = *choice,
                    None => is_whole = false,
                }
                condition_at += condition_step;
                yes_at += yes_step;
                no_at += no_step;
            }
        });
        if is_whole {
            Ok(())
        } else {
            Err("an element outside of the inputs is wanted".into())
        }
    }
}

fn select(call: &mut Call<'_>, is_first: bool) -> Done {
    let (condition, yes, no) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let mut seen = condition.shape();
    let shape = if is_first {
        // The older form does not broadcast, but takes a scalar, or a row that chooses whole lines.
        if yes.shape() != no.shape() {
            return Err(format!(
                "'then' and 'else' must have the same size.  but received: {} vs. {}",
                yes.shape(),
                no.shape()
            )
            .into());
        }
        if seen.rank() == 1 && yes.shape().rank() > 1 {
            if seen.dim(0) != yes.shape().dim(0) {
                return Err(format!(
                    "Number of batches of 'then' must match size of 'cond', but saw: {} vs. {}",
                    yes.shape().dim(0).unwrap_or(0),
                    seen.dim(0).unwrap_or(0)
                )
                .into());
            }
            let mut dims = vec![1; yes.shape().rank()];
            dims[0] = seen.elements();
            seen = Shape::new(&dims)?;
        } else if seen.rank() != 0 && seen != yes.shape() {
            return Err(format!(
                "'cond' must be a scalar, a vector as long as 'then', or have its shape: {seen} vs. {}",
                yes.shape()
            )
            .into());
        }
        yes.shape()
    } else {
        let wrong = |_| {
            format!(
                "condition {}, then {}, and else {} must be broadcastable",
                condition.shape(),
                yes.shape(),
                no.shape()
            )
        };
        broadcast(yes.shape(), no.shape())
            .and_then(|shape| broadcast(seen, shape))
            .map_err(wrong)?
    };
    let how = Choice {
        condition: condition.as_slice()?,
        walk: Walk::broadcast(shape, [seen, yes.shape(), no.shape()]),
    };
    let chosen = arranged(call, &[&yes, &no], shape, &how)?;
    call.push(chosen);
    Ok(())
}
