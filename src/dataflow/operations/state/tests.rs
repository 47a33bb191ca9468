//! Variables by reference and by handle: found, assigned, added to, refused.

use crate::graph::PartialShape;
use crate::kernel::Value;
use crate::kernel::{Home, Kernel};
use crate::operations::testing::{call, home, kernel, kernel_of, tensor};
use rendez::ground::{Status, catalogue};
use rendez::memory::Tensor;
use rendez_proto::tensorflow::AttrValue;
use rendez_proto::tensorflow::DataType::{self, DtFloat, DtInt32, DtResource};
use rendez_proto::tensorflow::attr_value::Value as AttrKind;

fn variable(home: &Home, op: &str, dims: &[u64]) -> Value {
    let shape = PartialShape::known(dims).to_proto();
    let kernel = kernel(op, &[], |node| {
        node.attr("dtype", DtFloat).attr("shape", shape)
    });
    call(&*kernel.expect("a kernel"), home, &[]).expect("a variable")[0].clone()
}

fn made(op: &str, first: DataType, second: Option<DataType>) -> Box<dyn Kernel> {
    // An input of a reference wants a reference.
    let types: Vec<_> = std::iter::once(first).chain(second).collect();
    match op {
        "ReadVariableOp" => kernel(op, &types, |node| node.attr("dtype", DtFloat)),
        // A handle's variable holds what is assigned to it.
        _ if first == DtResource => {
            let handle = ("VarHandleOp", second.unwrap_or(DtFloat));
            let value = second.map(|base| ("Placeholder", base));
            kernel_of(op, std::iter::once(handle).chain(value), |node| node)
        }
        _ => reference_kernel(op, second),
    }
    .unwrap_or_else(|status| panic!("{op}: {status}"))
}

fn reference_kernel(op: &str, second: Option<DataType>) -> Result<Box<dyn Kernel>, Status> {
    let second = second.map(|base| ("Placeholder", base));
    let sources = std::iter::once(("VariableV2", DtFloat)).chain(second);
    kernel_of(op, sources, |node| node)
}

fn row(values: &[f32]) -> Value {
    Value::Tensor(tensor(&[values.len() as u64], values))
}

fn content(value: &Value) -> Vec<f32> {
    value
        .tensor()
        .expect("a content")
        .as_slice::<f32>()
        .expect("floats")
        .to_vec()
}

#[test]
fn references_are_assigned_and_added_to() {
    let home = home();
    let reference = variable(&home, "VariableV2", &[2]);
    let is_set = made("IsVariableInitialized", DtFloat, None);
    let truth = |home: &Home| {
        call(&*is_set, home, std::slice::from_ref(&reference)).expect("a truth")[0].tensor()
    };
    assert_eq!(truth(&home).expect("a tensor").host().unwrap(), [0]);
    let status = reference.tensor().expect_err("nothing was assigned");
    assert_eq!(status.reason(), catalogue::VARIABLE_EMPTY);
    assert!(
        status
            .message()
            .starts_with("Attempting to use uninitialized value n"),
        "{status}"
    );
    let assign = made("Assign", DtFloat, Some(DtFloat));
    let outputs = call(&*assign, &home, &[reference.clone(), row(&[1.0, 2.0])]).expect("assigned");
    assert_eq!(content(&outputs[0]), [1.0, 2.0]);
    assert_eq!(truth(&home).expect("a tensor").host().unwrap(), [1]);
    for (op, expected) in [("AssignAdd", [2.0, 4.0]), ("AssignSub", [1.0, 2.0])] {
        let kernel = made(op, DtFloat, Some(DtFloat));
        let outputs = call(&*kernel, &home, &[reference.clone(), row(&[1.0, 2.0])]).expect(op);
        assert_eq!(content(&outputs[0]), expected, "{op}");
        let status =
            call(&*kernel, &home, &[reference.clone(), row(&[1.0])]).expect_err("another shape");
        assert!(
            status
                .message()
                .starts_with("Parameters and update must be the same size"),
            "{status}"
        );
    }
    let status =
        call(&*assign, &home, &[reference.clone(), row(&[1.0])]).expect_err("another shape");
    assert!(
        status.message().starts_with(
            "Assign requires shapes of both tensors to match. lhs shape= [2] rhs shape= [1]"
        ),
        "{status}"
    );
}

#[test]
fn a_declared_shape_binds_the_first_assignment() {
    let home = home();
    let reference = variable(&home, "VariableV2", &[2]);
    let assign = made("Assign", DtFloat, Some(DtFloat));
    let status =
        call(&*assign, &home, &[reference.clone(), row(&[1.0])]).expect_err("another shape");
    assert!(
        status.message().contains("lhs shape= [2] rhs shape= [1]"),
        "{status}"
    );
    // A graph that has a variable of this name too, of another type.
    call(&*assign, &home, &[reference.clone(), row(&[1.0, 2.0])]).expect("assigned");
    let sources = [("VariableV2", DtInt32), ("Placeholder", DtInt32)];
    let other = kernel_of("Assign", sources, |node| node).expect("a kernel");
    let integers = Value::Tensor(Tensor::scalar(1i32));
    let status = call(&*other, &home, &[reference, integers]).expect_err("another type");
    assert!(
        status
            .message()
            .starts_with("Trying to assign variable with wrong dtype. Expected float got int32"),
        "{status}"
    );
}

#[test]
fn handles_are_assigned_read_and_added_to() {
    let home = home();
    let handle = variable(&home, "VarHandleOp", &[2]);
    let read = made("ReadVariableOp", DtResource, None);
    let status =
        call(&*read, &home, std::slice::from_ref(&handle)).expect_err("nothing was assigned");
    assert_eq!(status.reason(), catalogue::VARIABLE_EMPTY);
    assert!(
        status.message().starts_with("Could not find variable n."),
        "{status}"
    );
    let assign = made("AssignVariableOp", DtResource, Some(DtFloat));
    assert!(
        call(&*assign, &home, &[handle.clone(), row(&[1.0, 2.0])])
            .expect("assigned")
            .is_empty()
    );
    let add = made("AssignAddVariableOp", DtResource, Some(DtFloat));
    call(&*add, &home, &[handle.clone(), row(&[1.0, 2.0])]).expect("added");
    let sub = made("AssignSubVariableOp", DtResource, Some(DtFloat));
    call(&*sub, &home, &[handle.clone(), row(&[0.5, 0.5])]).expect("taken off");
    assert_eq!(
        content(&call(&*read, &home, std::slice::from_ref(&handle)).expect("read")[0]),
        [1.5, 3.5]
    );
    let status = call(&*add, &home, &[handle.clone(), row(&[1.0])]).expect_err("another shape");
    assert!(
        status.message().starts_with(
            "Cannot update variable with shape [2] using a Tensor with shape [1], shapes must be equal."
        ),
        "{status}"
    );
    let other = made("AssignVariableOp", DtResource, Some(DtInt32));
    let status = call(
        &*other,
        &home,
        &[handle.clone(), Value::Tensor(Tensor::scalar(1i32))],
    );
    let status = status.expect_err("another type");
    assert!(
        status
            .message()
            .starts_with("Trying to assign variable with wrong dtype. Expected float got int32"),
        "{status}"
    );
    let shape = made("VariableShape", DtResource, None);
    let dims = call(&*shape, &home, std::slice::from_ref(&handle)).expect("a shape")[0]
        .tensor()
        .expect("a tensor");
    assert_eq!(dims.as_slice::<i32>().expect("integers"), [2]);
    let destroy = made("DestroyResourceOp", DtResource, None);
    call(&*destroy, &home, std::slice::from_ref(&handle)).expect("destroyed");
    assert!(
        !home
            .variables
            .forget(handle.variable().expect("a variable")),
        "it is gone"
    );
    let fresh = variable(&home, "VarHandleOp", &[2]);
    assert!(!fresh.variable().expect("a variable").is_initialized());
}

#[test]
fn a_handle_leads_to_what_has_its_name() {
    let home = home();
    let old = [variable(&home, "VarHandleOp", &[2])];
    let with = |values: &[f32]| [old[0].clone(), row(values)];
    let assign = made("AssignVariableOp", DtResource, Some(DtFloat));
    let add = made("AssignAddVariableOp", DtResource, Some(DtFloat));
    let descend = kernel(
        "ResourceApplyGradientDescent",
        &[DtResource, DtFloat, DtFloat],
        |node| node,
    )
    .expect("a kernel");
    let read = made("ReadVariableOp", DtResource, None);
    let is_set = made("VarIsInitializedOp", DtResource, None);
    let shape = made("VariableShape", DtResource, None);
    let destroy = kernel("DestroyResourceOp", &[DtResource], |node| {
        node.attr("ignore_lookup_error", false)
    })
    .expect("a kernel");
    let truth = || call(&*is_set, &home, &old).expect("a truth")[0].tensor();
    let update = [
        old[0].clone(),
        Value::Tensor(Tensor::scalar(1f32)),
        row(&[1.0, 1.0]),
    ];
    call(&*assign, &home, &with(&[1.0, 2.0])).expect("assigned");
    call(&*destroy, &home, &old).expect("destroyed");
    assert_eq!(truth().expect("a tensor").host().unwrap(), [0]);
    for status in [
        call(&*read, &home, &old),
        call(&*shape, &home, &old),
        call(&*add, &home, &with(&[1.0, 2.0])),
        call(&*descend, &home, &update),
        call(&*destroy, &home, &old),
    ] {
        let status = status.expect_err("it is gone");
        assert_eq!(status.reason(), catalogue::VARIABLE_EMPTY, "{status}");
    }
    call(&*assign, &home, &with(&[3.0, 4.0])).expect("assigned again");
    assert_eq!(truth().expect("a tensor").host().unwrap(), [1]);
    call(&*add, &home, &with(&[1.0, 1.0])).expect("added");
    call(&*descend, &home, &update).expect("descended");
    let fresh = variable(&home, "VarHandleOp", &[2]);
    assert_eq!(content(&fresh), [3.0, 4.0]);
    assert_eq!(
        content(&call(&*read, &home, &old).expect("read")[0]),
        [3.0, 4.0]
    );
    call(&*destroy, &home, &old).expect("destroyed again");
    assert!(fresh.variable().expect("a variable").is_forgotten());
}

#[test]
fn a_kernel_finds_the_new_variable_after_a_reset() {
    let home = home();
    let shape = PartialShape::known(&[]).to_proto();
    let find = kernel("VarHandleOp", &[], |node| {
        node.attr("dtype", DtFloat)
            .attr("shape", shape)
            .attr("shared_name", "w")
    })
    .expect("a kernel");
    let first = call(&*find, &home, &[]).expect("a handle")[0].clone();
    first
        .variable()
        .expect("a variable")
        .assign(Tensor::scalar(1f32));
    let again = call(&*find, &home, &[]).expect("a handle")[0].clone();
    assert!(again.variable().expect("a variable").is_initialized());
    home.variables.clear(&["other".to_owned()]);
    assert!(
        call(&*find, &home, &[]).expect("a handle")[0]
            .variable()
            .expect("a variable")
            .is_initialized()
    );
    home.variables.clear(&[]);
    assert!(
        !call(&*find, &home, &[]).expect("a handle")[0]
            .variable()
            .expect("a variable")
            .is_initialized()
    );
}

#[test]
fn no_addition_is_lost() {
    let home = home();
    let handle = variable(&home, "VarHandleOp", &[]);
    handle
        .variable()
        .expect("a variable")
        .assign(Tensor::scalar(0f32));
    let add = made("AssignAddVariableOp", DtResource, Some(DtFloat));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..250 {
                    call(
                        &*add,
                        &home,
                        &[handle.clone(), Value::Tensor(Tensor::scalar(1f32))],
                    )
                    .expect("added");
                }
            });
        }
    });
    assert_eq!(content(&handle), [1000.0]);
}

/// A kernel that had found a variable kept its content for the session's life.
#[test]
fn a_variable_that_is_forgotten_gives_its_memory_back() {
    let home = home();
    let shape = PartialShape::known(&[2]).to_proto();
    let kernel = kernel("VarHandleOp", &[], |node| {
        node.attr("dtype", DtFloat).attr("shape", shape)
    });
    let kernel = kernel.expect("a kernel");
    let find = || call(&*kernel, &home, &[]).expect("a variable").remove(0);
    let handle = find();
    let variable = handle.variable().expect("a variable");
    variable.assign(tensor(&[2], &[1f32, 2.0]));
    assert!(find().variable().expect("a variable").is_initialized());
    let watched = std::sync::Arc::downgrade(variable);
    home.variables.forget(variable);
    assert!(watched.upgrade().is_some(), "a step has it");
    drop(handle);
    assert!(watched.upgrade().is_none());
    assert!(!find().variable().expect("a variable").is_initialized());
}

#[test]
fn a_name_that_is_no_text_is_refused() {
    for attr in ["container", "shared_name"] {
        let value = AttrValue {
            value: Some(AttrKind::S(vec![0xff])),
        };
        let shape = PartialShape::known(&[]).to_proto();
        let made = kernel("VarHandleOp", &[], |node| {
            let node = node.attr("dtype", DtFloat).attr("shape", shape);
            node.attr(attr, value)
        });
        let status = made.expect_err("it names no variable");
        let expected = format!("attr '{attr}' is no text");
        assert!(status.message().starts_with(&expected), "{status}");
    }
}
