//! From a node to its kernel: which family computes it, for which types, and how long that takes.
//!
//! Knows no arithmetic. A family gives a closure; what it refuses is told with the node's name.

use std::fmt;

use super::call::{Done, Fault};
use super::{Call, Kernel};
use super::{
    assertion, checkpoint, compare, elementwise, fills, gather, linear, network, optimizers,
    pieces, random, reduce, shapes, sources, state,
};
use crate::graph::{Node, Type, attr, types};
use crate::server::value::Value;
use rendez::ground::{DType, Status, catalogue};
use rendez_proto::tensorflow::DataType;
use rendez_proto::tensorflow::attr_value::Value as AttrKind;

/// What computes a node.
pub(super) type Run = Box<dyn Fn(&mut Call<'_>) -> Done + Send + Sync>;
/// What computes a node and what that costs, if the family knows the operation and has it for the node's types.
pub(super) type Made = Result<Option<Simple>, Fault>;

/// What computes a node, and what that costs.
pub(super) struct Simple {
    run: Run,
    cost: Cost,
}

/// Picoseconds that a call with these inputs takes.
pub(super) type Estimate = Box<dyn Fn(&[Value]) -> usize + Send + Sync>;

/// How long a call takes.
pub(super) enum Cost {
    /// Next to nothing, whatever the inputs.
    Light,
    /// So many picoseconds for each byte of the inputs.
    PerByte(usize),
    /// So many picoseconds.
    Picoseconds(Estimate),
    /// It may block.
    Heavy,
}

/// From here on a call is costly: ten microseconds.
const COSTLY_PS: usize = 10_000_000;

/// Families, each with the operations it knows.
const FAMILIES: &[fn(&Node) -> Made] = &[
    sources::make,
    state::make,
    elementwise::make,
    linear::make,
    network::make,
    reduce::make,
    optimizers::make,
    shapes::make,
    fills::make,
    compare::make,
    pieces::make,
    gather::make,
    random::make,
    assertion::make,
    checkpoint::make,
];

struct Named {
    name: String,
    op: &'static str,
    simple: Simple,
}

impl Simple {
    /// The same, for inputs of one shape only.
    pub(super) fn of_same_shapes(self, node: &Node) -> Self {
        let (name, op) = (node.name.clone(), node.op.name());
        self.unless(move |call| {
            elementwise::same_shapes(call, &name, op)?;
            Ok(false)
        })
    }

    /// The same, unless `first` has computed it already, as it then says.
    pub(super) fn unless(
        self,
        first: impl Fn(&mut Call<'_>) -> Result<bool, Fault> + Send + Sync + 'static,
    ) -> Self {
        let Self { run, cost } = self;
        let run: Run = Box::new(move |call| if first(call)? { Ok(()) } else { run(call) });
        Self { run, cost }
    }
}

/// What computes, and costs so much.
pub(super) fn made(
    cost: Cost,
    run: impl Fn(&mut Call<'_>) -> Done + Send + Sync + 'static,
) -> Made {
    Ok(Some(Simple {
        run: Box::new(run),
        cost,
    }))
}

/// The kernel of `node`.
pub(super) fn kernel(node: &Node) -> Result<Box<dyn Kernel>, Status> {
    let (name, op) = (&node.name, node.op.name());
    for family in FAMILIES {
        if let Some(simple) = family(node).map_err(|fault| fault.at(name, op))? {
            return Ok(Box::new(Named {
                name: name.clone(),
                op,
                simple,
            }));
        }
    }
    let types = node.attrs.iter().filter_map(|(name, value)| {
        let Some(AttrKind::Type(number)) = value.value else {
            return None;
        };
        let base = Type::from_wire(number).map_or(DataType::DtInvalid, Type::base);
        Some(format!("{name}={}", types::name(base)))
    });
    let types = types.collect::<Vec<_>>().join(", ");
    let message = format!(
        "No OpKernel was registered to support Op '{op}' used by {{{{node {name}}}}} with these attrs: [{types}]"
    );
    Err(Status::of(catalogue::KERNEL_UNKNOWN, message))
}

/// The element type `name` of a node.
pub(super) fn dtype(node: &Node, name: &str) -> Option<DType> {
    types::dtype(attr::data_type(&node.attrs, name)?)
}

impl Kernel for Named {
    fn compute(&self, call: &mut Call<'_>) -> Result<(), Status> {
        (self.simple.run)(call).map_err(|fault| fault.at(&self.name, self.op))
    }

    fn is_costly(&self, inputs: &[Value]) -> bool {
        let picoseconds = match &self.simple.cost {
            Cost::Light => 0,
            Cost::Heavy => usize::MAX,
            Cost::PerByte(each) => {
                let bytes: usize = inputs.iter().map(Value::bytes).sum();
                bytes.saturating_mul(*each)
            }
            Cost::Picoseconds(of) => of(inputs),
        };
        picoseconds >= COSTLY_PS
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.name, self.op)
    }
}
