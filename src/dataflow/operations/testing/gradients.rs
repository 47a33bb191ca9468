//! Gradients against finite differences: the graphs that `graph::gradients` makes, computed by the kernels.

use std::collections::{BTreeMap, BTreeSet};

use super::{call, home, is_close, tensor};
use crate::graph::{Builder, Graph, Output, floats, gradients, ints};
use crate::kernel::{Home, Value};
use crate::operations::Operations;
use bytes::Bytes;
use half::f16;
use rendez::ground::{DType, Shape, Status, TensorMeta};
use rendez::memory::Tensor;
use rendez_proto::tensorflow::DataType;

mod ends;

/// The values of `wanted` in a graph without loops, computed node by node of what they read alone.
fn evaluate(
    graph: &Graph,
    home: &Home,
    fed: &BTreeMap<Output, Tensor>,
    wanted: &[Output],
) -> Result<Vec<Tensor>, Status> {
    let mut needed = BTreeSet::new();
    let mut found: Vec<_> = wanted.iter().map(|output| output.node).collect();
    while let Some(id) = found.pop() {
        if needed.insert(id) {
            found.extend(graph.node(id).inputs().iter().map(|input| input.node));
        }
    }
    let mut values: BTreeMap<Output, Value> = BTreeMap::new();
    for id in graph.order()?.into_iter().filter(|id| needed.contains(id)) {
        let node = graph.node(id);
        let inputs: Vec<_> = node
            .inputs()
            .iter()
            .map(|input| values[input].clone())
            .collect();
        let outputs = match fed.get(&Output { node: id, port: 0 }) {
            Some(fed) => vec![Value::Tensor(fed.clone())],
            None => call(&*Operations::standard().kernel(node)?, home, &inputs)?,
        };
        for (port, value) in (0u32..).zip(outputs) {
            values.insert(Output { node: id, port }, value);
        }
    }
    wanted
        .iter()
        .map(|output| values[output].tensor())
        .collect()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.as_slice::<f64>().expect("doubles").to_vec()
}

/// A value of this type, to be fed.
fn placeholder(graph: &mut Builder, base: DataType) -> Output {
    let node = graph.node("Placeholder").attr("dtype", base);
    node.build().expect("a placeholder")
}

/// The operation of all values, in order.
fn plain(op: &str) -> impl Fn(&mut Builder, &[Output]) -> Result<Output, Status> {
    move |graph, x| graph.node(op).inputs(x.iter().copied()).build()
}

/// Checks an operation of one value and, after it, of these constants, each with its dimensions.
fn check_with(op: &str, dims: &[u64], constants: &[(&[i64], &[i32])]) {
    check(op, &[dims], false, |graph, x| {
        let mut inputs = vec![x[0]];
        for (at, (dims, values)) in constants.iter().enumerate() {
            inputs.push(graph.constant(&format!("constant{at}"), ints(dims, values))?);
        }
        graph.node(op).inputs(inputs).build()
    });
}

/// Values that differ from each other, none near zero, of both signs unless they must be above it.
fn spread(len: usize, seed: usize, is_above: bool) -> Vec<f64> {
    (0..len)
        .map(|at| {
            let value = 0.3 + ((at * 37 + seed * 11) % 23) as f64 / 10.0;
            if is_above || (at + seed).is_multiple_of(2) {
                value
            } else {
                -value
            }
        })
        .collect()
}

/// Checks the gradients of what `make` computes from doubles of these shapes.
fn check(
    what: &str,
    shapes: &[&[u64]],
    is_above: bool,
    make: impl Fn(&mut Builder, &[Output]) -> Result<Output, Status>,
) {
    let mut graph = Builder::new(Operations::standard().ops());
    let mut xs = vec![];
    let mut fed = BTreeMap::new();
    for (seed, dims) in shapes.iter().enumerate() {
        let x = placeholder(&mut graph, DataType::DtDouble);
        let len = dims.iter().product::<u64>() as usize;
        fed.insert(x, tensor(dims, &spread(len, seed + 1, is_above)));
        xs.push(x);
    }
    let y = make(&mut graph, &xs).unwrap_or_else(|status| panic!("{what}: {status}"));
    // The gradient of y itself is no constant, so that it must be in its place.
    let weights = placeholder(&mut graph, DataType::DtDouble);
    let grads = gradients(&mut graph, &[y], &xs, &[Some(weights)])
        .unwrap_or_else(|status| panic!("{what}: {status}"));
    let graph = graph.finish().expect("a graph");
    let home = home();
    let value = |fed: &BTreeMap<Output, Tensor>, wanted: &[Output]| {
        evaluate(&graph, &home, fed, wanted).unwrap_or_else(|status| panic!("{what}: {status}"))
    };
    let shape = value(&fed, &[y])[0].shape();
    let weight = spread(shape.elements() as usize, 5, false);
    let dims: Vec<_> = shape.dims().collect();
    fed.insert(weights, tensor(&dims, &weight));
    let wanted: Vec<_> = grads
        .iter()
        .map(|grad| grad.unwrap_or_else(|| panic!("{what}: no gradient")))
        .collect();
    for (x, actual) in xs.iter().zip(value(&fed, &wanted)) {
        let at = fed[x].clone();
        assert_eq!(actual.shape(), at.shape(), "{what}");
        let dims: Vec<_> = at.shape().dims().collect();
        let step = 1e-6;
        let mut expected = vec![];
        for index in 0..numbers(&at).len() {
            let total = |by: f64| {
                let mut moved = numbers(&at);
                moved[index] += by;
                let mut fed = fed.clone();
                fed.insert(*x, tensor(&dims, &moved));
                numbers(&value(&fed, &[y])[0])
                    .iter()
                    .zip(&weight)
                    .map(|(y, weight)| y * weight)
                    .sum::<f64>()
            };
            expected.push((total(step) - total(-step)) / (2.0 * step));
        }
        let actual = numbers(&actual);
        assert!(
            is_close(&actual, &expected, 2e-7),
            "{what}: {actual:?} instead of {expected:?}"
        );
    }
}

#[test]
fn of_single_values() {
    for op in [
        "Identity",
        "Neg",
        "Abs",
        "Exp",
        "Square",
        "Reciprocal",
        "Inv",
        "Tanh",
        "Sigmoid",
        "Relu",
        "Relu6",
        "Softmax",
        "LogSoftmax",
        "L2Loss",
    ] {
        check(op, &[&[2, 3]], false, plain(op));
    }
    for op in ["Log", "Log1p", "Sqrt", "Rsqrt"] {
        check(op, &[&[2, 3]], true, plain(op));
    }
}

#[test]
fn of_pairs_that_are_broadcast() {
    for op in [
        "Add",
        "AddV2",
        "Sub",
        "Mul",
        "Div",
        "RealDiv",
        "Maximum",
        "Minimum",
        "SquaredDifference",
    ] {
        for shapes in [
            [&[2, 3][..], &[2, 3]],
            [&[2, 3], &[3]],
            [&[2, 1], &[1, 3]],
            [&[], &[2]],
            [&[1], &[]],
            [&[2, 1, 2], &[3, 1]],
        ] {
            check(op, &shapes, false, plain(op));
        }
    }
    for op in ["Pow", "FloorMod"] {
        check(op, &[&[2, 3], &[3]], true, plain(op));
    }
}

#[test]
fn of_products_and_layers() {
    for (a, b, turn_a, turn_b) in [
        ([2, 3], [3, 4], false, false),
        ([3, 2], [3, 4], true, false),
        ([2, 3], [4, 3], false, true),
        ([3, 2], [4, 3], true, true),
    ] {
        check("MatMul", &[&a, &b], false, |graph, x| {
            graph
                .node("MatMul")
                .inputs([x[0], x[1]])
                .attr("transpose_a", turn_a)
                .attr("transpose_b", turn_b)
                .build()
        });
    }
    check("BiasAdd", &[&[2, 2, 3], &[3]], false, plain("BiasAdd"));
    check("BiasAdd NCHW", &[&[2, 3, 2], &[3]], false, |graph, x| {
        graph
            .node("BiasAdd")
            .inputs([x[0], x[1]])
            .attr("data_format", "NCHW")
            .build()
    });
    for logits in [[2, 3], [2, 1]] {
        check(
            "SoftmaxCrossEntropyWithLogits",
            &[&logits, &[2, 3]],
            true,
            |graph, x| {
                // The rule holds for labels that are shares of one.
                let labels = graph.node("Softmax").input(x[1]).build()?;
                graph
                    .node("SoftmaxCrossEntropyWithLogits")
                    .inputs([x[0], labels])
                    .build()
            },
        );
    }
    for logits in [[2, 3], [2, 1]] {
        let what = "the gradient of SoftmaxCrossEntropyWithLogits";
        check(what, &[&logits, &[2, 3]], true, |graph, x| {
            let node = graph.node("SoftmaxCrossEntropyWithLogits");
            let loss = node.inputs([x[0], x[1]]).build()?;
            Ok(Output { port: 1, ..loss })
        });
    }
    check(
        "SparseSoftmaxCrossEntropyWithLogits",
        &[&[3, 4]],
        false,
        |graph, x| {
            let labels = graph.constant("labels", ints(&[3], &[2, 0, 3]))?;
            graph
                .node("SparseSoftmaxCrossEntropyWithLogits")
                .inputs([x[0], labels])
                .build()
        },
    );
}

#[test]
fn of_gradients_themselves() {
    for op in ["Tanh", "Sigmoid", "Relu", "Softmax", "Square"] {
        check(op, &[&[2, 3]], false, |graph, x| {
            let y = graph.node(op).input(x[0]).build()?;
            let grads = gradients(graph, &[y], &[x[0]], &[])?;
            let grad = grads[0].expect("it depends");
            graph.node("Mul").inputs([grad, x[0]]).build()
        });
    }
    check(
        "SparseSoftmaxCrossEntropyWithLogits",
        &[&[3, 4]],
        false,
        |graph, x| {
            let labels = graph.constant("labels", ints(&[3], &[2, 0, 3]))?;
            let loss = graph
                .node("SparseSoftmaxCrossEntropyWithLogits")
                .inputs([x[0], labels])
                .build()?;
            Ok(gradients(graph, &[loss], &[x[0]], &[])?[0].expect("it depends"))
        },
    );
    for logits in [[2, 3], [2, 1]] {
        check(
            "SoftmaxCrossEntropyWithLogits",
            &[&logits],
            false,
            |graph, x| {
                let shares = floats(&[2, 3], &[0.25, 0.25, 0.5, 0.125, 0.125, 0.75]);
                let shares = graph.constant("shares", shares)?;
                let labels = graph.node("Cast").input(shares);
                let labels = labels.attr("DstT", DataType::DtDouble).build()?;
                let loss = graph
                    .node("SoftmaxCrossEntropyWithLogits")
                    .inputs([x[0], labels])
                    .build()?;
                Ok(gradients(graph, &[loss], &[x[0]], &[])?[0].expect("it depends"))
            },
        );
    }
}

#[test]
fn of_reductions() {
    for op in ["Sum", "Mean", "Max", "Min"] {
        for axes in [
            &[0][..],
            &[1],
            &[-1],
            &[0, 2],
            &[2, 0],
            &[-1, 0],
            &[0, 1, 2],
            &[],
        ] {
            for keep in [false, true] {
                check(op, &[&[2, 3, 2]], true, |graph, x| {
                    let axes = graph.constant("axes", ints(&[axes.len() as i64], axes))?;
                    // Distinct values have one largest, so that it moves smoothly.
                    let weights = graph.constant(
                        "weights",
                        floats(
                            &[2, 3, 2],
                            &[1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12.],
                        ),
                    )?;
                    let weights = graph
                        .node("Cast")
                        .input(weights)
                        .attr("DstT", DataType::DtDouble)
                        .build()?;
                    let distinct = graph.node("Mul").inputs([x[0], weights]).build()?;
                    graph
                        .node(op)
                        .inputs([distinct, axes])
                        .attr("keep_dims", keep)
                        .build()
                });
            }
        }
        check_with(op, &[3], &[(&[], &[0])]);
        check_with(op, &[], &[(&[0], &[])]);
    }
}

#[test]
fn of_what_arranges() {
    check_with("Reshape", &[2, 3], &[(&[2], &[3, -1])]);
    check_with("ExpandDims", &[2, 3], &[(&[], &[1])]);
    check("Squeeze", &[&[2, 1, 3]], false, plain("Squeeze"));
    for order in [[2, 0, 1], [-1, 0, -2]] {
        check_with("Transpose", &[2, 3, 4], &[(&[3], &order)]);
    }
    for axis in [1, -1] {
        check(
            "ConcatV2",
            &[&[2, 3], &[2, 1], &[2, 2]],
            false,
            |graph, x| {
                let axis = graph.constant("axis", ints(&[], &[axis]))?;
                graph
                    .node("ConcatV2")
                    .inputs([x[0], x[1], x[2], axis])
                    .build()
            },
        );
    }
    check("Concat", &[&[2, 3], &[1, 3]], false, |graph, x| {
        let axis = graph.constant("axis", ints(&[], &[0]))?;
        graph.node("Concat").inputs([axis, x[0], x[1]]).build()
    });
    check("Pack", &[&[2], &[2]], false, |graph, x| {
        graph
            .node("Pack")
            .inputs([x[0], x[1]])
            .attr("axis", 1i64)
            .build()
    });
    check("Unpack", &[&[2, 3]], false, |graph, x| {
        let parts = graph
            .node("Unpack")
            .input(x[0])
            .attr("num", 3i64)
            .attr("axis", 1i64)
            .build()?;
        graph
            .node("Square")
            .input(Output { port: 1, ..parts })
            .build()
    });
    check("Split", &[&[4, 2]], false, |graph, x| {
        let axis = graph.constant("axis", ints(&[], &[0]))?;
        let parts = graph
            .node("Split")
            .inputs([axis, x[0]])
            .attr("num_split", 2i64)
            .build()?;
        graph
            .node("Square")
            .input(Output { port: 1, ..parts })
            .build()
    });
    check("SplitV", &[&[4, 2]], false, |graph, x| {
        let axis = graph.constant("axis", ints(&[], &[0]))?;
        let sizes = graph.constant("sizes", ints(&[2], &[1, 3]))?;
        let parts = graph
            .node("SplitV")
            .inputs([x[0], sizes, axis])
            .attr("num_split", 2i64)
            .build()?;
        graph
            .node("Mul")
            .inputs([parts, Output { port: 1, ..parts }])
            .build()
    });
    check_with("Slice", &[3, 4], &[(&[2], &[1, 1]), (&[2], &[-1, 2])]);
    check("StridedSlice", &[&[4, 3]], false, |graph, x| {
        let begin = graph.constant("begin", ints(&[2], &[3, 1]))?;
        let end = graph.constant("end", ints(&[2], &[0, 2]))?;
        let strides = graph.constant("strides", ints(&[2], &[-2, 1]))?;
        graph
            .node("StridedSlice")
            .inputs([x[0], begin, end, strides])
            .attr("shrink_axis_mask", 2i64)
            .build()
    });
    check_with("BroadcastTo", &[2, 1], &[(&[3], &[4, 2, 3])]);
    check("Fill", &[&[]], false, |graph, x| {
        let dims = graph.constant("dims", ints(&[2], &[2, 3]))?;
        graph.node("Fill").inputs([dims, x[0]]).build()
    });
    check_with("Tile", &[2, 3], &[(&[2], &[3, 2])]);
    // Twice as many dimensions are more than a tensor can have.
    check_with("Tile", &[1, 2, 1, 1, 2], &[(&[5], &[2, 1, 1, 3, 1])]);
    // Of these nothing is known beforehand.
    for dims in [&[2, 1, 3][..], &[1, 2, 1, 1, 2]] {
        check("Tile", &[dims], false, |graph, x| {
            let times = graph.node("Shape").input(x[0]).build()?;
            graph.node("Tile").inputs([x[0], times]).build()
        });
    }
}

#[test]
fn of_steps() {
    check("Sign", &[&[2, 3]], false, plain("Sign"));
    let mut graph = Builder::new(Operations::standard().ops());
    let x = placeholder(&mut graph, DataType::DtFloat);
    for whole in [DataType::DtInt32, DataType::DtBool] {
        let y = graph.node("Cast").input(x).attr("DstT", whole);
        let y = y.build().expect("a node");
        let grads = gradients(&mut graph, &[y], &[x], &[]).expect("gradients");
        assert_eq!(grads, [None], "{whole:?}");
    }
}

#[test]
fn of_slices_of_more_than_their_indices_count() {
    let mut graph = Builder::new(Operations::standard().ops());
    let x = placeholder(&mut graph, DataType::DtDouble);
    let [begin, end, step] = [("begin", 1), ("end", 3), ("step", 1)].map(|(name, value)| {
        let wide = graph.constant(name, ints(&[1], &[value]));
        let index = graph.node("Cast").input(wide.expect("a constant"));
        let index = index.attr("DstT", DataType::DtInt16);
        index.build().expect("an index")
    });
    let y = graph.put("StridedSlice", &[x, begin, end, step]);
    let grads = gradients(&mut graph, &[y], &[x], &[]).expect("gradients");
    let graph = graph.finish().expect("a graph");
    let wanted = [grads[0].expect("it depends on x")];
    for len in [40_000u64, 70_000] {
        let fed = BTreeMap::from([(x, tensor(&[len], &vec![0f64; len as usize]))]);
        let actual = evaluate(&graph, &home(), &fed, &wanted).expect("a value");
        let actual = numbers(&actual[0]);
        assert_eq!(actual[..4], [0.0, 1.0, 1.0, 0.0]);
        assert_eq!(actual.len() as u64, len);
    }
}

/// Numbers of elements within a gradient, which may be more than 32 bits count.
#[test]
fn of_more_elements_than_32_bits_count() {
    let whole = |graph: &Graph, fed: &BTreeMap<Output, Tensor>, name: &str| {
        let node = graph.find(name).unwrap_or_else(|| panic!("no {name}"));
        let wanted = [Output { node, port: 0 }];
        let value = evaluate(graph, &home(), fed, &wanted).expect("a value");
        value[0].to_vec::<i64>().expect("64-bit integers")
    };
    // Memory that is not touched is not there.
    let many = Shape::new(&[2, 1 << 30]).expect("a shape");
    let zeros = Bytes::from(vec![0u8; 1 << 32]);
    let meta = TensorMeta::new(DType::F16, many).expect("a tensor");
    let many = Tensor::from_bytes(meta, zeros).expect("halves");
    let build = |op: &str, constants: &[(&[i64], &[i32])]| {
        let mut graph = Builder::new(Operations::standard().ops());
        let x = placeholder(&mut graph, DataType::DtHalf);
        let mut inputs = vec![x];
        for (at, (dims, values)) in constants.iter().enumerate() {
            let constant = graph.constant(&format!("constant{at}"), ints(dims, values));
            inputs.push(constant.expect("a constant"));
        }
        let y = graph.put(op, &inputs);
        gradients(&mut graph, &[y], &[x], &[]).expect("gradients");
        (graph.finish().expect("a graph"), x, y)
    };
    let (graph, x, y) = build("Mean", &[(&[2], &[0, 1])]);
    let fed = BTreeMap::from([(x, many.clone()), (y, Tensor::scalar(f16::ZERO))]);
    let count = whole(&graph, &fed, "gradients/Mean_grad/FloorDiv");
    assert_eq!(count, [1 << 31]);

    let (graph, x, _) = build("Tile", &[(&[5], &[1, 1, 1, 1, 1])]);
    let fed = BTreeMap::from([(x, many)]);
    assert_eq!(whole(&graph, &fed, "gradients/Tile_grad/Size"), [1 << 31]);

    let (graph, x, _) = build("Gather", &[(&[0], &[])]);
    let fed = BTreeMap::from([(x, tensor::<f16>(&[0, 1 << 16, 1 << 16], &[]))]);
    let folded = whole(&graph, &fed, "gradients/Gather_grad/ConcatV2");
    assert_eq!(folded, [1, 0, 1 << 32]);
}

#[test]
fn of_what_picks() {
    for axis in [0, 1, -1] {
        let picks: (&[_], &[_]) = (&[2, 2], &[1, 0, 1, 1]);
        check_with("GatherV2", &[3, 2, 2], &[picks, (&[], &[axis])]);
    }
    check_with("Gather", &[3, 2], &[(&[3], &[2, 0, 2])]);
    check("SelectV2", &[&[2, 3], &[3], &[2, 1]], false, |graph, x| {
        let condition = graph.node("Less").inputs([x[0], x[1]]).build()?;
        graph
            .node("SelectV2")
            .inputs([condition, x[1], x[2]])
            .build()
            .and_then(|y| graph.node("Add").inputs([y, x[0]]).build())
    });
    check("Select", &[&[2, 3], &[2, 3]], false, |graph, x| {
        let condition = graph.node("Less").inputs([x[0], x[1]]).build()?;
        graph.node("Select").inputs([condition, x[0], x[1]]).build()
    });
    check("AddN", &[&[2], &[2]], false, |graph, x| {
        graph.node("AddN").inputs([x[0], x[1], x[0]]).build()
    });
    check("Cast", &[&[2]], false, |graph, x| {
        // To floats and back: as exact as floats are, so the step must be seen through them.
        let same = graph
            .node("Cast")
            .input(x[0])
            .attr("DstT", DataType::DtDouble)
            .build()?;
        graph.node("Square").input(same).build()
    });
}

#[test]
fn of_a_variable_by_its_handle() {
    let mut graph = Builder::new(Operations::standard().ops());
    let shape = crate::graph::PartialShape::known(&[]).to_proto();
    let handle = graph
        .node("VarHandleOp")
        .attr("dtype", DataType::DtDouble)
        .attr("shape", shape)
        .name("v")
        .build()
        .expect("a handle");
    let read = graph
        .node("ReadVariableOp")
        .input(handle)
        .attr("dtype", DataType::DtDouble)
        .build()
        .expect("a value");
    let y = graph.put("Mul", &[read, read]);
    let grad =
        gradients(&mut graph, &[y], &[handle], &[]).expect("gradients")[0].expect("it depends");
    let graph = graph.finish().expect("a graph");
    let home = home();
    home.variables.find("", "v").assign(Tensor::scalar(3f64));
    let value = evaluate(&graph, &home, &BTreeMap::new(), &[grad]).expect("a value");
    assert_eq!(numbers(&value[0]), [6.0]);
    assert_eq!(value[0].shape(), Shape::SCALAR);
}
