//! Plans: what one kind of step runs where: pruned, cut, and registered at the workers.
//!
//! Knows graphs, links and names; not steps. A kind of step is what is fed, fetched and run, in order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use super::link::Link;
use crate::graph::{
    Convention, Cut, DeviceIndex, Devices, Endpoints, Graph, Ops, PartialShape, Role, attr,
    parse_input, partition, prune, types,
};
use rendez::ground::limits::SESSION_GRAPHS_MAX;
use rendez::ground::{DType, FrameIter, Incarnation, Key, Status, catalogue};
use rendez::memory::Tensor;
use rendez_proto::tensorflow::{DataType, GraphDef};

#[cfg(test)]
mod tests;

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

/// How a worker is given a part. Gives the handle it is run by.
pub(super) type Register<'a> = dyn Fn(&Link, GraphDef) -> Result<String, Status> + Sync + 'a;

impl StepPlan {
    /// Prunes, cuts and registers.
    ///
    /// # Errors
    /// What is wrong with the endpoints or the graph; what a worker says of its part.
    pub(super) fn make(material: &Material<'_>, signature: &StepSignature) -> Result<Self, Status> {
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
            whole.clone(),
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
        let options = partition::Options {
            cut: Cut::Tasks,
            narrow_floats: material.narrow_floats,
            ..partition::Options::default()
        };
        let cut = partition(pruned.graph, material.devices, material.ops, options)?;
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
        let cut: Vec<_> = cut
            .into_iter()
            .filter(|(_, part)| !part.node.is_empty())
            .collect();
        let registered = super::discovery::each(cut, |(task, part)| {
            let link = material.links.get(&task).ok_or_else(|| {
                Status::of(
                    catalogue::GRAPH_DEVICE,
                    format!("no worker of this session is {task}"),
                )
            })?;
            let graph =
                (material.register)(link, part).map_err(|status| from_worker(&task, &status))?;
            Ok(Registered {
                link: Arc::clone(link),
                graph,
            })
        });
        Ok(Self {
            parts: registered.into_iter().collect::<Result<_, Status>>()?,
            signature: signature.clone(),
            feeds,
            keys,
        })
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
pub(super) struct Plans(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    slots: BTreeMap<StepSignature, (u64, Slot)>,
    made: u64,
}

/// A plan, once it is made. Locked while it is being made, so that it is not made twice.
type Slot = Arc<Mutex<Option<Arc<StepPlan>>>>;

impl Plans {
    /// The plan, if it is made already. Never blocks.
    pub(super) fn ready(&self, signature: &StepSignature) -> Option<Arc<StepPlan>> {
        let slot = self
            .known()
            .slots
            .get(signature)
            .map(|(_, slot)| Arc::clone(slot))?;
        match slot.try_lock() {
            Ok(plan) => plan.clone(),
            Err(TryLockError::Poisoned(plan)) => plan.into_inner().clone(),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The plan, made by `make` if there is none.
    ///
    /// # Errors
    /// What `make` says; it is then asked again the next time.
    pub(super) fn find(
        &self,
        signature: &StepSignature,
        make: impl FnOnce() -> Result<StepPlan, Status>,
    ) -> Result<Arc<StepPlan>, Status> {
        let slot = self.slot(signature);
        let mut plan = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = &*plan {
            return Ok(Arc::clone(plan));
        }
        let made = make().map(Arc::new);
        match &made {
            Ok(made) => *plan = Some(Arc::clone(made)),
            Err(_) => drop(self.known().slots.remove(signature)),
        }
        made
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut self.known().slots);
        drop(all);
    }

    fn slot(&self, signature: &StepSignature) -> Slot {
        let mut known = self.known();
        if let Some((_, slot)) = known.slots.get(signature) {
            return Arc::clone(slot);
        }
        let oldest = if known.slots.len() >= SESSION_GRAPHS_MAX / 2 {
            let oldest = known.slots.iter().min_by_key(|(_, (made, _))| *made);
            oldest.map(|(signature, _)| signature.clone())
        } else {
            None
        };
        let former = oldest.and_then(|oldest| known.slots.remove(&oldest));
        known.made += 1;
        let slot = Slot::default();
        let made = known.made;
        known
            .slots
            .insert(signature.clone(), (made, Arc::clone(&slot)));
        drop(known);
        // Its parts are deregistered where they are.
        drop(former);
        slot
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
