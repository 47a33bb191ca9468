//! Parts that wait for a line of their own, and steps that are stopped meanwhile.

use super::*;
use crate::graph::{Builder, ints};
use crate::operations::Operations;
use crate::server::runner::Outcome;
use crate::server::solo::{Prepared, Run, Site, SoloSession};
use crate::server::testing::two_engines;
use crate::server::wait::Waiter;
use rendez::ground::limits::ERRANDS_OF_SESSIONS_MAX;
use rendez::memory::Tensor;
use rendez_proto::tensorflow::DataType;
use rendez_proto::tensorflow::TensorShapeProto;

const PATIENCE: Duration = Duration::from_secs(20);

/// A master at `a`, whose other worker is `b`.
struct World {
    engines: [Engine; 2],
    sites: [Site; 2],
    session: SoloSession,
}

impl World {
    fn new() -> Self {
        let engines = two_engines();
        let sites = engines.each_ref().map(|engine| Site::new(engine).unwrap());
        let others = [(&sites[1], StepId(1))];
        let session = sites[0].begin("s", graph(), &others).unwrap();
        Self {
            engines,
            sites,
            session,
        }
    }

    fn prepare(&self, feeds: &[&str], fetch: &str) -> Prepared {
        let [a, b] = &self.sites;
        self.session.prepare(feeds, &[fetch], &[a, b]).unwrap()
    }

    fn there(&self) -> Arc<There> {
        let there = self.session.session.links().find_map(|link| match link {
            Link::There(there) => Some(Arc::clone(there)),
            Link::Here(..) => None,
        });
        there.expect("another worker")
    }

    /// Runs a step to its end, and gives what it fetched.
    fn run(&self, prepared: &Prepared, id: u64) -> Result<Vec<i32>, Status> {
        let (_, told) = self.start(prepared, id);
        let outcome = told.wait(Some(Instant::now() + PATIENCE));
        let values = outcome.expect("an end")?;
        Ok(values[0].as_slice::<i32>().unwrap().to_vec())
    }

    fn start(&self, prepared: &Prepared, id: u64) -> (Run, Told) {
        let (done, waiter) = Waiter::pair();
        let run = self.session.run(prepared, StepId(id), vec![], done);
        (run.unwrap(), waiter)
    }

    /// Has the worker speak over another line, which the master finds as soon as it looks for one. Until then it has
    /// the one that is lost.
    fn lose_line(&self) -> Arc<RpcStream> {
        let there = self.there();
        let former = there.line();
        self.session.reopen(&self.sites[1], StepId(2)).unwrap();
        let until = Instant::now() + PATIENCE;
        while former.lost_with().is_none() {
            assert!(Instant::now() < until, "the former line ends");
            std::thread::sleep(Duration::from_millis(1));
        }
        let line = there.line();
        there.goes_over(former);
        line
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let engines = self.engines.iter();
        engines.for_each(|engine| engine.shutdown(Duration::ZERO));
    }
}

/// The opening of another line, which goes on for as long as the test says.
fn reopening(there: &Arc<There>) -> Reopening {
    *there.waiting() = Some(vec![]);
    Reopening {
        there: Arc::clone(there),
        opened: Err(no_answer()),
    }
}

impl Reopening {
    fn over(mut self, line: Arc<RpcStream>) {
        self.there.goes_over(Arc::clone(&line));
        self.opened = Ok(line);
    }
}

type Told = Waiter<Result<Vec<Tensor>, Status>>;

/// A counter at `b`, which can be set to zero and added to; and `double`, made there of what `a` is fed.
fn graph() -> GraphDef {
    let mut graph = Builder::new(Operations::standard().ops());
    graph.on("/job:b");
    let counter = graph.node("VariableV2").name("counter");
    let counter = counter.attr("dtype", DataType::DtInt32);
    let counter = counter.attr("shape", TensorShapeProto::default());
    let counter = counter.build().unwrap();
    let [_, added] = [("Assign", "set", 0), ("AssignAdd", "add", 1)].map(|(op, name, value)| {
        let value = graph.constant(name, ints(&[], &[value])).unwrap();
        let node = graph.node(op).name(&format!("{name}_it"));
        node.input(counter).input(value).build().unwrap()
    });
    graph.on("/job:a");
    let x = graph.node("Placeholder").name("x");
    let x = x.attr("dtype", DataType::DtInt32).build().unwrap();
    graph.on("/job:b");
    let double = graph.node("AddV2").name("double").input(x).input(x);
    double.build().unwrap();
    graph.on("/job:a");
    let [one, zero] = [1, 0].map(|value| {
        let name = format!("number{value}");
        graph.constant(&name, ints(&[], &[value])).unwrap()
    });
    let broken = graph.named("Div", "broken", &[one, zero]);
    graph.named("AddV2", "both", &[broken, added]);
    graph.finish().unwrap().to_def()
}

#[test]
fn a_part_is_not_begun_if_its_step_was_cancelled_while_the_line_was_lost() {
    let world = World::new();
    let [set, add, read] = ["set_it", "add_it", "counter"].map(|fetch| world.prepare(&[], fetch));
    assert_eq!(world.run(&set, 10).unwrap(), [0]);
    let line = world.lose_line();
    let there = world.there();
    // What wants another line waits for this.
    let reopening = reopening(&there);
    let (run, told) = world.start(&add, 11);
    let why = Status::of(catalogue::STEP_CANCELLED, "enough");
    run.cancel(why.clone());
    reopening.over(line);
    let outcome = told.wait(Some(Instant::now() + PATIENCE));
    assert_eq!(outcome.expect("an end").unwrap_err(), why);
    assert_eq!(world.session.steps(), 0);
    assert_eq!(world.run(&read, 12).unwrap(), [0]);
}

#[test]
fn a_part_that_was_let_go_while_the_line_was_lost_goes_when_there_is_another() {
    let world = World::new();
    let read = world.prepare(&[], "counter");
    let mut parts = read.0.parts.iter();
    let part = parts.find(|part| !part.link.is_here()).unwrap();
    let line = world.lose_line();
    part.link.deregister(&part.graph);
    world.there().goes_over(line);
    let status = world.run(&read, 10).unwrap_err();
    assert_eq!(status.reason(), catalogue::WORKER_GRAPH_UNKNOWN, "{status}");
}

#[test]
fn a_part_that_is_begun_late_hears_a_cancel_that_went_before_it() {
    let world = World::new();
    let double = world.prepare(&["x"], "double");
    let line = world.lose_line();
    let there = world.there();
    let link = Link::There(Arc::clone(&there));
    let mut parts = double.0.parts.iter();
    let part = parts.find(|part| !part.link.is_here()).unwrap();
    let reopening = reopening(&there);
    let (tell, waiter) = Waiter::pair();
    let (looks, why) = (
        Mutex::new(0),
        Status::of(catalogue::STEP_CANCELLED, "enough"),
    );
    let stopping = {
        let why = why.clone();
        // It is stopped between the two looks.
        move || {
            let mut looks = looks.lock().unwrap();
            *looks += 1;
            (*looks > 1).then(|| why.clone())
        }
    };
    let done = Box::new(move |outcome: Outcome| tell(outcome.map(drop)));
    link.run(&part.graph, (StepId(20), None), vec![], stopping, done);
    reopening.over(line);
    // Nothing is ever sent to it.
    let outcome = waiter.wait(Some(Instant::now() + PATIENCE));
    let status = outcome.expect("an end").unwrap_err();
    assert_eq!(status.reason(), why.reason(), "{status}");
}

#[test]
fn a_step_that_is_cancelled_waits_for_no_part_that_does_not_answer() {
    let world = World::new();
    let add = world.prepare(&[], "add_it");
    let line = world.lose_line();
    let there = world.there();
    // The part waits for this, as one does whose worker is stopped.
    let reopening = reopening(&there);
    let (run, told) = world.start(&add, 31);
    let why = Status::of(catalogue::STEP_CANCELLED, "enough");
    run.cancel(why.clone());
    let outcome = told.wait(Some(Instant::now() + PATIENCE));
    assert_eq!(outcome.expect("an end").unwrap_err(), why);
    assert_eq!(world.session.steps(), 0);
    reopening.over(line);
}

#[test]
fn a_cancel_does_not_hide_why_a_step_has_failed() {
    let world = World::new();
    let both = world.prepare(&[], "both");
    let line = world.lose_line();
    let there = world.there();
    // The other part does not answer yet.
    let reopening = reopening(&there);
    let (run, told) = world.start(&both, 35);
    let until = Instant::now() + PATIENCE;
    while !run.0.is_stopping() {
        assert!(Instant::now() < until, "a part fails");
        std::thread::sleep(Duration::from_millis(1));
    }
    run.cancel(Status::of(catalogue::STEP_CANCELLED, "enough"));
    let outcome = told.wait(Some(Instant::now() + PATIENCE));
    let status = outcome.expect("an end").unwrap_err();
    assert!(status.message().contains("division by zero"), "{status}");
    reopening.over(line);
}

#[test]
fn steps_that_wait_for_another_line_keep_no_room_from_others() {
    let world = World::new();
    let [set, add] = ["set_it", "add_it"].map(|fetch| world.prepare(&[], fetch));
    world.run(&set, 39).unwrap();
    let line = world.lose_line();
    let there = world.there();
    let reopening = reopening(&there);
    let many = ERRANDS_OF_SESSIONS_MAX as u64 + 1;
    let steps: Vec<_> = (0..many).map(|id| world.start(&add, 40 + id)).collect();
    assert_eq!(world.session.steps(), steps.len());
    let places = (0..ERRANDS_OF_SESSIONS_MAX).map(|_| world.sites[0].errands.place());
    let places: Result<Vec<_>, _> = places.collect();
    assert!(places.is_ok(), "they hold errands");
    // When there is one, all go on.
    reopening.over(line);
    for (_, told) in steps {
        let outcome = told.wait(Some(Instant::now() + PATIENCE));
        outcome.expect("an end").unwrap();
    }
}
