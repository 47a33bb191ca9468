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

use std::path::Path;
use std::process::{Command, Stdio};

/// The command in a folder, in no environment but this, and with nothing to read.
fn command(folder: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
    command
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}
