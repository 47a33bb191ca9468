//! `rendez call`: calls a function of a running worker, with arguments from the command line and from files.
//! `rendez rrefs`: what running workers know of remote references.
//!
//! Knows workers by the engine's tasks; each is visited as a guest, which is no worker of its group.

mod json;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use rendez_rpc::{Agent, Error, ReferenceInfo, Signature, Type};

use super::ask::QuestionArgs;
use super::error::CliError;
use super::exchange::tensor_of;
use super::npy;
use super::observer::{AskArgs, Observer, Target, Unanswered};
use super::report::lay_out;
use super::terminal::Terminal;
use super::units::{self, show_nanos};
use super::weights::{Weights, printable, printable_lines};
use rendez::engine::Engine;
use rendez::files::Output;
use rendez::ground::{Status, catalogue};
use rendez::memory::Tensor;

/// Examples of their use.
pub(super) const EXAMPLES: &str = "\
Examples, of a cluster that a file, a variable or a launcher describes, or of the address of a task:
  rendez call 127.0.0.1:29700                          the functions that the worker there has
  rendez call /job:ps/task:0 add 2 3                   prints 5: arguments are JSON
  rendez call /job:ps/task:0 greet hello               a text needs no quotes
  rendez call /job:ps/task:0 scale @x.npy 0.5 --out y.npy
  rendez call /job:ps/task:0 norm @model.safetensors:layer.weight
  rendez call /job:ps/task:0 sum '[[1,2],[3,4]]'       a tensor of f32; of another type:
  rendez call /job:ps/task:0 sum '{\"dtype\":\"i64\",\"shape\":[2],\"data\":[1,2]}'
  rendez rrefs --config cluster.toml                   every reference, who has the value, who has shares";

/// Memory for what is sent and what comes.
const ARENA_BYTES: usize = 64 << 20;
/// A tensor with more elements is not printed whole.
const SHOWN_MAX: usize = 4096;

/// Options of `call`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct CallArgs {
    /// Which to ask: a task of the cluster or of `[peers]`, or an address (host:port, unix:@name).
    #[arg(value_name = "TASK|ADDRESS")]
    pub whom: String,
    /// The function; without one, print all functions of the worker.
    pub function: Option<String>,
    /// Its arguments: JSON each, and for tensors also @FILE.npy or @FILE.safetensors:NAME.
    pub arguments: Vec<String>,
    /// The group of the worker, if it is in several.
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// How long the call may take; 0s for no limit.
    #[arg(long, value_parser = units::duration, default_value = "60s", value_name = "TIME")]
    pub timeout: Duration,
    /// Write the result, a tensor, into this file instead of printing it.
    #[arg(long, value_name = "FILE.npy")]
    pub out: Option<PathBuf>,
    /// The rest. Results are JSON in any case; with --json, lists of functions are too.
    #[command(flatten)]
    pub ask: AskArgs,
}

/// Options of `rrefs`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct RrefsArgs {
    /// The group of the workers, if they are in several.
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Whom and how.
    #[command(flatten)]
    pub question: QuestionArgs,
}

/// Runs `call`.
///
/// # Errors
/// What is wrong with settings, cluster or arguments; why the worker cannot be asked; how the call ended.
pub fn call(args: &CallArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    // Files first: what cannot be read or written is known before anything is called.
    let output = args.out.as_deref().map(opened).transpose()?;
    let whom = std::slice::from_ref(&args.whom);
    let observer = Observer::with_arena(&args.ask, whom, ARENA_BYTES)?;
    let Some(target) = observer.targets().first() else {
        return Err(CliError::failure(
            catalogue::RPC_WORKER,
            "there is no such task",
        ));
    };
    let (agent, worker) = visit(&observer, target, args.group.as_deref()).map_err(failed)?;
    let signatures = agent.signatures(&worker).map_err(failed)?;
    let Some(function) = &args.function else {
        for one in &signatures {
            match args.ask.json {
                true => terminal.line(
                    serde_json::json!({ "name": one.name(), "signature": one.to_string() }),
                )?,
                false => terminal.line(printable(&one.to_string()))?,
            }
        }
        return Ok(());
    };
    let signature = find(&signatures, function, &worker)?;
    if args.out.is_some() && *signature.result() != Type::Tensor {
        let signature = printable(&signature.to_string());
        let message =
            format!("the result of {signature} is no tensor: it cannot be written to a file");
        return Err(CliError::failure(catalogue::RPC_ARGUMENTS, message));
    }
    let packed = json::pack(signature, &args.arguments, &mut |text: &str| {
        load(observer.engine(), text)
    })?;
    let called = agent.call_by_signature(&worker, signature, packed, args.timeout);
    let mut result = called.map_err(failed)?;
    if let (Some(path), Some(output)) = (&args.out, output) {
        let tensor = result.tensor().map_err(json::unreadable)?;
        return npy::write(path, output, &tensor);
    }
    let value =
        json::unpack(signature.result(), &mut result, SHOWN_MAX).map_err(json::unreadable)?;
    terminal.line(value)?;
    Ok(())
}

/// Runs `rrefs`.
///
/// # Errors
/// As [`call`].
pub fn rrefs(args: &RrefsArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let ask = &args.question.ask;
    let observer = Observer::new(ask, &args.question.whom)?;
    let json = ask.json.then_some("at");
    let mut unanswered = Unanswered::default();
    let heading = [
        "reference",
        "owner",
        "state",
        "age",
        "handles",
        "messages",
        "share",
        "shares of others",
        "at",
    ];
    let mut lines = vec![heading.map(str::to_owned).to_vec()];
    let group = args.group.as_deref();
    let answers = observer.of_all(|target| listed(&observer, target, group));
    for (target, answer) in answers {
        let (worker, listed) = match answer {
            Ok(answer) => answer,
            Err(status) => {
                unanswered.tell(target, &status, json, terminal)?;
                continue;
            }
        };
        for one in listed {
            match ask.json {
                true => terminal.line(object(&target.name(), &worker, &one))?,
                false => lines.push(row(&worker, &one)),
            }
        }
    }
    if lines.len() > 1 {
        terminal.line(lay_out(&lines, &[0, 1, 2, 6, 7, 8], &[], terminal.width()))?;
    } else if !ask.json && unanswered.count() < observer.targets().len() {
        terminal.line("there are no references")?;
    }
    unanswered.end()
}

fn listed(
    observer: &Observer,
    target: &Target,
    group: Option<&str>,
) -> Result<(String, Vec<ReferenceInfo>), Status> {
    let told = |error: Error| error.status().clone();
    let (agent, worker) = visit(observer, target, group).map_err(told)?;
    let pending = agent.rpc_async_within(&worker, "rendez.references", (), observer.patience());
    let listed = pending.and_then(rendez_rpc::Pending::wait).map_err(told)?;
    Ok((worker, listed))
}

fn object(task: &str, worker: &str, one: &ReferenceInfo) -> serde_json::Value {
    let users: Vec<_> = one
        .users
        .iter()
        .map(|(fork, user)| serde_json::json!({ "share": fork, "worker": user }))
        .collect();
    serde_json::json!({
        "at": task, "worker": worker, "rref": one.rref, "owner": one.owner, "state": one.state,
        "age_ns": one.age_ns, "handles": one.handles, "messages": one.carriers, "share": one.fork, "users": users,
    })
}

fn row(worker: &str, one: &ReferenceInfo) -> Vec<String> {
    let users: Vec<String> = one
        .users
        .iter()
        .map(|(fork, user)| format!("{user} ({fork})"))
        .collect();
    vec![
        printable(&one.rref),
        printable(&one.owner),
        printable(&one.state),
        show_nanos(one.age_ns as f64),
        one.handles.to_string(),
        one.carriers.to_string(),
        printable(one.fork.as_deref().unwrap_or_default()),
        printable(&users.join(", ")),
        printable(worker),
    ]
}

/// A guest of the worker at `target`, and that worker's name.
fn visit(
    observer: &Observer,
    target: &Target,
    group: Option<&str>,
) -> Result<(Agent, String), Error> {
    let task = observer.meet(target).map_err(Error::local)?.task;
    let agent = Agent::visit(observer.engine(), &task, group, observer.patience())?;
    let me = agent.worker().id;
    let worker = agent.workers().into_iter().find(|one| one.id != me);
    let name = worker.map(|worker| worker.name).unwrap_or_default();
    Ok((agent, name))
}

fn find<'a>(
    signatures: &'a [Signature],
    name: &str,
    worker: &str,
) -> Result<&'a Signature, CliError> {
    signatures
        .iter()
        .find(|one| one.name() == name)
        .ok_or_else(|| {
            let names: Vec<&str> = signatures.iter().map(Signature::name).take(32).collect();
            let message = format!(
                "'{}' has no function '{name}'; it has {}",
                printable(worker),
                printable(&names.join(", "))
            );
            CliError::failure(catalogue::RPC_FUNCTION, message)
        })
}

/// How a call ended: its message, and what caused it.
fn failed(error: Error) -> CliError {
    let mut message = error.message().to_owned();
    for cause in error.causes() {
        message.push_str(&format!("\n  caused by: {cause}"));
    }
    if let Some(trace) = error.backtrace() {
        message.push_str(&format!("\n{}", trace.trim_end()));
    }
    CliError::failure(error.reason(), printable_lines(&message))
}

fn opened(path: &Path) -> Result<Output, CliError> {
    Output::open(path).map_err(|error| CliError::unwritable(path, &error))
}

/// The tensor of `FILE.npy` or `FILE.safetensors:NAME`.
fn load(engine: &Engine, text: &str) -> Result<Tensor, CliError> {
    const END: &str = ".safetensors";
    let (file, name) = match text.rfind(".safetensors:") {
        Some(at) => (&text[..at + END.len()], &text[at + END.len() + 1..]),
        None if text.ends_with(END) => (text, ""),
        None => return npy::read(Path::new(text)),
    };
    let weights = Weights::open(Path::new(file))?;
    let all = weights.entries();
    let entry = match all {
        [only] if name.is_empty() => Some(only),
        _ => all.iter().find(|entry| entry.name == name),
    };
    let entry = entry.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|entry| &*entry.name).take(32).collect();
        let message = format!(
            "'{file}' has no tensor '{name}': write @{file}:NAME; it has {}",
            names.join(", ")
        );
        CliError::failure(catalogue::RPC_ARGUMENTS, message)
    })?;
    tensor_of(engine, &weights, entry)
}

#[cfg(test)]
mod tests;
