//! Which nodes gradients make, and what they refuse. That their values are right is tested where kernels are.

use super::*;
use crate::graph::floats;
use crate::operations::Operations;

fn graph() -> Builder {
    Builder::new(Operations::standard().ops())
}

#[test]
fn what_does_not_depend_has_no_gradient() {
    let mut graph = graph();
    let x = graph
        .constant("x", floats(&[2], &[1.0]))
        .expect("a constant");
    let other = graph
        .constant("other", floats(&[2], &[1.0]))
        .expect("a constant");
    let stopped = graph.put("StopGradient", &[x]);
    let y = graph.put("Mul", &[stopped, stopped]);
    let size = graph.graph().len();
    let flows = gradients(&mut graph, &[y], &[x, other, y], &[]).expect("gradients");
    assert_eq!(flows[..2], [None, None]);
    assert!(flows[2].is_some(), "y changes with itself");
    assert!(graph.graph().len() > size);
}

#[test]
fn new_nodes_stand_where_theirs_do_and_are_named_after_them() {
    let mut graph = graph();
    let x = graph
        .constant("x", floats(&[2], &[1.0]))
        .expect("a constant");
    let y = graph
        .node("Exp")
        .input(x)
        .name("layer/y")
        .device("/job:ps")
        .build()
        .expect("a node");
    let flow = gradients(&mut graph, &[y], &[x], &[]).expect("gradients")[0].expect("it depends");
    let node = graph.graph().node(flow.node);
    assert_eq!(
        (node.name.as_str(), node.device.as_str()),
        ("gradients/layer/y_grad/Mul", "/job:ps")
    );
}

#[test]
fn what_has_no_gradient_is_refused_by_name_only_on_the_way() {
    let mut graph = graph();
    let x = graph
        .constant("x", floats(&[2], &[1.0]))
        .expect("a constant");
    let axis = graph
        .constant("axis", crate::graph::ints(&[], &[0]))
        .expect("a constant");
    let y = graph.named("Prod", "p", &[x, axis]);
    let status = gradients(&mut graph, &[y], &[x], &[]).expect_err("a product has none here");
    assert_eq!(status.reason(), catalogue::GRAPH_GRADIENT);
    assert_eq!(
        status.message(),
        "No gradient defined for operation 'p' (op type: Prod): it has no gradient here; {{node p}} = Prod"
    );
    let z = graph.put("Exp", &[y]);
    assert!(gradients(&mut graph, &[z], &[y], &[]).expect("not on the way")[0].is_some());
}

#[test]
fn wrong_arguments_are_refused() {
    let mut graph = graph();
    let x = graph
        .constant("x", floats(&[2], &[1.0]))
        .expect("a constant");
    let missing = Output { port: 7, ..x };
    for (ys, xs, grads) in [
        (vec![missing], vec![x], vec![]),
        (vec![x], vec![missing], vec![]),
        (vec![x], vec![x], vec![Some(missing)]),
        (vec![x, x], vec![x], vec![None]),
    ] {
        let status = gradients(&mut graph, &ys, &xs, &grads).expect_err("it is refused");
        assert_eq!(status.reason(), catalogue::GRAPH_MALFORMED);
    }
}

#[test]
fn known_shapes_that_are_equal_need_no_sums() {
    let mut graph = graph();
    let x = graph
        .constant("x", floats(&[2, 3], &[1.0]))
        .expect("a constant");
    let y = graph.put("Add", &[x, x]);
    gradients(&mut graph, &[y], &[x], &[]).expect("gradients");
    let ops: Vec<_> = graph
        .graph()
        .nodes()
        .map(|(_, node)| node.op.name())
        .collect();
    assert_eq!(ops, ["Const", "Add", "OnesLike", "AddN"]);
}
