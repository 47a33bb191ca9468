//! Partial runs whose parts end before they were begun, and pieces that come when a run is over.

use std::time::Duration;

use super::*;
use crate::graph::{Builder, Counted};
use crate::kernel::kept::KeptKernels;
use crate::kernel::{Home, Value};
use crate::operations::Operations;
use crate::server::errands::Errands;
use crate::server::master::{Master, StepSignature};
use crate::server::runner::{Done, Part, Runner, Running};
use crate::server::testing;
use crate::server::wait::Waiter;
use crate::server::worker::Worker;
use rendez::cluster::ClusterSpec;
use rendez_proto::tensorflow::{ConfigProto, DataType};

/// Runs nothing: each part ends at once, well or not.
#[derive(Clone, Debug)]
struct Hasty {
    fails: bool,
}

impl Runner for Hasty {
    fn prepare(&self, _: &Graph, _: &str, _: &KeptKernels) -> Result<Arc<dyn Part>, Status> {
        Ok(Arc::new(self.clone()))
    }
}

impl Part for Hasty {
    fn run(&self, _: StepId, _: Vec<Value>, done: Done) -> Box<dyn Running> {
        done(if self.fails {
            Err(Status::of(catalogue::FEED_UNFIT, "at once"))
        } else {
            Ok(vec![])
        });
        Box::new(self.clone())
    }
}

impl Running for Hasty {
    fn cancel(&self, _: Status) {}
}

const STEP: StepId = StepId(7);

/// A task whose parts end at once, with a session whose graph has `y` and `z` of `x`; and a run that is set up.
struct Scene {
    engine: Engine,
    worker: Arc<Worker>,
    master: Arc<Master>,
    session: Arc<MasterSession>,
    handle: String,
}

impl Scene {
    fn new(fails: bool) -> Self {
        let engine = testing::engine("/job:w/task:0");
        let (errands, operations) = (Arc::new(Errands::default()), Operations::standard());
        let ops = operations.shared_ops();
        let worker = Worker::new(
            &engine,
            Arc::clone(&ops),
            Box::new(|| Home::new(|_| Err(Status::of(catalogue::ARENA_FULL, "no room")))),
            Box::new(move |_| Ok(Arc::new(Hasty { fails }))),
        );
        let worker = worker.unwrap();
        let mut graph = Builder::new(operations.ops());
        let x = graph.node("Placeholder").name("x");
        let x = x.attr("dtype", DataType::DtFloat).build().unwrap();
        for name in ["y", "z"] {
            graph.named("Neg", name, &[x]);
        }
        let graph = graph.finish().unwrap().to_def();

        let cluster = ClusterSpec::new();
        let master = Master::new(&engine, &worker, &errands, ops, cluster, Duration::ZERO).unwrap();
        let (session, _) = master
            .create_session(Counted::new(graph).unwrap(), ConfigProto::default(), [1, 1])
            .unwrap();
        let signature = StepSignature {
            feeds: vec!["x".into()],
            fetches: vec!["y".into(), "z".into()],
            is_partial: true,
            ..StepSignature::default()
        };
        let plan = session.plan(&signature).unwrap();
        let runs = &session.partial_runs;
        let handle = runs.begin(&session, &plan, STEP).unwrap();
        Self {
            engine,
            worker,
            master,
            session,
            handle,
        }
    }

    fn runs(&self) -> &PartialRuns {
        &self.session.partial_runs
    }

    fn found(&self) -> Arc<PartialRun> {
        self.runs().runs().get(&self.handle).cloned().unwrap()
    }

    /// A piece that had found its run, and goes on now.
    fn go_on(&self, run: &PartialRun, fetch: &str) -> Result<Vec<Tensor>, Status> {
        let fetches = [fetch.to_owned()];
        let (session, engine) = (&self.session, &self.engine);
        self.runs()
            .go_on(run, session, engine, vec![], &fetches, None)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.master.end(Duration::ZERO);
        self.worker.end();
        self.engine.shutdown(Duration::ZERO);
    }
}

#[test]
fn a_run_that_fails_while_it_is_begun_leaves_nothing_at_its_workers() {
    let scene = Scene::new(true);
    assert_eq!(scene.worker.load(), (1, 0));
    let (runs, session) = (scene.runs(), &scene.session);
    let ended = runs.run(session, &scene.engine, &scene.handle, vec![], &[], None);
    assert_eq!(ended.unwrap_err().message(), "at once");
    assert_eq!(scene.worker.load(), (1, 0));
}

#[test]
fn every_piece_of_a_run_that_has_failed_hears_why() {
    let scene = Scene::new(true);
    let run = scene.found();
    for fetch in ["y", "z"] {
        assert_eq!(scene.go_on(&run, fetch).unwrap_err().message(), "at once");
    }
    assert!(scene.runs().runs().is_empty());
}

#[test]
fn a_piece_that_finds_its_session_closed_hears_so() {
    let scene = Scene::new(false);
    let run = scene.found();
    scene.runs().clear();
    let status = scene.go_on(&run, "y").unwrap_err();
    assert_eq!(status.message(), "the session was closed");
}

#[test]
fn a_run_whose_plan_is_made_after_its_session_was_closed_leaves_nothing() {
    let scene = Scene::new(false);
    let plan = Arc::clone(&scene.found().plan);
    let why = Status::of(catalogue::STEP_CANCELLED, "enough");
    scene.session.close(&why);
    let runs = scene.runs();
    let late = runs.begin(&scene.session, &plan, StepId(8)).unwrap_err();
    assert_eq!(late.reason(), catalogue::SESSION_CLOSED, "{late}");
    assert!(runs.runs().is_empty());
    assert_eq!(scene.worker.load().1, 0);
    assert!(scene.engine.pending().is_empty());
}

#[test]
fn a_piece_gets_its_values_when_another_one_ends_the_run() {
    let scene = Scene::new(false);
    let run = scene.found();
    let (_, fetches) = run.plan.keys.as_ref().unwrap();
    for (key, value) in fetches.iter().zip([1.0_f32, 2.0]) {
        let step = scene.engine.step(STEP);
        step.send(key, Tensor::scalar(value)).unwrap();
    }
    let graph = scene.session.placed();
    let (fed, wanted) = (
        vec![("x".to_owned(), Tensor::scalar(0.0_f32))],
        ["y".into()],
    );
    let first = run.claim(&graph, fed, &wanted).unwrap();
    let last = scene.go_on(&run, "z").unwrap();
    assert_eq!(last[0].item::<f32>().unwrap(), 2.0);
    let got = first.carry_out(&scene.engine, STEP, None).unwrap();
    assert_eq!(got[0].item::<f32>().unwrap(), 1.0);
    run.leave();
    // What was fed is still there: none of these parts takes it.
    assert!(
        scene.engine.pending().is_empty(),
        "{:?}",
        scene.engine.pending()
    );
    let late = scene.go_on(&run, "y").unwrap_err();
    assert_eq!(late.reason(), catalogue::PARTIAL_RUN_NONE);
}

#[test]
fn all_who_wait_for_the_executors_hear_what_they_ended_with_first() {
    let scene = Scene::new(false);
    let run = PartialRun {
        id: StepId(8),
        plan: Arc::clone(&scene.found().plan),
        step: OnceLock::new(),
        state: Mutex::default(),
    };
    let heard = [(); 3].map(|()| {
        let (tell, heard) = Waiter::<Result<(), Status>>::pair();
        (Box::new(tell) as Ended, heard)
    });
    let [(first, one), (second, two), (late, three)] = heard;
    run.await_executors(first);
    run.await_executors(second);
    run.executors_ended(Err(Status::of(catalogue::STEP_ABORTED, "an executor")));
    run.executors_ended(Ok(()));
    run.await_executors(late);
    for heard in [one, two, three] {
        let outcome = heard.wait(Some(Instant::now())).expect("it was told");
        assert_eq!(outcome.unwrap_err().message(), "an executor");
    }
}

#[test]
fn a_session_that_is_closed_says_so_though_a_worker_of_it_has_restarted() {
    let scene = Scene::new(false);
    let (session, cancelled) = (&scene.session, catalogue::STEP_CANCELLED);
    session.part_failed(&Status::of(catalogue::PEER_RESTARTED, "another life"));
    session.close(&Status::of(cancelled, "enough"));
    let (tell, waiter) = Waiter::pair();
    let signature = StepSignature::default();
    let waits = (scene.master).want_plan(session, &signature, Box::new(tell));
    assert!(waits.is_none());
    let late = waiter.wait(None).unwrap().unwrap_err();
    assert_eq!(late.reason(), catalogue::SESSION_CLOSED, "{late}");
}
