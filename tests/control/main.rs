//! The control plane from outside: pairs of it in one process, in several, and against peers that break its rules.

mod children;
mod leaks;
mod pairs;
mod raw;
mod refusals;
mod support;
mod tcp;
