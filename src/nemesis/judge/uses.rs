//! Uses: what processes hold, at most and in the long run.

use std::collections::{BTreeMap, BTreeSet};

use super::super::peer::SLOTS_KEPT;
use super::super::scope::{Kind, SLOT_NS};
use super::super::story::Fault;
use super::Judge;

/// How much more a life may hold in its second half than in its first, in KiB, and from which length on that is asked.
const GROWTH_KIB: u64 = 32 << 10;

/// See there.
const GROWTH_AFTER_NS: u64 = 60_000_000_000;

/// How many more descriptors a life may hold at rest than it did at rest before: its arena grows by a file at a time,
/// and so do those of the tasks that it reads from.
const LEAKED_MAX: u64 = 16;

/// The most that a task keeps for receivers once all that it sent while something was broken is received or finished:
/// what it sends in two slots, and a flood.
const KEPT_MAX: u64 = 16 << 20;

impl Judge<'_> {
    /// What was kept for receivers that could not be reached goes with its steps.
    pub(super) fn kept(&mut self) {
        let story = self.story;
        let tasks: BTreeSet<u32> = story.lives.keys().map(|life| life.0).collect();
        // A receiver that waits for what a busy sender left out receives nothing that comes after it meanwhile.
        let vain = story.receives.iter().filter_map(|receive| {
            let (end_ns, _) = receive.end.as_ref()?;
            let is_vain = Kind::SENT.contains(&receive.lane.kind)
                && end_ns - receive.asked_ns >= receive.patience_ns
                && !self.was_there(receive);
            is_vain.then_some((receive.lane.other, receive.asked_ns, *end_ns))
        });
        let vain: Vec<(u32, u64, u64)> = vain.collect();
        let mut most = None;
        for (at_ns, by, bytes) in &story.kept {
            let from_ns = at_ns.saturating_sub((SLOTS_KEPT + 1) * SLOT_NS);
            let mut others = tasks.iter().filter(|other| **other != by.0);
            let is_calm = others.all(|other| self.is_calm(by.0, *other, from_ns, *at_ns));
            let is_behind = vain.iter().any(|(of, asked_ns, end_ns)| {
                *of == by.0 && asked_ns <= at_ns && from_ns <= *end_ns
            });
            if !is_calm || is_behind || self.late_anywhere(from_ns, *at_ns) > SLOT_NS {
                continue;
            }
            most = most.max(Some(*bytes));
            if *bytes > KEPT_MAX {
                let what = format!("kept: {bytes} bytes of {by:?} at {at_ns}, for no receiver");
                self.verdict.findings.push(what);
            }
        }
        if most.is_none() {
            self.unmeasured_long("what tasks keep for receivers while all is calm");
        }
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        self.row_if("kept for receivers, at rest", most.map(mib), mib(KEPT_MAX));
    }

    /// No process holds more than it may.
    pub(super) fn uses(&mut self) {
        let (mut resident_kib, mut descriptors) = (0, 0);
        for used in &self.story.uses {
            resident_kib = used.resident_kib.max(resident_kib);
            descriptors = used.descriptors.max(descriptors);
            if used.resident_kib > self.bounds.resident_max_kib
                || used.descriptors > self.bounds.descriptors_max
            {
                let what = format!(
                    "use: task {} life {} holds {} KiB and {} descriptors",
                    used.by.0, used.by.1, used.resident_kib, used.descriptors
                );
                self.verdict.findings.push(what);
            }
        }
        if self.story.uses.is_empty() {
            let what = "use: what processes hold was never looked at".to_owned();
            self.verdict.findings.push(what);
        }
        let mib = |kib: u64| format!("{} MiB", kib >> 10);
        let bound = mib(self.bounds.resident_max_kib);
        self.row("resident memory of a task", mib(resident_kib), bound);
        self.growth();
        let bound = self.bounds.descriptors_max.to_string();
        self.row("descriptors of a task", descriptors.to_string(), bound);
        self.shorts();
        self.leaks();
    }

    /// A task that is left no descriptors has none.
    fn shorts(&mut self) {
        let faults = self.story.faults.iter();
        let faults = faults.filter(|fault| fault.what == "descriptors");
        let is_short = |task: u32, fault: &Fault| {
            let mut shorts = self.story.shorts.iter();
            shorts
                .any(|(by, at_ns)| *by == task && (fault.from_ns..=fault.until_ns).contains(at_ns))
        };
        for fault in faults {
            for task in fault.tasks.iter().filter(|task| !is_short(**task, fault)) {
                let what = format!(
                    "descriptors: task {task} had some left, though it was left none at {}",
                    fault.from_ns
                );
                self.verdict.findings.push(what);
            }
        }
    }

    /// What is opened while connections are lost and made again is closed: at rest a life holds no more descriptors
    /// than it did at rest before.
    fn leaks(&mut self) {
        let mut least: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        let mut most = None;
        for used in &self.story.uses {
            if used.at_ns >= self.story.over_ns()
                || !self.is_calm_everywhere(used.at_ns, used.at_ns)
            {
                continue;
            }
            let Some(before) = least.get_mut(&used.by) else {
                least.insert(used.by, used.descriptors);
                continue;
            };
            let more = used.descriptors.saturating_sub(*before);
            *before = used.descriptors.min(*before);
            most = most.max(Some(more));
            if more > LEAKED_MAX {
                let what = format!(
                    "use: {:?} holds {more} descriptors more at {} than at rest before",
                    used.by, used.at_ns
                );
                self.verdict.findings.push(what);
            }
        }
        let (seen, bound) = (most.map(|most| most.to_string()), LEAKED_MAX.to_string());
        self.row_if("descriptors at rest above those before", seen, bound);
    }

    /// What a life holds does not grow with its length.
    fn growth(&mut self) {
        let mut uses: BTreeMap<(u32, u32), Vec<(u64, u64)>> = BTreeMap::new();
        for used in &self.story.uses {
            let of = uses.entry(used.by).or_default();
            of.push((used.at_ns, used.resident_kib));
        }
        let mut worst_kib = None;
        for (by, uses) in uses {
            let (Some(first), Some(last)) = (uses.first(), uses.last()) else {
                continue;
            };
            if last.0 - first.0 < GROWTH_AFTER_NS {
                continue;
            }
            let half_ns = first.0 + (last.0 - first.0) / 2;
            let most = |is_late: bool| {
                let of = uses.iter().filter(|used| (used.0 > half_ns) == is_late);
                of.map(|used| used.1).max().unwrap_or(0)
            };
            let grown_kib = most(true).saturating_sub(most(false));
            worst_kib = worst_kib.max(Some(grown_kib));
            if grown_kib > GROWTH_KIB {
                let what = format!("use: {by:?} grew by {grown_kib} KiB in its second half");
                self.verdict.findings.push(what);
            }
        }
        if let Some(worst_kib) = worst_kib {
            let mib = |kib: u64| format!("{} MiB", kib >> 10);
            self.row(
                "a life's second half above its first",
                mib(worst_kib),
                mib(GROWTH_KIB),
            );
        }
    }
}
