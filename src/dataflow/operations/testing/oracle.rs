//! What TensorFlow's kernels gave and refused, case by case: `scripts/kernel-oracle.py` asked it.

use half::{bf16, f16};
use serde_json::Value as Json;

use super::{is_close, run_with};
use crate::graph::{NodeBuilder, types};
use crate::kernel::numbers::{Number, by_type};
use rendez::ground::{DType, Shape};
use rendez::memory::{Bool8, Tensor};
use rendez_proto::tensorflow::DataType;

const CASES: &str = include_str!("../../../../tests/data/kernels.jsonl");

fn list(json: &Json) -> &[Json] {
    json.as_array().expect("a list")
}

fn number(json: &Json) -> f64 {
    match json.as_str() {
        Some(text) => text.parse().expect("a number that is not finite"),
        None => json.as_f64().expect("a number"),
    }
}

/// The type that the script calls so; NumPy has other names than graphs.
fn base(name: &str) -> DataType {
    let name = match name {
        "float32" => "float",
        "float64" => "double",
        "float16" => "half",
        name => name,
    };
    types::parse(name).unwrap_or_else(|| panic!("a type is called {name}"))
}

fn read(json: &Json) -> Tensor {
    let dims: Vec<_> = list(&json["dims"])
        .iter()
        .map(|dim| dim.as_u64().expect("a size"))
        .collect();
    let shape = Shape::new(&dims).expect("a shape");
    let values = list(&json["values"]);
    let dtype = types::dtype(base(json["dtype"].as_str().expect("a type"))).expect("elements");
    match dtype {
        DType::String => {
            // Bytes stand for themselves, one character each.
            let bytes = |text: &Json| text.as_str().expect("text").chars().map(|c| c as u8).collect::<Vec<_>>();
            Tensor::from_strings(&values.iter().map(bytes).collect::<Vec<_>>(), shape)
        }
        DType::Bool => {
            Tensor::from_vec(values.iter().map(|v| Bool8::from(number(v) != 0.0)).collect::<Vec<_>>(), shape)
        }
        dtype => by_type!(dtype, T: all => {
            let value = |json: &Json| match (json.as_i64(), T::IS_INTEGER) {
                (Some(integer), true) => T::from_i64(integer),
                (None, true) if json.is_u64() => T::from_i64(json.as_u64().unwrap_or(0).cast_signed()),
                _ => T::from_f64(number(json)),
            };
            Tensor::from_vec(values.iter().map(value).collect::<Vec<_>>(), shape)
        })
        .expect("a number's type"),
    }
    .expect("as many values as the shape has")
}

fn set<'a>(node: NodeBuilder<'a>, name: &str, value: &Json) -> NodeBuilder<'a> {
    match value {
        Json::Bool(truth) => node.attr(name, *truth),
        Json::Number(number) => node.attr(name, number.as_i64().expect("an integer")),
        Json::Array(list) => {
            let name = if name == "axis" { "squeeze_dims" } else { name };
            node.attr(
                name,
                list.iter().filter_map(Json::as_i64).collect::<Vec<_>>(),
            )
        }
        Json::String(text) => match text.strip_prefix("dt:") {
            Some(dtype) => node.attr(name, base(dtype)),
            None => node.attr(name, text.as_str()),
        },
        other => panic!("{name} is {other}"),
    }
}

fn floats(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype() {
        DType::Bool => tensor
            .host()
            .expect("host memory")
            .iter()
            .map(|&byte| byte.into())
            .collect(),
        dtype => by_type!(dtype, T: all => {
            let elements = tensor.as_slice::<T>().expect("elements");
            elements.iter().map(|x| x.to_f64()).collect()
        })
        .expect("numbers"),
    }
}

/// What makes a tensor differ from what it should be.
fn difference(actual: &Tensor, expected: &Tensor) -> Option<String> {
    if actual.meta() != expected.meta() {
        return Some(format!("{actual:?} instead of {expected:?}"));
    }
    if actual.bytes() == expected.bytes() {
        return None;
    }
    let tolerance = match actual.dtype() {
        DType::F32 => 2e-6,
        DType::F64 => 1e-13,
        DType::F16 => f16::EPSILON.into(),
        DType::BF16 => bf16::EPSILON.into(),
        _ => {
            return Some(format!(
                "{:?} instead of {:?}",
                actual.bytes(),
                expected.bytes()
            ));
        }
    };
    let (actual, expected) = (floats(actual), floats(expected));
    (!is_close(&actual, &expected, tolerance))
        .then(|| format!("{actual:?} instead of {expected:?}"))
}

/// What is wrong with what we make of a case.
fn fault(case: &Json) -> Option<String> {
    let op = case["op"].as_str().expect("an operation");
    let inputs: Vec<_> = list(&case["inputs"]).iter().map(read).collect();
    let attrs = case["attrs"].as_object().expect("attributes");
    let made = run_with(op, &inputs, |node| {
        attrs
            .iter()
            .fold(node, |node, (name, value)| set(node, name, value))
    });
    match (made, case["error"].as_str()) {
        (Err(status), Some(text)) if status.message().starts_with(text) => None,
        (Err(status), text) => Some(format!("{status} instead of {text:?}")),
        (Ok(_), Some(text)) => Some(format!("it was computed instead of: {text}")),
        (Ok(outputs), None) => {
            let expected: Vec<_> = list(&case["outputs"]).iter().map(read).collect();
            if outputs.len() != expected.len() {
                return Some(format!(
                    "{} outputs instead of {}",
                    outputs.len(),
                    expected.len()
                ));
            }
            outputs
                .iter()
                .zip(&expected)
                .find_map(|(actual, expected)| difference(actual, expected))
        }
    }
}

#[test]
fn kernels_compute_and_refuse_as_tensorflow_does() {
    let mut faults = vec![];
    let mut cases = 0;
    for line in CASES.lines() {
        let case: Json = serde_json::from_str(line).expect("a case");
        cases += 1;
        if let Some(fault) = fault(&case) {
            faults.push(format!(
                "{} {}: {fault}\n  {:.300}",
                case["op"],
                case["attrs"],
                case["inputs"].to_string()
            ));
        }
    }
    assert!(cases > 500, "{cases} cases");
    assert!(
        faults.is_empty(),
        "{} of {cases}:\n{}",
        faults.len(),
        faults.join("\n")
    );
}
