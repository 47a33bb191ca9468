//! Graphs that make no sense are refused before anything runs, by a master in this process and in another, with the
//! node named; and clients that are killed leave nothing.

use std::process::{Command, Stdio};

use prost::Message;
use rendez::ground::{Code, catalogue};
use rendez_dataflow::server::Session;
use rendez_proto::tensorflow::{GraphDef, NodeDef};

use crate::support::*;

const FIRST: &str = "/job:worker/task:0";

/// `sum = x + x` on the worker.
fn whole() -> GraphDef {
    let mut graph = Draft::new();
    let x = graph.placeholder("x");
    graph.on(FIRST).node("AddV2", "sum", &[x, x]);
    graph.finish()
}

/// The same with something done to the node `sum`.
fn spoilt(how: impl Fn(&mut NodeDef)) -> GraphDef {
    let mut graph = whole();
    let sum = graph.node.iter_mut().find(|node| node.name == "sum");
    how(sum.expect("it is there"));
    graph
}

/// What is wrong with a graph, and what must be said of it.
fn cases() -> Vec<(&'static str, GraphDef, &'static str)> {
    let mut cyclic = spoilt(|sum| sum.input[1] = "more".into());
    cyclic.node.push(NodeDef {
        name: "more".into(),
        op: "Identity".into(),
        input: vec!["sum".into()],
        attr: cyclic.node[0]
            .attr
            .clone()
            .into_values()
            .map(|value| ("T".into(), value))
            .take(1)
            .collect(),
        ..NodeDef::default()
    });
    let mut twice = whole();
    let again = twice.node[0].clone();
    twice.node.push(again);
    vec![
        ("cyclic", cyclic, "sum"),
        (
            "an input that is not there",
            spoilt(|sum| sum.input[1] = "absent".into()),
            "absent",
        ),
        (
            "an output that is not there",
            spoilt(|sum| sum.input[1] = "x:7".into()),
            "sum",
        ),
        ("too few inputs", spoilt(|sum| sum.input.truncate(1)), "sum"),
        (
            "no such operation",
            spoilt(|sum| sum.op = "Frobnicate".into()),
            "Frobnicate",
        ),
        (
            "no such device",
            spoilt(|sum| sum.device = "/job:nowhere/task:3".into()),
            "/job:nowhere",
        ),
        (
            "a device that is none",
            spoilt(|sum| sum.device = "/job:worker/task:x".into()),
            "sum",
        ),
        ("no type", spoilt(|sum| sum.attr.clear()), "sum"),
        (
            "a name that is none",
            spoilt(|sum| sum.name = "^sum one".into()),
            "^sum one",
        ),
        ("a name that is taken", twice, "x"),
    ]
}

#[test]
fn graphs_that_make_no_sense_are_refused_by_name() {
    let spec = spec(1);
    let servers = start_all(&spec);
    let target = servers[0].target().unwrap();
    for (what, graph, named) in cases() {
        let near = Session::on(&servers[0]).unwrap();
        let far = Session::connect_with(&target, config("/job:any/task:0")).unwrap();
        let [near, far] = [near, far].map(|session| {
            // A device is looked for when the graph comes, and whatever else at the latest when it is to be run.
            let refused = session.create(graph.clone());
            let refused =
                refused.and_then(|()| session.run(&[("x", row(&[1.0]))], &["sum"], &[]).map(drop));
            let refused = refused.expect_err(what);
            assert!(refused.message().contains(named), "{what}: {refused}");
            let kinds = ["GRAPH_", "DEVICE_"];
            let is_refusal = matches!(
                refused.code(),
                Code::InvalidArgument | Code::NotFound | Code::Unimplemented
            );
            assert!(
                is_refusal && kinds.iter().any(|kind| refused.reason().starts_with(kind)),
                "{what}: {refused:?}"
            );
            // It is as good as before, unless it has a graph.
            let _ = session.close();
            (refused.reason(), refused.message().to_owned())
        });
        assert_eq!(near, far, "{what}: who is outside is told the same");
        await_no_session(&servers);
    }
    stop_all(&servers);
}

#[test]
fn a_graph_that_is_cut_short_is_no_graph_or_a_smaller_one() {
    let bytes = whole().encode_to_vec();
    let mut refused = 0;
    for len in 0..bytes.len() {
        match rendez_dataflow::graph::decode(&bytes[..len]) {
            Ok(graph) => {
                assert!(graph.node.len() < whole().node.len() || graph.encode_to_vec().len() <= len)
            }
            Err(status) => {
                assert_eq!(
                    status.reason(),
                    catalogue::GRAPH_MALFORMED,
                    "{len}: {status}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused > bytes.len() / 2, "{refused} of {}", bytes.len());
}

#[test]
fn a_client_that_is_killed_in_mid_step_leaves_nothing() {
    let spec = spec(1);
    let servers = start_all(&spec);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("graph.pb");
    let mut graph = Draft::new();
    graph.on(FIRST).count("forever", i32::MAX);
    std::fs::write(&file, graph.finish().encode_to_vec()).unwrap();
    let mut client = Command::new(env!("CARGO_BIN_EXE_rendez"))
        .args(["run", file.to_str().unwrap(), "--fetch", "forever", "--on"])
        .arg(servers[0].target().unwrap())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the step runs", || servers[1].load().unwrap().steps > 0);
    client.kill().unwrap();
    client.wait().unwrap();
    // The step ends, and the session with it: neither can go on.
    await_no_session(&servers);
    stop_all(&servers);
}

#[test]
fn a_graph_that_is_run_waits_for_absent_tasks_as_long_as_it_is_told_to() {
    let spec = spec(1);
    let master = start(&spec, "/job:ps/task:0");
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("graph.pb");
    let mut graph = Draft::new();
    graph.on("/job:ps/task:0").constant("one", &[1.0]);
    std::fs::write(&file, graph.finish().encode_to_vec()).unwrap();
    let ran = Command::new(env!("CARGO_BIN_EXE_rendez"))
        .args(["run", file.to_str().unwrap(), "--fetch", "one"])
        .args(["--patience", "6s", "--on"])
        .arg(master.target().unwrap())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("WORKER_ABSENT"), "{said}");
    assert!(
        said.contains("waited 4.5s for a response from worker: /job:worker"),
        "{said}"
    );
    master.stop(None);
}
