//! Bytes that are known at every place, so that one which went astray is seen.

/// `len` bytes that differ from those of the next `seed` at every place, and from row to row of 256.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let row: Vec<u8> = (0..256).map(|at| (at * 7 + seed) as u8).collect();
    let mut bytes = Vec::with_capacity(len + row.len());
    while bytes.len() < len {
        let turn = bytes.len() / row.len() % row.len();
        bytes.extend_from_slice(&row[turn..]);
        bytes.extend_from_slice(&row[..turn]);
    }
    bytes.truncate(len);
    bytes
}
