//! Gradients: adds to a graph what computes how its results change with its inputs.
//!
//! Knows the operations' derivatives, as rules that make nodes of other operations, and no values. The walk is
//! reverse-mode: from the results back along the edges that lead to what is asked about, adding up what comes together.

use std::collections::{BTreeMap, BTreeSet};

use super::builder::{Builder, NodeBuilder};
use super::errors;
use super::flow::{NodeId, Output};
use super::shapes::Shapes;
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::{DataType, TensorProto, TensorShapeProto};

mod arithmetic;
mod arrangement;
mod network;
mod reduction;
#[cfg(test)]
mod tests;

/// The gradient of each input of a node; `None` where nothing flows back.
type Flows = Result<Vec<Option<Output>>, Status>;
/// A rule: the gradients of a node's inputs from those of its outputs.
type Rule = fn(&mut Back<'_>) -> Flows;

/// Adds to `graph` the gradients of the sum of all `ys` by each of `xs`.
///
/// `grad_ys` are the gradients of `ys` themselves, as many, or none at all: where one is missing it is ones. Each
/// gradient has the type and the shape of its x; it is `None` where no y depends on the x. New nodes are called
/// `gradients/<node>_grad/…` and stand where the node they belong to was asked to stand.
///
/// An x may be a variable's handle or reference: its gradient is that of what was read from it.
///
/// # Errors
/// `GRAPH_GRADIENT` naming the operation and the node on a way from an x to a y that has no gradient here (a loop or a
/// conditional, for one); `GRAPH_CYCLE` for a graph without order; `GRAPH_MALFORMED` for outputs that are not there, or
/// another number of `grad_ys`; what [`NodeBuilder::build`] says.
pub fn gradients(
    graph: &mut Builder,
    ys: &[Output],
    xs: &[Output],
    grad_ys: &[Option<Output>],
) -> Flows {
    for &output in ys.iter().chain(xs).chain(grad_ys.iter().flatten()) {
        if graph.graph.port(output).is_none() {
            let what = "gradients are asked of an output that is not in the graph";
            return Err(Status::of(catalogue::GRAPH_MALFORMED, what));
        }
    }
    if !grad_ys.is_empty() && grad_ys.len() != ys.len() {
        let what = format!(
            "there are {} ys and {} gradients of them",
            ys.len(),
            grad_ys.len()
        );
        return Err(Status::of(catalogue::GRAPH_MALFORMED, what));
    }
    let order = graph.graph.order()?;
    let shapes = Shapes::of(&graph.graph).ok();
    let asked: BTreeSet<_> = xs.iter().copied().collect();
    let is_between = between(graph, &order, ys, &asked);
    let mut sums: BTreeMap<Output, Vec<Output>> = BTreeMap::new();
    for (index, &y) in ys.iter().enumerate() {
        let given = grad_ys.get(index).copied().flatten();
        let given = match given {
            Some(given) => given,
            None => back(graph, shapes.as_ref(), y.node, vec![]).op("OnesLike", &[y])?,
        };
        sums.entry(y).or_default().push(given);
    }
    for &id in order.iter().rev().filter(|id| is_between[id.index()]) {
        let outputs = graph.graph.node(id).out_ports().len();
        let mut grads = Vec::with_capacity(outputs);
        for port in (0u32..).take(outputs) {
            let output = Output { node: id, port };
            // What an x got so far is its gradient: what it is computed from adds nothing to it.
            grads.push(added(graph, shapes.as_ref(), output, &mut sums)?);
        }
        if grads.iter().all(Option::is_none) {
            continue;
        }
        let inputs = graph.graph.node(id).inputs().to_vec();
        let mut at = back(graph, shapes.as_ref(), id, grads);
        let flows = match rule(at.op_name()) {
            Some(rule) => rule(&mut at)?,
            None => return Err(at.refuse("has no gradient here")),
        };
        for (input, flow) in inputs.into_iter().zip(flows) {
            if let Some(flow) = flow {
                sums.entry(input).or_default().push(flow);
            }
        }
    }
    xs.iter()
        .map(|&x| added(graph, shapes.as_ref(), x, &mut sums))
        .collect()
}

/// The nodes that lie on a way from what is `asked` about to a y, by an edge that gradients flow along.
fn between(
    graph: &Builder,
    order: &[NodeId],
    ys: &[Output],
    asked: &BTreeSet<Output>,
) -> Vec<bool> {
    let graph = &graph.graph;
    let mut depends = vec![false; graph.len()];
    for &id in order {
        let flows = |input: &Output| {
            let is_smooth = graph
                .port(*input)
                .is_some_and(|port| is_smooth(port.what.base()));
            is_smooth && (asked.contains(input) || depends[input.node.index()])
        };
        depends[id.index()] = graph.node(id).inputs().iter().any(flows);
    }
    let mut wanted = vec![false; graph.len()];
    for y in ys {
        wanted[y.node.index()] = true;
    }
    for &id in order.iter().rev() {
        if !wanted[id.index()] || !depends[id.index()] {
            wanted[id.index()] = false;
            continue;
        }
        for input in graph.node(id).inputs() {
            wanted[input.node.index()] = true;
        }
    }
    wanted
}

/// True for what has a gradient: numbers with a fraction, and handles of variables.
const fn is_smooth(base: DataType) -> bool {
    matches!(
        base,
        DataType::DtFloat
            | DataType::DtDouble
            | DataType::DtHalf
            | DataType::DtBfloat16
            | DataType::DtResource
    )
}

/// What has come together for `output`, as one.
fn added(
    graph: &mut Builder,
    shapes: Option<&Shapes>,
    output: Output,
    sums: &mut BTreeMap<Output, Vec<Output>>,
) -> Result<Option<Output>, Status> {
    let Some(parts) = sums.get_mut(&output) else {
        return Ok(None);
    };
    if parts.len() > 1 {
        let sum = back(graph, shapes, output.node, vec![]).op("AddN", parts)?;
        *parts = vec![sum];
    }
    Ok(parts.first().copied())
}

fn rule(op: &str) -> Option<Rule> {
    arithmetic::rule(op)
        .or_else(|| network::rule(op))
        .or_else(|| reduction::rule(op))
        .or_else(|| arrangement::rule(op))
}

/// A node that gradients flow back through, and the graph that they are added to.
struct Back<'a> {
    graph: &'a mut Builder,
    shapes: Option<&'a Shapes>,
    node: NodeId,
    prefix: String,
    device: String,
    /// The gradients of its outputs.
    grads: Vec<Option<Output>>,
}

fn back<'a>(
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
    fn op_name(&self) -> &'static str {
        self.graph.graph.node(self.node).op.name()
    }

    fn refuse(&self, what: &str) -> Status {
        let node = self.graph.graph.node(self.node);
        let what = format!(
            "No gradient defined for operation '{}' (op type: {}): it {what}",
            node.name,
            node.op.name()
        );
        errors::at_node(catalogue::GRAPH_GRADIENT, &node.name, node.op.name(), &what)
    }

    /// What input `index` reads.
    fn input(&self, index: usize) -> Result<Output, Status> {
        let inputs = self.graph.graph.node(self.node).inputs();
        inputs
            .get(index)
            .copied()
            .ok_or_else(|| self.refuse("lacks an input"))
    }

    fn inputs(&self) -> Vec<Output> {
        self.graph.graph.node(self.node).inputs().to_vec()
    }

    fn output(&self, port: u32) -> Output {
        Output {
            node: self.node,
            port,
        }
    }

    /// The gradient of output `index`, which must be there.
    fn grad(&self, index: usize) -> Result<Output, Status> {
        let grad = self.grads.get(index).copied().flatten();
        grad.ok_or_else(|| self.refuse("has no gradient of an output that it is used by"))
    }

    /// The gradient of output `index`, zeros if there is none.
    fn grad_or_zeros(&mut self, index: usize) -> Result<Output, Status> {
        match self.grads.get(index).copied().flatten() {
            Some(grad) => Ok(grad),
            None => {
                let output = self.output(u32::try_from(index).unwrap_or(0));
                self.op("ZerosLike", &[output])
            }
        }
    }

    fn attrs(&self) -> &super::attr::Attrs {
        &self.graph.graph.node(self.node).attrs
    }

    fn base(&self, output: Output) -> DataType {
        let port = self.graph.graph.port(output);
        port.map_or(DataType::DtInvalid, |port| port.what.base())
    }

    /// Adds a node whose types follow from its inputs.
    fn op(&mut self, op: &str, inputs: &[Output]) -> Result<Output, Status> {
        self.op_with(op, inputs, |node| node)
    }

    /// Adds a node.
    fn op_with(
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
    fn scalar(&mut self, base: DataType, value: f32) -> Result<Output, Status> {
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

    /// 32-bit integers: a scalar, or a row.
    fn ints(&mut self, dims: &[i64], values: &[i32]) -> Result<Output, Status> {
        let message = super::builder::ints(dims, values);
        self.op_with("Const", &[], |node| {
            node.attr("dtype", DataType::DtInt32).attr("value", message)
        })
    }

    fn int(&mut self, value: i32) -> Result<Output, Status> {
        self.ints(&[], &[value])
    }

    fn cast(&mut self, from: Output, base: DataType) -> Result<Output, Status> {
        if self.base(from) == base {
            return Ok(from);
        }
        self.op_with("Cast", &[from], |node| node.attr("DstT", base))
    }

    fn shape(&mut self, of: Output) -> Result<Output, Status> {
        self.op("Shape", &[of])
    }

    /// `grad` under the shape of `of`.
    fn reshaped_as(&mut self, grad: Output, of: Output) -> Result<Output, Status> {
        let shape = self.shape(of)?;
        self.op("Reshape", &[grad, shape])
    }

    /// True if both are known to have one shape.
    fn same_shape(&self, left: Output, right: Output) -> bool {
        let Some(shapes) = self.shapes else {
            return false;
        };
        let dims = |output| shapes.output(output).and_then(super::PartialShape::fully);
        dims(left).is_some() && dims(left) == dims(right)
    }

    /// Gradients that have the shape `left` and `right` are broadcast to, added up to theirs.
    fn unbroadcast(&mut self, operands: [Output; 2], grads: [Option<Output>; 2]) -> Flows {
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
    fn constant(&self, index: usize) -> Option<Vec<i64>> {
        let node = self
            .graph
            .graph
            .node(self.graph.graph.node(self.node).inputs().get(index)?.node);
        if node.op.name() != "Const" {
            return None;
        }
        super::shapes::integers(super::attr::tensor(&node.attrs, "value")?)
    }
}
