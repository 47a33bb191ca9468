//! Types: which ones an operation has kernels for, found by making a node of each.
//!
//! Knows rows and signatures, and no operation.

use std::sync::Arc;

use super::Operations;
use super::row::Make;
use crate::graph::attr::{Attrs, IntoAttr, Kind};
use crate::graph::{Builder, Graph, NodeId, Op, types};
use rendez::ground::{DType, Status};
use rendez_proto::tensorflow::{DataType, TensorProto, TensorShapeProto};

/// The types that `make` has kernels for, with the attribute that says them: the first of a type. `None` if there is
/// none, or all that it allows have kernels.
pub(super) fn with_kernels(op: &Arc<Op>, make: Make) -> Option<(&'static str, Vec<&'static str>)> {
    let mut attrs = op.signature.attrs.iter();
    let attr = attrs.find(|attr| attr.kind == Kind::Type)?;
    let (mut names, mut is_whole) = (vec![], true);
    for base in DType::ALL.iter().map(|&dtype| types::data_type(dtype)) {
        // One that is not allowed makes no node.
        let Ok((graph, node)) = node(op, base) else {
            continue;
        };
        match make(graph.node(node)) {
            Ok(None) => is_whole = false,
            _ => names.push(types::name(base)),
        }
    }
    (!is_whole).then_some((attr.name, names))
}

/// A node of `op` whose first type is `base`; the others are those of indices.
pub(super) fn node(op: &Arc<Op>, base: DataType) -> Result<(Graph, NodeId), Status> {
    let operations = Operations::standard();
    let mut graph = Builder::new(operations.ops());
    let mut attrs = Attrs::new();
    let mut first = Some(base);
    for attr in &op.signature.attrs {
        let value = match attr.kind {
            Kind::Type if first.is_some() => first.take().unwrap_or(base).into_attr(),
            _ if attr.default().is_some() => continue,
            Kind::Type => DataType::DtInt32.into_attr(),
            Kind::Types => vec![base].into_attr(),
            Kind::Int => 2i64.into_attr(),
            Kind::String => "x".into_attr(),
            Kind::Shape => TensorShapeProto::default().into_attr(),
            Kind::Tensor => TensorProto {
                dtype: base as i32,
                tensor_shape: Some(TensorShapeProto::default()),
                ..TensorProto::default()
            }
            .into_attr(),
            _ => true.into_attr(),
        };
        attrs.insert(attr.name.to_owned(), value);
    }
    op.signature.complete("n", &mut attrs)?;
    let mut inputs = vec![];
    for port in op.signature.input_ports("n", &attrs)? {
        let (of, shape) = (port.what.base(), TensorShapeProto::default());
        inputs.push(match of {
            DataType::DtResource => {
                let handle = graph.node("VarHandleOp").attr("shape", shape);
                handle.attr("dtype", base).build()?
            }
            _ if port.what.is_ref() => {
                let variable = graph.node("VariableV2").attr("shape", shape);
                variable.attr("dtype", of).build()?
            }
            _ => graph.node("Placeholder").attr("dtype", of).build()?,
        });
    }
    let mut graph = graph.finish()?;
    let node = graph.add("n".into(), op, attrs, inputs, vec![])?;
    Ok((graph, node))
}
