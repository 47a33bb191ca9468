//! What is made of little: a call that writes much is costly, however few its inputs are.

use crate::graph::NodeBuilder;
use crate::kernel::{Kernel, Value};
use crate::operations::testing::{call, home, kernel, tensor};
use rendez::ground::Shape;
use rendez::memory::{Bool8, Element, Tensor};
use rendez_proto::tensorflow::DataType::{self, DtBool, DtFloat, DtInt32, DtInt64, DtString};
use rendez_proto::tensorflow::{TensorProto, TensorShapeProto, tensor_shape_proto::Dim};

fn row<T: Element>(values: &[T]) -> Tensor {
    tensor(&[values.len() as u64], values)
}

fn text(bytes: usize) -> Tensor {
    Tensor::from_strings(&["x".repeat(bytes)], Shape::SCALAR).unwrap()
}

fn made(
    op: &str,
    types: &[DataType],
    with: impl FnOnce(NodeBuilder<'_>) -> NodeBuilder<'_>,
) -> Box<dyn Kernel> {
    kernel(op, types, with).unwrap_or_else(|status| panic!("{op}: {status}"))
}

fn is_costly(kernel: &dyn Kernel, inputs: &[Tensor]) -> bool {
    let inputs: Vec<_> = inputs.iter().cloned().map(Value::Tensor).collect();
    kernel.is_costly(&inputs)
}

#[test]
fn what_makes_much_of_little_is_costly_and_what_makes_little_is_not() {
    let none: &[f32] = &[];
    let i = Tensor::scalar::<i32>;
    let f = Tensor::scalar::<f32>;
    let slice = |whole: i32| {
        let (begin, end) = (row(&[0]), row(&[1]));
        vec![row(&[whole]), begin, end.clone(), end, row(&[1f32])]
    };
    // An operation, what its inputs are, and inputs of which it makes little and much.
    let cases = [
        (
            "Range",
            vec![DtInt32; 3],
            vec![i(0), i(100), i(1)],
            vec![i(0), i(2_000_000_000), i(1)],
        ),
        (
            "Range",
            vec![DtFloat; 3],
            vec![f(0.), f(100.), f(1.)],
            vec![f(0.), f(1.), f(1e-6)],
        ),
        (
            "OneHot",
            vec![DtInt64, DtInt32, DtFloat, DtFloat],
            vec![row(&[1i64; 16]), i(10), f(1.), f(0.)],
            vec![row(&[1i64; 16]), i(10_000_000), f(1.), f(0.)],
        ),
        (
            "Tile",
            vec![DtFloat, DtInt32],
            vec![row(&[1f32]), row(&[10])],
            vec![row(&[1f32]), row(&[1_000_000_000])],
        ),
        (
            "Fill",
            vec![DtInt32, DtFloat],
            vec![row(&[10]), f(1.)],
            vec![row(&[1_000_000_000]), f(1.)],
        ),
        (
            "StridedSliceGrad",
            vec![DtInt32, DtInt32, DtInt32, DtInt32, DtFloat],
            slice(10),
            slice(1_000_000_000),
        ),
        (
            "UnsortedSegmentSum",
            vec![DtFloat, DtInt32, DtInt32],
            vec![row(&[1f32]), row(&[0]), i(10)],
            vec![row(&[1f32]), row(&[0]), i(1_000_000_000)],
        ),
        (
            "MatMul",
            vec![DtFloat, DtFloat],
            vec![tensor(&[10, 0], none), tensor(&[0, 10], none)],
            vec![tensor(&[100_000, 0], none), tensor(&[0, 100_000], none)],
        ),
        (
            "ShardedFilename",
            vec![DtString, DtInt32, DtInt32],
            vec![text(10), i(0), i(1)],
            vec![text(1 << 20), i(0), i(1)],
        ),
    ];
    for (op, types, little, much) in cases {
        let kernel = made(op, &types, |node| node);
        assert!(!is_costly(&*kernel, &little), "{op} of little");
        assert!(is_costly(&*kernel, &much), "{op} of much");
    }
}

#[test]
fn strings_that_are_joined_to_much_are_costly() {
    let kernel = made("StringJoin", &[DtString; 2], |node| node.attr("N", 2i64));
    let rows = Tensor::from_strings(&[""; 1000], Shape::row(1000).unwrap()).unwrap();
    assert!(!is_costly(&*kernel, &[text(100), text(100)]));
    assert!(is_costly(&*kernel, &[text(100), rows]));
}

#[test]
fn an_assertion_is_costly_only_where_it_fails() {
    let kernel = made("Assert", &[DtBool, DtString], |node| {
        node.attr("T", vec![DtString])
    });
    let inputs = |truth: bool| [Tensor::scalar(Bool8::from(truth)), text(1 << 20)];
    assert!(!is_costly(&*kernel, &inputs(true)));
    assert!(is_costly(&*kernel, &inputs(false)));
}

#[test]
fn a_constant_is_costly_until_it_is_made() {
    let value = TensorProto {
        dtype: DtFloat as i32,
        tensor_shape: Some(TensorShapeProto {
            dim: vec![Dim {
                size: 1 << 18,
                ..Dim::default()
            }],
            ..TensorShapeProto::default()
        }),
        float_val: vec![1.0],
        ..TensorProto::default()
    };
    let kernel = made("Const", &[], |node| {
        node.attr("dtype", DtFloat).attr("value", value)
    });
    assert!(kernel.is_costly(&[]));
    call(&*kernel, &home(), &[]).unwrap();
    assert!(!kernel.is_costly(&[]));
}
