//! Partial runs: steps that are fed and fetched from piece by piece.
//!
//! Knows which feeds and fetches are still open. Values come and go by the keys that pruning gave them, in the master's
//! own task. A run ends when all is fed and fetched and the executors have ended, or with the first failure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use super::plan::StepPlan;
use super::session::MasterSession;
use super::step::{RunningStep, dead};
use crate::graph::{Graph, NodeId, Role, parse_input};
use crate::server::wait::Waiter;
use rendez::engine::Engine;
use rendez::ground::limits::SESSION_STEPS_MAX;
use rendez::ground::{Key, Locked, Status, StepId, catalogue};
use rendez::memory::Tensor;

#[cfg(test)]
mod tests;

/// The partial runs of a session, by handle.
#[derive(Default)]
pub(crate) struct PartialRuns(Mutex<BTreeMap<String, Arc<PartialRun>>>);

/// A partial run.
struct PartialRun {
    id: StepId,
    plan: Arc<StepPlan>,
    step: OnceLock<Arc<RunningStep>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    fed: BTreeSet<usize>,
    fetched: BTreeSet<usize>,
    /// Pieces that were claimed and have not left.
    under_way: usize,
    /// What its executors ended with.
    executors: Option<Result<(), Status>>,
    /// Those who wait for that.
    waiting: Vec<Ended>,
    ended: Option<Result<(), Status>>,
    is_clean: bool,
}

/// Hears what the executors of a run ended with.
type Ended = Box<dyn FnOnce(Result<(), Status>) + Send>;

/// What one part of a run feeds and fetches.
struct Piece<'a> {
    feeds: Vec<(&'a Key, Tensor)>,
    fetches: Vec<(&'a Key, &'a str)>,
    is_last: bool,
}

impl PartialRuns {
    /// Begins a run of a plan, whose step has the number `id`. Gives its handle. Does not block.
    ///
    /// # Errors
    /// `SESSION_CLOSED`; `SESSION_LIMIT`.
    pub(super) fn begin(
        &self,
        session: &Arc<MasterSession>,
        plan: &Arc<StepPlan>,
        id: StepId,
    ) -> Result<String, Status> {
        let run = Arc::new(PartialRun {
            id,
            plan: Arc::clone(plan),
            step: OnceLock::new(),
            state: Mutex::default(),
        });
        let handle = run.handle();
        let mut runs = self.runs();
        if runs.len() >= SESSION_STEPS_MAX {
            let message =
                format!("{SESSION_STEPS_MAX} partial runs are set up, the limit SESSION_STEPS_MAX");
            return Err(Status::of(catalogue::SESSION_LIMIT, message));
        }
        runs.insert(handle.clone(), Arc::clone(&run));
        drop(runs);
        // Who waits for its end holds the run.
        let waited_for = Arc::downgrade(&run);
        let (tell, refused) = Waiter::pair();
        let step = RunningStep::start(
            session,
            plan,
            (id, None),
            vec![],
            Box::new(move |outcome| {
                let outcome = outcome.map(drop);
                let run = waited_for.upgrade();
                if let Err(status) = &outcome {
                    tell(status.clone());
                    if let Some(run) = &run {
                        run.end(outcome.clone());
                        run.clean();
                    }
                }
                if let Some(run) = run {
                    run.executors_ended(outcome);
                }
            }),
        );
        run.has(step);
        // A session that is closed takes no step; no caller would hear of this one's end.
        if let Err(status) = session.check_open() {
            run.cancel(&status);
            run.clean();
            self.runs().remove(&handle);
            return Err(refused.wait(Some(Instant::now())).unwrap_or(status));
        }
        Ok(handle)
    }

    /// Feeds and fetches a part. Blocks until what is fetched is here.
    ///
    /// # Errors
    /// `PARTIAL_RUN_NONE`; `PARTIAL_RUN` for what was not set up, was had before, or cannot be computed yet, and the
    /// run goes on; any other failure ends it.
    pub(super) fn run(
        &self,
        session: &MasterSession,
        engine: &Engine,
        handle: &str,
        feeds: Vec<(String, Tensor)>,
        fetches: &[String],
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>, Status> {
        let run = self.runs().get(handle).cloned().ok_or_else(none)?;
        self.go_on(&run, session, engine, feeds, fetches, deadline)
    }

    /// A piece has found its run, which may end meanwhile.
    fn go_on(
        &self,
        run: &PartialRun,
        session: &MasterSession,
        engine: &Engine,
        feeds: Vec<(String, Tensor)>,
        fetches: &[String],
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>, Status> {
        let piece = run.claim(&session.placed(), feeds, fetches);
        let piece = piece.inspect_err(|_| {
            if run.is_over() {
                // Its client knows now.
                self.runs().remove(&run.handle());
            }
        })?;
        let outcome = self.carry_out(run, piece, engine, deadline);
        run.leave();
        outcome
    }

    fn carry_out(
        &self,
        run: &PartialRun,
        piece: Piece<'_>,
        engine: &Engine,
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>, Status> {
        let is_last = piece.is_last;
        let outcome = piece.carry_out(engine, run.id, deadline);
        if outcome.is_ok() && !is_last {
            return outcome;
        }
        if let Err(status) = &outcome {
            run.cancel(status);
        }
        let (tell, ended) = Waiter::pair();
        run.await_executors(Box::new(tell));
        // Nothing else is told: what failed is known, and the executors end by themselves.
        let executors = ended.wait(deadline).unwrap_or_else(|| {
            let status = Status::of(
                catalogue::STEP_DEADLINE,
                "the partial run was not over by its deadline",
            );
            run.cancel(&status);
            Err(status)
        });
        self.runs().remove(&run.handle());
        // What failed in them counts more than what a piece of the run heard of it.
        let merged = executors.and(outcome);
        let failure = run.end(merged.as_ref().map(drop).map_err(Clone::clone));
        if failure.is_some() {
            run.clean();
        }
        // Every piece of a run that failed hears why it did, not how it heard of that.
        merged.map_err(|own| failure.unwrap_or(own))
    }

    /// Ends a run that its client will not continue.
    pub(crate) fn abandon(&self, handle: &str) {
        let run = self.runs().remove(handle);
        if let Some(run) = run {
            let why = Status::of(catalogue::STEP_CANCELLED, "the partial run was given up");
            run.end(Err(why.clone()));
            run.cancel(&why);
            run.executors_ended(Err(why));
            run.clean();
        }
    }

    /// Forgets all runs. Their steps are for others to end.
    pub(super) fn clear(&self) {
        let runs = std::mem::take(&mut *self.runs());
        let closed = Status::of(catalogue::STEP_CANCELLED, "the session was closed");
        for (_, run) in runs {
            run.end(Err(closed.clone()));
            run.cancel(&closed);
            run.executors_ended(Err(closed.clone()));
            run.clean();
        }
    }

    fn runs(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Arc<PartialRun>>> {
        self.0.locked()
    }
}

impl PartialRun {
    /// Checks what a part feeds and fetches, and marks it as had. The part is under way until it leaves.
    ///
    /// # Errors
    /// What is wrong with it; of a run that is over, why.
    fn claim<'a>(
        &'a self,
        graph: &Graph,
        feeds: Vec<(String, Tensor)>,
        fetches: &'a [String],
    ) -> Result<Piece<'a>, Status> {
        let refuse = |message: String| Err(Status::of(catalogue::PARTIAL_RUN, message));
        let signature = &self.plan.signature;
        let Some((feed_keys, fetch_keys)) = &self.plan.keys else {
            return refuse("the step was not set up for partial runs".into());
        };
        let place = |all: &[String], name: &str| {
            let wanted = parse_input(name);
            all.iter()
                .position(|known| known == name || parse_input(known) == wanted)
        };
        let mut state = self.state.locked();
        match &state.ended {
            Some(Err(status)) => return Err(status.clone()),
            Some(Ok(())) => return Err(none()),
            None => {}
        }
        let (mut fed, mut fetched) = (state.fed.clone(), state.fetched.clone());
        let mut piece = Piece {
            feeds: vec![],
            fetches: vec![],
            is_last: false,
        };
        for (name, tensor) in feeds {
            let Some(index) = place(&signature.feeds, &name) else {
                return refuse(format!(
                    "The feed {name} was not specified in partial_run_setup."
                ));
            };
            self.plan.check_feed(index, &tensor)?;
            if !fed.insert(index) {
                return refuse(format!("The feed {name} has already been fed."));
            }
            piece
                .feeds
                .extend(feed_keys.get(index).map(|key| (key, tensor)));
        }
        for name in fetches {
            let Some(index) = place(&signature.fetches, name) else {
                return refuse(format!(
                    "The fetch {name} was not specified in partial_run_setup."
                ));
            };
            if !fetched.insert(index) {
                return refuse(format!("The fetch {name} has already been fetched."));
            }
            piece
                .fetches
                .extend(fetch_keys.get(index).map(|key| (key, name.as_str())));
        }
        check_fetches(graph, &signature.feeds, &fed, fetches)?;
        piece.is_last =
            fed.len() == signature.feeds.len() && fetched.len() == signature.fetches.len();
        (state.fed, state.fetched) = (fed, fetched);
        state.under_way += 1;
        Ok(piece)
    }

    fn handle(&self) -> String {
        format!("{:016x}", self.id.0)
    }

    fn cancel(&self, status: &Status) {
        if let Some(step) = self.step.get() {
            step.cancel(status.clone());
        }
    }

    /// It is over. What was said of that first counts; gives why it failed.
    fn end(&self, outcome: Result<(), Status>) -> Option<Status> {
        self.state
            .locked()
            .ended
            .get_or_insert(outcome)
            .clone()
            .err()
    }

    /// Its executors have ended, or are waited for no longer. What was said of that first counts.
    fn executors_ended(&self, outcome: Result<(), Status>) {
        let mut state = self.state.locked();
        let outcome = state.executors.get_or_insert(outcome).clone();
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(|tell| tell(outcome.clone()));
    }

    /// Tells what its executors end with, or have ended with.
    fn await_executors(&self, tell: Ended) {
        let mut state = self.state.locked();
        let Some(outcome) = state.executors.clone() else {
            return state.waiting.push(tell);
        };
        drop(state);
        tell(outcome);
    }

    fn is_over(&self) -> bool {
        self.state.locked().ended.is_some()
    }

    /// A part is no longer under way. What others still fetch stays until the last has left.
    fn leave(&self) {
        let mut state = self.state.locked();
        state.under_way -= 1;
        let is_left = state.under_way == 0 && state.ended.is_some();
        drop(state);
        if is_left {
            self.clean();
        }
    }

    /// It has its step. One that failed before goes at once.
    fn has(&self, step: Arc<RunningStep>) {
        let state = self.state.locked();
        let step = self.step.get_or_init(|| step);
        let is_clean = state.is_clean;
        drop(state);
        if is_clean {
            step.cleanup();
        }
    }

    /// What is left of the step goes, once; if there is none yet, when it comes.
    fn clean(&self) {
        let mut state = self.state.locked();
        let was_clean = std::mem::replace(&mut state.is_clean, true);
        let step = self.step.get().filter(|_| !was_clean);
        drop(state);
        if let Some(step) = step {
            step.cleanup();
        }
    }
}

impl Piece<'_> {
    fn carry_out(
        self,
        engine: &Engine,
        step: StepId,
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>, Status> {
        let step = engine.step(step);
        for (key, tensor) in self.feeds {
            step.send(key, tensor)?;
        }
        // All begin before any is waited for.
        let receives = self.fetches.into_iter().map(|(key, name)| {
            let receive = step.recv(key);
            let receive = match deadline {
                Some(deadline) => {
                    receive.deadline(deadline.saturating_duration_since(Instant::now()))
                }
                None => receive,
            };
            Ok((receive.start()?, name))
        });
        let receives = receives.collect::<Result<Vec<_>, Status>>()?;
        let fetched = receives.into_iter().map(|(receive, name)| {
            let received = receive.wait()?;
            if received.is_dead {
                return Err(dead(name));
            }
            Ok(received.tensor)
        });
        fetched.collect()
    }
}

fn none() -> Status {
    let message = "Must run PartialRunSetup before performing partial runs.";
    Status::of(catalogue::PARTIAL_RUN_NONE, message)
}

/// Whether what is fetched can be computed from those of `feeds` that are `fed`. What is fed stands for what comes
/// before it.
fn check_fetches(
    graph: &Graph,
    feeds: &[String],
    fed: &BTreeSet<usize>,
    fetches: &[String],
) -> Result<(), Status> {
    let find = |text: &str| {
        let (name, port) = parse_input(text)?;
        Some((graph.find(name)?, port.unwrap_or_default()))
    };
    let feeds = feeds.iter().enumerate();
    let feeds = feeds.filter_map(|(index, feed)| Some((find(feed)?, fed.contains(&index))));
    let feeds: BTreeMap<_, _> = feeds.collect();
    // What one fetch can be computed from, others can be as well.
    let mut seen: BTreeSet<NodeId> = BTreeSet::new();
    for fetch in fetches {
        let Some((node, _)) = find(fetch) else {
            let message = format!("Fetch {fetch} not found.");
            return Err(Status::of(catalogue::GRAPH_ENDPOINT_UNKNOWN, message));
        };
        let mut next = vec![node];
        while let Some(id) = next.pop() {
            if !seen.insert(id) {
                continue;
            }
            let node = graph.node(id);
            let values = node.inputs().iter().map(|from| (from.node, from.port));
            let values = values.map(|from| (from.0, feeds.get(&from)));
            // Who waits for a placeholder waits for what it is fed; what else is fed runs all the same.
            let waits = node.controls().iter().map(|&before| {
                let is_placeholder = graph.node(before).role() == Role::Placeholder;
                (before, feeds.get(&(before, 0)).filter(|_| is_placeholder))
            });
            for (before, is_fed) in values.chain(waits) {
                match is_fed {
                    Some(true) => {}
                    Some(false) => {
                        let message = format!(
                            "Fetch {fetch} can't be computed from the feeds that have been fed so far."
                        );
                        return Err(Status::of(catalogue::PARTIAL_RUN, message));
                    }
                    None => next.push(before),
                }
            }
        }
    }
    Ok(())
}
