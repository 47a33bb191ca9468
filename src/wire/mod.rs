//! Wire: the hot frames, as bytes. Pure: parses and emits, decides nothing.

pub mod frame;

pub use frame::{Frame, INLINE_BODY_MAX};
