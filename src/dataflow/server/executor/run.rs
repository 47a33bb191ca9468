//! Run: one step of a plan, as a state machine: what comes in makes nodes ready, and ready nodes run.
//!
//! It knows no threads, no clock and no engine: what a node needs of those it asks of an [`Outside`]. The rules are
//! those of TensorFlow's executor. A node runs when all that it waits for has come, and is dead if any of that is;
//! sends and receives run dead or alive. A Merge runs with its first input that is alive, or when all are dead; it
//! waits for nodes that are dead as for others. A loop is over when nothing in it can run any more; an Exit that was
//! dead in its last iteration is dead then.

use std::collections::VecDeque;

use super::frames::{NONE, RunFrames};
use super::plan::{NodeKind, Plan, PlanNode};
use crate::kernel::Value;
use crate::kernel::{Call, Home, Waiting};
use rendez::ground::{FrameIter, Status, StepId, catalogue};
use rendez::memory::{Bool8, Tensor};

/// What a run asks of its driver. What it awaits comes back with the ticket, once.
pub(super) trait Outside {
    /// Hands a value over, or that there is none.
    fn send(&mut self, key: u32, at: FrameIter, value: Option<Tensor>) -> Result<(), Status>;

    /// Asks for a value: [`PlanRun::received`] follows, unless this is an error.
    fn recv(&mut self, key: u32, at: FrameIter, ticket: u32) -> Result<(), Status>;

    /// Has a costly kernel called elsewhere: [`PlanRun::computed`] follows.
    fn compute(&mut self, node: u32, inputs: Vec<Value>, ticket: u32);

    /// A node has run.
    #[inline]
    fn ran(&mut self, node: u32, at: FrameIter, is_dead: bool) {
        let _ = (node, at, is_dead);
    }

    /// A node gave an output; `None` is dead.
    #[inline]
    fn gave(&mut self, node: u32, at: FrameIter, output: u32, value: Option<&Value>) {
        let _ = (node, at, output, value);
    }
}

/// How a run ends: the results by number, of which those that are dead are `None`.
pub(super) type Outcome = Result<Vec<Option<Value>>, Status>;

/// One step of a plan. It can be used for another step of the same plan when it has ended.
#[derive(Debug, Default)]
pub(super) struct PlanRun {
    step: StepId,
    pub(super) frames: RunFrames,
    pub(super) ready: VecDeque<NodePlace>,
    /// What tickets stand for; those that are free are in the list beside it.
    awaited: Vec<NodePlace>,
    free: Vec<u32>,
    args: Vec<Value>,
    results: Vec<Option<Value>>,
    has_run: Vec<bool>,
    pub(super) failure: Option<Status>,
    /// Room that is used again and again.
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

/// A node in an iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodePlace {
    pub(super) node: u32,
    pub(super) frame: u32,
    pub(super) iter: u64,
    pub(super) is_dead: bool,
}

const ROOT: u32 = 0;

impl PlanRun {
    /// Begins a step. The arguments are as many as the plan takes.
    pub(super) fn begin(&mut self, plan: &Plan, step: StepId, args: Vec<Value>) {
        self.step = step;
        self.args = args;
        self.results.resize_with(plan.results.len(), || None);
        self.has_run.clear();
        self.has_run.resize(plan.results.len(), false);
        let root = self.frames.open(plan, 0, 0, (NONE, 0));
        debug_assert_eq!(root, ROOT, "the root is the first frame");
        self.frames.begin(plan, root);
        for &node in &plan.roots {
            self.make_ready(node, root, 0, false);
        }
        if plan.roots.is_empty() {
            self.frames.end_first(root);
            self.frames.close(root);
        }
    }

    /// Runs up to `most` nodes. False if none is ready any more.
    pub(super) fn turn(
        &mut self,
        plan: &Plan,
        home: &Home,
        outside: &mut impl Outside,
        most: u32,
    ) -> bool {
        for _ in 0..most {
            let Some(place) = self.ready.pop_front() else {
                return false;
            };
            self.run_node(plan, home, outside, place);
        }
        !self.ready.is_empty()
    }

    /// What was asked for came: a value, or that there is none.
    pub(super) fn received(
        &mut self,
        plan: &Plan,
        outside: &mut impl Outside,
        ticket: u32,
        outcome: Result<Option<Tensor>, Status>,
    ) {
        let Some(place) = self.redeem(ticket) else {
            return;
        };
        let node = &plan.nodes[place.node as usize];
        match outcome {
            Err(status) => self.fail(status),
            Ok(Some(tensor)) if Some(tensor.meta().dtype) != node.dtype => {
                let (had, wanted) = (tensor.meta().dtype, node.dtype);
                self.fail(Status::of(
                    catalogue::TENSOR_DTYPE,
                    format!(
                        "received {had:?} where {wanted:?} was to come; {}",
                        node.text()
                    ),
                ));
            }
            Ok(value) if self.failure.is_none() => {
                outside.ran(place.node, self.at(place), false);
                self.emit(plan, outside, place, 0, value.map(Value::Tensor));
                self.finish(plan, outside, place, false);
            }
            Ok(_) => {}
        }
    }

    /// What was computed elsewhere came.
    pub(super) fn computed(
        &mut self,
        plan: &Plan,
        outside: &mut impl Outside,
        ticket: u32,
        outcome: Result<Vec<Value>, Status>,
    ) {
        let Some(place) = self.redeem(ticket) else {
            return;
        };
        match outcome {
            Err(status) => self.fail(status),
            Ok(mut outputs) if self.failure.is_none() => {
                self.give(plan, outside, place, &mut outputs);
            }
            Ok(_) => {}
        }
    }

    /// The run ends with `status`, once all that it awaits has come. A failure counts before a consequence of one, and
    /// else the first.
    pub(super) fn fail(&mut self, status: Status) {
        self.ready.clear();
        match &self.failure {
            Some(known) if !known.is_derived() || status.is_derived() => {}
            _ => self.failure = Some(status),
        }
    }

    /// Why it fails, if it does.
    pub(super) const fn failure(&self) -> Option<&Status> {
        self.failure.as_ref()
    }

    /// The outcome, when nothing is ready and nothing awaited. The run can be begun anew then.
    pub(super) fn outcome(&mut self, plan: &Plan) -> Option<Outcome> {
        if !self.ready.is_empty() || self.free.len() < self.awaited.len() {
            return None;
        }
        let outcome = match self.failure.take() {
            Some(status) => Err(status),
            None => self.results(plan),
        };
        self.frames.clear();
        self.args.clear();
        self.results.clear();
        self.inputs.clear();
        Some(outcome)
    }

    fn results(&mut self, plan: &Plan) -> Outcome {
        let mut wanted = plan.results.iter().zip(&self.has_run);
        let missing = wanted.find_map(|(node, has_run)| node.filter(|_| !has_run));
        if let Some(node) = missing {
            let message = format!(
                "the part '{}' came to rest before it gave all results: {} has not run",
                plan.name,
                plan.nodes[node as usize].text()
            );
            return Err(Status::of(catalogue::RUN_STUCK, message));
        }
        if self.frames.open_frames() > 0 {
            let message = format!(
                "the part '{}' came to rest inside a loop that never ends",
                plan.name
            );
            return Err(Status::of(catalogue::RUN_STUCK, message));
        }
        Ok(std::mem::take(&mut self.results))
    }

    fn run_node(&mut self, plan: &Plan, home: &Home, outside: &mut impl Outside, place: NodePlace) {
        let node = &plan.nodes[place.node as usize];
        let at = self.at(place);
        if let NodeKind::Recv(key) = node.kind {
            let ticket = self.promise(place);
            if let Err(status) = outside.recv(key, at, ticket) {
                self.redeem(ticket);
                self.fail(status);
            }
            return;
        }
        self.take_inputs(node, place);
        if place.is_dead {
            self.inputs.clear();
        } else if self.inputs.len() < node.inputs as usize && node.kind != NodeKind::Merge {
            let message = format!(
                "it was to run before all of its inputs came; {}",
                node.text()
            );
            return self.fail(Status::of(catalogue::RUN_STUCK, message));
        }
        if node.kind == NodeKind::Compute && !place.is_dead {
            return self.compute(plan, home, outside, place);
        }
        outside.ran(place.node, at, place.is_dead);
        match self.steer(plan, outside, place) {
            Ok(()) => self.finish(plan, outside, place, place.is_dead),
            Err(status) => self.fail(status),
        }
    }

    /// Calls a node's kernel, here or elsewhere.
    fn compute(&mut self, plan: &Plan, home: &Home, outside: &mut impl Outside, place: NodePlace) {
        let node = &plan.nodes[place.node as usize];
        if node.is_costly(&self.inputs) {
            return self.compute_elsewhere(outside, place);
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        let mut call = Call {
            inputs: &self.inputs,
            outputs: &mut outputs,
            home,
            step: self.step,
            waiting: Waiting::MayNot,
        };
        let computed = node.compute(&mut call);
        let would_wait = call.waiting == Waiting::Would;
        match computed {
            // Also one that ended well: without what it was refused.
            _ if would_wait => self.compute_elsewhere(outside, place),
            Ok(()) => {
                self.inputs.clear();
                self.give(plan, outside, place, &mut outputs);
            }
            Err(status) => {
                self.inputs.clear();
                self.fail(status);
            }
        }
        outputs.clear();
        self.outputs = outputs;
    }

    fn compute_elsewhere(&mut self, outside: &mut impl Outside, place: NodePlace) {
        let ticket = self.promise(place);
        let inputs = std::mem::take(&mut self.inputs);
        outside.compute(place.node, inputs, ticket);
    }

    /// A kernel gave its outputs.
    fn give(
        &mut self,
        plan: &Plan,
        outside: &mut impl Outside,
        place: NodePlace,
        outputs: &mut Vec<Value>,
    ) {
        let node = &plan.nodes[place.node as usize];
        if outputs.len() != node.outputs as usize {
            let message = format!(
                "its kernel gave {} outputs and not {}; {}",
                outputs.len(),
                node.outputs,
                node.text()
            );
            return self.fail(Status::of(catalogue::KERNEL_FAILED, message));
        }
        outside.ran(place.node, self.at(place), false);
        for (value, output) in outputs.drain(..).zip(0..) {
            self.emit(plan, outside, place, output, Some(value));
        }
        self.finish(plan, outside, place, false);
    }

    /// Does what a node does to the flow, except to its followers. Its inputs lie in `inputs`, unless it is dead.
    fn steer(
        &mut self,
        plan: &Plan,
        outside: &mut impl Outside,
        place: NodePlace,
    ) -> Result<(), Status> {
        let node = &plan.nodes[place.node as usize];
        match node.kind {
            NodeKind::Enter { frame, is_constant } => {
                let value = self.input(node)?;
                self.enter(plan, outside, place, (frame, is_constant), value);
            }
            NodeKind::Exit => {
                let value = self.input(node)?;
                self.exit(plan, outside, place, value);
            }
            NodeKind::NextIteration => {
                if let Some(value) = self.input(node)? {
                    self.next_iteration(plan, outside, place, value);
                }
            }
            NodeKind::Send(key) => {
                let value = match self.inputs.pop() {
                    Some(value) => Some(value.tensor()?),
                    None => None,
                };
                outside.send(key, self.at(place), value)?;
            }
            NodeKind::Retval(index) => {
                let value = self.input(node)?;
                self.has_run[index as usize] = true;
                self.results[index as usize] = value;
            }
            _ if place.is_dead => {
                for output in 0..node.outputs {
                    self.emit(plan, outside, place, output, None);
                }
            }
            NodeKind::Switch => self.switch(plan, outside, place)?,
            NodeKind::Merge => self.merge(plan, outside, place)?,
            NodeKind::Forward => {
                let value = self.input(node)?;
                self.emit(plan, outside, place, 0, value);
            }
            NodeKind::Arg(index) => {
                let value = self.args.get(index as usize).cloned();
                check_argument(node, index, value.as_ref())?;
                self.emit(plan, outside, place, 0, value);
            }
            NodeKind::Nothing | NodeKind::Trigger | NodeKind::Compute | NodeKind::Recv(_) => {}
        }
        Ok(())
    }

    fn switch(
        &mut self,
        plan: &Plan,
        outside: &mut impl Outside,
        place: NodePlace,
    ) -> Result<(), Status> {
        let node = &plan.nodes[place.node as usize];
        let chosen = self
            .inputs
            .pop()
            .map_or(Ok(None), |chosen| truth(node, &chosen))?;
        let value = self.input(node)?;
        let (dead, alive) = if chosen == Some(true) { (0, 1) } else { (1, 0) };
        self.emit(plan, outside, place, dead, None);
        self.emit(plan, outside, place, alive, value);
        Ok(())
    }

    fn merge(
        &mut self,
        plan: &Plan,
        outside: &mut impl Outside,
        place: NodePlace,
    ) -> Result<(), Status> {
        let node = &plan.nodes[place.node as usize];
        let chosen = self.frames.iteration(place.frame, place.iter);
        let chosen = chosen.map_or(0, |iteration| iteration.counts[node.count as usize].chosen);
        let value = self.input(node)?;
        let index = Tensor::scalar(chosen.saturating_sub(1) as i32);
        self.emit(plan, outside, place, 0, value);
        self.emit(plan, outside, place, 1, Some(Value::Tensor(index)));
        Ok(())
    }

    /// What came for a node, in order; what is dead is left out. For a Merge it is what it has chosen.
    #[inline]
    fn take_inputs(&mut self, node: &PlanNode, place: NodePlace) {
        let Self { frames, inputs, .. } = self;
        inputs.clear();
        if let Some(iteration) = frames.iteration(place.frame, place.iter) {
            let (first, last) = match node.kind {
                NodeKind::Merge => {
                    let chosen = iteration.counts[node.count as usize].chosen;
                    (chosen.saturating_sub(1), chosen)
                }
                _ => (0, node.inputs),
            };
            let slots = (node.slot + first) as usize..(node.slot + last) as usize;
            inputs.extend(iteration.slots[slots].iter_mut().filter_map(Option::take));
        }
    }

    /// The input of a node that has one; none if it is dead. A variable is read where a value is wanted.
    fn input(&mut self, node: &PlanNode) -> Result<Option<Value>, Status> {
        match self.inputs.pop() {
            Some(Value::Variable(variable)) if node.reads => {
                Ok(Some(Value::Tensor(variable.read()?)))
            }
            value => Ok(value),
        }
    }

    /// Where a node stands, as keys say it.
    #[inline]
    pub(super) fn at(&mut self, place: NodePlace) -> FrameIter {
        FrameIter {
            frame: self.frames.at(place.frame).id,
            iter: place.iter,
        }
    }

    fn promise(&mut self, place: NodePlace) -> u32 {
        match self.free.pop() {
            Some(ticket) => {
                self.awaited[ticket as usize] = place;
                ticket
            }
            None => {
                self.awaited.push(place);
                self.awaited.len() as u32 - 1
            }
        }
    }

    fn redeem(&mut self, ticket: u32) -> Option<NodePlace> {
        let place = self.awaited.get(ticket as usize).copied()?;
        self.free.push(ticket);
        Some(place)
    }
}

/// The truth value of a Switch.
fn truth(node: &PlanNode, value: &Value) -> Result<Option<bool>, Status> {
    let refuse =
        |what: String| Status::of(catalogue::KERNEL_INPUT, format!("{what}; {}", node.text()));
    let tensor = value.tensor()?;
    let truths = tensor
        .as_slice::<Bool8>()
        .map_err(|error| refuse(format!("The second input must be a truth value: {error}")))?;
    match truths {
        [truth] => Ok(Some(truth.is_true())),
        _ => Err(refuse(format!(
            "The second input must be a scalar, but it has {} elements",
            truths.len()
        ))),
    }
}

/// Whether an argument is there and of its node's type.
fn check_argument(node: &PlanNode, index: u32, value: Option<&Value>) -> Result<(), Status> {
    let had = match value {
        Some(Value::Variable(_)) => return Ok(()),
        Some(Value::Tensor(tensor)) if Some(tensor.meta().dtype) == node.dtype => return Ok(()),
        Some(Value::Tensor(tensor)) => format!("is {:?}", tensor.meta().dtype),
        None => "is missing".to_owned(),
    };
    let wanted = node
        .dtype
        .map_or_else(|| "a handle".to_owned(), |dtype| format!("{dtype:?}"));
    let message = format!(
        "argument {index} {had}, and must be {wanted}; {}",
        node.text()
    );
    Err(Status::of(catalogue::RUN_ARGUMENTS, message))
}
