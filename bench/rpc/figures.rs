//! What was measured, by name: of a round, and over all rounds.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Failure;

/// The figures of one round.
pub(crate) type Figures = BTreeMap<&'static str, Figure>;

/// One thing that was measured.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    /// Times in microseconds: the half, and what 99 and 99.9 of a hundred are below, and the most.
    Times {
        p50: f64,
        p99: f64,
        p999: f64,
        max: f64,
    },
    /// So many a second.
    Rate(f64),
    /// A multiple of something.
    Ratio(f64),
}

impl Figure {
    /// What `times` are.
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort();
        let at = |part: f64| {
            let place = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
            times
                .get(place)
                .map_or(0.0, |time| time.as_secs_f64() * 1e6)
        };
        Self::Times {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: at(1.0),
        }
    }

    /// Does `what` so often, and says how long it took.
    pub(crate) fn timed(
        times: usize,
        mut what: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let mut all = Vec::with_capacity(times);
        for _ in 0..times {
            let began = Instant::now();
            what()?;
            all.push(began.elapsed());
        }
        Ok(Self::of(all))
    }

    /// What comes first of it: the half of times.
    pub(crate) const fn first(self) -> f64 {
        match self {
            Self::Times { p50, .. } => p50,
            Self::Rate(value) | Self::Ratio(value) => value,
        }
    }

    const fn parts(self) -> [Option<f64>; 4] {
        match self {
            Self::Times {
                p50,
                p99,
                p999,
                max,
            } => [Some(p50), Some(p99), Some(p999), Some(max)],
            Self::Rate(value) | Self::Ratio(value) => [Some(value), None, None, None],
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Times { .. } => "µs",
            Self::Rate(_) => "a second",
            Self::Ratio(_) => "×",
        }
    }
}

/// The figures of all rounds.
#[derive(Default)]
pub(crate) struct Rounds(BTreeMap<&'static str, Vec<Figure>>);

impl Rounds {
    pub(crate) fn add(&mut self, figures: Figures) {
        for (name, figure) in figures {
            self.0.entry(name).or_default().push(figure);
        }
    }

    /// Prints the median of each over the rounds.
    pub(crate) fn print(&self) -> Result<(), Failure> {
        let mut output = std::io::stdout();
        writeln!(
            output,
            "{:<44} {:>12} {:>10} {:>10} {:>10}",
            "median over the rounds", "p50", "p99", "p99.9", "max"
        )?;
        for (name, figures) in &self.0 {
            write!(output, "{name:<44}")?;
            for part in 0..4 {
                let mut all: Vec<f64> = figures
                    .iter()
                    .filter_map(|figure| figure.parts()[part])
                    .collect();
                all.sort_by(f64::total_cmp);
                match all.get(all.len() / 2) {
                    Some(value) => write!(output, " {value:>10.2}")?,
                    None => write!(output, " {:>10}", "")?,
                }
            }
            writeln!(output, " {}", figures.first().map_or("", |one| one.unit()))?;
        }
        Ok(())
    }
}
