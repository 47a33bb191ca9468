//! Local: a session with a master of this process, which is called and sent nothing.
//!
//! Knows runtimes; and, of a local one, the engine that goes with it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Backend, RunContext, late};
use crate::graph::Counted;
use crate::kernel::Value;
use crate::operations::Operations;
use crate::server::master::{Master, MasterSession, StepPlan, StepSignature};
use crate::server::runtime::{Means, Runtime, RuntimePlace};
use crate::server::wait::Waiter;
use rendez::cluster::ClusterSpec;
use rendez::engine::{Config, Engine};
use rendez::ground::Status;
use rendez::memory::Tensor;
use rendez_proto::tensorflow::{ConfigProto, DeviceAttributes, GraphDef};

/// A master of this process.
#[derive(Debug)]
pub(super) struct Local {
    runtime: Arc<Runtime>,
    /// Its engine is ours, and ends with us.
    is_own: bool,
}

impl Local {
    /// A master on an engine of its own.
    pub(super) fn start(config: Config, operations: Operations) -> Result<Self, Status> {
        let place = RuntimePlace::default();
        let patience = config.connect_timeout;
        let engine = Engine::start_with(config, place.services())?;
        let means = Means {
            operations,
            patience,
        };
        let runtime = Runtime::start(&engine, ClusterSpec::new(), means, &place)?;
        Ok(Self {
            runtime,
            is_own: true,
        })
    }

    /// The master of a server.
    pub(super) const fn on(runtime: Arc<Runtime>) -> Self {
        Self {
            runtime,
            is_own: false,
        }
    }

    /// What runs it.
    #[cfg(test)]
    pub(super) const fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    fn master(&self) -> &Master {
        self.runtime.master()
    }

    fn session(&self, handle: &str) -> Result<Arc<MasterSession>, Status> {
        self.master().session(handle)
    }

    /// The plan of a kind of step, waited for until `deadline`.
    fn plan(
        &self,
        session: &Arc<MasterSession>,
        signature: &StepSignature,
        deadline: Option<Instant>,
    ) -> Result<Arc<StepPlan>, Status> {
        let Some(deadline) = deadline else {
            return session.plan(signature);
        };
        let plan = self.master().plan_until(session, signature, deadline)?;
        plan.ok_or_else(late)
    }

    /// Runs a step, and gives what was fetched: of a variable its content.
    fn run_plan(
        &self,
        session: &Arc<MasterSession>,
        plan: &Arc<StepPlan>,
        feeds: Vec<Tensor>,
        RunContext { deadline, trace }: RunContext,
    ) -> Result<Vec<Tensor>, Status> {
        let (done, waiter) = Waiter::pair();
        let step = self
            .master()
            .run(session, plan, trace, feeds, Box::new(done));
        let Some(outcome) = waiter.wait(deadline) else {
            // It ends by itself; the caller need not wait for that.
            step.iter().for_each(|step| step.cancel(late()));
            return Err(late());
        };
        outcome?.iter().map(Value::tensor).collect()
    }
}

impl Backend for Local {
    fn create(
        &self,
        graph: GraphDef,
        config: &ConfigProto,
        _: Option<Instant>,
    ) -> Result<(String, i64), Status> {
        let graph = Counted::new(graph)?;
        let (session, version) = self
            .master()
            .create_session(graph, config.clone(), [1, 1])?;
        Ok((session.handle().to_owned(), version))
    }

    fn extend(
        &self,
        session: &str,
        graph: GraphDef,
        version: &mut i64,
        _: Option<Instant>,
    ) -> Result<(), Status> {
        let more = Counted::new(graph)?;
        *version = self.session(session)?.extend(more, *version)?;
        Ok(())
    }

    fn run(
        &self,
        session: &str,
        signature: StepSignature,
        feeds: Vec<Tensor>,
        manner: RunContext,
    ) -> Result<Vec<Tensor>, Status> {
        let session = self.session(session)?;
        let plan = self.plan(&session, &signature, manner.deadline)?;
        self.run_plan(&session, &plan, feeds, manner)
    }

    fn make_callable(
        &self,
        session: &str,
        signature: StepSignature,
        deadline: Option<Instant>,
    ) -> Result<i64, Status> {
        let session = self.session(session)?;
        session.keep_callable(self.plan(&session, &signature, deadline)?)
    }

    fn run_callable(
        &self,
        session: &str,
        callable: i64,
        feeds: Vec<Tensor>,
        manner: RunContext,
    ) -> Result<Vec<Tensor>, Status> {
        let session = self.session(session)?;
        let plan = session.callable(callable)?;
        self.run_plan(&session, &plan, feeds, manner)
    }

    fn release_callable(&self, session: &str, callable: i64) {
        let released = self
            .session(session)
            .and_then(|session| session.release_callable(callable));
        if let Err(status) = released {
            tracing::debug!(%status, "a callable was gone already");
        }
    }

    fn set_up(
        &self,
        session: &str,
        signature: StepSignature,
        deadline: Option<Instant>,
    ) -> Result<String, Status> {
        let session = self.session(session)?;
        let plan = self.plan(&session, &signature, deadline)?;
        self.master().set_up(&session, &plan)
    }

    fn run_partial(
        &self,
        session: &str,
        partial_run: &str,
        feeds: Vec<(String, Tensor)>,
        fetches: Vec<String>,
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>, Status> {
        let session = self.session(session)?;
        self.master()
            .run_partial(&session, partial_run, feeds, &fetches, deadline)
    }

    fn abandon(&self, session: &str, partial_run: &str) {
        if let Ok(session) = self.session(session) {
            session.partial_runs.abandon(partial_run);
        }
    }

    fn devices(
        &self,
        session: Option<&str>,
        _: Option<Instant>,
    ) -> Result<Vec<DeviceAttributes>, Status> {
        let (mut own, others) = self.master().list_devices(session)?;
        own.extend(others);
        Ok(own)
    }

    fn close(&self, session: &str, _: Option<Instant>) -> Result<(), Status> {
        self.master().close_session(session)
    }

    fn reset(&self, containers: &[String], _: Option<Instant>) -> Result<(), Status> {
        self.master().reset(containers, &[])
    }
}

/// How long an engine of our own may take to end.
const END: Duration = Duration::from_millis(100);

impl Drop for Local {
    fn drop(&mut self) {
        if self.is_own {
            self.runtime.stop(END);
            self.runtime.engine().shutdown(END);
        }
    }
}
