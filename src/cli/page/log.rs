//! Interval logs, read: what was recorded under each tag, interval by interval.
//!
//! Knows the format, version 1.3, by the crate `hdrhistogram`; a log is untrusted, and is refused if it is none.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{
    IntervalLogHistogram, IntervalLogIterator, LogEntry,
};

use super::super::bounded::read_bounded;
use super::super::error::CliError;
use super::super::histogram::{PICOS_MARK, packed};

/// Bytes of a log at most: half a day of intervals of 100 ms.
const LOG_MAX: u64 = 1 << 30;

/// A log.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) name: String,
    /// What its comments say of it.
    pub(super) about: Vec<(String, String)>,
    /// What was recorded, by tag; without one under the empty name.
    pub(super) series: BTreeMap<String, Series>,
}

/// Counters of all tags at most, half a gigabyte: each tag keeps those of its whole distribution.
const COUNTERS_MAX: usize = 1 << 26;

/// Quantiles that are kept of each interval; a whole histogram of each would take thousands of times the log.
pub(super) const OVER_TIME: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

/// What was recorded under a tag.
#[derive(Debug)]
pub(super) struct Series {
    /// Intervals that hold anything: when each began, in seconds since the first of the log, and its quantiles, in
    /// nanoseconds.
    intervals: Vec<(f64, [f64; OVER_TIME.len()])>,
    whole: Histogram<u64>,
    /// Values in a nanosecond: what is shorter than a few is in picoseconds.
    per_nano: f64,
}

impl Log {
    pub(super) fn read(path: &Path) -> Result<Self, CliError> {
        let bytes = read_bounded(path, LOG_MAX)?
            .ok_or_else(|| malformed(path, "it is longer than a gigabyte"))?;
        let name = path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Self::of(&bytes, name).map_err(|what| malformed(path, &what))
    }

    pub(super) fn of(bytes: &[u8], name: String) -> Result<Self, String> {
        let mut log = Self {
            name,
            about: about(bytes),
            series: BTreeMap::new(),
        };
        let mut before = Before::default();
        for (at, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            // A line is an entry or none.
            for entry in IntervalLogIterator::new(line) {
                let read = match entry {
                    Ok(LogEntry::Interval(interval)) => log.take_in(&interval, &mut before),
                    Ok(_) => Ok(()),
                    Err(_) => Err("it is neither an interval nor a comment".into()),
                };
                read.map_err(|what| format!("line {}: {what}", at + 1))?;
            }
        }
        if log.series.is_empty() {
            return Err("it holds no interval".into());
        }
        Ok(log)
    }

    fn take_in(
        &mut self,
        interval: &IntervalLogHistogram<'_>,
        before: &mut Before,
    ) -> Result<(), String> {
        let packed = base64::engine::general_purpose::STANDARD
            .decode(interval.encoded_histogram())
            .map_err(|error| format!("an interval is no base64: {error}"))?;
        let histogram = packed::histogram_of(&packed)
            .map_err(|error| format!("an interval holds no histogram: {error}"))?;
        let start = interval.start_timestamp().as_secs_f64();
        let since = start - *before.first.get_or_insert(start);
        let tag = interval.tag().map_or("", |tag| tag.as_str());
        let (tag, per_nano) = match tag.strip_suffix(PICOS_MARK) {
            Some(tag) => (tag, 1e3),
            None => (tag, 1.0),
        };
        let quantiles = (!histogram.is_empty())
            .then(|| OVER_TIME.map(|(_, quantile)| at(&histogram, quantile) / per_nano));
        let series = match self.series.get_mut(tag) {
            Some(series) => {
                // No valid log changes range or precision within one tag.
                series
                    .whole
                    .add(&histogram)
                    .map_err(|error| format!("intervals of '{tag}' differ: {error}"))?;
                packed::check_count(&series.whole)?;
                series
            }
            None => {
                before.counters = histogram.distinct_values().saturating_add(before.counters);
                if before.counters > COUNTERS_MAX {
                    return Err("the tags hold more than half a gigabyte of counters".into());
                }
                let series = Series {
                    intervals: Vec::new(),
                    whole: histogram,
                    per_nano,
                };
                self.series.entry(tag.to_owned()).or_insert(series)
            }
        };
        series
            .intervals
            .extend(quantiles.map(|quantiles| (since, quantiles)));
        Ok(())
    }
}

/// What is known of the lines before.
#[derive(Default)]
struct Before {
    /// When the first interval began.
    first: Option<f64>,
    /// Counters of all tags.
    counters: usize,
}

/// What comments like `#[rendez machine: …]` and the start time say.
fn about(bytes: &[u8]) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(64 << 10)]);
    let comments = text.lines().filter_map(|line| {
        line.strip_prefix('#')?
            .trim()
            .strip_prefix('[')?
            .strip_suffix(']')
    });
    let pairs = comments.filter_map(|line| {
        let (what, text) = line.split_once(':')?;
        let what = what.trim_start_matches("rendez ").trim();
        (!what.starts_with("Histogram log")).then(|| (what.to_owned(), text.trim().to_owned()))
    });
    pairs
        .filter(|(what, _)| what != "BaseTime")
        .take(16)
        .collect()
}

fn malformed(path: &Path, what: &str) -> CliError {
    let message = format!("'{}' is no interval log: {what}", path.display());
    CliError::failure("HDR_LOG_MALFORMED", message)
}

impl Series {
    pub(super) fn count(&self) -> u64 {
        self.whole.len()
    }

    pub(super) fn mean(&self) -> f64 {
        self.whole.mean() / self.per_nano
    }

    /// The time that so many of all are at most, in nanoseconds.
    pub(super) fn at(&self, quantile: f64) -> f64 {
        at(&self.whole, quantile) / self.per_nano
    }

    /// The curve of the distribution: how many nines, and the time in nanoseconds.
    pub(super) fn percentiles(&self) -> Vec<(f64, f64)> {
        let count = self.count().max(1) as f64;
        let most = count.log10().min(7.0);
        let steps = 160;
        let points = (0..=steps).map(|step| {
            let nines = most * f64::from(step) / f64::from(steps);
            (nines, self.at(1.0 - 10f64.powf(-nines)))
        });
        points.collect()
    }

    /// One of [`OVER_TIME`] of each interval: seconds, and the time in nanoseconds.
    pub(super) fn over_time(&self, which: usize) -> Vec<(f64, f64)> {
        let point = |(since, quantiles): &(f64, [f64; OVER_TIME.len()])| {
            Some((*since, *quantiles.get(which)?))
        };
        self.intervals.iter().filter_map(point).collect()
    }
}

/// The value that so many of all are at most; the crate gives the upper end of its bucket.
fn at(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile).min(histogram.max()) as f64
}
