//! `rendez ping` and `rendez explain`: questions to running tasks, and who asks these and others.
//!
//! Who asks is an observer: a task of no cluster, that proves the secret like any other and hands nothing over. Knows
//! services and tables.

use std::time::{Duration, Instant};

use clap::Args;
use prost::Message;
use serde::Serialize;

use super::error::CliError;
use super::report::lay_out;
use super::settings::SettingArgs;
use super::terminal::Terminal;
use super::units::{self, show_bytes, show_nanos};
use crate::cluster::{ClusterSpec, Membership, resolve};
use crate::control::read_answer;
use crate::engine::{Engine, OBSERVER_JOB, services};
use crate::ground::{Code, Status, TaskName, catalogue};
use crate::proto::services::{ConnectedReply, ConnectedRequest};

/// Options that all questions have.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct AskArgs {
    /// How long a task may take to answer.
    #[arg(long, value_parser = units::positive_duration, default_value = "5s", value_name = "TIME")]
    pub patience: Duration,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// Options of `ping`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct PingArgs {
    /// Whom; everybody in the cluster without it.
    #[arg(id = "whom", value_name = "TASK")]
    pub task: Option<String>,
    /// How often.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub count: u32,
    /// The rest.
    #[command(flatten)]
    pub ask: AskArgs,
}

/// Options of `explain`, `pending` and `stat`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct QuestionArgs {
    /// Whom to ask; everybody in the cluster without it.
    #[arg(id = "whom", value_name = "TASK")]
    pub task: Option<String>,
    /// The rest.
    #[command(flatten)]
    pub ask: AskArgs,
}

/// An engine that looks and hands nothing over, and whom it asks.
pub(super) struct Observer {
    engine: Engine,
    tasks: Vec<TaskName>,
    patience: Duration,
}

impl Observer {
    pub(super) fn new(args: &AskArgs, task: Option<&str>) -> Result<Self, CliError> {
        let loaded = args.settings.load()?;
        let mut surroundings = loaded.surroundings()?;
        // Which task of the cluster this process would be is beside the point: it is none.
        let spec = match resolve(&surroundings) {
            Ok(resolved) => known(resolved.membership)?,
            Err(status) if status.reason() == catalogue::CLUSTER_SPEC => {
                surroundings.flags.task = first(&surroundings)?;
                known(resolve(&surroundings)?.membership)?
            }
            Err(status) => return Err(status.into()),
        };
        let wanted = task.map(TaskName::parse).transpose();
        let wanted = wanted.map_err(Status::from)?;
        if let Some(wanted) = &wanted {
            spec.find(wanted.job(), wanted.task())?;
        }
        let name = format!("/job:{OBSERVER_JOB}/task:{}", std::process::id());
        let mut config = loaded.config;
        config.task = name;
        config.listen = None;
        (config.shards, config.share_cores) = (1, true);
        // Who measures says how to wait; who only asks sleeps.
        if !args.settings.flags.iter().any(|(key, _)| *key == "poll") {
            config.poll = crate::shard::run::PollPolicy::Park;
        }
        config.arena.segment_bytes = 1 << 20;
        config.closed = false;
        let engine = Engine::start(config)?;
        let mut tasks = Vec::new();
        for (task, address) in spec.tasks() {
            if wanted.as_ref().is_none_or(|wanted| *wanted == task) {
                engine.add_peer(task.clone(), crate::server::dialled(address));
                tasks.push(task);
            }
        }
        for task in &tasks {
            engine.connect(task);
        }
        Ok(Self {
            engine,
            tasks,
            patience: args.patience,
        })
    }

    /// Whom it asks.
    pub(super) fn tasks(&self) -> &[TaskName] {
        &self.tasks
    }

    pub(super) fn ask<T: Message + Default>(
        &self,
        task: &TaskName,
        method: u32,
        question: &impl Message,
    ) -> Result<T, Status> {
        let question = question.encode_to_vec();
        let answer = self.engine.call(task, method, &question, self.patience)?;
        read_answer(task, &answer)
    }

    /// Asks everybody at once, so that those who are silent keep nobody waiting twice.
    pub(super) fn ask_all<T: Message + Default>(
        &self,
        method: u32,
        question: &impl Message,
    ) -> Vec<(&TaskName, Result<T, Status>)> {
        let mut answers = Vec::with_capacity(self.tasks.len());
        for tasks in self.tasks.chunks(ASKED_AT_ONCE) {
            std::thread::scope(|scope| {
                let asked: Vec<_> = tasks
                    .iter()
                    .map(|task| (task, scope.spawn(|| self.ask(task, method, question))))
                    .collect();
                for (task, answer) in asked {
                    let lost = || Err(Status::of(catalogue::SHUTDOWN, "Shutdown"));
                    answers.push((task, answer.join().unwrap_or_else(|_| lost())));
                }
            });
        }
        answers
    }
}

/// At most so many tasks are asked at once, each on a thread of its own.
const ASKED_AT_ONCE: usize = 64;

/// The first task that any source's cluster has, for sources that leave open which one this is.
fn first(surroundings: &crate::cluster::Surroundings) -> Result<Option<TaskName>, Status> {
    let text = surroundings.file.as_ref().map(|file| file.text.as_str());
    let given = surroundings.flags.cluster.clone();
    let from_file = |text: &str| {
        let table: toml::Table = text.parse().ok()?;
        ClusterSpec::from_toml(table.get("cluster")?.as_table()?).ok()
    };
    let spec = given.or_else(|| text.and_then(from_file));
    Ok(spec.and_then(|spec| spec.tasks().next().map(|(task, _)| task)))
}

fn known(membership: Membership) -> Result<ClusterSpec, Status> {
    match membership {
        Membership::Known(spec) => Ok(spec),
        Membership::Rooted { root, .. } => {
            let message = format!(
                "only the root {root} of this cluster is known: name its tasks with --cluster"
            );
            Err(Status::new(
                Code::FailedPrecondition,
                catalogue::CLUSTER_SPEC,
                message,
            ))
        }
    }
}

/// Runs `ping`: round trips of 64 bytes over the control plane.
///
/// # Errors
/// What is wrong with settings or cluster; that a task does not answer.
pub fn ping(args: &PingArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let observer = Observer::new(&args.ask, args.task.as_deref())?;
    let mut lines = vec![
        ["task", "path", "connect", "least", "median", "most"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let mut silent = None;
    for task in &observer.tasks {
        match round_trips(&observer, task, args.count) {
            Ok((first, mut times)) => {
                times.sort_unstable();
                let path = observer
                    .engine
                    .connected()
                    .iter()
                    .find(|peer| peer.task == *task)
                    .map_or("", |peer| peer.path.name());
                let at = |index: usize| times[index.min(times.len() - 1)].as_nanos() as u64;
                if args.ask.json {
                    let object = serde_json::json!({
                        "task": task.to_string(), "path": path, "connect_ns": first.as_nanos() as u64,
                        "rtt_ns": { "min": at(0), "p50": at(times.len() / 2), "max": at(times.len()) },
                        "count": times.len(),
                    });
                    terminal.line(object)?;
                    continue;
                }
                let mut line = vec![task.to_string(), path.into()];
                line.push(show_nanos(first.as_nanos() as f64));
                line.extend(
                    [0, times.len() / 2, times.len()].map(|index| show_nanos(at(index) as f64)),
                );
                lines.push(line);
            }
            Err(status) => {
                let status = super::ask::unanswered(task, &status);
                if !args.ask.json {
                    lines.push(vec![task.to_string(), status.message().to_owned()]);
                }
                silent = Some(status);
            }
        }
    }
    if !args.ask.json {
        for line in &mut lines {
            line.resize(6, String::new());
        }
        terminal.line(lay_out(&lines, &[0, 1], &[], terminal.width()))?;
    }
    silent.map_or(Ok(()), |status| Err(status.into()))
}

fn round_trips(
    observer: &Observer,
    task: &TaskName,
    count: u32,
) -> Result<(Duration, Vec<Duration>), Status> {
    let payload = [0x5a; 64];
    let trip = || {
        let began = Instant::now();
        let answer = observer
            .engine
            .call(task, services::ECHO, &payload, observer.patience)?;
        if answer == payload {
            Ok(began.elapsed())
        } else {
            let message = "other bytes came back than were sent";
            Err(Status::of(catalogue::DATA_MISMATCH, message))
        }
    };
    let first = trip()?;
    Ok((first, (0..count).map(|_| trip()).collect::<Result<_, _>>()?))
}

/// Runs `explain`: for each pair of tasks and size class the path, why, and why no better one.
///
/// # Errors
/// As [`ping`].
pub fn explain(args: &QuestionArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let observer = Observer::new(&args.ask, args.task.as_deref())?;
    let mut lines = vec![
        ["from", "to", "path", "small", "large", "why", "not"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let mut silent = None;
    for task in &observer.tasks {
        let question = ConnectedRequest {
            probe_ms: observer.patience.as_millis() as u64 / 2,
        };
        let reply: Result<ConnectedReply, Status> =
            observer.ask(task, services::CONNECTED, &question);
        match reply {
            Ok(reply) => explained(task, &reply, args.ask.json, &mut lines, terminal)?,
            Err(status) => {
                let status = unanswered(task, &status);
                lines.push(vec![task.to_string(), status.message().to_owned()]);
                silent = Some(status);
            }
        }
    }
    if !args.ask.json {
        for line in &mut lines {
            line.resize(7, String::new());
        }
        terminal.line(lay_out(
            &lines,
            &[0, 1, 2, 3, 4, 5, 6],
            &[],
            terminal.width(),
        ))?;
    }
    silent.map_or(Ok(()), |status| Err(status.into()))
}

#[derive(Serialize)]
struct Explained<'a> {
    from: String,
    to: &'a str,
    path: &'a str,
    /// Bytes, with the dimensions, up to which a value is small.
    small_max: u64,
    small: &'a str,
    large: &'a str,
    why: &'a str,
    not: &'a str,
    /// How many connections came about for want of a better path that was tried.
    fallbacks: u64,
}

fn explained(
    task: &TaskName,
    reply: &ConnectedReply,
    json: bool,
    lines: &mut Vec<Vec<String>>,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    for peer in &reply.connected {
        let not_better = format!("shm, verbs: {}", peer.why);
        let (large, not) = match (peer.path.as_str(), peer.read_domain) {
            ("shm", true) => ("lease: read in place, no copy", "nothing is better"),
            ("shm", false) => (
                "copy through shared memory",
                "lease: the tasks are of different users and proved no common secret",
            ),
            ("verbs", _) => (
                "written straight into place by the device",
                "shm: the tasks run on two machines, or RDMA is demanded",
            ),
            _ => ("received straight into place", not_better.as_str()),
        };
        let why = match peer.fell_back {
            true => "a better path is there or was tried, and is not to be had",
            false => peer.why.as_str(),
        };
        let explained = Explained {
            from: task.to_string(),
            to: &peer.task,
            path: &peer.path,
            small_max: reply.inline_max,
            small: "inline, in one frame",
            large,
            why,
            not,
            fallbacks: peer.fallbacks,
        };
        if json {
            terminal.line(serde_json::to_string(&explained).unwrap_or_default())?;
            continue;
        }
        let small = format!("≤ {}: {}", show_bytes(reply.inline_max), explained.small);
        let texts = [
            &explained.from,
            &peer.task,
            &peer.path,
            &small,
            explained.large,
            explained.why,
            explained.not,
        ];
        lines.push(texts.map(str::to_owned).to_vec());
    }
    for absent in &reply.absent {
        let texts = [
            &task.to_string(),
            absent,
            "none",
            "",
            "",
            "not connected (yet)",
        ];
        if !json {
            lines.push(texts.map(str::to_owned).to_vec());
        }
    }
    Ok(())
}

pub(super) fn unanswered(task: &TaskName, status: &Status) -> Status {
    let message = format!("{task} does not answer: {}", status.message());
    Status::new(status.code(), status.reason(), message)
}
