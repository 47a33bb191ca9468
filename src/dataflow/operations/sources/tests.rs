//! Constants are made once, placeholders ask to be fed, identities hand on what came.

use std::sync::Arc;

use crate::graph::{Builder, floats};
use crate::kernel::Value;
use crate::operations::Operations;
use crate::operations::testing::{call, home, kernel, one, run, tensor};
use rendez::ground::catalogue;
use rendez::memory::Tensor;
use rendez_proto::tensorflow::DataType;

#[test]
fn a_constant_is_made_once_in_the_engines_memory() {
    let constant = kernel("Const", &[], |node| {
        node.attr("dtype", DataType::DtFloat)
            .attr("value", floats(&[64], &[2.5]))
    })
    .expect("a kernel");
    let home = home();
    let tensors = [(); 2].map(|()| {
        call(&*constant, &home, &[]).expect("a value")[0]
            .tensor()
            .expect("a tensor")
    });
    assert_eq!(tensors[0].as_slice::<f32>().expect("floats"), [2.5; 64]);
    assert!(tensors[0].region().is_some(), "it lies in the arena");
    assert_eq!(tensors[0].region(), tensors[1].region());
}

#[test]
fn a_constants_value_is_shared_with_its_node_and_let_go_of_once_it_is_made() {
    let standard = Operations::standard();
    let mut graph = Builder::new(standard.ops());
    let constant = graph.constant("c", floats(&[64], &[2.5])).expect("a node");
    let node = graph.graph().node(constant.node);
    let kernel = standard.kernel(node).expect("a kernel");
    assert_eq!(Arc::strong_count(&node.attrs), 2);
    call(&*kernel, &home(), &[]).expect("a value");
    assert_eq!(Arc::strong_count(&node.attrs), 1);
}

#[test]
fn a_constant_that_contradicts_itself_is_refused_when_it_is_registered() {
    let wrong_type = kernel("Const", &[], |node| {
        node.attr("dtype", DataType::DtInt32)
            .attr("value", floats(&[1], &[2.5]))
    });
    let message = wrong_type
        .expect_err("floats are no integers")
        .message()
        .to_owned();
    assert!(
        message.contains("float") && message.contains("int32") && message.contains("{{node n}}"),
        "{message}"
    );
    let too_many = kernel("Const", &[], |node| {
        node.attr("dtype", DataType::DtFloat)
            .attr("value", floats(&[1], &[2.5, 1.0]))
    });
    assert_eq!(
        too_many.expect_err("two for one").reason(),
        catalogue::TENSOR_MALFORMED
    );
}

#[test]
fn a_constant_of_more_than_there_is_ends_the_step_and_not_the_process() {
    let bomb = kernel("Const", &[], |node| {
        node.attr("dtype", DataType::DtFloat)
            .attr("value", floats(&[1 << 40], &[1.0]))
    })
    .expect("registered: nothing was taken for it");
    let status = call(&*bomb, &home(), &[]).expect_err("four terabytes");
    assert_eq!(status.reason(), catalogue::ARENA_UNFIT);
    assert!(status.message().contains("{{node n}} = Const"), "{status}");
}

#[test]
fn an_unfed_placeholder_says_what_it_wants() {
    let shape = crate::graph::PartialShape::of(vec![None, Some(3)]).to_proto();
    let kernel = kernel("Placeholder", &[], |node| {
        node.attr("dtype", DataType::DtFloat).attr("shape", shape)
    });
    let status = call(&*kernel.expect("a kernel"), &home(), &[]).expect_err("nothing was fed");
    assert_eq!(
        status.message(),
        "You must feed a value for placeholder tensor 'n' with dtype float and shape [?,3]; {{node n}} = Placeholder"
    );
}

#[test]
fn identities_hand_the_same_bytes_on() {
    let input = tensor(&[64], &[1.5f32; 64]);
    for op in ["Identity", "StopGradient", "PreventGradient", "Snapshot"] {
        let outputs = run(op, std::slice::from_ref(&input)).expect("a value");
        assert_eq!(
            outputs[0].host().unwrap().as_ptr(),
            input.host().unwrap().as_ptr(),
            "{op}"
        );
    }
    assert_eq!(
        one::<i64>("Identity", &[Tensor::scalar(7i64)]),
        (vec![], vec![7])
    );
}

#[test]
fn an_identity_reads_a_variable_and_hands_a_handle_on() {
    let home = home();
    let variable = home.variables.find("", "v");
    variable.assign(Tensor::scalar(1f32));
    let handle = [Value::Variable(variable)];
    let reading = kernel("Identity", &[DataType::DtFloat], |node| node).expect("a kernel");
    let value = call(&*reading, &home, &handle).expect("a value");
    assert!(matches!(value[..], [Value::Tensor(_)]));
    let passing = kernel("Identity", &[DataType::DtResource], |node| node).expect("a kernel");
    let value = call(&*passing, &home, &handle).expect("a handle");
    assert!(matches!(value[..], [Value::Variable(_)]));
}
