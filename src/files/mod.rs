//! Files that are written for users: where they may lie, who may read them, and how they appear whole.
//!
//! Floor 0. Knows paths and descriptors, nothing of what is written. Whoever writes a file for a user, the command, the
//! engine's recordings or a kernel, opens an [`Output`]; nobody else creates, renames or truncates one.

mod output;

pub use output::Output;
