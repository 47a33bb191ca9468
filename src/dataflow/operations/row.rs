//! Row: all that there is to know of one operation, as the table of its family has it.
//!
//! Knows no operation.

use crate::graph::gradients::Gradient;
use crate::graph::infer::{Infer, Integers};
use crate::graph::signature::Signature;
use crate::graph::{GradientRule, Node, Op, Role, ShapeRule};
use crate::kernel::make::Made;

/// Makes what computes a node, for its types and attributes.
pub(super) type Make = fn(&Node) -> Made;

/// An operation.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Its inputs and outputs, in the words of [`signature`](crate::graph::signature).
    pub(super) flow: &'static str,
    /// Its attributes, in the same.
    pub(super) attrs: &'static str,
    shapes: Infer,
    integers: Option<Integers>,
    pub(super) is_stateful: bool,
    pub(super) role: Role,
    gradient: Option<Gradient>,
    /// `None` for what the executor does itself.
    pub(super) kernel: Option<Make>,
}

/// An operation without state, gradient and kernel.
pub(super) const fn row(
    name: &'static str,
    flow: &'static str,
    attrs: &'static str,
    shapes: Infer,
) -> Row {
    Row {
        name,
        flow,
        attrs,
        shapes,
        integers: None,
        is_stateful: false,
        role: Role::Plain,
        gradient: None,
        kernel: None,
    }
}

impl Row {
    /// It has state or effects.
    pub(super) const fn stateful(mut self) -> Self {
        self.is_stateful = true;
        self
    }

    /// What it does to the flow.
    pub(super) const fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// Which integers it gives whatever happens: shapes are made of them.
    pub(super) const fn integers(mut self, rule: Integers) -> Self {
        self.integers = Some(rule);
        self
    }

    /// How gradients flow back through it.
    pub(super) const fn gradient(mut self, rule: Gradient) -> Self {
        self.gradient = Some(rule);
        self
    }

    /// What computes its nodes.
    pub(super) const fn kernel(mut self, make: Make) -> Self {
        self.kernel = Some(make);
        self
    }

    /// What graphs know of it; `None` if its line cannot be read.
    pub(super) fn op(&self) -> Option<Op> {
        Some(Op {
            signature: Signature::parse(self.name, self.flow, self.attrs)?,
            is_stateful: self.is_stateful,
            role: self.role,
            shapes: ShapeRule::Plain(self.shapes),
            integers: self.integers,
            gradient: self.gradient.map(GradientRule::Plain),
        })
    }
}
