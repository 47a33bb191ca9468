//! Back: a node that gradients flow back through, as its operation's rule sees it, and the graph that the rule adds to.
//!
//! Knows nothing of the walk. What it adds is named after the node and asked to stand where that does.

use crate::graph::attr::Attrs;
use crate::graph::builder::{self, Builder, NodeBuilder};
use crate::graph::flow::{NodeId, Output};
use crate::graph::infer::Known;
use crate::graph::shapes::Shapes;
use crate::graph::{PartialShape, errors};
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::{DataType, TensorProto, TensorShapeProto};

/// A node that gradients flow back through, and the graph that they are added to; what a rule that
/// [`Definition::gradient`](crate::graph::Definition::gradient) was given works with.
#[derive(Debug)]
pub struct Back<'a> {
    graph: &'a mut Builder,
    shapes: Option<&'a Shapes>,
    node: NodeId,
    prefix: String,
    device: String,
    /// The gradients of its outputs.
    pub(super) grads: Vec<Option<Output>>,
}

pub(super) fn back<'a>(
    graph: &'a mut Builder,
    shapes: Option<&'a Shapes>,
    node: NodeId,
    grads: Vec<Option<Output>>,
) -> Back<'a> {
    let at = graph.graph.node(node);
    Back {
        prefix: format!("gradients/{}_grad", at.name),
        device: at.device.clone(),
        graph,
        shapes,
        node,
        grads,
    }
}

impl Back<'_> {
    /// The refusal that names the node: "No gradient defined for operation …: it" and then `what`.
    #[must_use]
    pub fn refuse(&self, what: &str) -> Status {
        let node = self.graph.graph.node(self.node);
        let what = format!(
            "No gradient defined for operation '{}' (op type: {}): it {what}",
            node.name,
            node.op.name()
        );
        errors::at_node(catalogue::GRAPH_GRADIENT, &node.name, node.op.name(), &what)
    }

    /// What input `index` reads.
    ///
    /// # Errors
    /// `GRAPH_GRADIENT` if the node has no such input.
    pub fn input(&self, index: usize) -> Result<Output, Status> {
        let inputs = self.graph.graph.node(self.node).inputs();
        inputs
            .get(index)
            .copied()
            .ok_or_else(|| self.refuse("lacks an input"))
    }

    /// What each input reads.
    #[must_use]
    pub fn inputs(&self) -> Vec<Output> {
        self.graph.graph.node(self.node).inputs().to_vec()
    }

    /// Output `port` of the node.
    #[must_use]
    pub const fn output(&self, port: u32) -> Output {
        Output {
            node: self.node,
            port,
        }
    }

    /// The gradient of output `index`, which must be there: of an operation with one output it always is.
    ///
    /// # Errors
    /// `GRAPH_GRADIENT` if nothing flows back through that output.
    pub fn grad(&self, index: usize) -> Result<Output, Status> {
        self.given(index)
            .ok_or_else(|| self.refuse("has no gradient of an output that it is used by"))
    }

    /// The gradient of output `index`, if anything flows back through that.
    #[must_use]
    pub fn given(&self, index: usize) -> Option<Output> {
        self.grads.get(index).copied().flatten()
    }

    /// The gradient of output `index`, zeros if there is none.
    ///
    /// # Errors
    /// As [`op`](Self::op).
    pub fn grad_or_zeros(&mut self, index: usize) -> Result<Output, Status> {
        match self.given(index) {
            Some(grad) => Ok(grad),
            None => {
                let output = self.output(u32::try_from(index).unwrap_or(0));
                self.op("ZerosLike", &[output])
            }
        }
    }

    /// The gradients of all outputs, zeros where there are none.
    pub(crate) fn grads_or_zeros(&mut self) -> Result<Vec<Output>, Status> {
        (0..self.grads.len())
            .map(|index| self.grad_or_zeros(index))
            .collect()
    }

    /// The node's attributes, those that were left out with their defaults.
    #[must_use]
    pub fn attrs(&self) -> &Attrs {
        &self.graph.graph.node(self.node).attrs
    }

    pub(crate) fn base(&self, output: Output) -> DataType {
        let port = self.graph.graph.port(output);
        port.map_or(DataType::DtInvalid, |port| port.what.base())
    }

    /// Adds a node whose types and attributes follow from its inputs, and gives its first output.
    ///
    /// # Errors
    /// As [`NodeBuilder::build`].
    pub fn op(&mut self, op: &str, inputs: &[Output]) -> Result<Output, Status> {
        self.op_with(op, inputs, |node| node)
    }

    /// Adds a node, with what `with` sets of it, and gives its first output.
    ///
    /// # Errors
    /// As [`NodeBuilder::build`].
    pub fn op_with(
        &mut self,
        op: &str,
        inputs: &[Output],
        with: impl FnOnce(NodeBuilder<'_>) -> NodeBuilder<'_>,
    ) -> Result<Output, Status> {
        let name = format!("{}/{op}", self.prefix);
        let node = self.graph.node(op).name(&name).device(&self.device);
        with(node.inputs(inputs.iter().copied())).build()
    }

    /// A scalar of type `base`, a whole number or a half.
    pub(crate) fn scalar(&mut self, base: DataType, value: f32) -> Result<Output, Status> {
        let message = TensorProto {
            dtype: DataType::DtFloat as i32,
            tensor_shape: Some(TensorShapeProto::default()),
            float_val: vec![value],
            ..TensorProto::default()
        };
        let message = match base {
            DataType::DtDouble => TensorProto {
                dtype: base as i32,
                float_val: vec![],
                double_val: vec![value.into()],
                ..message
            },
            _ => message,
        };
        let made = self.op_with("Const", &[], |node| {
            let base = DataType::try_from(message.dtype).unwrap_or(DataType::DtFloat);
            node.attr("dtype", base).attr("value", message)
        })?;
        match base {
            DataType::DtFloat | DataType::DtDouble => Ok(made),
            _ => self.cast(made, base),
        }
    }

    /// A constant of one element, of the type that `like` has, with no dimensions: it is broadcast.
    ///
    /// # Errors
    /// As [`op`](Self::op).
    pub fn scalar_like(&mut self, like: Output, value: f32) -> Result<Output, Status> {
        let base = self.base(like);
        self.scalar(base, value)
    }

    /// 32-bit integers: a scalar, or a row.
    pub(crate) fn ints(&mut self, dims: &[i64], values: &[i32]) -> Result<Output, Status> {
        let message = builder::ints(dims, values);
        self.op_with("Const", &[], |node| {
            node.attr("dtype", DataType::DtInt32).attr("value", message)
        })
    }

    pub(crate) fn int(&mut self, value: i32) -> Result<Output, Status> {
        self.ints(&[], &[value])
    }

    /// A scalar of 64 bits.
    pub(crate) fn long(&mut self, value: i64) -> Result<Output, Status> {
        let message = TensorProto {
            int64_val: vec![value],
            ..builder::empty(DataType::DtInt64, &[])
        };
        self.op_with("Const", &[], |node| {
            node.attr("dtype", DataType::DtInt64).attr("value", message)
        })
    }

    pub(crate) fn cast(&mut self, from: Output, base: DataType) -> Result<Output, Status> {
        if self.base(from) == base {
            return Ok(from);
        }
        self.op_with("Cast", &[from], |node| node.attr("DstT", base))
    }

    /// The dimensions of `of`, of which each may be more than 32 bits count.
    pub(crate) fn shape(&mut self, of: Output) -> Result<Output, Status> {
        self.op_with("Shape", &[of], |node| {
            node.attr("out_type", DataType::DtInt64)
        })
    }

    /// How many elements `of` has, which may be more than 32 bits count.
    pub(crate) fn size(&mut self, of: Output) -> Result<Output, Status> {
        self.op_with("Size", &[of], |node| {
            node.attr("out_type", DataType::DtInt64)
        })
    }

    /// `grad` under the shape of `of`.
    pub(crate) fn reshaped_as(&mut self, grad: Output, of: Output) -> Result<Output, Status> {
        let shape = self.shape(of)?;
        self.op("Reshape", &[grad, shape])
    }

    /// What is known of the shape of input `index`.
    pub(crate) fn known_shape(&self, index: usize) -> PartialShape {
        let inputs = self.graph.graph.node(self.node).inputs();
        let input = inputs.get(index).copied();
        let shape = input.and_then(|input| self.shapes?.output(input));
        shape.cloned().unwrap_or_default()
    }

    /// True if both are known to have one shape.
    pub(crate) fn same_shape(&self, left: Output, right: Output) -> bool {
        let Some(shapes) = self.shapes else {
            return false;
        };
        let dims = |output| shapes.output(output).and_then(PartialShape::fully);
        dims(left).is_some() && dims(left) == dims(right)
    }

    /// For two operands that were broadcast: gradients that have the shape of the result, added up to the shapes of
    /// the operands.
    ///
    /// # Errors
    /// As [`op`](Self::op).
    pub fn unbroadcast(
        &mut self,
        operands: [Output; 2],
        grads: [Option<Output>; 2],
    ) -> Result<Vec<Option<Output>>, Status> {
        if self.same_shape(operands[0], operands[1]) {
            return Ok(grads.to_vec());
        }
        let shapes = [self.shape(operands[0])?, self.shape(operands[1])?];
        let axes = self.op("BroadcastGradientArgs", &shapes)?;
        let mut flows = vec![];
        for (port, (grad, shape)) in (0..).zip(grads.into_iter().zip(shapes)) {
            flows.push(match grad {
                None => None,
                Some(grad) => {
                    let sum = self.op("Sum", &[grad, Output { port, ..axes }])?;
                    Some(self.op("Reshape", &[sum, shape])?)
                }
            });
        }
        Ok(flows)
    }

    /// The integers of a constant that input `index` reads.
    pub(crate) fn constant(&self, index: usize) -> Option<Vec<i64>> {
        let graph = &self.graph.graph;
        let from = graph.node(self.node).inputs().get(index)?.node;
        let node = graph.node(from);
        let rule = node.op.integers.filter(|_| node.inputs().is_empty())?;
        rule(Known {
            shapes: &[],
            values: &[],
            attrs: &node.attrs,
            outputs: node.out_ports().len(),
        })
    }
}
