//! The command line: subcommands, options, their help and their examples.
//!
//! Knows nothing of what the subcommands do; values are read by [`super::units`].

mod measured;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::bench::Case;
use super::exits::with_table;
use super::units::{self, Sizes};
use rendez::control::Address;

pub use measured::{From, Pattern, Poll, Transport};

/// Version and, where the build knew it, commit: `0.1.0 (84260ca)`.
pub(super) const VERSION: &str = match option_env!("RENDEZ_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

const EXAMPLES: &str = "\
Examples:
  rendez demo                                  hand a small file of weights from one process to another
  rendez demo model.safetensors                the same with a file of your own
  rendez bench --size 4,64,1KiB --baseline     half round trips beside the machine's own limit
  rendez train digits --ps 1 --workers 2       learn to read handwritten digits, over several processes
  rendez run graph.pb --fetch y                run a graph that TensorFlow wrote
  rendez config show --origin                  every setting, and where its value comes from
  rendez cluster show                          the cluster that a launcher or a file describes
  rendez doctor                                what this machine lacks, and what that costs
  rendez pending --config cluster.toml         what waits in a running cluster, and for which task
  rendez stat --config cluster.toml            where the time of its hand-overs goes
";

const DEMO_EXAMPLES: &str = "\
Examples:
  rendez demo
  rendez demo model.safetensors
  rendez demo --json | jq -s 'map(.latency_ns) | max'";

const SERVE_EXAMPLES: &str = "\
Examples:
  rendez serve --cluster 'ps=10.0.0.1:29700;worker=10.0.0.2:29700' --job ps --task 0 --cluster-secret-file secret
  rendez serve                                   under torchrun, Slurm, Kubernetes, mpirun, or with TF_CONFIG
  rendez serve --check --once                    hand a small file to every other task, check every byte, and end";

const DOCTOR_EXAMPLES: &str = "\
Examples:
  rendez doctor
  rendez doctor --json | jq '.findings[] | select(.state == \"poor\")'

The exit code is 0 unless something makes rendez unable to run here.";

const ASK_EXAMPLES: &str = "\
Examples, of a cluster that a file, a variable or a launcher describes:
  rendez ping --config cluster.toml              round trips to every task
  rendez ping 10.0.0.1:29700                     to the task that listens there, without a configuration
  rendez explain --config cluster.toml           the path between each two tasks, and why
  rendez pending --config cluster.toml           what waits, grouped by the task it waits for, oldest first
  rendez stat --config cluster.toml --watch=2s   counters, again and again
  rendez stat /job:a/task:0 --json | jq .stages  of one task, for programs";

const BENCH_EXAMPLES: &str = "\
Examples:
  rendez bench                                        half round trips between two processes
  rendez bench --size 8:64MiB:x4 --baseline           with the raw reference of the same run
  rendez bench rate --size 16 --duration 5s           how many small tensors a second
  rendez bench oneway --size 1KiB --rate 100k         open loop: latency counts from when a send was due
  rendez bench --transport loopback --from thread     within one process, from an application's thread
  rendez bench --transport tcp --baseline             the same by TCP, beside a bare socket
  rendez bench --listen 10.0.0.2:29800 --insecure     the far side on another machine, and from here:
  rendez bench rate --connect 10.0.0.2:29800 --size 16MiB --insecure
  rendez bench --size 64 --repeat 9                   with the spread of nine runs
  rendez bench --json --hdr-log run.hlog              for programs, with whole distributions
  rendez bench --html run.html                        one page with plots, for people
  rendez bench --json > before.json                   and after a change, with exit code 1 if it is slower:
  rendez bench --compare before.json --max-regress 5%
  rendez bench --baseline-only --size 4,1KiB,16MiB    the machine alone: the floor under any engine

Times are half round trips for pingpong, one way for oneway; rates are counted at the receiver.";

/// Hand tensors over by key, from the task that makes one to the task that needs it.
#[derive(Parser, Clone, PartialEq, Debug)]
#[command(name = "rendez", version = VERSION, after_help = with_table(EXAMPLES), max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = false)]
pub struct Cli {
    /// How logs are written to standard error; RENDEZ_LOG says how much.
    #[arg(long, value_enum, global = true, default_value_t = LogFormat::Text, value_name = "FORMAT",
        hide_short_help = true)]
    pub log: LogFormat,
    /// Show all columns of tables, even on a terminal that is too narrow for them.
    #[arg(long, global = true, hide_short_help = true)]
    pub wide: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Clone, PartialEq, Debug)]
pub enum Command {
    /// Hand every tensor of a file from one process to another, and check every byte.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(DemoArgs),
    /// Measure hand-overs: latency, rate and bandwidth by size.
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(BenchArgs),
    /// Print settings and where they come from, or the reference pages.
    #[command(subcommand)]
    Config(super::config::ConfigCommand),
    /// Print the cluster, and where its description comes from.
    #[command(subcommand)]
    Cluster(super::cluster::ClusterCommand),
    /// Check this machine: what was found, what is needed, how to fix it, and the cost of not fixing it.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(super::doctor::DoctorArgs),
    /// Make a cluster secret.
    #[command(subcommand)]
    Secret(super::secret::SecretCommand),
    /// Run as one task of a cluster, until told to stop.
    #[command(after_help = SERVE_EXAMPLES)]
    Serve(super::serve::ServeArgs),
    /// Start a whole cluster on this machine, a process for each task, from one file.
    #[command(after_help = super::up::EXAMPLES)]
    Up(super::up::UpArgs),
    /// Run a graph that TensorFlow wrote: feeds in, fetches out.
    #[command(after_help = super::run::EXAMPLES)]
    Run(super::run::RunArgs),
    /// Train a small network on parameter servers and workers.
    #[command(subcommand)]
    Train(super::train::TrainCommand),
    /// Hand files of tensors to another task, which pulls them.
    #[command(after_help = super::push::EXAMPLES)]
    Push(super::push::PushArgs),
    /// Take files of tensors from another task, which pushes them.
    #[command(after_help = super::push::EXAMPLES)]
    Pull(super::push::PullArgs),
    /// Call a function of a running worker.
    #[command(after_help = with_table(super::call::EXAMPLES))]
    Call(super::call::CallArgs),
    /// Print the remote references of running workers: who has the value, who has shares, since when.
    #[command(after_help = with_table(super::call::EXAMPLES))]
    Rrefs(super::call::RrefsArgs),
    /// Time round trips to running tasks.
    #[command(after_help = with_table(ASK_EXAMPLES))]
    Ping(super::ask::PingArgs),
    /// Connect tasks with each other, and print the path between them, why it was taken, and why a better one was not.
    #[command(after_help = with_table(ASK_EXAMPLES))]
    Explain(super::ask::QuestionArgs),
    /// Print everything that waits in a cluster, and which task it waits for.
    #[command(after_help = with_table(ASK_EXAMPLES))]
    Pending(super::ask::QuestionArgs),
    /// Print what tasks have counted, and where the time of their hand-overs goes.
    #[command(after_help = with_table(ASK_EXAMPLES))]
    Stat(super::stat::StatArgs),
    /// Print the last events of tasks, from their memory or from files, also as a timeline.
    #[command(after_help = with_table(super::dump::EXAMPLES))]
    Dump(super::dump::DumpArgs),
    /// Print completions for a shell.
    #[command(after_help = super::completions::EXAMPLES)]
    Completions(super::completions::CompletionsArgs),
    /// Write manual pages, one for each command.
    #[command(after_help = super::man::EXAMPLES)]
    Man(super::man::ManArgs),
    /// Make one page with plots of interval logs, side by side.
    #[command(after_help = super::page::EXAMPLES)]
    Report(ReportArgs),
    /// A worker that trains.
    #[command(name = super::train::worker::WORKER_COMMAND, hide = true)]
    TrainWorker(super::train::worker::WorkerArgs),
    /// The other side of a demonstration.
    #[command(name = super::demo::pair::PEER_COMMAND, hide = true)]
    DemoPeer(DemoPeerArgs),
    /// The other side of a raw reference.
    #[command(name = super::baseline::PEER_COMMAND, hide = true)]
    BaselinePeer(BaselinePeerArgs),
    /// The far side of a measurement.
    #[command(name = super::workload::PEER_COMMAND, hide = true)]
    BenchPeer(BenchPeerArgs),
}

/// Options of `demo`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct DemoArgs {
    /// A file of weights (safetensors); without one, a small real model built into the program.
    pub file: Option<PathBuf>,
    /// One JSON object a line for each tensor, then one for the whole.
    #[arg(long)]
    pub json: bool,
    /// Exactly so many rounds over the file, the first of which is not counted.
    #[arg(long, hide = true, value_parser = clap::value_parser!(u64).range(2..=1_000_000))]
    pub rounds: Option<u64>,
    /// Hand all over again until so much time has passed.
    #[arg(long, hide = true, value_parser = units::duration, default_value = "0s")]
    pub linger: Duration,
}

/// How logs are written.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Options of `report`.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct ReportArgs {
    /// Interval logs.
    #[arg(required = true, num_args = 1..=8)]
    pub logs: Vec<PathBuf>,
    /// Where to write the page.
    #[arg(long, value_name = "FILE")]
    pub html: PathBuf,
}

/// Options of the other side of a demonstration.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct DemoPeerArgs {
    /// The first side's process.
    #[arg(long)]
    pub parent: i32,
    /// Where it listens.
    #[arg(long)]
    pub address: String,
    /// The core to run on.
    #[arg(long)]
    pub core: usize,
    /// The first side runs there too.
    #[arg(long)]
    pub shared_core: bool,
    /// See [`DemoArgs::rounds`].
    #[arg(long)]
    pub rounds: Option<u64>,
    /// The file of weights.
    pub file: Option<PathBuf>,
}

/// Options of `bench`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct BenchArgs {
    /// What is measured.
    #[arg(value_enum, default_value_t = Pattern::Pingpong)]
    pub pattern: Pattern,
    /// Sizes: a list (4,64,1KiB) or a range from:to:xFactor (8:64MiB:x4), whose end is always measured.
    #[arg(long, value_name = "SIZES", value_parser = units::sizes, default_value = "4,64,1KiB,64KiB,1MiB,16MiB")]
    pub size: Sizes,
    /// Between two processes (shm, tcp, verbs), between two cores of one (loopback), or within one shard (local)
    /// [default: shm; tcp with --connect].
    #[arg(long, value_enum)]
    pub transport: Option<Transport>,
    /// Be the far side of measurements that come from other machines, one after another, until interrupted.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["pattern", "size", "transport", "from", "duration",
        "repeat", "warmup", "rate", "touch", "parked", "check", "hdr_log", "html", "compare", "baseline",
        "baseline_only", "json"])]
    pub listen: Option<Address>,
    /// Measure with the far side that listens there.
    #[arg(long, value_name = "HOST:PORT", conflicts_with_all = ["listen", "baseline", "baseline_only"])]
    pub connect: Option<Address>,
    /// With --listen or --connect: the file with the secret that both sides must prove.
    #[arg(long, value_name = "FILE")]
    pub cluster_secret_file: Option<PathBuf>,
    /// With --listen or --connect: go beyond this machine without a secret and without TLS.
    #[arg(long)]
    pub insecure: bool,
    /// Who sends and receives: a task within the shard, or a thread of the application.
    #[arg(long, value_enum, default_value_t = From::Shard)]
    pub from: From,
    /// How long each size is measured.
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration, default_value = "1s")]
    pub duration: Duration,
    /// Measure each size this many times, and show the median run and the spread of all.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// How long each size runs before it is measured.
    #[arg(long, value_name = "TIME", value_parser = units::duration, default_value = "200ms")]
    pub warmup: Duration,
    /// Open loop: sends a second, due at fixed times; latency counts from then (no coordinated omission).
    #[arg(long, value_name = "PER_SECOND", value_parser = units::rate)]
    pub rate: Option<f64>,
    /// How the shards wait for work; with --listen, how the far side's do. By default 'busy', and 'adaptive' with
    /// --from thread, so that threads turn the shards themselves.
    #[arg(long, value_enum)]
    pub poll: Option<Poll>,
    /// Write every byte in place before each send, and read every byte in place at the receiver.
    #[arg(long)]
    pub touch: bool,
    /// With --transport local: keep this many values parked, and receive them at random.
    #[arg(long, value_name = "COUNT")]
    pub parked: Option<u64>,
    /// Check every byte that arrives.
    #[arg(long)]
    pub check: bool,
    /// Write whole distributions to an `HdrHistogram` interval log (V2).
    #[arg(long, value_name = "FILE")]
    pub hdr_log: Option<PathBuf>,
    /// Write one page with plots of the whole distributions.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Compare the medians with those of an earlier run, kept by `--json > FILE`, with the same --from, --poll, --rate,
    /// --touch, --check, --parked, and --connect or none.
    #[arg(long, value_name = "FILE", conflicts_with = "baseline_only")]
    pub compare: Option<PathBuf>,
    /// With --compare: by how much a median may be worse; beyond it the exit code is 1.
    #[arg(long, value_name = "PERCENT", value_parser = compare_share, default_value = "5%", requires = "compare")]
    pub max_regress: f64,
    /// Measure the raw reference of this machine in the same run, beside every size.
    #[arg(long)]
    pub baseline: bool,
    /// Measure only the raw reference: what the machine allows without rendez.
    #[arg(long, conflicts_with_all = ["baseline", "pattern", "transport", "from", "warmup", "rate", "check",
        "repeat", "touch", "poll"])]
    pub baseline_only: bool,
    /// One JSON object a line for each size.
    #[arg(long)]
    pub json: bool,
}

impl BenchArgs {
    /// What carries it, given or implied.
    #[must_use]
    pub fn transport(&self) -> Transport {
        let implied = self.connect.as_ref().map(|_| Transport::Tcp);
        self.transport.or(implied).unwrap_or(Transport::Shm)
    }

    /// How shards wait, given or implied.
    #[must_use]
    pub fn poll(&self) -> Poll {
        self.poll.unwrap_or_else(|| Poll::implied(self.from))
    }
}

/// Options of the other side of a raw reference.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct BaselinePeerArgs {
    /// The measuring side's process.
    #[arg(long)]
    pub parent: i32,
    /// The core to run on.
    #[arg(long)]
    pub core: usize,
    /// The measuring side runs there too.
    #[arg(long)]
    pub shared_core: bool,
    /// Standard input is a connected TCP socket, and not shared memory.
    #[arg(long)]
    pub tcp: bool,
}

/// Options of the far side of a measurement.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct BenchPeerArgs {
    /// Where the near side's control plane listens.
    #[arg(long)]
    pub connect: String,
    /// The core to run on.
    #[arg(long)]
    pub core: usize,
    /// The near side runs there too.
    #[arg(long)]
    pub shared_core: bool,
    /// As in `bench`.
    #[arg(value_enum, long)]
    pub pattern: Pattern,
    /// As in `bench`.
    #[arg(value_enum, long)]
    pub transport: Transport,
    /// As in `bench`.
    #[arg(value_enum, long)]
    pub from: From,
    /// As in `bench`.
    #[arg(value_enum, long)]
    pub poll: Poll,
    /// Bytes of each tensor.
    #[arg(long)]
    pub bytes: u64,
    /// Microseconds.
    #[arg(long)]
    pub warmup: u64,
    /// Microseconds.
    #[arg(long)]
    pub duration: u64,
    /// As in `bench`.
    #[arg(long)]
    pub rate: Option<f64>,
    /// As in `bench`.
    #[arg(long)]
    pub check: bool,
    /// As in `bench`.
    #[arg(long)]
    pub touch: bool,
}

impl BenchPeerArgs {
    /// What the far side of `case` is told.
    #[must_use]
    pub fn of(case: &Case, connect: String, core: usize, shared_core: bool) -> Self {
        Self {
            connect,
            core,
            shared_core,
            pattern: case.pattern,
            transport: case.transport,
            from: case.from,
            poll: case.poll.into(),
            bytes: case.bytes,
            warmup: micros(case.warmup),
            duration: micros(case.duration),
            rate: case.rate,
            check: case.check,
            touch: case.touch,
        }
    }

    /// The same as arguments of a command.
    #[must_use]
    pub fn to_arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut option = |name: &str, value: String| arguments.extend([format!("--{name}"), value]);
        option("connect", self.connect.clone());
        option("core", self.core.to_string());
        option("pattern", self.pattern.name().to_owned());
        option("transport", self.transport.name().to_owned());
        option("from", self.from.name().to_owned());
        option("poll", self.poll.name().to_owned());
        option("bytes", self.bytes.to_string());
        option("warmup", self.warmup.to_string());
        option("duration", self.duration.to_string());
        let rate = self.rate.iter();
        rate.for_each(|rate| option("rate", rate.to_string()));
        for (name, is_on) in [
            ("shared-core", self.shared_core),
            ("check", self.check),
            ("touch", self.touch),
        ] {
            if is_on {
                arguments.push(format!("--{name}"));
            }
        }
        arguments
    }

    /// The case, seen from the far side.
    #[must_use]
    pub fn case(&self) -> Case {
        Case {
            pattern: self.pattern,
            transport: self.transport,
            from: self.from,
            bytes: self.bytes,
            warmup: Duration::from_micros(self.warmup),
            duration: Duration::from_micros(self.duration),
            rate: self.rate,
            check: self.check,
            touch: self.touch,
            poll: self.poll.into(),
            parked: None,
        }
    }
}

/// Reads `5%` as 5.
fn compare_share(text: &str) -> Result<f64, String> {
    let text = text.trim();
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err("write a share in percent, as 5%".into()),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
