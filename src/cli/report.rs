//! Rows of measurements, and their two forms: a JSON object a line for programs, a table for people.
//!
//! Knows nothing of how a row was measured. A row says in its fields what its figures are: `half_rtt_ns` is half of a
//! round trip, `rtt_ns` a whole one, and bandwidth is what the receiver counted.

mod options;

use serde::Serialize;

use super::histogram::{Rates, Summary};
use super::machine::Machine;
use super::units::{show_bandwidth, show_bytes, show_nanos, show_rate};
pub use options::Options;

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
    /// Operations a second, at the receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<Rates>,
    /// Bytes a second, at the receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<Rates>,
    /// Where the time went, of the values that were followed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageRow>,
    /// The sum of the means of the stages over the mean of the whole, of the same hand-overs, of both sides: 1 where
    /// the stages leave nothing out. Left out, as the next, where fewer were followed than half of those that should.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage_sum_over_mean: Option<f64>,
    /// The mean of the whole of the hand-overs that were timed over half the mean round trip of all: what looking
    /// costs those that are looked at, less what the bench's own task takes between two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed_over_all: Option<f64>,
    /// By how much `wire` and `whole` of the stages may be wrong, where they lie between two machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_error_ns: Option<u64>,
    /// Heap allocations per operation while it was measured, on all threads of the measuring process; of a stream
    /// those of the receiving one too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocations_per_op: Option<f64>,
    /// What a reader must know: cores shared, a rate that was not reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The options that change what is measured; left out where all are at their defaults.
    #[serde(skip_serializing_if = "options::is_default")]
    pub options: Options,
    /// The machine; left out of a row within another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// What several runs of it came to; the other figures are those of the run with the median one, of an even number
    /// of runs with the upper of the two in the middle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated: Option<Repeated>,
    /// The raw reference of the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Box<Baseline>>,
}

/// The spread of the first figure of a row over several runs: of its time, or else of its rate.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Repeated {
    /// How many runs.
    pub runs: u64,
    /// Of what was done over all of the time, where the figure is a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<Spread>,
    /// Of the medians.
    pub p50: Spread,
    /// Of the 99th percentiles.
    pub p99: Spread,
    /// Of the largest.
    pub max: Spread,
}

/// The least, the median and the most of several.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The median; of an even number the mean of the two in the middle.
    pub median: f64,
    /// The most.
    pub max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Some(Self {
            min: *values.first()?,
            median: f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]),
            max: *values.last()?,
        })
    }
}

impl Repeated {
    /// Of several rows of one measurement the one with the median p50, or mean rate where there is no time: it says
    /// what all of them came to.
    #[must_use]
    pub fn median_of(mut rows: Vec<Row>) -> Option<Row> {
        let time = |row: &Row| {
            let times = [row.half_rtt_ns, row.one_way_ns, row.rtt_ns, row.time_ns];
            times.into_iter().flatten().next()
        };
        let percentiles = |row: &Row| {
            let rate = || row.rate_per_s.map(|rates| rates.percentiles);
            time(row).or_else(rate)
        };
        let figures: Vec<Summary> = rows.iter().filter_map(percentiles).collect();
        let of = |each: fn(&Summary) -> f64| Spread::of(figures.iter().map(each));
        let rate = |row: &Row| row.rate_per_s.filter(|_| time(row).is_none());
        let mean = |row: &Row| rate(row).map(|rates| rates.mean);
        let repeated = match (of(|s| s.p50), of(|s| s.p99), of(|s| s.max)) {
            (Some(p50), Some(p99), Some(max)) => Some(Self {
                runs: rows.len() as u64,
                mean: Spread::of(rows.iter().filter_map(mean)),
                p50,
                p99,
                max,
            }),
            _ => None,
        };
        let figure = |row: &Row| {
            let time = time(row).map(|time| time.p50);
            time.or_else(|| mean(row)).unwrap_or(f64::NAN)
        };
        rows.sort_by(|one, other| figure(one).total_cmp(&figure(other)));
        let at = rows.len() / 2;
        (at < rows.len()).then(|| Row {
            repeated,
            ..rows.swap_remove(at)
        })
    }
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

/// The heading of the table, which says what its times are.
pub const TIMES: &str = "times: '½ rtt' is half of a round trip, 'rtt' a whole one (of a write-signal-read cycle, the \
                         whole cycle), 'one way' is from due to received, 'time' one operation without a message; \
                         rate and bandwidth are all that came to the receiver over all of the time that it took; \
                         '× raw' is the median time over the raw reference's or, where there is none, the bandwidth; \
                         'least' and 'most' of several runs are of their p50 or, where there is none, of their rate";

/// A table that grows: each row is printed when it is there, so columns are as wide as what they usually hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Growing {
    heading: Vec<String>,
    has_ratio: bool,
    has_spread: bool,
    /// Keeps columns that the first row has nothing for: rows of other patterns follow.
    is_mixed: bool,
    width: Option<usize>,
    /// The columns that are shown and their widths, once there is a row.
    kept: Option<Vec<(usize, usize)>>,
}

impl Growing {
    /// A table of at most `width` columns. `has_ratio` and `has_spread` say what the rows have; `is_mixed` that they
    /// are of several patterns.
    #[must_use]
    pub fn new(has_ratio: bool, has_spread: bool, is_mixed: bool, width: Option<usize>) -> Self {
        let mut heading = Vec::from(HEADING.map(str::to_owned));
        heading.extend(["× raw", "least", "most"].map(str::to_owned));
        Self {
            heading,
            has_ratio,
            has_spread,
            is_mixed,
            width,
            kept: None,
        }
    }

    /// The next line, after the heading if it is the first.
    #[must_use]
    pub fn line(&mut self, row: &Row) -> String {
        let cells = cells(row);
        if let Some(kept) = &self.kept {
            return line_of(&cells, kept);
        }
        let kept = self.columns(&cells);
        let text = format!(
            "{}\n{}",
            line_of(&self.heading, &kept),
            line_of(&cells, &kept)
        );
        self.kept = Some(kept);
        text
    }

    fn columns(&self, first: &[String]) -> Vec<(usize, usize)> {
        let is_wanted = |column: usize| match column {
            RATIO => self.has_ratio,
            LEAST | MOST => self.has_spread,
            _ => self.is_mixed || !first[column].is_empty(),
        };
        let width_of = |column: usize| {
            let texts = [&self.heading[column], &first[column]];
            let widest = texts.into_iter().map(|text| columns_of(text)).max();
            (column, widest.unwrap_or(0).max(USUAL[column]))
        };
        let mut kept: Vec<(usize, usize)> = (0..self.heading.len())
            .filter(|column| is_wanted(*column))
            .map(width_of)
            .collect();
        let total = |kept: &[(usize, usize)]| {
            let sum: usize = kept.iter().map(|(_, width)| width + 2).sum();
            sum.saturating_sub(2)
        };
        for dropped in DROPPED_FIRST {
            if self.width.is_none_or(|width| total(&kept) <= width) {
                break;
            }
            kept.retain(|(column, _)| *column != dropped);
        }
        kept
    }
}

fn line_of(cells: &[String], kept: &[(usize, usize)]) -> String {
    let mut text = String::new();
    for (place, (column, width)) in kept.iter().enumerate() {
        let pad = " ".repeat(width.saturating_sub(columns_of(&cells[*column])));
        let (before, after) = match LEFT.contains(column) {
            true => ("", pad.as_str()),
            false => (pad.as_str(), ""),
        };
        let between = if place == 0 { "" } else { "  " };
        text.extend([between, before, &cells[*column], after]);
    }
    text.truncate(text.trim_end().len());
    text
}

/// A row's cells, in the order of the heading.
fn cells(row: &Row) -> Vec<String> {
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
    let rate = row.rate_per_s.map(|rate| show_rate(rate.mean));
    let bandwidth = row.bytes_per_s.map(|rate| show_bandwidth(rate.mean));
    let allocations = row.allocations_per_op.map(|count| format!("{count:.3}"));
    cells.extend([rate, bandwidth, allocations].map(Option::unwrap_or_default));
    cells.push(row.count.to_string());
    cells.push(raw_ratio(row).map_or_else(String::new, |ratio| format!("{ratio:.2}")));
    let spread = row.repeated.map(|repeated| {
        let show = match summary {
            Some(_) => show_nanos,
            None => show_rate,
        };
        let spread = repeated.mean.unwrap_or(repeated.p50);
        [spread.min, spread.max].map(show)
    });
    cells.extend(spread.unwrap_or_default());
    cells
}

/// The columns that not every table has.
const RATIO: usize = 13;
const LEAST: usize = 14;
const MOST: usize = 15;

/// How wide what stands in a column usually is.
const USUAL: [usize; 16] = [8, 9, 7, 7, 6, 6, 6, 6, 6, 8, 8, 8, 9, 5, 6, 6];

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
const LEFT: [usize; 3] = [0, 1, 3];

/// Columns that a narrow terminal does without, the first to go first: what is left still says what was measured.
const DROPPED_FIRST: [usize; 8] = [12, 11, 5, 1, 7, 9, 10, 8];

/// The row's median time over the like reference's: half round trip over the ping-pong's, whole over the ping-pong's
/// whole; or bandwidth over the stream's.
fn raw_ratio(row: &Row) -> Option<f64> {
    let baseline = row.baseline.as_ref()?;
    let raw = &baseline.pingpong;
    let stream = baseline.stream.as_ref();
    let pairs = [
        (row.half_rtt_ns, raw.half_rtt_ns),
        (row.one_way_ns, raw.half_rtt_ns),
        (row.rtt_ns, raw.rtt_ns),
    ];
    let bandwidth = || Some(row.bytes_per_s?.mean / stream?.bytes_per_s?.mean);
    pairs
        .into_iter()
        .find_map(|(ours, theirs)| Some(ours?.p50 / theirs?.p50))
        .or_else(bandwidth)
        .filter(|ratio| ratio.is_finite())
}

/// Lays out rows of cells, the first of which is the heading: two spaces between columns, numbers to the right.
/// `dropped_first` names the columns that go, in that order, while a line is longer than `width`. Where that is not
/// enough, each row becomes a paragraph with a line for each of its cells, and none is left out.
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
    let filled: Vec<usize> = (0..columns).filter(|column| !is_empty(*column)).collect();
    let mut kept = filled.clone();
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
    if let Some(width) = width.filter(|width| total(&kept) > *width) {
        return paragraphs(lines, &filled, width);
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

/// Each row below the heading as a paragraph: a line for each cell that is not empty, under its column's name.
fn paragraphs(lines: &[Vec<String>], columns: &[usize], width: usize) -> String {
    let Some((heading, rows)) = lines.split_first() else {
        return String::new();
    };
    let names = columns.iter().map(|column| columns_of(&heading[*column]));
    let widest = names.max().unwrap_or(0);
    let paragraph = |cells: &Vec<String>| {
        let filled = columns.iter().filter(|column| !cells[**column].is_empty());
        let lines = filled.map(|column| {
            let pad = " ".repeat(widest - columns_of(&heading[*column]) + 2);
            let name = format!("{}{pad}", heading[*column]);
            wrapped(&name, &cells[*column], Some(width))
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    let mut paragraphs: Vec<String> = rows.iter().map(paragraph).collect();
    paragraphs.retain(|paragraph| !paragraph.is_empty());
    paragraphs.join("\n\n")
}

/// A text behind `before`, broken at blanks so that no line is longer than `width`; all lines of the text begin at the
/// same column. A word that is longer than a line is broken where the line ends.
#[must_use]
pub fn wrapped(before: &str, text: &str, width: Option<usize>) -> String {
    let Some(width) = width else {
        return format!("{before}{text}");
    };
    let indent = columns_of(before);
    let room = width.saturating_sub(indent).max(1);
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let mut rest = word.to_owned();
        let taken = columns_of(&line);
        if !line.is_empty() && taken + 1 + columns_of(&rest) <= room {
            line.push(' ');
        } else if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        while columns_of(&rest) > room {
            let at = rest
                .char_indices()
                .nth(room)
                .map_or(rest.len(), |(at, _)| at);
            let after = rest.split_off(at);
            lines.push(std::mem::replace(&mut rest, after));
        }
        line.push_str(&rest);
    }
    lines.push(line);
    let lines: Vec<&str> = lines.iter().map(|line| line.trim_end()).collect();
    let between = format!("\n{}", " ".repeat(indent));
    format!("{before}{}", lines.join(&between))
}

/// Columns that a text takes on a terminal. Tensor names are nearly always ASCII; wide characters would only misalign.
fn columns_of(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests;
