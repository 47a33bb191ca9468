//! From a closure to a kernel: what computes a node, what that costs, and what it refuses, with the node's name.
//!
//! Knows no arithmetic and no operation.

use std::fmt;

use super::broadcast::count;
use super::call::{self, Done, Fault};
use super::{Call, Kernel, Value, elementwise};
use crate::graph::{Node, Type, attr, types};
use rendez::ground::shape::RANK_MAX;
use rendez::ground::{DType, Status, catalogue};
use rendez_proto::tensorflow::DataType;
use rendez_proto::tensorflow::attr_value::Value as AttrKind;

/// What computes a node.
pub(crate) type Run = Box<dyn Fn(&mut Call<'_>) -> Done + Send + Sync>;
/// What computes a node and what that costs, if the family knows the operation and has it for the node's types.
pub(crate) type Made = Result<Option<Simple>, Fault>;

/// What computes a node, and what that costs.
pub(crate) struct Simple {
    run: Run,
    cost: Cost,
}

/// Picoseconds that a call with these inputs takes.
pub(crate) type Estimate = Box<dyn Fn(&[Value]) -> usize + Send + Sync>;

/// How long a call takes.
pub(crate) enum Cost {
    /// Next to nothing, whatever the inputs: what they say, too.
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

/// What each input takes at least, of however few bytes.
const INPUT_PS: usize = 50_000;
/// What each output takes at least: room of its own.
const OUTPUT_PS: usize = 200_000;

struct Named {
    name: String,
    op: &'static str,
    simple: Simple,
    /// What a call takes at least: its inputs and outputs may be thousands.
    least: usize,
}

impl Simple {
    /// The same, unless `first` has computed it already, as it then says.
    pub(crate) fn unless(
        self,
        first: impl Fn(&mut Call<'_>) -> Result<bool, Fault> + Send + Sync + 'static,
    ) -> Self {
        let Self { run, cost } = self;
        let run: Run = Box::new(move |call| if first(call)? { Ok(()) } else { run(call) });
        Self { run, cost }
    }
}

/// So many picoseconds for each element of a shape that comes as input `index`.
pub(crate) fn for_each_said(index: usize, picoseconds: usize) -> Cost {
    Cost::Picoseconds(Box::new(move |inputs| {
        product(inputs, index).saturating_mul(picoseconds)
    }))
}

/// The product of the integers of input `index`; none where a kernel refuses them.
pub(crate) fn product(inputs: &[Value], index: usize) -> usize {
    let tensor = inputs.get(index).and_then(|value| value.tensor().ok());
    let tensor = tensor.filter(|tensor| tensor.shape().elements() <= RANK_MAX as u64);
    let Some(integers) = tensor.and_then(|tensor| call::integers(&tensor).ok()) else {
        return 0;
    };
    let size = |&integer: &i64| usize::try_from(integer).unwrap_or(0);
    count(integers.iter().map(size))
}

/// What computes, and costs so much.
pub(crate) fn made(
    cost: Cost,
    run: impl Fn(&mut Call<'_>) -> Done + Send + Sync + 'static,
) -> Made {
    Ok(Some(Simple {
        run: Box::new(run),
        cost,
    }))
}

/// The same, for inputs of one shape only.
pub(crate) fn of_same_shapes(node: &Node, made: Made) -> Made {
    let (name, op) = (node.name.clone(), node.op.name());
    Ok(made?.map(|simple| {
        simple.unless(move |call| {
            elementwise::same_shapes(call, &name, op)?;
            Ok(false)
        })
    }))
}

/// What `$body` makes, with `$T` the Rust type of the elements that the node's attribute `T`, or the one that is named,
/// says; nothing if the type is not among the set, as [`by_type`](super::numbers::by_type) has them.
macro_rules! typed {
    ($node:expr, $T:ident: $set:ident => $body:expr) => {
        $crate::kernel::make::typed!($node, "T", $T: $set => $body)
    };
    ($node:expr, $attr:expr, $T:ident: $set:ident => $body:expr) => {
        match $crate::kernel::make::dtype($node, $attr) {
            Some(dtype) => $crate::kernel::numbers::by_type!(dtype, $T: $set => $body).unwrap_or(Ok(None)),
            None => Ok(None),
        }
    };
}
pub(crate) use typed;

/// What a family made of `node`, as a kernel.
pub(crate) fn kernel(node: &Node, made: Made) -> Result<Box<dyn Kernel>, Status> {
    let (name, op) = (&node.name, node.op.name());
    match made.map_err(|fault| fault.at(name, op))? {
        Some(simple) => Ok(Box::new(Named {
            name: name.clone(),
            op,
            simple,
            least: node.inputs().len() * INPUT_PS + node.out_ports().len() * OUTPUT_PS,
        })),
        None => Err(unknown(node, None)),
    }
}

/// The refusal of a node that has no kernel, at all or for its types: those of an attribute that have one, if any, are
/// `known`.
pub(crate) fn unknown(node: &Node, known: Option<(&str, Vec<&str>)>) -> Status {
    let (name, op) = (&node.name, node.op.name());
    let types = node.attrs.iter().filter_map(|(name, value)| {
        let Some(AttrKind::Type(number)) = value.value else {
            return None;
        };
        let base = Type::from_wire(number).map_or(DataType::DtInvalid, Type::base);
        Some(format!("{name}={}", types::name(base)))
    });
    let types = types.collect::<Vec<_>>().join(", ");
    let mut message = format!(
        "No OpKernel was registered to support Op '{op}' used by {{{{node {name}}}}} with these attrs: [{types}]"
    );
    if let Some((attr, known)) = known {
        // If its own is among them, another attribute's type has none.
        let own = attr::data_type(&node.attrs, attr).map(types::name);
        if own.is_none_or(|own| !known.contains(&own)) {
            let known = known.join(", ");
            message += &format!("; kernels are registered for {attr} in [{known}]");
        }
    }
    Status::of(catalogue::KERNEL_UNKNOWN, message)
}

/// The element type `name` of a node.
pub(crate) fn dtype(node: &Node, name: &str) -> Option<DType> {
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
        picoseconds.max(self.least) >= COSTLY_PS
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.name, self.op)
    }
}
