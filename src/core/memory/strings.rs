//! Strings as bytes: how a tensor of [`DType::String`](crate::ground::DType::String) lies in memory and on the wire.
//!
//! Knows bytes only. The decoder never trusts them: they may be a peer's, and may even change between two looks.
//!
//! ```text
//!   ┌ end 0 ┬ end 1 ┬ … ┬ end n−1 ┬ bytes of string 0 │ string 1 │ … │ string n−1 ┐
//!   └─ u64 ─┴─ u64 ─┴───┴── u64 ──┴──────────────────────────────────────────────┘
//! ```
//!
//! `end i` is where string `i` ends, little-endian, counted from the first byte behind the table; it begins where the
//! one before it ends. The shape says how many there are.

use super::TensorError;
use crate::ground::Shape;

/// Bytes of one entry of the table.
const ENTRY: usize = 8;

/// The strings of a tensor. They are byte strings: UTF-8 or not is the user's affair.
#[derive(Clone, Copy, Debug)]
pub struct Strings<'a> {
    ends: &'a [u8],
    data: &'a [u8],
}

impl<'a> Strings<'a> {
    /// The `count` strings encoded in `bytes`.
    ///
    /// # Errors
    /// [`TensorError::Encoding`] if the table does not fit, an end lies before the one before it, or the last end is
    /// not the end of the bytes.
    pub fn decode(bytes: &'a [u8], count: u64) -> Result<Self, TensorError> {
        let wrong = TensorError::Encoding { count };
        let table = usize::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(ENTRY))
            .ok_or(wrong)?;
        let (ends, data) = bytes.split_at_checked(table).ok_or(wrong)?;
        let strings = Self { ends, data };
        let mut last = 0;
        for index in 0..strings.len() {
            let end = strings.end(index).ok_or(wrong)?;
            if end < last {
                return Err(wrong);
            }
            last = end;
        }
        if last != data.len() {
            return Err(wrong);
        }
        Ok(strings)
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len() / ENTRY
    }

    /// True if there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `index`, in row-major order. `None` past the last, or if a peer changed the table since it was checked.
    #[must_use]
    pub fn at(&self, index: usize) -> Option<&'a [u8]> {
        let start = match index.checked_sub(1) {
            Some(before) => self.end(before)?,
            None => 0,
        };
        self.data.get(start..self.end(index)?)
    }

    /// Every string, in row-major order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let strings = *self;
        (0..strings.len()).map_while(move |index| strings.at(index))
    }

    fn end(&self, index: usize) -> Option<usize> {
        let at = index.checked_mul(ENTRY)?;
        let entry = self.ends.get(at..at.checked_add(ENTRY)?)?;
        usize::try_from(u64::from_le_bytes(entry.try_into().ok()?)).ok()
    }
}

/// Bytes that `items` take when encoded.
#[must_use]
pub fn encoded_len<S: AsRef<[u8]>>(items: impl IntoIterator<Item = S>) -> usize {
    let items = items.into_iter();
    items.map(|item| ENTRY + item.as_ref().len()).sum()
}

/// Encodes `items` into `out`, which has [`encoded_len`] bytes.
///
/// # Panics
/// If `out` has fewer: the caller's bug.
pub fn encode<S: AsRef<[u8]>>(items: impl IntoIterator<Item = S, IntoIter: Clone>, out: &mut [u8]) {
    let items = items.into_iter();
    let (table, data) = out.split_at_mut(items.clone().count() * ENTRY);
    let mut end = 0;
    for (entry, item) in table.chunks_exact_mut(ENTRY).zip(items) {
        let (start, item) = (end, item.as_ref());
        end += item.len();
        data[start..end].copy_from_slice(item);
        entry.copy_from_slice(&(end as u64).to_le_bytes());
    }
}

/// Refuses a number of strings that is not the shape's number of elements.
pub fn check_count(shape: Shape, count: usize) -> Result<(), TensorError> {
    let (expected, actual) = (shape.elements(), count as u64);
    if expected == actual {
        Ok(())
    } else {
        Err(TensorError::Elements { expected, actual })
    }
}

#[cfg(test)]
mod tests;
