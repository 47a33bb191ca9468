//! The graph: nodes, the outputs they read, and the nodes they wait for.
//!
//! Knows the message it comes from and goes to, and no devices but by number. Every node that is in a graph has a known
//! operation, all its attributes, and inputs of the right types: that is checked once, when it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::attr::{self, Attrs};
use super::errors;
use super::ops::{Op, Role};
use super::signature::Port;
use super::types;
use rendez::ground::limits::{GRAPH_EDGES_MAX, GRAPH_NODES_MAX, GRAPH_PORTS_MAX};
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::{DataType, GraphDef, NodeDef, VersionDef};

mod order;
mod read;
#[cfg(test)]
mod tests;

pub use order::Consumers;
pub use read::{Import, output_name, parse_input};

/// A node's number in its graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(pub(super) u32);

/// A device's number in the list a graph was placed on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct DeviceIndex(pub u32);

/// An output of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Output {
    /// The node.
    pub node: NodeId,
    /// Which of its outputs.
    pub port: u32,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// What it does.
    pub op: Arc<Op>,
    /// Where it was asked to stand.
    pub device: String,
    /// Where it stands.
    pub assigned: Option<DeviceIndex>,
    /// Its attributes, which copies of the node share: a constant has its value there.
    pub attrs: Arc<Attrs>,
    pub(super) inputs: Vec<Output>,
    pub(super) controls: Vec<NodeId>,
    pub(super) in_ports: Vec<Port>,
    pub(super) out_ports: Vec<Port>,
}

/// A graph.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    names: BTreeMap<String, NodeId>,
    /// The functions of its library, which no node may call.
    functions: BTreeSet<String>,
    versions: VersionDef,
    edges: usize,
    /// Inputs and outputs that nodes have by their attributes, connected or not.
    ports: usize,
    next_name: u64,
}

impl NodeId {
    /// Its place in the graph.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Node {
    /// The outputs it reads, in the order of its inputs.
    #[must_use]
    pub fn inputs(&self) -> &[Output] {
        &self.inputs
    }

    /// The nodes it waits for without reading from them.
    #[must_use]
    pub fn controls(&self) -> &[NodeId] {
        &self.controls
    }

    /// What its operation wants of its inputs.
    #[must_use]
    pub fn in_ports(&self) -> &[Port] {
        &self.in_ports
    }

    /// What its outputs are.
    #[must_use]
    pub fn out_ports(&self) -> &[Port] {
        &self.out_ports
    }

    /// What it does to the flow.
    #[must_use]
    pub fn role(&self) -> Role {
        self.op.role
    }
}

impl Graph {
    /// A graph without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node whose attributes are complete. Inputs may name nodes that are added later, as those of a loop's
    /// Merge do, but only [`set_input`](Self::set_input) says so.
    ///
    /// # Errors
    /// `GRAPH_MALFORMED` for a name that is taken or a wrong number of inputs, `GRAPH_TYPE` for one of another type,
    /// `GRAPH_ATTR` for attributes, `GRAPH_LIMIT` if there are too many nodes or edges.
    pub fn add(
        &mut self,
        name: String,
        op: &Arc<Op>,
        attrs: Attrs,
        inputs: Vec<Output>,
        controls: Vec<NodeId>,
    ) -> Result<NodeId, Status> {
        let mut node = self.declare(name, op, attrs)?;
        let refuse = |what: &str| {
            Err(errors::at_node(
                catalogue::GRAPH_MALFORMED,
                &node.name,
                op.name(),
                what,
            ))
        };
        if inputs.len() != node.in_ports.len() {
            return refuse(&format!(
                "NodeDef expected {} inputs, which do not match {} inputs specified",
                node.in_ports.len(),
                inputs.len()
            ));
        }
        for (index, input) in inputs.iter().enumerate() {
            self.check_input(&node, index, *input)?;
        }
        if controls
            .iter()
            .any(|control| control.index() >= self.nodes.len())
        {
            return refuse("a control input is no node of this graph");
        }
        self.count_edges(inputs.len() + controls.len())?;
        node.inputs = inputs;
        node.controls = controls;
        node.controls.sort_unstable();
        node.controls.dedup();
        self.insert(node)
    }

    /// Lets input `index` of `node` read `from`.
    ///
    /// # Errors
    /// `GRAPH_MALFORMED` if there is no such input, node or output, `GRAPH_TYPE` if the types differ.
    pub fn set_input(&mut self, node: NodeId, index: usize, from: Output) -> Result<(), Status> {
        let at = self.node(node);
        if index >= at.inputs.len() {
            let what = format!("there is no input {index}");
            return Err(errors::at_node(
                catalogue::GRAPH_MALFORMED,
                &at.name,
                at.op.name(),
                &what,
            ));
        }
        self.check_input(at, index, from)?;
        self.nodes[node.index()].inputs[index] = from;
        Ok(())
    }

    /// Lets `node` wait for `control`.
    pub fn add_control(&mut self, node: NodeId, control: NodeId) {
        let controls = &mut self.nodes[node.index()].controls;
        if let Err(at) = controls.binary_search(&control) {
            controls.insert(at, control);
            self.edges += 1;
        }
    }

    /// Sets where `node` stands.
    pub fn assign(&mut self, node: NodeId, device: DeviceIndex) {
        self.nodes[node.index()].assigned = Some(device);
    }

    /// A name that begins with `prefix` and that no node has.
    pub fn new_name(&mut self, prefix: &str) -> String {
        loop {
            let name = format!("{prefix}/_{}", self.next_name);
            self.next_name += 1;
            if !self.names.contains_key(&name) {
                return name;
            }
        }
    }

    /// The node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    /// All nodes, with their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        (0u32..).map(NodeId).zip(&self.nodes)
    }

    /// The numbers of all nodes, also of those that will have been added by the time they are asked for.
    pub(super) fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// The node of that name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.names.get(name).copied()
    }

    /// How many nodes there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// How many inputs and control inputs there are.
    #[must_use]
    pub const fn edges(&self) -> usize {
        self.edges
    }

    /// Its versions.
    #[must_use]
    pub const fn versions(&self) -> &VersionDef {
        &self.versions
    }

    /// What an output is.
    #[must_use]
    pub fn port(&self, output: Output) -> Option<Port> {
        let node = self.nodes.get(output.node.index())?;
        node.out_ports.get(output.port as usize).copied()
    }

    /// The message.
    #[must_use]
    pub fn to_def(&self) -> GraphDef {
        GraphDef {
            node: self.nodes.iter().map(|node| self.node_def(node)).collect(),
            versions: Some(self.versions.clone()),
            ..GraphDef::default()
        }
    }

    /// The nodes of these numbers, in a graph of their own where nothing connects them yet.
    pub(super) fn unconnected(&self, ids: &[NodeId]) -> Result<Self, Status> {
        let mut graph = Self {
            versions: self.versions.clone(),
            next_name: self.next_name,
            ..Self::default()
        };
        for &id in ids {
            let mut node = self.node(id).clone();
            node.inputs.clear();
            node.controls.clear();
            graph.insert(node)?;
        }
        Ok(graph)
    }

    /// Connects a node that reads from no other and waits for none: of inputs it is given as many as its operation has.
    pub(super) fn connect(
        &mut self,
        id: NodeId,
        inputs: Vec<Output>,
        mut controls: Vec<NodeId>,
    ) -> Result<(), Status> {
        for (index, &input) in inputs.iter().enumerate() {
            self.check_input(self.node(id), index, input)?;
        }
        controls.sort_unstable();
        controls.dedup();
        self.count_edges(inputs.len() + controls.len())?;
        let node = self.node_mut(id);
        node.inputs = inputs;
        node.controls = controls;
        Ok(())
    }

    fn node_def(&self, node: &Node) -> NodeDef {
        let data = node
            .inputs
            .iter()
            .map(|input| output_name(&self.node(input.node).name, input.port));
        let controls = node
            .controls
            .iter()
            .map(|&control| format!("^{}", self.node(control).name));
        NodeDef {
            name: node.name.clone(),
            op: node.op.name().to_owned(),
            input: data.chain(controls).collect(),
            device: node.device.clone(),
            attr: (*node.attrs).clone(),
        }
    }

    /// A node of that operation without inputs.
    fn declare(&self, name: String, op: &Arc<Op>, mut attrs: Attrs) -> Result<Node, Status> {
        op.signature.complete(&name, &mut attrs)?;
        Ok(Node {
            in_ports: op.signature.input_ports(&name, &attrs)?,
            out_ports: op.signature.output_ports(&name, &attrs)?,
            name,
            op: Arc::clone(op),
            device: String::new(),
            assigned: None,
            attrs: Arc::new(attrs),
            inputs: vec![],
            controls: vec![],
        })
    }

    fn insert(&mut self, node: Node) -> Result<NodeId, Status> {
        if self.nodes.len() >= GRAPH_NODES_MAX {
            let message =
                format!("the graph has more than {GRAPH_NODES_MAX} nodes (GRAPH_NODES_MAX)");
            return Err(Status::of(catalogue::GRAPH_LIMIT, message));
        }
        self.ports += node.in_ports.len() + node.out_ports.len();
        if self.ports > GRAPH_PORTS_MAX {
            let message = format!(
                "the nodes have more than {GRAPH_PORTS_MAX} inputs and outputs (GRAPH_PORTS_MAX)"
            );
            return Err(Status::of(catalogue::GRAPH_LIMIT, message));
        }
        let id = NodeId(self.nodes.len() as u32);
        if self.names.insert(node.name.clone(), id).is_some() {
            let message = format!("Node '{}' is not unique", node.name);
            return Err(Status::of(catalogue::GRAPH_MALFORMED, message));
        }
        self.nodes.push(node);
        Ok(id)
    }

    fn count_edges(&mut self, more: usize) -> Result<(), Status> {
        self.edges += more;
        if self.edges > GRAPH_EDGES_MAX {
            let message =
                format!("the graph has more than {GRAPH_EDGES_MAX} edges (GRAPH_EDGES_MAX)");
            return Err(Status::of(catalogue::GRAPH_LIMIT, message));
        }
        Ok(())
    }

    fn check_input(&self, node: &Node, index: usize, from: Output) -> Result<(), Status> {
        let refuse =
            |reason, what: String| Err(errors::at_node(reason, &node.name, node.op.name(), &what));
        let Some(source) = self.nodes.get(from.node.index()) else {
            let what = format!("input {index} is no node of this graph");
            return refuse(catalogue::GRAPH_MALFORMED, what);
        };
        let Some(given) = source.out_ports.get(from.port as usize) else {
            let what = format!(
                "Connecting to invalid output {} of source node {} which has {} outputs.",
                from.port,
                source.name,
                source.out_ports.len()
            );
            return refuse(catalogue::GRAPH_MALFORMED, what);
        };
        let wanted = node.in_ports[index].what;
        if !given.what.flows_into(wanted) {
            let what = format!(
                "Input {index} of node {} was passed {} from {}:{} incompatible with expected {wanted}.",
                node.name, given.what, source.name, from.port
            );
            return refuse(catalogue::GRAPH_TYPE, what);
        }
        // A handle says what its variable holds, and `dtype` what is assigned to it or read.
        let held = |node: &Node| attr::data_type(&node.attrs, "dtype");
        let is_handle =
            given.what.base() == DataType::DtResource && source.role() == Role::Variable;
        if is_handle
            && let (Some(expected), Some(got)) = (held(source), held(node))
            && expected != got
        {
            let what = format!(
                "Trying to read variable with wrong dtype. Expected {} got {}",
                types::name(expected),
                types::name(got)
            );
            return refuse(catalogue::GRAPH_TYPE, what);
        }
        Ok(())
    }
}
