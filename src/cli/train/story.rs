//! The story of a training: how it goes, when it is over, and how it is told.
//!
//! Knows times and figures; nothing of sessions and processes. The watcher of a training tells it what was found, and
//! is told what to do.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use super::DigitsArgs;
use super::edges::{self, Edge};
use crate::error::CliError;
use crate::terminal::{Progress, Terminal};

#[cfg(test)]
mod tests;

/// What a good network reaches; when it was is told at the end.
const GOOD: f32 = 0.97;
/// How often it is told where no bar is shown.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How often the variables are kept.
const KEEP_EVERY: Duration = Duration::from_secs(1);

/// What was found of a training.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Look {
    /// Steps since the first, also before it was resumed.
    pub(super) steps: u64,
    /// Steps that each worker took part in, since it was begun or resumed.
    pub(super) each: Vec<u64>,
    /// Mean loss of the tested digits.
    pub(super) loss: f32,
    /// Share of the tested digits that were read right.
    pub(super) accuracy: f32,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    GoesOn,
    /// It is time to kill the last worker.
    Kill,
    /// The killed worker trains again: so much later, and after so many steps of others.
    Back(Duration, u64),
    Over,
}

/// What becomes of a worker that is to be killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    None,
    /// It is to be killed so long after training began.
    Due(Duration),
    /// When and after which step it was killed, and its own steps at the first look after that.
    Killed(Instant, u64, Option<u64>),
}

/// A training that is under way.
#[derive(Debug)]
pub(super) struct Story {
    target: u64,
    tested: usize,
    began: Instant,
    first: Option<u64>,
    /// Steps at the last look.
    seen: u64,
    victim: Victim,
    good_after: Option<Duration>,
    told: Instant,
    kept: Instant,
    path: Option<PathBuf>,
    progress: Option<Progress>,
}

impl Story {
    /// Of a training of `target` steps, that is tested with `tested` digits.
    pub(super) fn new(args: &DigitsArgs, target: u64, tested: usize) -> Self {
        let now = Instant::now();
        Self {
            target,
            tested,
            began: now,
            first: None,
            seen: 0,
            victim: args.kill_worker_at.map_or(Victim::None, Victim::Due),
            good_after: None,
            told: now,
            kept: now,
            path: None,
            progress: None,
        }
    }

    /// The variables have their values; `steps` were made before.
    pub(super) fn begin(&mut self, steps: u64) {
        self.began = Instant::now();
        self.told = self.began;
        self.kept = self.began;
        self.first = Some(steps);
        self.seen = steps;
    }

    /// Tells of what was found.
    ///
    /// # Errors
    /// `OUTPUT_UNWRITABLE`.
    pub(super) fn tell(
        &mut self,
        args: &DigitsArgs,
        look: &Look,
        terminal: &mut Terminal,
    ) -> Result<Ending, CliError> {
        let elapsed = self.began.elapsed();
        self.seen = look.steps;
        if look.accuracy >= GOOD && self.good_after.is_none() {
            self.good_after = Some(elapsed);
        }
        let how = format!(
            "loss {:.3}  accuracy {:.1} %",
            look.loss,
            100.0 * look.accuracy
        );
        if args.json {
            terminal.line(json!({
                "steps": look.steps, "loss": look.loss, "accuracy": look.accuracy, "elapsed_s": elapsed.as_secs_f64(),
                "worker_steps": look.each,
            }))?;
        } else {
            let target = self.target;
            let progress = self
                .progress
                .get_or_insert_with(|| terminal.progress(target));
            progress.at(look.steps.min(target), &how);
            if terminal.width().is_none() && self.told.elapsed() >= TELL_EVERY {
                self.told = Instant::now();
                terminal.line(format!("step {}  {how}", look.steps))?;
            }
        }
        let ending = self.next(look, elapsed);
        if let Ending::Back(after, steps) = ending {
            let victim = args.workers - 1;
            let text = format!(
                "worker:{victim} trains again {:.2} s later; {steps} steps were made meanwhile",
                after.as_secs_f64()
            );
            let object = json!({"back": victim, "after_s": after.as_secs_f64(), "steps": steps});
            self.say(args, &text, object, terminal)?;
        }
        Ok(ending)
    }

    /// What is to be done after a look.
    fn next(&mut self, look: &Look, elapsed: Duration) -> Ending {
        let own = look.each.last().copied().unwrap_or_default();
        match self.victim {
            Victim::Due(at) if elapsed >= at && Some(look.steps) > self.first => {
                return Ending::Kill;
            }
            // Steps that it had sent before it died may still have counted: only what is counted later is new.
            Victim::Killed(when, steps, None) => {
                self.victim = Victim::Killed(when, steps, Some(own))
            }
            Victim::Killed(when, steps, Some(before)) if own > before => {
                self.victim = Victim::None;
                return Ending::Back(when.elapsed(), look.steps.saturating_sub(steps));
            }
            _ => {}
        }
        let is_waiting = matches!(self.victim, Victim::Due(_) | Victim::Killed(..));
        if look.steps >= self.target && !is_waiting {
            Ending::Over
        } else {
            Ending::GoesOn
        }
    }

    /// The last worker was killed after this look.
    ///
    /// # Errors
    /// `OUTPUT_UNWRITABLE`.
    pub(super) fn killed(
        &mut self,
        args: &DigitsArgs,
        look: &Look,
        terminal: &mut Terminal,
    ) -> Result<(), CliError> {
        self.victim = Victim::Killed(Instant::now(), look.steps, None);
        let victim = args.workers - 1;
        let after = self.began.elapsed().as_secs_f64();
        let text = format!(
            "worker:{victim} was killed after {after:.2} s, at step {}; it is started again",
            look.steps
        );
        let object = json!({"killed": victim, "after_s": after, "steps": look.steps});
        self.say(args, &text, object, terminal)
    }

    fn say(
        &self,
        args: &DigitsArgs,
        text: &str,
        object: serde_json::Value,
        terminal: &mut Terminal,
    ) -> Result<(), CliError> {
        if args.json {
            terminal.line(object)?;
            return Ok(());
        }
        match &self.progress {
            Some(progress) => progress.suspend(|| terminal.line(text))?,
            None => terminal.line(text)?,
        }
        Ok(())
    }

    /// True if the target is reached by so many steps since the last look.
    pub(super) const fn is_enough(&self, made: u64) -> bool {
        let is_waiting = matches!(self.victim, Victim::Due(_) | Victim::Killed(..));
        !is_waiting && self.seen + made >= self.target
    }

    pub(super) fn is_time_to_keep(&mut self) -> bool {
        let is_time = self.kept.elapsed() >= KEEP_EVERY;
        if is_time {
            self.kept = Instant::now();
        }
        is_time
    }

    /// The variables are kept there.
    pub(super) fn kept(&mut self, path: PathBuf) {
        self.path = Some(path);
    }

    /// Tells how it ended.
    ///
    /// # Errors
    /// `OUTPUT_UNWRITABLE`.
    pub(super) fn end(
        &mut self,
        args: &DigitsArgs,
        took: Duration,
        last: &Look,
        edges: &[Edge],
        terminal: &mut Terminal,
    ) -> Result<(), CliError> {
        self.progress = None;
        let first = self.first.unwrap_or_default();
        let made = last.steps.saturating_sub(first);
        let rate = made as f64 / took.as_secs_f64().max(1e-9);
        let mode = if args.sync { "sync" } else { "async" };
        if args.json {
            terminal.line(json!({
                "mode": mode, "ps": args.ps, "workers": args.workers, "steps": last.steps, "resumed_at": first,
                "took_s": took.as_secs_f64(), "steps_per_s": rate, "loss": last.loss, "accuracy": last.accuracy,
                "tested": self.tested, "good_after_s": self.good_after.map(|after| after.as_secs_f64()),
                "worker_steps": last.each, "checkpoint": self.path,
            }))?;
            for edge in edges {
                terminal.line(edges::json(edge))?;
            }
            return Ok(());
        }
        let resumed = match first {
            0 => String::new(),
            first => format!(" from step {first} on"),
        };
        terminal.line(format!(
            "{mode}, {} ps + {} workers: {made} steps{resumed} in {:.2} s, {rate:.0} a second",
            args.ps,
            args.workers,
            took.as_secs_f64()
        ))?;
        let each: Vec<String> = last.each.iter().map(u64::to_string).collect();
        terminal.line(format!("steps of each worker: {}", each.join(", ")))?;
        let good = match self.good_after {
            Some(after) => format!("97 % were reached after {:.2} s", after.as_secs_f64()),
            None => "97 % were not reached".to_owned(),
        };
        terminal.line(format!(
            "of {} digits kept for testing {:.1} % are read right, loss {:.3}; {good}",
            self.tested,
            100.0 * last.accuracy,
            last.loss
        ))?;
        if let Some(path) = &self.path {
            terminal.line(format!("checkpoint: {}", path.display()))?;
        }
        // What only the first values of the variables took is no part of training.
        let used: Vec<Edge> = edges
            .iter()
            .filter(|edge| edge.count > 1)
            .cloned()
            .collect();
        if !used.is_empty() {
            terminal.line(format!(
                "\nevery edge that was cut, by stage (means of the last values that were recorded)\n{}",
                edges::table(&used, terminal.width())
            ))?;
        }
        Ok(())
    }

    /// How long it has gone on.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}
