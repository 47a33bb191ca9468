//! Recipes: an operation with its attributes and types, as a kernel that can be called, and its gradients as a list of
//! such calls.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use rendez::ground::{DType, Locked, Status, StepId, catalogue};
use rendez::memory::Tensor;
use rendez_dataflow::graph::{Builder, Graph, NodeBuilder, NodeId, Output, gradients, types};
use rendez_dataflow::kernel::{Call, Home, Kernel, Value, Waiting};
use rendez_dataflow::operations::Operations;
use rendez_proto::tensorflow::DataType;

use super::back::{Back, Step};
use super::var::is_smooth;

/// An attribute of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Attr {
    /// Yes or no.
    Bool(bool),
    /// A number.
    Int(i64),
    /// A type of elements.
    Type(DType),
}

/// Attributes of an operation, by name; those that follow from the inputs need not be there.
pub type Attrs = [(&'static str, Attr)];

/// What a recipe is found by.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Name {
    op: &'static str,
    attrs: Vec<(&'static str, Attr)>,
    inputs: Vec<DType>,
}

/// All recipes that were ever wanted.
pub(super) struct Recipes {
    operations: Operations,
    known: Mutex<HashMap<Name, Arc<Recipe>>>,
}

/// Which gradients are there, and which are wanted: a bit for each output and for each input.
type Case = (Vec<bool>, Vec<bool>);

/// An operation that can be called.
pub(super) struct Recipe {
    name: Name,
    operations: Operations,
    kernel: Box<dyn Kernel>,
    outputs: usize,
    /// True unless nothing flows back through it.
    flows: OnceLock<bool>,
    back: Mutex<HashMap<Case, Arc<Back>>>,
}

impl Recipes {
    pub(super) fn new() -> Self {
        Self {
            operations: Operations::standard(),
            known: Mutex::default(),
        }
    }

    /// The recipe of an operation on inputs of these types.
    pub(super) fn find(
        &self,
        op: &'static str,
        attrs: &Attrs,
        inputs: Vec<DType>,
    ) -> Result<Arc<Recipe>, Status> {
        let name = Name {
            op,
            attrs: attrs.to_vec(),
            inputs,
        };
        let mut known = self.known.locked();
        if let Some(recipe) = known.get(&name) {
            return Ok(Arc::clone(recipe));
        }
        let recipe = Arc::new(Recipe::new(&self.operations, name.clone())?);
        known.insert(name, Arc::clone(&recipe));
        Ok(recipe)
    }
}

impl Recipe {
    fn new(operations: &Operations, name: Name) -> Result<Self, Status> {
        let mut graph = Builder::new(operations.ops());
        let (_, node) = name.add_to(&mut graph)?;
        let node = graph.graph().node(node.node);
        let kernel = operations.kernel(node)?;
        let outputs = node.out_ports().len();
        Ok(Self {
            name,
            operations: operations.clone(),
            kernel,
            outputs,
            flows: OnceLock::new(),
            back: Mutex::default(),
        })
    }

    pub(super) const fn op(&self) -> &'static str {
        self.name.op
    }

    /// Computes it.
    pub(super) fn call(&self, home: &Home, inputs: &[Tensor]) -> Result<Vec<Tensor>, Status> {
        let inputs: Vec<_> = inputs.iter().cloned().map(Value::Tensor).collect();
        let outputs = compute(&*self.kernel, home, &inputs)?;
        outputs.iter().map(Value::tensor).collect()
    }

    /// True unless nothing flows back through it, as it is with `StopGradient` and `OnesLike`.
    pub(super) fn flows(&self, outputs: &[Tensor]) -> bool {
        let find = || {
            let given = outputs.iter().map(|output| is_smooth(output.dtype()));
            let wanted = self.name.inputs.iter().map(|dtype| is_smooth(*dtype));
            let back = self.back_of((given.collect(), wanted.collect()));
            // What has no gradient says so when one is asked for.
            back.map_or(true, |back| back.flows())
        };
        *self.flows.get_or_init(find)
    }

    /// The gradients of the inputs that are `wanted`, from those of the outputs, of which one at least is there.
    pub(super) fn back(
        &self,
        home: &Home,
        inputs: &[Tensor],
        outputs: &[Tensor],
        gradients: &[Option<Tensor>],
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>, Status> {
        let case = (
            gradients.iter().map(Option::is_some).collect(),
            wanted.to_vec(),
        );
        let back = self.back_of(case)?;
        back.run(home, &[inputs, outputs], gradients)
    }

    fn back_of(&self, case: Case) -> Result<Arc<Back>, Status> {
        let mut known = self.back.locked();
        if let Some(back) = known.get(&case) {
            return Ok(Arc::clone(back));
        }
        let back = Arc::new(self.make_back(&case)?);
        known.insert(case, Arc::clone(&back));
        Ok(back)
    }

    fn make_back(&self, (given, wanted): &Case) -> Result<Back, Status> {
        let mut graph = Builder::new(self.operations.ops());
        let (inputs, node) = self.name.add_to(&mut graph)?;
        let outputs: Vec<_> = (0u32..)
            .take(self.outputs)
            .map(|port| Output { port, ..node })
            .collect();
        let mut places = BTreeMap::new();
        for (slot, output) in inputs.iter().chain(&outputs).enumerate() {
            places.insert(*output, slot);
        }
        let mut slots = places.len();
        let (mut ys, mut grads, mut given_at) = (vec![], vec![], vec![None; self.outputs]);
        for (index, output) in outputs
            .iter()
            .enumerate()
            .filter(|(index, _)| given[*index])
        {
            let base = graph
                .graph()
                .port(*output)
                .map_or(DataType::DtInvalid, |port| port.what.base());
            let grad = graph.node("Placeholder").attr("dtype", base).build()?;
            places.insert(grad, slots);
            given_at[index] = Some(slots);
            slots += 1;
            ys.push(*output);
            grads.push(Some(grad));
        }
        let asked: Vec<_> = inputs
            .iter()
            .zip(wanted)
            .filter(|(_, wanted)| **wanted)
            .map(|(x, _)| *x)
            .collect();
        let mut found = gradients(&mut graph, &ys, &asked, &grads)?.into_iter();
        let wanted: Vec<_> = wanted
            .iter()
            .map(|wanted| {
                if *wanted {
                    found.next().flatten()
                } else {
                    None
                }
            })
            .collect();
        let graph = graph.finish()?;
        let mut steps = vec![];
        let is_needed = needed(&graph, &wanted);
        for id in graph
            .order()?
            .into_iter()
            .filter(|id| is_needed[id.index()])
        {
            let node = graph.node(id);
            let ports = node.out_ports().len();
            if (0u32..)
                .take(ports.max(1))
                .any(|port| places.contains_key(&Output { node: id, port }))
            {
                continue;
            }
            let place = |input: &Output| {
                places
                    .get(input)
                    .copied()
                    .ok_or_else(|| self.broken("has no order"))
            };
            let inputs = node.inputs().iter().map(place).collect::<Result<_, _>>()?;
            steps.push(Step::new(
                self.operations.kernel(node)?,
                node,
                inputs,
                slots,
            ));
            for port in (0u32..).take(ports) {
                places.insert(Output { node: id, port }, slots);
                slots += 1;
            }
        }
        let wanted = wanted
            .iter()
            .map(|output| output.and_then(|output| places.get(&output).copied()))
            .collect();
        Ok(Back::new(self.name.op, steps, slots, given_at, wanted))
    }

    fn broken(&self, what: &str) -> Status {
        let message = format!("the gradient of {} {what}: report it", self.name.op);
        Status::of(catalogue::GRAPH_GRADIENT, message)
    }
}

impl Name {
    /// Adds placeholders and a node that reads them.
    fn add_to(&self, graph: &mut Builder) -> Result<(Vec<Output>, Output), Status> {
        let mut inputs = vec![];
        for dtype in &self.inputs {
            let base = types::data_type(*dtype);
            inputs.push(graph.node("Placeholder").attr("dtype", base).build()?);
        }
        let node = graph.node(self.op).inputs(inputs.iter().copied());
        let node = self.attrs.iter().fold(node, with_attr).build()?;
        Ok((inputs, node))
    }
}

fn with_attr<'a>(node: NodeBuilder<'a>, (name, attr): &(&'static str, Attr)) -> NodeBuilder<'a> {
    match *attr {
        Attr::Bool(value) => node.attr(name, value),
        Attr::Int(value) => node.attr(name, value),
        Attr::Type(dtype) => node.attr(name, types::data_type(dtype)),
    }
}

/// The nodes that these are computed by.
fn needed(graph: &Graph, wanted: &[Option<Output>]) -> Vec<bool> {
    let mut is_needed = vec![false; graph.len()];
    let mut todo: Vec<NodeId> = wanted.iter().flatten().map(|output| output.node).collect();
    while let Some(id) = todo.pop() {
        if !std::mem::replace(&mut is_needed[id.index()], true) {
            todo.extend(graph.node(id).inputs().iter().map(|input| input.node));
        }
    }
    is_needed
}

pub(super) fn compute(
    kernel: &dyn Kernel,
    home: &Home,
    inputs: &[Value],
) -> Result<Vec<Value>, Status> {
    let mut outputs = vec![];
    let step = StepId(1);
    kernel.compute(&mut Call {
        inputs,
        outputs: &mut outputs,
        home,
        step,
        waiting: Waiting::May,
    })?;
    Ok(outputs)
}

shown! { Recipes {} }

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}
