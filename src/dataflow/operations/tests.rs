//! The table of operations: it is read whole, its page is up to date, and every kernel is made.

use super::*;
use crate::graph::attr::{Attrs, IntoAttr, Kind};
use crate::graph::{Builder, Role, floats};
use rendez_proto::tensorflow::{DataType, TensorShapeProto};

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
    let mut graph = Builder::new(operations.ops());
    let op = Arc::clone(operations.ops().find(op, "n")?);
    let mut attrs = Attrs::new();
    let mut types = std::iter::once(base);
    for attr in &op.signature.attrs {
        let value = match attr.kind {
            _ if attr.default().is_some() => continue,
            Kind::Type => types.next().unwrap_or(DataType::DtInt32).into_attr(),
            Kind::Types => vec![base].into_attr(),
            Kind::Int => 2i64.into_attr(),
            Kind::String => "x".into_attr(),
            Kind::Shape => TensorShapeProto::default().into_attr(),
            Kind::Tensor => floats(&[], &[1.0]).into_attr(),
            _ => true.into_attr(),
        };
        attrs.insert(attr.name.to_owned(), value);
    }
    op.signature.complete("n", &mut attrs)?;
    let mut inputs = vec![];
    for port in op.signature.input_ports("n", &attrs)? {
        let (base, shape) = (port.what.base(), TensorShapeProto::default());
        inputs.push(match base {
            DataType::DtResource => {
                let handle = graph.node("VarHandleOp").attr("shape", shape);
                handle.attr("dtype", DataType::DtFloat).build()?
            }
            _ if port.what.is_ref() => {
                let variable = graph.node("VariableV2").attr("shape", shape);
                variable.attr("dtype", base).build()?
            }
            _ => graph.node("Placeholder").attr("dtype", base).build()?,
        });
    }
    let mut graph = graph.finish()?;
    let node = graph.add("n".into(), &op, attrs, inputs, vec![])?;
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
