//! The graph: what is read, what is refused, and in whose words.

use proptest::prelude::*;

use super::*;
use crate::graph::attr::IntoAttr;
use crate::graph::builder::{Builder, floats, ints};
use crate::graph::decode;
use crate::operations::Operations;
use prost::Message;
use rendez::ground::Code;
use rendez_proto::tensorflow::{DataType, FunctionDef, FunctionDefLibrary, OpDef};

fn node(name: &str, op: &str, inputs: &[&str], attrs: &[(&str, DataType)]) -> NodeDef {
    NodeDef {
        name: name.to_owned(),
        op: op.to_owned(),
        input: inputs.iter().map(|&text| text.to_owned()).collect(),
        attr: attrs
            .iter()
            .map(|(name, base)| ((*name).to_owned(), base.into_attr()))
            .collect(),
        ..NodeDef::default()
    }
}

impl IntoAttr for &DataType {
    fn into_attr(self) -> rendez_proto::tensorflow::AttrValue {
        (*self).into_attr()
    }
}

const FLOAT: &[(&str, DataType)] = &[("T", DataType::DtFloat)];
const SOURCE: &[(&str, DataType)] = &[("dtype", DataType::DtFloat)];

fn read(nodes: Vec<NodeDef>) -> Result<Graph, Status> {
    let def = GraphDef {
        node: nodes,
        ..GraphDef::default()
    };
    Graph::from_def(def, Operations::standard().ops(), Import::Client)
}

fn refused(nodes: Vec<NodeDef>, reason: &str, text: &str) {
    let status = read(nodes).expect_err(text);
    assert_eq!(status.reason(), reason, "{status}");
    assert!(status.message().contains(text), "{status}");
}

#[test]
fn what_is_read_is_written_again() {
    let nodes = vec![
        node("y", "Add", &["x", "s:1", "^n"], FLOAT),
        node("x", "Placeholder", &[], SOURCE),
        node("p", "Placeholder", &[], &[("dtype", DataType::DtBool)]),
        node("s", "Switch", &["x", "p"], FLOAT),
        node("n", "NoOp", &[], &[]),
    ];
    let graph = read(nodes.clone()).expect("a graph");
    let again = graph.to_def();
    for (before, after) in nodes.iter().zip(&again.node) {
        assert_eq!(
            (&before.name, &before.op, &before.input),
            (&after.name, &after.op, &after.input)
        );
    }
    let bytes = again.encode_to_vec();
    assert_eq!(decode(&bytes).expect("the same"), again);
}

#[test]
fn what_is_wrong_is_named_as_the_original_names_it() {
    let x = || node("x", "Placeholder", &[], SOURCE);
    let malformed = "GRAPH_MALFORMED";
    refused(vec![x(), x()], malformed, "Node 'x' is not unique");
    refused(
        vec![node("y z", "NoOp", &[], &[])],
        malformed,
        "Node name contains invalid characters",
    );
    refused(
        vec![node("_y", "NoOp", &[], &[])],
        malformed,
        "Node name contains invalid characters",
    );
    refused(
        vec![node(&"y".repeat(960), "NoOp", &[], &[])],
        malformed,
        "NODE_NAME_BYTES_MAX",
    );
    refused(
        vec![node("y", "Neg", &["q"], FLOAT)],
        malformed,
        "Node 'y': Unknown input node 'q'",
    );
    refused(
        vec![x(), node("y", "Neg", &["x:"], FLOAT)],
        malformed,
        "'x:' is no input",
    );
    refused(
        vec![x(), node("y", "Neg", &["x:+1"], FLOAT)],
        malformed,
        "'x:+1' is no input",
    );
    refused(
        vec![x(), node("y", "Neg", &["^"], FLOAT)],
        malformed,
        "'^' is no input",
    );
    let text = "Connecting to invalid output 3 of source node x which has 1 outputs.";
    refused(
        vec![x(), node("y", "Neg", &["x:3"], FLOAT)],
        malformed,
        text,
    );
    let text = "Control dependencies must come after regular dependencies";
    refused(
        vec![x(), node("y", "Neg", &["^x", "x"], FLOAT)],
        malformed,
        text,
    );
    let text = "NodeDef expected inputs 'float, float' do not match 1 inputs specified";
    refused(vec![x(), node("y", "Add", &["x"], FLOAT)], malformed, text);
    refused(
        vec![x(), node("y", "Add", &["x"], FLOAT)],
        malformed,
        "Incomplete graph, missing 1 inputs for y",
    );
    let text = "Input 0 of node y was passed float from x:0 incompatible with expected int32.";
    refused(
        vec![x(), node("y", "Neg", &["x"], &[("T", DataType::DtInt32)])],
        "GRAPH_TYPE",
        text,
    );
    refused(
        vec![node("y", "Frob", &[], &[])],
        "GRAPH_OP_UNKNOWN",
        "Op type not registered 'Frob', which node 'y'",
    );
    refused(
        vec![x(), node("y", "Neg", &["x"], &[])],
        "GRAPH_ATTR",
        "NodeDef missing attr 'T' from Op<Neg>",
    );
    let attrs = &[("T", DataType::DtFloat), ("U", DataType::DtFloat)];
    refused(
        vec![x(), node("y", "Neg", &["x"], attrs)],
        "GRAPH_ATTR",
        "'U' that Op<Neg> has not",
    );
    let text = "Value for attr 'T' of string is not in the list of allowed values: float";
    refused(
        vec![x(), node("y", "Neg", &["x"], &[("T", DataType::DtString)])],
        "GRAPH_ATTR",
        text,
    );
    refused(
        vec![node("y", "_Arg", &[], FLOAT)],
        malformed,
        "op _Arg is made by cutting a graph",
    );
}

#[test]
fn counts_that_ask_for_too_much_are_refused() {
    let mut split = node("s", "Split", &["x", "x"], FLOAT);
    split
        .attr
        .insert("num_split".to_owned(), i64::MAX.into_attr());
    refused(
        vec![split.clone()],
        "GRAPH_LIMIT",
        "more than 16384 tensors",
    );
    split.attr.insert("num_split".to_owned(), 0i64.into_attr());
    refused(
        vec![split.clone()],
        "GRAPH_ATTR",
        "must be at least minimum 1",
    );
    split
        .attr
        .insert("num_split".to_owned(), (-1i64).into_attr());
    refused(vec![split], "GRAPH_ATTR", "must be at least minimum 1");
    let many = (0..2000).map(|at| {
        let mut one = node(&format!("s{at}"), "Split", &["x", "x"], FLOAT);
        let parts = 16_000i64.into_attr();
        one.attr.insert("num_split".to_owned(), parts);
        one
    });
    refused(many.collect(), "GRAPH_LIMIT", "GRAPH_PORTS_MAX");
}

#[test]
fn cycles_go_through_a_next_iteration_or_not_at_all() {
    let cycle = vec![
        node("a", "Neg", &["b"], FLOAT),
        node("b", "Neg", &["a"], FLOAT),
    ];
    refused(cycle, "GRAPH_CYCLE", "2 nodes in a cycle");
    refused(
        vec![node("a", "NoOp", &["^a"], &[])],
        "GRAPH_CYCLE",
        "1 nodes in a cycle",
    );
    let mut merge = node("m", "Merge", &["x", "n"], FLOAT);
    merge.attr.insert("N".to_owned(), 2i64.into_attr());
    let around = |op| {
        let x = node("x", "Placeholder", &[], SOURCE);
        vec![x, merge.clone(), node("n", op, &["m"], FLOAT)]
    };
    assert!(read(around("NextIteration")).is_ok());
    refused(around("Identity"), "GRAPH_CYCLE", "m, n");
}

#[test]
fn what_a_graph_is_extended_by_may_name_what_is_there_which_is_not_read_again() {
    let operations = Operations::standard();
    let ops = operations.ops();
    let def = |nodes| GraphDef {
        node: nodes,
        ..GraphDef::default()
    };
    let graph = read(vec![node("x", "Placeholder", &[], SOURCE)]).expect("a graph");
    let more = def(vec![node("y", "Neg", &["x"], FLOAT)]);
    let whole = graph.extended(more, ops, Import::Client).expect("more");
    assert_eq!((graph.len(), whole.len(), whole.edges()), (1, 2, 1));
    let x = NodeId(0);
    assert!(Arc::ptr_eq(&graph.node(x).attrs, &whole.node(x).attrs));
    let again = def(vec![
        node("z", "NoOp", &[], &[]),
        node("y", "NoOp", &[], &[]),
    ]);
    let status = whole
        .extended(again, ops, Import::Client)
        .expect_err("again");
    assert_eq!(status.reason(), "GRAPH_NODE_EXISTS");
    let wanted = "GraphDef argument to Extend includes node 'y', which was created by";
    assert!(status.message().starts_with(wanted), "{status}");
}

#[test]
fn a_handle_is_read_and_assigned_as_what_its_variable_holds() {
    let handle = |base: DataType| {
        let mut handle = node("v", "VarHandleOp", &[], &[("dtype", base)]);
        let shape = crate::graph::PartialShape::scalar().to_proto();
        handle.attr.insert("shape".to_owned(), shape.into_attr());
        handle
    };
    let value = node("x", "Placeholder", &[], SOURCE);
    for (op, inputs) in [
        ("AssignVariableOp", &["v", "x"][..]),
        ("ReadVariableOp", &["v"]),
    ] {
        let user = node("u", op, inputs, SOURCE);
        assert!(read(vec![handle(DataType::DtFloat), value.clone(), user.clone()]).is_ok());
        let wrong = vec![handle(DataType::DtInt32), value.clone(), user];
        let text = "Trying to read variable with wrong dtype. Expected int32 got float";
        refused(wrong, "GRAPH_TYPE", text);
    }
}

#[test]
fn a_function_is_refused_by_name_where_it_is_called_only() {
    let named = FunctionDef {
        signature: Some(OpDef {
            name: "my_function".to_owned(),
        }),
    };
    let library = FunctionDefLibrary {
        function: vec![named, FunctionDef::default()],
    };
    let def = |op| GraphDef {
        node: vec![node("c", op, &[], &[])],
        library: Some(library.clone()),
        ..GraphDef::default()
    };
    let ops = Operations::standard().ops().clone();
    assert!(Graph::from_def(def("NoOp"), &ops, Import::Client).is_ok());
    let status = Graph::from_def(def("my_function"), &ops, Import::Client)
        .expect_err("functions are not built");
    assert_eq!(
        (status.reason(), status.code()),
        ("GRAPH_FUNCTION", Code::Unimplemented)
    );
    assert!(status.message().contains("node 'c' calls 'my_function'"));
}

#[test]
fn versions_decide_who_may_read() {
    let with = |producer, min_consumer, bad: &[i32]| GraphDef {
        versions: Some(VersionDef {
            producer,
            min_consumer,
            bad_consumers: bad.to_vec(),
        }),
        ..GraphDef::default()
    };
    let ops = Operations::standard().ops().clone();
    assert!(Graph::from_def(with(1395, 12, &[5]), &ops, Import::Client).is_ok());
    for def in [
        with(0, i32::MAX, &[]),
        with(-1, 0, &[]),
        with(9, 0, &[1987]),
    ] {
        let status = Graph::from_def(def, &ops, Import::Client).expect_err("versions");
        assert_eq!(status.reason(), "GRAPH_VERSION");
    }
}

#[test]
fn a_builder_infers_types_and_counts() {
    let mut graph = Builder::new(Operations::standard().ops());
    let one = graph.constant("c", ints(&[2], &[1])).expect("c");
    let two = graph.constant("c", floats(&[2], &[1.0])).expect("another");
    assert_eq!(graph.graph().node(two.node).name, "c_1");
    let sum = graph.put("AddN", &[one, one, one]);
    let attrs = &graph.graph().node(sum.node).attrs;
    assert_eq!(crate::graph::attr::int(attrs, "N"), Some(3));
    let both = graph.put("IdentityN", &[one, two]);
    assert_eq!(graph.graph().node(both.node).out_ports().len(), 2);
    let status = graph
        .node("Add")
        .input(one)
        .input(two)
        .build()
        .expect_err("types differ");
    assert_eq!(status.reason(), "GRAPH_TYPE");
    let axis = graph.constant("axis", ints(&[], &[0])).expect("axis");
    let joined = graph.put("ConcatV2", &[one, one, axis]);
    assert_eq!(graph.graph().node(joined.node).in_ports().len(), 3);
    let checked = graph.node("Assert").input(one).inputs([one, two]).build();
    assert_eq!(checked.expect_err("no bool").reason(), "GRAPH_TYPE");
}

#[test]
fn the_number_of_an_output_may_begin_with_zeros() {
    use crate::graph::parse_input;
    for (text, parsed) in [
        ("x", Some(("x", Some(0)))),
        ("x:1", Some(("x", Some(1)))),
        ("x:01", Some(("x", Some(1)))),
        ("x:000", Some(("x", Some(0)))),
        ("^x", Some(("x", None))),
        ("x:", None),
        ("x:+1", None),
        (":1", None),
        ("", None),
    ] {
        assert_eq!(parse_input(text), parsed, "{text}");
    }
}

proptest! {
    #[test]
    fn hostile_bytes_are_refused_and_no_more(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(def) = decode(&bytes) {
            let _ = Graph::from_def(def, Operations::standard().ops(), Import::Part);
        }
    }

    #[test]
    fn a_broken_graph_is_refused_and_no_more(at in 0usize..400, byte: u8, cut in 0usize..400) {
        let mut graph = Builder::new(Operations::standard().ops());
        let one = graph.constant("c", ints(&[2], &[1])).expect("c");
        let entered = graph.node("Enter").input(one).attr("frame_name", "f").build().expect("enter");
        let merge = graph.put("Merge", &[entered, entered]);
        graph.put("NextIteration", &[merge]);
        let mut bytes = graph.graph().to_def().encode_to_vec();
        let len = bytes.len();
        bytes[at % len] = byte;
        bytes.truncate(len - cut % (len / 4));
        if let Ok(def) = decode(&bytes)
            && let Ok(graph) = Graph::from_def(def, Operations::standard().ops(), Import::Client)
        {
            let _ = crate::graph::Frames::of(&graph);
            let _ = crate::graph::Shapes::of(&graph);
        }
    }
}
