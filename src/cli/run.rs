//! `rendez run`: a graph that TensorFlow or another program wrote, run from the command line: feeds in, fetches out.
//!
//! Knows sessions, files and tables; nothing of how a graph is run.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use self::show::{each, values};
use super::bounded::read_bounded;
use super::error::CliError;
use super::histogram::Recorder;
use super::npy;
use super::report::lay_out;
use super::serve;
use super::settings::SettingArgs;
use super::terminal::Terminal;
use super::units::{self, show_nanos, show_rate};
use rendez::engine::{Config, Origin, Setting};
use rendez::files::Output;
use rendez::ground::limits::GRAPH_BYTES_MAX;
use rendez::ground::traceparent::NoTraceparent;
use rendez::ground::{Status, Traceparent, catalogue};
use rendez::memory::Tensor;
use rendez_dataflow::graph::decode;
use rendez_dataflow::server::{Server, Session, StepOptions};
use rendez_proto::tensorflow::{ConfigProto, GraphDef};

pub(crate) mod show;

#[cfg(test)]
mod tests;

/// How many values of a tensor a table shows.
const SHOWN: usize = 8;
/// The flags that make this process a task of a cluster.
const CLUSTER: [&str; 5] = ["cluster", "task", "root", "rank", "world_size"];

/// Examples of its use.
pub(super) const EXAMPLES: &str = "\
Examples:
  rendez run graph.pb --feed x=input.npy --fetch y
  rendez run graph.pbtxt --init init --target train --repeat 100 --fetch loss
  rendez run graph.pb --feed x=input.npy --out y=output.npy
  rendez run graph.pb --fetch y --on 127.0.0.1:29701     a task that already runs is the master
  rendez run graph.pb --fetch y --config cluster.toml --job worker --task 0
  rendez run graph.pb --fetch y --traceparent 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01

Names are of outputs, as node or node:1; nodes run where the graph says, or anywhere if it does not say.";

/// Options of `run`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct RunArgs {
    /// The graph: a GraphDef in the binary format (.pb) or as text (.pbtxt).
    pub graph: PathBuf,
    /// Feed an output of a node with an array.
    #[arg(long = "feed", value_name = "NAME=FILE.npy", value_parser = named)]
    pub feeds: Vec<(String, PathBuf)>,
    /// Fetch an output of a node, and print it.
    #[arg(long = "fetch", value_name = "NAME")]
    pub fetches: Vec<String>,
    /// Run a node, and fetch nothing of it.
    #[arg(long = "target", value_name = "NAME")]
    pub targets: Vec<String>,
    /// Run a node first, in a step of its own, such as one that gives variables their first values.
    #[arg(long = "init", value_name = "NAME")]
    pub inits: Vec<String>,
    /// Fetch an output of a node, and write it into a file.
    #[arg(long = "out", value_name = "NAME=FILE.npy", value_parser = named)]
    pub outs: Vec<(String, PathBuf)>,
    /// The running task to use as the master; without it, and without a cluster, this process alone, whatever
    /// devices the graph asks for.
    #[arg(long, value_name = "ADDRESS")]
    pub on: Option<String>,
    /// The folder below which the graph may read and write files (SaveV2, RestoreV2); without it the one that
    /// files_root names, or otherwise the working folder.
    #[arg(long, value_name = "FOLDER", conflicts_with = "on")]
    pub files: Option<PathBuf>,
    /// Run the step this many times, and print how long that took; the values fetched are those of the last.
    #[arg(long, value_name = "COUNT", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub repeat: u64,
    /// How long a step may take, and how long other tasks may take to appear.
    #[arg(long, value_parser = units::positive_duration, default_value = "60s", value_name = "TIME")]
    pub patience: Duration,
    /// The trace that the steps belong to, as W3C Trace Context writes it; without it, what TRACEPARENT holds.
    #[arg(long, value_name = "00-TRACE-PARENT-FLAGS", value_parser = traceparent)]
    pub traceparent: Option<Traceparent>,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// The settings. With --cluster, --root or --config this process is a task of that cluster, and the session's
    /// master.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// `NAME=FILE`; names have no equals sign.
fn named(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, file)) if !name.is_empty() && !file.is_empty() => {
            Ok((name.to_owned(), file.into()))
        }
        _ => Err("write the name, '=' and the file: x:0=values.npy".to_owned()),
    }
}

fn traceparent(text: &str) -> Result<Traceparent, String> {
    text.parse()
        .map_err(|error: NoTraceparent| error.to_string())
}

/// The trace of the environment, if it holds one. An invalid one is ignored: the variable is not ours alone.
fn inherited(value: Option<OsString>) -> Option<Traceparent> {
    let value = value?;
    let trace = value.to_str().unwrap_or_default().parse();
    if let Err(error) = &trace {
        let error: &NoTraceparent = error;
        tracing::warn!(%error, "TRACEPARENT is not a W3C traceparent, and is ignored");
    }
    trace.ok()
}

/// Runs it.
///
/// # Errors
/// What is wrong with the graph, a file, the settings or the cluster; why the step failed.
pub fn run(args: &RunArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    if args.fetches.is_empty() && args.targets.is_empty() && args.outs.is_empty() {
        let message =
            "there is nothing to run: name what to --fetch, write --out, or run as a --target";
        return Err(CliError::usage("USAGE", message));
    }
    // Before there is any work that could be for nothing.
    let mut outputs = Vec::new();
    for (_, file) in &args.outs {
        let output = Output::open(file).map_err(|error| CliError::unwritable(file, &error))?;
        if outputs.iter().any(|other| output.is_one_with(other)) {
            let file = file.display();
            let message = format!("'{file}' is the --out of two fetches; give each its own");
            return Err(CliError::usage("USAGE", message));
        }
        outputs.push(output);
    }
    let mut graph = read_graph(&args.graph)?;
    let mut feeds = Vec::new();
    for (name, file) in &args.feeds {
        feeds.push((name.as_str(), npy::read(file)?));
    }
    let (session, server) = session(args, &mut graph)?;
    let outcome = steps(args, &session, graph, &feeds, outputs, terminal);
    // What it failed with is told; a session that cannot be closed is gone.
    let _ = session.close();
    drop(session);
    if let Some(server) = server {
        server.stop(None);
    }
    outcome
}

fn read_graph(path: &Path) -> Result<GraphDef, CliError> {
    let unreadable = |what: &dyn std::fmt::Display| CliError::unreadable(path, what);
    let found = std::fs::metadata(path).map_err(|error| unreadable(&error))?;
    if !found.is_file() {
        return Err(unreadable(
            &"it is no regular file; name a .pb or .pbtxt file",
        ));
    }
    let bytes = read_bounded(path, GRAPH_BYTES_MAX as u64)?.ok_or_else(|| {
        let (len, most) = (found.len(), GRAPH_BYTES_MAX);
        unreadable(&format!(
            "it has {len} bytes, over {most} (GRAPH_BYTES_MAX)"
        ))
    })?;
    let graph = decode(&bytes).map_err(|status| {
        let message = format!("'{}': {}", path.display(), status.message());
        CliError::failure(status.reason(), message)
    })?;
    // As an empty file is.
    if graph.node.is_empty() {
        let message = format!(
            "'{}' is no graph that can run: it has no nodes",
            path.display()
        );
        return Err(CliError::failure(catalogue::GRAPH_MALFORMED, message));
    }
    Ok(graph)
}

/// The session, and the server whose master it has where that is in this process.
fn session(args: &RunArgs, graph: &mut GraphDef) -> Result<(Session, Option<Server>), CliError> {
    let (session, server) = begun(args, graph)?;
    let timeout = args.patience.as_millis().max(1);
    let config = ConfigProto {
        operation_timeout_in_ms: i64::try_from(timeout).unwrap_or(i64::MAX),
        ..ConfigProto::default()
    };
    Ok((session.configured(config)?, server))
}

fn begun(args: &RunArgs, graph: &mut GraphDef) -> Result<(Session, Option<Server>), CliError> {
    if let Some(target) = &args.on {
        let mut config = args.settings.load()?.config;
        config.connect_timeout = args.patience;
        return Ok((Session::connect_with(target, config)?, None));
    }
    let settings = args.settings.with_files(args.files.as_deref())?;
    let flags = &args.settings.flags;
    if args.settings.file.is_some() || flags.iter().any(|(key, _)| CLUSTER.contains(key)) {
        let (server, _) = serve::start(&settings, args.patience)?;
        return Ok((Session::on(&server)?, Some(server)));
    }
    // There is one device, and nothing else that the graph could mean.
    for node in &mut graph.node {
        node.device.clear();
    }
    Ok((Session::local_with(alone(&settings)?)?, None))
}

/// The settings for this process alone: it has no peers, and mostly needs no more than a core.
fn alone(settings: &SettingArgs) -> Result<Config, CliError> {
    let mut config = settings.load()?.config;
    if Setting::find("shards").is_some_and(|shards| config.origin(shards) == Origin::Default) {
        (config.shards, config.share_cores) = (1, true);
    }
    (config.task, config.control) = ("/job:localhost/task:0".to_owned(), false);
    config.listen = None;
    config.peers.clear();
    // A task of this machine may have these settings, the address, and the folder.
    (config.metrics, config.recorder_dir) = (None, None);
    Ok(config)
}

fn steps(
    args: &RunArgs,
    session: &Session,
    graph: GraphDef,
    feeds: &[(&str, Tensor)],
    outputs: Vec<Output>,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    session.create(graph)?;
    let inherited = || inherited(std::env::var_os("TRACEPARENT"));
    let options = StepOptions {
        patience: Some(args.patience),
        traceparent: args.traceparent.or_else(inherited),
    };
    if !args.inits.is_empty() {
        let inits: Vec<&str> = args.inits.iter().map(String::as_str).collect();
        session.run_with(&options, &[], &[], &inits)?;
    }
    let written = args.outs.iter().map(|(name, _)| name);
    let fetches: Vec<&str> = args
        .fetches
        .iter()
        .chain(written)
        .map(String::as_str)
        .collect();
    let targets: Vec<&str> = args.targets.iter().map(String::as_str).collect();
    let (found, times) = if args.repeat == 1 {
        (session.run_with(&options, feeds, &fetches, &targets)?, None)
    } else {
        repeated(args, &options, session, feeds, &fetches, &targets)?
    };
    let (printed, kept) = found.split_at(args.fetches.len().min(found.len()));
    for (((name, file), output), tensor) in args.outs.iter().zip(outputs).zip(kept) {
        npy::write(file, output, tensor)?;
        if !args.json {
            let (dtype, shape) = (tensor.dtype(), tensor.shape());
            terminal.line(format!("{name} {dtype} {shape}: {}", file.display()))?;
        }
    }
    print(args, printed, terminal)?;
    if let Some(times) = times {
        tell(args, &times, terminal)?;
    }
    Ok(())
}

/// How long steps took, one by one and together.
struct Times {
    each: Recorder,
    all: Duration,
}

fn repeated(
    args: &RunArgs,
    options: &StepOptions,
    session: &Session,
    feeds: &[(&str, Tensor)],
    fetches: &[&str],
    targets: &[&str],
) -> Result<(Vec<Tensor>, Option<Times>), Status> {
    let names: Vec<&str> = feeds.iter().map(|(name, _)| *name).collect();
    let values: Vec<Tensor> = feeds.iter().map(|(_, tensor)| tensor.clone()).collect();
    let step = session.callable(&names, fetches, targets)?;
    let mut each = Recorder::nanos();
    let mut found = vec![];
    let began = Instant::now();
    for _ in 0..args.repeat {
        let before = Instant::now();
        found = step.run_with(options, &values)?;
        each.record(before.elapsed().as_nanos() as u64);
    }
    let all = began.elapsed();
    Ok((found, Some(Times { each, all })))
}

fn print(args: &RunArgs, found: &[Tensor], terminal: &mut Terminal) -> Result<(), CliError> {
    if found.is_empty() {
        return Ok(());
    }
    let mut lines = vec![
        ["fetch", "dtype", "shape", "values"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for (name, tensor) in args.fetches.iter().zip(found) {
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        if args.json {
            // What cannot be shown is told before anything is.
            values(tensor, 0)?;
            terminal.line(Fetched { name, tensor })?;
            continue;
        }
        let mut text: Vec<String> = values(tensor, SHOWN)?
            .iter()
            .map(ToString::to_string)
            .collect();
        if shape.elements() > SHOWN as u64 {
            text.push("…".to_owned());
        }
        lines.push(vec![
            name.clone(),
            dtype.name().to_owned(),
            shape.to_string(),
            text.join(" "),
        ]);
    }
    if !args.json {
        terminal.line(lay_out(&lines, &[0, 1, 2, 3], &[], terminal.width()))?;
    }
    Ok(())
}

/// A tensor as a JSON object, which is written value by value: as text it is many times as long.
struct Fetched<'a> {
    name: &'a str,
    tensor: &'a Tensor,
}

impl fmt::Display for Fetched<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dtype, shape) = (self.tensor.dtype().name(), self.tensor.shape());
        let dims: Vec<u64> = shape.dims().collect();
        let (name, dims) = (serde_json::json!(self.name), serde_json::json!(dims));
        write!(
            f,
            r#"{{"dtype":"{dtype}","fetch":{name},"shape":{dims},"values":["#
        )?;
        let mut comma = "";
        let written = each(self.tensor, usize::MAX, &mut |value| {
            write!(f, "{comma}{}", value.into_json())?;
            comma = ",";
            Ok(())
        });
        written.map_err(|_| fmt::Error)??;
        f.write_str("]}")
    }
}

fn tell(args: &RunArgs, times: &Times, terminal: &mut Terminal) -> Result<(), CliError> {
    let Some(each) = times.each.summary() else {
        return Ok(());
    };
    let rate = args.repeat as f64 / times.all.as_secs_f64().max(1e-9);
    if args.json {
        terminal.line(
            serde_json::json!({ "steps": args.repeat, "steps_per_s": rate, "step_ns": each }),
        )?;
    } else {
        terminal.line(format!(
            "{} steps, {}: median {}, 99 % within {}, longest {}",
            args.repeat,
            show_rate(rate),
            show_nanos(each.p50),
            show_nanos(each.p99),
            show_nanos(each.max)
        ))?;
    }
    Ok(())
}
