//! Remote calls between two processes: how long they take, how many there are in a second, how soon a group is there,
//! and how soon the death of a worker is told. Beside it a raw ping-pong of cache lines, in the same run.
//!
//! `cargo bench -p rendez-autograd --bench rpc` measures all; `-- calls`, `-- init` or `-- death` a part, and
//! `-- passes` of the first the passes alone.
//! `bench/rpc.py` pairs it with PyTorch's TensorPipe agent, in turns.

#[path = "rpc/calls.rs"]
mod calls;
#[path = "rpc/cores.rs"]
mod cores;
#[path = "rpc/death.rs"]
mod death;
#[path = "rpc/figures.rs"]
mod figures;
#[path = "rpc/init.rs"]
mod init;
#[path = "rpc/process.rs"]
mod process;

use std::io::Write as _;

use figures::{Figures, Rounds};

type Failure = Box<dyn std::error::Error>;

/// Rounds of the calls; each figure is the median over them.
const ROUNDS: usize = 9;

fn main() -> Result<(), Failure> {
    if let Some(role) = process::role() {
        return match role.as_slice() {
            ["callee", first, second] => calls::callee(first, second),
            ["member", file, name, count] => init::member(file, name, count.parse()?),
            ["victim", first, second] => death::victim(first, second),
            other => Err(format!("no role: {other:?}").into()),
        };
    }
    // Cargo adds `--bench`.
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let wants = |part: &str| wanted.is_empty() || wanted.iter().any(|arg| arg == part);
    if wanted.iter().any(|arg| arg == "in-turns") {
        return in_turns();
    }
    let mut rounds = Rounds::default();
    let is_whole = wants("calls");
    if is_whole || wants("passes") {
        let caller = calls::Caller::start()?;
        for round in 0..=ROUNDS {
            let figures = match is_whole {
                true => caller.round()?,
                false => caller.passes()?,
            };
            // The first warms up.
            if round > 0 {
                rounds.add(figures);
            }
        }
        caller.end()?;
    }
    if wants("init") {
        for _ in 0..ROUNDS {
            rounds.add(Figures::from([init::measure(2)?]));
        }
        rounds.add(Figures::from([init::measure(64)?]));
    }
    if wants("death") {
        for _ in 0..ROUNDS {
            rounds.add(death::measure()?);
        }
    }
    rounds.print()
}

/// A round for each line of the input, which says what: `calls` or `init`. Its figures are a line of the output.
fn in_turns() -> Result<(), Failure> {
    let caller = calls::Caller::start()?;
    caller.round()?;
    let mut output = std::io::stdout();
    writeln!(output, "ready")?;
    for line in std::io::stdin().lines() {
        let figures = match line?.as_str() {
            "init" => Figures::from([init::measure(2)?]),
            _ => caller.round()?,
        };
        writeln!(output, "{}", serde_json::to_string(&figures)?)?;
    }
    caller.end()
}
