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

    /// What is wrong with the gradients of `context` at those who hold it: they are the sum of the passes that went
    /// well, for each leaf that was not forgotten since. A worker is passed over if it may not know that a pass failed.
    pub(super) fn wrong_gradients(
        &self,
        context: ContextId,
        may_not_know: impl Fn(WorkerId) -> bool,
    ) -> Option<String> {
        let mut expected: BTreeMap<(WorkerId, u64), i64> = BTreeMap::new();
        let of_context = |(pass, _): &(&PassId, &Outcome)| pass.context == context;
        for (_, outcome) in self.outcomes.iter().filter(of_context) {
            if matches!(outcome.result, Some(Ok(()))) {
                for (leaf, gradient) in self.expected(outcome.root) {
                    let sum = expected.entry(leaf).or_default();
                    *sum = sum.wrapping_add(gradient);
                }
            }
        }
        let holders = self.living().into_iter();
        let holders = holders.filter(|id| self.machine(*id).holds(context) && !may_not_know(*id));
        holders
            .filter_map(|id| self.wrong_at(id, context, &expected))
            .next()
    }

    fn wrong_at(
        &self,
        id: WorkerId,
        context: ContextId,
        all: &BTreeMap<(WorkerId, u64), i64>,
    ) -> Option<String> {
        let values = self.workers[usize::from(id.0)].values.get(&context);
        let leaf = |(_, global): &(Local, Global)| match self.reference[*global] {
            Reference::Leaf(_, leaf) => Some(leaf),
            _ => None,
        };
        let leaves: BTreeSet<u64> = values.into_iter().flatten().filter_map(leaf).collect();
        let wanted = leaves
            .iter()
            .filter_map(|leaf| Some((*leaf, *all.get(&(id, *leaf))?)));
        let wanted: BTreeMap<u64, i64> = wanted.collect();
        let gradients = self.machine(id).gradients(context).unwrap_or_default();
        let sum =
            |(leaf, parts): (u64, Vec<i64>)| (leaf, parts.into_iter().fold(0, i64::wrapping_add));
        let found: BTreeMap<u64, i64> = gradients.into_iter().map(sum).collect();
        (found != wanted).then(|| {
            format!(
                "worker {} has {found:?} of {context}, and not {wanted:?}",
                id.0
            )
        })
    }
}
