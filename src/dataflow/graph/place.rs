//! Placement: which device each node stands on.
//!
//! Knows what was asked of each node, which nodes must stand together, and for which types of device there are kernels.
//! Nodes form groups: by `_class: loc:@other`, and because a variable's reference or handle is used only where the
//! variable is. A group stands where all its members' requests allow; a group without requests goes to the default
//! device. The rules and texts are those of TensorFlow's placer.

use std::collections::BTreeMap;

use super::attr;
use super::devices::{Devices, matches};
use super::errors;
use super::flow::{Consumers, DeviceIndex, Graph, Node, NodeId};
use rendez::ground::device::Conflict;
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
    let mut groups = Groups::of(graph)?;
    let mut placer = Placer {
        devices,
        placing,
        chosen: BTreeMap::new(),
        requests: BTreeMap::new(),
    };
    let (requests, members) = placer.requests(graph, &mut groups)?;
    let mut chosen: Vec<Option<DeviceIndex>> = vec![None; graph.len()];
    for (&root, request) in &requests {
        chosen[root.index()] =
            Some(placer.choose(graph, request.first.unwrap_or(root), &request.device)?);
    }
    // What only makes a value, or only looks at one's shape, stands beside it, unless another device was asked for.
    let consumers = Consumers::of(graph);
    let free = |id: NodeId| {
        members[id.index()] == 1
            && requests
                .get(&id)
                .is_some_and(|request| request.first.is_none())
    };
    let roots: Vec<_> = graph.ids().map(|id| groups.root(id)).collect();
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
    device: DeviceName,
    /// The first node that asks for anything.
    first: Option<NodeId>,
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
    /// What is asked of each group, by its root, and how many nodes each has.
    fn requests(
        &mut self,
        graph: &Graph,
        groups: &mut Groups,
    ) -> Result<(BTreeMap<NodeId, Request>, Vec<u32>), Status> {
        let mut requests: BTreeMap<NodeId, Request> = BTreeMap::new();
        let mut members = vec![0u32; graph.len()];
        let conflict = if self.placing.soft {
            Conflict::Clear
        } else {
            Conflict::Strict
        };
        for (id, node) in graph.nodes() {
            let root = groups.root(id);
            members[root.index()] += 1;
            let request = self.request(node)?;
            let group = requests.entry(root).or_default();
            group.device.merge(&request, conflict).map_err(|error| {
                let message = format!(
                    "Cannot colocate nodes {{{{colocation_node {}}}}} and {{{{colocation_node {}}}}}: {error}",
                    node.name,
                    graph.node(group.first.unwrap_or(root)).name
                );
                Status::of(catalogue::GRAPH_PLACEMENT, message)
            })?;
            if request != DeviceName::default() {
                group.first.get_or_insert(id);
            }
        }
        Ok((requests, members))
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

/// Which nodes stand together, as a forest whose trees are the groups (Tarjan, "Efficiency of a good but not linear set
/// union algorithm", 1975).
struct Groups {
    parents: Vec<NodeId>,
    sizes: Vec<u32>,
}

impl Groups {
    fn of(graph: &Graph) -> Result<Self, Status> {
        let mut groups = Self {
            parents: graph.ids().collect(),
            sizes: vec![1; graph.len()],
        };
        for (id, node) in graph.nodes() {
            for (input, port) in node.inputs().iter().zip(node.in_ports()) {
                let is_handle = port.what.base() == DataType::DtResource;
                if port.what.is_ref() || is_handle {
                    groups.join(id, input.node);
                }
            }
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
                groups.join(id, other);
            }
        }
        Ok(groups)
    }

    fn root(&mut self, mut id: NodeId) -> NodeId {
        while self.parents[id.index()] != id {
            let above = self.parents[self.parents[id.index()].index()];
            self.parents[id.index()] = above;
            id = above;
        }
        id
    }

    fn join(&mut self, left: NodeId, right: NodeId) {
        let (left, right) = (self.root(left), self.root(right));
        if left == right {
            return;
        }
        let (small, large) = if self.sizes[left.index()] < self.sizes[right.index()] {
            (left, right)
        } else {
            (right, left)
        };
        self.parents[small.index()] = large;
        self.sizes[large.index()] += self.sizes[small.index()];
    }
}
