//! Clusters of the real command: processes that find each other, those that must not, and what is left behind.
//!
//! Knows the command's options, its output and its exit codes; nothing of what is inside. Every wait is bounded, and
//! every process is ended by its number.

mod asked;
mod bad_input;
mod fallback;
mod launchers;
mod outputs;
mod pushes;
mod returns;
mod second_user;
#[path = "../skipped/mod.rs"]
mod skipped;
mod strangers;
mod support;
mod up;
