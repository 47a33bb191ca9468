//! The executor: what a run of random graphs gives, in whatever order things happen, is what the oracle says; and runs
//! on real engines.

mod engines;
mod flow;
mod lent;
mod random;
mod variables;

use super::*;
use crate::graph::{Node, attr};
use crate::kernel::{Call, Kernel};
use rendez::ground::{DType, Shape, TensorMeta};
use rendez::memory::{Bool8, Tensor};

/// A kernel on rows of 32-bit integers. What its node is called says what else it does: it is `costly`, it `sleeps`,
/// `fails`, `breaks`, or `forgets` its outputs.
#[derive(Debug)]
struct Rows {
    name: String,
    op: &'static str,
    constant: Option<Tensor>,
}

/// The kernels of these tests.
fn rows(node: &Node) -> Result<Box<dyn Kernel>, Status> {
    let constant = match node.op.name() {
        "Const" => attr::tensor(&node.attrs, "value").map(|value| {
            match attr::data_type(&node.attrs, "dtype") {
                Some(rendez_proto::tensorflow::DataType::DtInt32) => row(&value.int_val),
                _ => empty_floats(),
            }
        }),
        "Identity" if node.name == "unknown" => return Err(unknown(node)),
        "AddV2" | "Sub" | "Mul" | "Less" | "Identity" => None,
        _ => return Err(unknown(node)),
    };
    Ok(Box::new(Rows {
        name: node.name.clone(),
        op: node.op.name(),
        constant,
    }))
}

impl Kernel for Rows {
    fn compute(&self, call: &mut Call<'_>) -> Result<(), Status> {
        assert!(!self.name.contains("breaks"), "as it was told");
        if self.name.contains("fails") {
            let message = format!("{} fails", self.name);
            return Err(Status::of(catalogue::KERNEL_INPUT, message));
        }
        if self.name.contains("forgets") {
            return Ok(());
        }
        if self.name.contains("sleeps") {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        if let Some(constant) = &self.constant {
            call.outputs.push(Value::Tensor(constant.clone()));
            return Ok(());
        }
        if self.op == "Identity" {
            call.outputs.push(Value::Tensor(call.inputs[0].tensor()?));
            return Ok(());
        }
        let (left, right) = (call.inputs[0].tensor()?, call.inputs[1].tensor()?);
        let (left, right) = (left.as_slice::<i32>()?, right.as_slice::<i32>()?);
        let len = if left.is_empty() || right.is_empty() {
            0
        } else {
            left.len().max(right.len())
        };
        let pairs = (0..len).map(|at| (left[at % left.len()], right[at % right.len()]));
        let value = match self.op {
            "AddV2" => row(&pairs.map(|(a, b)| a.wrapping_add(b)).collect::<Vec<_>>()),
            "Sub" => row(&pairs.map(|(a, b)| a.wrapping_sub(b)).collect::<Vec<_>>()),
            "Mul" => row(&pairs.map(|(a, b)| a.wrapping_mul(b)).collect::<Vec<_>>()),
            // What steers is one truth.
            _ => Tensor::scalar(Bool8::from(left[0] < right[0])),
        };
        call.outputs.push(Value::Tensor(value));
        Ok(())
    }

    fn is_costly(&self, _: &[Value]) -> bool {
        // Some are, by their names.
        self.name.contains("costly") || self.name.ends_with('7')
    }
}

fn unknown(node: &Node) -> Status {
    let message = format!("no kernel for {}", node.name);
    Status::of(catalogue::KERNEL_UNKNOWN, message)
}

fn row(numbers: &[i32]) -> Tensor {
    Tensor::from_vec(numbers.to_vec(), Shape::row(numbers.len() as u64).unwrap()).unwrap()
}

fn empty_floats() -> Tensor {
    let meta = TensorMeta::new(DType::F32, Shape::row(0).unwrap()).unwrap();
    Tensor::from_inline(meta, &[]).unwrap()
}

/// Numbers of a tensor, whatever it is made of.
fn numbers(value: &Value) -> Vec<i64> {
    let tensor = value.tensor().unwrap();
    match tensor.meta().dtype {
        DType::I32 => tensor
            .as_slice::<i32>()
            .unwrap()
            .iter()
            .map(|&n| n.into())
            .collect(),
        DType::Bool => tensor
            .as_slice::<Bool8>()
            .unwrap()
            .iter()
            .map(|&t| i64::from(t.is_true()))
            .collect(),
        _ => vec![],
    }
}

fn home() -> Arc<Home> {
    Arc::new(Home::new(|_| {
        Err(Status::of(
            catalogue::ARENA_FULL,
            "these kernels allocate nothing",
        ))
    }))
}
