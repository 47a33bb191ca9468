//! Operations: those that have a kernel here, with their signatures and shapes.
//!
//! Knows no kernels. The table lists what TensorFlow's definitions say of each (its `REGISTER_OP` lines, version 2.21);
//! an operation that is not in it is refused by name when a graph is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::infer::{self, Infer};
use super::signature::Signature;
use crate::ground::{Status, catalogue};

mod arrange;
mod compute;

/// What a node does to the flow of control, or of values between devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Role {
    /// Computes.
    Plain,
    /// Sends its input to one of two outputs; the other is dead.
    Switch,
    /// Takes the first of its inputs that is alive.
    Merge,
    /// Enters a loop's frame.
    Enter,
    /// Leaves it.
    Exit,
    /// Begins the next iteration.
    NextIteration,
    /// Says whether a loop goes on.
    LoopCond,
    /// Sends to another device.
    Send,
    /// Receives from another device.
    Recv,
    /// Runs whether what it waited for is dead or not.
    ControlTrigger,
}

/// An operation.
#[derive(Debug)]
pub struct Op {
    /// What it takes and gives.
    pub signature: Signature,
    /// True if it has state or effects: two of them are never one.
    pub is_stateful: bool,
    /// What it does to the flow.
    pub role: Role,
    pub(super) infer: Infer,
}

/// The operations that there are.
#[derive(Clone, Debug)]
pub struct Ops(BTreeMap<&'static str, Arc<Op>>);

impl Ops {
    /// Those with a kernel here.
    #[must_use]
    pub fn standard() -> Self {
        let ops = compute::COMPUTE
            .iter()
            .chain(arrange::ARRANGE)
            .filter_map(|row| {
                let op = Op {
                    signature: Signature::parse(row.name, row.flow, row.attrs)?,
                    is_stateful: row.is_stateful,
                    role: role(row.name),
                    infer: row.infer,
                };
                Some((row.name, Arc::new(op)))
            });
        Self(ops.collect())
    }

    /// The operation `name`.
    ///
    /// # Errors
    /// `GRAPH_OP_UNKNOWN`, with the original's text and the node that wants it.
    pub fn find(&self, name: &str, node: &str) -> Result<&Arc<Op>, Status> {
        self.0.get(name).ok_or_else(|| {
            let name = super::errors::shown(name);
            let message = format!(
                "Op type not registered '{name}', which node '{node}' wants: no kernel here has that name"
            );
            Status::of(catalogue::GRAPH_OP_UNKNOWN, message)
        })
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Op>> {
        self.0.values()
    }
}

impl Op {
    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.signature.op
    }

    /// True for those that only the cutting of a graph makes.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.name().starts_with('_')
    }
}

fn role(name: &str) -> Role {
    match name {
        "Switch" | "RefSwitch" => Role::Switch,
        "Merge" | "RefMerge" => Role::Merge,
        "Enter" | "RefEnter" => Role::Enter,
        "Exit" | "RefExit" => Role::Exit,
        "NextIteration" | "RefNextIteration" => Role::NextIteration,
        "LoopCond" => Role::LoopCond,
        "_Send" | "_HostSend" => Role::Send,
        "_Recv" | "_HostRecv" => Role::Recv,
        "ControlTrigger" => Role::ControlTrigger,
        _ => Role::Plain,
    }
}

/// Rows of the table.
#[cfg(test)]
pub(super) fn rows() -> usize {
    compute::COMPUTE.len() + arrange::ARRANGE.len()
}

/// A row of the table.
pub(super) struct Row {
    name: &'static str,
    flow: &'static str,
    attrs: &'static str,
    infer: Infer,
    is_stateful: bool,
}

const fn op(name: &'static str, flow: &'static str, attrs: &'static str, infer: Infer) -> Row {
    Row {
        name,
        flow,
        attrs,
        infer,
        is_stateful: false,
    }
}

const fn stateful(
    name: &'static str,
    flow: &'static str,
    attrs: &'static str,
    infer: Infer,
) -> Row {
    Row {
        name,
        flow,
        attrs,
        infer,
        is_stateful: true,
    }
}

/// An elementwise operation on two values.
const fn binary(name: &'static str, attrs: &'static str) -> Row {
    op(name, "x: T, y: T -> z: T", attrs, infer::broadcast)
}

/// A comparison of two values.
const fn compare(name: &'static str, attrs: &'static str) -> Row {
    op(name, "x: T, y: T -> z: bool", attrs, infer::broadcast)
}

/// An elementwise operation on one value.
const fn unary(name: &'static str, attrs: &'static str) -> Row {
    op(name, "x: T -> y: T", attrs, infer::same)
}

/// The gradient of an elementwise operation, from its result and the gradient of that.
const fn unary_grad(name: &'static str) -> Row {
    op(name, "y: T, dy: T -> z: T", "T: smooth", infer::all_same)
}

/// A reduction over some dimensions.
const fn reduce(name: &'static str, attrs: &'static str) -> Row {
    op(
        name,
        "input: T, reduction_indices: Tidx@ -> output: T",
        attrs,
        infer::reduce,
    )
}
