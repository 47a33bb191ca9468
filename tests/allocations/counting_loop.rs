//! A loop of a graph that counts, for those who count or time what an iteration costs.

use rendez::ground::Status;
use rendez_dataflow::graph::{Builder, Output, ints};
use rendez_proto::tensorflow::DataType;

/// Counts from `from` up to `limit` by ones: nine nodes run in each iteration. Gives what comes out of the loop.
pub(crate) fn count_up(graph: &mut Builder, from: Output, limit: Output) -> Result<Output, Status> {
    let enter = |graph: &mut Builder, data, is_constant: bool| {
        let node = graph.node("Enter").input(data).attr("frame_name", "loop");
        node.attr("is_constant", is_constant).build()
    };
    let (from, limit) = (enter(graph, from, false)?, enter(graph, limit, true)?);
    let merge = graph.node("Merge").inputs([from, from]).build()?;
    let less = graph.node("Less").inputs([merge, limit]).build()?;
    let condition = graph.node("LoopCond").input(less).build()?;
    let switch = graph.node("Switch").inputs([merge, condition]).build()?;
    let body = graph
        .node("Identity")
        .input(Output { port: 1, ..switch })
        .build()?;
    let one = graph
        .node("Const")
        .attr("dtype", DataType::DtInt32)
        .attr("value", ints(&[], &[1]));
    let one = one.control(body.node).build()?;
    let sum = graph.node("AddV2").inputs([body, one]).build()?;
    let next = graph.node("NextIteration").input(sum).build()?;
    graph.set_input(merge.node, 1, next)?;
    graph.node("Exit").input(switch).build()
}
