//! Size classes: the sizes that a small block's length is rounded up to.
//!
//! Arithmetic only. Eight classes of 64 bytes' distance up to 512 bytes, then four to each doubling, up to 64 KiB: the
//! loss to rounding stays under 64 bytes or a fifth. Every class is a multiple of 64, so every block starts a cache
//! line.

/// Every block starts at a multiple of this many bytes: a cache line, and the widest vector register.
pub(crate) const ALIGN: usize = 64;
/// The largest small block; larger ones are runs of pages.
pub(crate) const SMALL_MAX: usize = 64 << 10;
/// How many classes there are: 8 up to 512 bytes, then 4 for each of the 7 doublings from 512 to 64 KiB.
pub(crate) const CLASSES: usize = 8 + 4 * 7;

/// The class of blocks for `len` bytes; `len` is at most [`SMALL_MAX`].
#[inline]
pub(crate) const fn class_of(len: usize) -> usize {
    let last = len.saturating_sub(1);
    if last < 512 {
        return last / ALIGN;
    }
    let log2 = last.ilog2() as usize;
    8 + (log2 - 9) * 4 + ((last >> (log2 - 2)) & 3)
}

/// Bytes of a block of `class`.
pub(crate) const fn size_of(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * ALIGN;
    }
    let (log2, step) = ((class - 8) / 4 + 9, (class - 8) % 4);
    (5 + step) << (log2 - 2)
}

const _: () = assert!(class_of(SMALL_MAX) == CLASSES - 1 && size_of(CLASSES - 1) == SMALL_MAX);

#[cfg(test)]
mod tests;
