//! Planned: what a client asks that needs a plan, from the question until the plan is there, or it is given up.
//!
//! No thread waits meanwhile. A kind of step whose plan is made is begun at once.

use std::sync::Arc;

use super::{Asked, Client, given_up};
use crate::server::master::plan::PlanWait;
use crate::server::master::{Master, MasterSession, StepPlan, StepSignature};
use crate::server::rpc_stream::{Question, check_count};
use rendez::ground::limits::LINE_QUESTIONS_MAX;
use rendez::ground::{Locked, Status, catalogue};
use rendez_proto::Method;
use rendez_proto::methods::master_session::{MakeCallable, PartialRunSetup, RunCallable, RunStep};
use rendez_proto::tensorflow::{
    MakeCallableRequest, MakeCallableResponse, PartialRunSetupRequest, PartialRunSetupResponse,
    RunStepRequest,
};

/// What is asked of a session, and needs a plan.
trait Planned: Method {
    /// The session's handle.
    fn session(asked: &Self::Request) -> &str;
    /// How many tensors one answer will bring.
    fn fetches(asked: &Self::Request) -> usize;
}

macro_rules! planned {
    ($($method:ty: $fetches:expr),*) => {
        $(impl Planned for $method {
            fn session(asked: &Self::Request) -> &str {
                &asked.session_handle
            }

            fn fetches(asked: &Self::Request) -> usize {
                $fetches(asked)
            }
        })*
    };
}

planned!(
    RunStep: |asked: &RunStepRequest| asked.fetch.len(),
    RunCallable: |_| 0,
    MakeCallable: |asked: &MakeCallableRequest| {
        asked.options.as_ref().map_or(0, |options| options.fetch.len())
    },
    PartialRunSetup: |_| 0
);

impl Client {
    pub(super) fn run(self: Arc<Self>, master: &Arc<Master>, question: Question) {
        let Some((session, asked, question)) = self.planned::<RunStep>(master, question) else {
            return;
        };
        if !asked.partial_run_handle.is_empty() {
            // The original takes it for a piece of that run. Run as a step it would compute all of it once more.
            let message =
                "RunStep has a partial_run_handle: ask PartialRun for a piece of a partial run";
            return self.refuse(question, Status::of(catalogue::PARTIAL_RUN, message));
        }
        let trace = master.heard_traceparent(asked.options.as_ref(), &self.task);
        let signature = StepSignature {
            feeds: asked.feed,
            fetches: asked.fetch,
            targets: asked.target,
            is_partial: false,
        };
        if let Some(plan) = session.ready_plan(&signature) {
            return self.begin::<RunStep>(master, (&session, trace), &plan, question);
        }
        let (client, begins, within) = (Arc::clone(&self), Arc::clone(master), session.clone());
        self.await_plan(
            master,
            &session,
            &signature,
            question,
            move |plan, question| {
                client.begin::<RunStep>(&begins, (&within, trace), &plan, question);
            },
        );
    }

    pub(super) fn make_callable(self: Arc<Self>, master: &Arc<Master>, question: Question) {
        let signature = |asked: MakeCallableRequest| {
            let options = asked.options.unwrap_or_default();
            StepSignature {
                feeds: options.feed,
                fetches: options.fetch,
                targets: options.target,
                is_partial: false,
            }
        };
        self.answer_planned::<MakeCallable>(master, question, signature, |_, session, plan| {
            let handle = session.keep_callable(plan)?;
            Ok(MakeCallableResponse { handle })
        });
    }

    pub(super) fn set_up(self: Arc<Self>, master: &Arc<Master>, question: Question) {
        let signature = |asked: PartialRunSetupRequest| StepSignature {
            feeds: asked.feed,
            fetches: asked.fetch,
            targets: asked.target,
            is_partial: true,
        };
        self.answer_planned::<PartialRunSetup>(
            master,
            question,
            signature,
            |master, session, plan| {
                let partial_run_handle = master.set_up(session, &plan)?;
                Ok(PartialRunSetupResponse { partial_run_handle })
            },
        );
    }

    /// Answers, with what `answer` makes of the plan, what needs no more than that.
    fn answer_planned<M: Planned>(
        self: Arc<Self>,
        master: &Arc<Master>,
        question: Question,
        signature: impl FnOnce(M::Request) -> StepSignature,
        answer: impl FnOnce(&Master, &Arc<MasterSession>, Arc<StepPlan>) -> Result<M::Answer, Status>
        + Send
        + 'static,
    ) {
        let Some((session, asked, question)) = self.planned::<M>(master, question) else {
            return;
        };
        let (client, known, within) = (Arc::clone(&self), Arc::clone(master), session.clone());
        self.await_plan(
            master,
            &session,
            &signature(asked),
            question,
            move |plan, question| {
                let answer = answer(&known, &within, plan);
                client.state.locked().steps.remove(&question.number);
                let answer = answer.map(|answer| (answer, vec![]));
                question.answer.give::<M>(answer);
            },
        );
    }

    /// The session and the question of what needs a plan, and can be given up from now on. What cannot be read is
    /// refused.
    fn planned<M: Planned>(
        &self,
        master: &Master,
        question: Question,
    ) -> Option<(Arc<MasterSession>, M::Request, Question)> {
        if let Err(status) = self.plan_begins::<M>(question.number) {
            question.answer.refuse(status);
            return None;
        }
        let read = question.read::<M>().and_then(|asked| {
            // Once the step has run, it is too late to refuse it.
            check_count(M::fetches(&asked))?;
            let session = master.session(M::session(&asked))?;
            Ok((session, asked))
        });
        match read {
            Ok((session, asked)) => Some((session, asked, question)),
            Err(status) => {
                self.refuse(question, status);
                None
            }
        }
    }

    /// Calls `then` with the plan of a kind of step, unless the question is given up before.
    fn await_plan(
        self: &Arc<Self>,
        master: &Master,
        session: &Arc<MasterSession>,
        signature: &StepSignature,
        question: Question,
        then: impl FnOnce(Arc<StepPlan>, Question) + Send + 'static,
    ) {
        let number = question.number;
        let client = Arc::clone(self);
        let made = move |made: Result<Arc<StepPlan>, Status>| match made {
            Ok(_) if client.is_given_up(number) => client.refuse(question, given_up()),
            Ok(plan) => then(plan, question),
            Err(status) => client.refuse(question, status),
        };
        if let Some(waits) = master.want_plan(session, signature, Box::new(made)) {
            self.waits(number, waits);
        }
    }

    /// True if its client waits for it no longer.
    pub(super) fn is_given_up(&self, number: u64) -> bool {
        matches!(self.state.locked().steps.get(&number), Some(Asked::GivenUp))
    }

    /// A step waits for its plan, unless it was given up meanwhile, or has heard of it.
    fn waits(&self, number: u64, waits: PlanWait) {
        let mut state = self.state.locked();
        match state.steps.get_mut(&number) {
            Some(asked @ Asked::Planned) => *asked = Asked::Waits(waits),
            Some(Asked::GivenUp) => {
                drop(state);
                waits.end(given_up());
            }
            _ => {}
        }
    }

    pub(super) fn run_callable(self: Arc<Self>, master: &Arc<Master>, question: Question) {
        let Some((session, asked, question)) = self.planned::<RunCallable>(master, question) else {
            return;
        };
        let trace = master.heard_traceparent(asked.options.as_ref(), &self.task);
        match session.callable(asked.handle) {
            Ok(plan) => self.begin::<RunCallable>(master, (&session, trace), &plan, question),
            Err(status) => self.refuse(question, status),
        }
    }

    /// Takes note of a step that is asked for, unless it was given up while its feeds were on their way.
    fn plan_begins<M: Method>(&self, number: u64) -> Result<(), Status> {
        let mut state = self.state.locked();
        match state.steps.get(&number) {
            None if state.steps.len() >= LINE_QUESTIONS_MAX => {
                let message = format!(
                    "{LINE_QUESTIONS_MAX} steps wait on one line, the limit LINE_QUESTIONS_MAX"
                );
                return Err(Status::of(catalogue::LINE_BUSY, message));
            }
            None | Some(Asked::Announced) => {}
            Some(Asked::Vain) => {
                state.steps.remove(&number);
                return Err(given_up());
            }
            Some(_) => {
                let message = format!(
                    "The same {} request was received twice: number {number}",
                    M::NAME
                );
                return Err(Status::of(catalogue::STEP_DUPLICATE, message));
            }
        }
        state.steps.insert(number, Asked::Planned);
        Ok(())
    }
}
