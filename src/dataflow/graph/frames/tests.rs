//! Frames: what is in which loop, and loops that contradict themselves.

use super::*;
use crate::graph::builder::{Builder, ints};
use crate::graph::flow::Output;
use crate::operations::Operations;

fn builder() -> (Builder, Output) {
    let mut graph = Builder::new(Operations::standard().ops());
    let one = graph.constant("one", ints(&[], &[1])).expect("one");
    (graph, one)
}

fn enter(graph: &mut Builder, data: Output, frame: &str) -> Output {
    graph
        .node("Enter")
        .input(data)
        .attr("frame_name", frame)
        .build()
        .expect("enter")
}

fn refused(graph: &Builder, text: &str) {
    let status = Frames::of(graph.graph()).expect_err(text);
    assert_eq!(status.reason(), "GRAPH_FRAME", "{status}");
    assert!(status.message().contains(text), "{status}");
}

#[test]
fn a_loop_in_a_loop_has_its_own_frame() {
    let (mut graph, one) = builder();
    let outer = enter(&mut graph, one, "outer");
    let inner = enter(&mut graph, outer, "inner");
    let back = graph.put("Exit", &[inner]);
    let after = graph.put("Neg", &[back]);
    let frames = Frames::of(graph.graph()).expect("frames");
    let name = |node: Output| frames.frame(frames.of_node(node.node)).name.as_str();
    assert_eq!(
        [name(one), name(outer), name(inner), name(back), name(after)],
        ["", "outer", "inner", "inner", "outer"]
    );
    assert_eq!(
        frames.of_inputs(graph.graph(), inner.node),
        frames.of_node(outer.node)
    );
    assert_eq!(
        frames.of_outputs(graph.graph(), back.node),
        frames.of_node(outer.node)
    );
    assert!(!frames.is_flat());
}

#[test]
fn inputs_are_of_one_frame() {
    let (mut graph, one) = builder();
    let inside = enter(&mut graph, one, "f");
    graph.named("Add", "both", &[inside, one]);
    refused(
        &graph,
        "{{node both}} has inputs from different frames. The input {{node one}} is in frame ''.",
    );
}

#[test]
fn a_frame_is_entered_from_one() {
    let (mut graph, one) = builder();
    let first = enter(&mut graph, one, "f");
    enter(&mut graph, first, "f");
    refused(&graph, "Mismatched parent frames for \"f\"");
    let (mut graph, one) = builder();
    enter(&mut graph, one, "");
    refused(&graph, "must have a frame name.");
}

#[test]
fn a_loop_has_one_condition() {
    let (mut graph, one) = builder();
    let inside = enter(&mut graph, one, "f");
    let less = graph.put("Less", &[inside, inside]);
    for _ in 0..2 {
        graph.put("LoopCond", &[less]);
    }
    refused(&graph, "Loop \"f\" has more than one LoopCond node");
}

#[test]
fn nothing_leaves_a_loop_it_is_not_in() {
    for op in ["Exit", "NextIteration"] {
        let (mut graph, one) = builder();
        graph.put(op, &[one]);
        refused(&graph, "stands outside all loops");
    }
}

/// What stands in a loop has a value for each iteration, and a step gives one.
#[test]
fn what_is_fetched_has_left_its_loop() {
    for (op, is_of_client) in [
        ("_Retval", None),
        ("_Send", Some(true)),
        ("_Send", Some(false)),
    ] {
        let (mut graph, one) = builder();
        let inside = enter(&mut graph, one, "f");
        let node = graph.node(op).input(inside);
        let node = match is_of_client {
            None => node.attr("index", 0i64),
            Some(is_of_client) => node
                .attr("tensor_name", "x")
                .attr("send_device", "/job:a/task:0")
                .attr("recv_device", "/job:a/task:0")
                .attr("send_device_incarnation", 1i64)
                .attr("client_terminated", is_of_client),
        };
        node.build().expect("a node");
        if is_of_client == Some(false) {
            Frames::of(graph.graph()).expect("a value for another task has an iteration");
        } else {
            refused(
                &graph,
                "is in loop \"f\", and has a value for each iteration",
            );
        }
    }
}
