//! Reads: when a variable is read for a node on another device.
//!
//! Beside its variable a node reads when it runs, so after all that it waits for. What crosses is read before it is
//! sent, so that read becomes a node of its own, which waits for the same:
//!
//! ```text
//!   v ──▶ y ◀─ ─ gate            v ──▶ Identity ──▶ y
//!                                         ▲         ▲
//!                                         └─ gate ─ ┘
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use super::set;
use crate::graph::attr::Attrs;
use crate::graph::flow::{Graph, NodeId, Output};
use crate::graph::ops::{Op, Ops, Role};
use rendez::ground::Status;

/// Adds the reads that edges between devices need.
pub(super) fn add(graph: &mut Graph, ops: &Ops) -> Result<(), Status> {
    let identity = ops.find("Identity", "a read")?;
    for id in graph.ids() {
        // A Merge runs with the first input that comes: none waits for another.
        if graph.node(id).role() == Role::Merge {
            continue;
        }
        let inputs = 0..graph.node(id).inputs().len();
        let reads: Vec<_> = inputs
            .filter(|input| is_read_elsewhere(graph, id, *input))
            .collect();
        // Few nodes have one, and what all others wait for need not be looked at.
        if reads.is_empty() {
            continue;
        }
        let after = waits_for(graph, id);
        for input in reads {
            let from = graph.node(id).inputs()[input].node;
            // What it reads from comes before it anyway.
            let others: Vec<_> = after.iter().copied().filter(|node| *node != from).collect();
            if !others.is_empty() {
                read(graph, identity, (id, input), others)?;
            }
        }
    }
    Ok(())
}

/// All that a node waits for, once each, except variables: those are there from the start. A write, whose output is
/// its variable too, is waited for.
fn waits_for(graph: &Graph, id: NodeId) -> BTreeSet<NodeId> {
    let node = graph.node(id);
    let values = node.inputs().iter().map(|from| from.node);
    let values = values.filter(|from| graph.node(*from).role() != Role::Variable);
    values.chain(node.controls().iter().copied()).collect()
}

/// True if the input reads a variable whose content has to cross.
fn is_read_elsewhere(graph: &Graph, id: NodeId, input: usize) -> bool {
    let node = graph.node(id);
    let (from, to) = (node.inputs()[input], node.in_ports()[input]);
    let is_variable = graph.port(from).is_some_and(|port| port.what.is_ref());
    is_variable && graph.node(from.node).assigned != node.assigned && !to.what.is_ref()
}

/// Lets a node beside the variable read it after `after`, and the input read that.
fn read(
    graph: &mut Graph,
    identity: &Arc<Op>,
    (id, input): (NodeId, usize),
    after: Vec<NodeId>,
) -> Result<(), Status> {
    let from = graph.node(id).inputs()[input];
    let variable = graph.node(from.node);
    let (assigned, what) = (
        variable.assigned,
        variable.out_ports()[from.port as usize].what,
    );
    let prefix = variable.name.clone();
    let mut attrs = Attrs::new();
    set(&mut attrs, "T", what.base());
    let name = graph.new_name(&prefix);
    let node = graph.add(name, identity, attrs, vec![from], after)?;
    if let Some(device) = assigned {
        graph.assign(node, device);
    }
    graph.set_input(id, input, Output { node, port: 0 })
}
