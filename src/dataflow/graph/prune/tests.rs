//! Pruning: what is left, what comes in its place, and what is refused in whose words.

use super::*;
use crate::graph::attr;
use crate::graph::builder::{Builder, ints};
use crate::graph::devices::Devices;
use crate::operations::Operations;
use rendez::ground::Incarnation;

const CLIENT: &str = "/job:j/replica:0/task:0/device:CPU:0";

fn graph() -> Graph {
    let mut graph = Builder::new(Operations::standard().ops());
    let x = graph
        .node("Placeholder")
        .attr("dtype", DataType::DtInt32)
        .name("x")
        .build()
        .expect("x");
    let c = graph.constant("c", ints(&[], &[1])).expect("c");
    let y = graph.named("Add", "y", &[x, c]);
    graph.named("Neg", "z", &[y]);
    graph
        .node("Neg")
        .input(c)
        .control(x.node)
        .name("w")
        .build()
        .expect("w");
    graph
        .node("NoOp")
        .control(y.node)
        .name("n")
        .build()
        .expect("n");
    graph.finish().expect("a graph")
}

fn run(
    feeds: &[&str],
    fetches: &[&str],
    targets: &[&str],
    convention: Convention,
) -> Result<Pruned, Status> {
    let devices = Devices::new([(CLIENT, Incarnation(77))]).expect("devices");
    let device = devices.device(DeviceIndex(0)).expect("a device");
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    let endpoints = Endpoints {
        feeds: texts(feeds),
        fetches: texts(fetches),
        targets: texts(targets),
    };
    prune(
        &graph(),
        Operations::standard().ops(),
        &endpoints,
        (DeviceIndex(0), device),
        convention,
    )
}

fn names(pruned: &Pruned) -> Vec<&str> {
    pruned
        .graph
        .nodes()
        .map(|(_, node)| node.name.as_str())
        .collect()
}

#[test]
fn only_what_is_needed_is_left() {
    let pruned = run(&["x"], &["z:0"], &[], Convention::Rendezvous).expect("pruned");
    assert_eq!(names(&pruned), ["c", "y", "z", "_recv_x_0", "_send_z_0"]);
    let y = pruned
        .graph
        .find("y")
        .map(|id| pruned.graph.node(id))
        .expect("y");
    assert_eq!(pruned.graph.node(y.inputs()[0].node).name, "_recv_x_0");
    let recv = pruned
        .graph
        .find("_recv_x_0")
        .map(|id| pruned.graph.node(id))
        .expect("recv");
    assert_eq!(attr::text(&recv.attrs, "tensor_name"), Some("x"));
    assert_eq!(attr::text(&recv.attrs, "send_device"), Some(CLIENT));
    assert_eq!(attr::int(&recv.attrs, "send_device_incarnation"), Some(77));
    assert_eq!(attr::bool(&recv.attrs, "client_terminated"), Some(true));
    assert_eq!(
        (recv.device.as_str(), recv.assigned),
        (CLIENT, Some(DeviceIndex(0)))
    );
    assert_eq!(pruned.feed_types, [DataType::DtInt32]);
    assert_eq!(pruned.graph.edges(), 4);
    pruned.graph.order().expect("still in order");
}

#[test]
fn a_feed_in_the_middle_cuts_off_what_made_it() {
    let pruned = run(&["y"], &["z"], &[], Convention::Arguments).expect("pruned");
    assert_eq!(names(&pruned), ["z", "_arg_y_0_0", "_retval_z_0_0"]);
    // A node that waits for one that is fed still waits for it, unless that is a placeholder.
    let pruned = run(&["y"], &[], &["n"], Convention::Arguments).expect("pruned");
    assert_eq!(names(&pruned), ["x", "c", "y", "n"]);
    let pruned = run(&["x"], &["w"], &[], Convention::Arguments).expect("pruned");
    assert_eq!(names(&pruned), ["c", "w", "_arg_x_0_0", "_retval_w_0_0"]);
}

#[test]
fn what_makes_no_sense_is_refused_as_by_the_original() {
    let refused = |feeds: &[&str], fetches: &[&str], targets: &[&str], reason: &str, text: &str| {
        let status = run(feeds, fetches, targets, Convention::Rendezvous).expect_err(text);
        assert_eq!((status.reason(), status.message()), (reason, text));
    };
    let (bad, unknown) = ("GRAPH_ENDPOINT", "GRAPH_ENDPOINT_UNKNOWN");
    refused(
        &["x"],
        &[],
        &[],
        bad,
        "Must specify at least one target to fetch or execute.",
    );
    refused(
        &["x", "x:0"],
        &["y"],
        &[],
        bad,
        "Endpoint \"x:0\" fed more than once.",
    );
    refused(&["x:0"], &["x"], &[], bad, "x is both fed and fetched.");
    refused(
        &[],
        &["y", "y:0"],
        &[],
        bad,
        "Endpoint \"y:0\" fetched more than once.",
    );
    refused(
        &["q"],
        &["y"],
        &[],
        unknown,
        "FeedInputs: unable to find feed output q",
    );
    refused(
        &["x:1"],
        &["y"],
        &[],
        bad,
        "FeedInputs: x:1 should have output index < 1",
    );
    refused(
        &[],
        &["q:0"],
        &[],
        unknown,
        "FetchOutputs node q:0: not found",
    );
    refused(
        &[],
        &["y:1"],
        &[],
        bad,
        "FetchOutputs y:1: output index too large, must be < 1",
    );
    refused(
        &[],
        &["y"],
        &["q", "r"],
        unknown,
        "PruneForTargets: Some target nodes not found: q r ",
    );
    let status = run(&[], &["n"], &[], Convention::Rendezvous).expect_err("no output");
    assert!(
        status
            .message()
            .starts_with("Tried to fetch data for 'n', which produces no output.")
    );
}

#[test]
fn what_is_kept_shares_its_attributes_with_the_whole() {
    let whole = graph();
    let devices = Devices::new([(CLIENT, Incarnation(77))]).expect("devices");
    let client = (DeviceIndex(0), devices.device(DeviceIndex(0)).expect("one"));
    let endpoints = Endpoints {
        fetches: vec!["w".to_owned()],
        ..Endpoints::default()
    };
    let ops = Operations::standard();
    let convention = Convention::Arguments;
    let pruned = prune(&whole, ops.ops(), &endpoints, client, convention);
    let [of_whole, of_kept] = [&whole, &pruned.expect("a graph").graph].map(|graph| {
        let constant = graph.find("c").expect("c");
        std::sync::Arc::clone(&graph.node(constant).attrs)
    });
    assert!(std::sync::Arc::ptr_eq(&of_whole, &of_kept));
}

#[test]
fn a_variable_may_be_fed_to_what_reads_its_value_only() {
    let operations = Operations::standard();
    let mut graph = Builder::new(operations.ops());
    let variable = graph.node("VariableV2").attr("dtype", DataType::DtInt32);
    let shape = crate::graph::PartialShape::scalar().to_proto();
    let v = variable.attr("shape", shape).name("v").build().expect("v");
    graph.named("Neg", "y", &[v]);
    graph.named("Assign", "w", &[v, v]);
    let graph = graph.finish().expect("a graph");
    let devices = Devices::new([(CLIENT, Incarnation(77))]).expect("devices");
    let client = (DeviceIndex(0), devices.device(DeviceIndex(0)).expect("one"));
    let fed = |fetch: &str| {
        let endpoints = Endpoints {
            feeds: vec!["v".to_owned()],
            fetches: vec![fetch.to_owned()],
            ..Endpoints::default()
        };
        let convention = Convention::Arguments;
        prune(&graph, operations.ops(), &endpoints, client, convention)
    };
    let pruned = fed("y").expect("what assigns does not run");
    assert_eq!(names(&pruned), ["y", "_arg_v_0_0", "_retval_y_0_0"]);
    assert_eq!(fed("w").expect_err("a value").reason(), "GRAPH_TYPE");
}
