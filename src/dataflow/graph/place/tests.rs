//! Placement: which node stands where and why, and which cannot.

use super::*;
use crate::graph::Import;
use crate::graph::builder::{Builder, ints};
use crate::graph::flow::Output;
use crate::operations::Operations;
use rendez::ground::Incarnation;
use rendez_proto::tensorflow::TensorShapeProto;
use rendez_proto::tensorflow::tensor_shape_proto::Dim;

fn devices() -> Devices {
    let names = [
        "/job:worker/replica:0/task:0/device:CPU:0",
        "/job:worker/replica:0/task:0/device:GPU:0",
        "/job:worker/replica:0/task:1/device:CPU:0",
        "/job:ps/replica:0/task:0/device:CPU:0",
        "/job:ps/replica:0/task:1/device:CPU:0",
    ];
    Devices::new(names.map(|name| (name, Incarnation(1)))).expect("devices")
}

fn placed(builder: Builder, soft: bool) -> Result<Graph, Status> {
    placed_graph(builder.finish()?, soft)
}

fn placed_graph(mut graph: Graph, soft: bool) -> Result<Graph, Status> {
    let placing = Placing {
        soft,
        kinds: &["CPU"],
        default: DeviceIndex(0),
    };
    place(&mut graph, &devices(), &placing)?;
    Ok(graph)
}

fn at(graph: &Graph, name: &str) -> u32 {
    let id = graph.find(name).expect(name);
    graph.node(id).assigned.expect("placed").0
}

fn variable(graph: &mut Builder, name: &str, device: &str, dims: &[i64]) -> Output {
    let dim = |&size: &i64| Dim {
        size,
        ..Dim::default()
    };
    let shape = TensorShapeProto {
        dim: dims.iter().map(dim).collect(),
        ..TensorShapeProto::default()
    };
    let node = graph
        .node("VariableV2")
        .name(name)
        .attr("dtype", DataType::DtInt32);
    node.attr("shape", shape)
        .device(device)
        .build()
        .expect("a variable")
}

#[test]
fn requests_defaults_and_companions() {
    let mut graph = Builder::new(Operations::standard().ops());
    let one = graph.constant("one", ints(&[], &[1])).expect("one");
    let far = graph
        .node("Neg")
        .input(one)
        .device("/job:worker/task:1")
        .name("far")
        .build()
        .expect("far");
    graph.named("Shape", "shape", &[far]);
    graph.named("Neg", "near", &[far]);
    let graph = placed(graph, false).expect("placed");
    assert_eq!(
        [
            at(&graph, "one"),
            at(&graph, "far"),
            at(&graph, "shape"),
            at(&graph, "near")
        ],
        [2, 2, 2, 0]
    );
}

#[test]
fn references_handles_and_classes_stand_together() {
    let mut graph = Builder::new(Operations::standard().ops());
    let v = variable(&mut graph, "v", "/job:ps/task:1", &[]);
    let one = graph.constant("one", ints(&[], &[1])).expect("one");
    graph.named("AssignAdd", "add", &[v, one]);
    graph.named("Neg", "read", &[v]);
    graph
        .node("Neg")
        .input(one)
        .beside(v.node)
        .name("beside")
        .build()
        .expect("beside");
    let handle = graph
        .node("VarHandleOp")
        .attr("dtype", DataType::DtInt32)
        .attr("shape", TensorShapeProto::default());
    let handle = handle
        .device("/job:ps/task:0")
        .name("h")
        .build()
        .expect("a handle");
    graph
        .node("ReadVariableOp")
        .input(handle)
        .attr("dtype", DataType::DtInt32)
        .name("value")
        .build()
        .expect("value");
    let graph = placed(graph, false).expect("placed");
    assert_eq!(
        [at(&graph, "v"), at(&graph, "add"), at(&graph, "beside")],
        [4, 4, 4]
    );
    assert_eq!(
        [at(&graph, "read"), at(&graph, "h"), at(&graph, "value")],
        [0, 3, 3]
    );
}

#[test]
fn what_cannot_stand_anywhere_is_named() {
    for (device, text) in [
        (
            "/job:worker/task:7",
            "was explicitly assigned to /job:worker/task:7 but available devices are",
        ),
        (
            "/device:GPU:0",
            "but no kernel here runs on that type of device",
        ),
        ("/device:GPU:3", "but available devices are"),
    ] {
        let mut graph = Builder::new(Operations::standard().ops());
        graph
            .node("NoOp")
            .name("n")
            .device(device)
            .build()
            .expect("n");
        let status = placed(graph, false).expect_err(device);
        assert_eq!(status.reason(), "GRAPH_PLACEMENT");
        assert!(
            status
                .message()
                .starts_with("Cannot assign a device for operation n: {{node n}}"),
            "{status}"
        );
        assert!(status.message().contains(text), "{status}");
    }
    let mut graph = Builder::new(Operations::standard().ops());
    graph
        .node("NoOp")
        .name("n")
        .device("/jib:worker")
        .build()
        .expect("n");
    assert_eq!(
        placed(graph, true).expect_err("no device").reason(),
        "DEVICE_MALFORMED"
    );
}

#[test]
fn soft_placement_stays_on_the_task() {
    let mut graph = Builder::new(Operations::standard().ops());
    graph
        .node("NoOp")
        .name("n")
        .device("/job:worker/task:1/device:GPU:5")
        .build()
        .expect("n");
    graph
        .node("NoOp")
        .name("m")
        .device("/device:GPU:0")
        .build()
        .expect("m");
    let graph = placed(graph, true).expect("placed");
    assert_eq!([at(&graph, "n"), at(&graph, "m")], [2, 0]);
    let mut graph = Builder::new(Operations::standard().ops());
    graph
        .node("NoOp")
        .device("/job:worker/task:9")
        .build()
        .expect("n");
    assert_eq!(
        placed(graph, true).expect_err("another task").reason(),
        "GRAPH_PLACEMENT"
    );
}

/// `name` assigns `one` to `variable`, on that device.
fn assigns(graph: &mut Builder, variable: Output, one: Output, name: &str, device: &str) -> Output {
    let assign = graph.node("Assign").input(variable).input(one);
    assign.name(name).device(device).build().expect(name)
}

#[test]
fn a_variable_wins_over_what_reads_and_writes_it() {
    for soft in [false, true] {
        let mut graph = Builder::new(Operations::standard().ops());
        let one = graph.constant("one", ints(&[], &[1])).expect("one");
        let v = variable(&mut graph, "v", "/job:ps/task:1", &[]);
        let a = assigns(&mut graph, v, one, "a", "/job:worker/task:0");
        // It gets its reference through another, which was not heard either.
        assigns(&mut graph, a, one, "b", "/job:worker/task:1");
        let handle = graph.node("VarHandleOp").attr("dtype", DataType::DtInt32);
        let handle = handle.attr("shape", TensorShapeProto::default());
        let handle = handle.device("/job:ps/task:0").name("h");
        let handle = handle.build().expect("a handle");
        let is_there = graph.node("VarIsInitializedOp").input(handle);
        let is_there = is_there.device("/job:worker/task:1").name("is_there");
        is_there.build().expect("is_there");
        // A variable that asks for nothing stands where the first that uses it asks to be.
        let w = variable(&mut graph, "w", "", &[]);
        assigns(&mut graph, w, one, "c", "/job:worker/task:1");
        assigns(&mut graph, w, one, "d", "/job:ps/task:0");
        let graph = placed(graph, soft).expect("placed");
        assert_eq!(["v", "a", "b"].map(|name| at(&graph, name)), [4, 4, 4]);
        assert_eq!(["h", "is_there"].map(|name| at(&graph, name)), [3, 3]);
        assert_eq!(["w", "c", "d"].map(|name| at(&graph, name)), [2, 2, 2]);
    }
}

#[test]
fn an_order_of_nodes_against_the_edges_changes_nothing() {
    let mut graph = Builder::new(Operations::standard().ops());
    let one = graph.constant("one", ints(&[], &[1])).expect("one");
    let v = variable(&mut graph, "v", "/job:ps/task:1", &[]);
    let a = assigns(&mut graph, v, one, "a", "/job:worker/task:0");
    assigns(&mut graph, a, one, "b", "/job:worker/task:1");
    let mut def = graph.finish().expect("a graph").to_def();
    def.node.reverse();
    let read = Graph::from_def(def, Operations::standard().ops(), Import::Client);
    let graph = placed_graph(read.expect("a graph"), false).expect("placed");
    assert_eq!(["v", "a", "b"].map(|name| at(&graph, name)), [4, 4, 4]);
}

#[test]
fn groups_that_contradict_themselves_are_named() {
    let mut graph = Builder::new(Operations::standard().ops());
    let v = variable(&mut graph, "v", "/job:ps/task:1", &[]);
    let one = graph.constant("one", ints(&[], &[1])).expect("one");
    graph
        .node("Neg")
        .input(one)
        .beside(v.node)
        .name("a")
        .device("/job:worker")
        .build()
        .expect("a");
    let status = placed(graph, true).expect_err("two jobs");
    assert!(
        status.message().contains(
            "Cannot colocate nodes {{colocation_node a}} and {{colocation_node v}}: \
             Cannot merge devices with incompatible jobs"
        ),
        "{status}"
    );
    // Two variables stay where they are, and a node of both stands nowhere.
    let mut graph = Builder::new(Operations::standard().ops());
    let [v, w] = [("v", "/job:ps/task:0"), ("w", "/job:ps/task:1")]
        .map(|(name, device)| variable(&mut graph, name, device, &[]));
    let both = graph.node("RefMerge").inputs([v, w]).name("both");
    both.build().expect("both");
    let status = placed(graph, true).expect_err("two variables");
    assert!(
        status.message().starts_with(
            "Cannot place the graph because a reference or resource edge connects colocation groups with \
             incompatible resource devices"
        ),
        "{status}"
    );
    let mut graph = Builder::new(Operations::standard().ops());
    graph
        .node("NoOp")
        .attr("_class", vec!["loc:@absent"])
        .name("n")
        .build()
        .expect("n");
    let status = placed(graph, true).expect_err("absent");
    assert_eq!(
        status.message(),
        "Node 'n' expects to be colocated with unknown node 'absent'"
    );
}

#[test]
fn filters_leave_what_matches_and_the_own_task() {
    let own = devices().iter().next().map(|device| device.task.clone());
    let left = devices()
        .filtered(&["/job:ps/task:1".to_owned()], own.as_ref())
        .expect("filtered");
    let left: Vec<_> = left.iter().map(|device| device.name.to_string()).collect();
    assert_eq!(left.len(), 3);
    assert!(left[2].contains("/job:ps/replica:0/task:1"));
    assert_eq!(devices().filtered(&[], None).expect("all").len(), 5);
    assert!(devices().filtered(&["/jab:x".to_owned()], None).is_err());
}

#[test]
fn a_setter_balances_variables() {
    let build = || {
        let mut graph = Builder::new(Operations::standard().ops());
        for (name, len) in [("a", 100), ("b", 10), ("c", 20), ("d", 30), ("e", 50)] {
            variable(&mut graph, name, "", &[len]);
        }
        variable(&mut graph, "own", "/job:worker/task:1", &[1]);
        graph
            .node("NoOp")
            .name("n")
            .device("/device:GPU:0")
            .build()
            .expect("n");
        graph.finish().expect("a graph")
    };
    let tasks = |strategy| {
        let mut graph = build();
        let mut setter =
            DeviceSetter::new("ps", 2, "/job:worker/task:0", strategy).expect("a setter");
        setter.apply(&mut graph).expect("set");
        let device = |name: &str| graph.node(graph.find(name).expect(name)).device.clone();
        assert_eq!(device("own"), "/job:worker/task:1");
        assert_eq!(device("n"), "/job:worker/task:0/device:GPU:0");
        let task = |name| DeviceName::parse(&device(name)).expect("a device").task();
        (
            ["a", "b", "c", "d", "e"].map(|name| task(name).expect("a task")),
            setter.loads().to_vec(),
        )
    };
    assert_eq!(tasks(Strategy::RoundRobin).0, [0, 1, 0, 1, 0]);
    assert_eq!(tasks(Strategy::Bytes), ([0, 1, 1, 1, 1], vec![400, 440]));
    let mut graph = Builder::new(Operations::standard().ops());
    variable(&mut graph, "v", "", &[-1]);
    let mut graph = graph.finish().expect("a graph");
    let mut setter = DeviceSetter::new("ps", 2, "/job:worker", Strategy::Bytes).expect("a setter");
    assert_eq!(
        setter.apply(&mut graph).expect_err("no bytes").reason(),
        "GRAPH_SHAPE"
    );
}
