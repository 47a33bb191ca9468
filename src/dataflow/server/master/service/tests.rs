//! Clients whose plans wait for a worker that is stopped, and clients that find no room for a plan.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use prost::Message;

use super::super::StepSignature;
use super::super::link::{Link, ThenRun, There};
use super::super::solo::Site;
use super::*;
use crate::graph::{Builder, ints};
use crate::operations::Operations;
use crate::server::errands::ErrandPlace;
use crate::server::rpc_stream::{RpcStream, of_bytes};
use crate::server::testing::two_engines;
use crate::server::wait::Waiter;
use rendez::cluster::ClusterSpec;
use rendez::engine::Engine;
use rendez::ground::limits::{ERRANDS_OF_SESSIONS_MAX, LINE_TENSORS_MAX};
use rendez_proto::methods::worker_session::{RegisterGraph, RunGraph};
use rendez_proto::tensorflow::{
    CallableOptions, GraphDef, MakeCallableRequest, RegisterGraphResponse, RunGraphResponse,
};
use rendez_proto::tensorflow::{CloseSessionRequest, PartialRunSetupRequest};

const PATIENCE: Duration = Duration::from_secs(20);

/// A worker that takes what it is asked, and answers nothing.
#[derive(Debug, Default)]
struct Stopped(Mutex<Vec<Question>>);

impl Service for Stopped {
    fn asked(self: Arc<Self>, question: Question) {
        self.0.lock().unwrap().push(question);
    }

    fn lost(self: Arc<Self>, _: StepId, _: Status) {}
}

/// A master at `a` with a session whose other worker, `b`, is stopped; and a client at `b`.
struct Scene {
    engines: [Engine; 2],
    sites: [Site; 2],
    master: Arc<Master>,
    session: Arc<MasterSession>,
    stopped: Arc<Stopped>,
    client: Arc<RpcStream>,
    _served: Arc<ServerEnd>,
}

impl Scene {
    fn new() -> Self {
        let engines = two_engines();
        let [a, b] = &engines;
        let sites = [a, b].map(|engine| Site::new(engine).unwrap());
        let others = [(&sites[1], StepId(1))];
        let solo = sites[0].begin("s", graph(), &others).unwrap();
        let session = Arc::clone(&solo.session);

        let stopped = Arc::<Stopped>::default();
        let served = goes_to(&session, &engines, &stopped, StepId(2));

        let (ops, cluster) = (Operations::standard().shared_ops(), ClusterSpec::new());
        let (worker, errands) = (&sites[0].worker, &sites[0].errands);
        let master = Master::new(a, worker, errands, ops, cluster, PATIENCE).unwrap();
        let known = Arc::clone(&session);
        master.sessions.locked().insert("s".to_owned(), known);
        let client = RpcStream::open(b, StepId(3), a.task(), || {
            let caller = b.task().to_string();
            let asked = OpenLineRequest { line: 3 };
            let answer = open_line(&master, (&caller, b.incarnation()), &asked)?;
            Ok(Incarnation(answer.incarnation))
        });
        Self {
            client: client.unwrap(),
            _served: served,
            engines,
            sites,
            master,
            session,
            stopped,
        }
    }

    fn ask<M: Method>(&self, asked: &M::Request, tensors: Vec<Tensor>) -> Told
    where
        M::Answer: Send + 'static,
    {
        let (tell, waiter) = Waiter::pair();
        let done = move |answer: Result<_, Status>| tell(answer.map(drop));
        self.client.ask::<M>(asked, tensors, done);
        waiter
    }

    /// Waits until the worker that is stopped was asked so much.
    fn await_asked(&self, many: usize) {
        let asked = || self.stopped.0.lock().unwrap().len();
        until(
            || asked() >= many,
            || format!("{} of {many} asked", asked()),
        );
    }

    /// All the room for errands that there is, as far as it is free by and by.
    fn places(&self) -> Vec<ErrandPlace> {
        let mut places = vec![];
        until(
            || {
                places.extend(self.sites[0].errands.place().ok());
                places.len() == ERRANDS_OF_SESSIONS_MAX
            },
            || "errands hold their places".to_owned(),
        );
        places
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.master.end(Duration::ZERO);
        let engines = self.engines.iter();
        engines.for_each(|engine| engine.shutdown(Duration::ZERO));
    }
}

/// The session's other worker is one that is stopped, over a line of that number.
fn goes_to(
    session: &MasterSession,
    [a, b]: &[Engine; 2],
    stopped: &Arc<Stopped>,
    id: StepId,
) -> Arc<ServerEnd> {
    let service: Weak<Stopped> = Arc::downgrade(stopped);
    let mut served = None;
    let line = RpcStream::open(a, id, b.task(), || {
        let end = ServerEnd::open(b, id, (a.task(), a.incarnation()), service)?;
        served = Some(end);
        Ok(b.incarnation())
    });
    there(session).goes_over(line.unwrap());
    served.unwrap()
}

fn there(session: &MasterSession) -> Arc<There> {
    let there = session.links().find_map(|link| match link {
        Link::There(there) => Some(Arc::clone(there)),
        Link::Here(..) => None,
    });
    there.expect("another worker")
}

type Told = Waiter<Result<(), Status>>;

fn until(mut is_so: impl FnMut() -> bool, what: impl FnOnce() -> String) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > until {
            panic!("{}", what());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn heard(told: &Told) -> Result<(), Status> {
    told.wait(Some(Instant::now() + PATIENCE))
        .expect("an answer")
}

/// Constants `far` at `b`, and `near` at `a`, of all numbers.
fn graph() -> GraphDef {
    let mut graph = Builder::new(Operations::standard().ops());
    for (task, name) in [("/job:b", "far"), ("/job:a", "near")] {
        graph.on(task);
        for number in 0..100 {
            let name = format!("{name}{number}");
            graph.constant(&name, ints(&[], &[7])).unwrap();
        }
    }
    graph.finish().unwrap().to_def()
}

/// A kind of step for each number.
fn fetches(name: &str, number: usize) -> Vec<String> {
    vec![format!("{name}{number}")]
}

fn run(number: usize) -> RunStepRequest {
    RunStepRequest {
        session_handle: "s".into(),
        fetch: fetches("far", number),
        ..RunStepRequest::default()
    }
}

fn callable(number: usize) -> MakeCallableRequest {
    let options = CallableOptions {
        fetch: fetches("far", number),
        ..CallableOptions::default()
    };
    MakeCallableRequest {
        session_handle: "s".into(),
        options: Some(options),
    }
}

fn partial_run(number: usize) -> PartialRunSetupRequest {
    PartialRunSetupRequest {
        session_handle: "s".into(),
        fetch: fetches("far", number),
        ..PartialRunSetupRequest::default()
    }
}

#[test]
fn plans_that_wait_for_a_stopped_worker_keep_no_room_from_others() {
    let ask: [fn(&Scene, usize) -> Told; 3] = [
        |scene, number| scene.ask::<RunStep>(&run(number), vec![]),
        |scene, number| scene.ask::<MakeCallable>(&callable(number), vec![]),
        |scene, number| scene.ask::<PartialRunSetup>(&partial_run(number), vec![]),
    ];
    for (kind, ask) in ask.into_iter().enumerate() {
        let scene = Scene::new();
        let asked: Vec<_> = (0..ERRANDS_OF_SESSIONS_MAX)
            .map(|number| ask(&scene, number))
            .collect();
        scene.await_asked(ERRANDS_OF_SESSIONS_MAX);
        drop(scene.places());
        let def = of_bytes(graph_of_one().encode_to_vec()).unwrap();
        let created = scene.ask::<CreateSession>(&CreateSessionRequest::default(), vec![def]);
        heard(&created).unwrap_or_else(|status| panic!("{kind}: {status}"));
        // They hear of the end of their session.
        let closing = CloseSessionRequest {
            session_handle: "s".into(),
        };
        heard(&scene.ask::<CloseSession>(&closing, vec![])).unwrap();
        for told in &asked {
            heard(told).unwrap_err();
        }
    }
}

fn graph_of_one() -> GraphDef {
    let mut graph = Builder::new(Operations::standard().ops());
    graph.constant("one", ints(&[], &[1])).unwrap();
    graph.finish().unwrap().to_def()
}

#[test]
fn one_that_finds_no_room_for_a_plan_takes_nothing_from_one_that_needs_none() {
    let scene = Scene::new();
    let (master, session) = (&scene.master, &scene.session);
    let _places = scene.places();
    for number in 0..100 {
        let signature = StepSignature {
            fetches: fetches("near", number),
            ..StepSignature::default()
        };
        let (is_over, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
        let made = std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    master.want_plan(session, &signature, Box::new(|_| {}));
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            });
            until(
                || refused.load(Ordering::Relaxed) > 0,
                || "no thread".to_owned(),
            );
            // It makes the plan in its own thread.
            let made = session.plan(&signature).map(drop);
            is_over.store(true, Ordering::Relaxed);
            made
        });
        assert_eq!(made, Ok(()), "at {number}");
    }
}

#[test]
fn one_session_has_no_more_parts_under_way_to_a_worker_than_there_is_room_for() {
    let scene = Scene::new();
    for number in 0..ERRANDS_OF_SESSIONS_MAX {
        scene.ask::<MakeCallable>(&callable(number), vec![]);
        scene.await_asked(number + 1);
    }
    let refused = scene.ask::<MakeCallable>(&callable(ERRANDS_OF_SESSIONS_MAX), vec![]);
    let status = heard(&refused).unwrap_err();
    assert_eq!(status.reason(), catalogue::SESSION_LIMIT, "{status}");
    // That worker has said nothing.
    assert!(!status.message().contains("From"), "{status}");
    // One that is answered makes room.
    drop(scene.stopped.0.lock().unwrap().pop());
    let asked = scene.ask::<MakeCallable>(&callable(ERRANDS_OF_SESSIONS_MAX), vec![]);
    scene.await_asked(ERRANDS_OF_SESSIONS_MAX);
    assert!(asked.wait(Some(Instant::now())).is_none(), "it waits");
}

#[test]
fn what_would_fetch_more_than_an_answer_brings_is_refused_before_it_runs() {
    let scene = Scene::new();
    let fetch = vec!["near0".to_owned(); LINE_TENSORS_MAX + 1];
    let run = RunStepRequest {
        fetch: fetch.clone(),
        ..run(0)
    };
    let options = CallableOptions {
        fetch,
        ..CallableOptions::default()
    };
    let callable = MakeCallableRequest {
        options: Some(options),
        ..callable(0)
    };
    for told in [
        scene.ask::<RunStep>(&run, vec![]),
        scene.ask::<MakeCallable>(&callable, vec![]),
    ] {
        let status = heard(&told).unwrap_err();
        assert_eq!(status.reason(), catalogue::CALL_TOO_LONG, "{status}");
    }
}

#[test]
fn parts_that_are_registered_after_their_session_was_closed_leave_nothing() {
    let scene = Scene::new();
    let links = Arc::downgrade(&there(&scene.session));
    let asked: Vec<_> = (0..3)
        .map(|number| scene.ask::<MakeCallable>(&callable(number), vec![]))
        .collect();
    scene.await_asked(asked.len());
    scene.master.close_session("s").unwrap();
    for told in &asked {
        heard(told).unwrap_err();
    }
    // Now it goes on, and answers what it was asked.
    for question in scene.stopped.0.lock().unwrap().drain(..) {
        let graph_handle = "1".to_owned();
        let answer = RegisterGraphResponse { graph_handle };
        question.answer.give::<RegisterGraph>(Ok((answer, vec![])));
    }
    drop(scene.places());
    let loads = scene.sites.each_ref().map(Site::load);
    // The worker that was stopped hears of it when its line ends.
    assert_eq!((loads[0], loads[1].1), ((0, 0), 0));
    let held = Arc::strong_count(&scene.session);
    assert_eq!(held, 1, "the session is held {held} times");
    assert_eq!(links.strong_count(), 1, "its worker is held by no part");
}

/// As a step it would compute once more what the run has computed.
#[test]
fn a_step_is_no_piece_of_a_partial_run() {
    let scene = Scene::new();
    let asked = RunStepRequest {
        session_handle: "s".into(),
        partial_run_handle: "p".into(),
        fetch: vec!["near0".to_owned()],
        ..RunStepRequest::default()
    };
    let refused = heard(&scene.ask::<RunStep>(&asked, vec![])).unwrap_err();
    assert_eq!(refused.reason(), catalogue::PARTIAL_RUN, "{refused}");
    assert!(
        scene.master.clients.locked()[&StepId(3)]
            .state
            .locked()
            .steps
            .is_empty()
    );
}

#[test]
fn what_a_partial_run_is_fed_in_vain_goes_with_it() {
    let scene = Scene::new();
    let (near, far) = (vec!["near0".to_owned()], vec!["far0".to_owned()]);
    let set_up = PartialRunSetupRequest {
        session_handle: "s".into(),
        feed: near.clone(),
        target: far,
        ..PartialRunSetupRequest::default()
    };
    let (tell, handle) = Waiter::pair();
    scene.client.ask::<PartialRunSetup>(&set_up, vec![], tell);
    scene.await_asked(1);
    let answer = || scene.stopped.0.lock().unwrap().pop().unwrap().answer;
    let registered = RegisterGraphResponse {
        graph_handle: "1".to_owned(),
    };
    answer().give::<RegisterGraph>(Ok((registered, vec![])));
    let set_up = handle.wait(Some(Instant::now() + PATIENCE));
    let (set_up, _) = set_up.expect("an answer").unwrap();
    scene.await_asked(1);

    let piece = RunStepRequest {
        session_handle: "s".into(),
        partial_run_handle: set_up.partial_run_handle,
        feed: near,
        ..RunStepRequest::default()
    };
    let fed = scene.ask::<PartialRun>(&piece, vec![Tensor::scalar(5_i32)]);
    let parked = || {
        let pending = scene.engines[0].pending();
        pending.iter().any(|item| item.key.edge().contains("near0"))
    };
    until(parked, || "it is fed".to_owned());
    answer().give::<RunGraph>(Ok((RunGraphResponse {}, vec![])));
    heard(&fed).unwrap();
    until(|| !parked(), || "it stays".to_owned());
}

#[test]
fn sessions_of_a_client_that_is_gone_end_all_at_once() {
    let scene = Scene::new();
    let (master, [here, other]) = (&scene.master, &scene.sites);
    let signature = StepSignature {
        targets: fetches("far", 0),
        ..StepSignature::default()
    };
    let (mut served, mut handles) = (vec![], BTreeSet::new());
    for number in 0..60 {
        let (handle, line) = (format!("t{number}"), StepId(1000 + number));
        let session = here
            .begin(&handle, graph(), &[(other, line)])
            .unwrap()
            .session;
        let line = StepId(2000 + number);
        served.push(goes_to(&session, &scene.engines, &scene.stopped, line));
        master
            .sessions
            .locked()
            .insert(handle.clone(), Arc::clone(&session));
        handles.insert(handle);
        let register = |_: &Link, _, then: ThenRun| then.tell(Ok("1".to_owned()));
        let plan = session.plan_by(&signature, &register).unwrap();
        master.run(&session, &plan, None, vec![], Box::new(drop));
    }
    // Each has a step that its worker does not end, and that is given up after a quarter of a second.
    scene.await_asked(60);
    let began = Instant::now();
    master.lose_client(&handles);
    let took = began.elapsed();
    assert!(
        took < Duration::from_secs(8),
        "one after the other: {took:?}"
    );
    assert_eq!(master.session_count(), 1);
}
