//! Handles where there is nothing behind them: after a shutdown, on the thread of a shard, in a child of `fork`. And
//! truth values that are none.
#![allow(unsafe_code)]

use std::io::Write;
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rendez::cluster::{ClusterSpec, HostPort};
use rendez::control::Address;
use rendez::drive::Driver;
use rendez::engine::{Config, Engine, Recv, SendAsync, TaskEnd};
use rendez::ground::{Code, DType, Key, Shape, Status, StepId, TaskName, TensorMeta, catalogue};
use rendez::mail::wait::WaitCell;
use rendez::memory::{Bool8, Tensor, TensorError};
use rendez::shard::{Task, TaskContext, TaskEvent, TaskWaker};
use rendez_dataflow::graph::{Builder, floats};
use rendez_dataflow::operations::Operations;
use rendez_dataflow::server::{Callable, PartialRun, Server, Session};
use rendez_proto::tensorflow::GraphDef;
use rendez_rpc::{Agent, Functions, Options, Pending, store};

#[path = "ports/mod.rs"]
mod ports;

use ports::free_ports;

const PATIENCE: Duration = Duration::from_secs(20);
const STEP: StepId = StepId(1);

fn engine(shards: usize) -> Engine {
    engine_driven(shards, Driver::Adaptive)
}

fn engine_driven(shards: usize, driver: Driver) -> Engine {
    Engine::start(config(shards, driver)).unwrap()
}

fn config(shards: usize, driver: Driver) -> Config {
    let mut config = Config::new("/job:a/task:0");
    (config.shards, config.share_cores, config.drive) = (shards, true, driver);
    config.arena.segment_bytes = 1 << 20;
    (config.parked_bytes, config.parked_bytes_per_step) = (4096, 4096);
    config
}

fn key(edge: &str) -> Key {
    Key::between("a", "a", edge).unwrap()
}

#[track_caller]
fn assert_works(engine: &Engine) {
    let (key, step) = (key("works"), engine.step(StepId(999)));
    step.send(&key, Tensor::scalar(41_u32)).unwrap();
    let received = step.recv(&key).deadline(PATIENCE).wait().unwrap();
    assert_eq!(received.tensor.as_slice::<u32>().unwrap(), [41]);
}

/// Calls a function once, on the shard's thread.
struct Once<F>(Option<F>);

impl<F: FnOnce() + Send> Task for Once<F> {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        if let (TaskEvent::Started, Some(once)) = (event, self.0.take()) {
            once();
            context.finish();
        }
    }
}

/// What `ask` gives on the thread of a shard of `engine`.
fn in_shard<T: Send + 'static>(
    engine: &Engine,
    ask: impl FnOnce(&Engine) -> T + Send + 'static,
) -> T {
    let (say, said) = mpsc::channel();
    let inside = engine.clone();
    let once = move || say.send(ask(&inside)).unwrap();
    engine.spawn(0, Box::new(Once(Some(once)))).unwrap();
    said.recv_timeout(PATIENCE).expect("it waits for itself")
}

#[test]
fn nothing_is_taken_after_a_shutdown() {
    let engine = engine(2);
    engine.shutdown(Duration::from_millis(100));
    let refused = [
        engine.spawn(0, Box::new(Once(Some(|| {})))).map(drop),
        engine.tensor(DType::U8, &[8]).map(drop),
        engine.step(STEP).send(&key("x"), Tensor::scalar(1_u8)),
        engine.step(STEP).recv(&key("x")).wait().map(drop),
    ];
    for outcome in refused {
        let status = outcome.unwrap_err();
        assert_eq!(
            (status.code(), status.reason()),
            (Code::Aborted, catalogue::SHUTDOWN)
        );
    }
    assert!(engine.pending().is_empty());
}

#[test]
fn a_shard_does_not_wait_for_itself() {
    let engine = engine(1);
    let statuses = in_shard(&engine, |engine| {
        let step = engine.step(STEP);
        let started = step.recv(&key("started")).start().unwrap();
        [
            step.recv(&key("x")).wait().unwrap_err(),
            step.recv(&key("x")).deadline(PATIENCE).wait().unwrap_err(),
            started.wait().unwrap_err(),
            step.send_async(&key("y"), Tensor::scalar(1_u8))
                .wait()
                .unwrap_err()
                .into(),
            step.deadline(PATIENCE).unwrap_err(),
            engine.try_pending().unwrap_err(),
            engine.try_stats().unwrap_err(),
            engine.metrics_text().unwrap_err(),
            engine.call(engine.task(), 1, &[], PATIENCE).unwrap_err(),
        ]
    });
    for status in statuses {
        let found = (status.code(), status.reason());
        assert_eq!(
            found,
            (Code::FailedPrecondition, catalogue::WAIT_IN_SHARD),
            "{status}"
        );
    }
    assert_works(&engine);
    // What needs no wait is done.
    let sent = in_shard(&engine, |engine| {
        engine.step(STEP).send(&key("z"), Tensor::scalar(5_u8))
    });
    sent.unwrap();
    engine
        .step(STEP)
        .recv(&key("z"))
        .deadline(PATIENCE)
        .wait()
        .unwrap();
}

#[test]
fn a_shutdown_from_within_a_shard_only_begins() {
    let engine = engine(2);
    let waiting = engine.step(STEP).recv(&key("never")).start().unwrap();
    in_shard(&engine, |engine| {
        engine.shutdown(Duration::from_millis(100))
    });
    let status = waiting.wait().unwrap_err();
    assert_eq!(status.reason(), catalogue::SHUTDOWN, "{status}");
    engine.shutdown(PATIENCE);
    let status = engine.metrics_text().unwrap_err();
    assert_eq!(status.reason(), catalogue::SHUTDOWN, "{status}");
}

/// The page waits for the shard, which must not wait for the page.
#[test]
fn the_last_handle_may_be_dropped_within_a_shard_that_a_page_of_metrics_waits_for() {
    let mut config = config(1, Driver::Adaptive);
    config.metrics = Some("127.0.0.1:0".parse().unwrap());
    let engine = Engine::start(config).unwrap();
    let address = engine.metrics_address().unwrap();
    let (say, said) = mpsc::channel();
    let inside = engine.clone();
    let (go, gone) = mpsc::channel::<()>();
    let once = move || {
        gone.recv().unwrap();
        let mut scraper = TcpStream::connect(address).unwrap();
        scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let began = Instant::now();
        drop(inside);
        say.send((began.elapsed(), scraper)).unwrap();
    };
    engine.spawn(0, Box::new(Once(Some(once)))).unwrap();
    drop(engine);
    go.send(()).unwrap();
    let (took, _scraper) = said.recv_timeout(2 * PATIENCE).expect("it returns");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn the_last_handle_may_be_dropped_within_a_shard() {
    let engine = engine(2);
    let (say, said) = mpsc::channel();
    let inside = engine.clone();
    let (go, gone) = mpsc::channel::<()>();
    let once = move || {
        // The other handle is gone: this is the last.
        gone.recv().unwrap();
        drop(inside);
        say.send(()).unwrap();
    };
    engine.spawn(0, Box::new(Once(Some(once)))).unwrap();
    drop(engine);
    go.send(()).unwrap();
    said.recv_timeout(PATIENCE)
        .expect("the drop waits for its own shard");
}

/// Stays, and any thread that turns its shard may run it.
struct Idle;

impl Task for Idle {
    fn roams(&self) -> bool {
        true
    }

    fn handle(&mut self, _: TaskEvent, _: &mut TaskContext<'_>) {}
}

/// In the child: 0, or the number of what was not refused.
fn look_after_fork(
    engine: Engine,
    held: Tensor,
    idle: &TaskWaker,
    ends: [TaskEnd; 2],
    begun: (Recv, SendAsync),
) -> i32 {
    let step = engine.step(STEP);
    let (waiting, sending) = begun;
    let [end, polled] = ends;
    let never = WaitCell::<()>::default();
    let is_refused = |status: Option<Status>| {
        status.is_some_and(|status| status.reason() == catalogue::ENGINE_FORKED)
    };
    let waker = engine.spawn(0, Box::new(Once(Some(|| {}))));
    let looks = [
        is_refused(step.send(&key("x"), Tensor::scalar(1_u8)).err()),
        is_refused(step.recv(&key("x")).wait().err()),
        is_refused(step.recv(&key("x")).start().err()),
        is_refused(
            step.send_async(&key("x"), Tensor::scalar(1_u8))
                .wait()
                .err()
                .map(Into::into),
        ),
        is_refused(step.deadline(PATIENCE).err()),
        is_refused(engine.tensor(DType::U8, &[8]).err()),
        is_refused(waker.err()),
        is_refused(engine.try_pending().err()),
        is_refused(engine.call(engine.task(), 1, &[], PATIENCE).err()),
        is_refused(Engine::start(Config::new("/job:b/task:0")).err()),
        engine.connected().is_empty(),
        is_refused(end.wait(PATIENCE / 400).and_then(Result::err)),
        is_refused(polled_once(polled).and_then(Result::err)),
        is_refused(polled_once(waiting).and_then(Result::err)),
        is_refused(polled_once(sending).and_then(Result::err).map(Into::into)),
        is_refused(engine.offer("x", |_, _| Ok(Vec::new())).err()),
        engine.wait_for(0, &never, None).is_none(),
        engine.wake_and_wait(0, idle, &never, None).is_none(),
        // What the parent made can be read.
        held.host().unwrap() == [7; 4096],
    ];
    step.abort(Status::new(Code::Aborted, "TEST", "in the child"));
    step.finish();
    engine.shutdown(PATIENCE);
    drop((step, held, engine));
    let wrong = looks.iter().position(|look| !look);
    wrong.map_or(0, |at| at as i32 + 1)
}

/// What a future gives at once.
fn polled_once<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    match Pin::new(&mut future).poll(&mut context) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

#[test]
fn a_child_of_fork_is_refused_and_leaves_its_parent_alone() {
    for (shards, driver) in [
        (1, Driver::Adaptive),
        (2, Driver::Adaptive),
        (1, Driver::Thread),
        (1, Driver::Caller),
    ] {
        let engine = engine_driven(shards, driver);
        let idle = engine.spawn(0, Box::new(Idle)).unwrap();
        let ends = [(); 2].map(|()| engine.task_ended(&idle));
        let step = engine.step(STEP);
        let waiting = step.recv(&key("later")).start().unwrap();
        let (sending, before) = sending(&engine);
        let mut builder = engine.tensor(DType::U8, &[4096]).unwrap();
        builder.bytes_mut().fill(7);
        let held = builder.finish();
        // SAFETY: the child calls nothing that waits for a lock which a thread of the parent may hold but the
        // allocator, which glibc makes safe to use there, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            end_child(|| look_after_fork(engine, held, &idle, ends, (waiting, sending)));
        }
        assert!(child > 0);
        assert_eq!(
            exit_of(child),
            Some(0),
            "the child hangs, or what was not refused"
        );
        // The parent's own send still waits for room, and gets it.
        for _ in 0..before {
            let full = step.recv(&key("full")).deadline(PATIENCE);
            full.wait().unwrap();
        }
        sending.wait().unwrap();
        // Its receive still waits, and gets its value.
        step.send(&key("later"), Tensor::scalar(3_u8)).unwrap();
        assert_eq!(
            waiting.wait().unwrap().tensor.as_slice::<u8>().unwrap(),
            [3]
        );
        assert_eq!(held.host().unwrap(), [7; 4096]);
        assert_works(&engine);
    }
}

/// A send that waits for room, and how many values take it.
fn sending(engine: &Engine) -> (SendAsync, usize) {
    let began = Instant::now();
    for count in 0.. {
        assert!(began.elapsed() < PATIENCE, "there is always room");
        let value = Tensor::from_vec(vec![1_u8; 1024], Shape::row(1024).unwrap());
        let mut sending = engine.step(STEP).send_async(&key("full"), value.unwrap());
        match polled_once(&mut sending) {
            None => return (sending, count),
            Some(sent) => sent.unwrap(),
        }
    }
    unreachable!("it is counted without an end");
}

/// In the child: 0, or the number of what was not refused.
fn look_at_agent(agent: Agent, options: Options, calls: [Pending<u32>; 3]) -> i32 {
    let is_refused = |error: Option<rendez_rpc::Error>| {
        error.is_some_and(|error| error.reason() == catalogue::ENGINE_FORKED)
    };
    let [waited, timed, polled] = calls;
    let looks = [
        is_refused(waited.wait().err()),
        is_refused(timed.wait_for(PATIENCE / 400).ok().and_then(Result::err)),
        is_refused(polled_once(polled).and_then(Result::err)),
        is_refused(agent.rpc_sync::<u32>("second", "one", ()).err()),
        is_refused(agent.rpc_async::<u32>("second", "one", ()).err()),
        is_refused(agent.remote::<u32>("second", "one", ()).err()),
        is_refused(agent.wait_until(&|_| false, None).err()),
        is_refused(agent.clone().shutdown(PATIENCE).err()),
        is_refused(Agent::init(agent.engine(), "third", options).err()),
    ];
    agent.clone().shutdown_local();
    drop(agent);
    let wrong = looks.iter().position(|look| !look);
    wrong.map_or(0, |at| at as i32 + 1)
}

/// What a group's place says of it: the file, or the log and the bell of a store.
fn written(place: &Path, store: &mut store::Client) -> [String; 3] {
    [
        std::fs::read(place).unwrap_or_default(),
        store
            .find("rendez-rpc/rpc/log")
            .unwrap()
            .unwrap_or_default(),
        store
            .find("rendez-rpc/rpc/bell")
            .unwrap()
            .unwrap_or_default(),
    ]
    .map(|bytes| String::from_utf8(bytes).unwrap())
}

#[test]
fn an_agent_in_a_child_of_fork_is_refused_and_its_group_hears_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("group");
    let server = store::Server::start("127.0.0.1:0").unwrap();
    let address = server.address().to_string();
    let mut store = store::Client::connect(&address, PATIENCE).unwrap();
    for options in [
        Options::through_store(&address, None),
        Options::through_file(&place, None),
    ] {
        let is_open = Arc::new(AtomicBool::new(false));
        let door = Arc::clone(&is_open);
        let held = move || {
            while !door.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
            1_u32
        };
        let functions = Functions::new().add("one", || 1_u32).add("held", held);
        let options = options.functions(functions);
        let [first, second] = ["first", "second"].map(|name| {
            let mut config = Config::new(format!("/job:forked_{name}/task:0"));
            (config.shards, config.share_cores) = (1, true);
            Agent::init(&Engine::start(config).unwrap(), name, options.clone()).unwrap()
        });
        let call = |function| loop {
            match first.rpc_async::<u32>("second", function, ()) {
                // It has joined, and the first has not heard yet.
                Err(error) if error.reason() == catalogue::RPC_WORKER => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                call => return call.unwrap(),
            }
        };
        let calls = [(); 3].map(|()| call("held"));
        let before = written(&place, &mut store);
        // SAFETY: as above.
        let child = unsafe { libc::fork() };
        if child == 0 {
            end_child(|| {
                drop(server);
                look_at_agent(first, options, calls)
            });
        }
        assert!(child > 0);
        assert_eq!(
            exit_of(child),
            Some(0),
            "the child hangs, or what was not refused"
        );
        assert_eq!(written(&place, &mut store), before);
        // The parent's calls go on, and others are made.
        is_open.store(true, Ordering::Release);
        for call in calls {
            assert_eq!(call.wait().unwrap(), 1);
        }
        assert_eq!(second.rpc_sync::<u32>("first", "one", ()).unwrap(), 1);
        for agent in [first, second] {
            let before = written(&place, &mut store);
            agent.shutdown(PATIENCE).unwrap();
            assert_ne!(written(&place, &mut store), before, "it has not left");
        }
    }
}

/// A session with a graph, which gives four.
fn with_graph(session: Session) -> Session {
    let mut graph = Builder::new(Operations::standard().ops());
    let two = graph.constant("two", floats(&[], &[2.0])).unwrap();
    let four = graph.node("Mul").name("four").input(two).input(two);
    four.build().unwrap();
    session.create(graph.finish().unwrap().to_def()).unwrap();
    session
}

/// In the child: 0, or the number of what was not refused.
fn look_at_session(session: Session, callable: Callable, partial: PartialRun) -> i32 {
    let is_refused = |status: Option<Status>| {
        status.is_some_and(|status| status.reason() == catalogue::ENGINE_FORKED)
    };
    let looks = [
        is_refused(session.run(&[], &["four"], &[]).err()),
        is_refused(callable.run(&[]).err()),
        is_refused(partial.run(&[], &["four"]).err()),
        is_refused(session.callable(&[], &["four"], &[]).err()),
        is_refused(session.partial_run(&[], &["four"], &[]).err()),
        is_refused(session.extend(GraphDef::default()).err()),
        is_refused(session.devices().err()),
        is_refused(session.reset(&[]).err()),
        is_refused(session.close().err()),
    ];
    drop((callable, partial, session));
    let wrong = looks.iter().position(|look| !look);
    wrong.map_or(0, |at| at as i32 + 1)
}

#[test]
fn a_session_in_a_child_of_fork_is_refused_and_goes_on_in_its_parent() {
    let config = |task: &str| {
        let mut config = Config::new(task);
        (config.shards, config.share_cores) = (1, true);
        config
    };
    let [port] = free_ports();
    let mut cluster = ClusterSpec::new();
    let address = HostPort::new("127.0.0.1", port).unwrap();
    cluster.add_job("forked_server", [(0, address)]).unwrap();
    let task = TaskName::new("forked_server", 0, 0).unwrap();
    let builder = Server::builder().config(config("/job:forked_server/task:0"));
    let server = builder.cluster(cluster).task(task).build().unwrap();
    server.start().unwrap();
    let sessions = [
        Session::local_with(config("/job:forked_session/task:0")),
        Session::on(&server),
        Session::connect_with(&server.target().unwrap(), config("/job:x/task:0")),
    ];
    for session in sessions {
        let session = with_graph(session.unwrap());
        let callable = session.callable(&[], &["four"], &[]).unwrap();
        let partial = session.partial_run(&[], &["four"], &[]).unwrap();
        // SAFETY: as above.
        let child = unsafe { libc::fork() };
        if child == 0 {
            end_child(|| {
                let code = look_at_session(session, callable, partial);
                server.stop(None);
                drop(server);
                code
            });
        }
        assert!(child > 0);
        assert_eq!(
            exit_of(child),
            Some(0),
            "the child hangs, or what was not refused"
        );
        let four = [
            session.run(&[], &["four"], &[]).unwrap(),
            callable.run(&[]).unwrap(),
            partial.run(&[], &["four"]).unwrap(),
        ];
        assert!(
            four.iter()
                .all(|four| four[0].as_slice::<f32>().unwrap() == [4.0])
        );
        drop((callable, partial));
        session.close().unwrap();
    }
    server.stop(None);
}

/// Ends the child with what `look` says, and not as a test that panicked.
fn end_child(look: impl FnOnce() -> i32) -> ! {
    let code = catch_unwind(AssertUnwindSafe(look)).unwrap_or(-1);
    // SAFETY: it takes a number and does not return.
    unsafe { libc::_exit(code) }
}

/// A child closes what its parent listens at: while it lives on, no dial waits for it, and the address is free when the
/// parent's engine has ended.
#[test]
fn a_child_of_fork_leaves_its_parents_addresses_alone() {
    let name = format!("unix:@rendez-misuse-{}", std::process::id());
    for (at, is_tcp) in [(name.as_str(), false), ("127.77.0.1:0", true)] {
        let start = |at: &Address| {
            let mut config = Config::new("/job:named/task:0");
            (config.shards, config.share_cores) = (1, true);
            config.arena.segment_bytes = 1 << 20;
            config.listen = Some(at.clone());
            Engine::start(config)
        };
        let parent = start(&at.parse().unwrap()).unwrap();
        let at = match is_tcp {
            true => parent.tcp_address().unwrap().clone(),
            false => parent.address().unwrap().clone(),
        };
        // SAFETY: the child only sleeps until it is killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: it takes nothing.
                unsafe { libc::pause() };
            }
        }
        assert!(child > 0);
        let child = Killed(child);
        at.reach(PATIENCE).expect("the parent listens");
        parent.shutdown(PATIENCE);
        drop(parent);
        // Children, those of other tests too, close it when they begin: that may take a moment.
        let until = Instant::now() + PATIENCE;
        let is_refused = loop {
            match at.reach(PATIENCE) {
                Ok(()) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                reached => break reached.is_err(),
            }
        };
        let second = start(&at);
        drop(child);
        assert!(is_refused, "{at}: a dial waits for the child");
        assert!(second.is_ok(), "{at}: {second:?}");
    }
}

/// A child that is killed when the test has ended, however it ends.
struct Killed(libc::pid_t);

impl Drop for Killed {
    fn drop(&mut self) {
        // SAFETY: the child is ours and not waited for yet, so the number is its.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        let _ = exit_of(self.0);
    }
}

/// The child's exit status, or nothing if it had to be killed.
fn exit_of(child: libc::pid_t) -> Option<i32> {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut status = 0;
        // SAFETY: `status` is a local that outlives the call.
        let ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        if ended == child {
            return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        }
        if Instant::now() > until {
            // SAFETY: the child is ours and not waited for yet, so the number is still its.
            unsafe { libc::kill(child, libc::SIGKILL) };
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn truth_values_are_zero_or_one() {
    let meta = |dims: &[u64]| TensorMeta::new(DType::Bool, Shape::new(dims).unwrap()).unwrap();
    let mut many = vec![1_u8; 1000];
    assert!(Tensor::from_bytes(meta(&[1000]), many.clone().into()).is_ok());
    many[777] = 255;
    let outcomes = [
        Tensor::from_bytes(meta(&[1000]), many.clone().into()),
        Tensor::from_vec(many, Shape::row(1000).unwrap())
            .unwrap()
            .recast(meta(&[1000])),
    ];
    for outcome in outcomes {
        let is_told = matches!(outcome, Err(TensorError::Bool { byte: 255, at: 777 }));
        assert!(is_told, "{outcome:?}");
    }
    let small = Tensor::from_inline(meta(&[2]), &[0, 2]);
    assert!(
        matches!(small, Err(TensorError::Bool { byte: 2, at: 1 })),
        "{small:?}"
    );
    // What is written in place is made what it means.
    let engine = engine(1);
    for len in [4_u64, 4096] {
        let mut builder = engine.tensor(DType::Bool, &[len]).unwrap();
        builder.bytes_mut().fill(255);
        builder.bytes_mut()[0] = 0;
        let tensor = builder.finish();
        assert!(
            tensor.host().unwrap()[0] == 0
                && tensor.host().unwrap()[1..].iter().all(|byte| *byte == 1)
        );
        assert!(tensor.as_slice::<Bool8>().unwrap()[1].is_true());
    }
    assert_eq!(Tensor::scalar(Bool8::from(true)).host().unwrap(), [1]);
    assert_eq!(
        (Bool8::TRUE.is_true(), Bool8::FALSE.is_true()),
        (true, false)
    );
}
