//! Reading a graph from its message: names, operations, inputs, in that order, each checked before the next.
//!
//! Knows the rules that the original's importer has, and their texts.

use super::{Graph, Node, NodeId, Output};
use crate::graph::errors::shown;
use crate::graph::ops::Ops;
use rendez::ground::limits::{GRAPH_NODES_MAX, NODE_NAME_BYTES_MAX};
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::{FunctionDef, GraphDef, VersionDef};

/// The version of TensorFlow's graphs whose rules these are.
const CONSUMER: i32 = 1987;
/// The oldest producer whose graphs mean the same today.
const PRODUCER_MIN: i32 = 0;

/// What is allowed in a graph that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Import {
    /// What a client may send.
    Client,
    /// Also the names and operations that pruning and cutting make.
    Part,
}

impl Graph {
    /// Reads and checks a graph.
    ///
    /// # Errors
    /// `GRAPH_VERSION`, `GRAPH_LIMIT`; `GRAPH_MALFORMED` for names that are none or come twice, inputs that name no
    /// node or output, or are too many or too few; `GRAPH_OP_UNKNOWN`, `GRAPH_FUNCTION`, `GRAPH_ATTR`, `GRAPH_TYPE`;
    /// `GRAPH_CYCLE` for a cycle that is not a loop.
    pub fn from_def(def: GraphDef, ops: &Ops, import: Import) -> Result<Self, Status> {
        Self::default().extended(def, ops, import)
    }

    /// The same graph with what is added, whose nodes may name those that are there.
    ///
    /// # Errors
    /// `GRAPH_NODE_EXISTS` names a node that is there already; as [`Graph::from_def`].
    pub(crate) fn extended(
        &self,
        more: GraphDef,
        ops: &Ops,
        import: Import,
    ) -> Result<Self, Status> {
        let mut graph = self.clone();
        if graph.versions == VersionDef::default() {
            graph.versions = more.versions.unwrap_or_else(|| VersionDef {
                producer: more.version,
                ..VersionDef::default()
            });
            check_versions(&graph.versions)?;
        }
        if more.node.len() > GRAPH_NODES_MAX - graph.len() {
            let message =
                format!("the graph has more than {GRAPH_NODES_MAX} nodes (GRAPH_NODES_MAX)");
            return Err(Status::of(catalogue::GRAPH_LIMIT, message));
        }
        let mut again = more.node.iter().map(|node| node.name.as_str());
        if let Some(again) = again.find(|name| self.find(name).is_some()) {
            let message = format!(
                "GraphDef argument to Extend includes node '{}', which was created by a previous call to Create or \
                 Extend in this session.",
                shown(again)
            );
            return Err(Status::of(catalogue::GRAPH_NODE_EXISTS, message));
        }
        let functions = more.library.unwrap_or_default().function;
        graph.functions.extend(function_names(functions));
        let mut texts = Vec::with_capacity(more.node.len());
        for node in more.node {
            check_name(&node.name, import)?;
            if graph.functions.contains(&node.op) {
                let message = format!(
                    "node '{}' calls '{}', a function of the graph's library, and functions are not built",
                    node.name,
                    shown(&node.op)
                );
                return Err(Status::of(catalogue::GRAPH_FUNCTION, message));
            }
            let op = ops.find(&node.op, &node.name)?;
            if op.is_internal() && import == Import::Client {
                let message = format!(
                    "Node '{}': op {} is made by cutting a graph, a client's has none",
                    node.name, node.op
                );
                return Err(Status::of(catalogue::GRAPH_MALFORMED, message));
            }
            let mut declared = graph.declare(node.name, op, node.attr)?;
            declared.device = node.device;
            graph.insert(declared)?;
            texts.push(node.input);
        }
        for (id, inputs) in graph.ids().skip(self.len()).zip(texts) {
            graph.connect_by_names(id, &inputs)?;
        }
        graph.order()?;
        Ok(graph)
    }

    /// Resolves the inputs of one node.
    fn connect_by_names(&mut self, id: NodeId, texts: &[String]) -> Result<(), Status> {
        let node = self.node(id);
        let refuse = |what: String| {
            let message = format!("Node '{}': {what}", node.name);
            Err(Status::of(catalogue::GRAPH_MALFORMED, message))
        };
        let (mut inputs, mut controls) = (Vec::with_capacity(texts.len()), vec![]);
        for text in texts {
            let Some((name, port)) = parse_input(text) else {
                return refuse(format!(
                    "'{}' is no input: write node, node:output or ^node",
                    shown(text)
                ));
            };
            let Some(from) = self.find(name) else {
                return refuse(format!("Unknown input node '{}'", shown(text)));
            };
            match port {
                None => controls.push(from),
                Some(_) if !controls.is_empty() => {
                    return refuse(
                        "Control dependencies must come after regular dependencies".to_owned(),
                    );
                }
                Some(port) => inputs.push(Output { node: from, port }),
            }
        }
        if inputs.len() != node.in_ports.len() {
            return refuse(count_mismatch(node, inputs.len()));
        }
        self.connect(id, inputs, controls)
    }
}

fn count_mismatch(node: &Node, given: usize) -> String {
    let wanted = node.in_ports.len();
    let types: Vec<_> = node
        .in_ports
        .iter()
        .take(16)
        .map(|port| port.what.to_string())
        .collect();
    let mut what = format!(
        "NodeDef expected inputs '{}' do not match {given} inputs specified; {{{{node {}}}}} = {}",
        types.join(", "),
        node.name,
        node.op.name()
    );
    if let Some(missing) = wanted.checked_sub(given) {
        what += &format!(
            "; Incomplete graph, missing {missing} inputs for {}",
            node.name
        );
    }
    what
}

/// An input's text as a node's name and the number of its output; `None` for the number means that it is only waited
/// for. `x` is `x:0`. A number may begin with zeros, as TensorFlow's may: `x:01` is `x:1`.
#[must_use]
pub fn parse_input(text: &str) -> Option<(&str, Option<u32>)> {
    if let Some(name) = text.strip_prefix('^') {
        return (!name.is_empty()).then_some((name, None));
    }
    match text.rsplit_once(':') {
        None => (!text.is_empty()).then_some((text, Some(0))),
        Some((name, port)) => {
            let digits = !name.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
            Some((name, Some(port.parse().ok().filter(|_| digits)?)))
        }
    }
}

/// The text of an output; the first has no number.
#[must_use]
pub fn output_name(node: &str, port: u32) -> String {
    match port {
        0 => node.to_owned(),
        port => format!("{node}:{port}"),
    }
}

/// Bytes that pruning and cutting add to a client's names, as in `_arg_<name>_<port>_<index>/ctrl/_<number>`.
const NAME_BYTES_ADDED: usize = 40;

fn check_name(name: &str, import: Import) -> Result<(), Status> {
    let first = |byte: u8| {
        byte.is_ascii_alphanumeric() || byte == b'.' || (byte == b'_' && import == Import::Part)
    };
    let later = |byte: u8| byte.is_ascii_alphanumeric() || b"_.\\-/>".contains(&byte);
    let valid = name.bytes().next().is_some_and(first) && name.bytes().skip(1).all(later);
    let most = match import {
        Import::Client => NODE_NAME_BYTES_MAX - NAME_BYTES_ADDED,
        Import::Part => NODE_NAME_BYTES_MAX,
    };
    let what = if !valid {
        "Node name contains invalid characters".to_owned()
    } else if name.len() > most {
        format!(
            "Node name is longer than {most} bytes: NODE_NAME_BYTES_MAX, less what names made of it need"
        )
    } else {
        return Ok(());
    };
    let message = format!("Node '{}': {what}", shown(name));
    Err(Status::of(catalogue::GRAPH_MALFORMED, message))
}

fn check_versions(versions: &VersionDef) -> Result<(), Status> {
    let VersionDef {
        producer,
        min_consumer,
        bad_consumers,
    } = versions;
    let refuse = |message: String| Err(Status::of(catalogue::GRAPH_VERSION, message));
    if *producer < PRODUCER_MIN {
        return refuse(format!(
            "GraphDef producer version {producer} below min producer {PRODUCER_MIN} supported"
        ));
    }
    if *min_consumer > CONSUMER {
        return refuse(format!(
            "GraphDef min consumer version {min_consumer} above current version {CONSUMER}"
        ));
    }
    if bad_consumers.contains(&CONSUMER) {
        return refuse(format!("GraphDef disallows consumer version {CONSUMER}"));
    }
    Ok(())
}

/// The names of functions.
fn function_names(functions: Vec<FunctionDef>) -> impl Iterator<Item = String> {
    let functions = functions.into_iter();
    functions.filter_map(|function| Some(function.signature?.name))
}
