//! Running graphs from the command line: arguments, and how values are shown.

use super::*;
use rendez::ground::{DType, Shape, TensorMeta};

#[test]
fn names_and_files_are_told_apart() {
    assert_eq!(
        named("a/b:1=x=y.npy"),
        Ok(("a/b:1".to_owned(), "x=y.npy".into()))
    );
    for wrong in ["a", "=x", "a=", ""] {
        assert!(named(wrong).expect_err(wrong).contains("x:0=values.npy"));
    }
}

fn shown(tensor: &Tensor) -> (String, String) {
    let all = values(tensor, usize::MAX).expect("values");
    let text: Vec<String> = all.iter().map(ToString::to_string).collect();
    let object = Fetched {
        name: "a\"b",
        tensor,
    }
    .to_string();
    let read: serde_json::Value = serde_json::from_str(&object).expect("JSON");
    assert_eq!(read["fetch"], "a\"b");
    assert_eq!(read["dtype"], tensor.dtype().name());
    assert_eq!(
        read["shape"],
        serde_json::json!(tensor.shape().dims().collect::<Vec<_>>())
    );
    let (_, json) = object.split_once(r#""values":"#).expect("its values");
    (text.join(" "), json.trim_end_matches('}').to_owned())
}

fn row(len: u64) -> Shape {
    Shape::row(len).expect("a row")
}

#[test]
fn values_are_shown_as_they_are() {
    let singles = vec![0.1f32, f32::NAN, f32::NEG_INFINITY, 1e-20];
    let (text, json) = shown(&Tensor::from_vec(singles, row(4)).expect("a tensor"));
    assert_eq!(text, "0.1 NaN -inf 0.00000000000000000001");
    assert_eq!(json, r#"[0.1,"NaN","-inf",1e-20]"#);
    let (text, json) = shown(&Tensor::from_vec(vec![u64::MAX, 0], row(2)).expect("a tensor"));
    assert_eq!(
        (text.as_str(), json.as_str()),
        ("18446744073709551615 0", "[18446744073709551615,0]")
    );
    let strings = Tensor::from_strings(&[b"a\n\xff".as_slice(), "é".as_bytes(), b""], row(3))
        .expect("a tensor");
    let (text, json) = shown(&strings);
    assert_eq!(text, r#""a\n\xff" "\xc3\xa9" """#);
    assert_eq!(json, r#"[{"hex":"610aff"},"é",""]"#);
    let truth = Tensor::scalar(rendez::memory::Bool8::TRUE);
    assert_eq!(shown(&truth), ("true".to_owned(), "[true]".to_owned()));
    let complex = Tensor::scalar(num_complex::Complex::new(1.5f64, -2.0));
    assert_eq!(
        shown(&complex),
        ("1.5-2i".to_owned(), "[[1.5,-2.0]]".to_owned())
    );
    let single = Tensor::scalar(num_complex::Complex::new(0.1f32, 3.820_471_4e-37));
    assert_eq!(shown(&single).1, "[[0.1,3.8204714e-37]]");
    let half = Tensor::scalar(half::bf16::from_f32(0.5));
    assert_eq!(shown(&half).0, "0.5");
    let many = Tensor::from_vec(vec![1u8; 100], row(100)).expect("a tensor");
    assert_eq!(values(&many, 8).expect("values").len(), 8);
    assert_eq!(many.dtype(), DType::U8);
}

#[test]
fn every_type_is_shown() {
    for &dtype in DType::ALL {
        let shape = row(1);
        let tensor = match dtype.size() {
            Some(size) => Tensor::from_bytes(TensorMeta { dtype, shape }, vec![0; size].into()),
            None => Tensor::from_strings(&["a"], shape),
        };
        let tensor = tensor.expect("a tensor");
        assert_eq!(values(&tensor, 8).expect("values").len(), 1, "{dtype}");
    }
}

#[test]
fn the_trace_of_the_environment_is_taken_if_it_is_one() {
    let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let trace = inherited(Some(good.into())).expect("it is one");
    assert_eq!(trace.to_string(), good);
    assert_eq!(traceparent(good), Ok(trace));
    assert_eq!(inherited(None), None);
    for bad in ["", "x", &good.to_uppercase()] {
        assert_eq!(inherited(Some(bad.into())), None, "{bad}");
        assert!(traceparent(bad).expect_err(bad).contains("traceparent"));
    }
}
