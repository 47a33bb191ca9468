//! Layers of nothing: shapes whose other dimensions are as large as they may be. And orders that there are not.

use crate::operations::testing::{one_with, run_with, tensor};
use rendez::ground::{Code, catalogue};

const WIDE: u64 = 1 << 45;

#[test]
fn sums_of_more_channels_than_there_is_memory_for_are_refused() {
    for (dims, format) in [(&[0, WIDE][..], "NHWC"), (&[0, WIDE, 3], "NCHW")] {
        let floats = tensor::<f32>(dims, &[]);
        let integers = tensor::<i32>(dims, &[]);
        for gradient in [floats, integers] {
            let made = run_with("BiasAddGrad", &[gradient], |node| {
                node.attr("data_format", format)
            });
            let status = made.expect_err("there is no such room");
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        }
    }
}

#[test]
fn sums_of_no_channels_end_however_many_rows_there_are() {
    for (dims, format) in [(&[WIDE, 0][..], "NHWC"), (&[WIDE, 0, 3], "NCHW")] {
        let gradient = tensor::<f32>(dims, &[]);
        let (dims, sums) = one_with::<f32>("BiasAddGrad", &[gradient], |node| {
            node.attr("data_format", format)
        });
        assert_eq!((dims, sums), (vec![0], vec![]));
    }
}

#[test]
fn sums_of_nothing_are_zeros() {
    for (dims, format) in [
        (&[0, 2][..], "NHWC"),
        (&[3, 2, 0], "NCHW"),
        (&[0, 2, WIDE, WIDE], "NCHW"),
    ] {
        let gradient = tensor::<f32>(dims, &[]);
        let (dims, sums) = one_with::<f32>("BiasAddGrad", &[gradient], |node| {
            node.attr("data_format", format)
        });
        assert_eq!((dims, sums), (vec![2], vec![0.0; 2]));
    }
}

#[test]
fn an_order_that_is_not_known_is_refused() {
    let value = tensor::<f32>(&[1, 2, 2, 2], &[0.0; 8]);
    let bias = tensor::<f32>(&[2], &[0.0; 2]);
    for (op, inputs) in [
        ("BiasAdd", vec![value.clone(), bias]),
        ("BiasAddGrad", vec![value]),
    ] {
        for format in ["nchw", "NCDHW", ""] {
            let made = run_with(op, &inputs, |node| node.attr("data_format", format));
            let status = made.expect_err("there is no such order");
            assert_eq!(status.reason(), catalogue::GRAPH_ATTR);
            let expected = format!(
                "Value for attr 'data_format' of \"{format}\" is not in the list of allowed values: \"NHWC\", \"NCHW\""
            );
            assert!(status.message().starts_with(&expected), "{status}");
        }
    }
}
