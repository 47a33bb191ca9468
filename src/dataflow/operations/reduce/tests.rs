//! Long sums: of many numbers in 32 bits, which one running sum would not hold.

use crate::operations::testing::{is_close, one, one_with, run, tensor};
use rendez::memory::Tensor;

/// So many that a running sum of 0.1 is off by more than a hundredth.
const MANY: u64 = 1 << 20;

fn tenths(dims: &[u64]) -> Tensor {
    let count = dims.iter().product::<u64>() as usize;
    tensor(dims, &vec![0.1f32; count])
}

fn assert_close(op: &str, values: &[f32], wanted: f64) {
    let wanted = vec![wanted; values.len()];
    let values: Vec<f64> = values.iter().map(|&value| value.into()).collect();
    assert!(is_close(&values, &wanted, 1e-4), "{op}: {values:?}");
}

/// The sum of [`MANY`] of them.
const TOTAL: f64 = MANY as f64 / 10.0;

#[test]
fn long_sums_stay_true() {
    let cases: [(&[u64], &[i32]); _] = [
        (&[MANY, 2], &[0]),
        (&[2, MANY], &[1]),
        // Many short rows, with what stays between them, and also behind them.
        (&[MANY / 2, 2, 2], &[0, 2]),
        (&[MANY / 2, 2, 2, 2], &[0, 2]),
    ];
    for (dims, axes) in cases {
        let inputs = [tenths(dims), tensor(&[axes.len() as u64], axes)];
        let called = |op: &str| format!("{op} of {dims:?}");
        assert_close(&called("Sum"), &one::<f32>("Sum", &inputs).1, TOTAL);
        assert_close(&called("Mean"), &one::<f32>("Mean", &inputs).1, 0.1);
    }
}

#[test]
fn gradients_of_biases_stay_true() {
    let cases = [
        ([1, MANY, 2], "NHWC"),
        ([1, 2, MANY], "NCHW"),
        ([MANY / 2, 2, 2], "NCHW"),
    ];
    for (dims, format) in cases {
        let (_, sums) = one_with::<f32>("BiasAddGrad", &[tenths(&dims)], |node| {
            node.attr("data_format", format)
        });
        assert_close(format, &sums, TOTAL);
    }
}

#[test]
fn long_sums_of_squares_stay_true() {
    let (_, half) = one::<f32>("L2Loss", &[tenths(&[MANY])]);
    assert_close("L2Loss", &half, TOTAL / 20.0);
}

#[test]
fn long_rows_have_their_softmax_and_losses() {
    let mut logits = vec![0.1f32.ln(); MANY as usize];
    logits[0] = 0.0;
    let log = logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
    let weight = 0.1f32;
    let of_all = logits.iter().map(|&x| log - f64::from(x)).sum::<f64>() * f64::from(weight);
    let logits = tensor(&[1, MANY], &logits);
    let weights = tensor(&[1, MANY], &vec![weight; MANY as usize]);
    let first = tensor(&[1], &[0i64]);
    let made = |op: &str, inputs: &[Tensor]| -> Vec<f64> {
        let made = run(op, inputs).unwrap_or_else(|status| panic!("{op}: {status}"));
        let values = made[0].as_slice::<f32>().expect("numbers").iter();
        values.map(|&value| value.into()).collect()
    };
    let softmax = made("Softmax", std::slice::from_ref(&logits));
    let total = softmax.iter().sum::<f64>();
    assert!(is_close(&[total], &[1.0], 1e-4), "Softmax: {total}");
    let logs = made("LogSoftmax", std::slice::from_ref(&logits));
    assert!(
        is_close(&logs[..1], &[-log], 1e-4),
        "LogSoftmax: {}",
        logs[0]
    );
    let sparse = made(
        "SparseSoftmaxCrossEntropyWithLogits",
        &[logits.clone(), first],
    );
    assert!(is_close(&sparse, &[log], 1e-4), "of a class: {sparse:?}");
    let dense = made("SoftmaxCrossEntropyWithLogits", &[logits, weights]);
    assert!(
        is_close(&dense, &[of_all], 1e-4),
        "of all: {dense:?}, {of_all}"
    );
}

#[test]
fn rows_go_where_they_belong_however_many_there_are() {
    let (outer, along) = (3, 9001);
    let values: Vec<i64> = (0..outer * along * 2).collect();
    let input = tensor(&[3, 9001, 2], &values);
    let (dims, sums) = one::<i64>("Sum", &[input.clone(), tensor(&[1], &[1])]);
    let sum = |at: i64| {
        (0..along)
            .map(|i| at / 2 * along * 2 + i * 2 + at % 2)
            .sum()
    };
    let wanted: Vec<i64> = (0..outer * 2).map(sum).collect();
    assert_eq!((dims, sums), (vec![3, 2], wanted));
    let (_, largest) = one::<i64>("Max", &[input, tensor(&[1], &[1])]);
    assert_eq!(largest, [18000, 18001, 36002, 36003, 54004, 54005]);
}

#[test]
fn sums_of_none_are_zero_however_large_the_other_dimensions_are() {
    const WIDE: u64 = 1 << 45;
    let input = tensor::<f32>(&[0, WIDE, WIDE], &[]);
    for op in ["Sum", "Mean"] {
        let made = one::<f32>(op, &[input.clone(), tensor(&[3], &[0, 1, 2])]);
        assert_eq!(made.0, Vec::<u64>::new());
        assert!(made.1[0] == 0.0 || op == "Mean" && made.1[0].is_nan());
    }
}
