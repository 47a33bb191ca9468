//! Rows of measurements, and their two forms: a JSON object a line for programs, a table for people.
//!
//! Knows nothing of how a row was measured. A row says in its fields what its figures are: `half_rtt_ns` is half of a
//! round trip, `rtt_ns` a whole one, and bandwidth is what the receiver counted.

use serde::Serialize;

use super::histogram::Summary;
use super::machine::Machine;
use super::units::{show_bandwidth, show_bytes, show_nanos, show_rate};

/// One measurement: a pattern over a transport at a size.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Row {
    /// `pingpong`, `oneway`, `rate`; of raw references `write_signal_read` and `memcpy` too.
    pub pattern: &'static str,
    /// `loopback`, `shm`, `tcp`; `raw` and `raw_tcp` for references that have no rendez in them.
    pub transport: &'static str,
    /// Bytes of a tensor.
    pub bytes: u64,
    /// Operations behind the figures.
    pub count: u64,
    /// Half of a round trip, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_rtt_ns: Option<Summary>,
    /// A whole round trip (of a write-signal-read cycle: the whole cycle), in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ns: Option<Summary>,
    /// One way, in nanoseconds, from when the send was due to when the receiver had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_way_ns: Option<Summary>,
    /// Time of one operation where no message travels, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_ns: Option<Summary>,
    /// Operations a second, at the receiver. Percentiles of the rate: `max` is the fastest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<Summary>,
    /// Bytes a second, at the receiver. Percentiles of the rate: `max` is the fastest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<Summary>,
    /// Where the time went, of the values that were followed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageRow>,
    /// The sum of the means of the stages over the mean of the whole, of the same hand-overs, of both sides: 1 where
    /// the stages leave nothing out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage_sum_over_mean: Option<f64>,
    /// The mean of the whole of the hand-overs that were timed over half the mean round trip of all: what looking
    /// costs those that are looked at, less what the bench's own task takes between two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed_over_all: Option<f64>,
    /// By how much `wire` and `whole` of the stages may be wrong, where they lie between two machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
    /// Heap allocations per operation while it was measured, on all threads of the measuring process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocations_per_op: Option<f64>,
    /// What a reader must know: cores shared, a rate that was not reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The machine; left out of a row within another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// The raw reference of the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Box<Baseline>>,
}

/// A stage of a hand-over, in a row.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StageRow {
    /// The stage.
    pub stage: &'static str,
    /// The way of the values.
    pub way: &'static str,
    /// How many were timed.
    pub count: u64,
    /// Their mean.
    pub mean_ns: f64,
    /// Their median, within one part in 128.
    pub p50_ns: u64,
    /// 99 in 100 are at most this.
    pub p99_ns: u64,
}

/// The raw references of the same machine in the same run: the ping-pong as a row of its own shape, of a cache line or,
/// beside TCP, of the message over a bare socket; and what the bytes alone cost.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Baseline {
    /// The ping-pong.
    #[serde(flatten)]
    pub pingpong: Row,
    /// The producer writes the bytes in place, signals, the consumer reads them in place and signals back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_signal_read: Option<Row>,
    /// One core copies the bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memcpy: Option<Row>,
    /// Messages one way over a bare socket, at their receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<Row>,
}

/// The figure of a row that a table shows, and what it is.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Shown {
    Half(Summary),
    Whole(Summary),
    OneWay(Summary),
    Time(Summary),
    Nothing,
}

impl Row {
    /// The row as one line of JSON.
    #[must_use]
    pub fn json(&self) -> String {
        // A row is numbers, texts and lists of them: serde_json has no way to fail on it, and writes no-number as null.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn shown(&self) -> Shown {
        let figures = [
            self.half_rtt_ns.map(Shown::Half),
            self.one_way_ns.map(Shown::OneWay),
            self.rtt_ns.map(Shown::Whole),
            self.time_ns.map(Shown::Time),
        ];
        figures
            .into_iter()
            .flatten()
            .next()
            .unwrap_or(Shown::Nothing)
    }
}

/// The heading of [`table`], which says what its times are.
pub const TIMES: &str = "times: '½ rtt' is half of a round trip, 'rtt' a whole one (of a write-signal-read cycle, the \
                         whole cycle), 'one way' is from due to received, 'time' one operation without a message; \
                         rates and bandwidth are medians, counted at the receiver; '× raw' is the median over the raw \
                         reference's, of a time or, where there is none, of the bandwidth";

/// The rows as a table of at most `width` columns.
#[must_use]
pub fn table(rows: &[Row], width: Option<usize>) -> String {
    let ratio = rows.iter().any(|row| row.baseline.is_some());
    let mut lines = vec![Vec::from(HEADING.map(str::to_owned))];
    if ratio {
        lines[0].push("× raw".into());
    }
    for row in rows {
        let (unit, summary) = match row.shown() {
            Shown::Half(summary) => ("½ rtt", Some(summary)),
            Shown::Whole(summary) => ("rtt", Some(summary)),
            Shown::OneWay(summary) => ("one way", Some(summary)),
            Shown::Time(summary) => ("time", Some(summary)),
            Shown::Nothing => ("", None),
        };
        let mut cells = vec![
            row.pattern.to_owned(),
            row.transport.to_owned(),
            show_bytes(row.bytes),
            unit.to_owned(),
        ];
        match summary {
            Some(s) => cells.extend([s.p50, s.p90, s.p99, s.p99_9, s.max].map(show_nanos)),
            None => cells.extend([const { String::new() }; 5]),
        }
        cells.push(
            row.rate_per_s
                .map(|rate| show_rate(rate.p50))
                .unwrap_or_default(),
        );
        cells.push(
            row.bytes_per_s
                .map(|rate| show_bandwidth(rate.p50))
                .unwrap_or_default(),
        );
        cells.push(
            row.allocations_per_op
                .map(|count| format!("{count:.3}"))
                .unwrap_or_default(),
        );
        cells.push(row.count.to_string());
        if ratio {
            cells.push(
                raw_ratio(row)
                    .map(|ratio| format!("{ratio:.2}"))
                    .unwrap_or_default(),
            );
        }
        lines.push(cells);
    }
    lay_out(&lines, &LEFT, &DROPPED_FIRST, width)
}

const HEADING: [&str; 13] = [
    "pattern",
    "transport",
    "bytes",
    "figure",
    "p50",
    "p90",
    "p99",
    "p99.9",
    "max",
    "rate",
    "bandwidth",
    "alloc/op",
    "count",
];

/// Columns of text, which are aligned to the left.
const LEFT: [usize; 4] = [0, 1, 3, 13];

/// Columns that a narrow terminal does without, the first to go first: what is left still says what was measured.
const DROPPED_FIRST: [usize; 8] = [12, 11, 5, 1, 7, 9, 10, 8];

/// The row's median over the like reference's: half round trip over the ping-pong's, whole over the ping-pong's whole,
/// bandwidth over the stream's.
fn raw_ratio(row: &Row) -> Option<f64> {
    let baseline = row.baseline.as_ref()?;
    let raw = &baseline.pingpong;
    let stream = baseline.stream.as_ref();
    let pairs = [
        (row.half_rtt_ns, raw.half_rtt_ns),
        (row.one_way_ns, raw.half_rtt_ns),
        (row.rtt_ns, raw.rtt_ns),
        (row.bytes_per_s, stream.and_then(|raw| raw.bytes_per_s)),
    ];
    pairs
        .into_iter()
        .find_map(|(ours, theirs)| Some(ours?.p50 / theirs?.p50))
        .filter(|ratio| ratio.is_finite())
}

/// Lays out rows of cells, the first of which is the heading: two spaces between columns, numbers to the right.
/// `dropped_first` names the columns that go, in that order, while a line is longer than `width`; what is still longer
/// is left so, and wraps.
#[must_use]
pub fn lay_out(
    lines: &[Vec<String>],
    left: &[usize],
    dropped_first: &[usize],
    width: Option<usize>,
) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let widest = |column: usize| {
        lines
            .iter()
            .map(|cells| cells.get(column).map_or(0, |c| columns_of(c)))
            .max()
    };
    let widths: Vec<usize> = (0..columns)
        .map(|column| widest(column).unwrap_or(0))
        .collect();
    // A column of which only the heading is there says nothing.
    let is_empty =
        |column: usize| lines.len() > 1 && lines[1..].iter().all(|cells| cells[column].is_empty());
    let mut kept: Vec<usize> = (0..columns).filter(|column| !is_empty(*column)).collect();
    let total = |kept: &[usize]| {
        kept.iter()
            .map(|column| widths[*column] + 2)
            .sum::<usize>()
            .saturating_sub(2)
    };
    for dropped in dropped_first {
        if width.is_none_or(|width| total(&kept) <= width) {
            break;
        }
        kept.retain(|column| column != dropped);
    }
    let mut text = String::new();
    for cells in lines {
        let start = text.len();
        for (place, &column) in kept.iter().enumerate() {
            let pad = " ".repeat(widths[column] - columns_of(&cells[column]));
            let between = if place == 0 { "" } else { "  " };
            let (before, after) = if left.contains(&column) {
                ("", pad.as_str())
            } else {
                (pad.as_str(), "")
            };
            text.extend([between, before, &cells[column], after]);
        }
        text.truncate(start + text[start..].trim_end().len());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text
}

/// Columns that a text takes on a terminal. Tensor names are nearly always ASCII; wide characters would only misalign.
fn columns_of(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests;
