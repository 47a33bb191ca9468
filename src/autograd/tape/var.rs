//! Eager tensors, and the functions that made them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::recipe::{Attrs, Recipe, Recipes};
use super::task::Tasks;
use crate::autograd::MessageId;
use rendez::ground::{DType, Locked, Shape, Status, TensorMeta, catalogue};
use rendez::memory::{ArenaConfig, ArenaId, MemoryError, Pool, Tensor};
use rendez_dataflow::kernel::Home;

/// Functions are numbered in the order they were made: gradients flow back from the latest. Those of all tapes are
/// numbered together, since values of several may meet in one context.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Where eager tensors are computed: memory for them, the operations, and backward passes. Cheap to clone; threads may
/// share one.
#[derive(Clone, Debug)]
pub struct Tape {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) home: Home,
    recipes: Recipes,
    pub(super) tasks: Mutex<Tasks>,
}

/// A tensor, and how it was computed if gradients may be asked of that. Cheap to clone.
#[derive(Clone)]
pub struct Var {
    pub(super) tape: Tape,
    pub(super) tensor: Tensor,
    pub(super) edge: Option<Edge>,
}

/// An output of a function.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    pub(super) function: Arc<Function>,
    pub(super) slot: u16,
}

/// What made a tensor.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) number: u64,
    pub(super) kind: Kind,
    /// For each input what made it; none where no gradient is wanted.
    pub(super) inputs: Vec<Option<Edge>>,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// Nothing: gradients are asked of it.
    Leaf,
    /// An operation, and what it computed of what, until a pass has used it up.
    Operation {
        recipe: Arc<Recipe>,
        saved: Mutex<Option<Arc<Saved>>>,
    },
    /// A call brought it; `len` tensors came with that.
    Received { message: MessageId, len: u16 },
}

#[derive(Debug)]
pub(super) struct Saved {
    pub(super) inputs: Vec<Tensor>,
    pub(super) outputs: Vec<Tensor>,
}

impl Tape {
    /// A tape with memory of its own, up to a gibibyte.
    ///
    /// # Errors
    /// If the system has no memory to map.
    pub fn new() -> Result<Self, Status> {
        Self::of(1 << 30)
    }

    /// A tape with so many bytes of memory of its own.
    pub(crate) fn of(bytes_max: u64) -> Result<Self, Status> {
        let config = ArenaConfig {
            bytes_max,
            ..ArenaConfig::default()
        };
        let pool = Pool::new(ArenaId(0), config).map_err(Status::from)?;
        let pool = Mutex::new(pool);
        let allocate = move |meta: TensorMeta| {
            let mut pool = pool.locked();
            pool.reclaim();
            pool.builder(meta)
                .map_err(|error: MemoryError| Status::from(error))
        };
        Ok(Self::with(Home::new(allocate)))
    }

    /// A tape whose tensors lie where `home` says: in the engine's memory, so that calls bring them without a copy.
    #[must_use]
    pub fn with(home: Home) -> Self {
        let inner = Inner {
            home,
            recipes: Recipes::new(),
            tasks: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Where its tensors lie.
    pub(crate) fn home(&self) -> &Home {
        &self.inner.home
    }

    /// A tensor that gradients are asked of.
    #[must_use]
    pub fn leaf(&self, tensor: Tensor) -> Var {
        let function = self.function(Kind::Leaf, vec![]);
        self.var(tensor, Some(Edge { function, slot: 0 }))
    }

    /// A tensor that is only a number to gradients.
    #[must_use]
    pub fn constant(&self, tensor: Tensor) -> Var {
        self.var(tensor, None)
    }

    pub(super) fn var(&self, tensor: Tensor, edge: Option<Edge>) -> Var {
        Var {
            tape: self.clone(),
            tensor,
            edge,
        }
    }

    pub(super) fn function(&self, kind: Kind, inputs: Vec<Option<Edge>>) -> Arc<Function> {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Function {
            number,
            kind,
            inputs,
        })
    }

    /// Computes the operation `op` of the dataflow runtime; [a page](rendez_dataflow::operations::list) lists them.
    ///
    /// # Errors
    /// What the kernel refuses; `GRAPH_OP_UNKNOWN`, `GRAPH_TYPE` or `KERNEL_UNKNOWN` if there is none for these inputs;
    /// `AUTOGRAD_OPERATION` for an input of another tape.
    pub fn apply(
        &self,
        op: &'static str,
        attrs: &Attrs,
        inputs: &[&Var],
    ) -> Result<Vec<Var>, Status> {
        if inputs
            .iter()
            .any(|input| !Arc::ptr_eq(&input.tape.inner, &self.inner))
        {
            let message = format!(
                "{op} was given a tensor of another tape: make a constant of its value here"
            );
            return Err(Status::of(catalogue::AUTOGRAD_OPERATION, message));
        }
        let tensors: Vec<_> = inputs.iter().map(|input| input.tensor.clone()).collect();
        let recipe = self.recipe(op, attrs, &tensors)?;
        let outputs = recipe.call(&self.inner.home, &tensors)?;
        let edges: Vec<_> = inputs.iter().map(|input| input.edge.clone()).collect();
        if edges.iter().all(Option::is_none)
            || !outputs.iter().any(|output| is_smooth(output.dtype()))
            || !recipe.flows(&outputs)
        {
            return Ok(outputs
                .into_iter()
                .map(|output| self.constant(output))
                .collect());
        }
        let saved = Mutex::new(Some(Arc::new(Saved {
            inputs: tensors,
            outputs: outputs.clone(),
        })));
        let function = self.function(Kind::Operation { recipe, saved }, edges);
        let vars = (0u16..).zip(outputs).map(|(slot, output)| {
            let edge = is_smooth(output.dtype()).then(|| Edge {
                function: Arc::clone(&function),
                slot,
            });
            self.var(output, edge)
        });
        Ok(vars.collect())
    }

    /// Computes an operation of one output.
    pub(super) fn one(
        &self,
        op: &'static str,
        attrs: &Attrs,
        inputs: &[&Var],
    ) -> Result<Var, Status> {
        let outputs = self.apply(op, attrs, inputs)?;
        let none = || Status::of(catalogue::AUTOGRAD_OPERATION, format!("{op} has no output"));
        outputs.into_iter().next().ok_or_else(none)
    }

    fn recipe(
        &self,
        op: &'static str,
        attrs: &Attrs,
        tensors: &[Tensor],
    ) -> Result<Arc<Recipe>, Status> {
        let dtypes = tensors.iter().map(Tensor::dtype).collect();
        self.inner.recipes.find(op, attrs, dtypes)
    }

    /// Computes an operation of one output on values alone.
    pub(super) fn compute(
        &self,
        op: &'static str,
        attrs: &Attrs,
        tensors: &[Tensor],
    ) -> Result<Tensor, Status> {
        let outputs = self
            .recipe(op, attrs, tensors)?
            .call(&self.inner.home, tensors)?;
        let none = || Status::of(catalogue::AUTOGRAD_OPERATION, format!("{op} has no output"));
        outputs.into_iter().next().ok_or_else(none)
    }

    /// The gradients of the scalar `root` by every leaf that it depends on, by [`Var::leaf_id`]. What lies between is
    /// used up.
    ///
    /// # Errors
    /// `AUTOGRAD_ROOT` if it is no scalar or depends on no leaf; `AUTOGRAD_GRAPH_FREED` if it was used up before;
    /// `GRAPH_GRADIENT` naming an operation without one.
    pub fn backward(&self, root: &Var) -> Result<BTreeMap<u64, Tensor>, Status> {
        self.backward_from(std::slice::from_ref(root), false)
    }

    /// The same for several roots, whose gradients are added, and `retain`, which keeps what lies between for another
    /// pass.
    ///
    /// # Errors
    /// As [`backward`](Self::backward).
    pub fn backward_from(
        &self,
        roots: &[Var],
        retain: bool,
    ) -> Result<BTreeMap<u64, Tensor>, Status> {
        super::task::local(self, roots, retain)
    }
}

impl Var {
    /// The tensor.
    #[must_use]
    pub const fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Its tape.
    #[must_use]
    pub const fn tape(&self) -> &Tape {
        &self.tape
    }

    /// Its shape.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.tensor.shape()
    }

    /// The type of its elements.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    /// True if gradients flow back through it.
    #[must_use]
    pub const fn requires_gradient(&self) -> bool {
        self.edge.is_some()
    }

    /// What its gradient is found by, if it is a leaf.
    #[must_use]
    pub fn leaf_id(&self) -> Option<u64> {
        let edge = self.edge.as_ref()?;
        matches!(edge.function.kind, Kind::Leaf).then_some(edge.function.number)
    }

    /// Another tensor in its place, with its history: a leaf after a step.
    pub(crate) fn with_value(&self, tensor: Tensor) -> Self {
        Self {
            tensor,
            ..self.clone()
        }
    }

    /// The same tensor, without its history.
    #[must_use]
    pub fn detach(&self) -> Self {
        self.tape.constant(self.tensor.clone())
    }
}

/// Types that gradients have.
pub(super) const fn is_smooth(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
}

impl Drop for Function {
    /// A history may be longer than a stack is deep.
    fn drop(&mut self) {
        let mut todo = std::mem::take(&mut self.inputs);
        while let Some(edge) = todo.pop() {
            if let Some(Edge { function, .. }) = edge
                && let Some(mut function) = Arc::into_inner(function)
            {
                todo.append(&mut function.inputs);
            }
        }
    }
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, edge, .. } = self;
        let made_by = edge.as_ref().map(|edge| match &edge.function.kind {
            Kind::Leaf => "leaf",
            Kind::Operation { recipe, .. } => recipe.op(),
            Kind::Received { .. } => "received",
        });
        f.debug_struct("Var")
            .field("tensor", tensor)
            .field("made_by", &made_by)
            .finish_non_exhaustive()
    }
}
