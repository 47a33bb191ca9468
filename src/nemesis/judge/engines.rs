//! Engines: what they say of themselves and of their peers, and attempts that are part of no step, call or lesson.

use super::{Judge, may_pass, show_ns};

/// What else a join, and a value that is to be made, may end with while something is broken: a worker has gone.
const ABOUT_PEERS: [&str; 3] = ["RPC_WORKER", "RPC_SHUTDOWN", "RPC_REFERENCE"];

/// How an engine says that it has no descriptors.
const WANTS: [&str; 3] = ["SYSTEM_LIMIT", "Too many open files", "too many open"];

impl Judge<'_> {
    /// No peer here breaks the protocol, so none is taken for one that does; and no engine meets what should not be.
    pub(super) fn engines(&mut self) {
        let story = self.story;
        let violations: u64 = story.violations.values().sum();
        for (by, count) in story.violations.iter().filter(|(_, count)| **count > 0) {
            let what = format!("protocol: life {by:?} took {count} peers for ones that break it");
            self.verdict.findings.push(what);
        }
        for (by, line) in &story.errors {
            // What cannot be done without descriptors is said as an error.
            let is_want = WANTS.iter().any(|want| line.contains(want));
            let began_ns = story.lives.get(by).map_or(0, |life| life.began_ns);
            let until_ns = story.death_ns(*by).unwrap_or(u64::MAX);
            let mut shorts = story
                .faults
                .iter()
                .filter(|fault| fault.what == "descriptors" && fault.tasks.contains(&by.0));
            let is_short = shorts.any(|fault| (began_ns..=until_ns).contains(&fault.from_ns));
            if !is_want || !is_short {
                let what = format!("error: in life {by:?}: {line}");
                self.verdict.findings.push(what);
            }
        }
        let (seen, bound) = (violations.to_string(), "0".to_owned());
        self.row("peers taken for ones that break the protocol", seen, bound);
    }

    /// While nothing is broken sessions begin, workers join, and values are made, each at the first attempt; else they
    /// fail with what was broken.
    pub(super) fn attempts(&mut self) {
        let (story, over_ns) = (self.story, self.story.over_ns());
        let mut wrong = Vec::new();
        for attempt in &story.unbegun {
            let (by, from_ns, until_ns) = (attempt.by, attempt.from_ns, attempt.until_ns);
            let is_excused = may_pass(&attempt.reason);
            if until_ns < over_ns && (!is_excused || self.is_calm_everywhere(from_ns, until_ns)) {
                let (lasted, reason) = (show_ns(until_ns - from_ns), &attempt.reason);
                wrong.push(format!(
                    "life {by:?} could begin no session at {from_ns} within {lasted}: {reason}"
                ));
            }
        }
        for (by, attempts) in &story.remote.unjoined {
            let mut since_ns = story.lives.get(by).map_or(0, |life| life.began_ns);
            for (at_ns, reason) in attempts {
                let is_excused = may_pass(reason) || ABOUT_PEERS.contains(&reason.as_str());
                let is_over = *at_ns >= over_ns;
                if !is_over && (!is_excused || self.is_calm_everywhere(since_ns, *at_ns)) {
                    wrong.push(format!(
                        "life {by:?} could not join from {since_ns} to {at_ns}: {reason}"
                    ));
                }
                since_ns = *at_ns;
            }
        }
        for (by, at, at_ns, reason) in &story.remote.unmade {
            let is_excused = may_pass(reason) || ABOUT_PEERS.contains(&reason.as_str());
            let is_over = *at_ns >= over_ns;
            if !is_over && (!is_excused || self.is_calm(by.0, *at, *at_ns, *at_ns)) {
                wrong.push(format!(
                    "life {by:?} had no value made at {at} at {at_ns}: {reason}"
                ));
            }
        }
        let wrong = wrong.into_iter().map(|what| format!("attempt: {what}"));
        self.verdict.findings.extend(wrong);
    }
}
