//! Shares: a value is kept as long as a task that is there has a share of it, and no longer.

use std::collections::BTreeMap;

use super::super::story::remote::Hold;
use super::{Judge, show_ns};

/// How long after the last share of a value was let go the value may be kept.
const KEPT_NS: u64 = 3_000_000_000;

impl Judge<'_> {
    pub(super) fn shares(&mut self) {
        let story = self.story;
        let mut freed = 0_u64;
        for hold in &story.remote.holds {
            let value = story.remote.values.get(&hold.value);
            let Some(value) = value.filter(|value| value.at.0 == hold.at) else {
                let what = format!("share: of a value that its owner did not make: {hold:?}");
                self.verdict.findings.push(what);
                continue;
            };
            let Some(freed_ns) = value.freed_ns else {
                continue;
            };
            if self.is_held(hold, freed_ns)
                && self.is_calm(hold.by.0, value.at.0, hold.from_ns, freed_ns)
            {
                let what = format!(
                    "share: value {:x} was freed at {freed_ns} under {hold:?}",
                    hold.value
                );
                self.verdict.findings.push(what);
            }
        }
        let mut holds: BTreeMap<u64, Vec<Option<u64>>> = BTreeMap::new();
        for hold in &story.remote.holds {
            holds.entry(hold.value).or_default().push(hold.until_ns);
        }
        for (id, value) in &story.remote.values {
            freed += u64::from(value.freed_ns.is_some());
            let ends = holds.get(id).map_or(&[][..], Vec::as_slice);
            let is_open = ends.contains(&None);
            let last_ns = ends.iter().copied().flatten().max();
            let due_ns = last_ns.unwrap_or(value.made_ns).saturating_add(KEPT_NS);
            let until_ns = value.freed_ns.unwrap_or(u64::MAX);
            let is_late = until_ns > due_ns && self.lived_until(value.at, due_ns);
            let is_calm = self.is_calm_everywhere(value.made_ns, due_ns);
            let late_ns = self.late_anywhere(value.made_ns, due_ns);
            if !is_open && is_late && is_calm && late_ns < KEPT_NS / 2 {
                let what = format!(
                    "share: value {id:x} of {:?} was kept for {} after its last share",
                    value.at,
                    show_ns(until_ns.min(story.over_ns()) - due_ns + KEPT_NS)
                );
                self.verdict.findings.push(what);
            }
        }
        let line = format!(
            "values: {} made, {freed} freed, {} shares used",
            story.remote.values.len(),
            story.remote.holds.len()
        );
        self.verdict.summary.push(line);
    }

    /// True if a life that was there had the share then.
    fn is_held(&self, hold: &Hold, at_ns: u64) -> bool {
        hold.from_ns < at_ns
            && hold.until_ns.is_none_or(|until_ns| at_ns < until_ns)
            && self.lived_until(hold.by, at_ns)
            && at_ns < self.story.over_ns()
    }
}
