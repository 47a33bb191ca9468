//! A worker's sessions, with parts that end when a test says so.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::*;
use crate::graph::{Builder, Graph};
use crate::kernel::kept::KeptKernels;
use crate::kernel::{Call, Kernel, Value};
use crate::operations::Operations;
use crate::server::rpc_stream::ServerEnd;
use crate::server::runner::{Done, Outcome, Part, Running};
use crate::server::testing;
use crate::server::wait::Waiter;
use rendez::ground::{Code, FrameIter, Key, StepId};
use rendez::memory::Tensor;
use rendez_proto::tensorflow::{DataType, GraphDef, TensorShapeProto};

/// Prepares parts that hold what they are told.
#[derive(Debug, Default)]
struct Hands {
    held: Arc<Mutex<Held>>,
}

/// What happens while a part is being started.
type Meanwhile = Box<dyn FnOnce() + Send>;
/// And while a part is being prepared.
type Preparing = Box<dyn FnOnce(&Graph, &KeptKernels) + Send>;

/// What the parts were told, in order, and their waiters.
#[derive(Default)]
struct Held {
    meanwhile: Option<Meanwhile>,
    preparing: Option<Preparing>,
    /// Parts do not end when they are told to.
    is_deaf: bool,
    waiting: BTreeMap<StepId, Done>,
    cancelled: Vec<(StepId, Status)>,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.waiting.keys()).finish()
    }
}

impl Runner for Hands {
    fn prepare(&self, graph: &Graph, _: &str, kept: &KeptKernels) -> Result<Arc<dyn Part>, Status> {
        let preparing = self.held.lock().unwrap().preparing.take();
        if let Some(preparing) = preparing {
            preparing(graph, kept);
        }
        Ok(Arc::new(Hand(Arc::clone(&self.held))))
    }
}

#[derive(Debug)]
struct Hand(Arc<Mutex<Held>>);

impl Part for Hand {
    fn run(&self, step: StepId, _: Vec<Value>, done: Done) -> Box<dyn Running> {
        let mut held = self.0.lock().unwrap();
        held.waiting.insert(step, done);
        let meanwhile = held.meanwhile.take();
        drop(held);
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        Box::new(Held1(Arc::clone(&self.0), step))
    }
}

struct Held1(Arc<Mutex<Held>>, StepId);

impl Running for Held1 {
    fn cancel(&self, status: Status) {
        let mut held = self.0.lock().unwrap();
        held.cancelled.push((self.1, status.clone()));
        if held.is_deaf {
            return;
        }
        let done = held.waiting.remove(&self.1);
        drop(held);
        if let Some(done) = done {
            done(Err(status));
        }
    }
}

struct World {
    engine: Engine,
    worker: Arc<Worker>,
    held: Arc<Mutex<Held>>,
}

impl World {
    fn new() -> Self {
        let engine = testing::engine("/job:w/task:3");
        let held: Arc<Mutex<Held>> = Arc::default();
        let of_runner = Arc::clone(&held);
        let make_runner = Box::new(move |_| {
            let held = Arc::clone(&of_runner);
            Ok(Arc::new(Hands { held }) as Arc<dyn Runner>)
        });
        let no_room = || Home::new(|_| Err(Status::of(catalogue::ARENA_FULL, "no room")));
        let worker = Worker::new(
            &engine,
            Operations::standard().shared_ops(),
            Box::new(no_room),
            make_runner,
        )
        .unwrap();
        Self {
            engine,
            worker,
            held,
        }
    }

    fn session(&self, handle: &str, incarnation: u64) -> Arc<WorkerSession> {
        let master = MasterLife {
            task: "/job:m/replica:0/task:0".into(),
            incarnation: Incarnation(incarnation),
        };
        self.worker.create_session(handle, master, false).unwrap()
    }

    fn line(&self, session: &Arc<WorkerSession>, id: u64) -> Arc<ServerEnd> {
        let service: Weak<WorkerSession> = Arc::downgrade(session);
        let master = TaskName::parse(&session.master().task).unwrap();
        let caller = (&master, session.master().incarnation);
        ServerEnd::open(&self.engine, StepId(id), caller, service).unwrap()
    }

    fn run(&self, session: &Arc<WorkerSession>, graph: &str, step: u64) -> Waiter<Outcome> {
        let (tell, waiter) = Waiter::pair();
        session.run(graph, (StepId(step), None), vec![], Box::new(tell));
        waiter
    }

    /// Lets a part end well.
    fn end(&self, step: u64) {
        let done = self.held.lock().unwrap().waiting.remove(&StepId(step));
        done.expect("it runs")(Ok(vec![]));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.worker.end();
        self.engine.shutdown(Duration::ZERO);
    }
}

fn told(waiter: &Waiter<Outcome>) -> Option<Result<usize, Status>> {
    let outcome = waiter.wait(Some(Instant::now()));
    outcome.map(|outcome| outcome.map(|values| values.len()))
}

#[test]
fn what_a_worker_has_not_is_told_in_the_originals_words() {
    let world = World::new();
    let master = MasterLife {
        task: String::new(),
        incarnation: Incarnation(1),
    };
    let empty = world
        .worker
        .create_session("", master.clone(), false)
        .unwrap_err();
    assert_eq!(
        (empty.code(), empty.message()),
        (Code::InvalidArgument, "Session must be non-empty.")
    );
    let unknown = world.worker.session("abc").unwrap_err();
    assert_eq!(unknown.code(), Code::Aborted);
    assert_eq!(
        unknown.message(),
        "Session handle is not found: abc. Possibly this worker (\"/job:w/replica:0/task:3\") just restarted."
    );
    world.worker.delete_session("abc");
    let session = world.session("abc", 1);
    assert_eq!(
        world
            .worker
            .create_session("abc", master, false)
            .unwrap_err()
            .reason(),
        catalogue::SESSION_HANDLE
    );
    let status = told(&world.run(&session, "17", 1)).unwrap().unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Aborted, "Graph handle is not found: 17")
    );
    assert_eq!(
        session.deregister("17").unwrap_err().reason(),
        catalogue::WORKER_GRAPH_UNKNOWN
    );
    assert_eq!(world.worker.load(), (1, 0));
}

#[test]
fn a_step_is_known_until_it_is_cleaned_up_and_runs_a_part_once() {
    let world = World::new();
    let session = world.session("s", 1);
    let graph = session.register(GraphDef::default()).unwrap();
    let first = world.run(&session, &graph, 1 << 40);
    let again = told(&world.run(&session, &graph, 1 << 40))
        .unwrap()
        .unwrap_err();
    assert!(
        again
            .message()
            .starts_with("The same RunGraph request was received twice."),
        "{again}"
    );
    // Another step, though a number of 32 bits could not tell.
    let other = world.run(&session, &graph, 1 << 41);
    assert_eq!((told(&first), told(&other)), (None, None));
    world.end(1 << 40);
    assert_eq!(told(&first), Some(Ok(0)));
    assert_eq!(world.worker.load(), (1, 2));
    let late = told(&world.run(&session, &graph, 1 << 40))
        .unwrap()
        .unwrap_err();
    assert_eq!(late.reason(), catalogue::STEP_DUPLICATE);
    session.cleanup(StepId(1 << 40));
    assert_eq!(world.worker.load(), (1, 1));
    // A clean-up that comes too early ends what runs.
    session.cleanup(StepId(1 << 41));
    assert_eq!(
        told(&other).unwrap().unwrap_err().reason(),
        catalogue::STEP_FINISHED
    );
    assert_eq!(world.worker.load(), (1, 0));
    session.cleanup(StepId(9));
}

#[test]
fn a_cancelled_step_ends_with_what_it_was_told() {
    let world = World::new();
    let session = world.session("s", 1);
    let graph = session.register(GraphDef::default()).unwrap();
    let run = world.run(&session, &graph, 5);
    let why = Status::of(catalogue::STEP_CANCELLED, "enough");
    session.cancel(StepId(5), &why);
    session.cancel(
        StepId(5),
        &Status::of(catalogue::STEP_CANCELLED, "too late"),
    );
    session.cancel(StepId(6), &why);
    assert_eq!(told(&run), Some(Err(why.clone())));
    assert_eq!(world.held.lock().unwrap().cancelled, [(StepId(5), why)]);
}

#[test]
fn a_part_whose_step_ends_while_it_is_started_is_cancelled() {
    let world = World::new();
    let session = world.session("s", 1);
    let graph = session.register(GraphDef::default()).unwrap();
    let ends: [fn(&WorkerSession, Arc<ServerEnd>); 3] = [
        |session, _| session.cleanup(StepId(1)),
        |session, line| session.hear(line).unwrap(),
        |session, _| session.end(),
    ];
    for (step, end) in (1..).zip(ends) {
        let (of_end, line) = (Arc::clone(&session), world.line(&session, 70 + step));
        let meanwhile = Box::new(move || end(&of_end, line));
        world.held.lock().unwrap().meanwhile = Some(meanwhile);
        let run = world.run(&session, &graph, step);
        told(&run).expect("it is cancelled").unwrap_err();
        assert_eq!(world.worker.load(), (1, 0));
    }
}

#[test]
fn nothing_is_run_for_a_line_that_is_not_heard_any_more() {
    let world = World::new();
    let session = world.session("s", 1);
    let graph = session.register(GraphDef::default()).unwrap();
    session.hear(world.line(&session, 70)).unwrap();
    let (tell, waiter) = Waiter::pair();
    let (line, step) = (Some(StepId(71)), (StepId(1), None));
    session.run_over(line, &graph, step, vec![], Box::new(tell));
    let status = told(&waiter).unwrap().unwrap_err();
    assert_eq!(status.reason(), catalogue::LINE_CLOSED, "{status}");
    assert_eq!(world.worker.load(), (1, 0));
}

#[test]
fn a_master_that_restarts_loses_its_sessions_and_no_other_does() {
    let world = World::new();
    let (old, also) = (world.session("old", 1), world.session("also", 1));
    let foreign = MasterLife {
        task: "/job:other/replica:0/task:0".into(),
        incarnation: Incarnation(1),
    };
    world
        .worker
        .create_session("foreign", foreign, false)
        .unwrap();
    let graph = old.register(GraphDef::default()).unwrap();
    let run = world.run(&old, &graph, 1);
    world.session("new", 2);
    let status = told(&run).unwrap().unwrap_err();
    assert!(status.is_derived(), "{status}");
    for gone in ["old", "also"] {
        assert_eq!(
            world.worker.session(gone).unwrap_err().reason(),
            catalogue::WORKER_SESSION_UNKNOWN
        );
    }
    assert!(world.worker.session("foreign").is_ok() && world.worker.session("new").is_ok());
    // A holder of the session can do nothing with it.
    let late = told(&world.run(&also, &graph, 2)).unwrap().unwrap_err();
    assert_eq!(late.reason(), catalogue::WORKER_SESSION_UNKNOWN);
    assert!(old.register(GraphDef::default()).is_err());
    assert_eq!(world.worker.load(), (2, 0));
}

#[test]
fn a_master_that_was_lost_and_comes_back_is_told_why_its_session_is_over() {
    let world = World::new();
    let why = Status::of(
        catalogue::PEER_LOST,
        "nothing was answered by /job:m/replica:0/task:0 for 187.5ms",
    );
    let unknown = |handle: &str| {
        let status = world.worker.session(handle).unwrap_err();
        assert_eq!(status.reason(), catalogue::WORKER_SESSION_UNKNOWN);
        status.message().to_owned()
    };
    for count in 0..=LOST_MAX {
        let handle = format!("s{count}");
        world.session(&handle, 1);
        world.worker.lose_session(&handle, &why);
    }
    for count in 1..=LOST_MAX {
        let message = unknown(&format!("s{count}"));
        assert!(
            message.contains("/job:m/replica:0/task:0") && !message.contains("restarted"),
            "{message}"
        );
    }
    // The oldest is forgotten, and what was never here was not lost.
    for handle in ["s0", "other"] {
        let message = unknown(handle);
        assert!(message.contains("just restarted"), "{message}");
    }
}

#[test]
fn a_session_whose_line_is_lost_before_it_is_heard_is_over() {
    let world = World::new();
    let session = world.session("s", 1);
    let why = Status::of(catalogue::LINE_CLOSED, "its caller gave it up");
    let lost = |line| {
        world.engine.step(StepId(line)).abort(why.clone());
        let served = world.line(&session, line);
        let until = Instant::now() + Duration::from_secs(20);
        while served.lost_with().is_none() {
            assert!(Instant::now() < until, "the line is lost");
            std::thread::sleep(Duration::from_millis(1));
        }
        served
    };
    // One that comes late takes no other's place.
    session.hear(world.line(&session, 70)).unwrap();
    let late = session.hear(lost(71)).unwrap_err();
    assert_eq!(late.reason(), why.reason(), "{late}");
    assert!(session.hears(StepId(70)));
    let other = world.session("other", 1);
    let status = other.hear(lost(72)).unwrap_err();
    assert_eq!(status.reason(), why.reason(), "{status}");
    assert_eq!(world.worker.load(), (1, 0));
    assert!(world.worker.session("other").is_err());
}

/// A kernel that is there.
#[derive(Debug)]
struct Token(#[expect(dead_code, reason = "it is only held")] Arc<()>);

impl Kernel for Token {
    fn compute(&self, _: &mut Call<'_>) -> Result<(), Status> {
        Ok(())
    }
}

#[test]
fn a_part_that_is_prepared_while_its_session_ends_leaves_nothing() {
    let world = World::new();
    let session = world.session("s", 1);
    let mut graph = Builder::new(Operations::standard().ops());
    let handle = graph.node("VarHandleOp").name("v");
    let handle = handle.attr("dtype", DataType::DtFloat);
    let handle = handle.attr("shape", TensorShapeProto::default());
    handle.build().unwrap();
    let part = graph.finish().unwrap().to_def();
    let (alive, of_end) = (Arc::new(()), Arc::clone(&session));
    let token = Arc::clone(&alive);
    let preparing = move |graph: &Graph, kept: &KeptKernels| {
        of_end.end();
        let (_, node) = graph.nodes().next().unwrap();
        let made = kept.find_or_make(node, |_| Ok(Box::new(Token(token))));
        made.unwrap();
    };
    let parts = || Arc::strong_count(&world.held);
    let before = parts();
    world.held.lock().unwrap().preparing = Some(Box::new(preparing));
    let status = session.register(part).unwrap_err();
    assert_eq!(status.reason(), catalogue::WORKER_SESSION_UNKNOWN);
    assert_eq!(parts(), before, "the part is gone");
    assert_eq!(Arc::strong_count(&alive), 1, "its kernel is gone");
}

#[test]
fn a_part_that_ends_after_its_session_leaves_nothing() {
    let world = World::new();
    let session = world.session("s", 1);
    let graph = session.register(GraphDef::default()).unwrap();
    world.held.lock().unwrap().is_deaf = true;
    let run = world.run(&session, &graph, 5);
    session.end();
    assert_eq!(told(&run), None, "it is deaf");
    // It goes on: what it sends and waits for now is refused, before it ends and after that.
    let device = DeviceName::cpu(world.engine.task());
    let life = world.engine.incarnation();
    let key = Key::new(&device, life, &device, "late", FrameIter::default()).unwrap();
    let is_refused = || {
        let step = world.engine.step(StepId(5));
        step.send(&key, Tensor::scalar(1f32)).unwrap_err();
        step.recv(&key).wait().unwrap_err();
        assert!(world.engine.pending().is_empty());
    };
    is_refused();
    world.end(5);
    told(&run).expect("it ended").unwrap();
    is_refused();
    // So it is when its master's word comes late.
    session.cleanup(StepId(5));
    session.deregister(&graph).unwrap_err();
    is_refused();
    assert_eq!(world.worker.load(), (1, 0));
}
