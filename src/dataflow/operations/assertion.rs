//! Assertions: a condition that must hold, and the values that are shown when it does not.
//!
//! Knows how the original prints elements.

use super::row::{Row, row};
use crate::graph::infer::nothing;
use crate::graph::{Node, attr};
use crate::kernel::Call;
use crate::kernel::call::{Done, Fault};
use crate::kernel::make::{Cost, Made, made};
use crate::kernel::numbers::{Number, by_type};
use rendez::ground::limits::STATUS_MESSAGE_BYTES_MAX;
use rendez::ground::{DType, Status, catalogue};
use rendez::memory::{Bool8, Tensor};

pub(super) const ROWS: &[Row] = &[row(
    "Assert",
    "condition: bool, data: T ->",
    "T: list(type) >= 1; summarize: int = 3",
    nothing,
)
.stateful()
.kernel(assertion)];

fn assertion(node: &Node) -> Made {
    let summarize = attr::int(&node.attrs, "summarize").unwrap_or(3);
    // A negative number shows all of them.
    let shown = usize::try_from(summarize).unwrap_or(usize::MAX);
    let cost = Cost::Picoseconds(Box::new(|inputs| {
        let condition = inputs.first().and_then(|value| value.tensor().ok());
        let truths = condition.as_ref().and_then(|one| one.as_slice().ok());
        match truths {
            Some(&[truth]) if Bool8::is_true(truth) => 0,
            // What is shown may be long strings.
            _ => usize::MAX,
        }
    }));
    made(cost, move |call| assert(call, shown))
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

/// The first elements of a tensor, in brackets for each dimension but the outermost.
fn summary(tensor: &Tensor, shown: usize) -> Result<String, Fault> {
    // No more than a message holds, whatever is asked for.
    let shown = shown.min(STATUS_MESSAGE_BYTES_MAX);
    let items: Vec<String> = match tensor.dtype() {
        DType::String => tensor.strings()?.iter().take(shown).map(escaped).collect(),
        DType::Bool => {
            let truths = tensor.as_slice::<Bool8>()?;
            truths
                .iter()
                .take(shown)
                .map(|truth| u8::from(truth.is_true()).to_string())
                .collect()
        }
        dtype => by_type!(dtype, T: all => {
            tensor.as_slice::<T>()?.iter().take(shown).map(|number| text(*number)).collect()
        })
        .unwrap_or_default(),
    };
    let dims: Vec<_> = tensor.shape().dims().collect();
    let mut out = String::new();
    let mut rest = items.as_slice();
    match dims.as_slice() {
        [] => out.push_str(&items.join(" ")),
        dims => dimension(dims, true, &mut rest, &mut out),
    }
    if tensor.shape().elements() > items.len() as u64 {
        out.push_str("...");
    }
    Ok(out)
}

/// Prints one dimension of what is left of the elements that are shown.
fn dimension(dims: &[u64], is_outermost: bool, rest: &mut &[String], out: &mut String) {
    let Some((&size, inner)) = dims.split_first() else {
        return;
    };
    for index in 0..size {
        let Some((first, others)) = rest.split_first() else {
            if inner.is_empty() && !is_outermost {
                out.push_str("...");
            }
            return;
        };
        if !inner.is_empty() {
            out.push('[');
            dimension(inner, false, rest, out);
            out.push(']');
            continue;
        }
        if index > 0 {
            out.push(' ');
        }
        out.push_str(first);
        *rest = others;
    }
}

/// A number as the original prints it: with the digits that its type is sure to hold, or else as many as tell it apart.
fn text<T: Number>(number: T) -> String {
    if let Some(integer) = number.to_i128() {
        return integer.to_string();
    }
    let wide = number.to_f64();
    if T::DTYPE == DType::F64 {
        let short = general(wide, 15);
        return if short.parse() == Ok(wide) {
            short
        } else {
            general(wide, 17)
        };
    }
    let short = general(wide, 6);
    if short.parse() == Ok(wide as f32) {
        short
    } else {
        general(wide, 9)
    }
}

/// C's `%.<digits>g`.
fn general(number: f64, digits: usize) -> String {
    if !number.is_finite() {
        return number.to_string().to_lowercase();
    }
    let scientific = format!("{number:.*e}", digits - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    match usize::try_from(digits as i32 - 1 - exponent) {
        Ok(decimals) if exponent >= -4 => trimmed(&format!("{number:.decimals$}")),
        _ => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs())
        }
    }
}

/// Bytes as C spells them.
fn escaped(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b'"' | b'\'' | b'\\' => {
                out.push('\\');
                out.push(byte.into());
            }
            b' '..=b'~' => out.push(byte.into()),
            _ => out.push_str(&format!("\\{byte:03o}")),
        }
    }
    out
}
