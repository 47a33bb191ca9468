//! Devices: no work there meets memory that is gone, and all memory comes home.

use std::collections::BTreeSet;

use super::super::scope::{Kind, Lull};
use super::super::story::Outcome;
use super::Judge;

impl Judge<'_> {
    /// What tasks said of their devices while none of them sent anything that lies there.
    pub(super) fn devices(&mut self) {
        let story = self.story;
        let (mut most, mut looks) = (0, 0);
        for (at_ns, by, held) in &story.devices {
            if held.violations > 0 || held.quarantined > 0 {
                let what =
                    format!("device: work met what it may not: {held:?} of {by:?} at {at_ns}");
                self.verdict.findings.push(what);
            }
            let from_ns = at_ns.saturating_sub(Lull::WHOLE_NS);
            // What goes to another host is copied before it leaves.
            let near = story.lives.keys().map(|life| life.0);
            let near = near.filter(|other| *other != by.0 && story.are_near(by.0, *other));
            let near: BTreeSet<u32> = near.collect();
            let is_calm = near
                .into_iter()
                .all(|other| self.is_calm(by.0, other, from_ns, *at_ns));
            if !is_calm || story.late_ns(*by, from_ns, *at_ns) > Lull::LATE_NS {
                continue;
            }
            looks += 1;
            let out = held.blocks + held.kept;
            most = most.max(out);
            if out > 0 {
                let what =
                    format!("device: memory did not come home: {held:?} of {by:?} at {at_ns}");
                self.verdict.findings.push(what);
            }
        }
        if looks == 0 {
            let what = "device: what devices hold was never looked at while all was calm";
            self.verdict.findings.push(what.to_owned());
        }
        self.row(
            "device memory that did not come home",
            most.to_string(),
            "0".to_owned(),
        );
        self.verdict
            .summary
            .push(format!("looks at devices at rest: {looks}"));
        self.lent();
    }

    /// Tasks that share a host have read each other's devices in place.
    fn lent(&mut self) {
        let story = self.story;
        let lent = story.receives.iter().filter_map(|receive| {
            let is_device = receive.lane.kind == Kind::Device;
            match &receive.end {
                Some((_, Outcome::Got(_, way))) if is_device && way == "device" => {
                    Some((receive.lane.other, receive.by.0))
                }
                _ => None,
            }
        });
        let lent: BTreeSet<(u32, u32)> = lent.collect();
        let tasks: BTreeSet<u32> = story.lives.keys().map(|life| life.0).collect();
        for from in &tasks {
            for to in tasks.iter().filter(|to| *to != from) {
                if story.are_near(*from, *to) && !lent.contains(&(*from, *to)) {
                    let what = format!("device: {to} never read a device of {from} in place");
                    self.verdict.findings.push(what);
                }
            }
        }
    }
}
