//! Times: how soon losses are told, which tasks must not be given up, and how soon a task that is back is back for all.
//!
//! Time in which the machine did not let a task run, as that task itself noted, counts against no task.

use std::collections::{BTreeMap, BTreeSet};

use super::super::scope::{Kind, Scope};
use super::super::story::{Fault, Outcome, Receive};
use super::calm::calms_of;
use super::{Judge, show, show_ns};

/// How soon a death on the same machine is told: from when the kernel says that the process is gone, for to take down a
/// large one is work of the kernel.
const NEAR_DEATH_NS: u64 = 50_000_000;

/// How soon values flow again after a task that was killed has begun its next life.
const FLOWS_NS: u64 = 1_000_000_000;

/// How long nothing may be broken between two tasks before one must have had a value of the other.
const STILL_NS: u64 = 3_000_000_000;

/// How soon a task sees that the clock of the day was moved.
const JUMP_SEEN_NS: u64 = 1_000_000_000;

/// A run so long shows something of what the script's first faults are for.
const SHORT_NS: u64 = 30_000_000_000;

/// A run so long shows something of each promise, however busy the machine is.
const LONG_NS: u64 = 300_000_000_000;

/// Losses that the script's first faults are for.
const FIRST: [&str; 3] = [NEAR_DEATH, FAR_DEATH, CUT];
const NEAR_DEATH: &str = "a death on the same machine";
const FAR_DEATH: &str = "a death on another machine";
const CUT: &str = "a link cut both ways";

/// A task and its life.
type Life = (u32, u32);

impl Judge<'_> {
    /// A task that waits for a lost task hears so in time. Time in which the machine did not let the waiting task run,
    /// as that task itself noted, is not counted.
    pub(super) fn detection(&mut self) {
        let mut worst: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
        let far_ns = self.bounds.failure_detection_ns * 3 / 2;
        for fault in &self.story.faults {
            for receive in &self.story.receives {
                let Some((bound_ns, name)) = self.bound(fault, receive, far_ns) else {
                    continue;
                };
                let is_near = bound_ns == NEAR_DEATH_NS;
                let from_ns = match is_near {
                    true => fault.gone_ns,
                    false => fault.struck_ns,
                };
                let latest_ns = self.excused(receive.by.0, from_ns + bound_ns);
                match &receive.end {
                    Some((end_ns, outcome)) => {
                        // A neighbour's death is told by the neighbour's own last turns: for it the machine counts,
                        // and that is what any of the tasks noted.
                        let mut late_ns = self.story.late_ns(receive.by, from_ns, *end_ns);
                        if is_near {
                            late_ns = late_ns.max(self.late_anywhere(from_ns, *end_ns));
                        }
                        let took_ns = end_ns.saturating_sub(from_ns + late_ns);
                        let is_told = matches!(outcome, Outcome::Failed(reason)
                            if reason == "PEER_LOST" || reason == "PEER_RESTARTED");
                        if is_told && latest_ns == from_ns + bound_ns {
                            let so_far = worst.entry(name).or_insert((0, 0, bound_ns));
                            if took_ns > so_far.0 {
                                *so_far = (took_ns, late_ns, bound_ns);
                            }
                        }
                        if took_ns <= bound_ns || *end_ns <= latest_ns {
                            continue;
                        }
                    }
                    None if !self.lived_until(receive.by, latest_ns) => continue,
                    None => {}
                }
                let what = format!(
                    "detection: not told within {} of {} at {}: {}",
                    show_ns(bound_ns),
                    fault.what,
                    fault.from_ns,
                    show(receive)
                );
                self.verdict.findings.push(what);
            }
        }
        for name in FIRST {
            if !worst.contains_key(name) {
                self.unmeasured(&format!("how soon {name} is told"));
            }
        }
        let detection_ns = self.bounds.failure_detection_ns as f64;
        for (name, (took_ns, late_ns, bound_ns)) in worst {
            let seen = match bound_ns == far_ns {
                true => format!("{:.2} of it", took_ns as f64 / detection_ns),
                false => show_ns(took_ns),
            };
            let seen = match late_ns {
                0 => seen,
                _ => format!("{seen} (and {} not let run)", show_ns(late_ns)),
            };
            let bound = match bound_ns == far_ns {
                true => "1.50".to_owned(),
                false => show_ns(bound_ns),
            };
            self.row(&format!("told of {name}"), seen, bound);
        }
    }

    /// Within which time of a fault a receive must have ended, if it must, and what to call that.
    fn bound(&self, fault: &Fault, receive: &Receive, far_ns: u64) -> Option<(u64, &'static str)> {
        let (by, other) = (receive.by.0, receive.lane.other);
        let is_waiting = receive.asked_ns < fault.from_ns
            && receive
                .end
                .as_ref()
                .is_none_or(|(end_ns, _)| *end_ns > fault.from_ns);
        if !is_waiting
            || !self.story.strikes(fault, by, other)
            || !self.were_connected(fault, by, other)
        {
            return None;
        }
        let lasts = fault.until_ns - fault.struck_ns >= far_ns;
        let is_near = self.story.are_near(by, other);
        match fault.what.as_str() {
            "kill" if fault.tasks.contains(&by) => None,
            "kill" if is_near => Some((NEAR_DEATH_NS, NEAR_DEATH)),
            "kill" => Some((far_ns, FAR_DEATH)),
            "cut" if lasts => Some((far_ns, CUT)),
            "deaf" if lasts && fault.tasks.contains(&by) => {
                Some((far_ns, "a deaf link, at the deaf"))
            }
            "deaf" if lasts => Some((far_ns, "a deaf link, at the others")),
            "mute" if lasts && fault.tasks.contains(&by) => {
                Some((far_ns, "a mute link, at the mute"))
            }
            "mute" if lasts => Some((far_ns, "a mute link, at the others")),
            "stop" if lasts && !is_near && !fault.tasks.contains(&by) => {
                Some((far_ns, "a process stopped on another machine"))
            }
            _ => None,
        }
    }

    /// True if values came between the two since the last fault before that one, since either began, and since the
    /// waiting one heard that the other is lost: a receive from a task that is not there waits for it to come. A task
    /// may hear of a cut after its end, when what it had sent has arrived at the other.
    pub(super) fn were_connected(&self, fault: &Fault, by: u32, other: u32) -> bool {
        let at_ns = fault.from_ns;
        let strikes = self.story.faults.iter();
        let strikes = strikes.filter(|other_fault| {
            *other_fault != fault
                && other_fault.from_ns <= at_ns
                && self.story.strikes(other_fault, by, other)
        });
        let begins = self.story.lives.iter();
        let begins = begins
            .filter(|((task, _), life)| (*task == by || *task == other) && life.began_ns <= at_ns);
        // The last of each before the fault.
        let last = |ends: &BTreeMap<(u32, u32), Vec<u64>>, two| {
            let ends = ends.get(&two).map_or(&[][..], Vec::as_slice);
            let before = ends.partition_point(|end_ns| *end_ns < at_ns);
            ends[..before].last().copied()
        };
        let since_ns = strikes.map(|fault| fault.until_ns);
        let since_ns = since_ns.chain(begins.map(|(_, life)| life.began_ns));
        let since_ns = since_ns.chain(last(&self.lost, (by, other))).max();
        last(&self.met, (by.min(other), by.max(other)))
            .is_some_and(|met_ns| since_ns.is_none_or(|since_ns| met_ns > since_ns))
    }

    /// A process of the same machine that is only stopped is not given up.
    pub(super) fn neighbours(&mut self) {
        let mut given_up = 0_u64;
        for receive in &self.story.receives {
            let Some((end_ns, Outcome::Failed(reason))) = &receive.end else {
                continue;
            };
            let (by, other) = (receive.by.0, receive.lane.other);
            let is_loss = reason == "PEER_LOST" || reason == "PEER_RESTARTED";
            if !is_loss || !self.story.are_near(by, other) {
                continue;
            }
            let from_ns = receive.asked_ns.saturating_sub(self.bounds.settle_ns);
            let is_dead = self.story.faults.iter().any(|fault| {
                let is_end = fault.what == "kill" || fault.what == "over";
                let is_one = fault.tasks.contains(&by) || fault.tasks.contains(&other);
                is_end && is_one && fault.from_ns <= *end_ns && fault.until_ns >= from_ns
            });
            if !is_dead {
                given_up += 1;
                let what = format!("given up, and its process lives: {}", show(receive));
                self.verdict.findings.push(what);
            }
        }
        let is_near = |fault: &&Fault| {
            let tasks = self.story.lives.keys().map(|life| life.0);
            let mut others = tasks.filter(|task| !fault.tasks.contains(task));
            fault.what == "stop" && others.any(|task| self.story.are_near(task, fault.tasks[0]))
        };
        let stops = self.story.faults.iter().filter(is_near).count();
        if stops == 0 {
            self.unmeasured("whether a neighbour that is stopped is given up");
        }
        let is_seen = stops > 0 || given_up > 0;
        let seen = is_seen.then(|| format!("{given_up} of {stops} stops"));
        self.row_if("living neighbours given up", seen, "0".to_owned());
    }

    /// Values flow both ways between a task that was killed and began again and every other, and every task that knew
    /// its former life says that it is back.
    pub(super) fn flows(&mut self) {
        let mut firsts: BTreeMap<(Life, Life), u64> = BTreeMap::new();
        let mut knew: BTreeMap<(Life, u32), (u64, u32)> = BTreeMap::new();
        for receive in &self.story.receives {
            if let Some((at_ns, Outcome::Got(..))) = &receive.end {
                let other = receive.lane.other;
                let from = (other, Scope::of(receive.lane.step).life_of(other));
                let first = firsts.entry((from, receive.by)).or_insert(u64::MAX);
                *first = (*first).min(*at_ns);
                let known = knew.entry((receive.by, from.0)).or_insert((u64::MAX, 0));
                *known = (*known).min((*at_ns, from.1));
            }
        }
        let mut worst: Option<(u64, u64)> = None;
        let (mut returns, mut untold) = (0_u64, 0_u64);
        for (one, life) in self.story.lives.iter().filter(|(one, _)| one.1 > 0) {
            for (other, others_life) in &self.story.lives {
                let until_ns = life.began_ns + FLOWS_NS;
                let is_meeting = one.0 != other.0
                    && others_life.began_ns < life.began_ns
                    && self.lived_until(*one, until_ns + FLOWS_NS)
                    && self.lived_until(*other, until_ns + FLOWS_NS)
                    && self.is_whole(*one, other.0, life.began_ns, until_ns);
                if !is_meeting {
                    continue;
                }
                for way in [(*one, *other), (*other, *one)] {
                    let first_ns = firsts.get(&way).copied().unwrap_or(u64::MAX);
                    let took_ns = first_ns.saturating_sub(life.began_ns);
                    let end_ns = first_ns.min(until_ns + FLOWS_NS);
                    let late_ns = self.story.late_ns(*one, life.began_ns, end_ns)
                        + self.story.late_ns(*other, life.began_ns, end_ns);
                    let took_ns = took_ns.saturating_sub(late_ns);
                    worst = worst.max(Some((took_ns, late_ns)));
                    if took_ns > FLOWS_NS {
                        let what = format!(
                            "restart: nothing came from {:?} to {:?} within {} of {}",
                            way.0,
                            way.1,
                            show_ns(FLOWS_NS),
                            life.began_ns
                        );
                        self.verdict.findings.push(what);
                    }
                }
                let has_known = knew
                    .get(&(*other, one.0))
                    .is_some_and(|known| known.1 < one.1);
                if has_known {
                    returns += 1;
                    if !self.story.returns.contains(&(*other, life.incarnation)) {
                        untold += 1;
                        let what = format!("return: {other:?} does not say that {one:?} is back");
                        self.verdict.findings.push(what);
                    }
                }
            }
        }
        if worst.is_none() {
            self.unmeasured("how soon values flow after a restart");
        }
        if let Some((took_ns, late_ns)) = worst {
            let seen = match late_ns {
                0 => show_ns(took_ns),
                _ => format!(
                    "{} (and {} not let run)",
                    show_ns(took_ns),
                    show_ns(late_ns)
                ),
            };
            self.row(
                "a task began again: first value each way",
                seen,
                show_ns(FLOWS_NS),
            );
            let seen = format!("{untold} of {returns}");
            self.row("returns that an engine did not log", seen, "0".to_owned());
        }
    }

    /// While nothing is broken between two tasks, values come from each to the other.
    pub(super) fn values_flow(&mut self) {
        let story = self.story;
        let mut ends: BTreeMap<(Life, u32), Vec<u64>> = BTreeMap::new();
        for receive in &story.receives {
            if let Some((at_ns, Outcome::Got(..))) = &receive.end
                && Kind::SENT.contains(&receive.lane.kind)
            {
                let of = ends.entry((receive.by, receive.lane.other)).or_default();
                of.push(*at_ns);
            }
        }
        let tasks: BTreeSet<u32> = story.lives.keys().map(|life| life.0).collect();
        for (by, life) in &story.lives {
            let until_ns = story.death_ns(*by).unwrap_or(u64::MAX);
            let until_ns = until_ns.min(story.over_ns());
            for other in tasks.iter().filter(|other| **other != by.0) {
                let calms = calms_of(story, self.bounds.settle_ns, vec![(by.0, *other)]);
                let mut times = ends.remove(&(*by, *other)).unwrap_or_default();
                times.extend((until_ns < u64::MAX).then_some(until_ns));
                times.sort_unstable();
                let mut last_ns = life.began_ns;
                for end_ns in times.into_iter().filter(|end_ns| *end_ns <= until_ns) {
                    let calm_ns = self.calm_among(&calms, last_ns, end_ns, STILL_NS);
                    if let Some(calm_ns) = calm_ns {
                        let what = format!(
                            "still: no value of {other} came to life {by:?} from {last_ns} for {}, \
                             and nothing was broken between them at {calm_ns}",
                            show_ns(end_ns - last_ns)
                        );
                        self.verdict.findings.push(what);
                    }
                    last_ns = end_ns;
                }
            }
        }
    }

    /// A run that shows nothing of what its first faults are for is no proof of it.
    pub(super) fn unmeasured(&mut self, what: &str) {
        self.unmeasured_for(SHORT_NS, what);
    }

    /// A long run that shows nothing of a promise is no proof of it.
    pub(super) fn unmeasured_long(&mut self, what: &str) {
        self.unmeasured_for(LONG_NS, what);
    }

    fn unmeasured_for(&mut self, least_ns: u64, what: &str) {
        let began_ns = self.story.lives.values().map(|life| life.began_ns).min();
        let over_ns = self.story.over_ns();
        let lasted_ns = began_ns.map_or(0, |began_ns| over_ns.saturating_sub(began_ns));
        if over_ns < u64::MAX && lasted_ns >= least_ns {
            let what = format!(
                "unmeasured: in {} nothing showed {what}",
                show_ns(lasted_ns)
            );
            self.verdict.findings.push(what);
        }
    }

    /// True if nothing but the kill that ended its former life is broken between a life and another task.
    fn is_whole(&self, one: (u32, u32), other: u32, from_ns: u64, until_ns: u64) -> bool {
        let mut strikes = self.story.faults.iter().filter(|fault| {
            let is_its_kill = fault.what == "kill"
                && fault.tasks.contains(&one.0)
                && fault.from_ns <= from_ns
                && fault.until_ns >= from_ns;
            !is_its_kill && self.story.strikes(fault, one.0, other)
        });
        let settle_ns = self.bounds.settle_ns;
        !strikes.any(|fault| {
            fault.from_ns <= until_ns && from_ns <= fault.until_ns.saturating_add(settle_ns)
        })
    }

    /// A clock that was moved was moved.
    pub(super) fn clocks(&mut self) {
        let moves = self
            .story
            .faults
            .iter()
            .filter(|fault| fault.what == "clock");
        let are_moved = moves.clone().next().is_some();
        let (mut count, mut unseen) = (0_u64, 0_u64);
        for fault in moves {
            for (by, _) in
                self.story.lives.iter().filter(|(by, life)| {
                    fault.tasks.contains(&by.0) && life.began_ns < fault.from_ns
                })
            {
                let until_ns = fault.from_ns + JUMP_SEEN_NS;
                let until_ns = until_ns + self.story.late_ns(*by, fault.from_ns, until_ns);
                if !self.lived_until(*by, until_ns) || self.excused(by.0, until_ns) != until_ns {
                    continue;
                }
                count += 1;
                let jumps = self.story.jumps.get(by).map_or(&[][..], Vec::as_slice);
                if !jumps
                    .iter()
                    .any(|at| (fault.from_ns..=until_ns).contains(at))
                {
                    unseen += 1;
                    let what = format!(
                        "clock: {by:?} saw no other time of day at {}",
                        fault.from_ns
                    );
                    self.verdict.findings.push(what);
                }
            }
        }
        if are_moved && count == 0 {
            self.unmeasured("whether a task sees that a clock was moved");
        }
        if count > 0 {
            let seen = format!("{unseen} of {count}");
            self.row(
                "moves of the clock that a task did not see",
                seen,
                "0".to_owned(),
            );
        }
    }
}
