//! Seen: what every run must show at least once of each kind of work. What never happens breaks no other promise.

use std::collections::BTreeSet;

use super::super::history::remote::Answer;
use super::super::scope::Kind;
use super::super::story::remote::Lesson;
use super::super::story::{Ended, Outcome};
use super::Judge;

/// What each task must have done, as `seen` names it.
const ALONE: [&str; 3] = [
    "right step of a graph",
    "step of a training",
    "share of a value",
];
/// What each must have had of each other task.
const CALL: &str = "right call";

impl Judge<'_> {
    /// Every task has received of every other, called it, and done all else that tasks do.
    pub(super) fn seen(&mut self) {
        let story = self.story;
        let mut seen: BTreeSet<(&str, u32, u32)> = BTreeSet::new();
        let got = story.receives.iter();
        let got = got.filter(|receive| matches!(receive.end, Some((_, Outcome::Got(..)))));
        seen.extend(got.map(|one| (one.lane.kind.name(), one.lane.other, one.by.0)));
        let calls = story.remote.calls.values();
        let right = calls.filter(|call| matches!(call.end, Some((_, Answer::Right))));
        seen.extend(right.map(|call| (CALL, call.to, call.by.0)));
        let steps = story.steps.iter();
        let right = steps.filter(|step| matches!(step.end, Some((_, Ended::Right(true)))));
        seen.extend(right.map(|step| (ALONE[0], step.by.0, step.by.0)));
        let trainings = story.remote.lessons.iter();
        let learnt = trainings.filter(|(_, lessons)| {
            let is_step = |lesson: &(u64, Lesson)| matches!(lesson.1, Lesson::Step { .. });
            lessons.iter().any(is_step)
        });
        seen.extend(learnt.map(|(by, _)| (ALONE[1], by.0, by.0)));
        let holds = story.remote.holds.iter();
        seen.extend(holds.map(|hold| (ALONE[2], hold.by.0, hold.by.0)));

        let tasks: BTreeSet<u32> = story.lives.keys().map(|life| life.0).collect();
        let count = tasks.len() as u32;
        let mut missing = Vec::new();
        for from in &tasks {
            for what in ALONE {
                if !seen.contains(&(what, *from, *from)) {
                    missing.push(format!("task {from} had no {what}"));
                }
            }
            for to in tasks.iter().filter(|to| *to != from) {
                let is_flooded = *to == (from + 1) % count;
                let flood = is_flooded.then_some(Kind::Flood);
                for kind in Kind::SENT.into_iter().chain(flood) {
                    if !seen.contains(&(kind.name(), *from, *to)) {
                        let kind = kind.name();
                        missing.push(format!("nothing {kind} came from {from} to {to}"));
                    }
                }
                if !seen.contains(&(CALL, *from, *to)) {
                    missing.push(format!("task {to} had no {CALL} of {from}"));
                }
            }
        }
        let findings = missing.into_iter().map(|what| format!("traffic: {what}"));
        self.verdict.findings.extend(findings);
    }
}
