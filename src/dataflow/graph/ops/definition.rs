//! Definitions: operations of one's own, as their users describe them.
//!
//! Knows the words of [signatures](crate::graph::signature) and what names operations may have; not what computes them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{GradientRule, Op, Role, ShapeRule};
use crate::graph::attr::Attrs;
use crate::graph::gradients::{Back, Flows};
use crate::graph::infer::{self, Inferred, Known};
use crate::graph::signature::Signature;
use crate::graph::{Output, PartialShape, types};
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::DataType;

/// Tells the shapes of a node's outputs from those of its inputs and its attributes, or what contradicts itself.
type Shapes = dyn Fn(&[PartialShape], &Attrs) -> Result<Vec<PartialShape>, String> + Send + Sync;

/// A shape rule that the application registers.
#[derive(Clone)]
pub(crate) struct OwnShapes(Arc<Shapes>);

/// Adds to a graph what computes the gradients of a node's inputs.
type Gradients = dyn Fn(&mut Back<'_>) -> Flows + Send + Sync;

/// A gradient rule that the application registers.
#[derive(Clone)]
pub(crate) struct OwnGradient(Arc<Gradients>);

/// An operation of one's own.
///
/// ```
/// use rendez_dataflow::graph::{Builder, Definition, floats};
/// use rendez_dataflow::operations::Operations;
///
/// let scale = Definition::new("Scale", "x: T -> y: T", "T: {float, double}; by: float = 1.0")
///     .shapes(|inputs, _| Ok(inputs.to_vec()));
/// let mut ops = Operations::standard().ops().clone();
/// ops.register(scale)?;
///
/// let mut graph = Builder::new(&ops);
/// let x = graph.constant("x", floats(&[2], &[1.0, 2.0]))?;
/// graph.node("Scale").name("scaled").input(x).attr("by", 3.0_f32).build()?;
/// # Ok::<(), rendez::ground::Status>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a definition does nothing until it is registered"]
pub struct Definition {
    name: &'static str,
    flow: &'static str,
    attrs: &'static str,
    is_stateful: bool,
    shapes: ShapeRule,
    gradient: Option<GradientRule>,
}

impl Definition {
    /// The operation `name`, which takes and gives what `flow` says (`"x: T, n: int32 -> y: T"`) and has the
    /// attributes `attrs` (`"T: {float, double}; by: float = 1.0"`); see [`signature`](crate::graph::signature) for
    /// the words. The shapes of its outputs are unknown until it runs.
    pub const fn new(name: &'static str, flow: &'static str, attrs: &'static str) -> Self {
        Self {
            name,
            flow,
            attrs,
            is_stateful: false,
            shapes: ShapeRule::Plain(infer::unknown),
            gradient: None,
        }
    }

    /// Says that it has state or effects: two nodes of it are never taken for one.
    pub const fn stateful(mut self) -> Self {
        self.is_stateful = true;
        self
    }

    /// Gives it a shape rule, for [`Shapes`](crate::graph::Shapes) and [`gradients`](crate::graph::gradients): from
    /// what is known of the inputs' shapes and from the attributes to what is known of the outputs, one for each; or
    /// the text of what contradicts itself.
    pub fn shapes(
        mut self,
        rule: impl Fn(&[PartialShape], &Attrs) -> Result<Vec<PartialShape>, String>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.shapes = ShapeRule::Own(OwnShapes(Arc::new(rule)));
        self
    }

    /// Gives it a gradient rule, for [`gradients`](crate::graph::gradients()): it is called for each node of the
    /// operation that gradients flow back through, adds nodes of other operations to the graph, and gives the gradient
    /// of each input, one for each; `None` where nothing flows back. An operation without a rule is refused where
    /// gradients would have to flow back through it.
    ///
    /// A gradient has the type of its input, and the shape. What a rule refuses refuses the whole; so does a panic of
    /// it, or what it gives if that is no such gradient: with `GRAPH_GRADIENT`, naming the node.
    ///
    /// ```
    /// use rendez_dataflow::graph::{Builder, Definition, Ops, floats, gradients};
    /// use rendez_dataflow::operations::Operations;
    ///
    /// // y = x³, and the gradient of x is 3 x² times that of y.
    /// let cube = Definition::new("Cube", "x: T -> y: T", "T: {float, double}")
    ///     .shapes(|inputs, _| Ok(inputs.to_vec()))
    ///     .gradient(|back| {
    ///         let (x, dy) = (back.input(0)?, back.grad(0)?);
    ///         let three = back.scalar_like(x, 3.0)?;
    ///         let square = back.op("Square", &[x])?;
    ///         let slope = back.op("Mul", &[three, square])?;
    ///         Ok(vec![Some(back.op("Mul", &[slope, dy])?)])
    ///     });
    /// let mut ops: Ops = Operations::standard().ops().clone();
    /// ops.register(cube)?;
    ///
    /// let mut graph = Builder::new(&ops);
    /// let x = graph.constant("x", floats(&[2], &[1.0, 2.0]))?;
    /// let y = graph.node("Cube").input(x).build()?;
    /// assert!(gradients(&mut graph, &[y], &[x], &[])?[0].is_some());
    /// # Ok::<(), rendez::ground::Status>(())
    /// ```
    pub fn gradient(
        mut self,
        rule: impl Fn(&mut Back<'_>) -> Result<Vec<Option<Output>>, Status> + Send + Sync + 'static,
    ) -> Self {
        self.gradient = Some(GradientRule::Own(OwnGradient(Arc::new(rule))));
        self
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn op(self) -> Result<Op, Status> {
        let malformed = |what: &str| {
            let message = format!("the definition of operation '{}': {what}", self.name);
            Status::of(catalogue::OP_MALFORMED, message)
        };
        let later = |byte: u8| byte.is_ascii_alphanumeric() || b"_.>".contains(&byte);
        let is_name = |name: &str| {
            name.starts_with(|first: char| first.is_ascii_uppercase()) && name.bytes().all(later)
        };
        if !is_name(self.name) {
            return Err(malformed(
                "a name begins with a capital letter and goes on with letters, digits and any of '_', '.', '>'",
            ));
        }
        let signature = Signature::parse(self.name, self.flow, self.attrs).ok_or_else(|| {
            malformed(
                "inputs and outputs are 'x: T, y: int32 -> z: T', attributes 'T: num; n: int = 1'",
            )
        })?;
        let attrs_used = signature.inputs.iter().chain(&signature.outputs);
        let attrs_used = attrs_used.flat_map(|arg| [arg.type_attr(), arg.count_attr()]);
        if let Some(name) = attrs_used
            .flatten()
            .find(|name| signature.attr(name).is_none())
        {
            return Err(malformed(&format!(
                "'{name}' is neither a type nor one of its attributes"
            )));
        }
        Ok(Op {
            signature,
            is_stateful: self.is_stateful,
            role: Role::Plain,
            shapes: self.shapes,
            integers: None,
            gradient: self.gradient,
        })
    }
}

impl OwnShapes {
    pub(super) fn infer(&self, known: Known<'_>) -> Inferred {
        let rule = AssertUnwindSafe(|| (self.0)(known.shapes, known.attrs));
        let shapes = catch_unwind(rule).map_err(|_| "its shape rule panicked".to_owned())??;
        if shapes.len() != known.outputs {
            return Err(format!(
                "its shape rule gave {} shapes for {} outputs",
                shapes.len(),
                known.outputs
            ));
        }
        Ok(shapes)
    }
}

impl OwnGradient {
    /// What the rule gives, which is not trusted.
    pub(super) fn flow_back(&self, back: &mut Back<'_>) -> Flows {
        let flows = catch_unwind(AssertUnwindSafe(|| (self.0)(back)));
        let flows = flows.map_err(|_| back.refuse("has a gradient rule that panicked"))??;
        let inputs = back.inputs();
        if flows.len() != inputs.len() {
            let (given, wanted) = (flows.len(), inputs.len());
            let what =
                format!("has a gradient rule that gave {given} gradients for {wanted} inputs");
            return Err(back.refuse(&what));
        }
        for (index, (input, flow)) in inputs.into_iter().zip(&flows).enumerate() {
            let Some(flow) = *flow else {
                continue;
            };
            // Of a handle, the gradient is that of what was read from it.
            let (given, wanted) = (back.base(flow), back.base(input));
            if given == DataType::DtInvalid || (given != wanted && wanted != DataType::DtResource) {
                let (given, wanted) = (types::name(given), types::name(wanted));
                let what = format!(
                    "has a gradient rule that gave a gradient of type {given} for input {index}, which is {wanted}"
                );
                return Err(back.refuse(&what));
            }
        }
        Ok(flows)
    }
}

shown! { OwnGradient {} }

shown! { OwnShapes {} }
