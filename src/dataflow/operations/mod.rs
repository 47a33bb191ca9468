//! Operations: those that graphs may have, each with all that there is to know of it in one place; and one's own.
//!
//! The operations of the library stand in families, a file each. A family begins with the table of its operations.
//! A row names everything about one: its inputs, outputs and attributes, as TensorFlow's definitions have them (its
//! `REGISTER_OP` lines, version 2.21), the rule of its shapes, whether it has state, how gradients flow back through
//! it, and what makes its kernel. What only this family needs stands below the table; what several need is in
//! [`graph`](crate::graph) (shapes and gradients) and [`kernel`](crate::kernel).
//!
//! Knows not what runs graphs, and no steps and devices.
//!
//! | family | |
//! |---|---|
//! | `sources.rs` | constants, placeholders, identities |
//! | `state.rs`, `optimizers.rs`, `checkpoint.rs` | variables, their updates by gradients, and their files |
//! | `arithmetic.rs`, `functions.rs`, `compare.rs`, `cast.rs` | element by element |
//! | `reduce.rs`, `places.rs` | sums, and where extremes stand |
//! | `linear.rs`, `network.rs`, `losses.rs` | products of matrices, layers, losses |
//! | `shapes.rs`, `join.rs`, `cut.rs`, `strided.rs`, `gather.rs`, `fills.rs` | elements that only move |
//! | `random.rs`, `assertion.rs` | random tensors, and conditions that must hold |
//! | `flow.rs`, `crossings.rs` | the flow of control, and what cutting a graph makes: without kernels |

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use crate::graph::{Definition, Node, Ops};
use crate::kernel::Kernel;
use crate::kernel::make::{kernel, unknown};
use rendez::ground::{Status, catalogue};
use row::Row;

mod arithmetic;
mod assertion;
mod cast;
mod checkpoint;
mod compare;
mod crossings;
mod cut;
mod fills;
mod flow;
mod functions;
mod gather;
mod join;
mod linear;
mod losses;
mod network;
mod optimizers;
mod page;
mod places;
mod random;
mod reduce;
mod row;
mod shapes;
mod sources;
mod state;
mod strided;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod types;

#[doc = include_str!("OPERATIONS.md")]
pub mod list {}

pub use checkpoint::write_checkpoint;
pub use page::operations_page;

/// The families.
const FAMILIES: &[&[Row]] = &[
    sources::ROWS,
    state::ROWS,
    optimizers::ROWS,
    checkpoint::ROWS,
    arithmetic::ROWS,
    functions::ROWS,
    compare::ROWS,
    cast::ROWS,
    reduce::ROWS,
    places::ROWS,
    linear::ROWS,
    network::ROWS,
    losses::ROWS,
    shapes::ROWS,
    join::ROWS,
    cut::ROWS,
    strided::ROWS,
    gather::ROWS,
    fills::ROWS,
    random::ROWS,
    assertion::ROWS,
    flow::ROWS,
    crossings::ROWS,
];

/// The operations of the library.
fn rows() -> impl Iterator<Item = &'static Row> {
    FAMILIES.iter().copied().flatten()
}

/// What a user gave to make kernels.
type OwnMake = dyn Fn(&Node) -> Result<Box<dyn Kernel>, Status> + Send + Sync;

/// Makes the kernels of an operation's nodes.
#[derive(Clone)]
enum Make {
    /// As its row says.
    Row(row::Make),
    /// As its user says.
    Own(Arc<OwnMake>),
}

/// The operations that a task runs: the standard ones, and one's own with what makes their kernels. Every task that
/// reads or runs a graph needs those of its nodes: the master as well as the workers. Cheap to clone.
///
/// ```
/// use rendez::engine::Config;
/// use rendez_dataflow::graph::{Builder, Definition, Node, attr, floats};
/// use rendez::ground::Status;
/// use rendez::memory::Tensor;
/// use rendez_dataflow::kernel::{Call, Kernel};
/// use rendez_dataflow::operations::Operations;
/// use rendez_dataflow::server::Session;
///
/// /// `y = by × x`.
/// #[derive(Debug)]
/// struct Scale(f32);
///
/// impl Kernel for Scale {
///     fn compute(&self, call: &mut Call<'_>) -> Result<(), Status> {
///         let x = call.inputs[0].tensor()?;
///         let mut y = call.home.allocate(x.meta())?; // the engine's memory: sent without a copy
///         for (y, x) in y.as_mut_slice::<f32>()?.iter_mut().zip(x.as_slice::<f32>()?) {
///             *y = self.0 * x;
///         }
///         call.outputs.push(y.finish().into());
///         Ok(())
///     }
/// }
///
/// let scale = Definition::new("Scale", "x: float -> y: float", "by: float")
///     .shapes(|inputs, _| Ok(inputs.to_vec()));
/// let mut operations = Operations::standard();
/// operations.register(scale, |node: &Node| Ok(Box::new(Scale(attr::float(&node.attrs, "by").unwrap_or(1.0)))))?;
///
/// let mut graph = Builder::new(operations.ops());
/// let x = graph.constant("x", floats(&[2], &[1.0, 2.0]))?;
/// graph.node("Scale").name("y").input(x).attr("by", 3.0_f32).build()?;
///
/// # let mut config = Config::new("/job:localhost/task:0");
/// # (config.shards, config.share_cores, config.control) = (1, true, false);
/// let session = Session::local_of(config, operations)?; // or Server::builder().operations(operations)
/// session.create(graph.finish()?.to_def())?;
/// assert_eq!(session.run(&[], &["y"], &[])?[0].as_slice::<f32>()?, [3.0, 6.0]);
/// # Ok::<(), Status>(())
/// ```
#[derive(Clone)]
pub struct Operations {
    ops: Arc<Ops>,
    makes: Arc<BTreeMap<&'static str, Make>>,
}

impl Operations {
    /// Those of the library; [a page](list) lists them.
    #[must_use]
    pub fn standard() -> Self {
        static STANDARD: LazyLock<Operations> = LazyLock::new(|| {
            let make = |row: &Row| Some((row.name, Make::Row(row.kernel?)));
            Operations {
                ops: Arc::new(Ops::of(rows().filter_map(Row::op))),
                makes: Arc::new(rows().filter_map(make).collect()),
            }
        });
        STANDARD.clone()
    }

    /// Adds an operation. `make` is called for each of its nodes when a graph is registered at the task that runs it;
    /// what it refuses refuses the graph. The kernel of a [stateful](Definition::stateful) operation's node is kept for
    /// the session: it is that of all its steps, whatever they feed and fetch. A panic of `make` or of the kernel fails
    /// the graph or the step with `KERNEL_FAILED`, and nothing else.
    ///
    /// # Errors
    /// As [`Ops::register`]; nothing is added then.
    pub fn register(
        &mut self,
        definition: Definition,
        make: impl Fn(&Node) -> Result<Box<dyn Kernel>, Status> + Send + Sync + 'static,
    ) -> Result<(), Status> {
        let name = definition.name();
        Arc::make_mut(&mut self.ops).register(definition)?;
        Arc::make_mut(&mut self.makes).insert(name, Make::Own(Arc::new(make)));
        Ok(())
    }

    /// The operations, for [`Builder::new`](crate::graph::Builder::new).
    #[must_use]
    pub fn ops(&self) -> &Ops {
        &self.ops
    }

    pub(crate) fn shared_ops(&self) -> Arc<Ops> {
        Arc::clone(&self.ops)
    }

    /// The kernel of a node.
    ///
    /// # Errors
    /// `KERNEL_UNKNOWN` naming the node, its operation and its types if there is none, and the types for which there is
    /// one; what its attributes contradict; of one's own operations, what its maker refuses, and `KERNEL_FAILED` if
    /// that panics.
    pub fn kernel(&self, node: &Node) -> Result<Box<dyn Kernel>, Status> {
        let make = match self.makes.get(node.op.name()) {
            Some(Make::Row(make)) => {
                return match make(node) {
                    Ok(None) => Err(unknown(node, types::with_kernels(&node.op, *make))),
                    made => kernel(node, made),
                };
            }
            Some(Make::Own(make)) => make,
            None => return Err(unknown(node, None)),
        };
        catch_unwind(AssertUnwindSafe(|| make(node))).unwrap_or_else(|_| {
            let (name, op) = (&node.name, node.op.name());
            let message = format!("what makes its kernel panicked; {{{{node {name}}}}} = {op}");
            Err(Status::of(catalogue::KERNEL_FAILED, message))
        })
    }
}

impl Default for Operations {
    fn default() -> Self {
        Self::standard()
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_own = |make: &Make| matches!(make, Make::Own(_));
        let own = self.makes.iter().filter(|(_, make)| is_own(make));
        let own: Vec<_> = own.map(|(name, _)| name).collect();
        f.debug_struct("Operations").field("own", &own).finish()
    }
}
