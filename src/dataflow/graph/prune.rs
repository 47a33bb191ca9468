//! Pruning: what of a graph one kind of step runs: from what it is fed to what is fetched from it.
//!
//! Knows the two ways in which values come and go: by a rendezvous with the client, or as arguments of a call. The
//! rules and texts are those of TensorFlow's `subgraph.cc`.

use std::collections::{BTreeMap, BTreeSet};

use super::attr::{Attrs, IntoAttr};
use super::devices::Device;
use super::flow::{DeviceIndex, Graph, NodeId, Output, parse_input};
use super::ops::{Ops, Role};
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::DataType;

#[cfg(test)]
mod tests;

/// What a step is fed, and what is wanted of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Endpoints {
    /// Outputs whose values come from the client, as `node:output`.
    pub feeds: Vec<String>,
    /// Outputs whose values go to the client.
    pub fetches: Vec<String>,
    /// Nodes that are run for what they do.
    pub targets: Vec<String>,
}

/// How values come and go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Convention {
    /// By `_Recv` and `_Send` that end at the client, under the endpoint's name.
    Rendezvous,
    /// By `_Arg` and `_Retval`, under the endpoint's number.
    Arguments,
}

/// What a step runs.
#[derive(Clone, Debug)]
pub struct Pruned {
    /// The graph.
    pub graph: Graph,
    /// The types of what is fed, in order.
    pub feed_types: Vec<DataType>,
}

/// What the endpoints need of `graph`: nothing else is copied. Values come and go at the device `client`, which has
/// that number.
///
/// # Errors
/// `GRAPH_ENDPOINT_UNKNOWN` for nodes that are not there; `GRAPH_ENDPOINT` if nothing is wanted, an endpoint is fed
/// twice, fetched twice, or both, or an output is not there; `GRAPH_TYPE` if a variable is fed to what reads it as one.
pub fn prune(
    graph: &Graph,
    ops: &Ops,
    endpoints: &Endpoints,
    client: (DeviceIndex, &Device),
    convention: Convention,
) -> Result<Pruned, Status> {
    let Endpoints {
        feeds,
        fetches,
        targets,
    } = endpoints;
    if fetches.is_empty() && targets.is_empty() {
        return Err(refuse(
            "Must specify at least one target to fetch or execute.",
        ));
    }
    check_distinct(feeds, fetches)?;
    let fed = fed(graph, feeds)?;
    let fetched = fetched(graph, fetches)?;
    let mut roots = targeted(graph, targets)?;
    roots.extend(fetched.iter().map(|fetched| fetched.0.node));
    let needed = Needed::of(graph, &fed, roots);
    let mut rewriter = Rewriter {
        ops,
        client,
        convention,
        whole: graph,
        pruned: graph.unconnected(&needed.nodes)?,
    };
    rewriter.connect(&needed, (feeds, &fed), (fetches, &fetched))?;
    Ok(Pruned {
        graph: rewriter.pruned,
        feed_types: fed.iter().map(|fed| fed.1).collect(),
    })
}

/// An output, and the type of its elements.
type Typed = (Output, DataType);

/// What is fed.
fn fed(graph: &Graph, feeds: &[String]) -> Result<Vec<Typed>, Status> {
    let of = |feed: &String| {
        let Some(fed) = endpoint(graph, feed) else {
            let message = format!(
                "FeedInputs: unable to find feed output {}",
                super::errors::shown(feed)
            );
            return Err(Status::of(catalogue::GRAPH_ENDPOINT_UNKNOWN, message));
        };
        let Some(port) = graph.port(fed) else {
            let count = graph.node(fed.node).out_ports().len();
            return Err(refuse(format!(
                "FeedInputs: {feed} should have output index < {count}"
            )));
        };
        Ok((fed, port.what.base()))
    };
    feeds.iter().map(of).collect()
}

/// What is fetched.
fn fetched(graph: &Graph, fetches: &[String]) -> Result<Vec<Typed>, Status> {
    let of = |fetch: &String| {
        let Some(fetched) = endpoint(graph, fetch) else {
            let message = format!(
                "FetchOutputs node {}: not found",
                super::errors::shown(fetch)
            );
            return Err(Status::of(catalogue::GRAPH_ENDPOINT_UNKNOWN, message));
        };
        let count = graph.node(fetched.node).out_ports().len();
        if count == 0 {
            return Err(refuse(format!(
                "Tried to fetch data for '{fetch}', which produces no output.  To run to a node but not fetch any \
                 data, pass '{fetch}' as an argument to the 'target_node_names' argument of the Session::Run API."
            )));
        }
        let Some(port) = graph.port(fetched) else {
            return Err(refuse(format!(
                "FetchOutputs {fetch}: output index too large, must be < {count}"
            )));
        };
        Ok((fetched, port.what.base()))
    };
    fetches.iter().map(of).collect()
}

/// The nodes that are run for what they do.
fn targeted(graph: &Graph, targets: &[String]) -> Result<Vec<NodeId>, Status> {
    let mut found = vec![];
    let mut missing = String::new();
    for target in targets {
        let name = parse_input(target).map_or(target.as_str(), |(name, _)| name);
        match graph.find(name) {
            Some(node) => found.push(node),
            None => missing.extend([super::errors::shown(target), " "]),
        }
    }
    if missing.is_empty() {
        return Ok(found);
    }
    let message = format!("PruneForTargets: Some target nodes not found: {missing}");
    Err(Status::of(catalogue::GRAPH_ENDPOINT_UNKNOWN, message))
}

/// What a step runs of a graph.
struct Needed {
    /// In the order of their numbers.
    nodes: Vec<NodeId>,
    /// Those of the feeds that are read or waited for.
    feeds: BTreeSet<usize>,
    /// Which feed stands for an output.
    by_output: BTreeMap<Output, usize>,
    /// Which feed stands for a node that is waited for. A placeholder that is fed has nothing to run: a node that waits
    /// for it waits for its value.
    by_node: BTreeMap<NodeId, usize>,
}

impl Needed {
    /// What `roots` wait for, directly or not, as far as it is not fed, and themselves.
    fn of(graph: &Graph, fed: &[Typed], mut roots: Vec<NodeId>) -> Self {
        let outputs = fed.iter().zip(0..);
        let by_output: BTreeMap<_, _> = outputs.map(|(fed, index)| (fed.0, index)).collect();
        let nodes = by_output
            .iter()
            .map(|(output, &index)| (output.node, index));
        let placeholders = nodes.filter(|(id, _)| graph.node(*id).role() == Role::Placeholder);
        let mut needed = Self {
            nodes: vec![],
            feeds: BTreeSet::new(),
            by_node: placeholders.collect(),
            by_output,
        };
        let mut seen = vec![false; graph.len()];
        while let Some(id) = roots.pop() {
            if std::mem::replace(&mut seen[id.index()], true) {
                continue;
            }
            needed.nodes.push(id);
            let node = graph.node(id);
            let data = node.inputs().iter();
            let data = data.map(|input| (input.node, needed.by_output.get(input)));
            let controls = node.controls().iter();
            let controls = controls.map(|control| (*control, needed.by_node.get(control)));
            for (from, feed) in data.chain(controls) {
                match feed {
                    Some(&feed) => {
                        needed.feeds.insert(feed);
                    }
                    None => roots.push(from),
                }
            }
        }
        needed.nodes.sort_unstable();
        needed
    }
}

struct Rewriter<'a> {
    ops: &'a Ops,
    client: (DeviceIndex, &'a Device),
    convention: Convention,
    whole: &'a Graph,
    pruned: Graph,
}

impl Rewriter<'_> {
    /// Adds where values come and go, and connects all.
    fn connect(
        &mut self,
        needed: &Needed,
        (feeds, fed): (&[String], &[Typed]),
        (fetches, fetched): (&[String], &[Typed]),
    ) -> Result<(), Status> {
        let nodes: Vec<_> = needed
            .nodes
            .iter()
            .copied()
            .zip(self.pruned.ids())
            .collect();
        let mut new_ids = vec![NodeId(0); self.whole.len()];
        for (old, new) in &nodes {
            new_ids[old.index()] = *new;
        }
        let mut sources = BTreeMap::new();
        for &index in &needed.feeds {
            let source = self.source(&feeds[index], fed[index], index)?;
            sources.insert(index, source);
        }
        for (old, new) in nodes {
            let node = self.whole.node(old);
            let input = |input: &Output| match needed.by_output.get(input) {
                Some(feed) => sources[feed],
                None => Output {
                    node: new_ids[input.node.index()],
                    port: input.port,
                },
            };
            let control = |control: &NodeId| match needed.by_node.get(control) {
                Some(feed) => sources[feed].node,
                None => new_ids[control.index()],
            };
            let inputs = node.inputs().iter().map(input).collect();
            let controls = node.controls().iter().map(control).collect();
            self.pruned.connect(new, inputs, controls)?;
        }
        for (index, (fetch, (output, base))) in fetches.iter().zip(fetched).enumerate() {
            let from = Output {
                node: new_ids[output.node.index()],
                port: output.port,
            };
            self.sink(fetch, from, index, *base)?;
        }
        Ok(())
    }

    /// The node that gives what is fed.
    fn source(&mut self, feed: &str, (fed, base): Typed, index: usize) -> Result<Output, Status> {
        let name = &self.whole.node(fed.node).name;
        let (name, op, attrs) = match self.convention {
            Convention::Rendezvous => {
                let name = format!("_recv_{name}_{}", fed.port);
                (name, "_Recv", self.crossing("tensor_type", base, feed))
            }
            Convention::Arguments => {
                let name = format!("_arg_{name}_{}_{index}", fed.port);
                (name, "_Arg", argument(base, index))
            }
        };
        let node = self.add(name, op, attrs, vec![])?;
        Ok(Output { node, port: 0 })
    }

    /// The node that takes what is fetched.
    fn sink(
        &mut self,
        fetch: &str,
        fetched: Output,
        index: usize,
        base: DataType,
    ) -> Result<NodeId, Status> {
        let name = &self.pruned.node(fetched.node).name;
        let (name, op, attrs) = match self.convention {
            Convention::Rendezvous => {
                let name = format!("_send_{name}_{}", fetched.port);
                (name, "_Send", self.crossing("T", base, fetch))
            }
            Convention::Arguments => {
                let name = format!("_retval_{name}_{}_{index}", fetched.port);
                (name, "_Retval", argument(base, index))
            }
        };
        self.add(name, op, attrs, vec![fetched])
    }

    fn add(
        &mut self,
        name: String,
        op: &str,
        attrs: Attrs,
        inputs: Vec<Output>,
    ) -> Result<NodeId, Status> {
        let op = self.ops.find(op, &name)?.clone();
        let node = self.pruned.add(name, &op, attrs, inputs, vec![])?;
        let (number, device) = self.client;
        self.pruned.node_mut(node).device.clone_from(&device.text);
        self.pruned.assign(node, number);
        Ok(node)
    }

    fn crossing(&self, type_attr: &str, base: DataType, name: &str) -> Attrs {
        let (_, device) = self.client;
        [
            (type_attr, base.into_attr()),
            ("tensor_name", name.into_attr()),
            ("send_device", device.text.as_str().into_attr()),
            ("recv_device", device.text.as_str().into_attr()),
            (
                "send_device_incarnation",
                device.incarnation.0.cast_signed().into_attr(),
            ),
            ("client_terminated", true.into_attr()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

fn argument(base: DataType, index: usize) -> Attrs {
    let index = i64::try_from(index).unwrap_or(i64::MAX);
    let attrs = [("T", base.into_attr()), ("index", index.into_attr())];
    attrs.map(|(name, value)| (name.to_owned(), value)).into()
}

fn refuse(message: impl Into<String>) -> Status {
    Status::of(catalogue::GRAPH_ENDPOINT, message.into())
}

fn endpoint(graph: &Graph, text: &str) -> Option<Output> {
    let (name, port) = parse_input(text)?;
    Some(Output {
        node: graph.find(name)?,
        port: port?,
    })
}

fn check_distinct(feeds: &[String], fetches: &[String]) -> Result<(), Status> {
    // `x` and `x:0` are one endpoint.
    let mut fed = BTreeSet::new();
    for feed in feeds {
        if !fed.insert(parse_input(feed)) {
            return Err(refuse(format!("Endpoint \"{feed}\" fed more than once.")));
        }
    }
    let mut fetched = BTreeSet::new();
    for fetch in fetches {
        let endpoint = parse_input(fetch);
        if fed.contains(&endpoint) {
            return Err(refuse(format!("{fetch} is both fed and fetched.")));
        }
        if !fetched.insert(endpoint) {
            return Err(refuse(format!(
                "Endpoint \"{fetch}\" fetched more than once."
            )));
        }
    }
    Ok(())
}
