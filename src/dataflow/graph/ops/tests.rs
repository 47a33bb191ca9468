//! The table of operations, and its reference page.

#[test]
fn the_reference_page_is_that_of_the_table() {
    assert!(
        include_str!("../OPERATIONS.md") == super::operations_page(),
        "it is stale: write it anew with `rendez config operations > src/dataflow/graph/OPERATIONS.md`"
    );
}
