//! Plans: what one kind of step runs where: pruned, cut, and registered at the workers.
//!
//! Knows graphs, links and names; not steps. A kind of step is what is fed, fetched and run, in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::link::Link;
use crate::graph::{
    Convention, DeviceIndex, Devices, Endpoints, Graph, Ops, PartialShape, Role, attr, parse_input,
    partition, prune, types,
};
use crate::server::wait::Waiter;
use rendez::ground::limits::SESSION_PLANS_MAX;
use rendez::ground::{DType, FrameIter, Incarnation, Key, Locked, Status, catalogue};
use rendez::memory::Tensor;
use rendez_proto::tensorflow::DataType;

mod registering;

#[cfg(test)]
mod tests;

pub(super) use registering::Register;
use registering::{Parts, Registering};

/// A kind of step.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct StepSignature {
    pub(crate) feeds: Vec<String>,
    pub(crate) fetches: Vec<String>,
    pub(crate) targets: Vec<String>,
    /// It is fed and fetched from piece by piece, by keys.
    pub(crate) is_partial: bool,
}

/// What a kind of step runs.
#[derive(Debug)]
pub(crate) struct StepPlan {
    pub(super) parts: Vec<Registered>,
    pub(super) signature: StepSignature,
    feeds: Vec<Fed>,
    /// The keys of feeds and fetches, where it is a partial run's.
    pub(super) keys: Option<(Vec<Key>, Vec<Key>)>,
}

/// A part at a worker. Dropped, it is deregistered there.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) link: Arc<Link>,
    pub(super) graph: String,
}

/// What a feed has to be.
#[derive(Debug)]
struct Fed {
    base: DataType,
    dtype: Option<DType>,
    /// As its placeholder says.
    shape: Option<PartialShape>,
}

/// What a plan is made of.
pub(super) struct Material<'a> {
    pub(super) graph: &'a Graph,
    pub(super) ops: &'a Ops,
    pub(super) devices: &'a Devices,
    pub(super) own: DeviceIndex,
    pub(super) links: &'a BTreeMap<String, Arc<Link>>,
    pub(super) register: &'a Register<'a>,
    pub(super) narrow_floats: bool,
}

impl StepPlan {
    /// Prunes and cuts, and has the parts registered: `then` hears of the plan when all workers have answered. Workers
    /// of other tasks are not waited for here.
    ///
    /// It hears what is wrong with the endpoints or the graph; what a worker says of its part.
    pub(super) fn make(
        material: &Material<'_>,
        signature: &StepSignature,
        then: impl FnOnce(Result<Self, Status>) + Send + 'static,
    ) {
        match Self::cut(material, signature) {
            Ok((plan, parts)) => Registering::begin(material, plan, parts, Box::new(then)),
            Err(status) => then(Err(status)),
        }
    }

    /// The plan without its parts, and what those are, with the link to each one's worker.
    fn cut(material: &Material<'_>, signature: &StepSignature) -> Result<(Self, Parts), Status> {
        let own = material.devices.device(material.own);
        let own =
            own.ok_or_else(|| Status::of(catalogue::GRAPH_DEVICE, "the master has no device"))?;
        let endpoints = Endpoints {
            feeds: signature.feeds.clone(),
            fetches: signature.fetches.clone(),
            targets: signature.targets.clone(),
        };
        let convention = if signature.is_partial {
            Convention::Rendezvous
        } else {
            Convention::Arguments
        };
        let whole = material.graph;
        let pruned = prune(
            whole,
            material.ops,
            &endpoints,
            (material.own, own),
            convention,
        )?;
        let shape = |feed: &String| {
            let (name, port) = parse_input(feed)?;
            let node = whole.node(whole.find(name)?);
            let is_placeholder = node.role() == Role::Placeholder;
            let shape =
                attr::shape(&node.attrs, "shape").filter(|_| is_placeholder && port == Some(0))?;
            PartialShape::from_proto(shape)
        };
        let feeds = signature.feeds.iter().zip(&pruned.feed_types);
        let feeds = feeds.map(|(feed, &base)| Fed {
            base,
            dtype: types::dtype(base),
            shape: shape(feed),
        });
        let feeds = feeds.collect();
        let narrow = material.narrow_floats;
        let cut = partition(pruned.graph, material.devices, material.ops, narrow)?;
        let key = |edge: &String| {
            let (device, incarnation): (_, Incarnation) = (&own.name, own.incarnation);
            Key::new(device, incarnation, device, edge, FrameIter::default()).map_err(Status::from)
        };
        let keys = |edges: &[String]| edges.iter().map(key).collect::<Result<Vec<_>, _>>();
        let keys = if signature.is_partial {
            Some((keys(&signature.feeds)?, keys(&signature.fetches)?))
        } else {
            None
        };
        let parts = cut.into_iter().filter(|(_, part)| !part.node.is_empty());
        let parts = parts.map(|(task, part)| {
            let link = material.links.get(&task).cloned();
            let none = || {
                let message = format!("no worker of this session is {task}");
                Status::of(catalogue::GRAPH_DEVICE, message)
            };
            Ok((link.ok_or_else(none)?, part))
        });
        let parts = parts.collect::<Result<_, Status>>()?;
        let plan = Self {
            parts: vec![],
            signature: signature.clone(),
            feeds,
            keys,
        };
        Ok((plan, parts))
    }

    /// Whether a tensor is what feed `index` stands for.
    ///
    /// # Errors
    /// `FEED_UNFIT` names the feed, and what it wants.
    pub(super) fn check_feed(&self, index: usize, tensor: &Tensor) -> Result<(), Status> {
        let (Some(fed), Some(name)) = (self.feeds.get(index), self.signature.feeds.get(index))
        else {
            let message = format!(
                "{} feeds are wanted, in order: {}",
                self.feeds.len(),
                self.signature.feeds.join(", ")
            );
            return Err(Status::of(catalogue::FEED_UNFIT, message));
        };
        if fed.dtype != Some(tensor.dtype()) {
            let message = format!(
                "Cannot feed a tensor of {} for '{name}', which has type {}",
                tensor.dtype(),
                types::name(fed.base)
            );
            return Err(Status::of(catalogue::FEED_UNFIT, message));
        }
        let given = tensor.shape();
        let dims: Vec<u64> = given.dims().collect();
        if let Some(shape) = &fed.shape
            && shape.merge(&PartialShape::known(&dims)).is_none()
        {
            let message = format!(
                "Cannot feed value of shape {given} for Tensor '{name}', which has shape '{shape}'"
            );
            return Err(Status::of(catalogue::FEED_UNFIT, message));
        }
        Ok(())
    }

    /// Whether these are all that is fed, each what it should be.
    pub(super) fn check_feeds(&self, feeds: &[Tensor]) -> Result<(), Status> {
        if feeds.len() < self.feeds.len() {
            let missing = self.signature.feeds.get(feeds.len()..).unwrap_or_default();
            let message = format!(
                "{} feeds are missing: {}",
                missing.len(),
                missing.join(", ")
            );
            return Err(Status::of(catalogue::FEED_UNFIT, message));
        }
        let mut feeds = feeds.iter().enumerate();
        feeds.try_for_each(|(index, tensor)| self.check_feed(index, tensor))
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.link.deregister(&self.graph);
    }
}

/// What a worker says, with its name.
pub(super) fn from_worker(task: &str, status: &Status) -> Status {
    let message = format!("From {task}:\n{}", status.message());
    let told = Status::new(status.code(), status.reason(), message);
    if status.is_derived() {
        told.derived()
    } else {
        told
    }
}

/// The plans of a session, by kind of step; beyond a bound the one that was made first goes.
#[derive(Debug, Default)]
pub(super) struct Plans(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    slots: BTreeMap<StepSignature, (u64, Arc<Slot>)>,
    /// What is being made, by number, also where its slot is taken by another since.
    begun: BTreeMap<u64, Arc<Slot>>,
    made: u64,
}

/// A plan, or those who wait for it. Locked for moments: not while it is made.
#[derive(Default)]
struct Slot(Mutex<Progress>);

enum Progress {
    /// It is made once, by whom it was told to; others are told what became of it.
    Begun(Waiting),
    Made(Arc<StepPlan>),
    Failed(Status),
}

#[derive(Default)]
struct Waiting {
    next: u64,
    all: BTreeMap<u64, Then>,
}

/// Hears what became of a plan. Must not block.
pub(crate) type Then = Box<dyn FnOnce(Result<Arc<StepPlan>, Status>) + Send>;

/// How far a plan is that is wanted.
pub(super) enum Wanted<P> {
    Made(Arc<StepPlan>),
    Begun(Begun),
    /// It is to be made by whom this is told to, in the place that was taken for it.
    New(Making, P),
}

/// A plan that is being made.
pub(super) struct Begun(Arc<Slot>);

/// A place among those who wait for a plan.
pub(crate) struct PlanWait {
    slot: Arc<Slot>,
    number: u64,
}

/// The making of a plan. Dropped before its end it has failed.
pub(super) struct Making {
    known: Arc<Mutex<Known>>,
    signature: StepSignature,
    number: u64,
    slot: Arc<Slot>,
}

impl Plans {
    /// The plan, if it is made already. Never blocks.
    pub(super) fn ready(&self, signature: &StepSignature) -> Option<Arc<StepPlan>> {
        let slot = self
            .known()
            .slots
            .get(signature)
            .map(|(_, slot)| Arc::clone(slot))?;
        match &*slot.progress() {
            Progress::Made(plan) => Some(Arc::clone(plan)),
            Progress::Begun(_) | Progress::Failed(_) => None,
        }
    }

    /// The plan, or how far it is. One that is new is begun in a `place`; if there is none, no one else hears of it.
    /// Never blocks.
    ///
    /// # Errors
    /// What `place` says.
    pub(super) fn want<P>(
        &self,
        signature: &StepSignature,
        place: impl FnOnce() -> Result<P, Status>,
    ) -> Result<Wanted<P>, Status> {
        let (number, slot, place) = self.slot(signature, place)?;
        if let Some(place) = place {
            let making = Making {
                known: Arc::clone(&self.0),
                signature: signature.clone(),
                number,
                slot,
            };
            return Ok(Wanted::New(making, place));
        }
        if let Progress::Made(plan) = &*slot.progress() {
            return Ok(Wanted::Made(Arc::clone(plan)));
        }
        Ok(Wanted::Begun(Begun(slot)))
    }

    /// The plan, which `make` begins to make if there is none and no one else makes it. Blocks until it is made.
    ///
    /// # Errors
    /// What the making ends with; it is then made anew the next time.
    pub(super) fn find(
        &self,
        signature: &StepSignature,
        make: impl FnOnce(Making),
    ) -> Result<Arc<StepPlan>, Status> {
        let begun = match self.want(signature, || Ok(()))? {
            Wanted::Made(plan) => return Ok(plan),
            Wanted::Begun(begun) => begun,
            Wanted::New(making, ()) => {
                let begun = making.begun();
                make(making);
                begun
            }
        };
        let (then, waiter) = Waiter::pair();
        begun.then(Box::new(then));
        waiter.wait(None).unwrap_or_else(|| Err(unmade()))
    }

    /// Forgets what is not made yet, since the graph that it is made of has grown: who wants it from now on has it made
    /// anew.
    pub(super) fn forget_begun(&self) {
        let Known { slots, begun, .. } = &mut *self.known();
        slots.retain(|_, (number, _)| !begun.contains_key(number));
    }

    /// Who waits for a plan that is being made is told `why`. Those that are made stay.
    pub(super) fn stop(&self, why: &Status) {
        let begun = std::mem::take(&mut self.known().begun);
        begun
            .into_values()
            .for_each(|slot| slot.end(&Err(why.clone())));
    }

    /// Forgets all. Who waits for one that is being made is told `why`.
    pub(super) fn end(&self, why: &Status) {
        self.stop(why);
        let all = std::mem::take(&mut self.known().slots);
        drop(all);
    }

    /// The slot and its number; of one that was not there also the place it is begun in.
    fn slot<P>(
        &self,
        signature: &StepSignature,
        place: impl FnOnce() -> Result<P, Status>,
    ) -> Result<(u64, Arc<Slot>, Option<P>), Status> {
        let mut known = self.known();
        if let Some((number, slot)) = known.slots.get(signature) {
            return Ok((*number, Arc::clone(slot), None));
        }
        let place = place()?;
        let oldest = if known.slots.len() >= SESSION_PLANS_MAX {
            let oldest = known.slots.iter().min_by_key(|(_, (made, _))| *made);
            oldest.map(|(signature, _)| signature.clone())
        } else {
            None
        };
        let former = oldest.and_then(|oldest| known.slots.remove(&oldest));
        known.made += 1;
        let slot = Arc::<Slot>::default();
        let made = known.made;
        known
            .slots
            .insert(signature.clone(), (made, Arc::clone(&slot)));
        known.begun.insert(made, Arc::clone(&slot));
        drop(known);
        // Its parts are deregistered where they are.
        drop(former);
        Ok((made, slot, Some(place)))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.locked()
    }
}

impl Slot {
    /// Its plan is made, or cannot be. Those who wait are told; the first end counts.
    fn end(&self, made: &Result<Arc<StepPlan>, Status>) {
        let mut progress = self.progress();
        let Progress::Begun(waiting) = &mut *progress else {
            return;
        };
        let waiting = std::mem::take(&mut waiting.all);
        *progress = match made {
            Ok(plan) => Progress::Made(Arc::clone(plan)),
            Err(status) => Progress::Failed(status.clone()),
        };
        drop(progress);
        for then in waiting.into_values() {
            then(made.clone());
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.0.locked()
    }
}

impl Begun {
    /// Has `then` called when the plan is made; at once, if it is. Gives its place, unless it was called.
    pub(super) fn then(self, then: Then) -> Option<PlanWait> {
        let Self(slot) = self;
        let mut progress = slot.progress();
        let outcome = match &mut *progress {
            Progress::Begun(waiting) => {
                let number = waiting.next;
                waiting.next += 1;
                waiting.all.insert(number, then);
                drop(progress);
                return Some(PlanWait { slot, number });
            }
            Progress::Made(plan) => Ok(Arc::clone(plan)),
            Progress::Failed(status) => Err(status.clone()),
        };
        drop(progress);
        then(outcome);
        None
    }
}

impl PlanWait {
    /// Waits no longer: what waits is told `why`, unless it was told of the plan before.
    pub(super) fn end(self, why: Status) {
        let then = match &mut *self.slot.progress() {
            Progress::Begun(waiting) => waiting.all.remove(&self.number),
            Progress::Made(_) | Progress::Failed(_) => None,
        };
        if let Some(then) = then {
            then(Err(why));
        }
    }
}

impl Making {
    /// What is being made, to wait for.
    pub(super) fn begun(&self) -> Begun {
        Begun(Arc::clone(&self.slot))
    }

    /// It is made, or cannot be. Those who wait are told.
    pub(super) fn told(self, made: Result<StepPlan, Status>) {
        if let Err(status) = &made {
            tracing::debug!(%status, "a plan cannot be made");
        }
        self.end(&made.map(Arc::new));
    }

    /// Ends it; the first end counts.
    fn end(&self, made: &Result<Arc<StepPlan>, Status>) {
        let mut known = self.known.locked();
        if known.begun.remove(&self.number).is_none() {
            return;
        }
        let own = known.slots.get(&self.signature);
        if made.is_err() && own.is_some_and(|(number, _)| *number == self.number) {
            known.slots.remove(&self.signature);
        }
        drop(known);
        self.slot.end(made);
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        self.end(&Err(unmade()));
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::Begun(Waiting::default())
    }
}

fn unmade() -> Status {
    Status::of(
        catalogue::SERVICE_FAILED,
        "what made the plan of the step ended before it was made",
    )
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.progress() {
            Progress::Begun(waiting) => write!(f, "begun, and {} wait", waiting.all.len()),
            Progress::Made(plan) => plan.fmt(f),
            Progress::Failed(status) => status.fmt(f),
        }
    }
}
