//! Partition: cuts a placed graph into parts that send each other what crosses.
//!
//! Knows names and types of what crosses, and nothing of values or of their transport. The rules are those of
//! TensorFlow's `graph_partition.cc`:
//!
//! ```text
//!      part a                      part b
//!   x ──▶ y                     x ──▶ _Send ····▶ _Recv ──▶ y      a value: one pair for each (output, part)
//!   x ─ ─▶ y (waits)            x ─ ─▶ Const ──▶ _Send ····▶ _Recv ──▶ Identity ─ ─▶ y
//! ```
//!
//! A dead value crosses as a dead value: sends and receives run whether their inputs are dead or not. Inside a loop a
//! receive waits for its device's control loop, so that it runs once in each iteration.

use std::collections::BTreeMap;

use super::attr::{Attrs, IntoAttr};
use super::devices::{Device, Devices};
use super::errors;
use super::flow::{Graph, Node, NodeId, output_name};
use super::ops::{Ops, Role};
use super::types::Type;
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::{DataType, GraphDef, NodeDef};

#[cfg(test)]
pub(crate) mod interpreter;
mod loops;
mod reads;
#[cfg(test)]
pub(crate) mod tests;

use loops::empty_floats;

/// The parts of a graph, by the name of their task.
pub type Parts = BTreeMap<String, GraphDef>;

/// Cuts `graph`, which was placed on `devices`, between tasks. Floats cross as bfloat16 if they are to be `narrow`:
/// half the bytes, and of 24 bits of a number 8. Takes time in proportion to its edges, up to a logarithmic factor.
///
/// # Errors
/// `GRAPH_DEVICE` for a node that was not placed, `GRAPH_FRAME` for loops that contradict themselves or cross devices
/// without a condition, `GRAPH_PLACEMENT` for a reference that is written on another device than its variable's,
/// `GRAPH_LIMIT` if control loops or reads make the graph too large.
pub fn partition(
    mut graph: Graph,
    devices: &Devices,
    ops: &Ops,
    narrow: bool,
) -> Result<Parts, Status> {
    check_placed(&graph, devices)?;
    loops::colocate(&mut graph)?;
    reads::add(&mut graph, ops)?;
    loops::add(&mut graph, ops)?;
    let mut cutter = Cutter::new(&graph, devices, narrow);
    for (id, _) in graph.nodes() {
        cutter.node(id)?;
    }
    Ok(cutter.finish())
}

/// What is known while a graph is cut.
struct Cutter<'a> {
    graph: &'a Graph,
    devices: &'a Devices,
    narrow: bool,
    /// The part of each device, and the names of the parts.
    part_of_device: Vec<usize>,
    names: Vec<String>,
    parts: Vec<Vec<NodeDef>>,
    /// The receives there are, by what they receive.
    received: BTreeMap<Crossing, String>,
    next_edge: u64,
    next_name: u64,
}

/// What is received once and read often: an output, or the end of a node, in a part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Crossing {
    from: NodeId,
    port: Option<u32>,
    part: usize,
}

/// An edge that is looked at.
#[derive(Clone, Copy)]
struct Edge {
    from: NodeId,
    /// The output that is read; a control edge has none.
    port: Option<u32>,
    /// The input that reads it.
    input: usize,
    number: u64,
}

impl<'a> Cutter<'a> {
    fn new(graph: &'a Graph, devices: &'a Devices, narrow: bool) -> Self {
        let mut names = vec![];
        let mut numbers = BTreeMap::new();
        let part_of_device = devices.iter().map(|device| {
            let name = device.task.to_string();
            *numbers.entry(name.clone()).or_insert_with(|| {
                names.push(name);
                names.len() - 1
            })
        });
        let part_of_device = part_of_device.collect();
        Self {
            graph,
            devices,
            narrow,
            part_of_device,
            parts: names.iter().map(|_| vec![]).collect(),
            names,
            received: BTreeMap::new(),
            next_edge: 0,
            next_name: 0,
        }
    }

    /// Puts one node into its part, with what its inputs need to come there.
    fn node(&mut self, id: NodeId) -> Result<(), Status> {
        let (graph, node) = (self.graph, self.graph.node(id));
        let part = self.part(id);
        let mut inputs = Vec::with_capacity(node.inputs().len() + node.controls().len());
        let control_loop = node
            .controls()
            .iter()
            .copied()
            .find(|&from| loops::is_control_merge(graph, from));
        for edge in self.edges(node) {
            if edge.port.is_none() && Some(edge.from) == control_loop {
                continue;
            }
            let from = graph.node(edge.from);
            let is_ref = edge
                .port
                .is_some_and(|port| from.out_ports()[port as usize].what.is_ref());
            if self.part(edge.from) == part {
                inputs.push(input_text(&from.name, edge.port));
                continue;
            }
            if is_ref && node.in_ports()[edge.input].what.is_ref() {
                let what = format!(
                    "it writes a variable, {}, that stands on another device",
                    from.name
                );
                return Err(errors::at_node(
                    catalogue::GRAPH_PLACEMENT,
                    &node.name,
                    node.op.name(),
                    &what,
                ));
            }
            let crossing = Crossing {
                from: edge.from,
                port: edge.port,
                part,
            };
            if let Some(name) = self.received.get(&crossing) {
                inputs.push(input_text(name, edge.port.map(|_| 0)));
                continue;
            }
            let name = self.cross(edge, node, control_loop);
            inputs.push(input_text(&name, edge.port.map(|_| 0)));
            // Two nodes that read a variable may find two values.
            if !is_ref {
                self.received.insert(crossing, name);
            }
        }
        let def = self.placed(node, inputs);
        self.parts[part].push(def);
        Ok(())
    }

    /// The edges into a node, data first, each with its number in the graph.
    fn edges(&mut self, node: &Node) -> Vec<Edge> {
        let data = node.inputs().iter().enumerate();
        let data = data.map(|(input, from)| (from.node, Some(from.port), input));
        let controls = node.controls().iter().map(|&from| (from, None, 0));
        let numbered = data.chain(controls).zip(self.next_edge..);
        let edges: Vec<_> = numbered
            .map(|((from, port, input), number)| Edge {
                from,
                port,
                input,
                number,
            })
            .collect();
        self.next_edge += edges.len() as u64;
        edges
    }

    /// Adds a send and a receive. Returns what the reader reads.
    fn cross(&mut self, edge: Edge, to: &Node, control_loop: Option<NodeId>) -> String {
        let (graph, from) = (self.graph, self.graph.node(edge.from));
        let (source, target) = (self.part(edge.from), self.part_of(to));
        let what = edge.port.map_or(Type::of(DataType::DtFloat), |port| {
            from.out_ports()[port as usize].what
        });
        let narrow = self.narrow && edge.port.is_some() && what.base() == DataType::DtFloat;
        let travels = if narrow {
            DataType::DtBfloat16
        } else {
            what.base()
        };
        let attrs = self.crossing_attrs(edge, from, to);

        let mut sent = match edge.port {
            Some(port) => output_name(&from.name, port),
            None => self.dummy(from, source),
        };
        if narrow {
            sent = self.cast(from, from, source, sent, (what.base(), travels));
        }
        let send = self.new_name(&from.name);
        let mut send_attrs = attrs.clone();
        set(&mut send_attrs, "T", travels);
        let mut def = self.def(&send, "_Send", from, send_attrs);
        def.input.push(sent);
        self.parts[source].push(def);

        let recv = self.new_name(&from.name);
        let mut recv_attrs = attrs;
        set(&mut recv_attrs, "tensor_type", travels);
        let mut def = self.def(&recv, "_Recv", to, recv_attrs);
        if let Some(merge) = control_loop {
            def.input.push(format!("^{}", graph.node(merge).name));
        }
        self.parts[target].push(def);

        if narrow {
            self.cast(from, to, target, recv.clone(), (travels, what.base()))
        } else if edge.port.is_none() {
            self.identity(from, to, target, recv.clone())
        } else {
            recv
        }
    }

    /// What a send and its receive are called.
    fn crossing_attrs(&self, edge: Edge, from: &Node, to: &Node) -> Attrs {
        let (sender, receiver) = (self.device(from), self.device(to));
        let mut attrs = Attrs::new();
        set(
            &mut attrs,
            "tensor_name",
            format!("edge_{}_{}", edge.number, from.name),
        );
        set(
            &mut attrs,
            "send_device",
            sender.map_or("", |device| &device.text),
        );
        let incarnation = sender.map_or(0, |device| device.incarnation.0);
        set(
            &mut attrs,
            "send_device_incarnation",
            incarnation.cast_signed(),
        );
        set(
            &mut attrs,
            "recv_device",
            receiver.map_or("", |device| &device.text),
        );
        set(&mut attrs, "client_terminated", false);
        set(&mut attrs, "_src", from.name.as_str());
        set(&mut attrs, "_dst", to.name.as_str());
        attrs
    }

    /// A constant without elements that waits for `from`: what crosses for a control edge.
    fn dummy(&mut self, from: &Node, part: usize) -> String {
        let name = self.new_name(&format!("{}/ctrl", from.name));
        let mut attrs = Attrs::new();
        set(&mut attrs, "dtype", DataType::DtFloat);
        set(&mut attrs, "value", empty_floats());
        let mut def = self.def(&name, "Const", from, attrs);
        def.input.push(format!("^{}", from.name));
        self.parts[part].push(def);
        name
    }

    fn identity(&mut self, from: &Node, to: &Node, part: usize, input: String) -> String {
        let name = self.new_name(&from.name);
        let mut attrs = Attrs::new();
        set(&mut attrs, "T", DataType::DtFloat);
        let mut def = self.def(&name, "Identity", to, attrs);
        def.input.push(input);
        self.parts[part].push(def);
        name
    }

    fn cast(
        &mut self,
        named: &Node,
        beside: &Node,
        part: usize,
        input: String,
        (from, to): (DataType, DataType),
    ) -> String {
        let name = self.new_name(&named.name);
        let mut attrs = Attrs::new();
        set(&mut attrs, "SrcT", from);
        set(&mut attrs, "DstT", to);
        // Cut off, not rounded: what crosses is the upper half of the number.
        set(&mut attrs, "Truncate", to == DataType::DtBfloat16);
        let mut def = self.def(&name, "Cast", beside, attrs);
        def.input.push(input);
        self.parts[part].push(def);
        name
    }

    fn def(&self, name: &str, op: &str, beside: &Node, attrs: Attrs) -> NodeDef {
        NodeDef {
            name: name.to_owned(),
            op: op.to_owned(),
            input: vec![],
            device: self
                .device(beside)
                .map_or_else(String::new, |device| device.text.clone()),
            attr: attrs,
        }
    }

    /// The node's message. Its incarnation is set if it is a send or a receive that was there before.
    fn placed(&self, node: &Node, input: Vec<String>) -> NodeDef {
        let mut def = self.def(&node.name, node.op.name(), node, (*node.attrs).clone());
        def.input = input;
        if matches!(node.role(), Role::Send | Role::Recv)
            && super::attr::int(&def.attr, "send_device_incarnation").unwrap_or(0) == 0
        {
            let sender = super::attr::text(&def.attr, "send_device").unwrap_or_default();
            let sender = self.devices.iter().find(|device| device.text == sender);
            if let Some(sender) = sender {
                let incarnation = sender.incarnation.0.cast_signed();
                set(&mut def.attr, "send_device_incarnation", incarnation);
            }
        }
        def
    }

    fn device(&self, node: &Node) -> Option<&'a Device> {
        self.devices.device(node.assigned?)
    }

    fn part(&self, id: NodeId) -> usize {
        self.part_of(self.graph.node(id))
    }

    fn part_of(&self, node: &Node) -> usize {
        node.assigned
            .map_or(0, |device| self.part_of_device[device.0 as usize])
    }

    fn new_name(&mut self, prefix: &str) -> String {
        loop {
            let name = format!("{prefix}/_{}", self.next_name);
            self.next_name += 1;
            if self.graph.find(&name).is_none() {
                return name;
            }
        }
    }

    fn finish(self) -> Parts {
        let versions = self.graph.versions();
        let parts = self.names.into_iter().zip(self.parts);
        let parts = parts.filter(|(_, nodes)| !nodes.is_empty());
        let def = |node| GraphDef {
            node,
            versions: Some(versions.clone()),
            ..GraphDef::default()
        };
        parts.map(|(name, nodes)| (name, def(nodes))).collect()
    }
}

fn check_placed(graph: &Graph, devices: &Devices) -> Result<(), Status> {
    for (_, node) in graph.nodes() {
        if node
            .assigned
            .and_then(|device| devices.device(device))
            .is_none()
        {
            let what = format!("Malformed assigned device '{}'", node.device);
            return Err(errors::at_node(
                catalogue::GRAPH_DEVICE,
                &node.name,
                node.op.name(),
                &what,
            ));
        }
    }
    Ok(())
}

fn input_text(name: &str, port: Option<u32>) -> String {
    match port {
        Some(port) => output_name(name, port),
        None => format!("^{name}"),
    }
}

fn set(attrs: &mut Attrs, name: &str, value: impl IntoAttr) {
    attrs.insert(name.to_owned(), value.into_attr());
}
