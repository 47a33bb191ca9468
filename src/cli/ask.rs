//! `rendez ping` and `rendez explain`: questions to running tasks.
//!
//! Knows services and tables; `observer.rs` asks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::error::CliError;
use super::observer::{AskArgs, Observer, Target, Unanswered};
use super::report::lay_out;
use super::terminal::Terminal;
use super::units::{show_bytes, show_nanos};
use super::weights::printable;
use rendez::control::Path;
use rendez::engine::{services, transports};
use rendez::ground::limits::CLUSTER_TASKS_MAX;
use rendez::ground::{Status, catalogue};
use rendez_proto::methods::engine_service::GetConnected;
use rendez_proto::services::{ConnectedReply, ConnectedRequest};

/// Options of `ping`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct PingArgs {
    /// Which to ask: tasks of the cluster or of `[peers]`, or addresses (host:port, unix:@name); without any, all.
    #[arg(value_name = "TASK|ADDRESS")]
    pub whom: Vec<String>,
    /// How many round trips to make.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub count: u32,
    /// The rest.
    #[command(flatten)]
    pub ask: AskArgs,
}

/// Options of `explain`, `pending` and `stat`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct QuestionArgs {
    /// Which to ask: tasks of the cluster or of `[peers]`, or addresses (host:port, unix:@name); without any, all.
    #[arg(value_name = "TASK|ADDRESS")]
    pub whom: Vec<String>,
    /// The rest.
    #[command(flatten)]
    pub ask: AskArgs,
}

/// Runs `ping`: round trips of 64 bytes over the control plane.
///
/// # Errors
/// What is wrong with settings or cluster; why a task cannot be asked.
pub fn ping(args: &PingArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let observer = Observer::new(&args.ask, &args.whom)?;
    let mut lines = vec![
        ["task", "path", "connect", "min", "p50", "p99", "max"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let json = args.ask.json.then_some("task");
    let mut unanswered = Unanswered::default();
    let met = observer.of_all(|target| {
        let began = Instant::now();
        let path = observer.meet(target)?.path;
        round_trip(&observer, target)?;
        Ok((path, began.elapsed()))
    });
    for (target, met) in met {
        // One after another: round trips that are measured at once make each other longer.
        let times = met.and_then(|met| {
            let times = (0..args.count).map(|_| round_trip(&observer, target));
            Ok((met, times.collect::<Result<Vec<_>, _>>()?))
        });
        let ((path, first), mut times) = match times {
            Ok(measured) => measured,
            Err(status) => {
                unanswered.tell(target, &status, json, terminal)?;
                continue;
            }
        };
        let [min, p50, p99, max] = spread(&mut times);
        if args.ask.json {
            let object = serde_json::json!({
                "task": target.name(), "path": path.name(), "connect_ns": first.as_nanos() as u64,
                "rtt_ns": { "min": min, "p50": p50, "p99": p99, "max": max },
                "count": times.len(),
            });
            terminal.line(object)?;
            continue;
        }
        let mut line = vec![target.name(), path.name().into()];
        line.push(show_nanos(first.as_nanos() as f64));
        line.extend([min, p50, p99, max].map(|time| show_nanos(time as f64)));
        lines.push(line);
    }
    if lines.len() > 1 {
        terminal.line(lay_out(&lines, &[0, 1], &[], terminal.width()))?;
    }
    unanswered.end()
}

/// The least of some times in nanoseconds, the median, what 99 in 100 do not exceed, and the greatest.
fn spread(times: &mut [Duration]) -> [u64; 4] {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    let at = |index: usize| {
        let time = times.get(index.min(last)).copied().unwrap_or_default();
        time.as_nanos() as u64
    };
    let p99 = (times.len() * 99).div_ceil(100).saturating_sub(1);
    [at(0), at(times.len() / 2), at(p99), at(last)]
}

/// There and back, with the same bytes.
fn round_trip(observer: &Observer, target: &Target) -> Result<Duration, Status> {
    let payload = [0x5a; 64];
    let began = Instant::now();
    let answer = observer.call(target, services::ECHO, &payload)?;
    if answer == payload {
        Ok(began.elapsed())
    } else {
        let message = "other bytes came back than were sent";
        Err(Status::of(catalogue::DATA_MISMATCH, message))
    }
}

/// Runs `explain`: for each pair of tasks and size class the path, why, and why no better one.
///
/// # Errors
/// As [`ping`].
pub fn explain(args: &QuestionArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let observer = Observer::new(&args.ask, &args.whom)?;
    let mut lines = vec![
        [
            "from", "to", "path", "travels", "small", "large", "why", "not",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let json = args.ask.json.then_some("from");
    let mut drivers = BTreeMap::<String, Vec<String>>::new();
    let mut unanswered = Unanswered::default();
    for (target, reply) in observer.of_all(|target| connected(&observer, target)) {
        match reply {
            Ok(reply) => {
                explained(&target.name(), &reply, args.ask.json, &mut lines, terminal)?;
                let those = drivers.entry(reply.driver).or_default();
                those.push(target.name());
            }
            Err(status) => unanswered.tell(target, &status, json, terminal)?,
        }
    }
    if lines.len() > 1 {
        terminal.line(ways(lines, terminal.width()))?;
    }
    // A task of an older version says nothing of it.
    let known = drivers.iter().filter(|(driver, _)| !driver.is_empty());
    for (driver, tasks) in known.filter(|_| !args.ask.json) {
        let driver = printable(driver);
        terminal.line(format!("drive: {driver} at {}", tasks.join(", ")))?;
    }
    unanswered.end()
}

/// Whom `target` is connected to, answer by answer: in one there may be no room for all.
fn connected(observer: &Observer, target: &Target) -> Result<ConnectedReply, Status> {
    let mut question = ConnectedRequest {
        probe_ms: observer.patience().as_millis() as u64 / 2,
        after: String::new(),
    };
    let mut all = observer.ask::<GetConnected>(target, &question)?;
    let mut is_whole = !all.more;
    while !is_whole {
        let last = |reply: &ConnectedReply| {
            let connected = reply.connected.last().map(|peer| peer.task.clone());
            connected.max(reply.absent.last().cloned())
        };
        question.probe_ms = 0;
        question.after = last(&all).unwrap_or_default();
        let next = observer.ask::<GetConnected>(target, &question)?;
        // Each answer goes on, and no task knows of more than there can be.
        let goes_on = last(&next).is_some_and(|last| last > question.after);
        let count = all.connected.len() + all.absent.len();
        if !goes_on || count > CLUSTER_TASKS_MAX {
            return Err(target.confused());
        }
        is_whole = !next.more;
        all.connected.extend(next.connected);
        all.absent.extend(next.absent);
    }
    Ok(all)
}

/// The table of `explain`. A task that is not connected has fewer cells.
fn ways(mut lines: Vec<Vec<String>>, width: Option<usize>) -> String {
    for line in &mut lines {
        line.resize(8, String::new());
    }
    lay_out(&lines, &[0, 1, 2, 3, 4, 5, 6, 7], &[], width)
}

#[derive(Serialize)]
struct Explained<'a> {
    from: String,
    to: &'a str,
    path: &'a str,
    /// What protects what travels.
    protection: &'a str,
    /// Bytes, with the dimensions, up to which a value is small.
    small_max: u64,
    /// Which threads turn the shards of `from`.
    driver: &'a str,
    small: &'a str,
    large: &'a str,
    why: &'a str,
    not: &'a str,
    /// How many connections came about for want of a better path that was tried.
    fallbacks: u64,
}

fn explained(
    task: &str,
    reply: &ConnectedReply,
    json: bool,
    lines: &mut Vec<Vec<String>>,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    for peer in &reply.connected {
        let better = transports().into_iter().map(Path::name);
        let better: Vec<_> = better.take_while(|name| *name != peer.path).collect();
        let not_better = format!("{}: {}", better.join(", "), peer.why);
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
            true => "a better path exists or was tried, and is unavailable",
            false => peer.why.as_str(),
        };
        let explained = Explained {
            from: task.to_owned(),
            to: &peer.task,
            path: &peer.path,
            protection: &peer.protection,
            small_max: reply.inline_max,
            driver: &reply.driver,
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
            &peer.protection,
            &small,
            explained.large,
            explained.why,
            explained.not,
        ];
        lines.push(texts.map(printable).to_vec());
    }
    for absent in &reply.absent {
        let texts = [task, absent, "none", "", "", "", "not connected (yet)"];
        if !json {
            lines.push(texts.map(printable).to_vec());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rendez_proto::services::Connected;

    #[test]
    fn round_trips_are_told_by_median_tail_and_bounds() {
        let of = |count: u64| {
            let mut times: Vec<_> = (1..=count).rev().map(Duration::from_nanos).collect();
            spread(&mut times)
        };
        assert_eq!(of(1), [1, 1, 1, 1]);
        assert_eq!(of(10), [1, 6, 10, 10]);
        assert_eq!(of(100), [1, 51, 99, 100]);
        assert_eq!(of(1_000), [1, 501, 990, 1_000]);
    }

    #[test]
    fn what_is_explained_fits_a_terminal_and_leaves_nothing_out() {
        let peer = |task: &str, path: &str, fell_back: bool| Connected {
            task: format!("/job:{task}/replica:0/task:1234"),
            path: path.into(),
            why: "RDMA was tried: no port of mlx5_0 is active; the tasks run on two machines"
                .into(),
            fell_back,
            protection: "encrypted (TLS 1.3, by the kernel)".into(),
            ..Connected::default()
        };
        let reply = ConnectedReply {
            inline_max: 4096,
            connected: vec![
                peer("parameter_server", "tcp", true),
                peer("worker", "shm", false),
                peer("chief", "verbs", false),
            ],
            absent: vec!["/job:evaluator/replica:0/task:0".into()],
            ..ConnectedReply::default()
        };
        let heading = [
            "from", "to", "path", "travels", "small", "large", "why", "not",
        ];
        let mut lines = vec![heading.map(str::to_owned).to_vec()];
        let mut terminal = Terminal::into_writer(Box::new(Vec::new()), Some(80));
        let task = "/job:worker/replica:0/task:0";
        explained(task, &reply, false, &mut lines, &mut terminal).expect("told");
        let text = ways(lines.clone(), Some(80));
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        for part in [
            "to       /job:parameter_server/replica:0/task:1234\n",
            "why      a better path exists or was tried, and is unavailable\n",
            "travels  encrypted (TLS 1.3, by the kernel)\n",
            "to       /job:evaluator/replica:0/task:0\npath     none\n",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        // All columns, a line for each task: what `--wide` shows, and a pipe gets.
        assert_eq!(ways(lines, None).lines().count(), 5);
    }
}
