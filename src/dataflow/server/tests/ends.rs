//! Ends: of waiting, of sessions and of servers, while steps and plans take longer than that.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use super::*;
use crate::graph::{Builder, Definition, floats};
use crate::kernel::{Call, Kernel};
use crate::operations::Operations;
use crate::server::rpc_stream::{Answer, RpcStream, of_bytes};
use crate::server::runtime;
use crate::server::wait::Waiter;
use crate::server::worker::{self, Worker};
use crate::server::{PartialRun, Session};
use prost::Message;
use rendez::control::{Address, Services};
use rendez::engine::{Engine, OBSERVER_JOB};
use rendez::ground::limits::{ERRANDS_OF_SESSIONS_MAX, SESSION_CALLABLES_MAX};
use rendez::ground::{DeviceName, FrameIter, Incarnation, Status, catalogue};
use rendez_proto::Method;
use rendez_proto::methods::master_service::OpenLine;
use rendez_proto::methods::master_session::{
    CreateSession, GiveUp, ListDevices, MakeCallable, PartialRunSetup, RunCallable, RunStep,
};
use rendez_proto::methods::worker_service::{CreateWorkerSession, DeleteWorkerSession, GetStatus};
use rendez_proto::services::{GiveUpRequest, OpenLineRequest};
use rendez_proto::tensorflow::{
    CallableOptions, ConfigProto, CreateSessionRequest, DataType, DeleteWorkerSessionResponse,
    DeviceAttributes, GetStatusResponse, GraphDef, ListDevicesRequest, MakeCallableRequest,
    PartialRunSetupRequest, RunCallableRequest, RunStepRequest,
};

/// Keeps everyone who comes to it until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(std::sync::Mutex<(usize, bool)>, std::sync::Condvar)>);

impl Gate {
    fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.0 += 1;
        self.0.1.notify_all();
        let _state = self
            .0
            .1
            .wait_while(state, |(_, is_open)| !*is_open)
            .unwrap();
    }

    /// Waits until so many have come.
    fn await_coming(&self, many: usize) {
        let state = self.0.0.lock().unwrap();
        let few = |(came, _): &mut (usize, bool)| *came < many;
        let (state, _) = self.0.1.wait_timeout_while(state, PATIENCE, few).unwrap();
        assert!(state.0 >= many, "{} of {many} came", state.0);
    }

    fn came(&self) -> usize {
        self.0.0.lock().unwrap().0
    }

    fn open(&self) {
        self.0.0.lock().unwrap().1 = true;
        self.0.1.notify_all();
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Opens its gate when the test ends, however it does: what waits there holds threads.
struct Opened(Gate);

/// `y = x`, once its gate is open.
struct Held(Gate);

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

impl Kernel for Held {
    fn compute(&self, call: &mut Call<'_>) -> Result<(), Status> {
        self.0.pass();
        call.outputs.push(call.inputs[0].tensor()?.into());
        Ok(())
    }

    fn is_costly(&self, _: &[crate::kernel::Value]) -> bool {
        true
    }
}

fn held() -> Definition {
    Definition::new("Held", "x: float -> y: float", "").shapes(|inputs, _| Ok(inputs.to_vec()))
}

/// `y = Held(x)`, where x is fed.
fn graph(operations: &Operations) -> GraphDef {
    let mut graph = Builder::new(operations.ops());
    let x = graph.node("Placeholder").name("x");
    let x = x.attr("dtype", DataType::DtFloat).build().unwrap();
    graph.named("Held", "y", &[x]);
    graph.constant("one", floats(&[1], &[1.0])).unwrap();
    graph.finish().unwrap().to_def()
}

/// Graphs of one's own whose steps wait at the gate.
fn slow_to_compute(gate: &Gate) -> Operations {
    let (gate, mut operations) = (gate.clone(), Operations::standard());
    let make = move |_: &_| Ok(Box::new(Held(gate.clone())) as Box<dyn Kernel>);
    operations.register(held(), make).unwrap();
    operations
}

fn master(operations: &Operations) -> Server {
    let [port] = free_ports();
    let mut spec = ClusterSpec::new();
    spec.add_job("ps", [(0, HostPort::new("127.0.0.1", port).unwrap())])
        .unwrap();
    let builder = Server::builder().config(config("/job:ps/task:0"));
    let builder = builder.cluster(spec).task(task("/job:ps/task:0"));
    let server = builder.operations(operations.clone()).build().unwrap();
    server.start().unwrap();
    server
}

/// The master of a cluster whose only worker never comes.
fn with_absent_worker(patience: Duration) -> Server {
    let mut config = config("/job:ps/task:0");
    config.connect_timeout = patience;
    let builder = Server::builder().cluster(spec(free_ports())).config(config);
    let server = builder.task(task("/job:ps/task:0")).build().unwrap();
    server.start().unwrap();
    server
}

fn fed() -> [(&'static str, Tensor); 1] {
    let shape = rendez::ground::Shape::row(1).unwrap();
    [("x", Tensor::from_vec(vec![1.0_f32], shape).unwrap())]
}

/// Graphs of one's own whose plans wait at the gate while they are made.
fn slow_to_make(gate: &Gate) -> Operations {
    let (gate, mut operations) = (gate.clone(), Operations::standard());
    let make = move |_: &_| {
        gate.pass();
        Ok(Box::new(Held(gate.clone())) as Box<dyn Kernel>)
    };
    operations.register(held(), make).unwrap();
    operations
}

#[test]
fn a_step_does_not_wait_beyond_its_deadline_for_a_plan() {
    let gate = Gate::default();
    let _opened = Opened(gate.clone());
    let operations = slow_to_make(&gate);
    let mut config = config("/job:localhost/task:0");
    config.control = false;
    let session = Session::local_of(config, operations.clone()).unwrap();
    session.create(graph(&operations)).unwrap();
    let session = Arc::new(session);
    let maker = Arc::clone(&session);
    let made = std::thread::spawn(move || maker.run(&fed(), &["y"], &[]));
    gate.await_coming(1);
    let (tell, waiter) = Waiter::pair();
    let late = Arc::clone(&session);
    std::thread::spawn(move || {
        let patience = Duration::from_millis(20);
        tell(late.run_within(patience, &fed(), &["y"], &[]));
    });
    let told = waiter.wait(Some(Instant::now() + Duration::from_secs(10)));
    gate.open();
    let status = told.expect("it ends by its deadline").unwrap_err();
    assert_eq!(status.reason(), catalogue::STEP_DEADLINE, "{status}");
    assert_eq!(made.join().unwrap().unwrap().len(), 1);
    // The plan is there, and soon found.
    let again = session.run_within(PATIENCE, &fed(), &["y"], &[]);
    assert_eq!(again.unwrap().len(), 1);
}

#[test]
fn steps_that_wait_in_vain_for_one_plan_take_no_place_from_others() {
    let gate = Gate::default();
    let _opened = Opened(gate.clone());
    let operations = slow_to_make(&gate);
    let server = master(&operations);
    let target = server.target().unwrap();
    let (near, far) = (Session::on(&server), Session::connect(&target));
    let (near, far) = (near.unwrap(), far.unwrap());
    for session in [&near, &far] {
        session.create(graph(&operations)).unwrap();
        for _ in 0..ERRANDS_OF_SESSIONS_MAX {
            let patience = Duration::from_millis(1);
            let status = session.run_within(patience, &fed(), &["y"], &[]);
            let status = status.unwrap_err();
            assert_eq!(status.reason(), catalogue::STEP_DEADLINE, "{status}");
        }
    }
    // Plans that others want are made meanwhile, in those sessions and beside them.
    let other = Session::connect(&target).unwrap();
    other.create(graph(&operations)).unwrap();
    for session in [&near, &far, &other] {
        assert_eq!(session.run(&[], &["one"], &[]).unwrap().len(), 1);
    }
    gate.open();
    for session in [&near, &far] {
        let run = session.run_within(PATIENCE, &fed(), &["y"], &[]);
        assert_eq!(run.unwrap().len(), 1);
    }
    server.stop(None);
}

/// A client's line, by which it asks as it likes.
struct Caller {
    engine: Engine,
    line: Arc<RpcStream>,
}

impl Caller {
    fn new(server: &Server) -> Self {
        let mut config = config(&format!("/job:{OBSERVER_JOB}/task:1000"));
        (config.listen, config.closed) = (None, false);
        let engine = Engine::start(config).unwrap();
        let target = server.target().unwrap();
        let address: Address = target.strip_prefix("rendez://").unwrap().parse().unwrap();
        let task = engine.who_listens(&address, PATIENCE).unwrap();
        engine.add_peer(task.clone(), address);
        engine.connect(&task);
        let id = StepId(0x11fe);
        let line = RpcStream::open(&engine, id, &task, || {
            let asked = OpenLineRequest { line: id.0 };
            let answer = engine.ask::<OpenLine>(&task, &asked, PATIENCE)?;
            Ok(Incarnation(answer.incarnation))
        });
        let line = line.unwrap();
        Self { engine, line }
    }

    fn ask<M: Method>(&self, asked: &M::Request, tensors: Vec<Tensor>) -> Answer<M>
    where
        M::Answer: Send + 'static,
    {
        let (tell, waiter) = Waiter::pair();
        self.line.ask::<M>(asked, tensors, tell);
        let until = Instant::now() + PATIENCE;
        waiter.wait(Some(until)).expect("an answer")
    }

    /// Asks for a step with a feed that is sent after the step was given up, if `is_given_up`, and after what is asked
    /// later was answered.
    fn run_late<M: Method>(&self, asked: &M::Request, is_given_up: bool) -> Answer<M>
    where
        M::Answer: Send + 'static,
    {
        let (tell, waiter) = Waiter::pair();
        let [(_, feed)] = fed();
        let (number, send) = self.line.ask_ahead::<M>(asked, vec![feed], tell);
        if is_given_up {
            let told = GiveUpRequest { number };
            self.line.tell::<GiveUp>(&told).unwrap();
        }
        let devices = ListDevicesRequest::default();
        self.ask::<ListDevices>(&devices, vec![]).unwrap();
        send();
        let until = Instant::now() + PATIENCE;
        waiter.wait(Some(until)).expect("an answer")
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.line.close();
        self.engine.shutdown(Duration::ZERO);
    }
}

#[test]
fn a_step_that_is_given_up_before_its_feeds_come_never_begins() {
    let gate = Gate::default();
    let _opened = Opened(gate.clone());
    let operations = slow_to_compute(&gate);
    let server = master(&operations);
    let caller = Caller::new(&server);
    let graph = of_bytes(graph(&operations).encode_to_vec()).unwrap();
    let created = caller.ask::<CreateSession>(&CreateSessionRequest::default(), vec![graph]);
    let session_handle = created.unwrap().0.session_handle;
    let options = CallableOptions {
        feed: vec!["x".into()],
        fetch: vec!["y".into()],
        ..CallableOptions::default()
    };
    let step = RunStepRequest {
        session_handle: session_handle.clone(),
        feed: options.feed.clone(),
        fetch: options.fetch.clone(),
        ..RunStepRequest::default()
    };
    let set_up = PartialRunSetupRequest {
        session_handle: session_handle.clone(),
        feed: options.feed.clone(),
        fetch: options.fetch.clone(),
        ..PartialRunSetupRequest::default()
    };
    let kept = MakeCallableRequest {
        session_handle: session_handle.clone(),
        options: Some(options),
    };
    let made = caller.ask::<MakeCallable>(&kept, vec![]);
    let callable = RunCallableRequest {
        session_handle,
        handle: made.unwrap().0.handle,
        ..RunCallableRequest::default()
    };
    gate.open();
    // What is not given up runs, however late its feeds are.
    assert_eq!(caller.run_late::<RunStep>(&step, false).unwrap().1.len(), 1);
    let run = caller.run_late::<RunCallable>(&callable, false);
    assert_eq!(run.unwrap().1.len(), 1);
    gate.await_coming(2);
    for refused in [
        caller.run_late::<RunStep>(&step, true).err(),
        caller.run_late::<RunCallable>(&callable, true).err(),
        caller.run_late::<MakeCallable>(&kept, true).err(),
        caller.run_late::<PartialRunSetup>(&set_up, true).err(),
    ] {
        let status = refused.expect("it was given up");
        assert_eq!(status.reason(), catalogue::STEP_CANCELLED, "{status}");
    }
    assert_eq!(gate.came(), 2);
    // What comes next on the line is not held back by it.
    assert_eq!(caller.run_late::<RunStep>(&step, false).unwrap().1.len(), 1);
    server.stop(None);
}

/// Pieces of as many partial runs as may wait at once, when all do.
fn waiting_pieces(
    server: &Server,
    begin: impl Fn() -> PartialRun,
    gate: &Gate,
) -> Vec<JoinHandle<Result<Vec<Tensor>, Status>>> {
    let runs: Vec<PartialRun> = (0..ERRANDS_OF_SESSIONS_MAX).map(|_| begin()).collect();
    let pieces = runs
        .into_iter()
        .map(|run| std::thread::spawn(move || run.run(&fed(), &["y"])))
        .collect();
    gate.await_coming(1);
    let engine = server.engine().unwrap();
    let waiting = || {
        let pending = engine.pending();
        let waiting = pending.iter().filter(|item| item.key.edge() == "y");
        waiting.count()
    };
    let until = Instant::now() + PATIENCE;
    while waiting() < ERRANDS_OF_SESSIONS_MAX {
        assert!(Instant::now() < until, "{} pieces wait", waiting());
        std::thread::sleep(Duration::from_millis(5));
    }
    pieces
}

#[test]
fn pieces_that_wait_keep_no_place_from_giving_up_and_closing() {
    let gate = Gate::default();
    let _opened = Opened(gate.clone());
    let operations = slow_to_compute(&gate);
    let server = master(&operations);
    let session = Session::connect(&server.target().unwrap()).unwrap();
    session.create(graph(&operations)).unwrap();
    let session = Arc::new(session);
    let begin = || session.partial_run(&["x"], &["y"], &[]).unwrap();
    let given_up = begin();
    let until = Instant::now() + PATIENCE;
    let pieces = waiting_pieces(&server, begin, &gate);
    let steps = || server.load().unwrap().steps;
    assert_eq!(steps(), ERRANDS_OF_SESSIONS_MAX + 1);
    drop(given_up);
    while steps() > ERRANDS_OF_SESSIONS_MAX {
        assert!(Instant::now() < until, "what is given up ends");
        std::thread::sleep(Duration::from_millis(5));
    }
    let closing = Arc::clone(&session);
    let closing = std::thread::spawn(move || closing.close());
    for piece in pieces {
        let status = piece.join().unwrap().unwrap_err();
        assert_eq!(status.reason(), catalogue::STEP_CANCELLED, "{status}");
    }
    gate.open();
    closing.join().unwrap().unwrap();
    assert_eq!(server.load().unwrap().sessions, 0);
    server.stop(None);
}

#[test]
fn pieces_that_wait_keep_no_place_from_others() {
    let gate = Gate::default();
    let _opened = Opened(gate.clone());
    let operations = slow_to_compute(&gate);
    let server = master(&operations);
    let target = server.target().unwrap();
    let session = Session::connect(&target).unwrap();
    session.create(graph(&operations)).unwrap();
    let begin = || session.partial_run(&["x"], &["y"], &[]).unwrap();
    let pieces = waiting_pieces(&server, begin, &gate);
    let other = Session::connect(&target).unwrap();
    other.create(graph(&operations)).unwrap();
    for session in [&session, &other] {
        let mut more = Builder::new(operations.ops());
        more.constant("two", floats(&[1], &[2.0])).unwrap();
        session.extend(more.finish().unwrap().to_def()).unwrap();
        assert_eq!(session.run(&[], &["one", "two"], &[]).unwrap().len(), 2);
    }
    gate.open();
    for piece in pieces {
        assert_eq!(piece.join().unwrap().unwrap().len(), 1);
    }
    server.stop(None);
}

#[test]
fn sessions_that_wait_for_an_absent_worker_keep_no_place_from_others() {
    let operations = Operations::standard();
    let server = with_absent_worker(PATIENCE);
    let session = Session::connect(&server.target().unwrap()).unwrap();
    let config = ConfigProto {
        device_filters: vec!["/job:ps".into()],
        ..ConfigProto::default()
    };
    let session = session.configured(config).unwrap();
    let mut graph = Builder::new(operations.ops());
    graph.constant("one", floats(&[1], &[1.0])).unwrap();
    session.create(graph.finish().unwrap().to_def()).unwrap();
    let caller = Caller::new(&server);
    for _ in 0..ERRANDS_OF_SESSIONS_MAX {
        let asked = CreateSessionRequest::default();
        caller.line.ask::<CreateSession>(&asked, vec![], |_| {});
    }
    // One more is refused, and says that those before it are under way.
    let full = caller.ask::<ListDevices>(&ListDevicesRequest::default(), vec![]);
    assert_eq!(full.err().unwrap().reason(), catalogue::SESSION_LIMIT);
    assert_eq!(session.run(&[], &["one"], &[]).unwrap().len(), 1);
    let mut more = Builder::new(operations.ops());
    more.constant("two", floats(&[1], &[2.0])).unwrap();
    session.extend(more.finish().unwrap().to_def()).unwrap();
    assert_eq!(session.run(&[], &["two"], &[]).unwrap().len(), 1);
    session.close().unwrap();
    server.stop(Some(Duration::ZERO));
}

#[test]
fn a_session_that_is_being_created_holds_up_no_step_and_no_close() {
    let server = with_absent_worker(Duration::from_secs(5));
    let session = Session::on(&server).unwrap();
    std::thread::scope(|threads| {
        let created = threads.spawn(|| session.create(GraphDef::default()));
        std::thread::sleep(Duration::from_millis(100));
        let step = session.run_within(Duration::from_millis(1), &[], &["one"], &[]);
        assert_eq!(step.unwrap_err().reason(), catalogue::SESSION_NONE);
        session.close().unwrap();
        assert!(!created.is_finished(), "it waits for a worker");
        let status = created.join().unwrap().unwrap_err();
        assert_eq!(status.reason(), catalogue::WORKER_ABSENT, "{status}");
    });
    server.stop(None);
}

#[test]
fn threads_that_begin_a_session_by_extending_it_all_do() {
    let server = master(&Operations::standard());
    for _ in 0..50 {
        let session = Session::on(&server).unwrap();
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|threads| {
            for number in 0..4 {
                let (session, start) = (&session, &start);
                threads.spawn(move || {
                    let mut graph = Builder::new(Operations::standard().ops());
                    let name = format!("n{number}");
                    graph.constant(&name, floats(&[1], &[1.0])).unwrap();
                    let graph = graph.finish().unwrap().to_def();
                    start.wait();
                    session.extend(graph).unwrap();
                });
            }
        });
        let fetched = session.run(&[], &["n0", "n1", "n2", "n3"], &[]);
        assert_eq!(fetched.unwrap().len(), 4);
    }
    server.stop(None);
}

#[test]
fn a_callable_that_is_dropped_while_pieces_wait_makes_room_for_another() {
    let gate = Gate::default();
    let _opened = Opened(gate.clone());
    let operations = slow_to_compute(&gate);
    let server = master(&operations);
    let session = Session::connect(&server.target().unwrap()).unwrap();
    session.create(graph(&operations)).unwrap();
    let callable = || session.callable(&[], &["one"], &[]);
    let mut callables: Vec<_> = (0..SESSION_CALLABLES_MAX)
        .map(|_| callable().unwrap())
        .collect();
    assert_eq!(callable().unwrap_err().reason(), catalogue::SESSION_LIMIT);
    let begin = || session.partial_run(&["x"], &["y"], &[]).unwrap();
    let pieces = waiting_pieces(&server, begin, &gate);
    drop(callables.pop());
    gate.open();
    for piece in pieces {
        assert_eq!(piece.join().unwrap().unwrap().len(), 1);
    }
    callable().unwrap();
    session.close().unwrap();
    server.stop(None);
}

#[test]
fn a_server_is_stopped_when_all_of_it_has_ended() {
    let gate = Gate::default();
    let _opened = Opened(gate.clone());
    let operations = slow_to_compute(&gate);
    let server = master(&operations);
    let session = Session::on(&server).unwrap();
    session.create(graph(&operations)).unwrap();
    let step = std::thread::spawn(move || session.run(&fed(), &["y"], &[]));
    gate.await_coming(1);
    let engine = server.engine().unwrap();
    let stopping = server.clone();
    let stopping = std::thread::spawn(move || stopping.stop(Some(PATIENCE)));
    let until = Instant::now() + PATIENCE;
    while server.engine().is_ok() {
        assert!(Instant::now() < until, "the server stops");
        std::thread::yield_now();
    }
    // Its session takes a while to end, since its step does.
    let (cpu, life) = (DeviceName::cpu(engine.task()), engine.incarnation());
    let key = Key::new(&cpu, life, &cpu, "more", FrameIter::default()).unwrap();
    let waits: [fn(&Server); 2] = [Server::join, |server| server.stop(Some(PATIENCE))];
    let ended = waits.map(|wait| {
        let (server, engine, key) = (server.clone(), engine.clone(), key.clone());
        std::thread::spawn(move || {
            wait(&server);
            engine
                .step(StepId(1))
                .send(&key, Tensor::scalar(0u8))
                .is_err()
        })
    });
    let ended = ended.map(|ended| ended.join().unwrap());
    gate.open();
    assert_eq!((ended, server.state()), ([true, true], State::Stopped));
    stopping.join().unwrap();
    step.join().unwrap().unwrap_err();
}

#[test]
fn a_server_stops_by_its_deadline_however_many_sessions_hang() {
    let gate = Gate::default();
    let _opened = Opened(gate.clone());
    let operations = slow_to_compute(&gate);
    let server = master(&operations);
    let steps: Vec<_> = (0..3)
        .map(|_| {
            let session = Session::on(&server).unwrap();
            session.create(graph(&operations)).unwrap();
            std::thread::spawn(move || session.run(&fed(), &["y"], &[]))
        })
        .collect();
    gate.await_coming(1);
    let until = Instant::now() + PATIENCE;
    while server.load().unwrap().steps < steps.len() {
        assert!(Instant::now() < until, "all steps run");
        std::thread::sleep(Duration::from_millis(5));
    }
    let began = Instant::now();
    server.stop(Some(Duration::from_millis(500)));
    let took = began.elapsed();
    gate.open();
    for step in steps {
        step.join().unwrap().unwrap_err();
    }
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_step_that_waits_for_its_plan_ends_with_its_session() {
    let gate = Gate::default();
    let _opened = Opened(gate.clone());
    let operations = slow_to_make(&gate);
    let server = master(&operations);
    let session = Arc::new(Session::on(&server).unwrap());
    session.create(graph(&operations)).unwrap();
    let runs = Arc::clone(&session);
    let step = std::thread::spawn(move || runs.run_within(3 * PATIENCE, &fed(), &["y"], &[]));
    gate.await_coming(1);
    // Those who come from now on have it made anew.
    session.extend(GraphDef::default()).unwrap();
    session.close().unwrap();
    let until = Instant::now() + PATIENCE;
    while !step.is_finished() {
        assert!(Instant::now() < until, "it waits on");
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = step.join().unwrap().unwrap_err();
    assert_eq!(status.reason(), catalogue::STEP_CANCELLED, "{status}");
    gate.open();
    server.stop(None);
}

#[test]
fn a_session_does_not_begin_at_a_worker_that_restarted_meanwhile() {
    let [master_port, port] = free_ports();
    let spec = spec([master_port, port]);
    let master = server(&spec, "/job:ps/task:0", Require::None);
    master.start().unwrap();
    // What it says of its devices was said by its former life.
    let name = task("/job:worker/task:0");
    let devices = vec![DeviceAttributes {
        name: DeviceName::cpu(&name).to_string(),
        device_type: "CPU".into(),
        memory_limit: 0,
        incarnation: 1,
    }];
    let place = Arc::new(std::sync::OnceLock::<Arc<Worker>>::new());
    let (begins, ends) = (Arc::clone(&place), Arc::clone(&place));
    let services = Services::new()
        .serve::<GetStatus>(move |_, _| {
            let device_attributes = devices.clone();
            Ok(GetStatusResponse { device_attributes })
        })
        .serve::<CreateWorkerSession>(move |call, asked| {
            worker::create_session(begins.wait(), (&call.task, call.incarnation), asked)
        })
        .serve::<DeleteWorkerSession>(move |call, asked| {
            worker::delete_session(ends.wait(), &call.task, &asked);
            Ok(DeleteWorkerSessionResponse {})
        });
    let mut config = config("/job:worker/task:0");
    config.listen = Some(format!("127.0.0.1:{port}").parse().unwrap());
    let engine = Engine::start_with(config, services).unwrap();
    let worker = runtime::worker_on(&engine, &Operations::standard()).unwrap();
    place.set(Arc::clone(&worker)).ok().unwrap();

    let session = Session::on(&master).unwrap();
    let status = session.create(GraphDef::default()).unwrap_err();
    assert_eq!(status.reason(), catalogue::PEER_RESTARTED, "{status}");
    assert!(status.message().contains("/job:worker"), "{status}");
    assert_eq!(worker.load(), (0, 0));
    master.stop(None);
    engine.shutdown(Duration::from_millis(100));
}
