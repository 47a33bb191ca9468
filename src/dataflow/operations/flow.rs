//! The flow of control: choices between branches, and loops.
//!
//! No kernels: what these do to the flow is for the executor, which knows them by their [roles](Role).

use super::row::{Row, row};
use crate::graph::PartialShape;
use crate::graph::Role;
use crate::graph::infer::{Inferred, Known, merged, same};

const ANY: &str = "T: type";
const MERGED: &str = "T: type; N: int >= 1";
const FRAME: &str =
    "T: type; frame_name: string; is_constant: bool = false; parallel_iterations: int = 10";
const PASSED: &str = "data: T -> output: T";
const PASSED_REF: &str = "data: Ref(T) -> output: Ref(T)";

pub(super) const ROWS: &[Row] = &[
    row(
        "Switch",
        "data: T, pred: bool -> output_false: T, output_true: T",
        ANY,
        switch,
    )
    .role(Role::Switch),
    row(
        "RefSwitch",
        "data: Ref(T), pred: bool -> output_false: Ref(T), output_true: Ref(T)",
        ANY,
        switch,
    )
    .role(Role::Switch),
    row(
        "Merge",
        "inputs: N * T -> output: T, value_index: int32",
        MERGED,
        merge,
    )
    .role(Role::Merge),
    row(
        "RefMerge",
        "inputs: N * Ref(T) -> output: Ref(T), value_index: int32",
        MERGED,
        merge,
    )
    .role(Role::Merge),
    row("Enter", PASSED, FRAME, same).role(Role::Enter),
    row("RefEnter", PASSED_REF, FRAME, same).role(Role::Enter),
    row("Exit", PASSED, ANY, same).role(Role::Exit),
    row("RefExit", PASSED_REF, ANY, same).role(Role::Exit),
    row("NextIteration", PASSED, ANY, same).role(Role::NextIteration),
    row("RefNextIteration", PASSED_REF, ANY, same).role(Role::NextIteration),
    row("LoopCond", "input: bool -> output: bool", "", same).role(Role::LoopCond),
];

/// The data's, on both sides.
fn switch(known: Known<'_>) -> Inferred {
    merged(&known.shape(1), &PartialShape::scalar())?;
    same(known)
}

/// What is true of all inputs, and one index.
fn merge(known: Known<'_>) -> Inferred {
    let mut all = known.shape(0);
    for shape in known.shapes.iter().skip(1) {
        all = all.widen(shape);
    }
    Ok(vec![all, PartialShape::scalar()])
}
