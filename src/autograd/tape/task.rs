//! A backward pass through the functions of one tape.
//!
//! A function runs when every gradient that will come to it has come. How many that are is counted beforehand, from
//! where gradients come in back along the inputs. What comes to one output from several sides is added pairwise over
//! the order of those sides, whichever came first: so a pass gives the same bits each time, also if parts of it come
//! over a network. Two neighbours are added as soon as both are there: of n gradients that come in order, log2(n) are
//! alive at most.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

use super::recipe::Recipe;
use super::var::{Edge, Function, Kind, Saved, Tape, Var};
use crate::autograd::{ContextId, MessageId, PassId, Port, Ran, WorkerId};
use rendez::ground::{Locked, Status, catalogue};
use rendez::memory::Tensor;

/// The passes of a tape, and what messages took away.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    pub(super) sends: BTreeMap<(ContextId, MessageId), Arc<[Var]>>,
    /// None while it runs.
    pub(super) passes: BTreeMap<PassId, Option<Task>>,
}

impl Tasks {
    /// What messages of a context took away.
    pub(super) fn sends_of(
        &self,
        context: ContextId,
    ) -> impl Iterator<Item = (&(ContextId, MessageId), &Arc<[Var]>)> {
        let [first, last] = [0, u64::MAX].map(MessageId::from_wire);
        self.sends.range((context, first)..=(context, last))
    }

    /// The passes of a context.
    pub(super) fn passes_of(
        &self,
        context: ContextId,
    ) -> impl Iterator<Item = (&PassId, &Option<Task>)> {
        let [first, last] = [(0, 0), (u16::MAX, u32::MAX)].map(|(root, number)| PassId {
            context,
            root: WorkerId(root),
            number,
        });
        self.passes.range(first..=last)
    }
}

/// Which side a gradient comes from: outside, or input `input` of a function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Side {
    Root(u32),
    Send(Port),
    Function { number: u64, input: usize },
}

#[derive(Debug, Default)]
pub(super) struct Task {
    pub(super) roots: Vec<Var>,
    /// Inputs of send functions that take part.
    pub(super) starts: BTreeSet<Port>,
    waiting: HashMap<u64, Waiting>,
    ports: BTreeSet<Port>,
    ready: BinaryHeap<u64>,
    /// Weight of the functions that take part.
    weight: usize,
}

/// What weighs no more runs in a few microseconds: so many elements, of tensors that functions kept. In tests little is
/// light, so that both ways are gone.
const LIGHT: usize = if cfg!(test) { 64 } else { 2048 };
/// The weight of a function that computes nothing.
const FUNCTION: usize = 16;

/// A function that takes part.
#[derive(Debug)]
struct Waiting {
    function: Arc<Function>,
    /// What an operation kept, also if another pass uses it up meanwhile.
    saved: Option<Arc<Saved>>,
    missing: usize,
    /// Where gradients come in; in order from the first arrival on.
    places: Vec<Place>,
}

/// Where a gradient comes in: an output, and the side it comes from.
#[derive(Debug)]
struct Place {
    slot: u16,
    side: Side,
    /// How many places from here on `sum` is of; none until what belongs here is there.
    width: usize,
    sum: Option<Tensor>,
}

impl Task {
    /// A pass that begins with `roots`.
    pub(super) fn of(roots: Vec<Var>) -> Self {
        Self {
            roots,
            ..Self::default()
        }
    }

    /// Counts what comes to `edge`, from outside and from there on. Returns outputs of receive functions that were not
    /// marked before.
    pub(super) fn mark(&mut self, edges: Vec<(Side, Edge)>) -> Result<Vec<Port>, Status> {
        let mut found = vec![];
        let mut todo = edges;
        while let Some((side, Edge { function, slot })) = todo.pop() {
            if let Kind::Received { message, .. } = function.kind
                && self.ports.insert(Port {
                    message,
                    index: slot,
                })
            {
                found.push(Port {
                    message,
                    index: slot,
                });
            }
            let place = Place {
                slot,
                side,
                width: 0,
                sum: None,
            };
            if let Some(waiting) = self.waiting.get_mut(&function.number) {
                if waiting.missing == 0 || waiting.missing < waiting.places.len() {
                    let what = "a function was marked after its gradients had begun to come";
                    return Err(Status::of(catalogue::AUTOGRAD_MESSAGE, what));
                }
                waiting.missing += 1;
                waiting.places.push(place);
                continue;
            }
            let saved = function.saved();
            if saved.is_none() && matches!(function.kind, Kind::Operation { .. }) {
                return Err(freed());
            }
            self.weight = self.weight.saturating_add(function.weight());
            let number = function.number;
            for (input, edge) in function.inputs.iter().enumerate() {
                let side = Side::Function { number, input };
                todo.extend(edge.clone().map(|edge| (side, edge)));
            }
            self.waiting.insert(
                number,
                Waiting {
                    function,
                    saved,
                    missing: 1,
                    places: vec![place],
                },
            );
        }
        Ok(found)
    }

    /// Adds a tensor to the weight. False if that is light no more.
    pub(super) fn weighs(&mut self, tensor: &Tensor) -> bool {
        let elements = tensor.shape().elements() as usize;
        self.weight = self.weight.saturating_add(FUNCTION + elements);
        self.is_light()
    }

    /// True if all that takes part is light.
    pub(super) fn is_light(&self) -> bool {
        self.weight <= LIGHT
    }

    /// True if it is so with these too. Looks at no more functions than a light pass has.
    pub(super) fn is_light_with(&self, edges: &[Edge]) -> bool {
        let mut weight = self.weight;
        let mut todo: Vec<&Edge> = edges.iter().collect();
        let mut seen = BTreeSet::new();
        while let Some(Edge { function, .. }) = todo.pop() {
            let is_marked = self.waiting.contains_key(&function.number);
            if is_marked || !seen.insert(function.number) {
                continue;
            }
            weight = weight.saturating_add(function.weight());
            if weight > LIGHT {
                return false;
            }
            todo.extend(function.inputs.iter().flatten());
        }
        weight <= LIGHT
    }

    /// A gradient comes to `edge`, or the word that none will.
    pub(super) fn arrive(
        &mut self,
        tape: &Tape,
        edge: &Edge,
        side: Side,
        gradient: Option<Tensor>,
    ) -> Result<(), Status> {
        let number = edge.function.number;
        let Some(waiting) = self.waiting.get_mut(&number) else {
            return Ok(());
        };
        waiting.add(tape, edge.slot, side, gradient)?;
        waiting.missing = waiting.missing.saturating_sub(1);
        if waiting.missing == 0 {
            self.ready.push(number);
        }
        Ok(())
    }

    /// The gradient of a root by itself comes.
    pub(super) fn take_root(&mut self, tape: &Tape, index: u32) -> Result<(), Status> {
        let Some(root) = self.roots.get(index as usize).cloned() else {
            return Ok(());
        };
        let ones = tape.compute("OnesLike", &[], std::slice::from_ref(&root.tensor))?;
        match &root.edge {
            Some(edge) => self.arrive(tape, edge, Side::Root(index), Some(ones)),
            None => Ok(()),
        }
    }

    /// The gradients of what a message took away come.
    pub(super) fn take_in(
        &mut self,
        tape: &Tape,
        message: MessageId,
        values: &[Var],
        gradients: Vec<Option<Tensor>>,
    ) -> Result<(), Status> {
        for (index, (value, gradient)) in (0u16..).zip(values.iter().zip(gradients)) {
            let port = Port { message, index };
            let Some(edge) = value.edge.as_ref().filter(|_| self.starts.contains(&port)) else {
                continue;
            };
            if let Some(gradient) = &gradient
                && gradient.meta() != value.tensor.meta()
            {
                let what = format!(
                    "tensor {index} of message {message:?} is {:?}, and its gradient {:?}",
                    value.tensor.meta(),
                    gradient.meta()
                );
                return Err(Status::of(catalogue::AUTOGRAD_MESSAGE, what));
            }
            self.arrive(tape, edge, Side::Send(port), gradient)?;
        }
        Ok(())
    }

    /// Runs what is ready, the latest first, until nothing is.
    pub(super) fn run(&mut self, tape: &Tape) -> Result<Ran<Tensor>, Status> {
        let mut ran = Ran::default();
        while let Some(number) = self.ready.pop() {
            let Some(waiting) = self.waiting.get_mut(&number) else {
                continue;
            };
            let function = Arc::clone(&waiting.function);
            let saved = waiting.saved.take();
            let outputs = function.outputs(saved.as_deref());
            let mut gradients = vec![None; outputs];
            for place in std::mem::take(&mut waiting.places) {
                if let (Some(sum), Some(to)) =
                    (place.sum, gradients.get_mut(usize::from(place.slot)))
                {
                    *to = Some(sum);
                }
            }
            match &function.kind {
                Kind::Leaf => {
                    let gradient = gradients.into_iter().next().flatten();
                    ran.leaves
                        .extend(gradient.map(|gradient| (number, gradient)));
                }
                Kind::Received { message, .. } => ran.received.push((*message, gradients)),
                Kind::Operation { recipe, .. } => {
                    let saved = saved.ok_or_else(freed)?;
                    let flows = function.back(tape, recipe, &saved, &gradients)?;
                    for (input, (edge, flow)) in function.inputs.iter().zip(flows).enumerate() {
                        if let Some(edge) = edge {
                            self.arrive(tape, edge, Side::Function { number, input }, flow)?;
                        }
                    }
                }
            }
        }
        Ok(ran)
    }

    /// Lets go what the functions kept.
    pub(super) fn use_up(self) {
        for waiting in self.waiting.into_values() {
            if let Kind::Operation { saved, .. } = &waiting.function.kind {
                *saved.locked() = None;
            }
        }
    }
}

impl Waiting {
    /// Takes a gradient, or the word that none comes, in its place, and adds it to neighbours: a block of places whose
    /// number is a power of two is added to its buddy when both are whole, as counters in binary carry.
    fn add(
        &mut self,
        tape: &Tape,
        slot: u16,
        side: Side,
        gradient: Option<Tensor>,
    ) -> Result<(), Status> {
        if self.missing == self.places.len() {
            self.places.sort_by_key(|place| (place.slot, place.side));
        }
        let first = self.places.partition_point(|place| place.slot < slot);
        let len = self.places[first..].partition_point(|place| place.slot == slot);
        let places = &mut self.places[first..][..len];
        let Ok(mut at) = places.binary_search_by_key(&side, |place| place.side) else {
            return Ok(());
        };
        let (mut width, mut sum) = (1, gradient);
        loop {
            let buddy = at ^ width;
            if buddy >= len {
                // A block at the end has no buddy of its size, and the first is all.
                if at == 0 {
                    break;
                }
            } else if places[buddy].width < width {
                break;
            } else {
                let other = places[buddy].sum.take();
                let parts = if at < buddy {
                    [sum, other]
                } else {
                    [other, sum]
                };
                sum = self::sum(tape, parts.into_iter().flatten())?;
                at = at.min(buddy);
            }
            width *= 2;
        }
        (places[at].width, places[at].sum) = (width, sum);
        Ok(())
    }
}

impl Function {
    /// How many outputs it has, of which an operation has kept `saved`.
    fn outputs(&self, saved: Option<&Saved>) -> usize {
        match &self.kind {
            Kind::Leaf => 1,
            Kind::Received { len, .. } => usize::from(*len),
            Kind::Operation { .. } => saved.map_or(0, |saved| saved.outputs.len()),
        }
    }

    /// What it weighs: the elements that it kept.
    fn weight(&self) -> usize {
        let Kind::Operation { saved, .. } = &self.kind else {
            return FUNCTION;
        };
        let saved = saved.locked();
        let kept = saved
            .iter()
            .flat_map(|saved| saved.inputs.iter().chain(&saved.outputs));
        kept.fold(FUNCTION, |sum, tensor| {
            sum.saturating_add(tensor.shape().elements() as usize)
        })
    }

    /// What an operation kept, unless it is used up.
    fn saved(&self) -> Option<Arc<Saved>> {
        match &self.kind {
            Kind::Operation { saved, .. } => saved.locked().clone(),
            Kind::Leaf | Kind::Received { .. } => None,
        }
    }

    /// The gradients of its inputs.
    fn back(
        &self,
        tape: &Tape,
        recipe: &Recipe,
        Saved { inputs, outputs }: &Saved,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, Status> {
        if gradients.iter().all(Option::is_none) {
            return Ok(vec![None; self.inputs.len()]);
        }
        let wanted: Vec<_> = self.inputs.iter().map(Option::is_some).collect();
        recipe.back(&tape.inner.home, inputs, outputs, gradients, &wanted)
    }
}

/// The sum of tensors of one shape; none of none.
pub(super) fn sum(
    tape: &Tape,
    parts: impl IntoIterator<Item = Tensor>,
) -> Result<Option<Tensor>, Status> {
    let mut sum = None;
    for part in parts {
        sum = Some(match sum {
            None => part,
            Some(sum) => tape.compute("AddN", &[], &[sum, part])?,
        });
    }
    Ok(sum)
}

fn freed() -> Status {
    let message = "Trying to backward through the graph a second time: its values were let go by the pass before, \
                   which was not told to retain the graph";
    Status::of(catalogue::AUTOGRAD_GRAPH_FREED, message)
}

/// Refuses what cannot be a root of a pass.
pub(super) fn check_roots(roots: &[Var]) -> Result<(), Status> {
    let refuse = |what: String| Err(Status::of(catalogue::AUTOGRAD_ROOT, what));
    if roots.is_empty() {
        return refuse("No tensors provided for gradient computation.".to_owned());
    }
    for (index, root) in roots.iter().enumerate() {
        if root.edge.is_none() {
            return refuse(format!(
                "requires_grad not set on root {index}: it depends on no leaf"
            ));
        }
        if root.shape().elements() != 1 {
            return refuse(format!(
                "root {index} of shape {} is not a scalar, all roots need to be scalar",
                root.shape()
            ));
        }
        if root.leaf_id().is_some() {
            return refuse(format!(
                "root {index} does not have a valid gradient function: it is a leaf itself"
            ));
        }
    }
    Ok(())
}

/// A pass that stays here.
pub(super) fn local(
    tape: &Tape,
    roots: &[Var],
    retain: bool,
) -> Result<BTreeMap<u64, Tensor>, Status> {
    check_roots(roots)?;
    let mut task = Task::of(roots.to_vec());
    let edges = (0u32..).zip(roots).filter_map(|(index, root)| {
        let edge = root.edge.clone()?;
        Some((Side::Root(index), edge))
    });
    if !task.mark(edges.collect())?.is_empty() {
        let message = "the root depends on what calls brought: begin the pass in their context";
        return Err(Status::of(catalogue::AUTOGRAD_ROOT, message));
    }
    for (index, _) in (0u32..).zip(roots) {
        task.take_root(tape, index)?;
    }
    let ran = task.run(tape)?;
    if !retain {
        task.use_up();
    }
    Ok(ran.leaves.into_iter().collect())
}
