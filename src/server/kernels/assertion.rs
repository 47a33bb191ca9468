//! Assertions: a condition that must hold, and the values that are shown when it does not.
//!
//! Knows how the original prints elements.

use super::Call;
use super::call::{Done, Fault};
use super::make::{Cost, Made, made};
use super::numbers::by_type;
use crate::graph::{Node, attr};
use crate::ground::limits::STATUS_MESSAGE_BYTES_MAX;
use crate::ground::{DType, Status, catalogue};
use crate::memory::{Bool8, Tensor};

#[cfg(test)]
mod tests;

pub(super) fn make(node: &Node) -> Made {
    if node.op.name() != "Assert" {
        return Ok(None);
    }
    let summarize = attr::int(&node.attrs, "summarize").unwrap_or(3);
    // A negative number shows all of them.
    let shown = usize::try_from(summarize).unwrap_or(usize::MAX);
    made(Cost::Light, move |call| assert(call, shown))
}

fn assert(call: &Call<'_>, shown: usize) -> Done {
    let condition = call.tensor(0)?;
    let truth = match condition.as_slice::<Bool8>()? {
        [truth] if condition.shape().rank() == 0 => truth.is_true(),
        _ => return Err(format!("In[0] should be a scalar: {}", condition.shape()).into()),
    };
    if truth {
        return Ok(());
    }
    let mut text = "assertion failed:".to_owned();
    for index in 1..call.inputs.len() {
        if text.len() > STATUS_MESSAGE_BYTES_MAX {
            break;
        }
        let summary = summary(&call.tensor(index)?, shown)?;
        text.push_str(&format!(" [{summary}]"));
    }
    Err(Status::of(catalogue::ASSERT_FAILED, text).into())
}

/// The first elements of a tensor, in the order they lie in.
pub(super) fn summary(tensor: &Tensor, shown: usize) -> Result<String, Fault> {
    // No more than a message holds, whatever is asked for.
    let shown = shown.min(STATUS_MESSAGE_BYTES_MAX);
    let elements = usize::try_from(tensor.shape().elements()).unwrap_or(usize::MAX);
    let mut items = match tensor.dtype() {
        DType::String => {
            let strings = tensor.strings()?;
            let text = |item: &[u8]| format!("{}", String::from_utf8_lossy(item));
            strings.iter().take(shown).map(text).collect()
        }
        DType::Bool => {
            let truths = tensor.as_slice::<Bool8>()?;
            truths
                .iter()
                .take(shown)
                .map(|truth| u8::from(truth.is_true()).to_string())
                .collect()
        }
        dtype => by_type!(dtype, T: numbers => {
            tensor.as_slice::<T>()?.iter().take(shown).map(ToString::to_string).collect::<Vec<_>>()
        })
        .unwrap_or_default(),
    };
    if elements > items.len() {
        items.push("...".to_owned());
    }
    Ok(items.join(" "))
}
