//! Variables whose content comes from another task.

use crate::graph::{PartialShape, types};
use crate::kernel::Value;
use crate::operations::testing::{call, home as memory, kernel, kernel_of};
use crate::server::testing::two_engines;
use rendez::ground::{DType, Key, Shape, StepId, TensorMeta};

/// A variable kept a tensor that another task had lent for as long as the variable lived.
#[test]
fn a_variable_keeps_no_memory_of_another_task() {
    let engines = two_engines();
    let step = StepId(1);
    let lender = super::super::home(engines[0].downgrade());
    let shape = Shape::new(&[2000]).expect("a shape");
    let meta = TensorMeta::new(DType::F32, shape).expect("a size");
    let mut numbers = lender.allocate(meta).expect("room");
    numbers.bytes_mut().fill(7);
    let shape = Shape::new(&[2]).expect("a shape");
    let texts = lender.strings(shape, &["x".repeat(4000), "y".repeat(3000)]);
    for (edge, sent) in [
        ("numbers", numbers.finish()),
        ("texts", texts.expect("strings")),
    ] {
        let key = Key::between("a", "b", edge).expect("a key");
        engines[0]
            .step(step)
            .send(&key, sent.clone())
            .expect("sent");
        let received = engines[1].step(step).recv(&key).wait().expect("a value");
        assert!(received.tensor.is_leased(), "{edge}");
        let (home, base) = (memory(), types::data_type(sent.dtype()));
        for (op, source, holder) in [
            ("Assign", "VariableV2", "VariableV2"),
            ("AssignVariableOp", "VarHandleOp", "VarHandleOp"),
        ] {
            let shape = PartialShape::known(&[2]).to_proto();
            let holder = kernel(holder, &[], |node| {
                node.attr("dtype", base).attr("shape", shape)
            });
            let holder = call(&*holder.expect("a kernel"), &home, &[]).expect("a variable");
            let assign = kernel_of(
                op,
                [(source, base), ("Placeholder", base)],
                |node| match op {
                    "Assign" => node.attr("validate_shape", false),
                    _ => node,
                },
            );
            let value = Value::Tensor(received.tensor.clone());
            let inputs = [holder[0].clone(), value];
            call(&*assign.expect("a kernel"), &home, &inputs).expect("assigned");
            let content = holder[0].variable().expect("a variable").read();
            let content = content.expect("a content");
            assert!(!content.is_leased(), "{op} of {edge}");
            assert_eq!(
                content.host().unwrap(),
                sent.host().unwrap(),
                "{op} of {edge}"
            );
        }
    }
}
