//! Updates against numbers reckoned by hand from the formulas, by handle and by reference.

use crate::kernel::Value;
use crate::kernel::{Home, Kernel};
use crate::operations::testing::{call, home, is_close, kernel_of, tensor};
use rendez::ground::{Status, catalogue};
use rendez::memory::Tensor;
use rendez_proto::tensorflow::DataType::DtDouble;

/// An update of so many variables, with so many other inputs.
fn kernel(op: &str, variables: usize, others: usize, nesterov: bool) -> Box<dyn Kernel> {
    let maker = match op.starts_with("Resource") {
        true => "VarHandleOp",
        false => "VariableV2",
    };
    let variables = std::iter::repeat_n((maker, DtDouble), variables);
    let sources = variables.chain(std::iter::repeat_n(("Placeholder", DtDouble), others));
    let kernel = kernel_of(op, sources, |node| match op.ends_with("Descent") {
        true => node,
        false => node.attr("use_nesterov", nesterov),
    });
    kernel.expect("a kernel")
}

fn variable(home: &Home, name: &str, values: [f64; 2]) -> Value {
    let variable = home.variables.find("", name);
    variable.assign(tensor(&[2], &values));
    Value::Variable(variable)
}

fn scalar(value: f64) -> Value {
    Value::Tensor(Tensor::scalar(value))
}

fn content(value: &Value) -> Vec<f64> {
    let tensor = value.tensor().expect("a content");
    tensor.as_slice::<f64>().expect("doubles").to_vec()
}

fn gradient() -> Value {
    Value::Tensor(tensor(&[2], &[0.5, -1.0]))
}

#[test]
fn gradient_descent() {
    for op in ["ApplyGradientDescent", "ResourceApplyGradientDescent"] {
        let home = home();
        let var = variable(&home, "var", [1.0, 2.0]);
        let kernel = kernel(op, 1, 2, false);
        let outputs = call(&*kernel, &home, &[var.clone(), scalar(0.1), gradient()]).expect(op);
        assert!(is_close(&content(&var), &[0.95, 2.1], 1e-15), "{op}");
        assert_eq!(outputs.len(), usize::from(op.starts_with("Apply")));
    }
}

#[test]
fn momentum() {
    for (nesterov, expected) in [(false, [0.86, 2.01]), (true, [0.824, 2.109])] {
        for op in ["ApplyMomentum", "ResourceApplyMomentum"] {
            let home = home();
            let var = variable(&home, "var", [1.0, 2.0]);
            let accum = variable(&home, "accum", [1.0, 1.0]);
            let kernel = kernel(op, 2, 3, nesterov);
            let inputs = [
                var.clone(),
                accum.clone(),
                scalar(0.1),
                gradient(),
                scalar(0.9),
            ];
            call(&*kernel, &home, &inputs).expect(op);
            assert!(
                is_close(&content(&var), &expected, 1e-15),
                "{op} {:?}",
                content(&var)
            );
            assert!(is_close(&content(&accum), &[1.4, -0.1], 1e-15), "{op}");
        }
    }
}

#[test]
fn adam() {
    for op in ["ApplyAdam", "ResourceApplyAdam"] {
        let home = home();
        let names = ["var", "m", "v"];
        let [var, m, v] = names.map(|name| variable(&home, name, [0.0, 0.0]));
        let _ = variable(&home, "var", [1.0, 2.0]);
        let kernel = kernel(op, 3, 7, false);
        let scalars = [0.9, 0.999, 0.001, 0.9, 0.999, 1e-8].map(scalar);
        let inputs: Vec<_> = [var.clone(), m.clone(), v.clone()]
            .into_iter()
            .chain(scalars)
            .chain([gradient()])
            .collect();
        call(&*kernel, &home, &inputs).expect(op);
        // The first step of Adam is as long as the rate, whatever the gradient.
        assert!(
            is_close(&content(&var), &[0.999, 2.001], 1e-8),
            "{op} {:?}",
            content(&var)
        );
        assert!(is_close(&content(&m), &[0.05, -0.1], 1e-15), "{op}");
        assert!(is_close(&content(&v), &[0.00025, 0.001], 1e-15), "{op}");
    }
}

fn refused(kernel: &dyn Kernel, home: &Home, inputs: &[Value]) -> Status {
    call(kernel, home, inputs).expect_err("it is refused")
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let home = home();
    let var = variable(&home, "var", [1.0, 2.0]);
    let descent = kernel("ResourceApplyGradientDescent", 1, 2, false);
    let rates = Value::Tensor(tensor(&[2], &[0.1, 0.1]));
    let status = refused(&*descent, &home, &[var.clone(), rates, gradient()]);
    assert!(
        status.message().starts_with("alpha is not a scalar: [2]"),
        "{status}"
    );
    let status = refused(&*descent, &home, &[var.clone(), scalar(0.1), scalar(1.0)]);
    assert!(
        status
            .message()
            .starts_with("var and delta do not have the same shape[2] []"),
        "{status}"
    );
    let empty = Value::Variable(home.variables.find("", "empty"));
    let status = refused(&*descent, &home, &[empty, scalar(0.1), gradient()]);
    assert_eq!(status.reason(), catalogue::VARIABLE_EMPTY);
    let momentum = kernel("ResourceApplyMomentum", 2, 3, false);
    let inputs = [
        var.clone(),
        var.clone(),
        scalar(0.1),
        gradient(),
        scalar(0.9),
    ];
    let status = refused(&*momentum, &home, &inputs);
    assert!(status.message().contains("two places"), "{status}");
    assert_eq!(content(&var), [1.0, 2.0]);
}
