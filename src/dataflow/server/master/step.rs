//! A step that runs: its parts at the workers, what they say, and its end.
//!
//! Knows parts and outcomes. The first failure ends all other parts; the step is over when every part has answered, or
//! its worker is known to be gone, or does not answer (see `stragglers.rs`). Then it is cleaned up wherever it ran.

use std::sync::{Arc, Mutex};

use super::link::Link;
use super::plan::{Registered, StepPlan, from_worker};
use super::session::MasterSession;
use crate::kernel::Value;
use crate::server::runner::Outcome;
use rendez::ground::{Locked, Status, StatusGroup, StepId, Traceparent, catalogue};
use rendez::memory::Tensor;

/// Takes what a step has fetched, in order, or why it failed.
pub(crate) type StepDone = Box<dyn FnOnce(Result<Vec<Value>, Status>) + Send>;

/// A step that runs.
pub(crate) struct RunningStep {
    id: StepId,
    session: Arc<MasterSession>,
    plan: Arc<StepPlan>,
    /// Its span, where its caller traces it; disabled otherwise.
    span: tracing::Span,
    /// It is cleaned up as soon as all parts have ended; a partial run is when it has been fetched from, too.
    cleans_itself: bool,
    state: Mutex<State>,
}

struct State {
    /// Parts that have not answered, and one more as long as not all are started.
    left: usize,
    group: StatusGroup,
    fetched: Vec<Option<Value>>,
    /// Why it was cancelled from outside.
    cancelled: Option<Status>,
    /// What the parts that have not ended are told.
    stopping: Option<Status>,
    /// Parts that were never asked, since too much waits for their worker already: those are told nothing.
    unasked: Vec<usize>,
    /// What is left of it was told to go.
    is_cleaned: bool,
    done: Option<StepDone>,
}

impl RunningStep {
    /// Runs a step. `done` is called once, by any thread, also before this returns; it does not block.
    pub(super) fn start(
        session: &Arc<MasterSession>,
        plan: &Arc<StepPlan>,
        (id, trace): (StepId, Option<Traceparent>),
        feeds: Vec<Tensor>,
        done: StepDone,
    ) -> Arc<Self> {
        let mut args: Option<Vec<_>> = Some(feeds.into_iter().map(Value::Tensor).collect());
        let step = Arc::new(Self {
            id,
            session: Arc::clone(session),
            plan: Arc::clone(plan),
            span: trace.map_or_else(
                tracing::Span::none,
                |trace| tracing::debug_span!("step", step = %id, traceparent = %trace),
            ),
            cleans_itself: !plan.signature.is_partial,
            state: Mutex::new(State {
                left: plan.parts.len() + 1,
                group: StatusGroup::default(),
                fetched: vec![],
                cancelled: None,
                stopping: None,
                unasked: vec![],
                is_cleaned: false,
                done: Some(done),
            }),
        });
        if let Err(status) = session.enter(&step) {
            if let Some(done) = step.state.locked().done.take() {
                done(Err(status));
            }
            return step;
        }
        let span = step.span.clone();
        let in_span = span.enter();
        for (index, part) in plan.parts.iter().enumerate() {
            let is_here = part.link.is_here();
            let args = args.take_if(|_| is_here).unwrap_or_default();
            let (asked, told) = (Arc::clone(&step), Arc::clone(&step));
            let stopping = move || asked.state.locked().stopping.clone();
            let done = Box::new(move |outcome| told.part_done(index, outcome));
            let graph = &part.graph;
            part.link.run(graph, (id, trace), args, stopping, done);
        }
        drop(in_span);
        let mut state = step.state.locked();
        state.left -= 1;
        let (stopping, is_over) = (state.stopping.clone(), state.left == 0);
        drop(state);
        if is_over {
            step.finish();
        } else if let Some(status) = stopping {
            // A part that was started after the stop has not heard it.
            step.stop(&status);
        }
        step
    }

    /// Its number.
    pub(super) const fn id(&self) -> StepId {
        self.id
    }

    /// Ends the step with `status`. Nothing happens if it is over, or ends already since a part has failed.
    pub(crate) fn cancel(self: &Arc<Self>, status: Status) {
        let mut state = self.state.locked();
        let failure = state.group.summary().err();
        let is_caused = failure.is_some_and(|failure| !failure.is_derived());
        if state.left == 0 || state.cancelled.is_some() || is_caused {
            return;
        }
        state.cancelled = Some(status.clone());
        let stopping = status.derived();
        state.stopping.get_or_insert_with(|| stopping.clone());
        drop(state);
        self.stop(&stopping);
        self.session.stragglers.watch(self);
    }

    /// True if its parts were told to stop.
    #[cfg(test)]
    pub(super) fn is_stopping(&self) -> bool {
        self.state.locked().stopping.is_some()
    }

    /// It has failed, and parts that should have answered by now have not.
    pub(super) fn give_parts_up(&self) {
        let mut state = self.state.locked();
        if state.left == 0 || state.done.is_none() {
            return;
        }
        if let Some(why) = state.stopping.clone() {
            state.group.add(Err(why));
        }
        drop(state);
        self.finish();
    }

    /// The step is over: what is left of it goes, wherever it ran.
    pub(super) fn cleanup(&self) {
        if mutant!("steps_not_cleaned_up") {
            return;
        }
        self.state.locked().is_cleaned = true;
        self.each_asked(|link| link.cleanup(self.id));
        let is_here = |part: &Registered| part.link.is_here();
        if self.plan.signature.is_partial && !self.plan.parts.iter().any(is_here) {
            // What is fed comes to the master's task first, also if no part stands there.
            let here = self.session.links().filter(|link| link.is_here());
            here.for_each(|link| link.cleanup(self.id));
        }
    }

    fn stop(&self, status: &Status) {
        self.each_asked(|link| link.cancel(self.id, status));
    }

    fn each_asked(&self, tell: impl Fn(&Link)) {
        let unasked = self.state.locked().unasked.clone();
        let parts = self.plan.parts.iter().enumerate();
        let asked = parts.filter(|(index, _)| !unasked.contains(index));
        asked.for_each(|(_, part)| tell(&part.link));
    }

    fn part_done(self: &Arc<Self>, index: usize, outcome: Outcome) {
        let Some(part) = self.plan.parts.get(index) else {
            return;
        };
        let mut state = self.state.locked();
        let mut stopping = None;
        match outcome {
            Ok(values) => {
                state.group.add(Ok(()));
                if part.link.is_here() {
                    state.fetched = values;
                }
            }
            Err(status) => {
                if status.reason() == catalogue::LINE_BUSY {
                    state.unasked.push(index);
                }
                let told = if self.session.is_distributed() {
                    from_worker(&part.link.task().to_string(), &status)
                } else {
                    status
                };
                self.session.part_failed(&told);
                state.group.add(Err(told));
                if state.stopping.is_none() {
                    let status =
                        Status::of(catalogue::STEP_ABORTED, "Stopping remaining executors.")
                            .derived();
                    state.stopping = Some(status.clone());
                    stopping = Some(status);
                }
            }
        }
        state.left -= 1;
        let is_over = state.left == 0;
        // It was asked after the step was given up, perhaps, and so after what is left of that was told to go.
        let is_late = state.is_cleaned && !state.unasked.contains(&index);
        drop(state);
        if is_late {
            part.link.cleanup(self.id);
        }
        if is_over {
            self.finish();
        } else if let Some(status) = stopping {
            self.stop(&status);
            self.session.stragglers.watch(self);
        }
    }

    /// All parts have ended, or are given up.
    fn finish(&self) {
        let mut state = self.state.locked();
        let Some(done) = state.done.take() else {
            return;
        };
        let outcome = match state.group.summary() {
            Ok(()) => self.fetched(std::mem::take(&mut state.fetched)),
            // A cancel that only followed from something else leaves it to the parts to say what that was.
            Err(status) => {
                let cancelled = state.cancelled.take().filter(|why| !why.is_derived());
                let why = cancelled.or_else(|| self.session.broken());
                Err(why.unwrap_or_else(|| of_no_known_cause(status)))
            }
        };
        drop(state);
        if !self.span.is_none() {
            let failed = outcome.as_ref().err().map(tracing::field::display);
            tracing::debug!(parent: &self.span, failed, "a step that is traced is over");
        }
        if self.cleans_itself {
            self.cleanup();
        }
        self.session.leave(self.id);
        done(outcome);
    }

    fn fetched(&self, mut values: Vec<Option<Value>>) -> Result<Vec<Value>, Status> {
        if self.plan.signature.is_partial {
            return Ok(vec![]);
        }
        let fetches = &self.plan.signature.fetches;
        let fetched = fetches.iter().enumerate().map(|(index, fetch)| {
            let value = values.get_mut(index).and_then(Option::take);
            value.ok_or_else(|| dead(fetch))
        });
        fetched.collect()
    }
}

/// What is said of a step that failed: if every failure only followed from another, that the first is not known here.
/// Those who knew it are gone, as a rule.
fn of_no_known_cause(status: Status) -> Status {
    if !status.is_derived() {
        return status;
    }
    reached!("a_step_of_no_known_cause");
    let message = format!(
        "{}\nThat followed from another failure, which no part of the step could tell.",
        status.message()
    );
    Status::new(status.code(), status.reason(), message)
}

/// What is said of a fetch that is dead.
pub(super) fn dead(fetch: &str) -> Status {
    let message = format!("The tensor returned for {fetch} was not valid.");
    Status::of(catalogue::FETCH_DEAD, message)
}

shown! { RunningStep { id } }
