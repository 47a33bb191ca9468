//! Shapes of a graph: what can be said of every output before anything runs.
//!
//! Walks the nodes in order and asks each [rule](super::infer). A loop's Merge does not know what its next iteration
//! brings, so nothing is said of it.

use super::attr;
use super::errors;
use super::flow::{Graph, NodeId, Output};
use super::infer::Known;
use super::ops::Role;
use super::shape::PartialShape;
use super::types;
use rendez::ground::limits::{GRAPH_DIMENSIONS_MAX, GRAPH_RANK_MAX};
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::{DataType, TensorProto};

#[cfg(test)]
mod tests;

/// Integers of a constant that shapes are made of; a longer one is no shape.
const VALUE_LEN_MAX: usize = 256;

/// The shapes of all outputs of a graph.
#[derive(Clone, Debug)]
pub struct Shapes(Vec<Vec<PartialShape>>);

impl Shapes {
    /// Infers them.
    ///
    /// # Errors
    /// `GRAPH_SHAPE` names the node whose inputs do not fit, `GRAPH_LIMIT` one whose shapes are too large;
    /// `GRAPH_CYCLE` as for an order.
    pub fn of(graph: &Graph) -> Result<Self, Status> {
        let mut shapes = Self(vec![vec![]; graph.len()]);
        let mut values: Vec<Option<Vec<i64>>> = vec![None; graph.len()];
        let mut dimensions = 0;
        for id in graph.order()? {
            let node = graph.node(id);
            let inputs: Vec<_> = node
                .inputs()
                .iter()
                .map(|&input| match graph.is_back_edge(input.node, id) {
                    true => PartialShape::UNKNOWN,
                    false => shapes.output(input).cloned().unwrap_or_default(),
                })
                .collect();
            let integers: Vec<_> = node
                .inputs()
                .iter()
                .map(|input| {
                    values[input.node.index()]
                        .clone()
                        .filter(|_| input.port == 0)
                })
                .collect();
            let known = Known {
                shapes: &inputs,
                values: &integers,
                attrs: &node.attrs,
                outputs: node.out_ports().len(),
            };
            let mut outputs = node.op.infer(known).map_err(|what| {
                errors::at_node(catalogue::GRAPH_SHAPE, &node.name, node.op.name(), &what)
            })?;
            if node.op.name() == "ReadVariableOp"
                && let Some(shape) = node
                    .inputs()
                    .first()
                    .and_then(|from| variable(graph, from.node))
            {
                outputs = vec![shape];
            }
            outputs.resize(node.out_ports().len(), PartialShape::UNKNOWN);
            // Two gathers in a row can double a rank, and a split repeats a shape.
            let ranks = outputs.iter().filter_map(PartialShape::rank);
            dimensions += ranks.clone().sum::<usize>();
            let what = if ranks.max().unwrap_or(0) > GRAPH_RANK_MAX {
                "an output has more than 254 dimensions (GRAPH_RANK_MAX)"
            } else if dimensions > GRAPH_DIMENSIONS_MAX {
                "the shapes of the graph have too many dimensions together (GRAPH_DIMENSIONS_MAX)"
            } else {
                ""
            };
            if !what.is_empty() {
                return Err(errors::at_node(
                    catalogue::GRAPH_LIMIT,
                    &node.name,
                    node.op.name(),
                    what,
                ));
            }
            values[id.index()] = node
                .op
                .integers
                .and_then(|rule| rule(known))
                .filter(|row| row.len() <= VALUE_LEN_MAX);
            shapes.0[id.index()] = outputs;
        }
        Ok(shapes)
    }

    /// What is known of an output; `None` if there is no such output.
    #[must_use]
    pub fn output(&self, output: Output) -> Option<&PartialShape> {
        self.0.get(output.node.index())?.get(output.port as usize)
    }
}

/// The shape of the variable behind a handle, through what only passes it on.
fn variable(graph: &Graph, mut at: NodeId) -> Option<PartialShape> {
    // A chain in a graph without cycles ends; a Merge, which could close one, is not passed.
    loop {
        let node = graph.node(at);
        match (node.op.name(), node.role()) {
            (_, Role::Variable) => {
                return PartialShape::from_proto(attr::shape(&node.attrs, "shape")?);
            }
            ("Identity", _) | (_, Role::Enter | Role::Exit | Role::Switch) => {
                at = node.inputs().first()?.node;
            }
            _ => return None,
        }
    }
}

/// The elements of a tensor of 32- or 64-bit integers, if they are few.
#[must_use]
pub fn integers(tensor: &TensorProto) -> Option<Vec<i64>> {
    let base = DataType::try_from(tensor.dtype).ok()?;
    if !matches!(base, DataType::DtInt32 | DataType::DtInt64) {
        return None;
    }
    let shape = tensor.tensor_shape.as_ref().map(PartialShape::from_proto);
    let elements = shape
        .unwrap_or_else(|| Some(PartialShape::scalar()))?
        .elements()?;
    let elements = usize::try_from(elements)
        .ok()
        .filter(|&elements| elements <= VALUE_LEN_MAX)?;
    let size = types::dtype(base)?.size()?;
    let mut row: Vec<i64> = if tensor.tensor_content.is_empty() {
        match base {
            DataType::DtInt32 => tensor.int_val.iter().map(|&number| number.into()).collect(),
            _ => tensor.int64_val.clone(),
        }
    } else {
        let numbers = tensor.tensor_content.chunks_exact(size);
        numbers
            .map(|bytes| match bytes.try_into() {
                Ok(bytes) => i64::from_le_bytes(bytes),
                Err(_) => bytes.try_into().map_or(0, i32::from_le_bytes).into(),
            })
            .collect()
    };
    if row.len() > elements {
        return None;
    }
    // The last element fills the shape; without any, zero does.
    let last = row.last().copied().unwrap_or(0);
    row.resize(elements, last);
    Some(row)
}
