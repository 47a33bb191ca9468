//! What must be so in a world when all has come to rest.

use std::collections::{BTreeMap, BTreeSet};

use super::engine::Local;
use super::world::{Global, Outcome, Reference, World};
use crate::autograd::{ContextId, PassId, WorkerId};

impl World {
    /// The gradients of `root` by every leaf that it depends on.
    fn expected(&self, root: Global) -> BTreeMap<(WorkerId, u64), i64> {
        let mut weights = BTreeMap::from([(root, 1i64)]);
        let mut found = BTreeMap::new();
        // A value is made after those that it is made of.
        while let Some((value, weight)) = weights.pop_last() {
            match &self.reference[value] {
                Reference::Leaf(at, id) => {
                    found.insert((*at, *id), weight);
                }
                Reference::Sum(terms) => {
                    for (term, by) in terms {
                        let sum = weights.entry(*term).or_default();
                        *sum = sum.wrapping_add(weight.wrapping_mul(*by));
                    }
                }
                Reference::Constant => {}
            }
        }
        found
    }

    /// Compares what all workers hold of `context` with the sum of the passes that went well.
    pub(super) fn check_gradients(&self, context: ContextId) {
        let mut expected: BTreeMap<(WorkerId, u64), i64> = BTreeMap::new();
        for (_, outcome) in self
            .outcomes
            .iter()
            .filter(|(pass, _)| pass.context == context)
        {
            if matches!(outcome.result, Some(Ok(()))) {
                for (leaf, gradient) in self.expected(outcome.root) {
                    let sum = expected.entry(leaf).or_default();
                    *sum = sum.wrapping_add(gradient);
                }
            }
        }
        let mut actual = BTreeMap::new();
        for id in self.living() {
            let gradients = self.machine(id).gradients(context).unwrap_or_default();
            for (leaf, parts) in gradients {
                actual.insert((id, leaf), parts.into_iter().fold(0, i64::wrapping_add));
            }
        }
        assert_eq!(actual, expected);
    }

    /// Asserts that no worker holds anything any more.
    pub(super) fn check_empty(&self) {
        for worker in self.workers.iter().filter(|worker| worker.is_alive) {
            let load = worker.machine.load();
            assert_eq!(
                (load.contexts, load.passes, load.functions),
                (0, 0, 0),
                "{:?}",
                worker.machine.worker()
            );
            assert_eq!(worker.engine.left(), (0, 0));
        }
    }

    /// What workers hold, those that hold anything.
    pub(super) fn left(&self) -> Vec<(WorkerId, String)> {
        let alive = self.workers.iter().filter(|worker| worker.is_alive);
        let left = alive.filter_map(|worker| {
            let (load, engine) = (worker.machine.load(), worker.engine.left());
            let is_empty = (load.contexts, load.passes, load.functions) == (0, 0, 0);
            let contexts: Vec<_> = worker.machine.contexts.keys().collect();
            let what = format!("{load:?}, {contexts:?} and {engine:?}");
            (!is_empty || engine != (0, 0)).then_some((worker.machine.worker(), what))
        });
        left.collect()
    }

    /// Passes of living roots that have no end.
    pub(super) fn endless(&self) -> Vec<PassId> {
        let living: BTreeSet<_> = self.living().into_iter().collect();
        let open = self
            .outcomes
            .iter()
            .filter(|(_, outcome)| outcome.result.is_none());
        open.map(|(pass, _)| *pass)
            .filter(|pass| living.contains(&pass.root))
            .collect()
    }

    /// What is wrong with the gradients of `context` at those who hold it. Of each pass that went well they are exact,
    /// for each leaf that was not forgotten since, also if workers have lost each other. Of one that did not there are
    /// none, except at a worker that may not know that it failed.
    pub(super) fn wrong_gradients(
        &self,
        context: ContextId,
        may_not_know: impl Fn(WorkerId, PassId) -> bool,
    ) -> Option<String> {
        let of_context = |(pass, _): &(&PassId, &Outcome)| pass.context == context;
        let went_well = |outcome: &Outcome| matches!(outcome.result, Some(Ok(())));
        let passes = self.outcomes.iter().filter(of_context);
        let well: BTreeMap<PassId, BTreeMap<(WorkerId, u64), i64>> = passes
            .filter(|(_, outcome)| went_well(outcome))
            .map(|(pass, outcome)| (*pass, self.expected(outcome.root)))
            .collect();
        let living = self.living().into_iter();
        living
            .filter(|id| self.machine(*id).holds(context))
            .find_map(|id| self.wrong_at(id, context, &well, |pass| may_not_know(id, pass)))
    }

    /// Which workers hold gradients of which passes that went well.
    pub(super) fn held_gradients(&self) -> Vec<(WorkerId, PassId)> {
        let went_well = |pass: &PassId| {
            let outcome = self.outcomes.get(pass);
            outcome.is_some_and(|outcome| matches!(outcome.result, Some(Ok(()))))
        };
        let of_worker = |id: WorkerId| {
            let contexts = self.machine(id).contexts.values();
            let passes = contexts.flat_map(|context| &context.gradients);
            let passes = passes.filter(|(pass, of)| !of.is_empty() && went_well(pass));
            passes.map(move |(pass, _)| (id, *pass))
        };
        self.living().into_iter().flat_map(of_worker).collect()
    }

    fn wrong_at(
        &self,
        id: WorkerId,
        context: ContextId,
        well: &BTreeMap<PassId, BTreeMap<(WorkerId, u64), i64>>,
        may_not_know: impl Fn(PassId) -> bool,
    ) -> Option<String> {
        let values = self.workers[usize::from(id.0)].values.get(&context);
        let leaf = |(_, global): &(Local, Global)| match self.reference[*global] {
            Reference::Leaf(_, leaf) => Some(leaf),
            _ => None,
        };
        let leaves: BTreeSet<u64> = values.into_iter().flatten().filter_map(leaf).collect();
        let held = &self.machine(id).contexts.get(&context)?.gradients;
        let none = BTreeMap::new();
        for (pass, all) in well {
            let wanted = leaves
                .iter()
                .filter_map(|leaf| Some((*leaf, *all.get(&(id, *leaf))?)));
            let (wanted, found) = (
                wanted.collect::<BTreeMap<_, _>>(),
                held.get(pass).unwrap_or(&none),
            );
            if *found != wanted {
                return Some(format!(
                    "worker {} has {found:?} of pass {pass}, which went well, and not {wanted:?}",
                    id.0
                ));
            }
        }
        let mut held = held.iter();
        let kept = held
            .find(|(pass, of)| !of.is_empty() && !well.contains_key(pass) && !may_not_know(**pass));
        kept.map(|(pass, of)| {
            format!(
                "worker {} keeps {of:?} of pass {pass}, which did not go well",
                id.0
            )
        })
    }
}
