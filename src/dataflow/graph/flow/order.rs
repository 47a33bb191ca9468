//! Orders: which nodes read which, and in which order nodes can run.
//!
//! A cycle is a loop if it goes through a NextIteration, whose reader does not wait for it the first time.

use super::{Graph, NodeId, Output};
use crate::graph::ops::Role;
use rendez::ground::{Status, catalogue};

/// The readers of each node's outputs, and the nodes that wait for it.
#[derive(Clone, Debug)]
pub struct Consumers {
    starts: Vec<u32>,
    edges: Vec<(NodeId, Option<u32>)>,
}

impl Consumers {
    /// The consumers of all nodes of `graph`, in the order of their numbers. Two passes over the edges.
    #[must_use]
    pub fn of(graph: &Graph) -> Self {
        let mut starts = vec![0u32; graph.len() + 1];
        for (_, node) in graph.nodes() {
            for (from, _) in sources(&node.inputs, &node.controls) {
                starts[from.index() + 1] += 1;
            }
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        let mut next = starts.clone();
        let total = *starts.last().unwrap_or(&0) as usize;
        let mut edges = vec![(NodeId(0), None); total];
        for (id, node) in graph.nodes() {
            for (from, input) in sources(&node.inputs, &node.controls) {
                let at = &mut next[from.index()];
                edges[*at as usize] = (id, input);
                *at += 1;
            }
        }
        Self { starts, edges }
    }

    /// The nodes that read `node`, each with which input, or with none if it only waits for it.
    #[must_use]
    pub fn of_node(&self, node: NodeId) -> &[(NodeId, Option<u32>)] {
        let start = self.starts[node.index()] as usize;
        let end = self.starts[node.index() + 1] as usize;
        &self.edges[start..end]
    }
}

/// The nodes behind data and control inputs, each with the input's number.
fn sources(inputs: &[Output], controls: &[NodeId]) -> impl Iterator<Item = (NodeId, Option<u32>)> {
    let data = inputs
        .iter()
        .zip(0u32..)
        .map(|(input, index)| (input.node, Some(index)));
    data.chain(controls.iter().map(|&control| (control, None)))
}

impl Graph {
    /// The nodes, each behind all it waits for; a loop's Merge is not behind its NextIteration. The algorithm is
    /// Kahn's, "Topological sorting of large networks" (1962).
    ///
    /// # Errors
    /// `GRAPH_CYCLE` names nodes that wait for each other.
    pub fn order(&self) -> Result<Vec<NodeId>, Status> {
        let consumers = Consumers::of(self);
        let mut waits: Vec<u32> = vec![0; self.len()];
        let mut order = Vec::with_capacity(self.len());
        for (id, node) in self.nodes() {
            let back = |input: &&Output| self.is_back_edge(input.node, id);
            let back = node.inputs.iter().filter(back).count();
            waits[id.index()] = (node.inputs.len() - back + node.controls.len()) as u32;
            if waits[id.index()] == 0 {
                order.push(id);
            }
        }
        let mut done = 0;
        while done < order.len() {
            let id = order[done];
            done += 1;
            for &(consumer, input) in consumers.of_node(id) {
                if input.is_some() && self.is_back_edge(id, consumer) {
                    continue;
                }
                let waits = &mut waits[consumer.index()];
                *waits -= 1;
                if *waits == 0 {
                    order.push(consumer);
                }
            }
        }
        if order.len() == self.len() {
            return Ok(order);
        }
        let stuck = self.nodes().filter(|(id, _)| waits[id.index()] > 0);
        let names: Vec<_> = stuck.take(5).map(|(_, node)| node.name.as_str()).collect();
        let message = format!(
            "{} nodes in a cycle, or behind one, that does not go through a NextIteration: {}",
            self.len() - order.len(),
            names.join(", ")
        );
        Err(Status::of(catalogue::GRAPH_CYCLE, message))
    }

    /// True if a value of `from` begins the next iteration at `to`.
    pub(in crate::graph) fn is_back_edge(&self, from: NodeId, to: NodeId) -> bool {
        self.node(from).role() == Role::NextIteration && self.node(to).role() == Role::Merge
    }
}
