//! Every bound of the system, each with the sum that justifies it.
//!
//! A number that bounds memory, time or work stands here and nowhere else; going past one is a
//! `ResourceExhausted` that names the limit and its setting.

/// Bytes of a hot frame: one cache line.
pub const FRAME_BYTES: usize = 64;
