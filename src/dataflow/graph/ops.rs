//! Operations: what is known of one, and the registry that graphs are read and made with.
//!
//! Knows no operation by name and no kernels: rows of [`operations`](crate::operations) and
//! [definitions](Definition) of one's own fill a registry. An operation that is not in it is refused by name when a
//! graph is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::gradients::{Back, Flows, Gradient};
use super::infer::{Infer, Inferred, Integers, Known};
use super::signature::Signature;
use rendez::ground::{Status, catalogue};

mod definition;

pub use definition::Definition;
use definition::{OwnGradient, OwnShapes};

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
    /// Waits to be fed.
    Placeholder,
    /// Is a variable, or its handle.
    Variable,
    /// Gives an argument of a part.
    Arg,
    /// Takes a result of a part.
    Retval,
    /// Waits, and does nothing.
    Idle,
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
    pub(crate) shapes: ShapeRule,
    /// Which integers a node gives whatever happens; `None` if that is never known.
    pub(crate) integers: Option<Integers>,
    /// How gradients flow back through it; `None` if they do not.
    pub(crate) gradient: Option<GradientRule>,
}

/// What tells the shapes of a node's outputs.
#[derive(Clone, Debug)]
pub(crate) enum ShapeRule {
    /// One of the library.
    Plain(Infer),
    /// One that the application registered.
    Own(OwnShapes),
}

/// What tells the gradients of a node's inputs.
#[derive(Clone, Debug)]
pub(crate) enum GradientRule {
    /// One of the library.
    Plain(Gradient),
    /// One that the application registered.
    Own(OwnGradient),
}

/// The operations that there are; none at first. Cheap enough to clone for each graph. Those of the library are in
/// [`Operations::standard`](crate::operations::Operations::standard).
#[derive(Clone, Debug, Default)]
pub struct Ops(BTreeMap<&'static str, Arc<Op>>);

impl Ops {
    /// A registry of these.
    pub(crate) fn of(ops: impl IntoIterator<Item = Op>) -> Self {
        Self(
            ops.into_iter()
                .map(|op| (op.name(), Arc::new(op)))
                .collect(),
        )
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
    pub(crate) fn infer(&self, known: Known<'_>) -> Inferred {
        match &self.shapes {
            ShapeRule::Plain(infer) => infer(known),
            ShapeRule::Own(rule) => rule.infer(known),
        }
    }

    /// The gradients of the inputs of the node that gradients flow back through.
    pub(super) fn flow_back(&self, back: &mut Back<'_>) -> Flows {
        match &self.gradient {
            Some(GradientRule::Plain(rule)) => rule(back),
            Some(GradientRule::Own(rule)) => rule.flow_back(back),
            None => Err(back.refuse("has no gradient here")),
        }
    }

    /// True for those that only the cutting of a graph makes.
    #[must_use]
    pub fn is_internal(&self) -> bool {
        self.name().starts_with('_')
    }
}
