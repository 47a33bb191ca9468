//! The command from outside: what it says, what it leaves behind, and what it does with graphs.

mod cli;
mod end_to_end;
mod graphs;
mod newcomers;
#[path = "../ports/mod.rs"]
mod ports;
mod reports;
mod restricted;
mod runs;
mod seen;
mod stopping;
