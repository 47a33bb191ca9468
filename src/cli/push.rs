//! `rendez push` and `rendez pull`: a file's tensors from one task of a cluster to another, in either order.
//!
//! Each of the two is a task while it runs. Knows servers, files and tables.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use safetensors::tensor::TensorView;

use super::error::CliError;
use super::exchange::{self, Cargo, Taken};
use super::report::lay_out;
use super::serve;
use super::settings::SettingArgs;
use super::terminal::Terminal;
use super::units::{self, show_bytes, show_nanos};
use super::weights::Weights;
use crate::ground::{Status, TaskName};
use crate::shard::Path;

/// Options of `push`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct PushArgs {
    /// A file of weights (safetensors); without one, a small real model that the program carries.
    pub file: Option<PathBuf>,
    /// Who takes it: a task that runs `rendez pull`, now or later.
    #[arg(long, value_name = "TASK")]
    pub to: String,
    /// How long the other task may take; instead of connect_timeout.
    #[arg(long, value_parser = units::positive_duration, default_value = "60s", value_name = "TIME")]
    pub patience: Duration,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// Options of `pull`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct PullArgs {
    /// Who has it: a task that runs `rendez push`, now or later.
    #[arg(long, value_name = "TASK")]
    pub from: String,
    /// Write the tensors into this file (safetensors).
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// How long the other task may take; instead of connect_timeout.
    #[arg(long, value_parser = units::positive_duration, default_value = "60s", value_name = "TIME")]
    pub patience: Duration,
    /// One JSON object a line for each tensor.
    #[arg(long)]
    pub json: bool,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// Runs `push`.
///
/// # Errors
/// What is wrong with file, settings or cluster; `Unavailable` or `DeadlineExceeded` if nobody takes it.
pub fn push(args: &PushArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let to = TaskName::parse(&args.to).map_err(Status::from)?;
    let weights = match &args.file {
        Some(file) => Weights::open(file)?,
        None => Weights::built_in()?,
    };
    let (server, _) = serve::start(&args.settings, args.patience)?;
    let engine = server.engine()?;
    let cargo = Cargo::load(&engine, &weights)?;
    let began = Instant::now();
    let pushed = cargo
        .send(&engine, &to, args.patience)
        .and_then(|delivery| delivery.wait());
    let took = began.elapsed();
    let way = way_to(&engine.connected(), &to);
    server.stop(None);
    pushed.map_err(|status| engine.with_cause(&to, status))?;
    terminal.line(format!(
        "{}: {} tensors, {}, taken by {to} over {way} in {:.1} ms",
        weights.name(),
        cargo.count(),
        show_bytes(cargo.bytes()),
        took.as_secs_f64() * 1e3
    ))?;
    Ok(())
}

/// Runs `pull`.
///
/// # Errors
/// As [`push`]; `DATA_MISMATCH` if a tensor is not what was sent.
pub fn pull(args: &PullArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let from = TaskName::parse(&args.from).map_err(Status::from)?;
    let (server, _) = serve::start(&args.settings, args.patience)?;
    let engine = server.engine()?;
    let mut all = Vec::new();
    let taken = exchange::take(&engine, &from, args.patience, &mut |taken| {
        all.push(taken);
        Ok(())
    });
    let way = way_to(&engine.connected(), &from);
    let written = taken.and_then(|file| {
        if let Some(out) = &args.out {
            write(out, &all)?;
        }
        Ok(file)
    });
    if written.is_ok() {
        show(&all, args.json, terminal)?;
    }
    // The last word, that all was taken, leaves while it stops.
    let bytes: u64 = all
        .iter()
        .map(|taken| taken.received.tensor.bytes().len() as u64)
        .sum();
    let count = all.len();
    drop(all);
    server.stop(None);
    let file = written?;
    if !args.json {
        terminal.line(format!(
            "\n{file} from {from} over {way}: {count} tensors, {}, every byte right",
            show_bytes(bytes)
        ))?;
    }
    Ok(())
}

fn way_to(connected: &[crate::engine::Connected], task: &TaskName) -> &'static str {
    let peer = connected.iter().find(|peer| peer.task == *task);
    peer.map_or("no path", |peer| peer.path.name())
}

fn show(all: &[Taken], json: bool, terminal: &mut Terminal) -> Result<(), CliError> {
    let mut lines = vec![
        ["tensor", "dtype", "shape", "bytes", "path", "time"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for taken in all {
        let tensor = &taken.received.tensor;
        let path = match taken.received.path {
            Path::Local => "local",
            Path::Inline => "inline",
            Path::Lease => "lease",
            Path::Copy => "copy",
        };
        let dtype = tensor.meta().dtype.name();
        let shape: Vec<u64> = tensor.meta().shape.dims().collect();
        let nanos = taken.took.as_nanos() as f64;
        if json {
            let object = serde_json::json!({
                "tensor": taken.name, "dtype": dtype, "shape": shape,
                "bytes": tensor.bytes().len(), "path": path, "time_ns": taken.took.as_nanos() as u64,
            });
            terminal.line(object)?;
            continue;
        }
        let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
        lines.push(vec![
            taken.name.clone(),
            dtype.into(),
            format!("[{}]", dims.join(",")),
            show_bytes(tensor.bytes().len() as u64),
            path.into(),
            show_nanos(nanos),
        ]);
    }
    if !json {
        terminal.line(lay_out(&lines, &[0, 1, 2, 4], &[2, 1], terminal.width()))?;
    }
    Ok(())
}

fn write(out: &std::path::Path, all: &[Taken]) -> Result<(), CliError> {
    let failed = |why: String| {
        let message = format!("cannot write {}: {why}", out.display());
        CliError::failure("FILE_UNWRITABLE", message)
    };
    let mut views = Vec::new();
    for taken in all {
        let tensor = &taken.received.tensor;
        let dtype = exchange::safetensors_dtype(tensor.meta().dtype).ok_or_else(|| {
            failed(format!(
                "safetensors have no data type {} ({})",
                tensor.meta().dtype,
                taken.name
            ))
        })?;
        let shape = tensor.meta().shape;
        let shape = shape.dims().map(|dim| dim as usize).collect();
        let view = TensorView::new(dtype, shape, tensor.bytes())
            .map_err(|error| failed(error.to_string()))?;
        views.push((taken.name.clone(), view));
    }
    safetensors::serialize_to_file(views, None, out).map_err(|error| failed(error.to_string()))
}
