//! Recording of times, the percentiles that are reported, the open-loop schedule, and the interval log.
//!
//! Knows nothing of what was measured or how it is printed. Recording allocates nothing: a histogram has its full range
//! from the start (about 200 KiB at three digits).

pub(crate) mod packed;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer, V2Serializer};

use super::error::CliError;
use rendez::files::Output;

/// The longest time that is told apart from longer ones.
pub const NANOS_MAX: u64 = 60_000_000_000;

/// Significant digits kept: one part in a thousand, below the noise of any machine.
const DIGITS: u8 = 3;

/// How many different times are recorded of sends that are overdue.
const OVERDUE_STEPS: u64 = 10_000;

/// The five figures of a distribution that every report holds.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Summary {
    /// The median.
    pub p50: f64,
    /// Nine in ten are at most this.
    pub p90: f64,
    /// 99 in 100 are at most this.
    pub p99: f64,
    /// 999 in 1,000 are at most this.
    pub p99_9: f64,
    /// The largest.
    pub max: f64,
}

impl Summary {
    /// Each figure times `factor`: a whole round trip times ½ is half of one.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        self.map(|value| value * factor)
    }

    fn map(self, each: impl Fn(f64) -> f64) -> Self {
        Self {
            p50: each(self.p50),
            p90: each(self.p90),
            p99: each(self.p99),
            p99_9: each(self.p99_9),
            max: each(self.max),
        }
    }
}

/// How much was done a second.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize)]
pub struct Rates {
    /// All that was done over all of the time that it took, stalls included.
    pub mean: f64,
    /// Of the rate from one record to the next: p99 is what 99 in 100 do not exceed, and the maximum is the fastest.
    #[serde(flatten)]
    pub percentiles: Summary,
}

/// Records times, in nanoseconds or, for what is divided by a batch's size, in picoseconds.
#[derive(Clone, Debug)]
pub struct Recorder {
    histogram: Histogram<u64>,
    per_nano: f64,
}

impl Recorder {
    /// A recorder of nanoseconds: 1 ns to 60 s.
    #[must_use]
    pub fn nanos() -> Self {
        Self {
            histogram: histogram(NANOS_MAX),
            per_nano: 1.0,
        }
    }

    /// A recorder of picoseconds: 1 ps to 60 s.
    #[must_use]
    pub fn picos() -> Self {
        Self {
            histogram: histogram(NANOS_MAX * 1_000),
            per_nano: 1e3,
        }
    }

    fn is_picos(&self) -> bool {
        self.per_nano > 1.0
    }

    /// Records one time. Zero counts as the smallest that is told apart, more than 60 s as 60 s.
    #[inline]
    pub fn record(&mut self, time: u64) {
        self.histogram.saturating_record(time.max(1));
    }

    /// Records a time so many times.
    pub fn record_many(&mut self, time: u64, count: u64) {
        self.histogram.saturating_record_n(time.max(1), count);
    }

    /// The mean, in nanoseconds; `None` if nothing was recorded.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.histogram.mean() / self.per_nano)
    }

    /// Records the sends of an open loop from `first` on that were due before `end_ns` and are not done at `now_ns`,
    /// each with what it has waited until then; returns how many they are.
    pub fn record_overdue(
        &mut self,
        schedule: &Schedule,
        first: u64,
        end_ns: u64,
        now_ns: u64,
    ) -> u64 {
        let due = schedule.due_before(end_ns);
        let left = due.saturating_sub(first);
        // Of a rate far beyond reach they are more than there is time to record one by one.
        let together = left.div_ceil(OVERDUE_STEPS).max(1);
        let mut index = first;
        while index < due {
            let count = together.min(due - index);
            self.record_many(schedule.latency_ns(index, now_ns), count);
            index += count;
        }
        left
    }

    /// Takes in what another recorder of the same unit recorded.
    ///
    /// # Panics
    /// If the other records another unit: that is a mistake in the program.
    pub fn merge(&mut self, other: &Self) {
        assert!(
            self.per_nano.to_bits() == other.per_nano.to_bits(),
            "the recorders are of different units"
        );
        // Same range and digits, hence the only errors the crate has cannot occur.
        let _ = self.histogram.add(&other.histogram);
    }

    /// The whole distribution, as it crosses to another process.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A `Vec` takes everything, and the range fits the format: neither of its errors can occur.
        let _ = V2Serializer::new().serialize(&self.histogram, &mut bytes);
        bytes
    }

    /// A distribution of nanoseconds that another process sent; `None` if the bytes are none.
    #[must_use]
    pub fn nanos_from(bytes: &[u8]) -> Option<Self> {
        Self::nanos().filled(bytes)
    }

    /// A distribution of picoseconds that another process sent; `None` if the bytes are none.
    #[must_use]
    pub fn picos_from(bytes: &[u8]) -> Option<Self> {
        Self::picos().filled(bytes)
    }

    fn filled(mut self, bytes: &[u8]) -> Option<Self> {
        let other = packed::histogram_of(bytes).ok()?;
        self.histogram.add(&other).ok()?;
        Some(self)
    }

    /// Forgets everything; keeps the memory.
    pub fn clear(&mut self) {
        self.histogram.reset();
    }

    /// How many times were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The times, in nanoseconds; `None` if nothing was recorded.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        let at = |quantile: f64| self.histogram.value_at_quantile(quantile) as f64 / self.per_nano;
        let max = self.histogram.max() as f64 / self.per_nano;
        (self.count() > 0).then(|| Summary {
            // The crate gives the upper end of a bucket, which can lie past the largest value recorded.
            p50: at(0.5).min(max),
            p90: at(0.9).min(max),
            p99: at(0.99).min(max),
            p99_9: at(0.999).min(max),
            max,
        })
    }

    /// The rate of `work` per recorded time, a second: `work` is 1 for operations and their bytes for bandwidth.
    #[must_use]
    pub fn rates(&self, work: f64) -> Option<Rates> {
        let mean = work * 1e9 / self.mean()?;
        let fastest = self.histogram.min().max(1) as f64;
        let rate = |time: f64| work * 1e9 * self.per_nano / time.max(fastest);
        let at = |quantile: f64| rate(self.histogram.value_at_quantile(1.0 - quantile) as f64);
        let percentiles = Summary {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: rate(fastest),
        };
        Some(Rates { mean, percentiles })
    }
}

fn histogram(max: u64) -> Histogram<u64> {
    match Histogram::new_with_bounds(1, max, DIGITS) {
        Ok(histogram) => histogram,
        Err(error) => unreachable!("the bounds are constants: {error:?}"),
    }
}

/// When each send of an open loop is due.
///
/// Sends are due at fixed times, whatever happens to those before them, and a latency is counted from when its send was
/// *due*: a stall then counts for everything it held up. A loop that waits for its answers and counts from when it got
/// round to sending leaves those out, and reports a machine that stalls for a second as fast ("coordinated omission").
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    start_ns: u64,
    /// Nanoseconds between sends, with 32 fractional bits: a billion sends drift by a quarter of a nanosecond, where
    /// whole nanoseconds would drift by up to half a second.
    interval: u128,
}

impl Schedule {
    /// Sends at `per_second` a second, the first due at `start_ns` of whatever clock the loop reads.
    #[must_use]
    pub fn new(start_ns: u64, per_second: f64) -> Self {
        let interval = (1e9 * (1u64 << 32) as f64 / per_second.max(1e-6)) as u128;
        Self { start_ns, interval }
    }

    /// When send `index` is due.
    #[inline]
    #[must_use]
    pub const fn due_ns(&self, index: u64) -> u64 {
        self.start_ns
            .saturating_add(((self.interval.saturating_mul(index as u128)) >> 32) as u64)
    }

    /// How many sends are due before `end_ns`.
    #[must_use]
    pub const fn due_before(&self, end_ns: u64) -> u64 {
        let span = (end_ns.saturating_sub(self.start_ns) as u128) << 32;
        let interval = if self.interval == 0 { 1 } else { self.interval };
        span.div_ceil(interval) as u64
    }

    /// The latency of send `index`, which was complete at `done_ns`: from when it was due.
    #[inline]
    #[must_use]
    pub const fn latency_ns(&self, index: u64, done_ns: u64) -> u64 {
        done_ns.saturating_sub(self.due_ns(index))
    }
}

/// A distribution recorded between two moments, to be written to a log.
#[derive(Clone, Debug)]
pub struct Interval {
    /// Names the distribution within the log; characters the format reserves are replaced.
    pub tag: String,
    /// When recording began.
    pub start: SystemTime,
    /// How long it went on.
    pub duration: Duration,
    /// What was recorded.
    pub recorder: Recorder,
}

/// What the tag of a distribution of picoseconds ends with in a log. All others are nanoseconds.
pub(super) const PICOS_MARK: &str = "@ps";

/// Writes an `HdrHistogram` interval log, version 2 compressed, that the usual readers plot. Values are nanoseconds
/// (picoseconds for what was recorded so; its tag says it, as neither pattern nor transport does).
#[derive(Debug)]
pub struct HdrLog {
    path: PathBuf,
    file: BufWriter<Output>,
    begun: SystemTime,
    header: Option<Vec<String>>,
}

impl HdrLog {
    /// Creates or truncates the file at `path`, before anything is measured: a run should not end in a bad path. Each
    /// interval is in the file when it was measured, so a run that is killed leaves what it measured until then.
    ///
    /// # Errors
    /// `FILE_UNWRITABLE`.
    pub fn create(path: &Path, comment: &str) -> Result<Self, CliError> {
        let file = Output::live(path).map_err(|error| CliError::unwritable(path, &error))?;
        let header = Some(vec![comment.to_owned()]);
        Ok(Self {
            path: path.to_owned(),
            file: BufWriter::new(file),
            begun: SystemTime::now(),
            header,
        })
    }

    /// Says something of the whole log, before its first interval.
    pub fn describe(&mut self, what: &str, text: &str) {
        if let Some(header) = &mut self.header {
            header.push(format!(
                "[rendez {what}: {}]",
                text.replace(['\n', '\r'], " ")
            ));
        }
    }

    /// Adds one interval, and flushes: what was measured survives whatever comes.
    ///
    /// # Errors
    /// `FILE_UNWRITABLE`.
    pub fn write(&mut self, interval: &Interval) -> Result<(), CliError> {
        let mut serializer = V2DeflateSerializer::new();
        let mut builder = IntervalLogWriterBuilder::new();
        if let Some(comments) = self.header.take() {
            for comment in &comments {
                builder.add_comment(comment);
            }
            builder.add_comment("[Histogram log format version 1.3]");
            builder
                .with_start_time(self.begun)
                .with_base_time(self.begun);
        }
        let mark = if interval.recorder.is_picos() {
            PICOS_MARK
        } else {
            ""
        };
        let tag: String = interval
            .tag
            .chars()
            .chain(mark.chars())
            .map(|c| {
                if c == ',' || c.is_whitespace() {
                    '_'
                } else {
                    c
                }
            })
            .collect();
        let since = interval
            .start
            .duration_since(self.begun)
            .unwrap_or_default();
        let written = builder
            .begin_log_with(&mut self.file, &mut serializer)
            .and_then(|mut log| {
                log.write_histogram(
                    &interval.recorder.histogram,
                    since,
                    interval.duration,
                    Tag::new(&tag),
                )
                .map_err(|error| std::io::Error::other(format!("{error:?}")))
            });
        written
            .and_then(|()| self.file.flush())
            .map_err(|error| CliError::unwritable(&self.path, &error))
    }
}

#[cfg(test)]
mod tests;
