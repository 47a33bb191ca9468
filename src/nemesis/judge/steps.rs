//! Steps: what became of the graphs that tasks ran over all tasks while their world was broken.
//!
//! A step of a session gives the right answer, or fails with what was broken, in time; where nothing was, none fails,
//! and sessions come back. Nothing of them is left in a task that ended in good order.

use std::collections::BTreeMap;

use super::super::story::{Ended, Fault, GraphStep};
use super::{Judge, may_pass, show_ns};

/// How long a master asks a worker that it has lost whether it still has the session.
const REOPEN_NS: u64 = 2_000_000_000;
/// How long nothing may be broken before a task must have had an answer.
const FLOWS_NS: u64 = 3_000_000_000;

impl Judge<'_> {
    pub(super) fn steps(&mut self) {
        let mut worst_ns = None;
        let [mut right, mut failed] = [0_u64; 2];
        // When the last step of each life ended.
        let mut ends_ns = BTreeMap::new();
        for step in &self.story.steps {
            let life = self.story.lives.get(&step.by);
            let last_ns = ends_ns.get(&step.by).copied();
            let last_ns = last_ns.or_else(|| life.map(|life| life.began_ns));
            let since_ns = last_ns.unwrap_or(step.began_ns).min(step.began_ns);
            if let Some((end_ns, _)) = step.end {
                ends_ns.insert(step.by, end_ns);
            }
            match &step.end {
                Some((_, Ended::Right(true))) => right += 1,
                Some((_, Ended::Broken { .. })) => failed += 1,
                _ => {}
            }
            let mut wrong = self.answer(step, since_ns);
            wrong.extend(self.step_time(step, &mut worst_ns));
            for what in wrong {
                let what = format!("step: {what}: {}", show_step(step));
                self.verdict.findings.push(what);
            }
        }
        self.steps_flow();
        for (by, left) in &self.story.left {
            if *left != (0, 0) {
                let (sessions, steps) = left;
                let what =
                    format!("left: {sessions} sessions and {steps} steps of graphs in life {by:?}");
                self.verdict.findings.push(what);
            }
        }
        for (by, life) in &self.story.lives {
            if life.ended_ns.is_some() && !self.story.left.contains_key(by) {
                let what = format!("left: life {by:?} did not say what is left of its sessions");
                self.verdict.findings.push(what);
            }
        }
        let line = format!("steps of graphs: {right} right, {failed} failed");
        self.verdict.summary.push(line);
        let bound = show_ns(self.bounds.failure_detection_ns * 3 / 2 + self.bounds.slack_ns);
        let worst = worst_ns.map(show_ns);
        self.row_if("a step after a lasting fault", worst, bound);
    }

    /// What is wrong with what a step gave whose session was there, or being begun, since then.
    ///
    /// A session is begun at all workers at once, and waits for those that are down. One that is there already may
    /// lose its master meanwhile, and what it was lost by may be mended long before the first step meets it.
    fn answer(&mut self, step: &GraphStep, since_ns: u64) -> Vec<String> {
        let Some((end_ns, ended)) = &step.end else {
            return vec![];
        };
        let (reason, named) = match ended {
            Ended::Right(true) => return vec![],
            Ended::Right(false) => return vec!["its answer is wrong".to_owned()],
            Ended::Broken {
                is_derived: true, ..
            } => return vec!["it failed with what only follows from something else".to_owned()],
            Ended::Broken { reason, named, .. } => (reason, named),
        };
        let from_ns = since_ns;
        if self.is_calm_everywhere(from_ns, *end_ns) {
            return vec![format!("{reason} without a cause")];
        }
        if !may_pass(reason) {
            return vec![format!("{reason} is no reason")];
        }
        if named.is_empty() {
            return vec![format!("{reason} names no task")];
        }
        let settle_ns = self.bounds.settle_ns;
        // What was broken a while ago may be met by a session that begins now. The clock of the day concerns no task.
        let met = self.story.faults.iter().filter(|fault| {
            fault.what != "clock"
                && fault.from_ns <= *end_ns
                && from_ns <= fault.until_ns.saturating_add(settle_ns)
        });
        // Of a link that is cut each side names the other; and who was stopped finds, when it goes on, that the others
        // have ended their connections to it.
        let is_named = |fault: &Fault| {
            let is_of_tasks = matches!(fault.what.as_str(), "kill" | "stop");
            let is_own = fault.what == "stop" && fault.tasks.contains(&step.by.0);
            !is_of_tasks || is_own || fault.tasks.iter().any(|task| named.contains(task))
        };
        let begins = self.story.lives.iter();
        let mut begins = begins.filter(|(_, life)| {
            life.began_ns <= *end_ns && from_ns <= life.began_ns.saturating_add(settle_ns)
        });
        let is_met = met.clone().any(is_named) || begins.any(|(by, _)| named.contains(&by.0));
        if !is_met {
            return vec![format!("{reason} names {named:?}, and others were broken")];
        }
        vec![]
    }

    /// What is wrong with when it ended.
    fn step_time(&self, step: &GraphStep, worst_ns: &mut Option<u64>) -> Option<String> {
        let latest_ns = self.step_due_ns(step);
        let Some((end_ns, _)) = step.end else {
            return self
                .lived_until(step.by, latest_ns)
                .then(|| "it never ended".to_owned());
        };
        let late_ns = self.late_anywhere(step.began_ns, end_ns);
        let bound_ns = self.bounds.failure_detection_ns * 3 / 2 + self.bounds.slack_ns;
        for fault in &self.story.faults {
            // Where another fault, or a stop of its own task, gives it more time, that counts.
            let is_due = latest_ns == fault.struck_ns.saturating_add(bound_ns);
            let is_met = step.began_ns < fault.from_ns && fault.from_ns < end_ns;
            if self.is_lasting(fault) && is_due && is_met {
                let took_ns = end_ns.saturating_sub(fault.struck_ns + late_ns);
                *worst_ns = (*worst_ns).max(Some(took_ns));
            }
        }
        (end_ns > latest_ns.saturating_add(late_ns))
            .then(|| format!("it ended {} too late", show_ns(end_ns - latest_ns)))
    }

    /// By when a step must have ended.
    fn step_due_ns(&self, step: &GraphStep) -> u64 {
        let (settle_ns, slack_ns) = (self.bounds.settle_ns, self.bounds.slack_ns);
        let far_ns = self.bounds.failure_detection_ns * 3 / 2;
        let end_ns = step.end.as_ref().map_or(u64::MAX, |(end_ns, _)| *end_ns);
        let mut due_ns = None;
        for fault in &self.story.faults {
            if fault.what == "clock"
                || fault.from_ns > end_ns
                || fault.until_ns.saturating_add(settle_ns) < step.began_ns
            {
                continue;
            }
            let of_fault_ns = if self.is_stop_beside(fault, step.by.0) {
                // A neighbour that is stopped is alive: the master waits for it.
                fault.until_ns.saturating_add(settle_ns)
            } else if step.began_ns >= fault.from_ns {
                // It found a worker lost, and asked whether it is there.
                step.began_ns + REOPEN_NS + far_ns
            } else if self.is_lasting(fault) {
                fault.struck_ns + far_ns
            } else {
                fault.until_ns.saturating_add(settle_ns)
            };
            due_ns = due_ns.max(Some(of_fault_ns));
        }
        let due_ns = due_ns.unwrap_or(step.began_ns + settle_ns);
        self.excused(step.by.0, due_ns).saturating_add(slack_ns)
    }

    /// Whether it stopped that task or one of the same host.
    fn is_stop_beside(&self, fault: &Fault, task: u32) -> bool {
        let is_beside = |other: &u32| *other == task || self.story.are_near(*other, task);
        fault.what == "stop" && fault.tasks.iter().any(is_beside)
    }

    /// Whether a task far from those it strikes must take them for lost.
    fn is_lasting(&self, fault: &Fault) -> bool {
        let far_ns = self.bounds.failure_detection_ns * 3 / 2;
        let lasts = fault.until_ns - fault.struck_ns >= far_ns;
        match fault.what.as_str() {
            "kill" => true,
            "cut" | "deaf" | "mute" | "stop" => lasts,
            _ => false,
        }
    }

    /// While nothing is broken every task has answers.
    fn steps_flow(&mut self) {
        let lives: Vec<_> = self
            .story
            .lives
            .iter()
            .map(|(by, life)| (*by, *life))
            .collect();
        for (by, life) in lives {
            let ends = self.story.steps.iter().filter(|step| step.by == by);
            let ends = ends.filter_map(|step| match &step.end {
                Some((end_ns, Ended::Right(true))) => Some(*end_ns),
                _ => None,
            });
            let mut last_ns = life.began_ns;
            let death_ns = self.story.death_ns(by).unwrap_or(u64::MAX);
            let until_ns = death_ns.min(self.story.over_ns());
            let mut ends: Vec<_> = ends
                .filter(|end_ns| *end_ns <= until_ns)
                // A run whose end was not recorded is judged as far as there were answers.
                .chain((until_ns < u64::MAX).then_some(until_ns))
                .collect();
            ends.sort_unstable();
            for end_ns in ends {
                // Within a time without an answer there is one in which nothing was broken.
                if let Some(calm_ns) = self.calm_within(last_ns, end_ns, FLOWS_NS) {
                    let what = format!(
                        "step: task {} life {} had no answer from {last_ns} for {}, \
                         and nothing was broken at {calm_ns}",
                        by.0,
                        by.1,
                        show_ns(end_ns - last_ns)
                    );
                    self.verdict.findings.push(what);
                }
                last_ns = end_ns;
            }
        }
    }
}

fn show_step(step: &GraphStep) -> String {
    format!(
        "step {} of task {} life {}, begun at {}: {:?}",
        step.step, step.by.0, step.by.1, step.began_ns, step.end
    )
}
