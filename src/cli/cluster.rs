//! `rendez cluster show`: the cluster as it is resolved, which resolver found it, and why none before it did.
//!
//! Knows the resolvers' answer; it looks no name up and calls no task.

use clap::{Args, Subcommand};
use serde::Serialize;

use super::error::CliError;
use super::report::lay_out;
use super::settings::{SettingArgs, resolved};
use super::terminal::Terminal;
use rendez::cluster::{Epoch, Local, Membership, Resolved};

const EXAMPLES: &str = "\
Examples:
  rendez cluster show
  rendez cluster show --cluster 'ps=a:2222;worker=b:2222,c:2222' --job worker --task 1
  torchrun --no-python rendez cluster show --json";

/// What of the cluster.
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum ClusterCommand {
    /// Print the cluster that flags, files or a launcher describe, and where that was found.
    #[command(after_help = EXAMPLES)]
    Show(ClusterShowArgs),
}

/// Options of `cluster show`.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct ClusterShowArgs {
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// Runs it.
///
/// # Errors
/// `CLUSTER_UNRESOLVED` if nothing says what the cluster is; else what is wrong with whatever says it.
pub fn run(command: &ClusterCommand, terminal: &mut Terminal) -> Result<(), CliError> {
    let ClusterCommand::Show(args) = command;
    let loaded = args.settings.load()?;
    let resolved = resolved(&loaded)?;
    let text = if args.json {
        json(&resolved)
    } else {
        table(&resolved, terminal.width())
    };
    terminal.line(text)?;
    Ok(())
}

fn table(resolved: &Resolved, width: Option<usize>) -> String {
    let mut lines = vec![["task", "address", ""].map(str::to_owned).to_vec()];
    match &resolved.membership {
        Membership::Known(spec) => {
            for (task, address) in spec.tasks() {
                let mark = if task == resolved.task {
                    "this task"
                } else {
                    ""
                };
                lines.push(vec![task.to_string(), address.to_string(), mark.into()]);
            }
        }
        Membership::Rooted { root, rank, size } => {
            let mark = |is_this: bool| if is_this { "this task" } else { "" };
            let job = resolved.task.job();
            let name = |rank: u32| format!("/job:{job}/replica:0/task:{rank}");
            lines.push(vec![name(0), root.to_string(), mark(*rank == 0).into()]);
            if *rank != 0 {
                lines.push(vec![
                    name(*rank),
                    "told at the root".into(),
                    mark(true).into(),
                ]);
            }
            let others = size - if *rank == 0 { 1 } else { 2 };
            if others > 0 {
                lines.push(vec![
                    format!("{others} more"),
                    "learnt at the root".into(),
                    String::new(),
                ]);
            }
        }
    }
    let mut text = lay_out(&lines, &[0, 1, 2], &[], width);
    let mut fact = |name: &str, value: &str| text.push_str(&format!("\n{name:<9} {value}"));
    fact(
        "origin",
        &format!("{}: {}", resolved.source, resolved.origin),
    );
    if resolved.address().is_none() && matches!(resolved.membership, Membership::Known(_)) {
        fact(
            "this task",
            &format!("{}, which is not in the cluster", resolved.task),
        );
    }
    if let Some(epoch) = &resolved.epoch {
        fact("epoch", &epoch.to_string());
    }
    if let Some(Local { rank, size }) = resolved.local {
        let of = size.map_or_else(String::new, |size| format!(" of {size}"));
        fact("local", &format!("rank {rank}{of} on this machine"));
    }
    for note in &resolved.notes {
        fact("note", note);
    }
    for passed in &resolved.passed_over {
        fact("not", &format!("{}: {}", passed.source, passed.why));
    }
    text
}

/// What `--json` writes.
#[derive(Serialize)]
struct Report<'a> {
    task: String,
    address: Option<String>,
    membership: &'a Membership,
    source: &'static str,
    origin: &'a str,
    epoch: Option<&'a Epoch>,
    local: Option<Local>,
    notes: &'a [String],
    passed_over: Vec<Passed<'a>>,
}

/// What `--json` writes of a source that does not apply.
#[derive(Serialize)]
struct Passed<'a> {
    source: &'static str,
    why: &'a str,
}

fn json(resolved: &Resolved) -> String {
    let passed = resolved.passed_over.iter().map(|passed| Passed {
        source: passed.source.name(),
        why: &passed.why,
    });
    let report = Report {
        task: resolved.task.to_string(),
        address: resolved.address().map(ToString::to_string),
        membership: &resolved.membership,
        source: resolved.source.name(),
        origin: &resolved.origin,
        epoch: resolved.epoch.as_ref(),
        local: resolved.local,
        notes: &resolved.notes,
        passed_over: passed.collect(),
    };
    serde_json::to_string(&report).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}
