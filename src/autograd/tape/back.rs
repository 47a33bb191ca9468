//! How gradients flow back through one operation: the nodes that compute them, each a kernel, and what is known of them
//! beforehand.
//!
//! Many nodes of a gradient compute shapes, or axes to sum over. These follow from the shapes of the operands and from
//! small integers among them, which are the same for each pass over a model. So they are computed once for each set of
//! operands that are alike, and kept; and a node that changes nothing for such operands, as a sum over no axes, hands
//! its input on.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rendez::ground::shape::RANK_MAX;
use rendez::ground::{DType, Locked, Shape, Status, catalogue};
use rendez::memory::Tensor;
use rendez_dataflow::graph::Node;
use rendez_dataflow::kernel::{Home, Kernel, Value};

use super::recipe::compute;

/// Sets of operands that are remembered at most; the one that was met first makes room.
const PLANS_MAX: usize = 8;
/// Integers of an operand by which it is told from others at most: axes and sizes are no more than dimensions, and more
/// are data, which differs each time.
const INTEGERS_MAX: u64 = RANK_MAX as u64;
/// Integers and truth values of a value that is kept, at most: whether each of the dimensions is among such axes.
const KEPT_MAX: u64 = INTEGERS_MAX * INTEGERS_MAX;

/// The gradients of an operation, for some of its outputs and some of its inputs.
pub(super) struct Back {
    op: &'static str,
    steps: Vec<Step>,
    /// Values that there are in all: first the operation's inputs and outputs, then the gradients that are given.
    slots: usize,
    /// Where the gradient of each output is put.
    given: Vec<Option<usize>>,
    /// Where the gradient of each input is found.
    wanted: Vec<Option<usize>>,
    plans: Mutex<Vec<Arc<Plan>>>,
}

/// A node.
pub(super) struct Step {
    kernel: Box<dyn Kernel>,
    inputs: Vec<usize>,
    first_output: usize,
    outputs: usize,
    needs: Needs,
    idles: Idles,
}

/// What the outputs of a node follow from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Needs {
    /// The shapes of its inputs.
    Shapes,
    /// Their values.
    Values,
    /// More than its inputs.
    More,
}

/// When a node changes nothing, by its second input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Idles {
    Never,
    /// It names a shape, and that is the first input's.
    ByShape,
    /// It names axes to sum over, and there are none.
    ByAxes,
    /// It says how often the first input is repeated along each axis: once.
    ByTimes,
}

/// What is known beforehand for operands that are alike.
struct Plan {
    operands: Vec<Operand>,
    /// Values that are kept, as far as a node that is left reads them.
    known: Vec<(usize, Value)>,
    /// What is left to be done.
    turns: Vec<Turn>,
}

/// An operand, as far as others are alike.
#[derive(PartialEq, Eq)]
struct Operand {
    slot: usize,
    shape: Shape,
    /// Its bytes, if they are a few integers.
    integers: Option<Bytes>,
}

#[derive(Clone, Copy)]
enum Turn {
    /// This step runs.
    Run(usize),
    /// This step changes nothing, if its input is of that shape.
    Pass(usize, Shape),
}

type Slots = Vec<Option<Value>>;

impl Step {
    /// A node that `kernel` computes, which reads the values in `inputs` and puts its own at `first_output` and behind.
    pub(super) fn new(
        kernel: Box<dyn Kernel>,
        node: &Node,
        inputs: Vec<usize>,
        first_output: usize,
    ) -> Self {
        let needs = match node.op.name() {
            _ if node.op.is_stateful => Needs::More,
            "Shape" | "ShapeN" | "Size" | "Rank" => Needs::Shapes,
            _ => Needs::Values,
        };
        Self {
            kernel,
            inputs,
            first_output,
            outputs: node.out_ports().len(),
            needs,
            idles: match node.op.name() {
                "Reshape" | "BroadcastTo" => Idles::ByShape,
                "Sum" => Idles::ByAxes,
                "Tile" => Idles::ByTimes,
                _ => Idles::Never,
            },
        }
    }

    /// The shape of its input, if it changes nothing where all that it reads beside that is known.
    fn changes_nothing(&self, slots: &Slots, is_known: &[bool]) -> Option<Shape> {
        let [of, how] = self.inputs[..] else {
            return None;
        };
        if self.idles == Idles::Never || !is_known[how] {
            return None;
        }
        let (of, how) = (tensor_at(slots, of)?, numbers(tensor_at(slots, how)?)?);
        let is_idle = match self.idles {
            Idles::Never => false,
            Idles::ByShape => {
                let dims = (0..of.shape().rank()).filter_map(|dim| of.shape().dim(dim));
                how.into_iter().eq(dims.map(u64::cast_signed))
            }
            Idles::ByAxes => how.is_empty(),
            Idles::ByTimes => how.len() == of.shape().rank() && how.iter().all(|&times| times == 1),
        };
        is_idle.then(|| of.shape())
    }
}

impl Back {
    pub(super) fn new(
        op: &'static str,
        steps: Vec<Step>,
        slots: usize,
        given: Vec<Option<usize>>,
        wanted: Vec<Option<usize>>,
    ) -> Self {
        Self {
            op,
            steps,
            slots,
            given,
            wanted,
            plans: Mutex::default(),
        }
    }

    /// True if a gradient comes of it.
    pub(super) fn flows(&self) -> bool {
        self.wanted.iter().any(Option::is_some)
    }

    /// The gradients of the inputs that are wanted, from inputs, outputs, and the gradients of these.
    pub(super) fn run(
        &self,
        home: &Home,
        values: &[&[Tensor]; 2],
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, Status> {
        let mut slots: Slots = vec![None; self.slots];
        let given = self.given.iter().zip(gradients);
        let given = given.filter_map(|(slot, gradient)| Some(((*slot)?, gradient.as_ref()?)));
        for (slot, tensor) in values.iter().copied().flatten().enumerate().chain(given) {
            slots[slot] = Some(Value::Tensor(tensor.clone()));
        }
        match self.plan(&slots) {
            Some(plan) => self.follow(&plan, home, &mut slots)?,
            None => self.explore(home, &mut slots)?,
        }
        let take = |slot: &Option<usize>| match slot {
            None => Ok(None),
            Some(slot) => slots[*slot].as_ref().map(Value::tensor).transpose(),
        };
        self.wanted.iter().map(take).collect()
    }

    fn plan(&self, slots: &Slots) -> Option<Arc<Plan>> {
        let plans = self.plans.locked();
        let is_it = |plan: &&Arc<Plan>| plan.operands.iter().all(|one| one.is_in(slots));
        plans.iter().find(is_it).cloned()
    }

    fn follow(&self, plan: &Plan, home: &Home, slots: &mut Slots) -> Result<(), Status> {
        for (slot, value) in &plan.known {
            slots[*slot] = Some(value.clone());
        }
        for turn in &plan.turns {
            match *turn {
                Turn::Run(at) => self.step(&self.steps[at], home, slots)?,
                Turn::Pass(at, shape) => self.pass(&self.steps[at], shape, home, slots)?,
            }
        }
        Ok(())
    }

    /// Runs all steps, and remembers what the next operands that are like these need not have computed.
    fn explore(&self, home: &Home, slots: &mut Slots) -> Result<(), Status> {
        let (mut is_shaped, mut is_known) = (vec![false; self.slots], vec![false; self.slots]);
        let mut operands = vec![];
        for (slot, value) in slots.iter().enumerate() {
            if let Some(Value::Tensor(tensor)) = value {
                let operand = Operand::of(slot, tensor);
                (is_shaped[slot], is_known[slot]) = (true, operand.integers.is_some());
                operands.push(operand);
            }
        }
        let (mut turns, mut found) = (vec![], vec![]);
        for (at, step) in self.steps.iter().enumerate() {
            if let Some(shape) = step.changes_nothing(slots, &is_known) {
                self.pass(step, shape, home, slots)?;
                turns.push(Turn::Pass(at, shape));
                continue;
            }
            self.step(step, home, slots)?;
            let mut inputs = step.inputs.iter();
            let follows = match step.needs {
                Needs::Shapes => inputs.all(|&slot| is_shaped[slot] || is_known[slot]),
                Needs::Values => inputs.all(|&slot| is_known[slot]),
                Needs::More => false,
            };
            let outputs = step.first_output..step.first_output + step.outputs;
            let kept = outputs.clone().map(|slot| kept(tensor_at(slots, slot)?));
            match kept.collect::<Option<Vec<_>>>().filter(|_| follows) {
                None => turns.push(Turn::Run(at)),
                Some(kept) => {
                    outputs.clone().for_each(|slot| is_known[slot] = true);
                    found.extend(outputs.zip(kept));
                }
            }
        }
        let is_read = |slot: &usize| {
            let of = |turn: &Turn| match *turn {
                Turn::Run(at) | Turn::Pass(at, _) => self.steps[at].inputs.contains(slot),
            };
            turns.iter().any(of) || self.wanted.contains(&Some(*slot))
        };
        found.retain(|(slot, _)| is_read(slot));
        let plan = Plan {
            operands,
            known: found,
            turns,
        };
        let mut plans = self.plans.locked();
        // Another thread may have been at the same.
        if plans.iter().all(|other| other.operands != plan.operands) {
            if plans.len() == PLANS_MAX {
                plans.remove(0);
            }
            plans.push(Arc::new(plan));
        }
        Ok(())
    }

    fn step(&self, step: &Step, home: &Home, slots: &mut Slots) -> Result<(), Status> {
        let read = |slot: &usize| slots[*slot].clone().ok_or_else(|| self.broken());
        let inputs: Vec<_> = step.inputs.iter().map(read).collect::<Result<_, _>>()?;
        let outputs = compute(&*step.kernel, home, &inputs)?;
        for (slot, output) in slots[step.first_output..].iter_mut().zip(outputs) {
            *slot = Some(output);
        }
        Ok(())
    }

    fn pass(
        &self,
        step: &Step,
        shape: Shape,
        home: &Home,
        slots: &mut Slots,
    ) -> Result<(), Status> {
        let of = step.inputs[0];
        // A value may make another shape of operands that are alike: then it is computed.
        match tensor_at(slots, of) {
            Some(tensor) if tensor.shape() == shape => {
                slots[step.first_output] = slots[of].clone();
                Ok(())
            }
            _ => self.step(step, home, slots),
        }
    }

    fn broken(&self) -> Status {
        let message = format!(
            "the gradient of {} reads what is not there: report it",
            self.op
        );
        Status::of(catalogue::GRAPH_GRADIENT, message)
    }
}

impl Operand {
    fn of(slot: usize, tensor: &Tensor) -> Self {
        let bytes = integers_of(tensor);
        Self {
            slot,
            shape: tensor.shape(),
            integers: bytes.map(Bytes::copy_from_slice),
        }
    }

    /// True if what is in its place is like it.
    fn is_in(&self, slots: &Slots) -> bool {
        tensor_at(slots, self.slot).is_some_and(|tensor| {
            let is_same = || self.integers.as_deref() == integers_of(tensor);
            tensor.shape() == self.shape && is_same()
        })
    }
}

fn tensor_at(slots: &Slots, slot: usize) -> Option<&Tensor> {
    match slots[slot].as_ref()? {
        Value::Tensor(tensor) => Some(tensor),
        Value::Variable(_) => None,
    }
}

/// The bytes of a few integers in the host's memory.
fn integers_of(tensor: &Tensor) -> Option<&[u8]> {
    let is_few = tensor.shape().elements() <= INTEGERS_MAX;
    match tensor.dtype() {
        DType::I32 | DType::I64 if is_few => tensor.host().ok(),
        _ => None,
    }
}

/// Integers, as numbers.
fn numbers(tensor: &Tensor) -> Option<Vec<i64>> {
    match tensor.dtype() {
        DType::I64 => tensor.to_vec().ok(),
        DType::I32 => {
            let narrow: Vec<i32> = tensor.to_vec().ok()?;
            Some(narrow.into_iter().map(i64::from).collect())
        }
        _ => None,
    }
}

/// A value that is kept, in memory of its own: that of the pass goes home.
fn kept(tensor: &Tensor) -> Option<Value> {
    let is_few = tensor.shape().elements() <= KEPT_MAX;
    let is_kept = is_few && matches!(tensor.dtype(), DType::I32 | DType::I64 | DType::Bool);
    let bytes = is_kept.then(|| tensor.host().ok()).flatten()?;
    let tensor = Tensor::from_bytes(tensor.meta(), Bytes::copy_from_slice(bytes)).ok()?;
    Some(Value::Tensor(tensor))
}
