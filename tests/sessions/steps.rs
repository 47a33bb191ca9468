//! Graphs over three tasks: in-graph, with variables on a ps, extended, called, and run in pieces.

use std::time::{Duration, Instant};

use rendez::ground::{Code, Traceparent, catalogue};
use rendez::memory::Tensor;
use rendez::trace::recorder::{Event, Recording};
use rendez_dataflow::graph::Output;
use rendez_dataflow::server::{Server, Session, StepOptions};
use rendez_proto::tensorflow::ConfigProto;

use crate::support::*;

const PS: &str = "/job:ps/task:0";
const FIRST: &str = "/job:worker/task:0";
const SECOND: &str = "/job:worker/task:1";

/// `there = x + a` on the first worker, `back = there * b` on the second, `sum = there + back` on the ps.
fn over_three() -> rendez_proto::tensorflow::GraphDef {
    let mut graph = Draft::new();
    let x = graph.placeholder("x");
    let a = graph.on(FIRST).constant("a", &[1.0, 2.0]);
    let there = graph.node("AddV2", "there", &[x, a]);
    let b = graph.on(SECOND).constant("b", &[10.0, 100.0]);
    let back = graph.node("Mul", "back", &[there, b]);
    graph.on(PS).node("AddV2", "sum", &[there, back]);
    graph.finish()
}

#[test]
fn a_graph_over_three_tasks_is_run_from_each_of_them_and_from_outside() {
    let spec = spec(2);
    let servers = start_all(&spec);
    let check = |session: &Session| {
        for round in 0..20_u8 {
            let x = f32::from(round);
            let got = session
                .run(&[("x", row(&[x, x]))], &["sum", "there"], &[])
                .unwrap();
            let there = [x + 1.0, x + 2.0];
            assert_eq!(values(&got[1]), there);
            assert_eq!(values(&got[0]), [there[0] * 11.0, there[1] * 101.0]);
        }
    };
    for server in &servers {
        let session = session(server, over_three());
        assert_eq!(session.devices().unwrap().len(), 3);
        check(&session);
        await_nothing(&servers);
        session.close().unwrap();
    }
    await_no_session(&servers);
    // A client that is no task of the cluster, and knows only where a master listens.
    let target = servers[1].target().unwrap();
    let session = Session::connect_with(&target, config("/job:any/task:0")).unwrap();
    session.create(over_three()).unwrap();
    check(&session);
    let callable = session.callable(&["x"], &["back"], &[]).unwrap();
    assert_eq!(
        values(&callable.run(&[row(&[0.0, 0.0])]).unwrap()[0]),
        [10.0, 200.0]
    );
    await_nothing(&servers);
    drop((callable, session));
    await_no_session(&servers);
    stop_all(&servers);
}

#[test]
fn variables_on_a_ps_are_shared_by_the_sessions_of_all_masters() {
    let spec = spec(2);
    let servers = start_all(&spec);
    let graph = |worker: &str| {
        let mut graph = Draft::new();
        let w = graph.on(PS).variable("w");
        let start = graph.constant("start", &[1.0, 1.0]);
        graph.node("Assign", "init", &[w, start]);
        let step = graph.on(worker).placeholder("step");
        let twice = graph.node("AddV2", "twice", &[step, step]);
        graph.on(PS).node("AssignAdd", "add", &[w, twice]);
        graph.finish()
    };
    let first = session(&servers[1], graph(FIRST));
    let second = session(&servers[2], graph(SECOND));
    let empty = first.run(&[], &["w"], &[]).unwrap_err();
    assert_eq!(
        (empty.code(), empty.reason()),
        (Code::FailedPrecondition, catalogue::VARIABLE_EMPTY)
    );
    let from = "From /job:ps/replica:0/task:0:\n";
    assert!(empty.message().starts_with(from), "{empty}");
    first.run(&[], &[], &["init"]).unwrap();
    std::thread::scope(|scope| {
        for session in [&first, &second] {
            scope.spawn(move || {
                for _ in 0..50 {
                    session
                        .run(&[("step", row(&[1.0, 0.5]))], &[], &["add"])
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(
        values(&second.run(&[], &["w"], &[]).unwrap()[0]),
        [201.0, 101.0]
    );
    await_nothing(&servers);
    first.reset(&[]).unwrap();
    let gone = first.run(&[], &["w"], &[]).unwrap_err();
    assert_eq!(gone.reason(), catalogue::SESSION_UNKNOWN);
    let cleared = second.run(&[], &["w"], &[]).unwrap_err();
    assert_eq!(
        cleared.reason(),
        catalogue::VARIABLE_EMPTY,
        "a reset clears the containers of all workers"
    );
    second.close().unwrap();
    await_no_session(&servers);
    stop_all(&servers);
}

#[test]
fn a_reset_reaches_every_worker_but_one_that_is_absent() {
    let spec = spec(2);
    let mut settings = config(PS);
    settings.connect_timeout = Duration::from_secs(2);
    let servers = [start_with(&spec, settings), start(&spec, SECOND)];
    let mut graph = Draft::new();
    let w = graph.on(SECOND).variable("w");
    let start = graph.constant("start", &[1.0, 1.0]);
    graph.node("Assign", "init", &[w, start]);
    let graph = graph.finish();
    let begin = || {
        let config = ConfigProto {
            device_filters: vec![PS.into(), SECOND.into()],
            ..ConfigProto::default()
        };
        let session = Session::on(&servers[0]).unwrap().configured(config);
        let session = session.unwrap();
        session.create(graph.clone()).unwrap();
        session
    };
    let first = begin();
    first.run(&[], &[], &["init"]).unwrap();
    let status = first.reset(&[]).unwrap_err();
    assert_eq!(status.reason(), catalogue::WORKER_ABSENT, "{status}");
    let absent = "/job:worker/replica:0/task:0";
    assert!(status.message().contains(absent), "{status}");
    let cleared = begin().run(&[], &["w"], &[]).unwrap_err();
    assert_eq!(cleared.reason(), catalogue::VARIABLE_EMPTY, "{cleared}");
    stop_all(&servers);
}

#[test]
fn sessions_with_variables_of_their_own_share_the_threads_of_a_worker() {
    let spec = spec(1);
    let master = start(&spec, PS);
    let worker = Worker::start(&spec, "worker", "0");
    let mut graph = Draft::new();
    graph.on(FIRST).constant("one", &[1.0]);
    let graph = graph.finish();
    let begin = || {
        let config = ConfigProto {
            isolate_session_state: true,
            ..ConfigProto::default()
        };
        let session = Session::on(&master).unwrap().configured(config);
        let session = session.unwrap();
        session.create(graph.clone()).unwrap();
        session
    };
    let first = begin();
    let threads = worker.threads("rendez-compute");
    assert_ne!(threads, 0);
    let more = [begin(), begin()];
    for session in more.iter().chain([&first]) {
        assert_eq!(session.run(&[], &["one"], &[]).unwrap().len(), 1);
    }
    assert_eq!(worker.threads("rendez-compute"), threads);
    drop((first, more));
    master.stop(None);
}

#[test]
fn a_variable_is_read_after_what_its_reader_waits_for_wherever_that_stands() {
    let spec = spec(1);
    let servers = start_all(&spec);
    let mut graph = Draft::new();
    let w = graph.on(PS).variable("w");
    let start = graph.constant("start", &[0.0, 0.0]);
    graph.node("Assign", "init", &[w, start]);
    let step = graph.on(FIRST).placeholder("step");
    let add = graph.on(PS).node("AssignAdd", "add", &[w, step]);
    graph.on(FIRST);
    let mut read = |name: &str, after: Output| {
        let node = graph.0.node("Identity").name(name).input(w);
        node.control(after.node).build().unwrap()
    };
    let there = read("behind_one_there", add);
    read("behind_one_here", there);
    let session = session(&servers[1], graph.finish());
    session.run(&[], &[], &["init"]).unwrap();
    for round in 1..=10_u8 {
        let fetches = ["behind_one_there", "behind_one_here"];
        let got = session
            .run(&[("step", row(&[1.0, 2.0]))], &fetches, &[])
            .unwrap();
        let expected = [f32::from(round), 2.0 * f32::from(round)];
        assert_eq!(values(&got[0]), expected);
        assert_eq!(values(&got[1]), expected);
    }
    await_nothing(&servers);
    drop(session);
    await_no_session(&servers);
    stop_all(&servers);
}

#[test]
fn what_a_client_outside_is_told_is_what_one_inside_is() {
    let spec = spec(1);
    let servers = start_all(&spec);
    let target = servers[0].target().unwrap();
    let far = Session::connect_with(&target, config("/job:any/task:0")).unwrap();
    let near = Session::on(&servers[0]).unwrap();
    for session in [&far, &near] {
        let early = session.run(&[], &["x"], &[]).unwrap_err();
        assert_eq!(early.reason(), catalogue::SESSION_NONE);
        let mut graph = Draft::new();
        let (x, y) = (graph.placeholder("x"), graph.on(FIRST).placeholder("y"));
        graph.node("AddV2", "sum", &[x, y]);
        session.create(graph.finish()).unwrap();
        let mut more = Draft::new();
        more.placeholder("x");
        let again = session.extend(more.finish()).unwrap_err();
        assert_eq!(again.reason(), catalogue::GRAPH_NODE_EXISTS);
        let mut more = Draft::new();
        more.constant("k", &[7.0]);
        session.extend(more.finish()).unwrap();
        assert_eq!(values(&session.run(&[], &["k"], &[]).unwrap()[0]), [7.0]);
        let absent = session.run(&[], &["absent"], &[]).unwrap_err();
        assert_eq!(absent.message(), "FetchOutputs node absent: not found");
        let unfit = session
            .run(&[("x", Tensor::scalar(1_i64))], &["sum"], &[])
            .unwrap_err();
        assert_eq!(unfit.reason(), catalogue::FEED_UNFIT);
        let shapes = [("x", row(&[1.0, 2.0])), ("y", row(&[1.0, 2.0, 3.0]))];
        let failed = session.run(&shapes, &["sum"], &[]).unwrap_err();
        assert_eq!(failed.reason(), catalogue::KERNEL_INPUT);
        assert!(
            failed
                .message()
                .starts_with("From /job:worker/replica:0/task:0:\n"),
            "{failed}"
        );
        let run = session.partial_run(&["x", "y"], &["sum", "x"], &[]);
        assert!(run.is_err(), "what is fed is not fetched");
        let run = session.partial_run(&["x", "y"], &["sum"], &[]).unwrap();
        assert!(run.run(&[("x", row(&[1.0]))], &[]).unwrap().is_empty());
        let early = run.run(&[], &["sum"]).unwrap_err();
        assert_eq!(early.reason(), catalogue::PARTIAL_RUN);
        assert_eq!(
            values(&run.run(&[("y", row(&[2.0]))], &["sum"]).unwrap()[0]),
            [3.0]
        );
        let over = run.run(&[], &["sum"]).unwrap_err();
        assert_eq!(
            over.message(),
            "Must run PartialRunSetup before performing partial runs."
        );
        await_nothing(&servers);
        session.close().unwrap();
        let closed = session.run(&[], &["k"], &[]).unwrap_err();
        assert_eq!(
            (closed.code(), closed.message()),
            (Code::FailedPrecondition, "Session is closed.")
        );
    }
    drop(far);
    await_no_session(&servers);
    stop_all(&servers);
}

#[test]
fn large_feeds_and_fetches_travel_as_they_are() {
    let spec = spec(1);
    let servers = start_all(&spec);
    let target = servers[0].target().unwrap();
    let session = Session::connect_with(&target, config("/job:any/task:0")).unwrap();
    let mut graph = Draft::new();
    let x = graph.placeholder("x");
    graph.on(FIRST).node("AddV2", "twice", &[x, x]);
    session.create(graph.finish()).unwrap();
    let long: Vec<f32> = (0..300_000_u32).map(|at| at as f32).collect();
    for _ in 0..3 {
        let got = session.run(&[("x", row(&long))], &["twice"], &[]).unwrap();
        let got = got[0].as_slice::<f32>().unwrap();
        assert!(got.len() == long.len() && got.iter().zip(&long).all(|(got, x)| *got == 2.0 * x));
    }
    await_nothing(&servers);
    drop(session);
    await_no_session(&servers);
    stop_all(&servers);
}

#[test]
fn a_worker_that_is_not_there_is_named_when_the_time_is_over() {
    let spec = spec(2);
    let mut settings = config(FIRST);
    settings.connect_timeout = Duration::from_millis(1500);
    let servers = [start(&spec, PS), start_with(&spec, settings)];
    let session = Session::on(&servers[1]).unwrap();
    let began = Instant::now();
    let status = session.create(over_three()).unwrap_err();
    assert!(began.elapsed() < PATIENCE / 2, "discovery has an end");
    assert_eq!(
        (status.code(), status.reason()),
        (Code::Unavailable, catalogue::WORKER_ABSENT)
    );
    assert!(
        status
            .message()
            .contains("response from worker: /job:worker/replica:0/task:1"),
        "{status}"
    );
    // Who is filtered away is not waited for.
    let filtered = ConfigProto {
        device_filters: vec!["/job:ps".into()],
        ..ConfigProto::default()
    };
    let session = Session::on(&servers[1])
        .unwrap()
        .configured(filtered)
        .unwrap();
    let mut graph = Draft::new();
    let here = graph.on(FIRST).constant("here", &[1.0]);
    graph.on(PS).node("AddV2", "there", &[here, here]);
    session.create(graph.finish()).unwrap();
    assert_eq!(session.devices().unwrap().len(), 2);
    assert_eq!(
        values(&session.run(&[], &["there"], &[]).unwrap()[0]),
        [2.0]
    );
    session.close().unwrap();
    await_no_session(&servers);
    stop_all(&servers);
}

/// What the recorders of a task say of traces: the step, and the trace.
fn traces(server: &Server) -> Vec<(u64, Traceparent)> {
    let recordings = server.engine().unwrap().recordings();
    let bytes =
        |words: Vec<u64>| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let recordings = recordings.into_iter().map(bytes);
    let events = recordings.flat_map(|bytes| Recording::of(&bytes).unwrap().events());
    let trace = |event: Event| Some((event.step, event.traceparent()?));
    events.filter_map(trace).collect()
}

#[test]
#[cfg(feature = "stages")]
fn the_trace_of_a_step_is_known_to_every_task_that_runs_a_part_of_it() {
    let spec = spec(2);
    let servers = start_all(&spec);
    let far =
        Session::connect_with(&servers[1].target().unwrap(), config("/job:any/task:0")).unwrap();
    far.create(over_three()).unwrap();
    let sessions = [session(&servers[0], over_three()), far];
    for (at, session) in sessions.iter().enumerate() {
        let x = || row(&[1.0, 2.0]);
        session.run(&[("x", x())], &["sum"], &[]).unwrap();
        let callable = session.callable(&["x"], &["sum"], &[]).unwrap();
        callable.run(&[x()]).unwrap();
        let texts = [1, 2].map(|of| format!("00-{:032x}-{:016x}-01", at * 2 + of, 7));
        let traced = texts
            .each_ref()
            .map(|text| text.parse::<Traceparent>().unwrap());
        let options = traced.map(|trace| StepOptions {
            traceparent: Some(trace),
            ..StepOptions::default()
        });
        session
            .run_with(&options[0], &[("x", x())], &["sum"], &[])
            .unwrap();
        callable.run_with(&options[1], &[x()]).unwrap();
        let mut steps = Vec::new();
        for server in &servers {
            // A shard hears of it beside the step, and may be told a little later.
            let known = || -> Vec<_> {
                let of_these = |(_, trace): &(u64, Traceparent)| traced.contains(trace);
                traces(server).into_iter().filter(of_these).collect()
            };
            until("both are known", || known().len() == 2);
            let found = known();
            assert_eq!([found[0].1, found[1].1], traced, "{}", server.task());
            steps.push([found[0].0, found[1].0]);
        }
        assert_eq!(
            [steps[0], steps[0]],
            [steps[1], steps[2]],
            "one number everywhere"
        );
        assert_ne!(steps[0][0], steps[0][1]);
    }
    for server in &servers {
        assert_eq!(traces(server).len(), 4, "steps without a trace have none");
        assert_eq!(server.engine().unwrap().refused_traceparents(), 0);
    }
    drop(sessions);
    await_no_session(&servers);
    stop_all(&servers);
}
