//! Tensors without elements, whose other dimensions may be of any size, and outputs that need more room than they are
//! given.

use crate::kernel::{Home, Value};
use crate::operations::testing::{call, grown, home, kernel, tensor};
use crate::operations::testing::{run, run_with};
use rendez::ground::{Code, DType, Shape, Status, TensorMeta, catalogue};
use rendez::memory::{Tensor, TensorBuilder};
use rendez_proto::tensorflow::DataType::{DtHalf, DtInt32, DtUint8};

/// Dimensions that multiply to more than 64 bits count.
const HUGE: u64 = 1 << 40;

fn none(dims: &[u64]) -> Tensor {
    tensor::<f32>(dims, &[])
}

fn dims(outputs: &Result<Vec<Tensor>, Status>) -> Vec<u64> {
    let outputs = outputs.as_ref().expect("an output");
    outputs[0].shape().dims().collect()
}

#[test]
fn tensors_without_elements_may_have_any_other_dimensions() {
    let x = || none(&[0, HUGE, HUGE]);
    let no_indices = || tensor::<i32>(&[0], &[]);
    let number = |number: i32| Tensor::scalar(number);
    let gathered = run_with("GatherV2", &[x(), no_indices(), number(0)], |node| {
        node.attr("batch_dims", 0i64)
    });
    assert_eq!(dims(&gathered), [0, HUGE, HUGE]);
    let joined = run("ConcatV2", &[x(), x(), number(0)]);
    assert_eq!(dims(&joined), [0, HUGE, HUGE]);
    let packed = run_with("Pack", &[x(), x()], |node| node.attr("axis", 1i64));
    assert_eq!(dims(&packed), [0, 2, HUGE, HUGE]);
    let placed = run("ArgMax", &[x(), number(1)]);
    assert_eq!(dims(&placed), [0, HUGE]);
    let summed = run("UnsortedSegmentSum", &[x(), no_indices(), number(0)]);
    assert_eq!(dims(&summed), [0, HUGE, HUGE]);
    let classes = tensor::<i64>(&[0, HUGE, HUGE], &[]);
    let values = [Tensor::scalar(1f32), Tensor::scalar(0f32)];
    let [on, off] = values;
    let hot = run_with("OneHot", &[classes, number(5), on, off], |node| {
        node.attr("axis", 1i64)
    });
    assert_eq!(dims(&hot), [0, 5, HUGE, HUGE]);
}

/// What is computed of little, or of bytes, takes no more than the memory that it would lie in.
#[test]
fn strings_and_places_take_no_memory_beside_the_engines() {
    let many = tensor(&[1], &[100_000_000i32]);
    let text = Tensor::from_strings(&["a"], Shape::SCALAR).expect("a string");
    let bytes = tensor(&[30 << 20], &vec![0u8; 30 << 20]);
    let [one, zero] = [1u8, 0].map(Tensor::scalar);
    let more = grown(|| {
        for (op, inputs) in [
            ("Fill", vec![many, text]),
            ("OneHot", vec![bytes, Tensor::scalar(1i32), one, zero]),
        ] {
            let status = run(op, &inputs).expect_err("there is no room");
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        }
    });
    assert!(more < 512 << 10, "{more} kB more than before");
}

#[test]
fn rows_without_classes_have_a_loss_each() {
    let inputs = [none(&[3, 0]), none(&[3, 0])];
    let outputs = run("SoftmaxCrossEntropyWithLogits", &inputs).expect("losses");
    assert_eq!(outputs[0].as_slice::<f32>().expect("floats"), [0.0; 3]);
    let shapes = [[3].as_slice(), &[3, 0]].map(|dims| Shape::new(dims).expect("a shape"));
    assert_eq!([outputs[0].shape(), outputs[1].shape()], shapes);
    // More than there is memory for is refused, and the heap is not asked for it.
    let many = none(&[HUGE, 0]);
    let status = run("SoftmaxCrossEntropyWithLogits", &[many.clone(), many]).expect_err("room");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
}

/// A home that has so many bytes for one tensor.
fn small_home(bytes: u64) -> Home {
    let memory = home();
    Home::new(move |meta: TensorMeta| -> Result<TensorBuilder, Status> {
        if meta.size().is_some_and(|of| of > bytes) {
            return Err(Status::of(catalogue::ARENA_UNFIT, "it is too long"));
        }
        memory.allocate(meta)
    })
}

/// What is folded so far is wider than the output, and its room is bounded as the output's is.
#[test]
fn what_is_computed_widely_is_bounded_too() {
    let shape = Shape::new(&[0, 100_000]).expect("a shape");
    let cases = [
        ("Mean", DType::U8, vec![DtUint8, DtInt32]),
        ("Sum", DType::F16, vec![DtHalf, DtInt32]),
        ("BiasAddGrad", DType::F16, vec![DtHalf]),
    ];
    for (op, dtype, types) in cases {
        let kernel = kernel(op, &types, |node| node).expect(op);
        let meta = TensorMeta::new(dtype, shape).expect("of a size");
        let empty = home().allocate(meta).expect("room").finish();
        let mut inputs = vec![Value::Tensor(empty)];
        if types.len() > 1 {
            inputs.push(Value::Tensor(tensor::<i32>(&[1], &[0])));
        }
        let status = call(&*kernel, &small_home(300_000), &inputs).expect_err(op);
        assert_eq!(status.reason(), catalogue::ARENA_UNFIT, "{op}: {status}");
        let outputs = call(&*kernel, &small_home(1_000_000), &inputs).expect(op);
        let shape = outputs[0].tensor().expect("a tensor").shape();
        assert_eq!(shape.elements(), 100_000, "{op}");
    }
}

/// The rest of each row was never written, and had whatever was in the memory before.
#[test]
fn losses_of_what_is_broadcast_along_the_classes() {
    let logits = tensor::<f32>(&[2, 1], &[1.0, 2.0]);
    let labels = tensor::<f32>(&[2, 3], &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    let outputs = run("SoftmaxCrossEntropyWithLogits", &[logits, labels]).expect("losses");
    let third = 1.0 / 3.0;
    let gradient = [third - 1.0, third, third, third, third - 1.0, third];
    assert_eq!(outputs.len(), 2);
    for (output, expected) in outputs.iter().zip([&[3f32.ln(); 2][..], &gradient]) {
        let values = output.as_slice::<f32>().expect("floats");
        assert_eq!(values.len(), expected.len());
        for (value, expected) in values.iter().zip(expected) {
            assert!((value - expected).abs() < 1e-6, "{values:?}");
        }
    }
}

#[test]
fn more_strings_than_a_tensor_may_have_are_refused_by_their_bound() {
    let dims = tensor::<i32>(&[2], &[1 << 20, 1 << 10]);
    let nothing = Tensor::from_strings(&[""], Shape::SCALAR).expect("a string");
    let status = run("Fill", &[dims, nothing]).expect_err("an entry of eight bytes for each");
    assert_eq!(status.reason(), catalogue::GRAPH_LIMIT);
    let expected = "8589934592 bytes of strings are over STRING_TENSOR_BYTES_MAX";
    assert!(status.message().starts_with(expected), "{status}");
}
