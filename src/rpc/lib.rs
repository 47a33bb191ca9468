//! Remote calls and remote references over rendez.

pub mod codec;
pub mod error;
pub mod id;
pub mod message;
pub mod node;
pub mod references;

pub use error::Error;
