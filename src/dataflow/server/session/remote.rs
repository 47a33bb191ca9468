//! Remote: a session with a master of another process, over a line.
//!
//! Knows an engine of its own, which is an observer of the cluster: it serves no task, and its name fits every cluster.
//! Graphs, feeds and what is fetched travel as tensors.

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use prost::Message;

use super::{Backend, RunContext, late};
use crate::server::master::{self, StepSignature};
use crate::server::rpc_stream::{Answer, RpcStream, of_bytes};
use crate::server::wait::Waiter;
use rendez::control::Address;
use rendez::engine::{Config, Engine, OBSERVER_JOB};
use rendez::ground::{Incarnation, Locked, Status, Traceparent, Unpoisoned, catalogue};
use rendez::memory::Tensor;
use rendez_proto::Method;
use rendez_proto::methods::master_service::OpenLine;
use rendez_proto::methods::master_session::{
    Abandon, CloseSession, CreateSession, ExtendSession, GiveUp, ListDevices, MakeCallable,
    PartialRun, PartialRunSetup, ReleaseCallable, Reset, RunCallable, RunStep,
};
use rendez_proto::services::{GiveUpRequest, OpenLineRequest};
use rendez_proto::tensorflow::{
    CallableOptions, CloseSessionRequest, ConfigProto, CreateSessionRequest, CreateSessionResponse,
    DeviceAttributes, ExtendSessionRequest, GraphDef, ListDevicesRequest, MakeCallableRequest,
    MakeCallableResponse, PartialRunSetupRequest, PartialRunSetupResponse, ReleaseCallableRequest,
    ResetRequest, RunCallableRequest, RunOptions, RunStepRequest,
};

/// What a target may begin with.
const SCHEMES: [&str; 2] = ["rendez://", "grpc://"];
/// Numbers that clients draw theirs from: enough that those of one cluster seldom meet, and few enough that a task
/// which keeps something for every name it has heard of keeps little.
const NAMES: u64 = 1024;
/// How often a client takes another number when its own is taken.
const ATTEMPTS: u32 = 8;
/// How long an engine of our own may take to end.
const END: Duration = Duration::from_millis(100);

/// A master in another process.
pub(super) struct Remote {
    engine: Engine,
    line: Arc<RpcStream>,
    /// Where an extension's answer comes that had not come by its deadline: the next one needs the version it made.
    late_extension: Mutex<Option<Waiter<Answer<ExtendSession>>>>,
}

impl Remote {
    /// Connects to the master that listens at `target`.
    pub(super) fn connect(target: &str, config: Config) -> Result<Self, Status> {
        let scheme = SCHEMES
            .iter()
            .find_map(|scheme| target.strip_prefix(scheme));
        let address = scheme.unwrap_or(target).parse::<Address>();
        let address =
            address.map_err(|error| Status::of(catalogue::CONTROL_ADDRESS, error.to_string()))?;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let connected = Self::attempt(&address, config.clone());
            let is_taken = |status: &Status| status.reason() == catalogue::PEER_DUPLICATE_NAME;
            if attempt == ATTEMPTS || !connected.as_ref().is_err_and(is_taken) {
                return connected;
            }
        }
    }

    fn attempt(address: &Address, config: Config) -> Result<Self, Status> {
        let mut config = config.of_client();
        let number = master::draw()?.0 % NAMES;
        config.task = format!("/job:{OBSERVER_JOB}/task:{number}");
        if config.shards == 0 {
            (config.shards, config.share_cores) = (1, true);
        }
        let patience = config.connect_timeout;
        let engine = Engine::start(config)?;
        let connected = Self::on(&engine, address, patience);
        if connected.is_err() {
            engine.shutdown(END);
        }
        connected
    }

    fn on(engine: &Engine, address: &Address, patience: Duration) -> Result<Self, Status> {
        let until = Instant::now() + patience;
        let task = engine.who_listens(address, patience).map_err(|status| {
            let message = format!("no master answers at {address}: {}", status.message());
            Status::new(status.code(), status.reason(), message)
        })?;
        engine.add_peer(task.clone(), address.clone());
        engine.connect(&task);
        let id = master::draw()?;
        let line = RpcStream::open(engine, id, &task, || {
            let asked = OpenLineRequest { line: id.0 };
            let left = until.saturating_duration_since(Instant::now());
            let left = left.max(Duration::from_secs(1));
            let answer = engine.ask::<OpenLine>(&task, &asked, left)?;
            Ok(Incarnation(answer.incarnation))
        })?;
        Ok(Self {
            engine: engine.clone(),
            line,
            late_extension: Mutex::default(),
        })
    }

    /// Asks, and waits for the answer.
    fn ask<M: Method>(
        &self,
        asked: &M::Request,
        tensors: Vec<Tensor>,
        deadline: Option<Instant>,
    ) -> Result<M::Answer, Status>
    where
        M::Answer: Send + 'static,
    {
        let answer = self.ask_until::<M>(asked, tensors, deadline);
        Ok(answer.unwrap_or_else(|| Err(unanswered::<M>()))?.0)
    }

    /// Runs a step or a piece of one, and gives what was fetched.
    fn step<M: Method>(
        &self,
        asked: &M::Request,
        feeds: Vec<Tensor>,
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>, Status>
    where
        M::Answer: Send + 'static,
    {
        let answer = self.ask_until::<M>(asked, feeds, deadline);
        Ok(answer.unwrap_or_else(|| Err(late()))?.1)
    }

    /// # Errors
    /// `SESSION_UNKNOWN` once the master was lost: it ends the sessions of a client that it loses, if it lives.
    fn is_heard(&self) -> Result<(), Status> {
        let Some(lost) = self.line.lost_with() else {
            return Ok(());
        };
        let message = format!(
            "the line to the master was lost, and the session with it: connect again, and restore a checkpoint. {}",
            lost.message()
        );
        Err(Status::of(catalogue::SESSION_UNKNOWN, message))
    }

    /// `None` if the answer has not come by the deadline.
    fn ask_until<M: Method>(
        &self,
        asked: &M::Request,
        tensors: Vec<Tensor>,
        deadline: Option<Instant>,
    ) -> Option<Answer<M>>
    where
        M::Answer: Send + 'static,
    {
        if let Err(status) = self.is_heard() {
            return Some(Err(status));
        }
        let (done, waiter) = Waiter::pair();
        let number = self.line.ask::<M>(asked, tensors, done);
        let answer = waiter.wait(deadline);
        if answer.is_none() {
            self.tell::<GiveUp>(&GiveUpRequest { number });
        }
        answer
    }

    /// Asks for something to be made. `unmake` is told over the line what was made after the caller has waited in vain,
    /// whose handle is not known anywhere. What cannot be told is kept until its session or the line ends.
    fn ask_to_make<M: Method>(
        &self,
        asked: &M::Request,
        tensors: Vec<Tensor>,
        deadline: Option<Instant>,
        unmake: impl FnOnce(&RpcStream, M::Answer) -> Result<(), Status> + Send + 'static,
    ) -> Result<M::Answer, Status>
    where
        M::Answer: Send + 'static,
    {
        self.is_heard()?;
        let (tell, waiter) = Waiter::pair();
        // It is taken out once: by the answer, or by a caller who waits no longer.
        let told = Arc::new(Mutex::new(Some(tell)));
        let take = |told: &Mutex<Option<_>>| {
            let mut told = told.locked();
            told.take()
        };
        let (waits, line) = (Arc::clone(&told), Arc::downgrade(&self.line));
        let answered = move |answer: Answer<M>| match (take(&waits), answer) {
            (Some(tell), answer) => tell(answer),
            (None, Ok((made, _))) => {
                let _ = line.upgrade().map(|line| unmake(&line, made));
            }
            (None, Err(_)) => {}
        };
        let number = self.line.ask::<M>(asked, tensors, answered);
        let answer = waiter.wait(deadline).or_else(|| match take(&told) {
            Some(_) => {
                self.tell::<GiveUp>(&GiveUpRequest { number });
                None
            }
            None => waiter.wait(None),
        });
        Ok(answer.unwrap_or_else(|| Err(unanswered::<M>()))?.0)
    }

    fn late_extension(&self) -> MutexGuard<'_, Option<Waiter<Answer<ExtendSession>>>> {
        let late = self.late_extension.lock();
        late.unpoisoned()
    }

    fn tell<M: Method>(&self, told: &M::Request) {
        if let Err(status) = self.line.tell::<M>(told) {
            tracing::debug!(method = M::NAME, %status, "the master could not be told");
        }
    }
}

/// What is told of what was not answered in time.
fn unanswered<M: Method>() -> Status {
    let message = format!("the master did not answer {} by the deadline", M::NAME);
    Status::of(catalogue::CALL_DEADLINE, message)
}

impl Backend for Remote {
    fn create(
        &self,
        graph: GraphDef,
        config: &ConfigProto,
        deadline: Option<Instant>,
    ) -> Result<(String, i64), Status> {
        let asked = CreateSessionRequest {
            config: Some(config.clone()),
            target: String::new(),
        };
        let graph = of_bytes(graph.encode_to_vec())?;
        let unmake = |line: &RpcStream, made: CreateSessionResponse| {
            let session_handle = made.session_handle;
            line.tell::<CloseSession>(&CloseSessionRequest { session_handle })
        };
        let made = self.ask_to_make::<CreateSession>(&asked, vec![graph], deadline, unmake)?;
        Ok((made.session_handle, made.graph_version))
    }

    fn extend(
        &self,
        session: &str,
        graph: GraphDef,
        version: &mut i64,
        deadline: Option<Instant>,
    ) -> Result<(), Status> {
        self.is_heard()?;
        let mut late = self.late_extension();
        if let Some(former) = late.take() {
            match former.wait(deadline) {
                Some(Ok((answer, _))) => *version = answer.new_graph_version,
                // The graph is as it was.
                Some(Err(_)) => {}
                None => {
                    *late = Some(former);
                    return Err(unanswered::<ExtendSession>());
                }
            }
        }
        let asked = ExtendSessionRequest {
            session_handle: session.to_owned(),
            current_graph_version: *version,
        };
        let graph = of_bytes(graph.encode_to_vec())?;
        let (done, waiter) = Waiter::pair();
        self.line.ask::<ExtendSession>(&asked, vec![graph], done);
        let Some(answer) = waiter.wait(deadline) else {
            *late = Some(waiter);
            return Err(unanswered::<ExtendSession>());
        };
        *version = answer?.0.new_graph_version;
        Ok(())
    }

    fn run(
        &self,
        session: &str,
        signature: StepSignature,
        feeds: Vec<Tensor>,
        RunContext { deadline, trace }: RunContext,
    ) -> Result<Vec<Tensor>, Status> {
        let asked = RunStepRequest {
            session_handle: session.to_owned(),
            fetch: signature.fetches,
            target: signature.targets,
            feed: signature.feeds,
            options: options(trace),
            ..RunStepRequest::default()
        };
        self.step::<RunStep>(&asked, feeds, deadline)
    }

    fn make_callable(
        &self,
        session: &str,
        signature: StepSignature,
        deadline: Option<Instant>,
    ) -> Result<i64, Status> {
        let asked = MakeCallableRequest {
            session_handle: session.to_owned(),
            options: Some(CallableOptions {
                feed: signature.feeds,
                fetch: signature.fetches,
                target: signature.targets,
                run_options: None,
            }),
        };
        let session = session.to_owned();
        let unmake = move |line: &RpcStream, made: MakeCallableResponse| {
            line.tell::<ReleaseCallable>(&released(&session, made.handle))
        };
        let made = self.ask_to_make::<MakeCallable>(&asked, vec![], deadline, unmake)?;
        Ok(made.handle)
    }

    fn run_callable(
        &self,
        session: &str,
        callable: i64,
        feeds: Vec<Tensor>,
        RunContext { deadline, trace }: RunContext,
    ) -> Result<Vec<Tensor>, Status> {
        let asked = RunCallableRequest {
            session_handle: session.to_owned(),
            handle: callable,
            options: options(trace),
        };
        self.step::<RunCallable>(&asked, feeds, deadline)
    }

    fn release_callable(&self, session: &str, callable: i64) {
        self.tell::<ReleaseCallable>(&released(session, callable));
    }

    fn set_up(
        &self,
        session: &str,
        signature: StepSignature,
        deadline: Option<Instant>,
    ) -> Result<String, Status> {
        let asked = PartialRunSetupRequest {
            session_handle: session.to_owned(),
            feed: signature.feeds,
            fetch: signature.fetches,
            target: signature.targets,
        };
        let session = session.to_owned();
        let unmake = move |line: &RpcStream, made: PartialRunSetupResponse| {
            line.tell::<Abandon>(&abandoned(&session, &made.partial_run_handle))
        };
        let made = self.ask_to_make::<PartialRunSetup>(&asked, vec![], deadline, unmake)?;
        Ok(made.partial_run_handle)
    }

    fn run_partial(
        &self,
        session: &str,
        partial_run: &str,
        feeds: Vec<(String, Tensor)>,
        fetches: Vec<String>,
        deadline: Option<Instant>,
    ) -> Result<Vec<Tensor>, Status> {
        let (feed, feeds): (Vec<_>, _) = feeds.into_iter().unzip();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let options = left.map(|left| RunOptions {
            timeout_in_ms: i64::try_from(left.as_millis()).unwrap_or(i64::MAX).max(1),
            ..RunOptions::default()
        });
        let asked = RunStepRequest {
            session_handle: session.to_owned(),
            fetch: fetches,
            options,
            partial_run_handle: partial_run.to_owned(),
            feed,
            ..RunStepRequest::default()
        };
        // The master keeps the time of it; this end only makes sure.
        let deadline = deadline.and_then(|deadline| deadline.checked_add(GRACE));
        self.step::<PartialRun>(&asked, feeds, deadline)
    }

    fn abandon(&self, session: &str, partial_run: &str) {
        self.tell::<Abandon>(&abandoned(session, partial_run));
    }

    fn devices(
        &self,
        session: Option<&str>,
        deadline: Option<Instant>,
    ) -> Result<Vec<DeviceAttributes>, Status> {
        let asked = ListDevicesRequest {
            session_handle: session.unwrap_or_default().to_owned(),
        };
        let answer = self.ask::<ListDevices>(&asked, vec![], deadline)?;
        let mut devices = answer.local_device;
        devices.extend(answer.remote_device);
        Ok(devices)
    }

    fn close(&self, session: &str, deadline: Option<Instant>) -> Result<(), Status> {
        let asked = CloseSessionRequest {
            session_handle: session.to_owned(),
        };
        self.ask::<CloseSession>(&asked, vec![], deadline).map(drop)
    }

    fn reset(&self, containers: &[String], deadline: Option<Instant>) -> Result<(), Status> {
        let asked = ResetRequest {
            container: containers.to_vec(),
            device_filters: vec![],
        };
        self.ask::<Reset>(&asked, vec![], deadline).map(drop)
    }
}

fn released(session: &str, callable: i64) -> ReleaseCallableRequest {
    ReleaseCallableRequest {
        session_handle: session.to_owned(),
        handle: callable,
    }
}

fn abandoned(session: &str, partial_run: &str) -> RunStepRequest {
    RunStepRequest {
        session_handle: session.to_owned(),
        partial_run_handle: partial_run.to_owned(),
        ..RunStepRequest::default()
    }
}

/// What the master is told of a step whose client traces it.
fn options(trace: Option<Traceparent>) -> Option<RunOptions> {
    trace.map(|trace| RunOptions {
        traceparent: trace.to_string(),
        ..RunOptions::default()
    })
}

/// How much later than the master the client of a partial run gives up.
const GRACE: Duration = Duration::from_secs(1);

impl Drop for Remote {
    fn drop(&mut self) {
        self.line.close();
        self.engine.shutdown(END);
    }
}

shown! { Remote { engine, line } }
