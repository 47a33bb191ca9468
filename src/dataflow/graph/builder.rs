//! The builder: makes a graph node by node in Rust, and infers what need not be said.
//!
//! Knows the operations. Types, counts and lists of types follow from the inputs; only what does not is an attribute:
//!
//! ```
//! use rendez_dataflow::graph::{Builder};
//! use rendez_dataflow::operations::Operations;
//! use rendez_proto::tensorflow::DataType;
//!
//! let mut graph = Builder::new(Operations::standard().ops());
//! let x = graph.node("Placeholder").attr("dtype", DataType::DtFloat).name("x").build()?;
//! let y = graph.node("MatMul").input(x).input(x).attr("transpose_b", true).name("y").build()?;
//! assert_eq!(graph.graph().node(y.node).name, "y");
//! # Ok::<(), rendez::ground::Status>(())
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use super::attr::{self, Attrs, IntoAttr};
use super::flow::{Graph, NodeId, Output};
use super::ops::{Op, Ops};
use super::types;
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::{DataType, TensorProto, TensorShapeProto, tensor_shape_proto::Dim};

#[cfg(test)]
mod tests;

/// A graph in the making.
#[derive(Clone, Debug)]
pub struct Builder {
    ops: Ops,
    pub(super) graph: Graph,
    device: String,
    scope: String,
    /// By wanted name: the first number that may be free. Looked for from one each time, a hundred thousand nodes of
    /// one operation would take minutes.
    numbers: HashMap<String, u64>,
}

/// A node in the making.
#[derive(Debug)]
#[must_use = "a node is not in the graph before it is built"]
pub struct NodeBuilder<'a> {
    builder: &'a mut Builder,
    op: String,
    name: Option<String>,
    inputs: Vec<Output>,
    controls: Vec<NodeId>,
    attrs: Attrs,
    device: Option<String>,
}

impl Builder {
    /// An empty graph of operations `ops`.
    #[must_use]
    pub fn new(ops: &Ops) -> Self {
        Self::extend(ops, Graph::new())
    }

    /// A graph that goes on where `graph` ended.
    #[must_use]
    pub fn extend(ops: &Ops, graph: Graph) -> Self {
        Self {
            ops: ops.clone(),
            graph,
            device: String::new(),
            scope: String::new(),
            numbers: HashMap::new(),
        }
    }

    /// Asks that the nodes to come stand on `device`, a full or partial name; empty asks for nothing.
    pub fn on(&mut self, device: &str) -> &mut Self {
        device.clone_into(&mut self.device);
        self
    }

    /// Lets the names of the nodes to come begin with `scope` and a slash; empty ends that.
    pub fn scope(&mut self, scope: &str) -> &mut Self {
        scope.clone_into(&mut self.scope);
        self
    }

    /// Begins a node of operation `op`.
    pub fn node(&mut self, op: &str) -> NodeBuilder<'_> {
        NodeBuilder {
            op: op.to_owned(),
            name: None,
            inputs: vec![],
            controls: vec![],
            attrs: Attrs::new(),
            device: None,
            builder: self,
        }
    }

    /// A constant.
    ///
    /// # Errors
    /// As [`NodeBuilder::build`].
    pub fn constant(&mut self, name: &str, value: TensorProto) -> Result<Output, Status> {
        let base = DataType::try_from(value.dtype).unwrap_or(DataType::DtInvalid);
        let node = self.node("Const").name(name).attr("dtype", base);
        node.attr("value", value).build()
    }

    /// Lets input `index` of `node` read `from`: what a loop's Merge reads from its NextIteration is made last.
    ///
    /// # Errors
    /// As [`Graph::set_input`].
    pub fn set_input(&mut self, node: NodeId, index: usize, from: Output) -> Result<(), Status> {
        self.graph.set_input(node, index, from)
    }

    /// The graph so far.
    #[must_use]
    pub const fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph.
    ///
    /// # Errors
    /// `GRAPH_CYCLE` for a cycle that is not a loop.
    pub fn finish(self) -> Result<Graph, Status> {
        self.graph.order()?;
        Ok(self.graph)
    }
}

impl NodeBuilder<'_> {
    /// Names it; a node without a name has its operation's, and one whose name is taken gets a number.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Reads `from` with the next input.
    pub fn input(mut self, from: Output) -> Self {
        self.inputs.push(from);
        self
    }

    /// Reads each of `from` with the next inputs.
    pub fn inputs(mut self, from: impl IntoIterator<Item = Output>) -> Self {
        self.inputs.extend(from);
        self
    }

    /// Waits for `node`.
    pub fn control(mut self, node: NodeId) -> Self {
        self.controls.push(node);
        self
    }

    /// Sets an attribute.
    pub fn attr(mut self, name: &str, value: impl IntoAttr) -> Self {
        self.attrs.insert(name.to_owned(), value.into_attr());
        self
    }

    /// Asks that it stands on `device`.
    pub fn device(mut self, device: &str) -> Self {
        self.device = Some(device.to_owned());
        self
    }

    /// Asks that it stands where `other` does.
    pub fn beside(self, other: NodeId) -> Self {
        let name = format!("loc:@{}", self.builder.graph.node(other).name);
        self.attr("_class", vec![name.as_str()])
    }

    /// Adds it to the graph. Returns its first output, which stands for the node if it has none.
    ///
    /// # Errors
    /// `GRAPH_OP_UNKNOWN`, and those of [`Graph::add`].
    pub fn build(self) -> Result<Output, Status> {
        let Self {
            builder,
            op,
            name,
            inputs,
            controls,
            mut attrs,
            device,
        } = self;
        let name = builder.free_name(name.as_deref().unwrap_or(&op));
        let op = Arc::clone(builder.ops.find(&op, &name)?);
        infer_attrs(&builder.graph, &op, &inputs, &mut attrs).map_err(|what| {
            super::errors::at_node(catalogue::GRAPH_TYPE, &name, op.name(), &what)
        })?;
        let node = builder.graph.add(name, &op, attrs, inputs, controls)?;
        builder.graph.node_mut(node).device = device.unwrap_or_else(|| builder.device.clone());
        Ok(Output { node, port: 0 })
    }
}

impl Builder {
    fn free_name(&mut self, wanted: &str) -> String {
        let wanted = match self.scope.as_str() {
            "" => wanted.to_owned(),
            scope => format!("{scope}/{wanted}"),
        };
        if self.graph.find(&wanted).is_none() {
            return wanted;
        }
        let next = self.numbers.entry(wanted.clone()).or_insert(1);
        loop {
            let name = format!("{wanted}_{next}");
            *next += 1;
            if self.graph.find(&name).is_none() {
                return name;
            }
        }
    }
}

/// Sets the types and counts that the inputs say.
fn infer_attrs(graph: &Graph, op: &Op, inputs: &[Output], attrs: &mut Attrs) -> Result<(), String> {
    let given: Vec<_> = inputs
        .iter()
        .map(|&input| {
            graph
                .port(input)
                .map_or(DataType::DtInvalid, |port| port.what.base())
        })
        .collect();
    // Fixed inputs take one each; what is left is the one argument that is repeated, if there is one.
    let is_list = |arg: &super::signature::Arg| {
        let listed = arg.type_attr().and_then(|name| op.signature.attr(name));
        arg.count_attr().is_some() || listed.is_some_and(|attr| attr.kind == attr::Kind::Types)
    };
    let repeated = op
        .signature
        .inputs
        .iter()
        .filter(|arg| is_list(arg))
        .count();
    let single = op.signature.inputs.len() - repeated;
    let mut at = 0;
    for arg in &op.signature.inputs {
        let len = if is_list(arg) {
            given.len().saturating_sub(single) / repeated
        } else {
            1
        };
        let these = &given[at.min(given.len())..(at + len).min(given.len())];
        at += len;
        if let Some(count) = arg.count_attr() {
            let count_value = i64::try_from(these.len()).unwrap_or(i64::MAX);
            attrs
                .entry(count.to_owned())
                .or_insert_with(|| count_value.into_attr());
        }
        let Some(name) = arg.type_attr() else {
            continue;
        };
        if is_list(arg) && arg.count_attr().is_none() {
            let listed = these.to_vec();
            attrs
                .entry(name.to_owned())
                .or_insert_with(|| listed.into_attr());
        } else if let Some(&first) = these.first() {
            let known = attr::data_type(attrs, name).unwrap_or(first);
            if let Some(other) = these.iter().find(|&&base| base != known) {
                return Err(format!(
                    "input '{}' is {}, and attr '{name}' is {}",
                    arg.name,
                    types::name(*other),
                    types::name(known)
                ));
            }
            attrs
                .entry(name.to_owned())
                .or_insert_with(|| known.into_attr());
        }
    }
    Ok(())
}

/// A tensor of 32-bit integers of shape `dims`. One value fills the shape.
#[must_use]
pub fn ints(dims: &[i64], values: &[i32]) -> TensorProto {
    TensorProto {
        int_val: values.to_vec(),
        ..empty(DataType::DtInt32, dims)
    }
}

/// A tensor of 32-bit floats of shape `dims`. One value fills the shape.
#[must_use]
pub fn floats(dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto {
        float_val: values.to_vec(),
        ..empty(DataType::DtFloat, dims)
    }
}

/// One without elements.
pub(crate) fn empty(base: DataType, dims: &[i64]) -> TensorProto {
    let dim = |&size: &i64| Dim {
        size,
        name: String::new(),
    };
    TensorProto {
        dtype: base as i32,
        tensor_shape: Some(TensorShapeProto {
            dim: dims.iter().map(dim).collect(),
            unknown_rank: false,
        }),
        ..TensorProto::default()
    }
}
