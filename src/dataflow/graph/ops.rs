//! Operations: those that have a kernel here, with their signatures and shapes.
//!
//! Knows no kernels. The table lists what TensorFlow's definitions say of each (its `REGISTER_OP` lines, version 2.21);
//! an operation that is not in it is refused by name when a graph is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::infer::{self, Infer, Inferred, Known};
use super::signature::Signature;
use rendez::ground::{Status, catalogue};

mod arrange;
mod compute;
mod definition;
#[cfg(test)]
mod tests;

pub use definition::Definition;
use definition::ShapeRule;

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
    rule: Rule,
}

/// What tells the shapes of a node's outputs.
#[derive(Clone, Debug)]
enum Rule {
    Standard(Infer),
    Own(ShapeRule),
}

/// The operations that there are. Cheap enough to clone for each graph.
#[derive(Clone, Debug)]
pub struct Ops(BTreeMap<&'static str, Arc<Op>>);

impl Ops {
    /// Those with a kernel here.
    #[must_use]
    pub fn standard() -> Self {
        let ops = table().filter_map(|row| {
            let op = Op {
                signature: Signature::parse(row.name, row.flow, row.attrs)?,
                is_stateful: row.is_stateful,
                role: role(row.name),
                rule: Rule::Standard(row.infer),
            };
            Some((row.name, Arc::new(op)))
        });
        Self(ops.collect())
    }

    /// Adds an operation. Nodes of it need a kernel at every task that runs
    /// them.
    ///
    /// # Errors
    /// `OP_EXISTS` if there is an operation of that name; `OP_MALFORMED` says what is wrong with the definition.
    pub fn register(&mut self, definition: Definition) -> Result<(), Status> {
        let op = definition.op()?;
        if self.0.contains_key(op.name()) {
            let message = format!("an operation '{}' is registered already", op.name());
            return Err(Status::of(catalogue::OP_EXISTS, message));
        }
        self.0.insert(op.name(), Arc::new(op));
        Ok(())
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

    /// What is known of the shapes of a node's outputs.
    pub(super) fn infer(&self, known: Known<'_>) -> Inferred {
        match &self.rule {
            Rule::Standard(infer) => infer(known),
            Rule::Own(rule) => rule.infer(known),
        }
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

/// The reference page of the standard operations, `OPERATIONS.md` beside this file's folder, in Markdown.
#[must_use]
pub fn operations_page() -> String {
    let mut rows: Vec<&Row> = table().filter(|row| !row.name.starts_with('_')).collect();
    rows.sort_unstable_by_key(|row| row.name);
    let mut page = format!(
        "The {} operations that graphs may have: each has a kernel here, with TensorFlow's name, inputs, outputs and\n\
         attributes (version 2.21). Operations of your own are registered with\n\
         [`Operations`](crate::operations::Operations).\n\n\
         How to read a row: `x: T` is an input or output `x` of the type that attribute `T` names, `N * T` means\n\
         `N` of them, `Ref(T)` is a variable itself, `@` marks what lies in host memory. `num`, `real`, `fp`,\n\
         `smooth`, `index` and `{{float, string}}` are sets of allowed types; `= …` is the value of an attribute that\n\
         a node leaves out.\n\n\
         | operation | inputs -> outputs | attributes | stateful |\n|---|---|---|---|\n",
        rows.len()
    );
    for Row {
        name,
        flow,
        attrs,
        is_stateful,
        ..
    } in rows
    {
        let attrs = if attrs.is_empty() {
            String::new()
        } else {
            format!("`{attrs}`")
        };
        let stateful = if *is_stateful { "yes" } else { "" };
        page += &format!("| `{name}` | `{flow}` | {attrs} | {stateful} |\n");
    }
    page
}

/// The rows of the table.
fn table() -> impl Iterator<Item = &'static Row> {
    compute::COMPUTE.iter().chain(arrange::ARRANGE)
}

/// How many rows the table has.
#[cfg(test)]
pub(super) fn rows() -> usize {
    table().count()
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
