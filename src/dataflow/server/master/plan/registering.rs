//! Registering: the parts of a plan that their workers prepare, and the plan when all of them have answered.
//!
//! Knows links, and not what a part is. No thread waits for a worker of another task: the last answer makes the plan.

use std::sync::{Arc, Mutex};

use super::{Registered, StepPlan};
use crate::server::master::link::{Link, ThenRun};
use crate::server::master::plan::Material;
use rendez::ground::{Locked, Status};
use rendez_proto::tensorflow::GraphDef;

/// How a worker is given a part. What is told the handle it is run by, or who says why there is none, is told once, by
/// any thread.
pub(in crate::server::master) type Register<'a> = dyn Fn(&Link, GraphDef, ThenRun) + 'a;

/// Parts, and the link to each one's worker.
pub(super) type Parts = Vec<(Arc<Link>, GraphDef)>;

/// Takes the plan that was made. Must not block.
pub(super) type ThenMade = Box<dyn FnOnce(Result<StepPlan, Status>) + Send>;

/// A plan whose parts are being registered.
pub(super) struct Registering {
    plan: StepPlan,
    parts: Vec<Option<Result<Registered, Status>>>,
    /// Parts whose worker has not answered.
    left: usize,
    then: ThenMade,
}

impl Registering {
    /// Has each part registered over its link. `then` hears of the plan when all workers have answered.
    pub(super) fn begin(material: &Material<'_>, plan: StepPlan, parts: Parts, then: ThenMade) {
        if parts.is_empty() {
            return then(Ok(plan));
        }
        let registering = Arc::new(Mutex::new(Some(Self {
            plan,
            parts: parts.iter().map(|_| None).collect(),
            left: parts.len(),
            then,
        })));
        let mut parts: Vec<_> = parts.into_iter().enumerate().collect();
        // Workers of other tasks prepare theirs meanwhile.
        parts.sort_by_key(|(_, (link, _))| link.is_here());
        for (index, (link, part)) in parts {
            let (registering, asked) = (Arc::clone(&registering), Arc::clone(&link));
            let told = move |answer: Result<String, Status>| {
                let part = answer.map(|graph| Registered { link: asked, graph });
                Self::told(&registering, index, part);
            };
            (material.register)(&link, part, ThenRun::new(told));
        }
    }

    /// A worker has answered. The last one ends it.
    fn told(this: &Mutex<Option<Self>>, index: usize, part: Result<Registered, Status>) {
        let mut place = this.locked();
        let Some(all) = place.as_mut() else {
            return;
        };
        if let Some(place) = all.parts.get_mut(index) {
            *place = Some(part);
        }
        all.left -= 1;
        let Some(all) = place.take_if(|all| all.left == 0) else {
            return;
        };
        drop(place);
        let Self {
            mut plan,
            parts,
            then,
            ..
        } = all;
        let parts: Result<_, _> = parts.into_iter().flatten().collect();
        then(parts.map(|parts| {
            plan.parts = parts;
            plan
        }));
    }
}
