//! What fails in the middle of a step, and what is left of it: nothing.

use std::time::{Duration, Instant};

use rendez::ground::{Code, Status, catalogue};
use rendez_dataflow::server::{PartialRun, Session};
use rendez_proto::tensorflow::{ConfigProto, GraphDef};

use crate::support::*;

const PS: &str = "/job:ps/task:0";
const FIRST: &str = "/job:worker/task:0";
const SECOND: &str = "/job:worker/task:1";

/// Within this a process that dies on this machine is known to be gone, with room for a machine that is busy.
const BOUND: Duration = Duration::from_secs(3);

/// Two variables that were never initialised, each on a worker of its own.
fn two_that_fail() -> GraphDef {
    let mut graph = Draft::new();
    for (worker, name) in [(FIRST, "a"), (SECOND, "b")] {
        let variable = graph.on(worker).variable(name);
        graph.node("Identity", &format!("read_{name}"), &[variable]);
    }
    graph.finish()
}

/// `sum = x + y` on the first worker, where `y` is fed late: in between, that worker waits.
fn waits_on_first() -> GraphDef {
    let mut graph = Draft::new();
    let (x, y) = (graph.placeholder("x"), graph.placeholder("y"));
    graph.on(FIRST).node("AddV2", "sum", &[x, y]);
    graph.finish()
}

/// A partial run that is fed half of what the first worker needs.
fn half_fed(session: &Session) -> PartialRun {
    let run = session.partial_run(&["x", "y"], &["sum"], &[]).unwrap();
    run.run(&[("x", row(&[1.0]))], &[]).unwrap();
    run
}

#[test]
fn two_workers_that_fail_are_both_named() {
    let spec = spec(2);
    let servers = start_all(&spec);
    let session = session(&servers[0], two_that_fail());
    let one = session.run(&[], &["read_a"], &[]).unwrap_err();
    let empty = |name: &str| format!("Attempting to use uninitialized value {name}");
    let from = "From /job:worker/replica:0/task:0:\n";
    assert!(
        one.message().starts_with(from) && one.message().contains(&empty("a")),
        "{one}"
    );
    // The first to fail stops the other, which may not have come to fail itself.
    let both = (0..100).find_map(|_| {
        let status = session.run(&[], &["read_a", "read_b"], &[]).unwrap_err();
        assert_eq!(
            (status.code(), status.is_derived()),
            (Code::FailedPrecondition, false),
            "{status}"
        );
        Some(status).filter(|status| status.message().starts_with("2 root error(s) found."))
    });
    let both = both.expect("both fail in one step");
    for text in [
        "\n  (0) FailedPrecondition: From /job:worker/replica:0/task:",
        "\n  (1) FailedPrecondition: From /job:worker/replica:0/task:",
        &empty("a"),
        &empty("b"),
        "successful operations.",
        "derived errors ignored.",
    ] {
        assert!(both.message().contains(text), "{text:?} in {both}");
    }
    await_nothing(&servers);
    session.close().unwrap();
    await_no_session(&servers);
    stop_all(&servers);
}

#[test]
fn a_worker_that_is_killed_in_mid_step_ends_it_and_one_that_restarts_has_no_session() {
    let spec = spec(1);
    let servers = [start(&spec, PS)];
    let worker = Worker::start(&spec, "worker", "0");
    let session = session(&servers[0], waits_on_first());
    let run = half_fed(&session);
    let waits = std::thread::spawn(move || {
        let outcome = run.run(&[("y", row(&[1.0]))], &["sum"]);
        (outcome, run)
    });
    assert_eq!(values(&waits.join().unwrap().0.unwrap()[0]), [2.0]);
    // Once more, and now it dies in between.
    let run = half_fed(&session);
    worker.kill();
    let began = Instant::now();
    until("the step ends", || run.run(&[], &[]).is_err());
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    drop(run);
    await_nothing(&servers);
    let gone = session
        .run(&[("x", row(&[1.0])), ("y", row(&[1.0]))], &["sum"], &[])
        .unwrap_err();
    assert_eq!(gone.code(), Code::Unavailable, "{gone}");
    assert!(
        gone.message().contains("/job:worker/replica:0/task:0"),
        "{gone}"
    );
    await_nothing(&servers);
    // Another life of it knows nothing of the session, and says so.
    let worker = Worker::start(&spec, "worker", "0");
    let feeds = [("x", row(&[1.0])), ("y", row(&[1.0]))];
    let mut last: Option<Status> = None;
    until("the restarted worker answers", || {
        let status = session.run(&feeds, &["sum"], &[]).unwrap_err();
        let is_told = status.reason() == catalogue::WORKER_SESSION_UNKNOWN;
        last = Some(status);
        is_told
    });
    let last = last.unwrap();
    assert_eq!(last.code(), Code::Aborted);
    for text in [
        "/job:worker/replica:0/task:0",
        "begin another session, and restore a checkpoint",
    ] {
        assert!(last.message().contains(text), "{last}");
    }
    for _ in 0..10 {
        assert_eq!(session.run(&feeds, &["sum"], &[]).unwrap_err(), last);
    }
    await_nothing(&servers);
    session.close().unwrap();
    // A new session with the new life goes well.
    let session = support_session(&servers[0]);
    assert_eq!(
        values(&session.run(&feeds, &["sum"], &[]).unwrap()[0]),
        [2.0]
    );
    session.close().unwrap();
    await_no_session(&servers);
    drop(worker);
    stop_all(&servers);
}

fn support_session(server: &rendez_dataflow::server::Server) -> Session {
    session(server, waits_on_first())
}

#[test]
fn a_step_that_computes_ends_when_its_worker_is_killed_and_names_it() {
    let spec = spec(1);
    let servers = [start(&spec, PS)];
    let worker = Worker::start(&spec, "worker", "0");
    let mut graph = Draft::new();
    graph.on(FIRST).count("forever", i32::MAX);
    let session = session(&servers[0], graph.finish());
    let running = session.clone();
    let step = std::thread::spawn(move || (running.run(&[], &["forever"], &[]), Instant::now()));
    until("the step runs", || servers[0].load().unwrap().steps > 0);
    std::thread::sleep(Duration::from_millis(100));
    let killed = Instant::now();
    worker.kill();
    let (outcome, ended) = step.join().unwrap();
    let status = outcome.unwrap_err();
    assert!(
        ended.duration_since(killed) < BOUND,
        "{:?}",
        ended.duration_since(killed)
    );
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(
        status.message().contains("/job:worker/replica:0/task:0"),
        "{status}"
    );
    assert!(!status.is_derived());
    await_nothing(&servers);
    drop(session);
    await_no_session(&servers);
    stop_all(&servers);
}

#[test]
fn a_session_that_is_closed_and_a_step_that_is_late_end_what_runs() {
    let spec = spec(1);
    let servers = start_all(&spec);
    let mut graph = Draft::new();
    graph.on(FIRST).count("forever", i32::MAX);
    let graph = graph.finish();
    let session_1 = session(&servers[0], graph.clone());
    let began = Instant::now();
    let late = session_1
        .run_within(Duration::from_millis(200), &[], &["forever"], &[])
        .unwrap_err();
    assert_eq!(
        (late.code(), late.reason()),
        (Code::DeadlineExceeded, catalogue::STEP_DEADLINE)
    );
    assert!(began.elapsed() < BOUND);
    await_nothing(&servers);
    let running = session_1.clone();
    let step = std::thread::spawn(move || running.run(&[], &["forever"], &[]));
    until("the step runs", || servers[1].load().unwrap().steps > 0);
    session_1.close().unwrap();
    let closed = step.join().unwrap().unwrap_err();
    assert_eq!(closed.code(), Code::Cancelled, "{closed}");
    assert_eq!(
        closed.message(),
        "Step was cancelled by an explicit call to `Session::Close()`."
    );
    await_no_session(&servers);
    stop_all(&servers);
}

#[test]
fn a_master_that_restarts_leaves_no_session_at_the_workers() {
    let spec = spec(1);
    let servers = [start(&spec, FIRST)];
    let master = start(&spec, PS);
    let session_1 = session(&master, waits_on_first());
    let run = half_fed(&session_1);
    assert_eq!(servers[0].load().unwrap().worker_sessions, 1);
    // As a process that dies would have it: the session is not closed.
    master.engine().unwrap().shutdown(Duration::ZERO);
    let gone = run.run(&[("y", row(&[1.0]))], &["sum"]).unwrap_err();
    assert_ne!(gone.code(), Code::Ok);
    drop((run, session_1));
    drop(master);
    await_no_session(&servers);
    let master = start(&spec, PS);
    let session = session(&master, waits_on_first());
    let feeds = [("x", row(&[1.0])), ("y", row(&[1.0]))];
    assert_eq!(
        values(&session.run(&feeds, &["sum"], &[]).unwrap()[0]),
        [2.0]
    );
    session.close().unwrap();
    await_no_session(&servers);
    master.stop(None);
    stop_all(&servers);
}

#[test]
fn a_master_stops_by_its_deadline_however_many_sessions_a_worker_that_hangs_has() {
    let spec = spec(1);
    let mut settings = config(PS);
    // The worker is not given up meanwhile.
    settings.failure_detection = Duration::from_secs(60);
    let master = start_with(&spec, settings);
    let worker = Worker::start(&spec, "worker", "0");
    let sessions: Vec<_> = (0..3).map(|_| session(&master, waits_on_first())).collect();
    worker.hang();
    let began = Instant::now();
    master.stop(Some(Duration::from_millis(500)));
    let took = began.elapsed();
    drop((sessions, worker));
    assert!(took < BOUND, "{took:?}");
}

#[test]
fn a_client_whose_master_has_gone_is_told() {
    let spec = spec(1);
    let worker = start(&spec, FIRST);
    let master = Worker::start(&spec, "ps", "0");
    let target = spec.find("ps", 0).unwrap().to_string();
    let session = Session::connect_with(&target, config("/job:any/task:0")).unwrap();
    session.create(waits_on_first()).unwrap();
    let feeds = [("x", row(&[1.0])), ("y", row(&[1.0]))];
    assert_eq!(
        values(&session.run(&feeds, &["sum"], &[]).unwrap()[0]),
        [2.0]
    );
    master.kill();
    let began = Instant::now();
    let status = session.run(&feeds, &["sum"], &[]).unwrap_err();
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    assert!(
        matches!(status.code(), Code::Unavailable | Code::Aborted),
        "{status}"
    );
    await_no_session(std::slice::from_ref(&worker));
    drop(session);
    worker.stop(None);
}

#[test]
fn a_client_waits_for_a_master_that_hangs_no_longer_than_its_settings_say() {
    let spec = spec(1);
    let master = Worker::start(&spec, "ps", "0");
    let target = spec.find("ps", 0).unwrap().to_string();
    let mut settings = config("/job:any/task:0");
    // The master is not given up meanwhile.
    settings.failure_detection = Duration::from_secs(60);
    let config = ConfigProto {
        operation_timeout_in_ms: 3_000,
        device_filters: vec![PS.into()],
        ..ConfigProto::default()
    };
    let mut graph = Draft::new();
    graph.on(PS).constant("one", &[1.0]);
    let graph = graph.finish();
    let session = Session::connect_with(&target, settings).unwrap();
    let session = session.configured(config).unwrap();
    session.create(graph.clone()).unwrap();
    master.hang();
    let calls: [&(dyn Fn() -> Result<(), Status> + Sync); 5] = [
        &|| session.extend(graph.clone()),
        &|| session.callable(&[], &["one"], &[]).map(drop),
        &|| session.partial_run(&[], &["one"], &[]).map(drop),
        &|| session.devices().map(drop),
        &|| session.reset(&[]),
    ];
    let began = Instant::now();
    let ends_in_time = |call: &dyn Fn() -> Result<(), Status>| {
        let status = call().unwrap_err();
        assert_eq!(status.reason(), catalogue::CALL_DEADLINE, "{status}");
        assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    };
    std::thread::scope(|threads| {
        for call in calls {
            threads.spawn(move || ends_in_time(&call));
        }
    });
    ends_in_time(&|| session.close());
    drop(master);
}

#[test]
fn a_target_where_nobody_is_and_one_that_is_none_are_told_apart() {
    let spec = spec(1);
    let mut settings = config("/job:any/task:0");
    settings.connect_timeout = Duration::from_millis(500);
    let nobody =
        Session::connect_with(&spec.find("ps", 0).unwrap().to_string(), settings).unwrap_err();
    assert_eq!(
        (nobody.code(), nobody.reason()),
        (Code::Unavailable, catalogue::CONNECTION_REFUSED),
        "{nobody}"
    );
    let none = Session::connect_with("nowhere", config("/job:any/task:0")).unwrap_err();
    assert_eq!(none.reason(), catalogue::CONTROL_ADDRESS, "{none}");
}
