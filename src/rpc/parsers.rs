//! The parsers of what other workers and files say, as fuzzing reaches them: no part of what the library offers.

use std::path::Path;

use crate::agent::{parse_log, parse_store};
use crate::error::Error;
use crate::value::{Unpacker, Value, ValueError};

/// The value that plain bytes are, without tensors and references.
///
/// # Errors
/// They are none, or more than one.
pub fn value<T: Value>(plain: &[u8]) -> Result<T, ValueError> {
    let mut from = Unpacker::new(plain.into(), Vec::new(), Vec::new());
    let value = T::take(&mut from)?;
    from.end().map(|()| value)
}

/// True if these bytes are a report of spans.
#[must_use]
pub fn is_report(plain: &[u8]) -> bool {
    crate::spans::is_report(plain)
}

/// How many workers the file of a group names, if it is a dynamic one.
///
/// # Errors
/// What is wrong with it.
pub fn store_file(path: &Path) -> Result<usize, Error> {
    parse_store(path)
}

/// How many workers the log of a group in a store of keys names, if it is a dynamic one.
///
/// # Errors
/// Which line is none, and why.
pub fn store_log(bytes: &[u8]) -> Result<usize, String> {
    parse_log(bytes)
}
