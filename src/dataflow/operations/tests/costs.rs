//! What is made of little: a call that writes much is costly, however few its inputs are.

use crate::graph::NodeBuilder;
use crate::graph::types::data_type;
use crate::kernel::numbers::{Number, by_type};
use crate::kernel::{Kernel, Value};
use crate::operations::testing::{call, home, kernel, tensor};
use rendez::ground::{DType, Shape};
use rendez::memory::{Bool8, Element, Tensor};
use rendez_proto::tensorflow::DataType::{
    self, DtBool, DtFloat, DtInt16, DtInt32, DtInt64, DtString, DtUint8,
};
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
            "Fill",
            vec![DtInt32, DtString],
            vec![row(&[10]), text(10)],
            vec![row(&[10]), text(1 << 20)],
        ),
        (
            "BroadcastTo",
            vec![DtString, DtInt32],
            vec![text(10), row(&[10])],
            vec![text(1 << 20), row(&[10])],
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
            "InvertPermutation",
            vec![DtInt32],
            vec![row(&[0])],
            vec![row(&[0; 1_000_000])],
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
fn what_meets_by_broadcasting_is_costly_by_what_that_makes() {
    // Along each dimension one operand has so many elements, and the others have one.
    let truths = |size: usize, dims: &[u64]| tensor(dims, &vec![Bool8::from(true); size]);
    let choice = |size: usize| {
        let long = size as u64;
        vec![
            truths(size, &[long, 1, 1]),
            truths(size, &[1, long, 1]),
            truths(size, &[1, 1, long]),
        ]
    };
    let strings = |size: usize| {
        let words = vec!["x"; size];
        let shapes = [[size as u64, 1], [1, size as u64]].map(|dims| Shape::new(&dims).unwrap());
        let tensors = shapes.map(|shape| Tensor::from_strings(&words, shape).unwrap());
        tensors.to_vec()
    };
    let text_choice = |size: usize| {
        let mut inputs = vec![Tensor::scalar(Bool8::from(true))];
        inputs.extend(strings(size));
        inputs
    };
    let logits = |size: usize| {
        let numbers = vec![0f32; size];
        vec![
            tensor(&[size as u64, 1], &numbers),
            tensor(&[1, size as u64], &numbers),
        ]
    };
    let cases = [
        ("SelectV2", vec![DtBool; 3], choice(10), choice(1000)),
        (
            "SelectV2",
            vec![DtBool, DtString, DtString],
            text_choice(10),
            text_choice(1000),
        ),
        ("Equal", vec![DtString; 2], strings(10), strings(1000)),
        ("NotEqual", vec![DtString; 2], strings(10), strings(1000)),
        (
            "SoftmaxCrossEntropyWithLogits",
            vec![DtFloat; 2],
            logits(10),
            logits(200),
        ),
    ];
    for (op, types, little, much) in cases {
        let kernel = made(op, &types, |node| node);
        assert!(!is_costly(&*kernel, &little), "{op} of little");
        assert!(is_costly(&*kernel, &much), "{op} of much");
    }
}

#[test]
fn products_are_costly_by_what_their_type_takes() {
    let square = |dtype: DType, side: usize| {
        let dims = [side as u64; 2];
        by_type!(dtype, T: numbers => tensor(&dims, &vec![T::ONE; side * side])).expect("a number")
    };
    // How large squares may be whose product takes ten microseconds.
    let cases = [
        (DType::F32, 58),
        (DType::F64, 46),
        (DType::F16, 16),
        (DType::BF16, 16),
        (DType::I32, 22),
        (DType::I64, 22),
        (DType::U8, 22),
    ];
    for (dtype, side) in cases {
        let kernel = made("MatMul", &[data_type(dtype); 2], |node| node);
        let of = |side| vec![square(dtype, side); 2];
        assert!(!is_costly(&*kernel, &of(side - 3)), "{dtype:?}");
        assert!(is_costly(&*kernel, &of(side + 3)), "{dtype:?}");
    }
}

#[test]
fn what_is_picked_often_is_costly() {
    let params = |size: usize| tensor(&[1, size as u64], &vec![Bool8::from(true); size]);
    let gather = made("Gather", &[DtBool, DtInt32], |node| node);
    assert!(!is_costly(&*gather, &[params(10), row(&[0i32; 10])]));
    assert!(is_costly(&*gather, &[params(16_000), row(&[0i32; 4000])]));

    let gather = made("GatherV2", &[DtBool, DtInt16, DtInt32], |node| node);
    let picks = |count: usize| row(&vec![0i16; count]);
    let axis = Tensor::scalar::<i32>;
    for first in [0, -2] {
        let little = [params(10), picks(10), axis(first)];
        let much = [params(16_000), picks(8000), axis(first)];
        assert!(!is_costly(&*gather, &little), "axis {first}");
        assert!(is_costly(&*gather, &much), "axis {first}");
    }
    // Of a long dimension each pick is one element.
    assert!(!is_costly(&*gather, &[params(9000), picks(9000), axis(1)]));
    // What the kernel refuses costs what its inputs do.
    assert!(!is_costly(&*gather, &[params(10), picks(10), axis(2)]));

    let batched = made("GatherV2", &[DtBool, DtInt16, DtInt32], |node| {
        node.attr("batch_dims", 1i64)
    });
    let rows = |count: usize| tensor(&[100, count as u64], &vec![0i16; 100 * count]);
    let lines = tensor(&[100, 1, 50], &vec![Bool8::from(true); 5000]);
    assert!(!is_costly(&*batched, &[lines.clone(), rows(5), axis(1)]));
    assert!(is_costly(&*batched, &[lines, rows(10), axis(1)]));
}

#[test]
fn many_pieces_are_costly_however_small_they_are() {
    const MANY: usize = 10_000;
    let bytes = |count: usize| row(&vec![0u8; count]);
    let zero = Tensor::scalar(0i32);
    let cases = |count: usize| {
        let number = count as i64;
        [
            (
                made("Split", &[DtInt32, DtUint8], |node| {
                    node.attr("num_split", number)
                }),
                vec![zero.clone(), bytes(count)],
            ),
            (
                made("SplitV", &[DtUint8, DtInt64, DtInt32], |node| {
                    node.attr("num_split", number)
                }),
                vec![bytes(0), row(&vec![0i64; count]), zero.clone()],
            ),
            (
                made("Unpack", &[DtUint8], |node| node.attr("num", number)),
                vec![bytes(count)],
            ),
            (
                made("Pack", &vec![DtUint8; count], |node| node.attr("N", number)),
                vec![Tensor::scalar(0u8); count],
            ),
            (
                made("ShapeN", &vec![DtUint8; count], |node| {
                    node.attr("N", number)
                }),
                vec![bytes(0); count],
            ),
        ]
    };
    for (kernel, inputs) in cases(10) {
        assert!(!is_costly(&*kernel, &inputs), "{kernel:?} of few");
    }
    for (kernel, inputs) in cases(MANY) {
        assert!(is_costly(&*kernel, &inputs), "{kernel:?} of many");
    }
}

#[test]
fn many_sums_of_nothing_are_costly() {
    const MANY: u64 = 1 << 28;
    let first = row(&[0i32]);
    for op in ["Sum", "Mean", "Prod", "Max"] {
        let kernel = made(op, &[DtFloat, DtInt32], |node| node);
        let none = |dims: &[u64]| [tensor::<f32>(dims, &[]), first.clone()];
        assert!(!is_costly(&*kernel, &none(&[0, 10])), "{op} of little");
        assert!(is_costly(&*kernel, &none(&[0, MANY])), "{op} of much");
    }
    for op in ["All", "Any"] {
        let kernel = made(op, &[DtBool, DtInt32], |node| node);
        let none = |dims: &[u64]| [tensor::<Bool8>(dims, &[]), first.clone()];
        assert!(!is_costly(&*kernel, &none(&[0, 10])), "{op} of little");
        assert!(is_costly(&*kernel, &none(&[0, MANY])), "{op} of much");
    }
    let kernel = made("BiasAddGrad", &[DtFloat], |node| node);
    let none = |channels: u64| [tensor::<f32>(&[0, channels], &[])];
    assert!(!is_costly(&*kernel, &none(10)));
    assert!(is_costly(&*kernel, &none(MANY)));
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
