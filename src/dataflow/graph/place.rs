//! Placement: which device each node stands on.
//!
//! Knows what was asked of each node, which nodes must stand together, and for which types of device there are kernels.
//! Nodes form groups: because a variable's reference or handle is used only where the variable is, and then by `_class:
//! loc:@other`. A group stands where all its members' requests allow; a group without requests goes to the default
//! device. Where what uses a variable asks for another device than that, the variable is heard, and its user is not.
//! The rules and texts are those of TensorFlow's placer.

use std::collections::BTreeMap;

use super::attr;
use super::devices::{Devices, matches};
use super::errors;
use super::flow::{Consumers, DeviceIndex, Graph, Node, NodeId};
use super::signature::Port;
use rendez::ground::device::{Conflict, DeviceError};
use rendez::ground::{DeviceName, Status, catalogue};
use rendez_proto::tensorflow::DataType;

mod setter;
#[cfg(test)]
mod tests;

pub use setter::{DeviceSetter, Strategy};

/// How a graph is placed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placing<'a> {
    /// A node whose device is not there, or has no kernels, stands on another one of its task.
    pub soft: bool,
    /// The types of device that have kernels, the best first.
    pub kinds: &'a [&'a str],
    /// Where a node stands if nothing speaks for another device.
    pub default: DeviceIndex,
}

/// Gives every node of `graph` that has none a device.
///
/// # Errors
/// `GRAPH_PLACEMENT` if a node cannot stand anywhere, or must stand with one that is not there or elsewhere;
/// `DEVICE_MALFORMED` for a request that is no device name.
pub fn place(graph: &mut Graph, devices: &Devices, placing: &Placing<'_>) -> Result<(), Status> {
    let mut placer = Placer {
        devices,
        placing,
        chosen: BTreeMap::new(),
        requests: BTreeMap::new(),
    };
    let mut groups = placer.groups(graph)?;
    let roots: Vec<_> = graph.ids().map(|id| groups.root(id)).collect();
    let mut chosen: Vec<Option<DeviceIndex>> = vec![None; graph.len()];
    for root in graph.ids().filter(|&id| roots[id.index()] == id) {
        let request = groups.request(root);
        let first = request.first.unwrap_or(root);
        chosen[root.index()] = Some(placer.choose(graph, first, &request.device)?);
    }
    // What only makes a value, or only looks at one's shape, stands beside it, unless another device was asked for.
    let consumers = Consumers::of(graph);
    let free = |id: NodeId| {
        let request = groups.request(id);
        request.members == 1 && request.first.is_none()
    };
    for id in graph.ids() {
        let node = graph.node(id);
        if node.assigned.is_some() {
            continue;
        }
        let mut device = chosen[roots[id.index()].index()];
        if free(id)
            && let Some(beside) = companion(graph, &consumers, id)
        {
            device = chosen[roots[beside.index()].index()];
        }
        if let Some(device) = device {
            graph.assign(id, device);
        }
    }
    Ok(())
}

/// The node beside which one without a request stands: a source's only reader, or the value whose shape is looked at.
fn companion(graph: &Graph, consumers: &Consumers, id: NodeId) -> Option<NodeId> {
    let node = graph.node(id);
    if matches!(node.op.name(), "Shape" | "Size" | "Rank") {
        return node.inputs().first().map(|input| input.node);
    }
    let is_source =
        node.inputs().is_empty() && node.controls().is_empty() && node.out_ports().len() == 1;
    if !is_source || node.out_ports().iter().any(|port| port.what.is_ref()) || node.op.is_stateful {
        return None;
    }
    match consumers.of_node(id) {
        [(reader, Some(_))] => Some(*reader),
        _ => None,
    }
}

/// What is asked of a group.
#[derive(Default)]
struct Request {
    /// All that counts of what its members ask for; nothing of it contradicts `fixed`.
    device: DeviceName,
    /// What its variables ask for, and where members stand already.
    fixed: DeviceName,
    /// The first node that asks for anything that counts.
    first: Option<NodeId>,
    members: u32,
}

struct Placer<'a> {
    devices: &'a Devices,
    placing: &'a Placing<'a>,
    /// Devices by request: a graph asks for few different ones.
    chosen: BTreeMap<DeviceName, DeviceIndex>,
    /// Parsed requests by their text.
    requests: BTreeMap<String, DeviceName>,
}

impl Placer<'_> {
    /// The groups, and what is asked of them.
    fn groups(&mut self, graph: &Graph) -> Result<Groups, Status> {
        let mut groups = Groups {
            parents: graph.ids().collect(),
            requests: Vec::with_capacity(graph.len()),
        };
        for (id, node) in graph.nodes() {
            let device = self.request(node)?;
            let is_fixed = node.assigned.is_some() || makes_variable(node);
            groups.requests.push(Request {
                fixed: if is_fixed {
                    device.clone()
                } else {
                    DeviceName::default()
                },
                first: (device != DeviceName::default()).then_some(id),
                device,
                members: 1,
            });
        }
        for (id, node) in graph.nodes() {
            for (input, port) in node.inputs().iter().zip(node.in_ports()) {
                if is_variable(port) {
                    groups.use_at(graph, input.node, id)?;
                }
            }
        }
        let conflict = if self.placing.soft {
            Conflict::Clear
        } else {
            Conflict::Strict
        };
        for (id, node) in graph.nodes() {
            let classes = attr::list(&node.attrs, "_class").map_or(&[][..], |list| &list.s);
            for class in classes {
                let Some(name) = class.strip_prefix(b"loc:@") else {
                    continue;
                };
                let name = String::from_utf8_lossy(name);
                let Some(other) = graph.find(&name) else {
                    let message = format!(
                        "Node '{}' expects to be colocated with unknown node '{}'",
                        node.name,
                        errors::shown(&name)
                    );
                    return Err(Status::of(catalogue::GRAPH_PLACEMENT, message));
                };
                groups.stand_together(graph, id, other, conflict)?;
            }
        }
        Ok(groups)
    }

    fn request(&mut self, node: &Node) -> Result<DeviceName, Status> {
        if let Some(device) = node.assigned.and_then(|device| self.devices.device(device)) {
            return Ok(device.name.clone());
        }
        if let Some(known) = self.requests.get(&node.device) {
            return Ok(known.clone());
        }
        let name = match node.device.as_str() {
            "" => DeviceName::default(),
            text => DeviceName::parse(text).map_err(|error| {
                let what = format!(
                    "Malformed device specification '{}': {error}",
                    errors::shown(text)
                );
                errors::at_node(
                    catalogue::DEVICE_MALFORMED,
                    &node.name,
                    node.op.name(),
                    &what,
                )
            })?,
        };
        self.requests.insert(node.device.clone(), name.clone());
        Ok(name)
    }

    fn choose(
        &mut self,
        graph: &Graph,
        root: NodeId,
        request: &DeviceName,
    ) -> Result<DeviceIndex, Status> {
        if let Some(&known) = self.chosen.get(request) {
            return Ok(known);
        }
        let mut found = self.best(request);
        if found.is_none() && self.placing.soft {
            found = self.best(&softened(request));
        }
        let Some(device) = found else {
            let node = graph.node(root);
            let all: Vec<_> = self
                .devices
                .iter()
                .map(|device| device.text.as_str())
                .collect();
            let there = self
                .devices
                .iter()
                .any(|device| matches(request, &device.name));
            let why = if there {
                "but no kernel here runs on that type of device"
            } else {
                "but available devices are"
            };
            let message = format!(
                "Cannot assign a device for operation {name}: {{{{node {name}}}}} was explicitly assigned to \
                 {request} {why} [ {} ]. Make sure the device specification refers to a valid device.",
                all.join(", "),
                name = node.name
            );
            return Err(Status::of(catalogue::GRAPH_PLACEMENT, message));
        };
        self.chosen.insert(request.clone(), device);
        Ok(device)
    }

    /// The best of those that match: by type, then the default device, then one of its task, then by name.
    fn best(&self, request: &DeviceName) -> Option<DeviceIndex> {
        let default = self.devices.device(self.placing.default);
        let numbered = (0..).map(DeviceIndex).zip(self.devices.iter());
        let candidates = numbered.filter_map(|(index, device)| {
            let kind = device.name.kind()?;
            let rank = self.placing.kinds.iter().position(|known| *known == kind)?;
            let is_default = index == self.placing.default;
            let is_near = default.is_some_and(|default| default.task == device.task);
            matches(request, &device.name)
                .then_some(((rank, !is_default, !is_near, &device.name), index))
        });
        candidates
            .min_by_key(|(key, _)| *key)
            .map(|(_, index)| index)
    }
}

/// The request without the type of device and its number.
fn softened(request: &DeviceName) -> DeviceName {
    let mut task = DeviceName::default();
    let parts = [
        request.job().map(|job| format!("/job:{job}")),
        request
            .replica()
            .map(|replica| format!("/replica:{replica}")),
        request.task().map(|index| format!("/task:{index}")),
    ];
    let text: String = parts.into_iter().flatten().collect();
    if let Ok(parsed) = DeviceName::parse(if text.is_empty() { "/" } else { &text }) {
        task = parsed;
    }
    task
}

/// True if a variable's reference or handle goes through.
fn is_variable(port: &Port) -> bool {
    port.what.is_ref() || port.what.base() == DataType::DtResource
}

/// True if a variable begins at a node.
fn makes_variable(node: &Node) -> bool {
    node.out_ports().iter().any(is_variable) && !node.in_ports().iter().any(is_variable)
}

/// Which nodes stand together, as a forest whose trees are the groups (Tarjan, "Efficiency of a good but not linear set
/// union algorithm", 1975).
struct Groups {
    parents: Vec<NodeId>,
    /// Those of roots count.
    requests: Vec<Request>,
}

impl Groups {
    /// What is asked of the group with that root.
    fn request(&self, root: NodeId) -> &Request {
        &self.requests[root.index()]
    }

    /// A variable that comes from `source` is used at `user`.
    fn use_at(&mut self, graph: &Graph, source: NodeId, user: NodeId) -> Result<(), Status> {
        let (from, to) = (self.root(source), self.root(user));
        if from == to {
            return Ok(());
        }
        let (above, below) = (self.request(from), self.request(to));
        let Ok(fixed) = merged(&above.fixed, &below.fixed) else {
            let message = format!(
                "Cannot place the graph because a reference or resource edge connects colocation groups with \
                 incompatible resource devices: {} vs {}. The edge src node is {} , and the dst node is {}",
                above.fixed,
                below.fixed,
                graph.node(source).name,
                graph.node(user).name
            );
            return Err(Status::of(catalogue::GRAPH_PLACEMENT, message));
        };
        let both = merged(&above.device, &below.device);
        let (device, first) = if let Ok(device) = both {
            (device, above.first.or(below.first))
        } else if let Ok(device) = merged(&above.device, &below.fixed) {
            (device, above.first)
        } else {
            // The source only passes on a variable that has not been followed to it yet.
            let device = merged(&below.device, &above.fixed);
            (device.unwrap_or_else(|_| fixed.clone()), below.first)
        };
        self.join(from, to, device, fixed, first);
        Ok(())
    }

    /// A node asks to stand with another one.
    fn stand_together(
        &mut self,
        graph: &Graph,
        node: NodeId,
        other: NodeId,
        conflict: Conflict,
    ) -> Result<(), Status> {
        let (one, two) = (self.root(node), self.root(other));
        if one == two {
            return Ok(());
        }
        let (left, right) = (self.request(one), self.request(two));
        let refused = |error: DeviceError| {
            let message = format!(
                "Cannot colocate nodes {{{{colocation_node {}}}}} and {{{{colocation_node {}}}}}: {error}",
                graph.node(node).name,
                graph.node(other).name
            );
            Status::of(catalogue::GRAPH_PLACEMENT, message)
        };
        let (mut asked, mut fixed) = (right.device.clone(), right.fixed.clone());
        asked.merge(&left.device, conflict).map_err(refused)?;
        fixed.merge(&left.fixed, conflict).map_err(refused)?;
        let mut device = fixed.clone();
        device.fill(&asked);
        let first = right.first.or(left.first);
        self.join(one, two, device, fixed, first);
        Ok(())
    }

    fn root(&mut self, mut id: NodeId) -> NodeId {
        while self.parents[id.index()] != id {
            let above = self.parents[self.parents[id.index()].index()];
            self.parents[id.index()] = above;
            id = above;
        }
        id
    }

    /// Two roots become one, of which that is asked.
    fn join(
        &mut self,
        left: NodeId,
        right: NodeId,
        device: DeviceName,
        fixed: DeviceName,
        first: Option<NodeId>,
    ) {
        let (members, others) = (self.request(left).members, self.request(right).members);
        let (small, large) = if members < others {
            (left, right)
        } else {
            (right, left)
        };
        self.parents[small.index()] = large;
        self.requests[small.index()] = Request::default();
        self.requests[large.index()] = Request {
            device,
            fixed,
            first,
            members: members + others,
        };
    }
}

/// What both names ask for.
fn merged(left: &DeviceName, right: &DeviceName) -> Result<DeviceName, DeviceError> {
    let mut both = left.clone();
    both.merge(right, Conflict::Strict)?;
    Ok(both)
}
