//! Calm: when nothing is broken or being mended, between two tasks or anywhere, and how late the machine makes tasks.

use std::collections::BTreeSet;

use super::super::story::{Fault, Story};
use super::{Judge, SCRIPT_NS};

impl Judge<'_> {
    /// True if nothing between the two was broken, or being mended, at any time from then to then.
    pub(super) fn is_calm(&mut self, one: u32, other: u32, from_ns: u64, until_ns: u64) -> bool {
        let pair = (one.min(other), one.max(other));
        let (story, settle_ns) = (self.story, self.bounds.settle_ns);
        let troubles = self.troubles.entry(pair);
        let troubles = troubles.or_insert_with(|| troubles_of(story, settle_ns, pair, |_| true));
        !troubles
            .iter()
            .any(|trouble| trouble.0 <= until_ns && from_ns <= trouble.1)
    }

    /// The same, and what was broken so shortly that no peer may be given up for it does not count.
    pub(super) fn is_calm_beside_moments(
        &self,
        one: u32,
        other: u32,
        from_ns: u64,
        until_ns: u64,
    ) -> bool {
        let is_long = |fault: &Fault| !self.is_moment(fault);
        let troubles = troubles_of(self.story, self.bounds.settle_ns, (one, other), is_long);
        !troubles
            .iter()
            .any(|trouble| trouble.0 <= until_ns && from_ns <= trouble.1)
    }

    /// True if a fault was over in half of the time after which a silent peer is given up at the earliest, and the
    /// machine let all tasks run meanwhile and until then.
    fn is_moment(&self, fault: &Fault) -> bool {
        let detection_ns = self.bounds.failure_detection_ns;
        let lasted_ns = fault.until_ns - fault.from_ns;
        let until_ns = fault.until_ns.saturating_add(detection_ns * 5 / 4);
        ["cut", "deaf", "mute", "stop"].contains(&fault.what.as_str())
            && lasted_ns < detection_ns / 2
            && lasted_ns + self.late_anywhere(fault.from_ns, until_ns) < detection_ns / 2
    }

    pub(super) fn is_calm_everywhere(&mut self, from_ns: u64, until_ns: u64) -> bool {
        let pairs = pairs(self.story);
        pairs
            .into_iter()
            .all(|(one, other)| self.is_calm(one, other, from_ns, until_ns))
    }

    /// The first time within which nothing is broken anywhere for so long, and the machine lets all tasks run for half
    /// of it at least.
    pub(super) fn calm_within(&self, from_ns: u64, until_ns: u64, long_ns: u64) -> Option<u64> {
        self.calm_among(&self.calms, from_ns, until_ns, long_ns)
    }

    /// The same, of those times in which nothing is broken.
    pub(super) fn calm_among(
        &self,
        calms: &[(u64, u64)],
        from_ns: u64,
        until_ns: u64,
        long_ns: u64,
    ) -> Option<u64> {
        let calms = calms.iter();
        let calms = calms.map(|calm| (calm.0.max(from_ns), calm.1.min(until_ns)));
        let starts = calms.flat_map(|(from, until)| {
            let starts = std::iter::successors(Some(from), move |at| at.checked_add(long_ns));
            starts.take_while(move |at| at.saturating_add(long_ns) <= until)
        });
        let mut starts = starts.filter(|at| self.late_anywhere(*at, at + long_ns) < long_ns / 2);
        starts.next()
    }

    /// The most that any task says the machine did not let it run in that time. One that the script stopped then says
    /// so of the script.
    pub(super) fn late_anywhere(&self, from_ns: u64, until_ns: u64) -> u64 {
        let is_stopped = |task: u32| {
            let mut faults = self.story.faults.iter();
            faults.any(|fault| {
                fault.what == "stop"
                    && fault.tasks.contains(&task)
                    && fault.from_ns <= until_ns
                    && from_ns <= fault.until_ns
            })
        };
        let lives = self.story.lives.keys().filter(|by| !is_stopped(by.0));
        let lates = lives.map(|by| self.story.late_ns(*by, from_ns, until_ns));
        lates.max().unwrap_or(0)
    }
}

/// When nothing is broken anywhere.
pub(super) fn calms(story: &Story, settle_ns: u64) -> Vec<(u64, u64)> {
    calms_of(story, settle_ns, pairs(story))
}

/// When nothing is broken between the tasks of any of those pairs.
pub(super) fn calms_of(story: &Story, settle_ns: u64, pairs: Vec<(u32, u32)>) -> Vec<(u64, u64)> {
    let mut troubles: Vec<_> = pairs
        .into_iter()
        .flat_map(|pair| troubles_of(story, settle_ns, pair, |_| true))
        .collect();
    troubles.sort_unstable();
    let mut calms = Vec::new();
    let mut since_ns = 0;
    for (from, until) in troubles {
        if since_ns < from {
            calms.push((since_ns, from - 1));
        }
        since_ns = since_ns.max(until.saturating_add(1));
    }
    if since_ns < u64::MAX {
        calms.push((since_ns, u64::MAX));
    }
    calms
}

fn pairs(story: &Story) -> Vec<(u32, u32)> {
    let tasks: BTreeSet<u32> = story.lives.keys().map(|life| life.0).collect();
    let pairs = tasks.iter().flat_map(|one| {
        let others = tasks.iter().filter(move |other| one < *other);
        others.map(|other| (*one, *other))
    });
    pairs.collect()
}

/// When two are not calm: while something that counts is broken between them, while one is begun and met by others, and
/// for the time that mending takes.
fn troubles_of(
    story: &Story,
    settle_ns: u64,
    (one, other): (u32, u32),
    counts: impl Fn(&Fault) -> bool,
) -> Vec<(u64, u64)> {
    let faults = story.faults.iter();
    let faults = faults
        .filter(|fault| story.strikes(fault, one, other) && counts(fault))
        .map(|fault| (fault.from_ns, fault.until_ns));
    let begins = story.lives.iter();
    let begins = begins
        .filter(|((task, _), _)| *task == one || *task == other)
        .map(|(_, life)| (life.began_ns.saturating_sub(settle_ns), life.began_ns));
    let troubles = faults.chain(begins).map(|(from, until)| {
        (
            from.saturating_sub(SCRIPT_NS),
            until.saturating_add(settle_ns),
        )
    });
    troubles.collect()
}
