//! Files that are written for users: where they may lie, which users may read them, and how they appear whole.
//!
//! Floor 0. Knows paths and descriptors, nothing of what is written. The command, the
//! engine's recordings and kernels write files for users through an [`Output`]; nothing else creates, renames or
//! truncates one.

mod output;

pub use output::Output;
