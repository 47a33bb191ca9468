//! `rendez pending`: everything that waits in a cluster, by the task it waits for, the oldest first.
//!
//! Knows what tasks answer, and how wide a terminal is.

use std::collections::BTreeMap;

use super::ask::QuestionArgs;
use super::error::CliError;
use super::observer::{Observer, Unanswered};
use super::report::lay_out;
use super::terminal::Terminal;
use super::units::{show_bytes, show_nanos};
use super::weights::printable;
use rendez_proto::methods::engine_service::GetPending;
use rendez_proto::services::{PendingItem, PendingRequest};

/// Runs it: every waiting receive and parked value of the cluster, and the task it waits for.
///
/// # Errors
/// What is wrong with settings or cluster; why a task cannot be asked.
pub fn run(args: &QuestionArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let observer = Observer::new(&args.ask, &args.whom)?;
    let mut items: Vec<(String, PendingItem)> = Vec::new();
    let json = args.ask.json.then_some("at");
    let mut unanswered = Unanswered::default();
    for (target, reply) in observer.ask_all::<GetPending>(&PendingRequest {}) {
        match reply {
            Ok(reply) => items.extend(reply.items.into_iter().map(|item| (target.name(), item))),
            Err(status) => unanswered.tell(target, &status, json, terminal)?,
        }
    }
    let answered = observer.targets().len() - unanswered.count();
    items.sort_by_key(|(_, item)| std::cmp::Reverse(item.age_ns));
    if args.ask.json {
        for (task, item) in &items {
            let object = serde_json::json!({
                "at": task, "what": what_of(item), "key": item.key, "step": item.step,
                "age_ns": item.age_ns, "count": item.count, "bytes": item.bytes, "waits_for": item.on,
                "connected": item.is_connected,
            });
            terminal.line(object)?;
        }
    } else if !items.is_empty() {
        terminal.line(for_people(&items, terminal.width()))?;
    } else if unanswered.count() == 0 {
        terminal.line("nothing waits")?;
    } else if answered > 0 {
        let all = observer.targets().len();
        terminal.line(format_args!(
            "nothing waits at {answered} of {all} tasks; the others could not be asked"
        ))?;
    }
    unanswered.end()
}

fn what_of(item: &PendingItem) -> &str {
    if !item.what.is_empty() {
        return &item.what;
    }
    match (item.is_waiting, item.is_send) {
        (true, _) => "receive",
        (false, true) => "send",
        (false, false) => "value",
    }
}

/// A paragraph for each task that is waited for, that of the oldest first, and a line for each task that had more to
/// tell than its answer had room for; `items` are sorted by age.
fn for_people(items: &[(String, PendingItem)], width: Option<usize>) -> String {
    let mut groups: BTreeMap<&str, Vec<&(String, PendingItem)>> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    // What was left out waits for tasks that are not named.
    let (told, more): (Vec<_>, Vec<_>) = items.iter().partition(|(_, item)| !item.on.is_empty());
    for item in told {
        let on = item.1.on.as_str();
        if !groups.contains_key(on) {
            order.push(on);
        }
        groups.entry(on).or_default().push(item);
    }
    let mut text = String::new();
    for on in order {
        let group = &groups[on];
        let is_connected = group.iter().all(|(_, item)| item.is_connected);
        let oldest = group.first().map_or(0, |(_, item)| item.age_ns);
        let count: u64 = group.iter().map(|(_, item)| u64::from(item.count)).sum();
        text.push_str(&format!(
            "waits for {}{}: {count}, the oldest since {}\n",
            printable(on),
            if is_connected { "" } else { " (not connected)" },
            show_nanos(oldest as f64)
        ));
        let heading = ["", "age", "what", "edge", "step", "count", "bytes", "at"];
        let mut lines = vec![heading.map(str::to_owned).to_vec()];
        for (task, item) in group {
            lines.push(vec![
                String::new(),
                show_nanos(item.age_ns as f64),
                printable(what_of(item)),
                printable(edge_of(&item.key, width.is_none())),
                item.step.to_string(),
                item.count.to_string(),
                show_bytes(item.bytes),
                task.clone(),
            ]);
        }
        // Two columns less: the rows stand apart from what they belong to.
        let width = width.map(|width| width.saturating_sub(2));
        for line in lay_out(&lines, &[2, 3, 7], &[6, 5, 2], width).lines() {
            text.push_str(&format!("  {line}\n"));
        }
    }
    for (task, item) in more {
        let oldest = show_nanos(item.age_ns as f64);
        text.push_str(&format!(
            "{} more at {task}, the oldest since {oldest}: its answer had no room for them\n",
            item.count
        ));
    }
    text.trim_end().to_owned()
}

/// What tells a key from others of the same two tasks; all of it where nothing is narrow.
fn edge_of(key: &str, is_wide: bool) -> &str {
    if is_wide {
        key
    } else {
        key.split(';').nth(3).unwrap_or(key)
    }
}

#[cfg(test)]
mod tests {
    use super::{PendingItem, for_people};

    fn item(on: &str, age_ns: u64, is_connected: bool) -> (String, PendingItem) {
        let item = PendingItem {
            step: 7,
            key: "/job:a;0;/job:b;gradient;0:0".into(),
            is_waiting: true,
            is_send: false,
            age_ns,
            bytes: 0,
            count: 1,
            on: on.into(),
            is_connected,
            what: String::new(),
        };
        ("/job:b".into(), item)
    }

    #[test]
    fn what_a_library_waits_for_is_told_by_its_own_word_and_name() {
        let (task, mut one) = item("/job:x", 5, true);
        (one.what, one.key) = ("call".into(), "scale".into());
        let text = for_people(&[(task, one)], None);
        let line = text.lines().nth(2).unwrap_or_default();
        assert!(line.contains("call") && line.contains("scale"), "{text}");
        assert!(!line.contains("receive"), "{text}");
    }

    #[test]
    fn what_an_answer_had_no_room_for_is_counted_apart() {
        let (task, mut more) = item("", 4_000, true);
        (more.what, more.count) = ("more".into(), 1600);
        let items = [item("/job:x", 5_000, false), (task, more)];
        let text = for_people(&items, None);
        assert!(
            text.starts_with("waits for /job:x (not connected): 1, "),
            "{text}"
        );
        let last = text.lines().last().unwrap_or_default();
        assert!(
            last.starts_with("1600 more at /job:b, the oldest since "),
            "{text}"
        );
    }

    #[test]
    fn what_a_task_says_reaches_no_terminal_as_a_command() {
        let (task, mut one) = item("/job:\x1b[2J", 5, true);
        (one.what, one.key) = ("call\x07".into(), "\x1b]0;title".into());
        let text = for_people(&[(task, one)], None);
        assert!(!text.contains(['\x1b', '\x07']), "{text}");
    }

    #[test]
    fn whoever_is_waited_for_longest_comes_first() {
        let items = [
            item("/job:x", 3_000_000_000, false),
            item("/job:a", 2_000, true),
            item("/job:x", 10, false),
        ];
        let text = for_people(&items, Some(60));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "waits for /job:x (not connected): 2, the oldest since 3.00s"
        );
        assert!(
            lines[2].starts_with("  ") && lines[2].contains("gradient"),
            "{text}"
        );
        assert!(lines[4].starts_with("waits for /job:a: 1"), "{text}");
        assert!(
            lines.iter().all(|line| line.chars().count() <= 60),
            "{text}"
        );
        assert!(
            for_people(&items, None).contains("/job:a;0;/job:b;gradient;0:0"),
            "a pipe gets all of it"
        );
    }
}
