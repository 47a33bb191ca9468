//! The control plane from outside: pairs of it in one process, in several, and against peers that break its rules.

mod calls;
mod children;
mod floods;
mod leaks;
mod lookouts;
mod names;
mod pairs;
mod raw;
mod refusals;
mod relay;
mod sealed;
mod security;
#[path = "../skipped/mod.rs"]
mod skipped;
mod strangers;
mod support;
mod tcp;
mod users;
