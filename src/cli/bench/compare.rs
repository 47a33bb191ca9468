//! Measurements against those of a former run: what is worse by more than is allowed ends the command with an error.
//!
//! Knows rows as they are printed, and nothing of how they came about.

use std::path::Path;

use serde::Deserialize;

use super::super::args::{BenchArgs, Pattern, Poll};
use super::super::bounded::read_bounded;
use super::super::error::CliError;
use super::super::report::{Options, Row, lay_out};
use super::super::terminal::Terminal;
use super::super::units::{show_bytes, show_nanos, show_rate};

/// Bytes of a file of rows at most: ten thousand runs of all sizes.
const ROWS_MAX: u64 = 64 << 20;

/// What is compared of a row.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub(super) struct Former {
    pattern: String,
    transport: String,
    bytes: u64,
    half_rtt_ns: Option<Median>,
    rtt_ns: Option<Median>,
    one_way_ns: Option<Median>,
    time_ns: Option<Median>,
    rate_per_s: Option<Mean>,
    #[serde(default)]
    options: Options,
}

#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
struct Median {
    p50: f64,
}

#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
struct Mean {
    mean: f64,
}

/// A figure, and whether more of it is worse.
type Figure = (f64, bool);

impl Former {
    /// Whether it is of this pattern, transport and size.
    fn is_of(&self, pattern: &str, transport: &str, bytes: u64) -> bool {
        (self.pattern.as_str(), self.transport.as_str(), self.bytes) == (pattern, transport, bytes)
    }

    fn figure(&self) -> Option<Figure> {
        let times = [self.half_rtt_ns, self.one_way_ns, self.rtt_ns, self.time_ns];
        let time = times.into_iter().flatten().next().map(|median| median.p50);
        let rate = self.rate_per_s.map(|rate| rate.mean);
        figure(time, rate, is_by_rate(&self.pattern, &self.options))
    }
}

fn figure_of(row: &Row) -> Option<Figure> {
    let times = [row.half_rtt_ns, row.one_way_ns, row.rtt_ns, row.time_ns];
    let time = times.into_iter().flatten().next().map(|time| time.p50);
    let rate = row.rate_per_s.map(|rate| rate.mean);
    figure(time, rate, is_by_rate(row.pattern, &row.options))
}

fn figure(time: Option<f64>, rate: Option<f64>, is_by_rate: bool) -> Option<Figure> {
    let (time, rate) = (
        time.map(|time| (time, true)),
        rate.map(|rate| (rate, false)),
    );
    if is_by_rate {
        rate.or(time)
    } else {
        time.or(rate)
    }
}

/// Of a stream in a closed loop the time one way is that of waiting in line, which is as long as the window is wide.
fn is_by_rate(pattern: &str, options: &Options) -> bool {
    pattern == Pattern::Oneway.name() && options.rate.is_none()
}

/// The rows of a file, one JSON object a line.
pub(super) fn rows_of(path: &Path) -> Result<Vec<Former>, CliError> {
    let text = read_bounded(path, ROWS_MAX)?.ok_or_else(|| {
        let what = format!("'{}' is longer than {ROWS_MAX} bytes", path.display());
        malformed(&what)
    })?;
    let text = String::from_utf8(text).map_err(|error| CliError::unreadable(path, &error))?;
    let mut rows = Vec::new();
    for (index, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let row = serde_json::from_str(line).map_err(|error| {
            let place = format!("'{}', line {}", path.display(), index + 1);
            malformed(&format!("{place} is no row of measurements: {error}"))
        })?;
        rows.push(row);
    }
    if rows.is_empty() {
        return Err(malformed(&format!("'{}' holds no rows", path.display())));
    }
    Ok(rows)
}

fn malformed(what: &str) -> CliError {
    let message = format!("{what}; make the file with `rendez bench --json > FILE`");
    CliError::failure("BENCH_ROWS_MALFORMED", message)
}

/// Looks, before anything is measured, whether it may be compared.
///
/// # Errors
/// `BENCH_ROWS_MALFORMED` if there is no row of a size that is measured, or rows of other options only.
pub(super) fn check(former: &[Former], args: &BenchArgs) -> Result<(), CliError> {
    let now = options_of(args);
    let (pattern, transport) = (args.pattern.name(), args.transport().name());
    for &bytes in &args.size.0 {
        let of_size = former
            .iter()
            .filter(|row| row.is_of(pattern, transport, bytes));
        // Of several former rows the one that is most alike says best what to change.
        let differences = of_size.map(|row| now.differences(&row.options));
        let least = differences.min_by_key(Vec::len).ok_or_else(|| {
            let size = show_bytes(bytes);
            malformed(&format!(
                "there is no row of {pattern} {transport} {size} to compare with"
            ))
        })?;
        if !least.is_empty() {
            let message = format!(
                "{pattern} {transport} {} was measured with other options: {}; measure with those of before, \
                 or make a file with those of now: `rendez bench --json > FILE`",
                show_bytes(bytes),
                least.join(", ")
            );
            return Err(CliError::failure("BENCH_ROWS_MALFORMED", message));
        }
    }
    Ok(())
}

/// Prints each figure beside its former one.
///
/// # Errors
/// `BENCH_REGRESSED` if one is worse by more than `max` percent; `BENCH_ROWS_MALFORMED` if one has no former one.
pub(super) fn judge(
    former: &[Former],
    rows: &[Row],
    max: f64,
    is_json: bool,
    terminal: &mut Terminal,
) -> Result<(), CliError> {
    let heading = ["pattern", "transport", "bytes", "before", "now", "change"];
    let mut lines = vec![heading.map(str::to_owned).to_vec()];
    let (mut worse, share) = (Vec::new(), max / 100.0);
    for row in rows {
        let is_same = |other: &&Former| {
            other.is_of(row.pattern, row.transport, row.bytes)
                && row.options.differences(&other.options).is_empty()
        };
        let what = format!(
            "{} {} {}",
            row.pattern,
            row.transport,
            show_bytes(row.bytes)
        );
        let before = former.iter().find(is_same).and_then(Former::figure);
        let now = figure_of(row).filter(|now| before.is_none_or(|before| before.1 == now.1));
        let (Some((before, more_is_worse)), Some((now, _))) = (before, now) else {
            let message = format!("there is no figure of {what} to compare with");
            return Err(malformed(&message));
        };
        let change = now / before - 1.0;
        let is_worse = if more_is_worse {
            change > share
        } else {
            change < -share
        };
        let show = |figure| {
            if more_is_worse {
                show_nanos(figure)
            } else {
                show_rate(figure)
            }
        };
        if is_worse {
            worse.push(format!(
                "{what}: {} before, {} now ({:+.1} %)",
                show(before),
                show(now),
                change * 100.0
            ));
        }
        lines.push(vec![
            row.pattern.into(),
            row.transport.into(),
            show_bytes(row.bytes),
            show(before),
            show(now),
            format!(
                "{:+.1} %{}",
                change * 100.0,
                if is_worse { " worse" } else { "" }
            ),
        ]);
    }
    if !is_json {
        terminal.line("")?;
        terminal.line(lay_out(&lines, &[0, 1, 5], &[1, 0], terminal.width()))?;
    }
    if worse.is_empty() {
        return Ok(());
    }
    let message = format!("worse by more than {max} %: {}", worse.join("; "));
    Err(CliError::failure("BENCH_REGRESSED", message))
}

/// The options that change what is measured.
pub(super) fn options_of(args: &BenchArgs) -> Options {
    Options {
        from: args.from,
        poll: args.poll.filter(|poll| *poll != Poll::implied(args.from)),
        rate: args.rate,
        touch: args.touch,
        check: args.check,
        parked: args.parked,
        connect: args.connect.is_some(),
    }
}

/// The options that a report should show, in a line.
pub(super) fn settings_of(args: &BenchArgs) -> String {
    let rate = args
        .rate
        .map_or_else(String::new, |rate| format!(", {rate} a second, open loop"));
    format!(
        "{} over {} from {}, {:?} after {:?} of warm-up, {} poll{rate}; rendez {}",
        args.pattern.name(),
        args.transport().name(),
        args.from.name(),
        args.duration,
        args.warmup,
        args.poll().name(),
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests;
