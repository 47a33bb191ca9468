//! `rendez stat`: what running tasks have counted, and where the time of their hand-overs goes.
//!
//! Knows the counters by the names that tasks give them.

use std::time::Duration;

use clap::Args;

use super::ask::QuestionArgs;
use super::error::CliError;
use super::observer::{Observer, Target, Unanswered};
use super::report::lay_out;
use super::terminal::Terminal;
use super::units::{self, show_bytes, show_nanos, show_rate};
use super::weights::printable;
use rendez::ground::Status;
use rendez::ground::limits::SHARDS_MAX;
use rendez_proto::methods::engine_service::GetStat;
use rendez_proto::services::{StatReply, StatRequest};

/// Options of `stat`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct StatArgs {
    /// Ask again and again, until interrupted; the time is the interval.
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "1s", require_equals = true,
        value_parser = units::positive_duration)]
    pub watch: Option<Duration>,
    /// Whom and how.
    #[command(flatten)]
    pub question: QuestionArgs,
}

/// Runs it.
///
/// # Errors
/// What is wrong with settings or cluster; why a task cannot be asked.
pub fn run(args: &StatArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let ask = &args.question.ask;
    let is_time = |text: &&String| units::positive_duration(text).is_ok();
    if let Some(time) = args.question.whom.iter().find(is_time) {
        let message = format!("`{time}` is no task and no address; did you mean `--watch={time}`?");
        return Err(CliError::usage("USAGE", message));
    }
    let observer = Observer::new(ask, &args.question.whom)?;
    let mut before: Vec<(String, Seen)> = Vec::new();
    loop {
        let mut unanswered = Unanswered::default();
        let mut rows = vec![HEADING.map(str::to_owned).to_vec()];
        let mut stages = vec![STAGES.map(str::to_owned).to_vec()];
        let mut now = Vec::new();
        for (target, reply) in observer.of_all(|target| counted(&observer, target)) {
            let task = target.name();
            match reply {
                Ok(reply) if ask.json => terminal.line(json(&task, &reply))?,
                Ok(reply) => {
                    let seen = Seen::of(&reply);
                    let known = before.iter().find(|(known, _)| *known == task);
                    let rate = known.and_then(|(_, then)| seen.rate_since(*then));
                    rows.push(row(&task, &reply, rate));
                    stages.extend(stage_rows(&task, &reply));
                    now.push((task, seen));
                }
                Err(status) => {
                    let field = ask.json.then_some("task");
                    unanswered.tell(target, &status, field, terminal)?;
                }
            }
        }
        before = now;
        if rows.len() > 1 {
            terminal.line(lay_out(&rows, &[0], &[9, 8, 7, 6, 5, 2], terminal.width()))?;
            if stages.len() > 1 && args.watch.is_none() {
                terminal.line("")?;
                terminal.line(lay_out(
                    &stages,
                    &[0, 1, 2, 3],
                    &[8, 4, 5],
                    terminal.width(),
                ))?;
            }
        }
        match args.watch {
            Some(every) => std::thread::sleep(every),
            None => return unanswered.end(),
        }
    }
}

/// What `target` has counted, answer by answer: in one there is no room for the counters of hundreds of shards.
fn counted(observer: &Observer, target: &Target) -> Result<StatReply, Status> {
    let mut all = observer.ask::<GetStat>(target, &StatRequest { from: 0 })?;
    let count = all.shard_count.min(SHARDS_MAX.into()) as usize;
    while all.shards.len() < count {
        let from = all.shards.len() as u32;
        let next = observer.ask::<GetStat>(target, &StatRequest { from })?;
        if next.shards.first().map(|shard| shard.shard) != Some(from) {
            return Err(target.confused());
        }
        all.shards.extend(next.shards);
    }
    Ok(all)
}

const HEADING: [&str; 10] = [
    "task",
    "delivered",
    "rate",
    "waiting",
    "parked",
    "lent",
    "missed",
    "busy",
    "longest turn",
    "arena",
];
const STAGES: [&str; 10] = [
    "task", "way", "size", "stage", "count", "mean", "p50", "p99", "max", "error",
];

/// What a task had delivered, and how long it had run then, by its own clock.
#[derive(Clone, Copy)]
struct Seen {
    delivered: u64,
    up_ns: u64,
}

impl Seen {
    fn of(reply: &StatReply) -> Self {
        Self {
            delivered: sum(reply, "delivered"),
            up_ns: reply.up_ns,
        }
    }

    /// Deliveries a second from one answer to the next; `None` if the task began anew between them.
    fn rate_since(self, then: Self) -> Option<f64> {
        let passed = self.up_ns.checked_sub(then.up_ns)?;
        let delivered = self.delivered.checked_sub(then.delivered)?;
        (passed > 0).then(|| delivered as f64 * 1e9 / passed as f64)
    }
}

fn sum(reply: &StatReply, name: &str) -> u64 {
    reply
        .shards
        .iter()
        .filter_map(|shard| shard.counters.get(name))
        .sum()
}

/// Of all arenas: a task that is older than ours tells those of shards alone.
fn arenas_used(reply: &StatReply) -> u64 {
    let application = reply.application.get("arena_used_bytes").copied();
    sum(reply, "arena_used_bytes").saturating_add(application.unwrap_or(0))
}

fn row(task: &str, reply: &StatReply, rate: Option<f64>) -> Vec<String> {
    let missed = ["here", "unconnected", "unsent", "fetching"];
    let missed: u64 = missed
        .iter()
        .map(|stage| sum(reply, &format!("deadlines_missed_{stage}")))
        .sum();
    let of = |state: &str| sum(reply, &format!("poll_ns_{state}")) as f64;
    let (busy, all) = (of("busy"), of("busy") + of("idle") + of("asleep"));
    let longest = reply
        .shards
        .iter()
        .filter_map(|shard| shard.counters.get("longest_turn_ns"))
        .max();
    vec![
        task.to_owned(),
        sum(reply, "delivered").to_string(),
        rate.map_or_else(String::new, show_rate),
        sum(reply, "waiting_receives").to_string(),
        show_bytes(sum(reply, "parked_bytes")),
        show_bytes(sum(reply, "lent_bytes")),
        missed.to_string(),
        format!("{:.1} %", 100.0 * busy / all.max(1.0)),
        show_nanos(longest.copied().unwrap_or(0) as f64),
        show_bytes(arenas_used(reply)),
    ]
}

fn stage_rows(task: &str, reply: &StatReply) -> Vec<Vec<String>> {
    let row = |stage: &rendez_proto::services::StageStat| {
        vec![
            task.to_owned(),
            printable(&stage.way),
            printable(&stage.size_class),
            printable(&stage.stage),
            stage.count.to_string(),
            show_nanos(stage.sum_ns as f64 / stage.count.max(1) as f64),
            show_nanos(stage.p50_ns as f64),
            show_nanos(stage.p99_ns as f64),
            show_nanos(stage.max_ns as f64),
            if stage.error_ns > 0 {
                format!("±{}", show_nanos(stage.error_ns as f64))
            } else {
                String::new()
            },
        ]
    };
    reply.stages.iter().map(row).collect()
}

fn json(task: &str, reply: &StatReply) -> serde_json::Value {
    let shards: Vec<_> = reply
        .shards
        .iter()
        .map(|shard| serde_json::json!({"shard": shard.shard, "counters": shard.counters}))
        .collect();
    let stages: Vec<_> = reply
        .stages
        .iter()
        .map(|stage| {
            serde_json::json!({
                "stage": stage.stage, "path": stage.way, "size_class": stage.size_class, "count": stage.count,
                "sum_ns": stage.sum_ns, "p50_ns": stage.p50_ns, "p99_ns": stage.p99_ns, "max_ns": stage.max_ns,
                "error_ns": stage.error_ns,
            })
        })
        .collect();
    serde_json::json!({
        "task": task, "up_ns": reply.up_ns, "timed_one_in": reply.sampling, "shards": shards,
        "application": reply.application, "stages": stages,
    })
}

#[cfg(test)]
mod tests {
    use rendez_proto::services::{StageStat, StatReply};

    use super::{Seen, stage_rows};

    #[test]
    fn what_a_task_says_reaches_no_terminal_as_commands() {
        let stage = StageStat {
            way: "tcp\x1b[2J".into(),
            size_class: "4\r".into(),
            stage: "wire\n".into(),
            ..StageStat::default()
        };
        let reply = StatReply {
            stages: vec![stage],
            ..StatReply::default()
        };
        let rows = stage_rows("/job:a/task:0", &reply).concat();
        assert!(!rows.concat().contains(char::is_control), "{rows:?}");
    }

    #[test]
    fn a_rate_is_of_the_time_between_two_answers() {
        let seen = |delivered, up_ns| Seen { delivered, up_ns };
        let then = seen(1_000, 5_000_000_000);
        // The second answer took three seconds, whatever the pause was.
        let now = seen(4_000, 8_000_000_000);
        assert_eq!(now.rate_since(then), Some(1_000.0));
        assert_eq!(seen(1_000, 6_000_000_000).rate_since(then), Some(0.0));
        assert_eq!(then.rate_since(then), None, "no time passed");
        assert_eq!(seen(9_000, 1).rate_since(then), None, "it began anew");
        assert_eq!(
            seen(9, 9_000_000_000).rate_since(then),
            None,
            "it began anew"
        );
    }
}
