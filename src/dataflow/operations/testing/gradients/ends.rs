//! Gradients where numbers or shapes come to an end of theirs.

use super::*;
use half::bf16;
use rendez::ground::limits::GRAPH_OUTPUTS_PER_NODE_MAX;

/// The gradient of an operation's result by input `at`, of values that are fed.
fn of_fed(op: &str, base: DataType, fed: &[Tensor], at: usize) -> Tensor {
    let mut graph = Builder::new(Operations::standard().ops());
    let mut inputs = vec![];
    for tensor in fed {
        let base = match tensor.dtype() {
            DType::I32 => DataType::DtInt32,
            _ => base,
        };
        inputs.push(placeholder(&mut graph, base));
    }
    let y = graph.put(op, &inputs);
    let grads = gradients(&mut graph, &[y], &[inputs[at]], &[]).expect("gradients");
    let graph = graph.finish().expect("a graph");
    let fed = inputs.into_iter().zip(fed.iter().cloned()).collect();
    let wanted = [grads[0].expect("it depends on that")];
    let mut found = evaluate(&graph, &home(), &fed, &wanted).expect("a value");
    found.remove(0)
}

/// They are counted in more bits than they have.
#[test]
fn of_more_halves_than_one_counts() {
    let axes = tensor(&[1], &[0i32]);
    for (op, count) in [("Mean", 100_000u64), ("Max", 70_000)] {
        let x = tensor(&[count], &vec![f16::ONE; count as usize]);
        let found = of_fed(op, DataType::DtHalf, &[x, axes.clone()], 0);
        let part = f16::from_f64(1.0 / count as f64);
        assert_eq!(
            found.as_slice::<f16>().expect("halves"),
            vec![part; count as usize],
            "{op}"
        );
        assert!(part > f16::ZERO);
    }
    let x = tensor(&[257], &[bf16::ONE; 257]);
    let found = of_fed("Mean", DataType::DtBfloat16, &[x, axes], 0);
    assert_eq!(
        found.as_slice::<bf16>().expect("halves"),
        [bf16::from_f64(1.0 / 257.0); 257]
    );
}

/// To the power of zero all is one, and changes with nothing.
#[test]
fn of_powers_of_zero() {
    let (x, y) = (
        tensor(&[3], &[0.0, 0.0, 2.0]),
        tensor(&[3], &[0.0, 2.0, 3.0]),
    );
    let found = of_fed("Pow", DataType::DtDouble, &[x, y], 0);
    assert_eq!(numbers(&found), [0.0, 0.0, 12.0]);
}

/// Nothing infinite is computed on the way, of which a slope were no number.
#[test]
fn of_powers_of_zero_twice() {
    let mut graph = Builder::new(Operations::standard().ops());
    let [x, y] = [(); 2].map(|()| placeholder(&mut graph, DataType::DtDouble));
    let power = graph.put("Pow", &[x, y]);
    let slope = gradients(&mut graph, &[power], &[x], &[]).expect("gradients");
    let slope = slope[0].expect("it depends on x");
    let bend = gradients(&mut graph, &[slope], &[x], &[]).expect("gradients");
    let graph = graph.finish().expect("a graph");
    let of_x = tensor(&[5], &[0.0, 2.0, f64::INFINITY, 0.0, 2.0]);
    let of_y = tensor(&[5], &[0.0, 0.0, 0.0, 2.0, 3.0]);
    let fed = BTreeMap::from([(x, of_x), (y, of_y)]);
    let wanted = [bend[0].expect("it depends on x")];
    let found = evaluate(&graph, &home(), &fed, &wanted).expect("a value");
    assert_eq!(numbers(&found[0]), [0.0, 0.0, 0.0, 2.0, 12.0]);
}

/// A row of one fills as a scalar does, and gets a gradient of its own shape.
#[test]
fn of_what_is_filled_with_a_row_of_one() {
    let found = of_fed(
        "Fill",
        DataType::DtDouble,
        &[tensor(&[1], &[3i32]), tensor(&[1], &[7.0])],
        1,
    );
    assert_eq!(
        (found.shape(), numbers(&found)),
        (Shape::new(&[1]).expect("a row"), vec![3.0])
    );
}

/// One of them may be more than 32 bits count.
#[test]
fn of_long_dimensions() {
    let x = || tensor::<f64>(&[0, 1 << 32], &[]);
    let row = |values: &[i32; 2]| tensor(&[2], values);
    let axes = row(&[0, 1]);
    for (op, fed) in [
        ("Sum", vec![x(), axes.clone()]),
        ("Max", vec![x(), axes]),
        ("Mul", vec![x(), tensor(&[], &[2.0])]),
        ("Reshape", vec![x(), row(&[0, 7])]),
        ("ConcatV2", vec![x(), x(), tensor(&[], &[0i32])]),
        ("Slice", vec![x(), row(&[0, 5]), row(&[0, 7])]),
        (
            "StridedSlice",
            vec![x(), row(&[0, 5]), row(&[0, 9]), row(&[1, 2])],
        ),
        ("Tile", vec![x(), row(&[2, 1])]),
        ("SoftmaxCrossEntropyWithLogits", vec![x(), x()]),
    ] {
        let found = of_fed(op, DataType::DtDouble, &fed, 0);
        assert_eq!(found.shape(), x().shape(), "{op}");
    }
}

/// More than one node adds up.
#[test]
fn of_many_parts() {
    let mut graph = Builder::new(Operations::standard().ops());
    let x = placeholder(&mut graph, DataType::DtDouble);
    let ys = vec![x; GRAPH_OUTPUTS_PER_NODE_MAX + 1];
    let grads = gradients(&mut graph, &ys, &[x], &[]).expect("a gradient");
    let graph = graph.finish().expect("a graph");
    let fed = BTreeMap::from([(x, tensor(&[], &[1.0]))]);
    let wanted = [grads[0].expect("it is x")];
    let found = evaluate(&graph, &home(), &fed, &wanted).expect("a value");
    assert_eq!(numbers(&found[0]), [ys.len() as f64]);
}

#[test]
fn of_halves_that_are_picked_often() {
    let mut graph = Builder::new(Operations::standard().ops());
    let x = placeholder(&mut graph, DataType::DtBfloat16);
    let picks = graph
        .constant("picks", ints(&[1000], &[0; 1000]))
        .expect("a constant");
    let y = graph.node("Gather").inputs([x, picks]);
    let y = y.build().expect("a node");
    let grads = gradients(&mut graph, &[y], &[x], &[]).expect("a gradient");
    let graph = graph.finish().expect("a graph");
    let fed = BTreeMap::from([(x, tensor(&[2, 1], &[bf16::ONE; 2]))]);
    let wanted = [grads[0].expect("it depends on x")];
    let actual = evaluate(&graph, &home(), &fed, &wanted).expect("a value");
    let sums = actual[0].as_slice::<bf16>().expect("halves");
    assert_eq!(sums, [bf16::from_f32(1000.0), bf16::ZERO]);
}
