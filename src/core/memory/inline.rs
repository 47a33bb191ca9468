//! Bytes in a tensor's handle: so few that they need no memory of their own.

/// Up to so many bytes lie in the handle itself: a scalar of any type.
pub const INLINE_MAX: usize = 16;

/// Bytes in the handle, aligned for every element type.
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(crate) struct Inline(pub(crate) [u8; INLINE_MAX]);

impl Inline {
    /// Those bytes, at most [`INLINE_MAX`], and zeros behind them.
    #[inline(always)]
    pub(super) fn of(bytes: &[u8]) -> Self {
        let words = match bytes.len() {
            // The usual lengths of one element, without a way through memory.
            4 => u128::from(
                bytes
                    .first_chunk()
                    .map_or(0, |four| u32::from_le_bytes(*four)),
            ),
            8 => u128::from(
                bytes
                    .first_chunk()
                    .map_or(0, |eight| u64::from_le_bytes(*eight)),
            ),
            _ => padded(bytes),
        };
        Self(words.to_le_bytes())
    }
}

#[inline(never)]
fn padded(bytes: &[u8]) -> u128 {
    let mut padded = [0; INLINE_MAX];
    padded[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(padded)
}
