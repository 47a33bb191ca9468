//! Gradients of every operation against central differences, and what a tape refuses.

use super::ops::shape_of;
use super::task::{Side, Task};
use super::{Padding, Tape, Var, Window};
use crate::autograd::{
    ContextId, Envelope, Input, LocalEngine, MessageId, PassId, Port, Start, WorkerId,
};
use rendez::ground::{Code, DType, Status, catalogue};
use rendez::memory::{Element, Tensor};

fn tensor<T: Element>(dims: &[u64], values: Vec<T>) -> Tensor {
    Tensor::from_vec(values, shape_of(dims).expect("a shape"))
        .expect("as many values as the shape has")
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_vec::<f64>().expect("doubles")
}

/// Values that differ from each other, none near zero, of both signs unless they must be above it.
fn spread(len: usize, seed: usize, is_above: bool) -> Vec<f64> {
    let value = |at: usize| 0.3 + ((at * 37 + seed * 11) % 23) as f64 / 10.0;
    let signed = |at: usize| {
        if is_above || (at + seed).is_multiple_of(2) {
            value(at)
        } else {
            -value(at)
        }
    };
    (0..len).map(signed).collect()
}

/// Checks the gradients of what `make` computes of doubles of these shapes: each against the difference that a small
/// step makes.
fn check(
    what: &str,
    shapes: &[&[u64]],
    is_above: bool,
    make: impl Fn(&[Var]) -> Result<Var, Status>,
) {
    let tape = Tape::new().expect("memory");
    let fail = |status: Status| -> Var { panic!("{what}: {status}") };
    let sizes: Vec<_> = shapes
        .iter()
        .map(|dims| dims.iter().product::<u64>() as usize)
        .collect();
    let at: Vec<_> = sizes
        .iter()
        .enumerate()
        .map(|(seed, len)| spread(*len, seed + 1, is_above))
        .collect();
    // The gradient of what is computed is no constant, so that it must be in its place.
    let loss = |values: &[Var]| -> Var {
        let y = make(values).unwrap_or_else(fail);
        let dims: Vec<_> = y.shape().dims().collect();
        let weights = tape.constant(tensor(
            &dims,
            spread(y.shape().elements() as usize, 5, false),
        ));
        y.mul(&weights).and_then(|y| y.total()).unwrap_or_else(fail)
    };
    let leaves: Vec<_> = at
        .iter()
        .zip(shapes)
        .map(|(at, dims)| tape.leaf(tensor(dims, at.clone())))
        .collect();
    let pass = || {
        let gradients = tape.backward(&loss(&leaves));
        gradients.unwrap_or_else(|status| panic!("{what}: {status}"))
    };
    // The second knows of the first what follows from shapes.
    let (first, gradients) = (pass(), pass());
    let bytes = |gradient: &Tensor| gradient.host().expect("in the host's memory").to_vec();
    let is_same = |(one, other): (&Tensor, &Tensor)| bytes(one) == bytes(other);
    assert!(
        first.values().zip(gradients.values()).all(is_same),
        "{what}"
    );
    let step = 1e-6;
    for (index, leaf) in leaves.iter().enumerate() {
        let gradient = &gradients[&leaf.leaf_id().expect("a leaf")];
        assert_eq!(gradient.meta(), leaf.tensor().meta(), "{what}");
        for (element, actual) in numbers(gradient).into_iter().enumerate() {
            let moved = |by: f64| {
                let values = at
                    .iter()
                    .zip(shapes)
                    .enumerate()
                    .map(|(which, (at, dims))| {
                        let mut at = at.clone();
                        if which == index {
                            at[element] += by;
                        }
                        tape.constant(tensor(dims, at))
                    });
                let value = loss(&values.collect::<Vec<_>>());
                assert!(!value.requires_gradient());
                value.tensor().item::<f64>().expect("a scalar")
            };
            let expected = (moved(step) - moved(-step)) / (2.0 * step);
            let near =
                (actual - expected).abs() <= 2e-7 * actual.abs().max(expected.abs()).max(1.0);
            assert!(
                near,
                "{what}, input {index}, element {element}: {actual} instead of {expected}"
            );
        }
    }
}

fn ints(tape: &Tape, dims: &[u64], values: &[i32]) -> Var {
    tape.constant(tensor(dims, values.to_vec()))
}

#[test]
fn what_is_known_of_operands_is_for_those_alone() {
    let tape = Tape::new().expect("memory");
    let gradient = |x: &Var, y: Var| {
        let gradients = tape.backward(&y.total().expect("a sum")).expect("a pass");
        numbers(&gradients[&x.leaf_id().expect("a leaf")])
    };
    // Operands of the same shapes, and other axes, or other places: more of them than are remembered.
    for _ in 0..2 {
        for axis in [0, 1] {
            let x = tape.leaf(tensor(&[3, 3], spread(9, 1, false)));
            let weights = tape.constant(tensor(&[3], vec![1.0, 2.0, 3.0]));
            let y = x.sum(&[axis], false).and_then(|y| y.mul(&weights));
            let at = |index: usize| [index % 3, index / 3][axis as usize] as f64 + 1.0;
            assert_eq!(
                gradient(&x, y.expect("a product")),
                (0..9).map(at).collect::<Vec<_>>()
            );
        }
        for begin in 0..10 {
            let x = tape.leaf(tensor(&[10], spread(10, 1, false)));
            let y = x.slice(&[begin], &[1]).expect("an element");
            let at = |index: i32| f64::from(u8::from(index == begin));
            assert_eq!(gradient(&x, y), (0..10).map(at).collect::<Vec<_>>());
        }
        // The same shape in other places is passed on, and another one is not.
        for rows in [2, 3, 1, 6, 2] {
            let x = tape.leaf(tensor(&[6], spread(6, 1, false)));
            let weights = tape.constant(tensor(
                &[6 / rows as u64],
                spread(6 / rows as usize, 2, false),
            ));
            let y = x
                .reshape(&[rows, -1])
                .and_then(|y| y.mul(&weights))
                .expect("a product");
            let want = spread(6 / rows as usize, 2, false).repeat(rows as usize);
            assert_eq!(gradient(&x, y), want);
        }
    }
}

#[test]
fn of_single_values() {
    type Unary = fn(&Var) -> Result<Var, Status>;
    let any: [(&str, Unary); 11] = [
        ("neg", Var::neg),
        ("exp", Var::exp),
        ("square", Var::square),
        ("reciprocal", Var::reciprocal),
        ("abs", Var::abs),
        ("tanh", Var::tanh),
        ("sigmoid", Var::sigmoid),
        ("relu", Var::relu),
        ("relu6", Var::relu6),
        ("softmax", Var::softmax),
        ("log_softmax", Var::log_softmax),
    ];
    for (what, of) in any {
        check(what, &[&[3, 4]], false, |x| of(&x[0]));
    }
    let above: [(&str, Unary); 4] = [
        ("log", Var::log),
        ("log1p", Var::log1p),
        ("sqrt", Var::sqrt),
        ("rsqrt", Var::rsqrt),
    ];
    for (what, of) in above {
        check(what, &[&[3, 4]], true, |x| of(&x[0]));
    }
    check("l2_loss", &[&[5]], false, |x| x[0].l2_loss());
    check("scale", &[&[5]], false, |x| x[0].scale(-2.5));
    check("total", &[&[5, 2]], false, |x| x[0].total());
    check("average", &[&[5, 2]], false, |x| x[0].average());
}

#[test]
fn of_pairs() {
    type Binary = fn(&Var, &Var) -> Result<Var, Status>;
    let pairs: [(&str, Binary); 7] = [
        ("add", Var::add),
        ("sub", Var::sub),
        ("mul", Var::mul),
        ("div", Var::div),
        ("maximum", Var::maximum),
        ("minimum", Var::minimum),
        ("squared_difference", Var::squared_difference),
    ];
    let shapes: [[&[u64]; 2]; 4] = [
        [&[2, 3], &[2, 3]],
        [&[2, 3], &[3]],
        [&[2, 1], &[1, 3]],
        [&[], &[2]],
    ];
    for (what, of) in pairs {
        for shapes in shapes {
            check(what, &shapes, false, |x| of(&x[0], &x[1]));
        }
    }
    check("pow", &[&[2, 3], &[3]], true, |x| x[0].pow(&x[1]));
    check("twice the same", &[&[3]], false, |x| {
        x[0].mul(&x[0])?.add(&x[0])
    });
    for (left, right) in [(false, false), (false, true), (true, false), (true, true)] {
        let a: &[u64] = if left { &[3, 2] } else { &[2, 3] };
        let b: &[u64] = if right { &[4, 3] } else { &[3, 4] };
        check("matmul", &[a, b], false, |x| {
            x[0].matmul_with(&x[1], left, right)
        });
    }
    check("bias_add", &[&[2, 3], &[3]], false, |x| {
        x[0].bias_add(&x[1])
    });
    check("add_all", &[&[3], &[3]], false, |x| {
        x[0].tape().add_all(&[&x[0], &x[1], &x[0]])
    });
}

#[test]
fn of_reductions() {
    type Reduction = fn(&Var, &[i32], bool) -> Result<Var, Status>;
    let all: [(&str, Reduction); 4] = [
        ("sum", Var::sum),
        ("mean", Var::mean),
        ("max", Var::max),
        ("min", Var::min),
    ];
    for (what, of) in all {
        for axes in [&[0][..], &[1, -1], &[], &[0, 1, 2]] {
            for keep in [false, true] {
                check(what, &[&[2, 3, 2]], false, |x| of(&x[0], axes, keep));
            }
        }
    }
}

#[test]
fn of_arrangements() {
    check("reshape", &[&[2, 3]], false, |x| x[0].reshape(&[3, -1]));
    check("transpose", &[&[2, 3, 4]], false, |x| {
        x[0].transpose(&[2, 0, 1])
    });
    check("expand_dims", &[&[2, 3]], false, |x| x[0].expand_dims(1));
    check("squeeze", &[&[2, 1, 3]], false, |x| x[0].squeeze());
    check("slice", &[&[3, 4]], false, |x| {
        x[0].slice(&[1, 1], &[-1, 2])
    });
    check("broadcast_to", &[&[2, 1]], false, |x| {
        x[0].broadcast_to(&[4, 2, 3])
    });
    check("tile", &[&[2, 3]], false, |x| x[0].tile(&[3, 2]));
    check("concat", &[&[2, 3], &[2, 1]], false, |x| {
        x[0].tape().concat(&[&x[0], &x[1], &x[0]], 1)
    });
    check("stack", &[&[2], &[2]], false, |x| {
        x[0].tape().stack(&[&x[0], &x[1]], 1)
    });
    // Of some outputs no gradient comes.
    check("split", &[&[4, 2]], false, |x| {
        x[0].split(2, 0)?[1].square()
    });
    check("split, both", &[&[4, 2]], false, |x| {
        let parts = x[0].split(2, 0)?;
        parts[0].mul(&parts[1])
    });
    check("unstack", &[&[2, 3]], false, |x| {
        x[0].unstack(3, 1)?[1].square()
    });
    check("cast", &[&[2]], false, |x| x[0].cast(DType::F64)?.square());
    check("detach", &[&[3]], false, |x| {
        x[0].detach()
            .mul(&x[0].stop_gradient()?)?
            .add(&x[0])?
            .sub(&x[0].detach().square()?)
    });
}

#[test]
fn of_what_picks() {
    for axis in [0, 1, -1] {
        check("gather", &[&[3, 2, 2]], false, |x| {
            let picks = ints(x[0].tape(), &[2, 2], &[1, 0, 1, 1]);
            x[0].gather(&picks, axis)
        });
    }
    check("embed", &[&[4, 3]], false, |x| {
        x[0].embed(&ints(x[0].tape(), &[5], &[2, 0, 2, 3, 2]))
    });
    check("select", &[&[2, 3], &[3], &[2, 1]], false, |x| {
        x[0].less(&x[1])?.select(&x[1], &x[2])?.add(&x[0])
    });
}

#[test]
fn of_losses() {
    check("sparse_cross_entropy", &[&[3, 4]], false, |x| {
        x[0].sparse_cross_entropy(&ints(x[0].tape(), &[3], &[1, 3, 0]))
    });
    check("cross_entropy", &[&[3, 4], &[3, 4]], false, |x| {
        x[0].cross_entropy(&x[1].softmax()?)
    });
}

#[test]
fn of_layers() {
    check("linear", &[&[2, 3], &[3, 4], &[4]], false, |x| {
        x[0].linear(&x[1], &x[2])
    });
    check(
        "rnn_cell",
        &[&[2, 3], &[2, 4], &[3, 4], &[4, 4], &[4]],
        false,
        |x| x[0].rnn_cell(&x[1], [&x[2], &x[3], &x[4]]),
    );
    check(
        "lstm_cell",
        &[&[2, 3], &[2, 2], &[2, 2], &[3, 8], &[2, 8], &[8]],
        false,
        |x| {
            let (hidden, cell) = x[0].lstm_cell(&x[1], &x[2], [&x[3], &x[4], &x[5]])?;
            hidden.add(&cell)
        },
    );
    check(
        "gru_cell",
        &[&[2, 3], &[2, 2], &[3, 6], &[2, 6], &[6], &[6]],
        false,
        |x| x[0].gru_cell(&x[1], [&x[2], &x[3], &x[4], &x[5]]),
    );
    for (size, stride, padding) in [
        (2, 1, Padding::Valid),
        (3, 2, Padding::Zeros(1)),
        (3, 1, Padding::Zeros(2)),
    ] {
        let window = Window {
            size: [size, size],
            stride: [stride, stride],
            padding,
        };
        let weights = [size as u64, size as u64, 2, 3];
        check("conv2d", &[&[2, 4, 5, 2], &weights], false, |x| {
            x[0].conv2d(&x[1], window)
        });
    }
    let window = Window {
        size: [2, 2],
        stride: [2, 2],
        padding: Padding::Valid,
    };
    check("max_pool2d", &[&[1, 4, 4, 2]], false, |x| {
        x[0].max_pool2d(window)
    });
    check("avg_pool2d", &[&[1, 5, 4, 2]], false, |x| {
        x[0].avg_pool2d(Window {
            padding: Padding::Zeros(1),
            ..window
        })
    });
}

#[test]
fn pixels_that_are_equally_large_share_the_gradient_of_their_window() {
    let tape = Tape::new().expect("memory");
    let x = tape.leaf(tensor(&[1, 2, 2, 1], vec![1.0, 1.0, 0.0, 0.0]));
    let window = Window {
        size: [2, 2],
        stride: [2, 2],
        padding: Padding::Valid,
    };
    let largest = x.max_pool2d(window).expect("it fits");
    let gradients = tape.backward(&largest.total().expect("a sum"));
    let gradient = &gradients.expect("a pass")[&x.leaf_id().expect("a leaf")];
    let shared = gradient.to_vec::<f64>().expect("doubles");
    assert_eq!(shared, [0.5, 0.5, 0.0, 0.0]);
}

/// Against the sum that defines it.
#[test]
fn a_convolution_is_the_sum_that_it_should_be() {
    let tape = Tape::new().expect("memory");
    let (image, weight) = (spread(4 * 3 * 2, 1, false), spread(3 * 2 * 2 * 2, 2, false));
    let window = Window {
        size: [3, 2],
        stride: [2, 1],
        padding: Padding::Zeros(1),
    };
    let x = tape.constant(tensor(&[1, 4, 3, 2], image.clone()));
    let w = tape.constant(tensor(&[3, 2, 2, 2], weight.clone()));
    let y = x.conv2d(&w, window).expect("it fits");
    assert_eq!(y.shape().dims().collect::<Vec<_>>(), [1, 2, 4, 2]);
    let mut expected = vec![];
    for (row, column, out) in
        (0..2).flat_map(|r| (0..4).flat_map(move |c| (0..2).map(move |o| (r, c, o))))
    {
        let mut sum = 0.0;
        for (i, j, channel) in
            (0..3).flat_map(|i| (0..2).flat_map(move |j| (0..2).map(move |c| (i, j, c))))
        {
            let (at_row, at_column) = (row * 2 + i, column + j);
            if (1..5).contains(&at_row) && (1..4).contains(&at_column) {
                let pixel = image[((at_row - 1) * 3 + at_column - 1) * 2 + channel];
                sum += pixel * weight[((i * 2 + j) * 2 + channel) * 2 + out];
            }
        }
        expected.push(sum);
    }
    let actual = numbers(y.tensor());
    assert_eq!(actual.len(), expected.len());
    for (actual, expected) in actual.into_iter().zip(expected) {
        assert!(
            (actual - expected).abs() < 1e-12,
            "{actual} instead of {expected}"
        );
    }
}

#[test]
fn what_does_not_fit_is_refused_with_what_was_wrong() {
    let tape = Tape::new().expect("memory");
    let x = tape.leaf(tensor(&[2, 3], spread(6, 1, false)));
    let y = tape.leaf(tensor(&[2, 2], spread(4, 1, false)));
    assert!(
        x.matmul(&x)
            .expect_err("they do not fit")
            .message()
            .contains("Matrix size-incompatible")
    );
    let window = Window {
        size: [2, 2],
        stride: [0, 1],
        padding: Padding::Valid,
    };
    for error in [
        Tape::new()
            .expect("memory")
            .leaf(y.tensor().clone())
            .matmul(&y)
            .expect_err("another tape"),
        x.conv2d(&y, window).expect_err("no image"),
        tape.constant(tensor(&[1, 2, 2, 1], spread(4, 1, false)))
            .max_pool2d(window)
            .expect_err("no stride"),
    ] {
        assert_eq!(error.reason(), catalogue::AUTOGRAD_OPERATION, "{error}");
    }
    assert!(tape.apply("NoSuchThing", &[], &[&x]).is_err());
    let ids = ints(&tape, &[1], &[7]);
    assert!(x.embed(&ids).is_err(), "7 is not in a table of two");
}

/// What is gathered from them is nothing, or more than there is memory for: neither takes memory beside the tape's.
#[test]
fn images_without_elements_take_no_memory() {
    let tape = Tape::new().expect("memory");
    let window = |around| Window {
        size: [3, 3],
        stride: [1, 1],
        padding: if around > 0 {
            Padding::Zeros(around)
        } else {
            Padding::Valid
        },
    };
    let image = |dims: &[u64]| tape.leaf(tensor::<f32>(dims, vec![]));
    let weights = |channels: u64| {
        tape.leaf(tensor(
            &[3, 3, channels, 2],
            vec![1.0f32; 18 * channels as usize],
        ))
    };
    for dims in [
        [0, 1 << 20, 1 << 20, 1],
        [0, 1 << 16, 1 << 15, 1],
        [0, 1 << 32, 1 << 32, 1],
        [1 << 20, 1 << 20, 1 << 20, 0],
    ] {
        let x = image(&dims);
        let convolved = x.conv2d(&weights(dims[3]), window(0));
        let pooled = [x.max_pool2d(window(0)), x.avg_pool2d(window(1))];
        for error in pooled.into_iter().chain([convolved]) {
            let error = error.expect_err("it is too large");
            assert_eq!(error.reason(), catalogue::AUTOGRAD_OPERATION, "{error}");
        }
    }
    let x = image(&[0, 1 << 15, 1 << 15, 1]);
    let y = x.conv2d(&weights(1), window(1)).expect("it is empty");
    assert_eq!(
        y.shape().dims().collect::<Vec<_>>(),
        [0, 1 << 15, 1 << 15, 2]
    );
    let gradients = tape.backward(&y.total().expect("a sum")).expect("a pass");
    assert_eq!(
        gradients[&x.leaf_id().expect("a leaf")].meta(),
        x.tensor().meta()
    );
    // Of no pixels, and many places between the zeros around.
    let error = image(&[1, 0, 1 << 28, 1]).conv2d(
        &tape.leaf(tensor(&[2, 2, 1, 1], vec![1.0f32; 4])),
        Window {
            size: [2, 2],
            ..window(1)
        },
    );
    assert_eq!(
        error.expect_err("there is no room").code(),
        Code::ResourceExhausted
    );
}

#[test]
fn roots_are_judged_in_pytorchs_words() {
    let tape = Tape::new().expect("memory");
    let leaf = tape.leaf(tensor(&[2], vec![1.0, 2.0]));
    let scalar = tape.leaf(Tensor::scalar(1.0));
    let constant = tape.constant(Tensor::scalar(1.0));
    for (root, text) in [
        (
            leaf.square().expect("it is computed"),
            "is not a scalar, all roots need to be scalar",
        ),
        (constant, "requires_grad not set on"),
        (scalar, "does not have a valid gradient function"),
    ] {
        let error = tape.backward(&root).expect_err("it is refused");
        assert_eq!(error.reason(), catalogue::AUTOGRAD_ROOT);
        assert!(error.message().contains(text), "{error}");
    }
    assert!(tape.backward_from(&[], false).is_err());
}

#[test]
fn a_graph_is_used_up_unless_it_is_retained() {
    let tape = Tape::new().expect("memory");
    let x = tape.leaf(Tensor::scalar(3.0f64));
    let id = x.leaf_id().expect("a leaf");
    let y = x.square().and_then(|y| y.mul(&x)).expect("it is computed");
    let first = tape
        .backward_from(std::slice::from_ref(&y), true)
        .expect("a pass");
    let second = tape.backward(&y).expect("another");
    assert_eq!(
        (numbers(&first[&id]), numbers(&second[&id])),
        (vec![27.0], vec![27.0])
    );
    let error = tape.backward(&y).expect_err("it is used up");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_GRAPH_FREED);
}

/// A recurrent net that is trained by truncated histories: each step goes on from the value of the one before alone.
#[test]
fn what_is_stopped_has_no_history() {
    let tape = Tape::new().expect("memory");
    let w = tape.leaf(Tensor::scalar(2.0f64));
    let mut hidden = tape.constant(Tensor::scalar(1.0f64));
    for step in 0..3 {
        let next = hidden.mul(&w).expect("a step");
        let gradients = tape.backward(&next).expect("a pass");
        let gradient = numbers(&gradients[&w.leaf_id().expect("a leaf")]);
        assert_eq!(gradient, [f64::from(1 << step)]);
        hidden = next.stop_gradient().expect("it is computed");
        assert!(!hidden.requires_gradient());
    }
    let ones = tape.one("OnesLike", &[], &[&w]).expect("it is computed");
    let error = tape.backward(&ones).expect_err("nothing flows back");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_ROOT);
}

/// What the first to end uses up the others still need.
#[test]
fn passes_that_are_under_way_at_once_share_what_they_go_through() {
    let tape = Tape::new().expect("memory");
    let x = tape.leaf(tensor(&[2], vec![1.0, 3.0]));
    let id = x.leaf_id().expect("a leaf");
    let square = x.square().expect("a square");
    let passes = [0, 1].map(|number| {
        let pass = PassId {
            context: ContextId::new(WorkerId(0), 1),
            root: WorkerId(0),
            number,
        };
        tape.begin(pass, vec![square.total().expect("a sum")]);
        let found = tape.mark(pass, &[Start::Root(0)]).expect("it is marked");
        assert!(found.is_empty());
        pass
    });
    for pass in passes {
        let ran = tape.run(pass, vec![Input::Root(0)]).expect("it runs");
        tape.finish(pass, false);
        let leaves = ran.leaves.iter().map(|(leaf, sum)| (*leaf, numbers(sum)));
        assert_eq!(leaves.collect::<Vec<_>>(), [(id, vec![2.0, 6.0])]);
    }
}

/// Their functions may meet in one pass, and their leaves in one context.
#[test]
fn functions_of_two_tapes_are_told_apart() {
    let [one, other] = [(); 2].map(|()| Tape::new().expect("memory"));
    let leaf = |tape: &Tape, value: f64| tape.leaf(Tensor::scalar(value));
    let (x, y) = (leaf(&one, 3.0), leaf(&other, 5.0));
    let roots = [&x, &y].map(|leaf| leaf.square().expect("a square"));
    let gradients = one.backward_from(&roots, false).expect("a pass");
    let gradient = |leaf: &Var| numbers(&gradients[&leaf.leaf_id().expect("a leaf")]);
    assert_eq!((gradient(&x), gradient(&y)), (vec![6.0], vec![10.0]));
}

#[test]
fn several_roots_add_up_and_what_has_no_gradient_is_named() {
    let tape = Tape::new().expect("memory");
    let x = tape.leaf(tensor(&[2], vec![1.0, 2.0]));
    let (one, two) = (x.total().expect("a sum"), x.l2_loss().expect("a loss"));
    let gradients = tape.backward_from(&[one, two], false).expect("a pass");
    assert_eq!(
        numbers(&gradients[&x.leaf_id().expect("a leaf")]),
        [2.0, 3.0]
    );
    let axis = tape.number(0);
    let product = tape.one("Prod", &[], &[&x, &axis]).expect("a product");
    let error = tape.backward(&product).expect_err("a product has none");
    assert_eq!(error.reason(), catalogue::GRAPH_GRADIENT);
}

/// The gradients of its uses are added as they come: more of them than there is memory for never lie side by side.
#[test]
fn a_value_that_is_used_often_holds_few_gradients_at_once() {
    let tape = Tape::of(20 << 20).expect("memory");
    let w = tape.leaf(tensor(&[512, 512], vec![0.001f32; 512 * 512]));
    let mut hidden = tape.constant(tensor(&[1, 512], vec![1.0f32; 512]));
    for _ in 0..200 {
        hidden = hidden.matmul(&w).and_then(|h| h.tanh()).expect("a step");
    }
    let gradients = tape.backward(&hidden.total().expect("a sum"));
    let gradient = &gradients.expect("a pass")[&w.leaf_id().expect("a leaf")];
    assert_eq!(gradient.meta(), w.tensor().meta());
}

/// More uses than a node takes inputs.
#[test]
fn a_value_may_be_used_more_often_than_a_node_has_inputs() {
    let tape = Tape::new().expect("memory");
    let w = tape.leaf(Tensor::scalar(1.0f64));
    let mut sum = w.neg().expect("it is computed");
    for _ in 0..20_000 {
        sum = sum.add(&w).expect("it is computed");
    }
    let gradients = tape.backward(&sum).expect("a pass");
    assert_eq!(
        numbers(&gradients[&w.leaf_id().expect("a leaf")]),
        [19_999.0]
    );
}

#[test]
fn gradients_that_come_in_any_order_make_the_same_bits() {
    let tape = Tape::new().expect("memory");
    for n in 1..=20u32 {
        // Some sides say that nothing comes of them.
        let value = |side: u32| (side % 5 != 3).then(|| 1.0 / (f64::from(side) + 3.0));
        let sum = |order: &[u32]| {
            let x = tape.leaf(Tensor::scalar(0.0f64));
            let edge = x.edge.clone().expect("a leaf");
            let mut task = Task::default();
            let marked = order.iter().map(|side| (Side::Root(*side), edge.clone()));
            assert!(
                task.mark(marked.collect())
                    .expect("it is marked")
                    .is_empty()
            );
            for side in order {
                let gradient = value(*side).map(Tensor::scalar);
                task.arrive(&tape, &edge, Side::Root(*side), gradient)
                    .expect("they are added");
            }
            let late = task.mark(vec![(Side::Root(n), edge.clone())]);
            assert_eq!(
                late.expect_err("it has run").reason(),
                catalogue::AUTOGRAD_MESSAGE
            );
            let leaves = task.run(&tape).expect("it runs").leaves;
            numbers(&leaves[0].1)[0]
        };
        let mut order: Vec<_> = (0..n).collect();
        let expected = sum(&order);
        let plain: f64 = order.iter().filter_map(|side| value(*side)).sum();
        assert!((expected - plain).abs() < 1e-12, "{expected}, not {plain}");
        order.reverse();
        assert_eq!(sum(&order).to_bits(), expected.to_bits());
        for seed in [7, 11, 13] {
            order.sort_by_key(|side| (u64::from(*side) + 1) * seed % 23);
            assert_eq!(sum(&order).to_bits(), expected.to_bits());
        }
    }
}

/// A history that is longer than a stack is deep comes and goes.
#[test]
fn a_long_history_is_walked_and_dropped() {
    let tape = Tape::new().expect("memory");
    let x = tape.leaf(Tensor::scalar(0.0f32));
    let mut y = x.neg().expect("it is computed");
    for _ in 0..100_000 {
        y = y.neg().expect("it is computed");
    }
    let gradients = tape
        .backward_from(std::slice::from_ref(&y), true)
        .expect("a pass");
    assert_eq!(
        gradients[&x.leaf_id().expect("a leaf")]
            .item::<f32>()
            .expect("one"),
        -1.0
    );
    drop(y);
}

/// A shard's thread asks the tape whether a message is light, also while a pool's thread marks a long history.
#[test]
fn a_long_history_is_marked_and_let_go_of_while_others_use_the_tape() {
    let tape = Tape::new().expect("memory");
    let pass = PassId {
        context: ContextId::new(WorkerId(0), 1),
        root: WorkerId(0),
        number: 0,
    };
    let mut root = tape.leaf(Tensor::scalar(0.0f32));
    for _ in 0..300_000 {
        root = root.neg().expect("it is computed");
    }
    let is_marked_meanwhile = || {
        tape.begin(pass, vec![root.clone()]);
        let is_seen = std::thread::scope(|threads| {
            let marks = threads.spawn(|| tape.mark(pass, &[Start::Root(0)]).expect("it is marked"));
            let mut is_seen = false;
            while !is_seen && !marks.is_finished() {
                let tasks = tape.inner.tasks.try_lock();
                // None is one that another thread is at.
                is_seen =
                    tasks.is_ok_and(|tasks| tasks.passes.get(&pass).is_some_and(Option::is_none));
            }
            is_seen
        });
        tape.discard(pass);
        is_seen
    };
    // A busy machine may let this thread look only when the other has marked.
    assert!((0..50).any(|_| is_marked_meanwhile()));
    let (others, (told, is_free)) = (tape.clone(), std::sync::mpsc::channel());
    let release = move |_: Vec<u8>| {
        let is_free = others.inner.tasks.try_lock().is_ok();
        told.send(is_free).expect("heard");
    };
    let meta = tensor(&[1024], vec![0.0f32; 1024]).meta();
    let lend = || Tensor::from_foreign(meta, vec![0u8; 4096], release.clone()).expect("a tensor");
    tape.begin(pass, vec![tape.leaf(lend())]);
    tape.discard(pass);
    assert_eq!(is_free.try_recv(), Ok(true));
    let envelope = Envelope {
        context: pass.context,
        message: MessageId::new(WorkerId(0), 1),
        requires: vec![true, false],
    };
    let sent = tape.leaf(Tensor::scalar(0.0f32));
    tape.record_send(&envelope, &[sent, tape.constant(lend())]);
    let port = Port {
        message: envelope.message,
        index: 0,
    };
    tape.mark(pass, &[Start::Send(port)]).expect("it is marked");
    tape.finish(pass, false);
    assert_eq!(is_free.try_recv(), Ok(true));
}

/// Little is let go of where the message came in; a long history, or one of a pass under way, by a thread with time.
#[test]
fn what_is_little_is_forgotten_lightly() {
    let tape = Tape::new().expect("memory");
    let context = ContextId::new(WorkerId(0), 1);
    let others = ContextId::new(WorkerId(0), 2);
    let send = |context, counter, value: &Var| {
        let envelope = Envelope {
            context,
            message: MessageId::new(WorkerId(0), counter),
            requires: vec![true],
        };
        tape.record_send(&envelope, std::slice::from_ref(value));
    };
    assert!(tape.forgets_lightly(context), "it has nothing");
    let x = tape.leaf(Tensor::scalar(0.0f32));
    let y = x.neg().expect("it is computed");
    send(context, 1, &y);
    assert!(tape.forgets_lightly(context));
    let mut long = y;
    for _ in 0..10_000 {
        long = long.neg().expect("it is computed");
    }
    send(others, 2, &long);
    assert!(tape.forgets_lightly(context), "that is another's");
    assert!(!tape.forgets_lightly(others));
    let pass = PassId {
        context,
        root: WorkerId(0),
        number: 0,
    };
    tape.begin(pass, vec![long.clone()]);
    assert!(!tape.forgets_lightly(context));
    tape.forget(context);
    assert_eq!(tape.kept(), (1, 0), "what another context has stays");
    tape.forget(others);
    assert_eq!(tape.kept(), (0, 0));
}
