//! Control loops: how the parts of a loop on different devices agree on its iterations.
//!
//! The device with the condition leads. Every other device that receives inside the loop gets a small loop of its own,
//! driven by the condition's value, which is sent to it like any other; its receives wait for that loop's Merge:
//!
//! ```text
//!                   ┌──────────── NextIteration ◀─ true ─┐
//!   Const ─▶ Enter ─▶ Merge ─▶ Switch ◀─ condition (received)
//!   (or the Merge    └─ ─ ─▶ every receive of this frame on this device
//!    of the outer loop)
//! ```
//!
//! A device whose nodes of the loop read its invariants alone receives nothing, and has a control loop too: without one
//! nothing would begin their second iteration.
//!
//! Loops inside loops stack: the outer control loop's Merge enters the inner one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::set;
use crate::graph::attr::{self, Attrs};
use crate::graph::flow::{Consumers, DeviceIndex, Graph, NodeId, Output};
use crate::graph::frames::{FrameIndex, Frames, ROOT};
use crate::graph::ops::{Op, Ops, Role};
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::tensor_shape_proto::Dim;
use rendez_proto::tensorflow::{DataType, TensorProto, TensorShapeProto};

/// What the names of a control loop's nodes begin with. No client's node has such a name.
const PREFIX: &str = "_cloop";

/// Adds the control loops that the edges between devices need, and lets the readers of those wait for them; and those
/// of devices that nothing else takes from one iteration to the next.
pub(super) fn add(graph: &mut Graph, ops: &Ops) -> Result<(), Status> {
    let frames = Frames::of(graph)?;
    if frames.is_flat() {
        return Ok(());
    }
    let mut loops = Loops {
        merges: BTreeMap::new(),
        frames,
        enter: Arc::clone(ops.find("Enter", PREFIX)?),
        merge: Arc::clone(ops.find("Merge", PREFIX)?),
        switch: Arc::clone(ops.find("Switch", PREFIX)?),
        next: Arc::clone(ops.find("NextIteration", PREFIX)?),
        constant: Arc::clone(ops.find("Const", PREFIX)?),
    };
    let repeats = graph
        .nodes()
        .filter(|(_, node)| node.role() == Role::NextIteration);
    let repeats = repeats.map(|(id, node)| (loops.frames.of_node(id), node.assigned));
    let repeating: BTreeSet<_> = repeats.collect();
    let looping: BTreeSet<_> = repeating.iter().map(|&(frame, _)| frame).collect();
    // The edges of the loops that are added cross devices too, so those nodes are looked at when their turn comes.
    let mut at = 0;
    while at < graph.len() {
        let id = NodeId(at as u32);
        at += 1;
        let node = graph.node(id);
        let frame = loops.frames.of_inputs(graph, id);
        let remote = |from: NodeId| {
            graph.node(from).assigned != node.assigned
                && loops.frames.of_outputs(graph, from) == frame
        };
        let data = node.inputs().iter().map(|input| input.node);
        let crosses = data.chain(node.controls().iter().copied()).any(remote);
        let Some(device) = node.assigned else {
            continue;
        };
        // A constant Enter gives in every iteration of the loop it enters, whose readers may all be elsewhere.
        for frame in [frame, loops.frames.of_node(id)] {
            if looping.contains(&frame) && !repeating.contains(&(frame, Some(device))) {
                loops.merge_of(graph, frame, device)?;
            }
        }
        if frame != ROOT && crosses {
            let merge = loops.merge_of(graph, frame, device)?;
            graph.add_control(id, merge);
        }
    }
    Ok(())
}

/// True for the Merge of a control loop.
pub(super) fn is_control_merge(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    node.role() == Role::Merge && node.name.starts_with(PREFIX)
}

/// A tensor of floats with no elements.
pub(in crate::graph) fn empty_floats() -> TensorProto {
    TensorProto {
        dtype: DataType::DtFloat as i32,
        tensor_shape: Some(TensorShapeProto {
            dim: vec![Dim::default()],
            unknown_rank: false,
        }),
        ..TensorProto::default()
    }
}

/// The control loops there are.
struct Loops {
    merges: BTreeMap<(FrameIndex, DeviceIndex), NodeId>,
    frames: Frames,
    enter: Arc<Op>,
    merge: Arc<Op>,
    switch: Arc<Op>,
    next: Arc<Op>,
    constant: Arc<Op>,
}

impl Loops {
    /// The Merge of the control loop of `frame` on `device`, made if need be, with those of the frames around it.
    fn merge_of(
        &mut self,
        graph: &mut Graph,
        frame: FrameIndex,
        device: DeviceIndex,
    ) -> Result<NodeId, Status> {
        let mut missing = vec![];
        let mut outer = frame;
        while outer != ROOT && !self.merges.contains_key(&(outer, device)) {
            missing.push(outer);
            outer = self.frames.frame(outer).parent;
        }
        let mut merge = self.merges.get(&(outer, device)).copied();
        for frame in missing.into_iter().rev() {
            let around = match merge {
                Some(merge) => merge,
                None => self.root_constant(graph, device)?,
            };
            merge = Some(self.control_loop(graph, frame, device, around)?);
        }
        // The root has no loop, and is never asked for.
        Ok(merge.unwrap_or(NodeId(0)))
    }

    fn control_loop(
        &mut self,
        graph: &mut Graph,
        frame: FrameIndex,
        device: DeviceIndex,
        around: NodeId,
    ) -> Result<NodeId, Status> {
        let described = self.frames.frame(frame);
        let Some(condition) = described.loop_cond else {
            let message = format!(
                "A cross-device loop must have a pivot predicate: {}",
                described.name
            );
            return Err(Status::of(catalogue::GRAPH_FRAME, message));
        };
        let mut attrs = Attrs::new();
        set(&mut attrs, "T", DataType::DtFloat);
        let typed = attrs.clone();
        set(&mut attrs, "frame_name", described.name.as_str());
        let parallel = described
            .enter
            .and_then(|enter| attr::int(&graph.node(enter).attrs, "parallel_iterations"));
        set(&mut attrs, "parallel_iterations", parallel.unwrap_or(10));
        let (enter, merge) = (Arc::clone(&self.enter), Arc::clone(&self.merge));
        let (switch, next) = (Arc::clone(&self.switch), Arc::clone(&self.next));

        let entered = self.push(graph, &enter, attrs, vec![first(around)], frame, device)?;
        let mut two = typed.clone();
        set(&mut two, "N", 2i64);
        let merged = self.push(graph, &merge, two, vec![first(entered); 2], frame, device)?;
        let inputs = vec![first(merged), first(condition)];
        let switched = self.push(graph, &switch, typed.clone(), inputs, frame, device)?;
        let goes_on = Output {
            node: switched,
            port: 1,
        };
        let again = self.push(graph, &next, typed, vec![goes_on], frame, device)?;
        graph.set_input(merged, 1, first(again))?;
        self.merges.insert((frame, device), merged);
        Ok(merged)
    }

    fn root_constant(&mut self, graph: &mut Graph, device: DeviceIndex) -> Result<NodeId, Status> {
        let mut attrs = Attrs::new();
        set(&mut attrs, "dtype", DataType::DtFloat);
        set(&mut attrs, "value", empty_floats());
        let constant = Arc::clone(&self.constant);
        self.push(graph, &constant, attrs, vec![], ROOT, device)
    }

    fn push(
        &mut self,
        graph: &mut Graph,
        op: &Arc<Op>,
        attrs: Attrs,
        inputs: Vec<Output>,
        frame: FrameIndex,
        device: DeviceIndex,
    ) -> Result<NodeId, Status> {
        let name = graph.new_name(PREFIX);
        let id = graph.add(name, op, attrs, inputs, vec![])?;
        graph.assign(id, device);
        self.frames.push(id, frame);
        Ok(id)
    }
}

fn first(node: NodeId) -> Output {
    Output { node, port: 0 }
}

/// Lets what only steers a loop or a branch stand beside the data it steers, so that fewer values cross. A value that
/// comes in the first iteration alone, or from the one before, must not cross at all: its receive would wait for it in
/// every iteration.
pub(super) fn colocate(graph: &mut Graph) -> Result<(), Status> {
    if !graph.nodes().any(|(_, node)| node.role() == Role::Enter) {
        return Ok(());
    }
    let order = graph.order()?;
    for &id in &order {
        let node = graph.node(id);
        if matches!(node.role(), Role::Switch | Role::Exit)
            && let Some(device) = node
                .inputs()
                .first()
                .and_then(|from| graph.node(from.node).assigned)
        {
            graph.assign(id, device);
        }
    }
    let consumers = Consumers::of(graph);
    for &id in order.iter().rev() {
        let node = graph.node(id);
        let steers = match node.role() {
            Role::NextIteration => true,
            Role::Enter => !node.in_ports().iter().any(|port| port.what.is_ref()),
            _ => false,
        };
        if !steers {
            continue;
        }
        let readers = || {
            consumers
                .of_node(id)
                .iter()
                .filter(|(_, input)| input.is_some())
        };
        let merge = readers().find(|(to, _)| graph.node(*to).role() == Role::Merge);
        if let Some(device) = merge
            .or_else(|| readers().next())
            .and_then(|(to, _)| graph.node(*to).assigned)
        {
            graph.assign(id, device);
        }
    }
    for (_, node) in graph.nodes().filter(|(_, node)| node.role() == Role::Merge) {
        for input in node.inputs() {
            let from = graph.node(input.node);
            if matches!(from.role(), Role::Enter | Role::NextIteration)
                && from.assigned != node.assigned
            {
                let message = format!(
                    "{{{{node {}}}}} begins an iteration at {{{{node {}}}}}, which stands on another device",
                    from.name, node.name
                );
                return Err(Status::of(catalogue::GRAPH_FRAME, message));
            }
        }
    }
    Ok(())
}
