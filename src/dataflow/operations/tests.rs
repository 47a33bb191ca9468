//! The table of operations: it is read whole, its page is up to date, and every kernel is made.

use super::*;
use crate::graph::Role;
use rendez_proto::tensorflow::DataType;

mod costs;
mod edges;
mod shapes;

#[test]
fn the_reference_page_is_that_of_the_table() {
    assert!(
        include_str!("OPERATIONS.md") == operations_page(),
        "it is stale: write it anew with `rendez config operations > src/dataflow/operations/OPERATIONS.md`"
    );
}

#[test]
fn every_row_is_read() {
    let operations = Operations::standard();
    for op in operations.ops().iter() {
        for arg in op.signature.inputs.iter().chain(&op.signature.outputs) {
            for attr in [arg.type_attr(), arg.count_attr()].into_iter().flatten() {
                assert!(
                    op.signature.attr(attr).is_some(),
                    "{}: no attribute {attr}",
                    op.name()
                );
            }
        }
    }
    assert_eq!(operations.ops().iter().count(), rows().count());
}

/// The kernel of a node of `op` whose first type is `base`; the others are those of indices.
fn kernel_for(op: &str, base: DataType) -> Result<Box<dyn Kernel>, Status> {
    let operations = Operations::standard();
    let (graph, node) = types::node(operations.ops().find(op, "n")?, base)?;
    operations.kernel(graph.node(node))
}

#[test]
fn every_row_with_a_kernel_makes_one() {
    use DataType::{DtBool, DtDouble, DtFloat, DtInt32, DtInt64, DtString};
    for row in rows() {
        let made = [DtFloat, DtDouble, DtInt32, DtInt64, DtBool, DtString]
            .map(|base| kernel_for(row.name, base));
        let is_made = made.iter().any(Result::is_ok);
        assert_eq!(is_made, row.kernel.is_some(), "{}: {made:?}", row.name);
        let is_executors = row.role != Role::Plain || row.name.starts_with('_');
        assert!(is_made || is_executors, "{} has no kernel", row.name);
    }
}
