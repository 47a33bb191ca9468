//! Arithmetic against plain Rust and against values that NumPy gave.

use crate::kernel::numbers::{Number, by_type};
use crate::operations::testing::{NUMBERS, is_close, one, one_with, refusal, run, tensor};
use half::{bf16, f16};
use rendez::ground::{DType, catalogue};
use rendez::memory::{Element, Tensor};
use rendez_proto::tensorflow::DataType::{self, DtBfloat16, DtFloat, DtHalf};

#[test]
fn every_type_adds_subtracts_and_multiplies() {
    fn check<T: Number>() {
        let values = |numbers: &[i64]| {
            let numbers: Vec<_> = numbers.iter().map(|&number| T::from_i64(number)).collect();
            tensor(&[numbers.len() as u64], &numbers)
        };
        let (left, right) = (values(&[7, 9, 12]), values(&[3, 4, 5]));
        for (op, expected) in [
            ("AddV2", [10, 13, 17]),
            ("Add", [10, 13, 17]),
            ("Sub", [4, 5, 7]),
            ("Mul", [21, 36, 60]),
            ("Maximum", [7, 9, 12]),
            ("Minimum", [3, 4, 5]),
            ("SquaredDifference", [16, 25, 49]),
            ("FloorDiv", [2, 2, 2]),
            ("Mod", [1, 1, 2]),
            ("FloorMod", [1, 1, 2]),
        ] {
            let (dims, actual) = one::<T>(op, &[left.clone(), right.clone()]);
            let actual: Vec<_> = actual.into_iter().map(Number::to_f64).collect();
            assert_eq!(
                (dims, actual),
                (vec![3], expected.map(f64::from).to_vec()),
                "{op}"
            );
        }
        let (_, sums) = one::<T>("AddN", &[left.clone(), right.clone(), right]);
        let sums: Vec<_> = sums.into_iter().map(Number::to_f64).collect();
        assert_eq!(sums, [13., 17., 22.]);
    }
    for &dtype in NUMBERS {
        assert!(
            by_type!(dtype, T: numbers => check::<T>()).is_some(),
            "{dtype}"
        );
    }
}

#[test]
fn quotients_round_as_their_names_say() {
    let left = tensor(&[6], &[7i32, -7, 7, -7, 6, i32::MIN]);
    let right = tensor(&[6], &[2i32, 2, -2, -2, -3, -1]);
    let both = [left, right];
    assert_eq!(one::<i32>("Div", &both).1, [3, -3, -3, 3, -2, i32::MIN]);
    assert_eq!(
        one::<i32>("FloorDiv", &both).1,
        [3, -4, -4, 3, -2, i32::MIN]
    );
    assert_eq!(one::<i32>("Mod", &both).1, [1, -1, 1, -1, 0, 0]);
    assert_eq!(one::<i32>("FloorMod", &both).1, [1, 1, -1, -1, 0, 0]);
    let both = [
        tensor(&[4], &[7f64, -7., 7., -7.]),
        tensor(&[4], &[2f64, 2., -2., -2.]),
    ];
    assert_eq!(one::<f64>("RealDiv", &both).1, [3.5, -3.5, -3.5, 3.5]);
    assert_eq!(one::<f64>("FloorDiv", &both).1, [3., -4., -4., 3.]);
    assert_eq!(one::<f64>("Mod", &both).1, [1., -1., 1., -1.]);
    assert_eq!(one::<f64>("FloorMod", &both).1, [1., 1., -1., -1.]);
}

#[test]
fn what_has_no_result_is_refused_with_the_node() {
    let (left, right) = (tensor(&[2], &[1i32, 2]), tensor(&[2], &[1i32, 0]));
    for op in ["Div", "FloorDiv", "Mod", "FloorMod"] {
        let text = refusal(op, &[left.clone(), right.clone()]);
        assert_eq!(
            text,
            format!("Integer division by zero; {{{{node n}}}} = {op}")
        );
    }
    let text = refusal("Pow", &[left.clone(), tensor(&[2], &[2i32, -1])]);
    assert!(
        text.starts_with("Integers to negative integer powers are not allowed"),
        "{text}"
    );
    // Of no elements none is divided.
    let none = tensor::<i32>(&[0], &[]);
    for (op, other) in [("FloorDiv", 0), ("Mod", 0), ("Pow", -1)] {
        let both = [none.clone(), tensor(&[], &[other])];
        assert!(one::<i32>(op, &both).1.is_empty(), "{op}");
    }
    let text = refusal("AddV2", &[left.clone(), tensor(&[3], &[1i32, 2, 3])]);
    assert!(
        text.starts_with("Incompatible shapes: [2] vs. [3]; {{node n}}"),
        "{text}"
    );
    let text = refusal("AddN", &[left, tensor(&[1], &[1i32])]);
    assert!(text.contains("Input 0: [2] != input 1: [1]"), "{text}");
}

#[test]
fn types_without_a_kernel_are_refused_by_name() {
    let truths = Tensor::from_strings(&["a"], rendez::ground::Shape::SCALAR).expect("a string");
    let status = run("Add", &[truths.clone(), truths]).expect_err("strings have no sum here");
    assert_eq!(status.reason(), catalogue::KERNEL_UNKNOWN);
    assert_eq!(
        status.message(),
        "No OpKernel was registered to support Op 'Add' used by {{node n}} with these attrs: [T=string]; kernels are \
         registered for T in [uint8, int32, int64, half, bfloat16, float, double]"
    );
    let both = [tensor(&[], &[1i32]), tensor(&[], &[1i32])];
    assert_eq!(
        run("RealDiv", &both).expect_err("integers").reason(),
        catalogue::KERNEL_UNKNOWN
    );
}

#[test]
fn special_numbers_are_numpys() {
    let (nan, infinite) = (f32::NAN, f32::INFINITY);
    let left = tensor(&[4], &[nan, 1.0, infinite, -0.0f32]);
    let right = tensor(&[4], &[1.0, nan, -infinite, 0.0f32]);
    let largest = one::<f32>("Maximum", &[left.clone(), right.clone()]).1;
    assert!(largest[0].is_nan() && largest[1].is_nan() && largest[2] == infinite);
    let smallest = one::<f32>("Minimum", &[left, right]).1;
    assert!(smallest[0].is_nan() && smallest[1].is_nan() && smallest[2] == -infinite);
    let signs = one::<f32>("Sign", &[tensor(&[4], &[nan, -3.0, 0.0, 5.0f32])]).1;
    assert!(signs[0].is_nan());
    assert_eq!(signs[1..], [-1.0, 0.0, 1.0]);
    // No overflow far from zero.
    let far = one::<f32>("Sigmoid", &[tensor(&[4], &[-200.0, 200.0, 0.0, -infinite])]).1;
    assert_eq!(far, [0.0, 1.0, 0.5, 0.0]);
    let lowest = tensor(&[2], &[i32::MIN, -5]);
    assert_eq!(one::<i32>("Abs", &[lowest]).1, [i32::MIN, 5]);
    let both = [tensor(&[1], &[255u8]), tensor(&[1], &[1u8])];
    assert_eq!(one::<u8>("AddV2", &both).1, [0]);
}

/// `python -c "import numpy as np; x = np.array([.1, .5, 1., 2.5]); print(np.exp(x), …)"`
#[test]
fn functions_have_numpys_values() {
    let x = [0.1, 0.5, 1.0, 2.5];
    let expected: &[(&str, [f64; 4])] = &[
        (
            "Exp",
            [
                1.1051709180756477,
                1.6487212707001282,
                std::f64::consts::E,
                12.182493960703473,
            ],
        ),
        (
            "Log",
            [
                -2.3025850929940455,
                -std::f64::consts::LN_2,
                0.0,
                0.9162907318741551,
            ],
        ),
        (
            "Log1p",
            [
                0.09531017980432487,
                0.4054651081081644,
                std::f64::consts::LN_2,
                1.252762968495368,
            ],
        ),
        (
            "Sqrt",
            [
                0.31622776601683794,
                std::f64::consts::FRAC_1_SQRT_2,
                1.0,
                1.5811388300841898,
            ],
        ),
        (
            "Rsqrt",
            [
                3.162277660168379,
                std::f64::consts::SQRT_2,
                1.0,
                0.6324555320336759,
            ],
        ),
        ("Square", [0.010000000000000002, 0.25, 1.0, 6.25]),
        ("Reciprocal", [10.0, 2.0, 1.0, 0.4]),
        ("Inv", [10.0, 2.0, 1.0, 0.4]),
        (
            "Tanh",
            [
                0.09966799462495582,
                0.46211715726000973,
                0.7615941559557649,
                0.9866142981514303,
            ],
        ),
        (
            "Sigmoid",
            [
                0.52497918747894,
                0.6224593312018546,
                0.7310585786300049,
                0.9241418199787566,
            ],
        ),
        ("Neg", [-0.1, -0.5, -1.0, -2.5]),
    ];
    for (op, expected) in expected {
        let wide = one::<f64>(op, &[tensor(&[4], &x)]).1;
        assert!(is_close(&wide, expected, 1e-15), "{op}: {wide:?}");
        let single = one::<f32>(op, &[tensor(&[4], &x.map(|x| x as f32))]).1;
        let single: Vec<_> = single.into_iter().map(f64::from).collect();
        assert!(is_close(&single, expected, 3e-7), "{op}: {single:?}");
        let halves = one::<f16>(op, &[tensor(&[4], &x.map(f16::from_f64))]).1;
        let halves: Vec<_> = halves.into_iter().map(f64::from).collect();
        assert!(is_close(&halves, expected, 1e-3), "{op}: {halves:?}");
        let brains = one::<bf16>(op, &[tensor(&[4], &x.map(bf16::from_f64))]).1;
        let brains: Vec<_> = brains.into_iter().map(f64::from).collect();
        assert!(is_close(&brains, expected, 2e-2), "{op}: {brains:?}");
    }
}

type Binary = fn(f64, f64) -> f64;

#[test]
fn gradients_of_functions_are_their_formulas() {
    let y = [0.25, 0.5, 0.75];
    let dy = [2.0, -1.0, 4.0];
    let cases: &[(&str, Binary)] = &[
        ("TanhGrad", |y, dy| dy * (1.0 - y * y)),
        ("SigmoidGrad", |y, dy| dy * y * (1.0 - y)),
        ("SqrtGrad", |y, dy| dy * 0.5 / y),
        ("RsqrtGrad", |y, dy| -0.5 * dy * y * y * y),
        ("ReciprocalGrad", |y, dy| -dy * y * y),
    ];
    for (op, formula) in cases {
        let actual = one::<f64>(op, &[tensor(&[3], &y), tensor(&[3], &dy)]).1;
        let expected: Vec<_> = y.iter().zip(&dy).map(|(&y, &dy)| formula(y, dy)).collect();
        assert!(is_close(&actual, &expected, 1e-15), "{op}: {actual:?}");
    }
    let text = refusal(
        "TanhGrad",
        &[tensor(&[2], &[1f32, 2.]), tensor(&[1], &[1f32])],
    );
    assert!(text.contains("must have the same size and shape"), "{text}");
}

#[test]
fn powers() {
    let both = [tensor(&[3], &[2i64, -3, 0]), tensor(&[3], &[10i64, 3, 0])];
    assert_eq!(one::<i64>("Pow", &both).1, [1024, -27, 1]);
    let both = [
        tensor(&[4], &[-1i64, 3, 2, 7]),
        tensor(&[4], &[1i64 << 32, (1 << 32) + 5, 1 << 33, (1 << 62) + 3]),
    ];
    assert_eq!(
        one::<i64>("Pow", &both).1,
        [1, -3_354_302_542_585_528_077, 0, 343]
    );
    let both = [tensor(&[2], &[2f64, 9.0]), tensor(&[], &[0.5f64])];
    assert!(is_close(
        &one::<f64>("Pow", &both).1,
        &[std::f64::consts::SQRT_2, 3.0],
        1e-15
    ));
}

/// The bits of what `x` is when it is cast to `to`, truncated.
fn cut<T: Element, U: Element>(x: T, to: DataType) -> U {
    let cast = one_with::<U>("Cast", &[tensor(&[], &[x])], |node| {
        node.attr("DstT", to).attr("Truncate", true)
    });
    cast.1[0]
}

#[test]
fn casts_truncate_if_asked() {
    // What lies just below two stays below it; of doubles that become bfloat16 the original does not truncate.
    let (x, y) = (2.0 - 1e-15f64, 2.0 - f32::EPSILON);
    assert_eq!(cut::<_, f32>(-x, DtFloat), -2.0 + f32::EPSILON);
    assert_eq!(cut::<_, f16>(x, DtHalf).to_bits(), 0x3fff);
    assert_eq!(cut::<_, f16>(y, DtHalf).to_bits(), 0x3fff);
    assert_eq!(cut::<_, bf16>(-y, DtBfloat16).to_bits(), 0xbfff);
    assert_eq!(cut::<_, bf16>(x, DtBfloat16).to_bits(), 0x4000);
    // A number so small that it lost bits already.
    let small = f32::from_bits(0x0001_ffff);
    assert_eq!(cut::<_, bf16>(small, DtBfloat16).to_bits(), 1);
    assert!(cut::<_, f32>(f64::NAN, DtFloat).is_nan());
    assert_eq!(cut::<_, f32>(f64::INFINITY, DtFloat), f32::INFINITY);
}

#[test]
fn foreign_memory_may_begin_anywhere() {
    let mut bytes = vec![0u8; 41];
    let start = (0..8)
        .find(|at| (bytes.as_ptr().addr() + at) % 4 == 1)
        .expect("an odd place");
    for (place, value) in bytes[start..start + 32].chunks_exact_mut(4).zip(1i32..) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    let foreign = bytes::Bytes::from(bytes).slice(start..start + 32);
    let meta = rendez::ground::TensorMeta {
        dtype: DType::I32,
        shape: rendez::ground::Shape::new(&[8]).expect("a shape"),
    };
    let foreign = Tensor::from_bytes(meta, foreign).expect("32 bytes");
    assert!(foreign.as_slice::<i32>().is_err(), "it is misaligned");
    assert_eq!(
        one::<i32>("Neg", &[foreign]).1,
        [-1, -2, -3, -4, -5, -6, -7, -8]
    );
}

#[test]
fn tables_of_a_column_and_a_row_are_costly() {
    let kernel = crate::operations::testing::kernel(
        "AddV2",
        &[rendez_proto::tensorflow::DataType::DtFloat; 2],
        |node| node,
    )
    .expect("a kernel");
    let value = |dims: &[u64]| {
        let len = dims.iter().product::<u64>() as usize;
        crate::kernel::Value::Tensor(tensor(dims, &vec![0f32; len]))
    };
    assert!(!kernel.is_costly(&[value(&[100]), value(&[100])]));
    assert!(kernel.is_costly(&[value(&[1000, 1]), value(&[1000])]));
    assert_eq!(f32::DTYPE, DType::F32);
}
