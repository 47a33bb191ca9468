//! Calls: what must hold of remote calls, whatever was broken meanwhile.
//!
//! A call is carried out once at most, and ends once: with its own result or with a reason, by its deadline, and sooner
//! if its callee is lost. While nothing is broken it fails only if it was cancelled, or asked for more time than it
//! had. Workers join, and leave with nothing left.

use std::collections::BTreeMap;

use super::super::history::remote::Answer;
use super::super::story::Fault;
use super::super::story::remote::Call;
use super::{Judge, show_ns};

/// Why a call may fail while something is broken.
const EXCUSES: [&str; 9] = [
    "PEER_LOST",
    "PEER_RESTARTED",
    "RPC_TIMEOUT",
    "RPC_CANCELLED",
    "RPC_BUSY",
    "RPC_SHUTDOWN",
    "RPC_REFERENCE",
    "RPC_WORKER",
    // What a function that calls on was told.
    "RPC_REMOTE_ERROR",
];
/// A call that may take less than this may be too late though nothing is broken.
const SHORT_NS: u64 = 1_000_000_000;
/// How long nothing may be broken before a task must have had an answer of each other one.
const FLOWS_NS: u64 = 3_000_000_000;
/// How long a worker may try to join, once nothing is broken.
const JOINS_NS: u64 = 6_000_000_000;

impl Judge<'_> {
    pub(super) fn calls(&mut self) {
        let story = self.story;
        let mut outcomes: BTreeMap<&str, u64> = BTreeMap::new();
        let (mut worst, mut worst_told) = (0, None);
        for (id, call) in &story.remote.calls {
            let name = match &call.end {
                Some((_, Answer::Right)) => "right",
                Some((_, Answer::Wrong)) => "wrong",
                Some((_, Answer::Failed(reason))) => reason,
                None => "cut off by a kill",
            };
            *outcomes.entry(name).or_default() += 1;
            let mut wrong = Vec::from_iter(self.outcome(*id, call));
            wrong.extend(self.call_time(call, &mut worst));
            wrong.extend(self.call_told(call, &mut worst_told));
            for what in wrong {
                let what = format!("call: {what}: {}", show_call(*id, call));
                self.verdict.findings.push(what);
            }
        }
        self.executions();
        self.workers();
        self.calls_flow();
        for (by, line) in &story.remote.panics {
            let what = format!("panic: in life {by:?}: {line}");
            self.verdict.findings.push(what);
        }
        let outcomes = outcomes
            .iter()
            .map(|(name, count)| format!("{name} {count}"));
        let line = format!("calls: {}", outcomes.collect::<Vec<_>>().join(", "));
        self.verdict.summary.push(line);
        let bound = show_ns(self.bounds.slack_ns);
        self.row("a call after its deadline", show_ns(worst), bound);
        let bound = show_ns(self.bounds.failure_detection_ns * 3 / 2);
        let worst = worst_told.map(show_ns);
        self.row_if("a call told of its lost callee", worst, bound);
    }

    /// What is wrong with what a call gave.
    fn outcome(&mut self, id: u64, call: &Call) -> Option<String> {
        let (end_ns, answer) = call.end.as_ref()?;
        let reason = match answer {
            Answer::Right => {
                let ran = self.story.remote.ran.get(&id);
                let is_there = |ran: &((u32, u32), u64)| ran.0.0 == call.to && ran.1 <= *end_ns;
                let has_run = ran.is_some_and(|ran| ran.iter().any(is_there));
                return (!has_run).then(|| "it was answered, and not carried out".to_owned());
            }
            Answer::Wrong => return Some("its answer is of another call".to_owned()),
            Answer::Failed(reason) => reason.as_str(),
        };
        if !EXCUSES.contains(&reason) {
            return Some(format!("{reason} is no reason"));
        }
        let is_meant = match reason {
            "RPC_CANCELLED" => call.cancelled_ns.is_some(),
            "RPC_TIMEOUT" => call.patience_ns < SHORT_NS || 2 * call.needs_ns > call.patience_ns,
            _ => false,
        };
        let is_calm = match call.function.as_str() {
            // What concerns a third task.
            "nest" | "take" => self.is_calm_everywhere(call.began_ns, *end_ns),
            _ => self.is_calm(call.by.0, call.to, call.began_ns, *end_ns),
        };
        // The end of the run is told by those that leave first.
        let is_over = *end_ns >= self.story.over_ns();
        (is_calm && !is_meant && !is_over).then(|| format!("{reason} without a cause"))
    }

    /// What is wrong with when it ended: its deadline, and its cancel.
    fn call_time(&self, call: &Call, worst_ns: &mut u64) -> Option<String> {
        let due_ns = call.began_ns + call.patience_ns;
        let due_ns = call.cancelled_ns.map_or(due_ns, |at_ns| due_ns.min(at_ns));
        let latest_ns = self.excused(call.by.0, due_ns) + self.bounds.slack_ns;
        let Some((end_ns, answer)) = &call.end else {
            return self
                .lived_until(call.by, latest_ns)
                .then(|| "it never ended".to_owned());
        };
        let late_ns = self.story.late_ns(call.by, call.began_ns, *end_ns);
        let over_ns = end_ns.saturating_sub(latest_ns - self.bounds.slack_ns);
        *worst_ns = over_ns.saturating_sub(late_ns).max(*worst_ns);
        if *end_ns > latest_ns + late_ns {
            return Some(format!("it ended {} too late", show_ns(end_ns - due_ns)));
        }
        let is_early = *answer == Answer::Failed("RPC_TIMEOUT".into())
            && call.function != "nest"
            && end_ns + super::EARLY_NS < call.began_ns + call.patience_ns;
        is_early.then(|| "it gave up before its deadline".to_owned())
    }

    /// A call whose callee is lost is told so in time.
    fn call_told(&self, call: &Call, worst_ns: &mut Option<u64>) -> Option<String> {
        let bound_ns = self.bounds.failure_detection_ns * 3 / 2;
        let end_ns = call.end.as_ref().map_or(u64::MAX, |(end_ns, _)| *end_ns);
        for fault in &self.story.faults {
            let is_under_way = call.began_ns < fault.from_ns && fault.from_ns < end_ns;
            if !is_under_way || !self.must_tell(fault, call) {
                continue;
            }
            let late_ns = self.story.late_ns(call.by, fault.struck_ns, end_ns);
            let latest_ns = self.excused(call.by.0, fault.struck_ns + bound_ns);
            match &call.end {
                Some((end_ns, answer)) => {
                    let told_ns = end_ns.saturating_sub(fault.struck_ns);
                    let took_ns = told_ns.saturating_sub(late_ns);
                    if matches!(answer, Answer::Failed(reason) if reason.starts_with("PEER_")) {
                        *worst_ns = (*worst_ns).max(Some(took_ns));
                    }
                    if took_ns > bound_ns && *end_ns > latest_ns {
                        let what = &fault.what;
                        return Some(format!("not told of a {what} for {}", show_ns(took_ns)));
                    }
                }
                None if self.lived_until(call.by, latest_ns) => {
                    return Some(format!("not told of a {}", fault.what));
                }
                None => {}
            }
        }
        None
    }

    /// Whether a call that is under way then must be told. A process that is stopped on the caller's own machine is
    /// there all the same; and a task that had not been met since what was broken before is still being waited for.
    fn must_tell(&self, fault: &Fault, call: &Call) -> bool {
        let (by, to) = (call.by.0, call.to);
        let is_far = !self.story.are_near(by, to);
        let lasts = fault.until_ns - fault.struck_ns >= self.bounds.failure_detection_ns * 3 / 2;
        let is_lost = match fault.what.as_str() {
            "kill" => fault.tasks.contains(&to),
            "cut" | "deaf" | "mute" => lasts,
            "stop" => lasts && is_far && fault.tasks.contains(&to),
            _ => false,
        };
        is_lost && self.story.strikes(fault, by, to) && self.were_connected(fault, by, to)
    }

    /// No call is carried out twice, and none that was not made.
    fn executions(&mut self) {
        for (id, ran) in &self.story.remote.ran {
            let call = self.story.remote.calls.get(id);
            let wrong = match (call, &ran[..]) {
                (None, _) => "no task made it".to_owned(),
                (Some(_), [_, _, ..]) => format!("it was carried out {} times", ran.len()),
                (Some(call), [((at, _), _)]) if *at != call.to => {
                    format!("it was carried out at task {at}")
                }
                _ => continue,
            };
            let what = format!("call: {wrong}: call {id:x}, carried out {ran:?}");
            self.verdict.findings.push(what);
        }
    }

    /// Workers join, and leave with nothing left.
    fn workers(&mut self) {
        let lives: Vec<_> = self.story.lives.iter().collect();
        for (by, life) in lives {
            let remote = &self.story.remote;
            let joined = remote.joined.get(by).copied();
            let death_ns = self.story.death_ns(*by).unwrap_or(u64::MAX);
            let until_ns = joined.unwrap_or_else(|| death_ns.min(self.story.over_ns()));
            if until_ns < u64::MAX
                && let Some(calm_ns) = self.calm_within(life.began_ns, until_ns, JOINS_NS)
            {
                let what = format!(
                    "worker: life {by:?} did not join until {until_ns}, and nothing was broken at {calm_ns}"
                );
                self.verdict.findings.push(what);
            }
            if life.ended_ns.is_none() || joined.is_none() {
                continue;
            }
            let rest = remote.rests.get(by).copied();
            let wrong = match (rest, remote.parted.get(by)) {
                (None, _) => "did not say what is left".to_owned(),
                (Some([0, 0, 0]), Some(Answer::Right)) => continue,
                (Some([0, 0, 0]), parted) => format!("did not leave in good order: {parted:?}"),
                (Some([references, calls, contexts]), _) => format!(
                    "has {references} references, {calls} calls and {contexts} contexts left"
                ),
            };
            let what = format!("worker: life {by:?} {wrong}");
            self.verdict.findings.push(what);
        }
    }

    /// While nothing is broken between two tasks, each has answers of the other.
    fn calls_flow(&mut self) {
        let mut ends: BTreeMap<((u32, u32), u32), Vec<u64>> = BTreeMap::new();
        for call in self.story.remote.calls.values() {
            if let Some((end_ns, Answer::Right)) = &call.end {
                ends.entry((call.by, call.to)).or_default().push(*end_ns);
            }
        }
        let tasks: std::collections::BTreeSet<u32> =
            self.story.lives.keys().map(|life| life.0).collect();
        let joined: Vec<_> = self.story.remote.joined.iter().collect();
        for (by, joined_ns) in joined {
            let until_ns = self.story.death_ns(*by).unwrap_or(u64::MAX);
            let until_ns = until_ns.min(self.story.over_ns());
            for to in tasks.iter().filter(|to| **to != by.0) {
                let mut times = ends.remove(&(*by, *to)).unwrap_or_default();
                times.push(until_ns);
                times.sort_unstable();
                let mut last_ns = *joined_ns;
                for end_ns in times.into_iter().filter(|end_ns| *end_ns <= until_ns) {
                    if end_ns < u64::MAX
                        && let Some(calm_ns) = self.calm_within(last_ns, end_ns, FLOWS_NS)
                    {
                        let what = format!(
                            "call: life {by:?} had no answer of {to} from {last_ns} for {}, \
                             and nothing was broken at {calm_ns}",
                            show_ns(end_ns - last_ns)
                        );
                        self.verdict.findings.push(what);
                    }
                    last_ns = end_ns;
                }
            }
        }
    }
}

fn show_call(id: u64, call: &Call) -> String {
    format!(
        "{} {id:x} of task {} life {} at {}, begun at {} for {}: {:?}",
        call.function,
        call.by.0,
        call.by.1,
        call.to,
        call.began_ns,
        show_ns(call.patience_ns),
        call.end
    )
}
