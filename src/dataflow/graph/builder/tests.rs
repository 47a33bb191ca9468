//! The builder: names, scopes, devices, and loops that are closed last.

use super::*;
use crate::operations::Operations;

#[test]
fn names_scopes_and_devices() {
    let mut graph = Builder::new(Operations::standard().ops());
    graph.scope("layer").on("/job:ps");
    let one = graph
        .constant("one", floats(&[], &[1.0]))
        .expect("a constant");
    let again = graph
        .constant("one", floats(&[], &[1.0]))
        .expect("a constant");
    graph.scope("").on("");
    let sum = graph
        .node("Add")
        .inputs([one, again])
        .beside(one.node)
        .control(again.node);
    let sum = sum.build().expect("a sum");
    let own = graph.node("NoOp").device("/job:worker").build();
    let own = own.expect("no operation");
    let node = |output: Output| graph.graph().node(output.node);
    assert_eq!(
        [one, again, sum, own].map(|output| node(output).name.as_str()),
        ["layer/one", "layer/one_1", "Add", "NoOp"]
    );
    assert_eq!(
        [one, again, sum, own].map(|output| node(output).device.as_str()),
        ["/job:ps", "/job:ps", "", "/job:worker"]
    );
    assert_eq!(node(sum).controls(), [again.node]);
    let classes = attr::list(&node(sum).attrs, "_class").map(|list| list.s.clone());
    assert_eq!(classes, Some(vec![b"loc:@layer/one".to_vec()]));
}

#[test]
fn what_does_not_fit_is_refused_and_leaves_nothing() {
    let mut graph = Builder::new(Operations::standard().ops());
    let one = graph.constant("one", ints(&[], &[1])).expect("a constant");
    let reason = |built: Result<Output, Status>| built.expect_err("refused").reason();
    assert_eq!(reason(graph.node("Frob").build()), "GRAPH_OP_UNKNOWN");
    assert_eq!(
        reason(graph.node("Add").input(one).build()),
        "GRAPH_MALFORMED"
    );
    assert_eq!(reason(graph.node("Exp").input(one).build()), "GRAPH_ATTR");
    assert_eq!(
        reason(graph.node("Neg").input(Output { port: 1, ..one }).build()),
        "GRAPH_ATTR"
    );
    assert_eq!(graph.graph().len(), 1);
    let status = graph.set_input(one.node, 0, one).expect_err("no input");
    assert_eq!(status.reason(), "GRAPH_MALFORMED");
}

#[test]
fn a_graph_goes_on_where_another_ended() {
    let ops = Operations::standard().ops().clone();
    let mut graph = Builder::new(&ops);
    let one = graph.constant("one", ints(&[], &[1])).expect("a constant");
    let mut more = Builder::extend(&ops, graph.finish().expect("a graph"));
    more.node("Neg").input(one).build().expect("a negation");
    let negation = more.graph().find("Neg").expect("it is there");
    assert_eq!(more.graph().node(negation).inputs(), [one]);
    // Two nodes that wait for each other are no loop.
    more.set_input(
        negation,
        0,
        Output {
            node: negation,
            port: 0,
        },
    )
    .expect("of the right type");
    assert_eq!(more.finish().expect_err("a cycle").reason(), "GRAPH_CYCLE");
}
