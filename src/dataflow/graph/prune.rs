//! Pruning: what of a graph one kind of step runs: from what it is fed to what is fetched from it.
//!
//! Knows the two ways in which values come and go: by a rendezvous with the client, or as arguments of a call. The
//! rules and texts are those of TensorFlow's `subgraph.cc`.

use std::collections::BTreeSet;

use super::attr::{Attrs, IntoAttr};
use super::devices::Device;
use super::flow::{Consumers, DeviceIndex, Graph, NodeId, Output, parse_input};
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

/// Reduces `graph` to what the endpoints need. Values come and go at the device `client`, which has that number.
///
/// # Errors
/// `GRAPH_ENDPOINT_UNKNOWN` for nodes that are not there; `GRAPH_ENDPOINT` if nothing is wanted, an endpoint is fed
/// twice, fetched twice, or both, or an output is not there; `GRAPH_TYPE` if a variable itself is fed.
pub fn prune(
    mut graph: Graph,
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
    let mut rewriter = Rewriter {
        ops,
        client,
        convention,
        feed_types: vec![],
        roots: vec![],
    };
    rewriter.feed(&mut graph, feeds)?;
    rewriter.fetch(&mut graph, fetches)?;
    let mut missing = String::new();
    for target in targets {
        let name = parse_input(target).map_or(target.as_str(), |(name, _)| name);
        match graph.find(name) {
            Some(node) => rewriter.roots.push(node),
            None => missing.extend([super::errors::shown(target), " "]),
        }
    }
    if !missing.is_empty() {
        let message = format!("PruneForTargets: Some target nodes not found: {missing}");
        return Err(Status::of(catalogue::GRAPH_ENDPOINT_UNKNOWN, message));
    }
    let keep = reachable(&graph, rewriter.roots);
    Ok(Pruned {
        graph: graph.retain(&keep),
        feed_types: rewriter.feed_types,
    })
}

struct Rewriter<'a> {
    ops: &'a Ops,
    client: (DeviceIndex, &'a Device),
    convention: Convention,
    feed_types: Vec<DataType>,
    roots: Vec<NodeId>,
}

impl Rewriter<'_> {
    fn feed(&mut self, graph: &mut Graph, feeds: &[String]) -> Result<(), Status> {
        let consumers = Consumers::of(graph);
        for (index, feed) in feeds.iter().enumerate() {
            let Some(fed) = endpoint(graph, feed) else {
                let message = format!(
                    "FeedInputs: unable to find feed output {}",
                    super::errors::shown(feed)
                );
                return Err(Status::of(catalogue::GRAPH_ENDPOINT_UNKNOWN, message));
            };
            let node = graph.node(fed.node);
            let Some(port) = node.out_ports().get(fed.port as usize) else {
                let count = node.out_ports().len();
                return Err(refuse(format!(
                    "FeedInputs: {feed} should have output index < {count}"
                )));
            };
            let base = port.what.base();
            let is_placeholder = node.role() == Role::Placeholder;
            self.feed_types.push(base);
            let source = self.source(graph, feed, fed, index, base)?;
            for &(reader, input) in consumers.of_node(fed.node) {
                match input {
                    Some(input) if graph.node(reader).inputs()[input as usize] == fed => {
                        graph.set_input(reader, input as usize, source)?;
                    }
                    // A placeholder that is fed has nothing to run: a node that waits for it waits for its value.
                    None if is_placeholder => {
                        graph.remove_control(reader, fed.node);
                        graph.add_control(reader, source.node);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn fetch(&mut self, graph: &mut Graph, fetches: &[String]) -> Result<(), Status> {
        for (index, fetch) in fetches.iter().enumerate() {
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
                    "Tried to fetch data for '{fetch}', which produces no output.  To run to a node but not fetch \
                     any data, pass '{fetch}' as an argument to the 'target_node_names' argument of the Session::Run \
                     API."
                )));
            }
            let Some(port) = graph.port(fetched) else {
                return Err(refuse(format!(
                    "FetchOutputs {fetch}: output index too large, must be < {count}"
                )));
            };
            let base = port.what.base();
            let sink = self.sink(graph, fetch, fetched, index, base)?;
            self.roots.push(sink);
        }
        Ok(())
    }

    /// The node that gives what is fed.
    fn source(
        &self,
        graph: &mut Graph,
        feed: &str,
        fed: Output,
        index: usize,
        base: DataType,
    ) -> Result<Output, Status> {
        let name = &graph.node(fed.node).name;
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
        let node = self.add(graph, name, op, attrs, vec![])?;
        Ok(Output { node, port: 0 })
    }

    /// The node that takes what is fetched.
    fn sink(
        &self,
        graph: &mut Graph,
        fetch: &str,
        fetched: Output,
        index: usize,
        base: DataType,
    ) -> Result<NodeId, Status> {
        let name = &graph.node(fetched.node).name;
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
        self.add(graph, name, op, attrs, vec![fetched])
    }

    fn add(
        &self,
        graph: &mut Graph,
        name: String,
        op: &str,
        attrs: Attrs,
        inputs: Vec<Output>,
    ) -> Result<NodeId, Status> {
        let op = self.ops.find(op, &name)?.clone();
        let node = graph.add(name, &op, attrs, inputs, vec![])?;
        graph.node_mut(node).device.clone_from(&self.client.1.text);
        graph.assign(node, self.client.0);
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

/// The nodes that `roots` wait for, directly or not, and themselves.
fn reachable(graph: &Graph, mut roots: Vec<NodeId>) -> Vec<bool> {
    let mut seen = vec![false; graph.len()];
    for root in &roots {
        seen[root.index()] = true;
    }
    while let Some(id) = roots.pop() {
        let node = graph.node(id);
        let data = node.inputs().iter().map(|input| input.node);
        for from in data.chain(node.controls().iter().copied()) {
            if !std::mem::replace(&mut seen[from.index()], true) {
                roots.push(from);
            }
        }
    }
    seen
}
