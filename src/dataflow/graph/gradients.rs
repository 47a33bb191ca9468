//! Gradients: adds to a graph what computes how its results change with its inputs.
//!
//! Knows no derivatives: each operation brings its own, as a rule that makes nodes of other operations; `rules.rs` has
//! what many of these share. The walk is reverse-mode: from the results back along the edges that lead to what is asked
//! about, adding up what comes together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::builder::Builder;
use super::flow::{NodeId, Output};
use super::shapes::Shapes;
use rendez::ground::limits::GRAPH_OUTPUTS_PER_NODE_MAX;
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::DataType;

mod back;
mod rules;
#[cfg(test)]
mod tests;

pub use back::Back;
use back::back;
pub(crate) use rules::{all_axes, none, one, operands, pair, passed};

/// The gradient of each input of a node; `None` where nothing flows back.
pub(crate) type Flows = Result<Vec<Option<Output>>, Status>;

/// How gradients flow back through an operation: those of a node's inputs from those of its outputs.
pub(crate) type Gradient = fn(&mut Back<'_>) -> Flows;

/// Adds to `graph` the gradients of the sum of all `ys` by each of `xs`.
///
/// `grad_ys` are the gradients of `ys` themselves, as many, or none at all: where one is missing it is ones. Each
/// gradient has the type and the shape of its x; it is `None` where no y depends on the x, or all do by operations
/// alone that nothing flows back through, as `StopGradient`, `FloorDiv`, `Shape` and casts to whole numbers. New nodes
/// are called `gradients/<node>_grad/…` and stand where the node they belong to was asked to stand.
///
/// An x may be a variable's handle or reference: its gradient is that of what was read from it.
///
/// # Errors
/// `GRAPH_GRADIENT` naming the operation and the node on a way from an x to a y that has no gradient here (a loop or a
/// conditional, for one); `GRAPH_CYCLE` for a graph without order; `GRAPH_MALFORMED` for outputs that are not there, or
/// another number of `grad_ys`; what [`NodeBuilder::build`](super::NodeBuilder::build) says.
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
        let op = Arc::clone(&graph.graph.node(id).op);
        let flows = op.flow_back(&mut back(graph, shapes.as_ref(), id, grads))?;
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
pub(crate) const fn is_smooth(base: DataType) -> bool {
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
    while parts.len() > 1 {
        let mut at = back(graph, shapes, output.node, vec![]);
        // A node takes no more than so many.
        let sums = parts.chunks(GRAPH_OUTPUTS_PER_NODE_MAX);
        let sums = sums.map(|parts| at.op("AddN", parts));
        *parts = sums.collect::<Result<_, _>>()?;
    }
    Ok(parts.first().copied())
}
