//! Sessions in one process: their life, their texts, and steps of all kinds.

use std::time::Duration;

use super::*;
use crate::graph::{Builder, NodeBuilder, Output, floats, ints};
use crate::operations::Operations;
use crate::server::testing;
use rendez::drive::Driver;
use rendez::ground::Shape;
use rendez::ground::limits::SESSION_CALLABLES_MAX;
use rendez_proto::tensorflow::DataType;

fn builder() -> Builder {
    Builder::new(Operations::standard().ops())
}

fn def(graph: Builder) -> GraphDef {
    graph.finish().expect("a graph").to_def()
}

fn placeholder(graph: &mut Builder, name: &str) -> Output {
    let node: NodeBuilder<'_> = graph.node("Placeholder").name(name);
    node.attr("dtype", DataType::DtFloat)
        .build()
        .expect("a placeholder")
}

fn row(values: &[f32]) -> Tensor {
    let shape = Shape::row(values.len() as u64).expect("a row");
    Tensor::from_vec(values.to_vec(), shape).expect("a tensor")
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.as_slice::<f32>().expect("floats").to_vec()
}

/// `sum = x + y`, `product = sum * z`, where x, y and z are fed.
fn arithmetic() -> GraphDef {
    let mut graph = builder();
    let [x, y, z] = ["x", "y", "z"].map(|name| placeholder(&mut graph, name));
    let sum = graph.named("AddV2", "sum", &[x, y]);
    graph.named("Mul", "product", &[sum, z]);
    def(graph)
}

fn session(graph: GraphDef) -> Session {
    let session = Session::local().expect("an engine");
    session.create(graph).expect("a session");
    session
}

#[test]
fn a_constant_graph_is_run() {
    let mut graph = builder();
    let two = graph
        .constant("two", floats(&[2], &[2.0, 3.0]))
        .expect("a constant");
    graph.named("Mul", "four", &[two, two]);
    let session = session(def(graph));
    let got = session.run(&[], &["four", "two:0"], &[]).unwrap();
    assert_eq!(
        (values(&got[0]), values(&got[1])),
        (vec![4.0, 9.0], vec![2.0, 3.0])
    );
    assert!(session.run(&[], &[], &["four"]).unwrap().is_empty());
}

#[test]
fn a_session_has_a_life_and_says_where_it_is_in_it() {
    let session = Session::local().unwrap();
    let early = session.run(&[], &["x"], &[]).unwrap_err();
    assert_eq!(early.reason(), catalogue::SESSION_NONE);
    assert_eq!(
        session.devices().unwrap()[0].name,
        "/job:localhost/replica:0/task:0/device:CPU:0"
    );
    // Extending what has no graph creates it.
    session.extend(arithmetic()).unwrap();
    assert_eq!(
        session.create(arithmetic()).unwrap_err().reason(),
        catalogue::SESSION_EXISTS
    );
    let again = session.extend(arithmetic()).unwrap_err();
    assert_eq!(again.reason(), catalogue::GRAPH_NODE_EXISTS);
    assert!(again.message().contains("'x'"), "{again}");
    let callable = session.callable(&["x", "y"], &["sum"], &[]).unwrap();
    session.close().unwrap();
    session.close().unwrap();
    let feeds = [("x", row(&[1.0])), ("y", row(&[2.0]))];
    for late in [
        session.run(&feeds, &["sum"], &[]).unwrap_err(),
        callable.run(&[row(&[1.0]), row(&[2.0])]).unwrap_err(),
        session.extend(arithmetic()).unwrap_err(),
        session.create(arithmetic()).unwrap_err(),
        session.devices().unwrap_err(),
    ] {
        assert_eq!(
            (late.code(), late.message()),
            (Code::FailedPrecondition, "Session is closed.")
        );
    }
}

#[test]
fn feeds_and_fetches_are_checked_with_their_names() {
    let session = session(arithmetic());
    let (x, y) = (("x", row(&[1.0, 2.0])), ("y:0", row(&[3.0, 4.0])));
    let got = session.run(&[x.clone(), y.clone()], &["sum"], &[]).unwrap();
    assert_eq!(values(&got[0]), [4.0, 6.0]);
    let refused = |feeds: &[(&str, Tensor)], fetches: &[&str], text: &str| {
        let status = session.run(feeds, fetches, &[]).unwrap_err();
        assert!(status.message().contains(text), "{status}");
        status
    };
    refused(
        std::slice::from_ref(&x),
        &["absent"],
        "FetchOutputs node absent: not found",
    );
    refused(
        &[("absent", row(&[1.0]))],
        &["sum"],
        "unable to find feed output absent",
    );
    refused(
        &[],
        &[],
        "Must specify at least one target to fetch or execute.",
    );
    let status = refused(
        &[x.clone(), ("y", Tensor::scalar(1_i32))],
        &["sum"],
        "Cannot feed a tensor of i32 for 'y'",
    );
    assert_eq!(status.reason(), catalogue::FEED_UNFIT);
    // What is not fed is named by the node that needed it.
    refused(&[x], &["sum"], "y");
}

#[test]
fn an_output_may_be_fetched_several_times() {
    let session = session(arithmetic());
    let feeds = [("x", row(&[1.0])), ("y", row(&[2.0])), ("z", row(&[3.0]))];
    let fetches = ["sum", "product", "sum:0", "sum", "sum:00"];
    let right = |got: &[Tensor]| {
        let got: Vec<_> = got.iter().map(values).collect();
        assert_eq!(got, [[3.0], [9.0], [3.0], [3.0], [3.0]]);
    };
    right(&session.run(&feeds, &fetches, &[]).unwrap());
    let callable = session.callable(&["x", "y", "z"], &fetches, &[]).unwrap();
    right(&callable.run(&feeds.map(|(_, tensor)| tensor)).unwrap());
    // What is no output is refused as it is when it is asked for once.
    for unknown in ["nobody", "sum:x", ""] {
        let once = session.run(&[], &[unknown], &[]).unwrap_err();
        let twice = session.run(&[], &[unknown, unknown], &[]).unwrap_err();
        assert_eq!(once.to_string(), twice.to_string());
    }
}

#[test]
fn what_is_extended_sees_what_was_there() {
    let session = session(arithmetic());
    let feeds = [("x", row(&[1.0])), ("y", row(&[2.0]))];
    session.run(&feeds, &["sum"], &[]).unwrap();
    let mut more = rendez_proto::tensorflow::NodeDef {
        name: "twice".into(),
        op: "AddV2".into(),
        input: vec!["sum".into(), "sum".into()],
        ..Default::default()
    };
    crate::graph::attr::IntoAttr::into_attr(DataType::DtFloat)
        .clone_into(more.attr.entry("T".into()).or_default());
    let more = GraphDef {
        node: vec![more],
        ..GraphDef::default()
    };
    session.extend(more).unwrap();
    let got = session.run(&feeds, &["twice", "sum"], &[]).unwrap();
    assert_eq!((values(&got[0]), values(&got[1])), (vec![6.0], vec![3.0]));
}

#[test]
fn a_callable_is_run_by_many_threads_at_once() {
    let session = session(arithmetic());
    let callable = session
        .callable(&["x", "y", "z"], &["product", "sum"], &[])
        .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let callable = &callable;
            scope.spawn(move || {
                for round in 0..50_u8 {
                    let (x, y) = (f32::from(thread), f32::from(round));
                    let got = callable.run(&[row(&[x]), row(&[y]), row(&[2.0])]).unwrap();
                    assert_eq!(values(&got[0]), [(x + y) * 2.0]);
                    assert_eq!(values(&got[1]), [x + y]);
                }
            });
        }
    });
    let missing = callable.run(&[row(&[1.0])]).unwrap_err();
    assert_eq!(missing.message(), "2 feeds are missing: y, z");
    let many = callable.run(&vec![row(&[1.0]); 4]).unwrap_err();
    assert_eq!(many.reason(), catalogue::FEED_UNFIT);
}

/// Other kinds of steps are run beside as many callables as a session may have, all of other kinds.
#[test]
fn callables_keep_no_room_from_other_kinds_of_steps() {
    let mut graph = builder();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for name in names {
        graph.constant(name, floats(&[1], &[1.0])).unwrap();
    }
    let session = session(def(graph));
    // Five of the names, in all orders.
    let kinds = (0..8_usize.pow(5)).filter_map(|number| {
        let digits: Vec<_> = (0..5).map(|at| number / 8_usize.pow(at) % 8).collect();
        let distinct: std::collections::BTreeSet<_> = digits.iter().collect();
        (distinct.len() == 5).then(|| digits.into_iter().map(|digit| names[digit]).collect())
    });
    let mut kinds = kinds.collect::<Vec<Vec<&str>>>().into_iter();
    let callables: Vec<_> = kinds
        .by_ref()
        .take(SESSION_CALLABLES_MAX)
        .map(|kind| session.callable(&[], &kind, &[]).unwrap())
        .collect();
    for kind in kinds.take(3) {
        let got = session.run(&[], &kind, &[]);
        assert_eq!(got.unwrap().len(), kind.len());
    }
    drop(callables);
}

#[test]
fn a_partial_run_is_fed_and_fetched_piece_by_piece() {
    let session = session(arithmetic());
    let run = session
        .partial_run(&["x", "y", "z"], &["sum", "product"], &[])
        .unwrap();
    let refused = |feeds: &[(&str, Tensor)], fetches: &[&str]| {
        let status = run.run(feeds, fetches).unwrap_err();
        assert_eq!(status.reason(), catalogue::PARTIAL_RUN);
        status.message().to_owned()
    };
    assert_eq!(
        refused(&[("x", row(&[1.0]))], &["sum"]),
        "Fetch sum can't be computed from the feeds that have been fed so far."
    );
    assert_eq!(
        refused(&[], &["x"]),
        "The fetch x was not specified in partial_run_setup."
    );
    assert_eq!(
        refused(&[("sum", row(&[1.0]))], &[]),
        "The feed sum was not specified in partial_run_setup."
    );
    let got = run
        .run(&[("x", row(&[1.0])), ("y", row(&[2.0]))], &["sum"])
        .unwrap();
    assert_eq!(values(&got[0]), [3.0]);
    assert_eq!(
        refused(&[("x", row(&[1.0]))], &[]),
        "The feed x has already been fed."
    );
    assert_eq!(
        refused(&[], &["sum"]),
        "The fetch sum has already been fetched."
    );
    let got = run.run(&[("z", row(&[4.0]))], &["product"]).unwrap();
    assert_eq!(values(&got[0]), [12.0]);
    let over = run.run(&[], &["product"]).unwrap_err();
    assert_eq!(over.reason(), catalogue::PARTIAL_RUN_NONE);
    assert_eq!(
        over.message(),
        "Must run PartialRunSetup before performing partial runs."
    );
}

#[test]
fn a_fetch_of_what_waits_for_a_feed_is_refused_until_that_is_fed() {
    let mut graph = builder();
    let x = placeholder(&mut graph, "x");
    let two = graph.constant("two", floats(&[1], &[2.0])).unwrap();
    let y = graph.node("Identity").name("y").input(two).control(x.node);
    y.build().unwrap();
    let session = session(def(graph));
    let run = session.partial_run(&["x"], &["y"], &[]).unwrap();
    let patience = Duration::from_millis(500);
    let early = run.run_within(patience, &[], &["y"]).unwrap_err();
    assert_eq!(early.reason(), catalogue::PARTIAL_RUN, "{early}");
    let got = run.run(&[("x", row(&[1.0]))], &["y"]).unwrap();
    assert_eq!(values(&got[0]), [2.0]);
}

#[test]
fn what_is_fed_stands_for_all_that_comes_before_it() {
    let mut graph = builder();
    let x = placeholder(&mut graph, "x");
    let a = graph.named("Neg", "a", &[x]);
    graph.named("Neg", "b", &[x]);
    let z = graph.named("Neg", "z", &[a]);
    // What waits for `a` needs no value of it: it runs, though its value is fed.
    let w = graph.node("Identity").name("w").input(z).control(a.node);
    w.build().unwrap();
    let session = session(def(graph));
    let run = session.partial_run(&["x", "a"], &["z", "b", "w"], &[]);
    let run = run.unwrap();
    let got = run.run(&[("a", row(&[3.0]))], &["z"]).unwrap();
    assert_eq!(values(&got[0]), [-3.0]);
    let patience = Duration::from_millis(500);
    for early in ["b", "w"] {
        let early = run.run_within(patience, &[], &[early]).unwrap_err();
        assert_eq!(early.reason(), catalogue::PARTIAL_RUN, "{early}");
    }
    let got = run.run(&[("x", row(&[1.0]))], &["b", "w"]).unwrap();
    assert_eq!((values(&got[0]), values(&got[1])), (vec![-1.0], vec![-3.0]));
}

#[test]
fn a_partial_run_that_fails_tells_the_executors_failure() {
    let session = session(arithmetic());
    let run = session.partial_run(&["x", "y"], &["sum"], &[]).unwrap();
    let status = run
        .run(
            &[("x", row(&[1.0, 2.0])), ("y", row(&[1.0, 2.0, 3.0]))],
            &["sum"],
        )
        .unwrap_err();
    assert_eq!(status.reason(), catalogue::KERNEL_INPUT, "{status}");
    assert!(status.message().contains("sum"), "{status}");
    assert!(!status.is_derived());
}

#[test]
fn a_partial_run_that_is_given_up_leaves_nothing() {
    let session = session(arithmetic());
    let run = session.partial_run(&["x", "y"], &["sum"], &[]).unwrap();
    run.run(&[("x", row(&[1.0]))], &[]).unwrap();
    drop(run);
    let late = session.partial_run(&["x", "y"], &["sum"], &[]).unwrap();
    session.close().unwrap();
    let status = late.run(&[("x", row(&[1.0]))], &[]).unwrap_err();
    assert_eq!(status.reason(), catalogue::SESSION_CLOSED);
}

#[test]
fn a_step_that_fails_names_the_node() {
    let session = session(arithmetic());
    let feeds = [("x", row(&[1.0, 2.0])), ("y", row(&[1.0, 2.0, 3.0]))];
    let status = session.run(&feeds, &["sum"], &[]).unwrap_err();
    assert_eq!(status.reason(), catalogue::KERNEL_INPUT);
    assert!(
        status.message().contains("sum") && !status.message().contains("From "),
        "{status}"
    );
    // The next step is none the worse for it.
    let feeds = [("x", row(&[1.0])), ("y", row(&[1.0]))];
    assert_eq!(
        values(&session.run(&feeds, &["sum"], &[]).unwrap()[0]),
        [2.0]
    );
}

#[test]
fn settings_that_mean_nothing_here_are_refused() {
    let pools = ConfigProto {
        session_inter_op_thread_pool: vec![Default::default()],
        ..ConfigProto::default()
    };
    let session = Session::local().unwrap().configured(pools).unwrap();
    let status = session.create(arithmetic()).unwrap_err();
    assert_eq!(
        status.message(),
        "Distributed session does not support session thread pool options."
    );
    assert_eq!(status.code(), Code::InvalidArgument);
    let clone = session.clone();
    assert!(session.configured(ConfigProto::default()).is_err());
    drop(clone);
}

#[test]
fn sessions_of_one_master_share_variables_unless_they_are_isolated() {
    let variable = || {
        let mut graph = builder();
        let variable = graph
            .node("VariableV2")
            .name("v")
            .attr("dtype", DataType::DtFloat);
        let shape = crate::graph::PartialShape::known(&[]).to_proto();
        let variable = variable.attr("shape", shape).build().unwrap();
        let value = placeholder(&mut graph, "value");
        graph.named("Assign", "assign", &[variable, value]);
        def(graph)
    };
    let config = testing::config("/job:localhost/task:0");
    let near = std::sync::Arc::new(local::Local::start(config, Operations::standard()).unwrap());
    let way = |config: ConfigProto| {
        let shared: Box<dyn Backend> =
            Box::new(local::Local::on(std::sync::Arc::clone(near.runtime())));
        let session = Session::new(shared).configured(config).unwrap();
        session.create(variable()).unwrap();
        session
    };
    let (first, second) = (way(ConfigProto::default()), way(ConfigProto::default()));
    let isolated = ConfigProto {
        isolate_session_state: true,
        ..ConfigProto::default()
    };
    let alone = way(isolated);
    first
        .run(&[("value", Tensor::scalar(5.0_f32))], &[], &["assign"])
        .unwrap();
    assert_eq!(values(&second.run(&[], &["v"], &[]).unwrap()[0]), [5.0]);
    let empty = alone.run(&[], &["v"], &[]).unwrap_err();
    assert_eq!(empty.reason(), catalogue::VARIABLE_EMPTY, "{empty}");
    // A reset closes all sessions, and takes the variables with it.
    second.reset(&[]).unwrap();
    let gone = first.run(&[], &["v"], &[]).unwrap_err();
    assert_eq!(gone.reason(), catalogue::SESSION_UNKNOWN, "{gone}");
    let third = way(ConfigProto::default());
    let empty = third.run(&[], &["v"], &[]).unwrap_err();
    assert_eq!(empty.reason(), catalogue::VARIABLE_EMPTY);
}

#[test]
fn a_seeded_stream_goes_on_over_all_kinds_of_steps() {
    let drawing = || {
        let mut graph = builder();
        let shape = graph.constant("shape", ints(&[1], &[2])).unwrap();
        let drawn = graph.node("RandomUniform").name("drawn").input(shape);
        let drawn = drawn.attr("dtype", DataType::DtFloat).attr("seed", 3_i64);
        let drawn = drawn.attr("seed2", 4_i64).build().unwrap();
        graph.named("Neg", "less", &[drawn]);
        session(def(graph))
    };
    let alone = drawing();
    let draw = |session: &Session, fetches: &[&str]| {
        let got = session.run(&[], fetches, &[]).unwrap();
        values(&got[0])
    };
    let stream: Vec<_> = (0..4).map(|_| draw(&alone, &["drawn"])).collect();
    assert_ne!(stream[0], stream[1]);
    let mixed = drawing();
    let callable = mixed.callable(&[], &["drawn"], &["less"]).unwrap();
    let drawn = [
        draw(&mixed, &["drawn"]),
        draw(&mixed, &["drawn", "less"]),
        values(&callable.run(&[]).unwrap()[0]),
        draw(&mixed, &["drawn"]),
    ];
    assert_eq!(drawn.as_slice(), stream);
}

/// No step of it would ever run.
#[test]
fn a_session_wants_shards_that_have_a_thread() {
    let mut config = testing::config("/job:localhost/task:0");
    config.drive = Driver::Caller;
    let refused = Session::local_with(config).map(drop).unwrap_err();
    assert_eq!(refused.reason(), catalogue::CONFIG, "{refused}");
    assert!(refused.message().contains("drive"), "{refused}");
}

#[test]
fn a_node_with_the_longest_name_is_fed_and_fetched() {
    let mut graph = builder();
    let name = "n".repeat(958);
    let x = placeholder(&mut graph, &name);
    graph.named("AddV2", &"m".repeat(958), &[x, x]);
    let session = session(def(graph));
    let feeds = [(name.as_str(), row(&[2.0]))];
    let got = session.run(&feeds, &[&"m".repeat(958)], &[]).unwrap();
    assert_eq!(values(&got[0]), [4.0]);
    let mut graph = builder();
    placeholder(&mut graph, &"n".repeat(959));
    let status = Session::local().unwrap().create(def(graph)).unwrap_err();
    assert!(status.message().contains("NODE_NAME_BYTES_MAX"), "{status}");
}

#[test]
fn live_strings_take_of_the_arena_as_numbers_do() {
    let mut config = testing::config("/job:localhost/task:0");
    config.arena.bytes_max = 8 << 20;
    let session = Session::local_with(config).unwrap();
    let mut graph = builder();
    let many = graph.constant("many", ints(&[1], &[3 << 20])).unwrap();
    let zero = graph.constant("zero", floats(&[], &[0.0])).unwrap();
    graph.named("Fill", "numbers", &[many, zero]);
    let text = graph.node("Placeholder").name("text");
    let text = text.attr("dtype", DataType::DtString).build().unwrap();
    let joined = graph.node("StringJoin").name("joined");
    let joined = joined.inputs([text, text]).build().unwrap();
    let rows = graph.constant("rows", ints(&[1], &[100])).unwrap();
    graph.named("Fill", "filled", &[rows, joined]);
    session.create(def(graph)).unwrap();
    let full = session.run(&[], &["numbers"], &[]).unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted, "{full}");
    let fed = |bytes: usize| {
        let text = Tensor::from_strings(&["x".repeat(bytes)], Shape::SCALAR).unwrap();
        [("text", text)]
    };
    for (bytes, fetch) in [(5 << 20, "joined"), (64 << 10, "filled")] {
        let status = session.run(&fed(bytes), &[fetch], &[]).unwrap_err();
        let (told, wanted) = (
            (status.code(), status.reason()),
            (full.code(), full.reason()),
        );
        assert_eq!(told, wanted, "{status}");
    }
    // What is live counts, not what was.
    let join = || session.run(&fed(3 << 19), &["joined"], &[]);
    for _ in 0..3 {
        let live = [join().unwrap(), join().unwrap()];
        let strings = live[1][0].strings().unwrap();
        assert_eq!(strings.at(0).map(<[u8]>::len), Some(3 << 20));
        assert_eq!(join().unwrap_err().reason(), catalogue::ARENA_FULL);
    }
}
