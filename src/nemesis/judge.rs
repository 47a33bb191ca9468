//! Judge: what must hold of a run, whatever was broken in it, and where it does not.
//!
//! Knows stories only. A pair of tasks is *calm* while nothing between them is broken, nor was within the time that
//! mending takes: then nothing may fail at all. Otherwise receives may fail, but never late, never without a known
//! reason, and never with a wrong value.

use std::collections::{BTreeMap, BTreeSet};

use rendez::ground::{Code, catalogue};

use super::peer::SLOTS_KEPT;
use super::scope::{Kind, SLOT_NS, Scope, WATCH_SLOT};
use super::story::{Outcome, Receive, Refused, Story};

mod calls;
mod calm;
mod devices;
mod engines;
mod lessons;
mod seen;
mod shares;
mod steps;
mod times;
mod uses;
mod values;

#[cfg(test)]
mod tests;

/// What is promised, in numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) failure_detection_ns: u64,
    /// How late a receive may end after its own deadline.
    pub(super) slack_ns: u64,
    /// How long after a fault everything works again.
    pub(super) settle_ns: u64,
    pub(super) resident_max_kib: u64,
    pub(super) descriptors_max: u64,
}

/// How exactly the script knows when it broke something.
const SCRIPT_NS: u64 = 20_000_000;
/// How much sooner than its deadline a receive may give up.
const EARLY_NS: u64 = 1_000_000;

/// Why a receive or a send may fail while something is broken.
const EXCUSES: [&str; 13] = [
    "PEER_LOST",
    "PEER_RESTARTED",
    "CONNECT_DEADLINE",
    "DEADLINE",
    "STEP_ABORTED",
    "STEP_FINISHED",
    "STEP_ENDED",
    "STEP_UNCLAIMED",
    "ARENA_FULL",
    "SHUTDOWN",
    // Work of a process that is gone, and memory that could not be mapped while there were no descriptors.
    "DEVICE_LOST",
    "TENSOR_DEVICE",
    // What a peer says of a step, in its own words.
    "PEER_STATUS",
];

/// With what a receive ends whose peer was given up: what that had sent may be lost.
const LOST: [&str; 3] = ["PEER_LOST", "PEER_RESTARTED", "CONNECT_DEADLINE"];

/// Whether a step, a session, a join or a made value may end so while something is broken: with what passes by itself,
/// as the loss of a peer does, or with a peer's own words. What is wrong inside, or with the graph, has no such excuse.
fn may_pass(reason: &str) -> bool {
    let code = catalogue::find(reason).map(|known| known.code);
    reason == catalogue::PEER_STATUS
        || matches!(
            code,
            Some(
                Code::Unavailable
                    | Code::Aborted
                    | Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::ResourceExhausted
            )
        )
}

/// The most values of one flood that an engine takes: those that fill `parked_bytes_per_step`, which is 4 MiB in the
/// script, and its receiver's credit of 1 MiB, with something to spare.
const FLOOD_VALUES: usize = 1600;

/// Why a send may be refused to a task that sends more than is received.
const FULL: [&str; 3] = ["PARKED_BYTES", "PARKED_BYTES_OF_STEP", "PARKED_VALUES"];

/// What became of a run.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// What is not as promised, with its evidence.
    pub(super) findings: Vec<String>,
    /// What happened, in numbers.
    pub(super) summary: Vec<String>,
    /// What is promised: what, the worst that was seen of it, and the bound.
    pub(super) rows: Vec<[String; 3]>,
}

/// Judges a run.
pub(super) fn judge(story: &Story, bounds: &Bounds) -> Verdict {
    let mut judge = Judge {
        story,
        bounds,
        troubles: BTreeMap::new(),
        calms: calm::calms(story, bounds.settle_ns),
        taken: taken(story),
        met: met(story),
        came: values::came(story),
        lost: lost(story),
        verdict: Verdict::default(),
    };
    judge.lives();
    judge.values();
    judge.leases();
    judge.ends();
    judge.failures();
    judge.detection();
    judge.neighbours();
    judge.flows();
    judge.values_flow();
    judge.clocks();
    judge.uses();
    judge.kept();
    judge.devices();
    judge.steps();
    judge.calls();
    judge.shares();
    judge.lessons();
    judge.engines();
    judge.attempts();
    judge.seen();
    judge.traffic();
    judge.verdict
}

struct Judge<'a> {
    story: &'a Story,
    bounds: &'a Bounds,
    /// When a pair is not calm, as far as it was asked for.
    troubles: BTreeMap<(u32, u32), Vec<(u64, u64)>>,
    /// When all pairs are.
    calms: Vec<(u64, u64)>,
    /// Of each flood (step, sender, receiver): which values the engine took, in turn, and when.
    taken: BTreeMap<(u64, u32, u32), Vec<(u32, u64)>>,
    /// When values came, by pair, in order.
    met: BTreeMap<(u32, u32), Vec<u64>>,
    /// When values came, by pair, in order, and when the latest was sent of all that had come by then.
    came: BTreeMap<(u32, u32), Vec<(u64, u64)>>,
    /// When a task heard that another is lost, or that it is another now, by the two, in order.
    lost: BTreeMap<(u32, u32), Vec<u64>>,
    verdict: Verdict,
}

impl Judge<'_> {
    /// A life ends by a kill or in good order, never by itself.
    fn lives(&mut self) {
        for by in self.story.lives.keys() {
            if self.story.death_ns(*by).is_none() {
                let what = format!("task {} died by itself in its life {}", by.0, by.1);
                self.verdict.findings.push(what);
            }
        }
    }

    /// True if the value that a receive waited for was sent in good time. A sender that the machine did not let run
    /// leaves out what it is too late for.
    fn was_there(&self, receive: &Receive) -> bool {
        if receive.lane.kind == Kind::Flood {
            return self
                .due(receive)
                .is_some_and(|due| due.1 <= receive.asked_ns);
        }
        let lane = receive.lane;
        let value = (lane.step, lane.other, receive.by.0, lane.kind, receive.nth);
        self.story
            .sent
            .get(&value)
            .is_some_and(|sending| sending.at_ns <= values::latest_ns(receive))
    }

    /// Of a flood: which value it is to receive, and when that was sent.
    fn due(&self, receive: &Receive) -> Option<(u32, u64)> {
        let lane = (receive.lane.step, receive.lane.other, receive.by.0);
        let taken = self.taken.get(&lane)?;
        taken.get(receive.nth as usize).copied()
    }

    /// Every receive ends by its deadline, and none gives up before.
    fn ends(&mut self) {
        for receive in &self.story.receives {
            let due_ns = receive.asked_ns + receive.patience_ns;
            let latest_ns = self.excused(receive.by.0, due_ns) + self.bounds.slack_ns;
            let what = match &receive.end {
                Some((end_ns, _)) if *end_ns > latest_ns => {
                    format!("it ended {} after its deadline", show_ns(end_ns - due_ns))
                }
                Some((end_ns, Outcome::Failed(reason)))
                    if reason == "DEADLINE" && *end_ns + EARLY_NS < due_ns =>
                {
                    format!("it gave up {} too soon", show_ns(due_ns - end_ns))
                }
                None if self.lived_until(receive.by, latest_ns) => "it never ended".to_owned(),
                _ => continue,
            };
            let what = format!("deadline: {what}: {}", show(receive));
            self.verdict.findings.push(what);
        }
    }

    /// What fails has a reason; while nothing is broken, only what was aborted on purpose fails.
    fn failures(&mut self) {
        for receive in &self.story.receives {
            let Some((end_ns, Outcome::Failed(reason))) = &receive.end else {
                continue;
            };
            let scope = Scope::of(receive.lane.step);
            let is_watch = scope.slot == WATCH_SLOT;
            let from_ns = if is_watch {
                receive.asked_ns
            } else {
                receive.asked_ns.min(scope.begins_ns())
            };
            let is_missed = !self.was_there(receive);
            let is_end = is_missed && receive.lane.kind == Kind::Flood;
            let is_meant = match reason.as_str() {
                "DEADLINE" => is_watch || is_missed,
                "STEP_FINISHED" | "PEER_STATUS" if is_end => true,
                // Senders finish a step when it is so old, and tell the waiters in it. Floods and watches have no such
                // schedule.
                "STEP_FINISHED" if Kind::SENT.contains(&receive.lane.kind) => {
                    *end_ns >= scope.begins_ns() + SLOTS_KEPT * SLOT_NS
                }
                "STEP_ABORTED" | "PEER_STATUS" => self.story.aborted.contains(&receive.lane.step),
                _ => false,
            };
            let (by, other) = (receive.by.0, receive.lane.other);
            let is_calm = match LOST.contains(&reason.as_str()) {
                true => self.is_calm_beside_moments(by, other, from_ns, *end_ns),
                false => self.is_calm(by, other, from_ns, *end_ns),
            };
            let is_excused = is_meant || (EXCUSES.contains(&reason.as_str()) && !is_calm);
            if !is_excused {
                let what = format!("failure: {reason} without a cause: {}", show(receive));
                self.verdict.findings.push(what);
            }
        }
        for refused in &self.story.refused {
            let is_aborted = ["STEP_ABORTED", "PEER_STATUS"].contains(&refused.reason.as_str())
                && self.story.aborted.contains(&refused.lane.step);
            let is_full = FULL.contains(&refused.reason.as_str())
                && (refused.lane.kind == Kind::Flood || self.keeps_for_the_lost(refused));
            let is_meant = is_aborted || is_full || self.has_no_descriptors(refused);
            let from_ns = refused.at_ns.saturating_sub(SLOT_NS);
            let is_excused = is_meant
                || (EXCUSES.contains(&refused.reason.as_str())
                    && !self.is_calm(refused.by, refused.lane.other, from_ns, refused.at_ns));
            if !is_excused {
                let what = format!(
                    "failure: a send was refused without a cause: {} at {}: {:?}",
                    refused.reason, refused.at_ns, refused.lane
                );
                self.verdict.findings.push(what);
            }
        }
    }

    /// True if what was sent to a task that could not be reached may fill the room for parked values, which is one for
    /// all receivers: a step is kept until it is finished.
    fn keeps_for_the_lost(&mut self, refused: &Refused) -> bool {
        let from_ns = refused.at_ns.saturating_sub(SLOTS_KEPT * SLOT_NS);
        let tasks: BTreeSet<u32> = self.story.lives.keys().map(|life| life.0).collect();
        let mut others = tasks.into_iter().filter(|task| *task != refused.by);
        others.any(|other| !self.is_calm(refused.by, other, from_ns, refused.at_ns))
    }

    /// True if the script had left the sender no descriptors: its arena could not grow.
    fn has_no_descriptors(&self, refused: &Refused) -> bool {
        refused.reason == "SYSTEM_LIMIT"
            && self.story.faults.iter().any(|fault| {
                fault.what == "descriptors"
                    && fault.tasks.contains(&refused.by)
                    && (fault.from_ns..=fault.until_ns).contains(&refused.at_ns)
            })
    }

    /// The worst of what need not happen in a run.
    fn row_if(&mut self, what: &str, seen: Option<String>, bound: String) {
        self.row(what, seen.unwrap_or_else(|| "not seen".to_owned()), bound);
    }

    fn row(&mut self, what: &str, seen: String, bound: String) {
        self.verdict.rows.push([what.to_owned(), seen, bound]);
    }

    /// What came, how, and how much was taken for receivers that did not receive.
    fn traffic(&mut self) {
        let mut ways: BTreeMap<String, u64> = BTreeMap::new();
        let mut received = 0_u64;
        for receive in &self.story.receives {
            let name = match &receive.end {
                Some((_, Outcome::Got(_, way))) => {
                    received += 1;
                    format!("got {way}")
                }
                Some((_, Outcome::Failed(reason))) if receive.lane.kind == Kind::Watch => {
                    format!("watch {reason}")
                }
                Some((_, Outcome::Failed(reason))) => format!("failed {reason}"),
                None => "cut off by a kill".to_owned(),
            };
            *ways.entry(name).or_default() += 1;
        }
        let is_full = |refused: &&super::story::Refused| FULL.contains(&refused.reason.as_str());
        let full = self.story.refused.iter().filter(is_full).count();
        let mut most = 0;
        for ((_, from, to), values) in std::mem::take(&mut self.taken) {
            let (first, last) = (values.first(), values.last());
            // What is meant for a peer that is given up is dropped, and makes room.
            if let (Some((_, first_ns)), Some((_, last_ns))) = (first, last)
                && self.is_calm(from, to, *first_ns, *last_ns)
            {
                most = most.max(values.len());
            }
        }
        if most > FLOOD_VALUES {
            let what = format!("use: {most} values of one flood were taken");
            self.verdict.findings.push(what);
        }
        let (most, bound) = (most.to_string(), FLOOD_VALUES.to_string());
        self.row("values taken for one who does not receive", most, bound);
        let wrong = self.verdict.findings.iter();
        let wrong = wrong.filter(|what| what.starts_with("value:")).count();
        let values = format!(
            "values sent and received: {} and {received}",
            self.story.sent.len()
        );
        self.verdict.summary.push(values);
        let row = ["wrong, lost, repeated values", "", "0"].map(str::to_owned);
        self.verdict.rows.insert(0, row);
        self.verdict.rows[0][1] = wrong.to_string();
        let mut faults: BTreeMap<&str, u32> = BTreeMap::new();
        for fault in &self.story.faults {
            *faults.entry(&fault.what).or_default() += 1;
        }
        let list = |names: Vec<String>| names.join(", ");
        let faults = faults.iter().map(|(what, count)| format!("{what} {count}"));
        let ways = ways.iter().map(|(what, count)| format!("{what} {count}"));
        let lines = [
            format!("faults: {}", list(faults.collect())),
            format!(
                "refused {}, of them {full} for want of room; receives: {}",
                self.story.refused.len(),
                list(ways.collect())
            ),
            format!("lives: {}", self.story.lives.len()),
        ];
        self.verdict.summary.extend(lines);
    }

    /// By when a task can do what is due then: not while it is stopped.
    fn excused(&self, task: u32, due_ns: u64) -> u64 {
        let stops = self.story.faults.iter();
        let stops = stops.filter(|fault| fault.what == "stop" && fault.tasks.contains(&task));
        let stops = stops.filter(|fault| fault.from_ns <= due_ns && due_ns <= fault.until_ns);
        stops.map(|fault| fault.until_ns).fold(due_ns, u64::max)
    }

    fn lived_until(&self, by: (u32, u32), at_ns: u64) -> bool {
        let death_ns = self.story.death_ns(by);
        death_ns.is_none_or(|death_ns| death_ns > at_ns)
            || self
                .story
                .lives
                .get(&by)
                .is_some_and(|life| life.ended_ns.is_some())
    }
}

fn taken(story: &Story) -> BTreeMap<(u64, u32, u32), Vec<(u32, u64)>> {
    let mut taken: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let floods = story
        .sent
        .iter()
        .filter(|(of, sending)| of.3 == Kind::Flood && !sending.is_refused);
    for ((step, from, to, _, ordinal), sending) in floods {
        let lane = taken.entry((*step, *from, *to)).or_default();
        lane.push((*ordinal, sending.at_ns));
    }
    taken
}

fn met(story: &Story) -> BTreeMap<(u32, u32), Vec<u64>> {
    ends(story, |by, other, outcome| {
        matches!(outcome, Outcome::Got(..)).then_some((by.min(other), by.max(other)))
    })
}

fn lost(story: &Story) -> BTreeMap<(u32, u32), Vec<u64>> {
    ends(story, |by, other, outcome| {
        let Outcome::Failed(reason) = outcome else {
            return None;
        };
        LOST.contains(&reason.as_str()).then_some((by, other))
    })
}

/// When receives ended, by what `of` says of the two tasks and the outcome.
fn ends(
    story: &Story,
    of: impl Fn(u32, u32, &Outcome) -> Option<(u32, u32)>,
) -> BTreeMap<(u32, u32), Vec<u64>> {
    let mut ends: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for receive in &story.receives {
        if let Some((at_ns, outcome)) = &receive.end
            && let Some(two) = of(receive.by.0, receive.lane.other, outcome)
        {
            ends.entry(two).or_default().push(*at_ns);
        }
    }
    ends.values_mut().for_each(|ends| ends.sort_unstable());
    ends
}

fn show(receive: &Receive) -> String {
    let scope = Scope::of(receive.lane.step);
    format!(
        "task {} life {} from task {} life {}, {} {} of slot {} (step {}), asked at {} for {}: {:?}",
        receive.by.0,
        receive.by.1,
        receive.lane.other,
        scope.life_of(receive.lane.other),
        receive.lane.kind.name(),
        receive.nth,
        scope.slot,
        receive.lane.step,
        receive.asked_ns,
        show_ns(receive.patience_ns),
        receive.end
    )
}

fn show_ns(nanos: u64) -> String {
    format!("{:.1} ms", nanos as f64 / 1e6)
}
