//! Random graphs, cut and run part by part in a random order of events, against the oracle's interpreter.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::super::plan::{frame_hash, frame_id};
use super::super::run::{Outcome, Outside, PlanRun};
use super::*;
use crate::graph::attr::IntoAttr;
use crate::graph::partition::{interpreter, tests as graphs};
use crate::graph::{Import, Ops, Parts, partition};
use crate::operations::Operations;
use crate::server::executor::plan::NodeKind;
use rendez::ground::rng::Rng;
use rendez::ground::{DeviceName, FrameIter};

/// What waits to be told to a run.
enum News {
    Received(Result<Option<Tensor>, Status>),
    Computed(Result<Vec<Value>, Status>),
}

/// Where a value is: its key without loops, and its frame and iteration.
type Spot = (String, FrameIter);
/// A node of a frame and iteration.
type Visit = (String, u64, u64);

/// What the parts have in common: what was sent, what waits, and what happened.
#[derive(Default)]
struct Common {
    sent: BTreeMap<Spot, VecDeque<Option<Tensor>>>,
    waiting: BTreeMap<Spot, (usize, u32)>,
    news: Vec<(usize, u32, News)>,
    ran: BTreeSet<Visit>,
    gave: BTreeMap<(Visit, u32), Option<Vec<i64>>>,
    aborted: Option<Status>,
}

struct Part {
    plan: Plan,
    run: PlanRun,
    outcome: Option<Outcome>,
}

/// How one part reaches the others.
struct Near<'a> {
    part: usize,
    plan: &'a Plan,
    common: &'a mut Common,
}

impl Near<'_> {
    fn spot(&self, key: u32, at: FrameIter) -> Spot {
        (self.plan.keys[key as usize].to_string(), at)
    }

    fn visit(&self, node: u32, at: FrameIter) -> Visit {
        (
            self.plan.nodes[node as usize].name.to_string(),
            at.frame,
            at.iter,
        )
    }
}

impl Outside for Near<'_> {
    fn send(&mut self, key: u32, at: FrameIter, value: Option<Tensor>) -> Result<(), Status> {
        if let Some(status) = &self.common.aborted {
            return Err(status.clone());
        }
        let spot = self.spot(key, at);
        match self.common.waiting.remove(&spot) {
            Some((part, ticket)) => {
                self.common
                    .news
                    .push((part, ticket, News::Received(Ok(value))))
            }
            None => self.common.sent.entry(spot).or_default().push_back(value),
        }
        Ok(())
    }

    fn recv(&mut self, key: u32, at: FrameIter, ticket: u32) -> Result<(), Status> {
        let spot = self.spot(key, at);
        let outcome = match (
            &self.common.aborted,
            self.common
                .sent
                .get_mut(&spot)
                .and_then(VecDeque::pop_front),
        ) {
            (Some(status), _) => Err(status.clone()),
            (None, Some(value)) => Ok(value),
            (None, None) => {
                let other = self
                    .common
                    .waiting
                    .insert(spot.clone(), (self.part, ticket));
                assert!(other.is_none(), "two receives wait for {spot:?}");
                return Ok(());
            }
        };
        self.common
            .news
            .push((self.part, ticket, News::Received(outcome)));
        Ok(())
    }

    fn compute(&mut self, node: u32, inputs: Vec<Value>, ticket: u32) {
        let kernel = self.plan.nodes[node as usize].kernel.as_ref().unwrap();
        let mut outputs = vec![];
        let home = home();
        let called = kernel.compute(&mut Call {
            inputs: &inputs,
            outputs: &mut outputs,
            home: &home,
            step: StepId(1),
            waiting: crate::kernel::Waiting::May,
        });
        self.common
            .news
            .push((self.part, ticket, News::Computed(called.map(|()| outputs))));
    }

    fn ran(&mut self, node: u32, at: FrameIter, _: bool) {
        let visit = self.visit(node, at);
        assert!(self.common.ran.insert(visit.clone()), "{visit:?} ran twice");
    }

    fn gave(&mut self, node: u32, at: FrameIter, output: u32, value: Option<&Value>) {
        let visit = self.visit(node, at);
        self.common.gave.insert((visit, output), value.map(numbers));
    }
}

impl Part {
    fn new(name: &str, mut def: rendez_proto::tensorflow::GraphDef, ops: &Ops) -> Self {
        for node in &mut def.node {
            // The devices of one task have lives of their own in these graphs.
            if node.attr.contains_key("send_device_incarnation") {
                node.attr
                    .insert("send_device_incarnation".into(), 0i64.into_attr());
            }
        }
        let graph = Graph::from_def(def, ops, Import::Part).unwrap();
        let task = TaskName::parse(name).unwrap();
        let device = DeviceName::cpu(&task).to_string();
        let owner = Owner {
            task: &task,
            incarnation: Incarnation(1),
        };
        Self {
            plan: Plan::new(&graph, &device, owner, &rows, &KeptKernels::default()).unwrap(),
            run: PlanRun::default(),
            outcome: None,
        }
    }
}

/// Runs the parts, in an order that `dice` choose, until all have ended. `fails` fails the first part after so many
/// events.
fn run(parts: &mut [Part], dice: &mut Rng, fails: Option<u64>) -> Common {
    let mut common = Common::default();
    let home = home();
    for part in parts.iter_mut() {
        part.outcome = None;
        part.run.begin(&part.plan, StepId(1), vec![]);
    }
    let mut events = 0u64;
    while parts.iter().any(|part| part.outcome.is_none()) {
        events += 1;
        assert!(events < 3_000_000, "the parts do not come to an end");
        let at = dice.below(parts.len() as u64) as usize;
        let told = if common.news.is_empty() || dice.one_in(2) {
            None
        } else {
            let news = dice.below(common.news.len() as u64) as usize;
            Some(common.news.swap_remove(news))
        };
        let at = told.as_ref().map_or(at, |(part, ..)| *part);
        let Part { plan, run, outcome } = &mut parts[at];
        if outcome.is_some() {
            assert!(told.is_none(), "an ended run is told nothing");
            continue;
        }
        let mut near = Near {
            part: at,
            plan,
            common: &mut common,
        };
        match told {
            Some((_, ticket, News::Received(got))) => run.received(plan, &mut near, ticket, got),
            Some((_, ticket, News::Computed(got))) => run.computed(plan, &mut near, ticket, got),
            None => {
                run.turn(plan, &home, &mut near, 1 + dice.below(4) as u32);
            }
        }
        if at == 0 && fails.is_some_and(|fails| events >= fails) {
            run.fail(Status::of(catalogue::KERNEL_INPUT, "the root"));
        }
        if let Some(status) = run.failure()
            && common.aborted.is_none()
        {
            let status = status.clone().derived();
            common.sent.clear();
            for (_, (part, ticket)) in std::mem::take(&mut common.waiting) {
                common
                    .news
                    .push((part, ticket, News::Received(Err(status.clone()))));
            }
            common.aborted = Some(status);
        }
        *outcome = run.outcome(plan);
    }
    common
}

/// What a frame is called, from the path that the oracle gives it.
fn id_of(path: &str) -> u64 {
    let levels = path.split('/').filter(|level| !level.is_empty());
    levels.fold(0, |parent, level| {
        let (name, iter) = level.rsplit_once(':').unwrap();
        frame_id(parent, iter.parse().unwrap(), frame_hash(name))
    })
}

fn hold(
    whole: &interpreter::Outcome,
    parts: &[Part],
    common: &Common,
) -> Result<(), TestCaseError> {
    let mut kinds = BTreeMap::new();
    for part in parts {
        kinds.extend(
            part.plan
                .nodes
                .iter()
                .map(|node| (node.name.to_string(), (node.kind, node.outputs))),
        );
    }
    let mut visits = BTreeSet::new();
    for ((name, path, iter), outputs) in &whole.trace {
        let visit = (name.clone(), id_of(path), *iter);
        prop_assert!(
            common.ran.contains(&visit),
            "{} did not run in {} {}",
            name,
            path,
            iter
        );
        let (kind, count) = kinds[name];
        visits.insert(visit.clone());
        // What these give is in another iteration.
        if matches!(
            kind,
            NodeKind::Enter { .. } | NodeKind::Exit | NodeKind::NextIteration
        ) {
            continue;
        }
        for (output, want) in (0..count).zip(outputs) {
            let got = common.gave.get(&(visit.clone(), output));
            prop_assert_eq!(got, Some(want), "{}:{} in {} {}", name, output, path, iter);
        }
    }
    for visit in common
        .ran
        .iter()
        .filter(|(name, ..)| !name.contains("/_") && !name.starts_with("_cloop"))
    {
        prop_assert!(visits.contains(visit), "{:?} ran only here", visit);
    }
    Ok(())
}

fn cut(seed: u64, budget: usize, count: u64, ops: &Ops) -> (interpreter::Outcome, Vec<Part>) {
    let graph = graphs::program(seed, budget, count);
    let whole = interpreter::run(&[&graph.to_def()]);
    let parts: Parts = partition(graph, &graphs::devices(count), ops, false).unwrap();
    let parts = parts
        .into_iter()
        .map(|(name, part)| Part::new(&name, part, ops));
    (whole, parts.collect())
}

proptest! {
    // A case is a whole program, run several times.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    /// Twice with the same states, in another order each time.
    #[test]
    fn parts_give_what_the_whole_gives_in_any_order(seed: u64, budget in 5usize..120, count in 2u64..7) {
        let standard = Operations::standard();
        let ops = standard.ops();
        let (whole, mut parts) = cut(seed, budget, count, ops);
        let mut dice = Rng::new(seed);
        for _ in 0..2 {
            let common = run(&mut parts, &mut dice, None);
            for part in &parts {
                prop_assert_eq!(part.outcome.as_ref().unwrap().as_ref().err(), None);
            }
            prop_assert!(common.waiting.is_empty() && common.news.is_empty());
            prop_assert!(common.sent.values().all(VecDeque::is_empty), "what was sent was received");
            hold(&whole, &parts, &common)?;
        }
    }

    /// Every part ends once, the one that failed with its failure and the others with a consequence of it; and the next
    /// run with the same states is whole.
    #[test]
    fn a_failure_at_any_moment_ends_all_parts_and_leaves_nothing(seed: u64, budget in 5usize..80, at in 1u64..400) {
        let standard = Operations::standard();
        let ops = standard.ops();
        let (whole, mut parts) = cut(seed, budget, 4, ops);
        let mut dice = Rng::new(seed);
        let common = run(&mut parts, &mut dice, Some(at));
        prop_assert!(common.waiting.is_empty() && common.news.is_empty());
        if common.aborted.is_some() {
            let ended = |part: &Part| part.outcome.as_ref().unwrap().as_ref().err().cloned();
            prop_assert_eq!(ended(&parts[0]), Some(Status::of(catalogue::KERNEL_INPUT, "the root")));
            for part in &parts[1..] {
                prop_assert!(ended(part).is_none_or(|status| status.is_derived()));
            }
        }
        let common = run(&mut parts, &mut dice, None);
        prop_assert!(parts.iter().all(|part| matches!(part.outcome, Some(Ok(_)))));
        hold(&whole, &parts, &common)?;
    }
}
