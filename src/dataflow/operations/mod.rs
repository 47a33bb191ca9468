//! Operations: which operations a task runs, and what makes their kernels; those of the library, and one's own.
//!
//! Knows definitions and kernels, and not what runs them.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::graph::{Definition, Node, Ops};
use crate::kernel::Kernel;
use crate::kernel::make::{self, Made};
use rendez::ground::{Status, catalogue};

mod assertion;
mod checkpoint;
mod compare;
mod elementwise;
mod fills;
mod gather;
mod linear;
mod network;
mod optimizers;
mod pieces;
mod random;
mod reduce;
mod shapes;
mod sources;
mod state;
#[cfg(test)]
pub(crate) mod testing;

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

/// Makes the kernel of a node.
type Make = Arc<dyn Fn(&Node) -> Result<Box<dyn Kernel>, Status> + Send + Sync>;

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
    /// Those of the library; [a page](crate::graph::operations) lists them.
    #[must_use]
    pub fn standard() -> Self {
        Self {
            ops: Arc::new(Ops::standard()),
            makes: Arc::default(),
        }
    }

    /// Adds an operation. `make` is called for each of its nodes when a graph is registered at the task that runs it;
    /// what it refuses refuses the graph. A panic of it or of the kernel fails the graph or the step with
    /// `KERNEL_FAILED`, and nothing else.
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
        Arc::make_mut(&mut self.makes).insert(name, Arc::new(make));
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
    /// `KERNEL_UNKNOWN` naming the node, its operation and its types if there is none; what its attributes contradict or its maker refuses; `KERNEL_FAILED` if that panics.
    pub fn kernel(&self, node: &Node) -> Result<Box<dyn Kernel>, Status> {
        let Some(make) = self.makes.get(node.op.name()) else {
            return kernel_of(node);
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
        let own: Vec<_> = self.makes.keys().collect();
        f.debug_struct("Operations").field("own", &own).finish()
    }
}

/// The kernel of a node of the library's operations.
fn kernel_of(node: &Node) -> Result<Box<dyn Kernel>, Status> {
    for family in FAMILIES {
        let made = family(node);
        if !matches!(made, Ok(None)) {
            return make::kernel(node, made);
        }
    }
    Err(make::unknown(node))
}
