//! Keys.

/// The loop frame and iteration a value belongs to: `0:0` outside loops.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct FrameIter {
    /// The loop frame.
    pub frame: u64,
    /// The iteration within it.
    pub iter: u64,
}

/// A key.
#[derive(Clone, Debug)]
pub struct Key {}
