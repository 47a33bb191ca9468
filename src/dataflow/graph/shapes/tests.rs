//! Shapes of graphs: constants steer them, loops end them, contradictions are named.

use super::*;
use crate::graph::builder::{Builder, floats, ints};
use crate::operations::Operations;
use rendez_proto::tensorflow::TensorShapeProto;

fn builder() -> Builder {
    Builder::new(Operations::standard().ops())
}

fn placeholder(graph: &mut Builder, shape: &PartialShape) -> Output {
    let node = graph.node("Placeholder").attr("dtype", DataType::DtFloat);
    node.attr("shape", shape.to_proto())
        .build()
        .expect("a placeholder")
}

fn text(graph: &Builder, output: Output) -> String {
    let shapes = Shapes::of(graph.graph()).expect("shapes");
    shapes.output(output).expect("an output").to_string()
}

#[test]
fn a_network_is_known_but_for_its_batch() {
    let mut graph = builder();
    let x = placeholder(&mut graph, &PartialShape::of(vec![None, Some(64)]));
    let w = graph.constant("w", floats(&[64, 10], &[0.1])).expect("w");
    let b = graph.constant("b", floats(&[10], &[0.1])).expect("b");
    let product = graph.put("MatMul", &[x, w]);
    let logits = graph.put("BiasAdd", &[product, b]);
    let labels = graph.node("Placeholder").attr("dtype", DataType::DtInt64);
    let labels = labels
        .attr("shape", PartialShape::of(vec![Some(32)]).to_proto())
        .build()
        .expect("labels");
    let loss = graph.put("SparseSoftmaxCrossEntropyWithLogits", &[logits, labels]);
    let axis = graph.constant("axis", ints(&[1], &[0])).expect("axis");
    let mean = graph.put("Mean", &[loss, axis]);
    assert_eq!(text(&graph, logits), "[?,10]");
    assert_eq!(text(&graph, loss), "[32]");
    assert_eq!(text(&graph, Output { port: 1, ..loss }), "[32,10]");
    assert_eq!(text(&graph, mean), "[]");
}

#[test]
fn a_shape_that_is_known_steers_another() {
    let mut graph = builder();
    let x = placeholder(&mut graph, &PartialShape::known(&[6, 4]));
    let shape = graph.put("Shape", &[x]);
    let filled = graph.put("Fill", &[shape, x]);
    assert_eq!(
        Shapes::of(graph.graph()).expect_err("no scalar").reason(),
        "GRAPH_SHAPE"
    );
    let zero = graph.constant("zero", floats(&[], &[0.0])).expect("zero");
    graph
        .set_input(filled.node, 1, zero)
        .expect("another value");
    assert_eq!(text(&graph, filled), "[6,4]");
    let to = graph.constant("to", ints(&[3], &[2, -1, 3])).expect("to");
    let reshaped = graph.put("Reshape", &[x, to]);
    assert_eq!(text(&graph, reshaped), "[2,4,3]");
    let to = graph.constant("to", ints(&[2], &[5, -1])).expect("to");
    graph.named("Reshape", "r", &[x, to]);
    let status = Shapes::of(graph.graph()).expect_err("24 is not 5 n");
    assert!(
        status
            .message()
            .starts_with("Cannot reshape a tensor with 24 elements to shape [5,?]; {{node r}}")
    );
}

#[test]
fn a_loop_says_nothing_of_its_next_iteration() {
    let mut graph = builder();
    let x = placeholder(&mut graph, &PartialShape::known(&[2]));
    let entered = graph
        .node("Enter")
        .input(x)
        .attr("frame_name", "f")
        .build()
        .expect("enter");
    let merge = graph.put("Merge", &[entered, entered]);
    let grown = graph.put("Pack", &[merge, merge]);
    let next = graph.put("NextIteration", &[grown]);
    assert_eq!(text(&graph, merge), "[2]");
    graph.set_input(merge.node, 1, next).expect("a loop");
    assert_eq!(text(&graph, merge), "<unknown>");
    assert_eq!(text(&graph, entered), "[2]");
}

#[test]
fn a_variable_is_known_through_its_handle() {
    let mut graph = builder();
    let handle = graph.node("VarHandleOp").attr("dtype", DataType::DtFloat);
    let handle = handle
        .attr("shape", PartialShape::known(&[3, 5]).to_proto())
        .build()
        .expect("handle");
    let passed = graph.put("Identity", &[handle]);
    let read = graph
        .node("ReadVariableOp")
        .input(passed)
        .attr("dtype", DataType::DtFloat)
        .build()
        .expect("read");
    assert_eq!(text(&graph, read), "[3,5]");
}

#[test]
fn integers_of_a_constant_in_every_form() {
    assert_eq!(integers(&ints(&[3], &[1, 2])), Some(vec![1, 2, 2]));
    assert_eq!(integers(&ints(&[2], &[])), Some(vec![0, 0]));
    assert_eq!(integers(&ints(&[1], &[1, 2])), None);
    assert_eq!(integers(&ints(&[1 << 40], &[1])), None);
    assert_eq!(integers(&floats(&[1], &[1.0])), None);
    let bytes = TensorProto {
        dtype: DataType::DtInt64 as i32,
        tensor_content: [7u64.to_le_bytes(), (-1i64).cast_unsigned().to_le_bytes()].concat(),
        ..ints(&[2], &[])
    };
    assert_eq!(integers(&bytes), Some(vec![7, -1]));
    let negative = TensorProto {
        tensor_shape: Some(TensorShapeProto {
            dim: vec![rendez_proto::tensorflow::tensor_shape_proto::Dim {
                size: -2,
                ..Default::default()
            }],
            unknown_rank: false,
        }),
        ..ints(&[], &[1])
    };
    assert_eq!(integers(&negative), None);
}

#[test]
fn shapes_that_double_are_refused_before_they_fill_memory() {
    let mut graph = builder();
    let mut indices = graph.node("Placeholder").attr("dtype", DataType::DtInt32);
    indices = indices.attr("shape", PartialShape::of_rank(100).to_proto());
    let mut x = indices.build().expect("indices");
    for _ in 0..3 {
        x = graph.put("Gather", &[x, x]);
    }
    let status = Shapes::of(graph.graph()).expect_err("rank 397");
    assert_eq!(status.reason(), "GRAPH_LIMIT");
    let wide = graph.node("Placeholder").attr("dtype", DataType::DtInt32);
    let wide = wide.attr("shape", PartialShape::of_rank(255).to_proto());
    wide.name("wide").build().expect("a node");
    let status = Shapes::of(graph.graph()).expect_err("rank 255");
    assert!(["GRAPH_SHAPE", "GRAPH_LIMIT"].contains(&status.reason()));
}
