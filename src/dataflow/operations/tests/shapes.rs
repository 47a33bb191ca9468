//! Shape rules, one by one: what fits, and what does not.

use crate::graph::PartialShape;
use crate::graph::attr::{Attrs, IntoAttr};
use crate::graph::infer::{Inferred, Known};
use crate::operations::Operations;

/// `?` is an unknown dimension, `*` an unknown rank.
fn shape(text: &str) -> PartialShape {
    match text {
        "*" => PartialShape::UNKNOWN,
        "" => PartialShape::scalar(),
        _ => PartialShape::of(text.split(',').map(|dim| dim.parse().ok()).collect()),
    }
}

struct Case {
    op: &'static str,
    shapes: Vec<PartialShape>,
    values: Vec<Option<Vec<i64>>>,
    attrs: Attrs,
}

fn case(op: &'static str, shapes: &[&str]) -> Case {
    Case {
        op,
        shapes: shapes.iter().map(|text| shape(text)).collect(),
        values: vec![None; shapes.len()],
        attrs: Attrs::new(),
    }
}

impl Case {
    fn value(mut self, input: usize, row: &[i64]) -> Self {
        self.values[input] = Some(row.to_vec());
        self
    }

    fn attr(mut self, name: &str, value: impl IntoAttr) -> Self {
        self.attrs.insert(name.to_owned(), value.into_attr());
        self
    }

    fn infer(&self, outputs: usize) -> Inferred {
        let operations = Operations::standard();
        operations
            .ops()
            .find(self.op, "x")
            .expect("an operation")
            .infer(Known {
                shapes: &self.shapes,
                values: &self.values,
                attrs: &self.attrs,
                outputs,
            })
    }

    fn gives(self, wanted: &[&str]) {
        let given = self
            .infer(wanted.len())
            .unwrap_or_else(|what| panic!("{}: {what}", self.op));
        let wanted: Vec<_> = wanted.iter().map(|text| shape(text)).collect();
        assert_eq!(given, wanted, "{}", self.op);
    }

    fn refuses(self, outputs: usize) {
        assert!(
            self.infer(outputs).is_err(),
            "{} {:?}",
            self.op,
            self.shapes
        );
    }
}

#[test]
fn elementwise() {
    case("Add", &["2,1", "3"]).gives(&["2,3"]);
    case("Add", &["?,3", "1,3"]).gives(&["?,3"]);
    case("Add", &["?", "5"]).gives(&["5"]);
    case("Add", &["*", "5"]).gives(&["*"]);
    case("Add", &["2", "3"]).refuses(1);
    case("AddN", &["2,?", "?,3"]).gives(&["2,3"]);
    case("AddN", &["2", "3"]).refuses(1);
    case("Select", &["2", "2,3", "2,?"]).gives(&["2,3"]);
    case("Select", &["3", "2,3", "2,3"]).refuses(1);
    case("Select", &["", "2,3", "2,3"]).gives(&["2,3"]);
    case("SelectV2", &["3", "2,1", ""]).gives(&["2,3"]);
}

#[test]
fn shapes_that_need_not_fit() {
    case("Equal", &["2", "3"]).refuses(1);
    case("Equal", &["?", "3"]).gives(&["3"]);
    for (shapes, wanted) in [
        (["2", "3"], "*"),
        (["*", "3"], "*"),
        (["?", "3"], "*"),
        (["0,2", "?,2"], "*"),
        (["?", "1"], "?"),
        (["?", "?"], "?"),
        (["2,1", "3"], "2,3"),
        (["2,?", ""], "2,?"),
    ] {
        for op in ["Equal", "NotEqual"] {
            case(op, &shapes)
                .attr("incompatible_shape_error", false)
                .gives(&[wanted]);
        }
    }
    case("Assign", &["2", "3"]).refuses(1);
    case("Assign", &["2,?", "?,3"]).gives(&["2,3"]);
    case("Assign", &["2", "3"])
        .attr("validate_shape", false)
        .gives(&["3"]);
}

#[test]
fn matrices() {
    case("MatMul", &["2,3", "3,4"]).gives(&["2,4"]);
    case("MatMul", &["2,3", "4,3"])
        .attr("transpose_b", true)
        .gives(&["2,4"]);
    case("MatMul", &["3,2", "3,4"])
        .attr("transpose_a", true)
        .gives(&["2,4"]);
    case("MatMul", &["*", "3,4"]).gives(&["?,4"]);
    case("MatMul", &["2,3", "4,3"]).refuses(1);
    case("MatMul", &["2,3,4", "4,3"]).refuses(1);
    case("BiasAdd", &["2,?", "5"]).gives(&["2,5"]);
    case("BiasAdd", &["2,4", "5"]).refuses(1);
    case("BiasAdd", &["2", "2"]).refuses(1);
    case("BiasAddGrad", &["2,4"]).gives(&["4"]);
    case("SoftmaxCrossEntropyWithLogits", &["?,4", "3,?"]).gives(&["3", "3,4"]);
}

#[test]
fn reductions() {
    case("Sum", &["2,3,4", "2"])
        .value(1, &[0, -1])
        .gives(&["3"]);
    case("Sum", &["2,3,4", "1"])
        .value(1, &[1])
        .attr("keep_dims", true)
        .gives(&["2,1,4"]);
    case("Sum", &["2,3", "?"]).gives(&["*"]);
    case("Sum", &["2,3", "?"])
        .attr("keep_dims", true)
        .gives(&["?,?"]);
    case("Sum", &["2,3", "1"]).value(1, &[2]).refuses(1);
    case("Sum", &["2,3", "1"]).value(1, &[i64::MIN]).refuses(1);
    case("ArgMax", &["2,3", ""]).value(1, &[-1]).gives(&["2"]);
    case("ArgMax", &["", ""]).refuses(1);
}

#[test]
fn pieces() {
    case("ConcatV2", &["2,3", "4,?", ""])
        .value(2, &[0])
        .gives(&["6,3"]);
    case("ConcatV2", &["2,3", "4,5", ""])
        .value(2, &[0])
        .refuses(1);
    case("Concat", &["", "2,3", "2,1"])
        .value(0, &[1])
        .gives(&["2,4"]);
    case("ConcatV2", &["2,3", "*", ""]).gives(&["?,?"]);
    case("Split", &["", "6,2"])
        .value(0, &[0])
        .gives(&["2,2", "2,2", "2,2"]);
    case("Split", &["", "7,2"]).value(0, &[0]).refuses(3);
    case("Split", &["", "7,2"]).value(0, &[0]).refuses(0);
    case("SplitV", &["6,2", "2", ""])
        .value(1, &[2, -1])
        .value(2, &[0])
        .gives(&["2,2", "?,2"]);
    case("SplitV", &["6,2", "1", ""])
        .value(1, &[2])
        .value(2, &[0])
        .refuses(2);
    case("Slice", &["6,2", "2", "2"])
        .value(1, &[1, 0])
        .value(2, &[2, -1])
        .gives(&["2,2"]);
    case("Slice", &["6,2", "2", "2"])
        .value(1, &[7, 0])
        .value(2, &[0, 0])
        .refuses(1);
    case("Slice", &["6,2", "2", "2"])
        .value(1, &[5, 0])
        .value(2, &[2, 0])
        .refuses(1);
    case("Slice", &["6,2", "2", "2"])
        .value(1, &[-1, 0])
        .value(2, &[2, 0])
        .refuses(1);
    case("Pack", &["2,?", "?,3"])
        .attr("axis", -1i64)
        .gives(&["2,3,2"]);
    case("Unpack", &["2,3"])
        .attr("axis", 1i64)
        .gives(&["2", "2", "2"]);
    case("Unpack", &["2,3"]).refuses(3);
    case("Transpose", &["2,3", "2"])
        .value(1, &[1, 0])
        .gives(&["3,2"]);
    case("Transpose", &["2,3", "2"])
        .value(1, &[1, 1])
        .refuses(1);
    case("Transpose", &["2,3", "3"]).refuses(1);
    case("Transpose", &["*", "3"]).gives(&["?,?,?"]);
}

#[test]
fn forms() {
    case("Reshape", &["2,3", "2"])
        .value(1, &[-1, 2])
        .gives(&["3,2"]);
    case("Reshape", &["2,3", "2"])
        .value(1, &[-1, -1])
        .refuses(1);
    case("Reshape", &["2,3", "1"]).value(1, &[-2]).refuses(1);
    case("Reshape", &["2,3", "2"])
        .value(1, &[i64::MAX, i64::MAX])
        .refuses(1);
    case("Reshape", &["0,3", "2"])
        .value(1, &[0, -1])
        .gives(&["0,?"]);
    case("Reshape", &["2,3", "4"]).gives(&["?,?,?,?"]);
    case("ExpandDims", &["2,3", ""])
        .value(1, &[-1])
        .gives(&["2,3,1"]);
    case("ExpandDims", &["2,3", ""]).value(1, &[3]).refuses(1);
    case("Squeeze", &["1,3,1"]).gives(&["3"]);
    case("Squeeze", &["1,3,?"])
        .attr("squeeze_dims", vec![-1i64])
        .gives(&["1,3"]);
    case("Squeeze", &["1,3"])
        .attr("squeeze_dims", vec![1i64])
        .refuses(1);
    case("Shape", &["2,?"]).gives(&["2"]);
    case("Gather", &["5,7", "2,3"]).gives(&["2,3,7"]);
    case("GatherV2", &["5,7", "2,3", ""])
        .value(2, &[1])
        .gives(&["5,2,3"]);
    case("GatherV2", &["", "2", ""]).refuses(1);
    case("OneHot", &["4", "", "", ""])
        .value(1, &[10])
        .gives(&["4,10"]);
    case("OneHot", &["4", "", "", ""])
        .value(1, &[-7])
        .refuses(1);
    case("Range", &["", "", ""])
        .value(0, &[0])
        .value(1, &[10])
        .value(2, &[3])
        .gives(&["4"]);
    case("Range", &["", "", ""])
        .value(0, &[i64::MIN])
        .value(1, &[i64::MAX])
        .value(2, &[1])
        .infer(1)
        .expect("long");
    case("Range", &["", "", ""])
        .value(0, &[0])
        .value(1, &[10])
        .value(2, &[0])
        .refuses(1);
    case("Range", &["", "", ""])
        .value(0, &[0])
        .value(1, &[10])
        .value(2, &[-1])
        .refuses(1);
    case("Merge", &["2,3", "2,4"]).gives(&["2,?", ""]);
    case("Switch", &["2,3", "2"]).refuses(2);
    case("Const", &[]).refuses(1);
}

#[test]
fn no_rule_panics_whatever_it_is_given() {
    let operations = Operations::standard();
    let choices = ["*", "", "?", "0", "2,3", "18446744073709551615,2"];
    let rows: [Option<Vec<i64>>; 5] = [
        None,
        Some(vec![]),
        Some(vec![-1]),
        Some(vec![i64::MIN, 3]),
        Some(vec![i64::MAX]),
    ];
    for op in operations.ops().iter() {
        for seed in 0..choices.len() * rows.len() {
            for count in 0..5 {
                let shapes: Vec<_> = (0..count)
                    .map(|at| shape(choices[(seed + at * 7) % choices.len()]))
                    .collect();
                let values: Vec<_> = (0..count)
                    .map(|at| rows[(seed / choices.len() + at) % rows.len()].clone())
                    .collect();
                let _ = op.infer(Known {
                    shapes: &shapes,
                    values: &values,
                    attrs: &Attrs::new(),
                    outputs: seed % 3,
                });
            }
        }
    }
}
