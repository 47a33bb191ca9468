//! rendez for C and C++, and through them for any language that can call C.
//!
//! One exported function gives a versioned table of functions ([`api::Api`]); `rendez.h` describes it and is made from
//! these files, and `rendez.hpp` puts destructors around it. Arguments are checked as far as they can be: a null
//! pointer, or a number that names nothing, is an error (`C_ARGUMENT`), and so is a panic (`C_PANICKED`), which never
//! unwinds into C. A pointer that is not null must point to what the header says: no check can find that out.

pub mod api;
mod device;
mod engine;
mod key;
mod logs;
mod receive;
mod status;
mod tensor;

pub use engine::CEngine;
pub use key::CKey;
pub use logs::Line;
pub use receive::CReceive;
pub use status::CStatus;
pub use tensor::{CMapping, CTensor, Meta, RANK_MAX, Value};

#[cfg(test)]
mod tests;
