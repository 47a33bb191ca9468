//! Lessons: trainings by remote calls go on whatever is broken, and each step of them is done exactly once.
//!
//! The judge does each step again, in plain numbers, from the weights that the trainer saw before it. A step that was
//! not applied, or twice, or with a gradient of another step, leaves other weights.

use super::super::lesson;
use super::super::story::remote::Lesson;
use super::{Judge, show_ns};

/// Why a model may be given up while something is broken.
const EXCUSES: [&str; 9] = [
    "PEER_LOST",
    "PEER_RESTARTED",
    "PEER_STATUS",
    "RPC_TIMEOUT",
    "RPC_SHUTDOWN",
    "RPC_REFERENCE",
    "RPC_REMOTE_ERROR",
    "RPC_WORKER",
    "AUTOGRAD_WORKER_DEAD",
];
/// How long nothing may be broken before a trainer must have done a step.
const FLOWS_NS: u64 = 4_000_000_000;

impl Judge<'_> {
    pub(super) fn lessons(&mut self) {
        let story = self.story;
        let (mut steps, mut models) = (0, 0);
        for (by, lessons) in &story.remote.lessons {
            let mut weights = lesson::ignorance().to_vec();
            let mut next = 0;
            let (mut at, mut last_ns) = (by.0, 0);
            for (at_ns, lesson) in lessons {
                let wrong = match lesson {
                    Lesson::Begins {
                        at: there,
                        weights: from,
                    } => {
                        models += 1;
                        at = *there;
                        (*from != weights)
                            .then(|| "a model does not begin where the last one ended".to_owned())
                    }
                    Lesson::Step {
                        step,
                        loss,
                        weights: after,
                    } => {
                        let (due_loss, due) = lesson::step(&weights, next);
                        let is_next = *step == next;
                        let is_right = lesson::are_near(after, &due);
                        let is_loss = lesson::are_near(&[*loss], &[due_loss]);
                        let before = std::mem::replace(&mut weights, after.clone());
                        next = step + 1;
                        steps += 1;
                        (!is_next || !is_right || !is_loss).then(|| {
                            format!(
                                "step {step} was not done once: {before:?} became {after:?}, not {due:?}; \
                                 loss {loss}, not {due_loss}"
                            )
                        })
                    }
                    Lesson::Gave(reason) => self.gave(*by, at, (last_ns, *at_ns), reason),
                };
                last_ns = *at_ns;
                if let Some(what) = wrong {
                    let what = format!("lesson: {what}, life {by:?} at {at_ns}");
                    self.verdict.findings.push(what);
                }
            }
            self.lessons_flow(*by, lessons);
        }
        let line = format!("trainings: {steps} steps with {models} models");
        self.verdict.summary.push(line);
    }

    /// A model is given up because something is broken.
    fn gave(&mut self, by: (u32, u32), at: u32, time: (u64, u64), reason: &str) -> Option<String> {
        if !EXCUSES.contains(&reason) {
            return Some(format!("{reason} is no reason"));
        }
        let is_calm = self.is_calm(by.0, at, time.0, time.1) && time.1 < self.story.over_ns();
        is_calm.then(|| format!("{reason} of {at} without a cause"))
    }

    /// While nothing is broken a trainer gets on.
    fn lessons_flow(&mut self, by: (u32, u32), lessons: &[(u64, Lesson)]) {
        let Some(mut last_ns) = self.story.remote.joined.get(&by).copied() else {
            return;
        };
        let until_ns = self.story.death_ns(by).unwrap_or(u64::MAX);
        let until_ns = until_ns.min(self.story.over_ns());
        let steps = lessons.iter().filter_map(|(at_ns, lesson)| match lesson {
            Lesson::Step { .. } if *at_ns <= until_ns => Some(*at_ns),
            _ => None,
        });
        let ends: Vec<u64> = steps
            .chain((until_ns < u64::MAX).then_some(until_ns))
            .collect();
        for end_ns in ends {
            if let Some(calm_ns) = self.calm_within(last_ns, end_ns, FLOWS_NS) {
                let what = format!(
                    "lesson: life {by:?} did no step for {} from {last_ns}, and nothing was broken at {calm_ns}",
                    show_ns(end_ns - last_ns)
                );
                self.verdict.findings.push(what);
            }
            last_ns = end_ns;
        }
    }
}
