//! Wire: the hot frames, as bytes. Pure: parses and emits, decides nothing.
//!
//! It knows the ground's plain values and no room above: not what a key is matched with, nor which side sends.
#![doc = include_str!("WIRE.md")]
#![forbid(unsafe_code)]

mod emit;
pub mod frame;
pub mod message;
mod parse;

pub use emit::Body;
pub use frame::{Flags, Frame, INLINE_BODY_MAX, Kind};
pub use message::{Malformed, Message, Point, Ticket};

#[cfg(test)]
mod tests;
