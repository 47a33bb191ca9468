//! Sizes, durations and rates as people write them, and as people read them.
//!
//! Knows nothing of options and settings: one pure function per kind of value, each with an error that says what was
//! wrong with which text and what would have been right.

use std::time::Duration;

/// The largest size a benchmark takes: past it the machine's memory is the only thing measured.
pub const SIZE_BYTES_MAX: u64 = 64 << 30;

/// The most sizes in one run: from 1 B to 64 GiB by doubling is 37, and a list rarely has more.
pub const SIZES_MAX: usize = 64;

/// The longest duration an option takes: a day.
pub const DURATION_MAX: Duration = Duration::from_secs(86_400);

/// Why a text is not the value it should be. The message is complete; the reason is stable.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message} [{reason}]")]
pub struct UnitError {
    reason: &'static str,
    message: String,
}

impl UnitError {
    /// The catalogue's code, as `SIZE_MALFORMED`.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        self.reason
    }
}

/// The sizes of a run, in the order in which they will be measured; never empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes(pub Vec<u64>);

/// Bytes: `4`, `64KiB`, `1.5MiB`, `1g`. `k`, `m`, `g`, `t` alone and with `iB` are powers of 1024; with `B`, of 1000.
///
/// # Errors
/// `SIZE_MALFORMED` for what is no size, `SIZE_OUT_OF_RANGE` for zero and for more than [`SIZE_BYTES_MAX`].
pub fn bytes(text: &str) -> Result<u64, UnitError> {
    match any_bytes(text) {
        Ok(size) if size != 0 && size <= SIZE_BYTES_MAX => Ok(size),
        Err(error) if error.reason != "SIZE_OUT_OF_RANGE" => Err(error),
        _ => Err(UnitError {
            reason: "SIZE_OUT_OF_RANGE",
            message: format!("'{text}' is out of range: a size is from 1 B to 64 GiB"),
        }),
    }
}

/// As [`bytes()`], from nothing to what 64 bits count.
///
/// # Errors
/// `SIZE_MALFORMED` for what is no size, `SIZE_OUT_OF_RANGE` for more.
pub fn any_bytes(text: &str) -> Result<u64, UnitError> {
    let malformed = |why: &str| {
        let message =
            format!("'{text}' is not a size: {why}; write bytes as in 4, 64KiB, 16MiB or 1g");
        UnitError {
            reason: "SIZE_MALFORMED",
            message,
        }
    };
    let (number, unit) = split(text);
    let scale: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "t" | "ti" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(malformed(&format!("'{unit}' is no unit of bytes"))),
    };
    let size =
        scaled(number, scale).ok_or_else(|| malformed("it needs a number of whole bytes"))?;
    u64::try_from(size).map_err(|_| UnitError {
        reason: "SIZE_OUT_OF_RANGE",
        message: format!("'{text}' is out of range: 64 bits cannot count that many bytes"),
    })
}

/// Sizes: a list `4,64,1KiB`, a range `8:64MiB:x4`, or both mixed. A range always ends with its last size, even when
/// the factor steps over it.
///
/// # Errors
/// As [`bytes()`]; `SIZE_RANGE` for a range that runs backwards, a factor below 2, or more than [`SIZES_MAX`] sizes.
pub fn sizes(text: &str) -> Result<Sizes, UnitError> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        match part.trim().split(':').collect::<Vec<_>>().as_slice() {
            [one] => sizes.push(bytes(one)?),
            [from, to, factor] => range(part, bytes(from)?, bytes(to)?, factor, &mut sizes)?,
            _ => return Err(range_error(part, "a range has three parts")),
        }
        if sizes.len() > SIZES_MAX {
            return Err(range_error(
                text,
                &format!("it holds more than {SIZES_MAX} sizes"),
            ));
        }
    }
    Ok(Sizes(sizes))
}

/// A duration: `50ms`, `2s`, `1.5m`, `250us`.
///
/// # Errors
/// `DURATION_MALFORMED` for what is no duration (a bare number has no unit, and is refused rather than guessed at),
/// `DURATION_OUT_OF_RANGE` past a day.
pub fn duration(text: &str) -> Result<Duration, UnitError> {
    let malformed = |why: &str| {
        let message = format!(
            "'{text}' is not a duration: {why}; write it with its unit, as in 50ms, 2s or 1.5m"
        );
        UnitError {
            reason: "DURATION_MALFORMED",
            message,
        }
    };
    let (number, unit) = split(text);
    let scale: u64 = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "" => return Err(malformed("it has no unit")),
        _ => return Err(malformed(&format!("'{unit}' is no unit of time"))),
    };
    let nanos =
        scaled(number, scale).ok_or_else(|| malformed("it needs a number of whole nanoseconds"))?;
    if nanos > DURATION_MAX.as_nanos() {
        let message = format!("'{text}' is out of range: the longest duration is 24h");
        return Err(UnitError {
            reason: "DURATION_OUT_OF_RANGE",
            message,
        });
    }
    Ok(Duration::from_nanos(nanos as u64))
}

/// As [`duration`], but not zero.
///
/// # Errors
/// As [`duration`], and `DURATION_OUT_OF_RANGE` for zero.
pub fn positive_duration(text: &str) -> Result<Duration, UnitError> {
    let found = duration(text)?;
    if found.is_zero() {
        let message = format!("'{text}' is out of range: it must be longer than zero");
        return Err(UnitError {
            reason: "DURATION_OUT_OF_RANGE",
            message,
        });
    }
    Ok(found)
}

/// A rate in operations a second: `1e6`, `100k`, `2.5M`, `250000`, each with or without `/s`.
///
/// # Errors
/// `RATE_MALFORMED` for what is no rate, `RATE_OUT_OF_RANGE` below 0.001 and above a billion a second.
pub fn rate(text: &str) -> Result<f64, UnitError> {
    let malformed = || {
        let message =
            format!("'{text}' is not a rate: write operations a second, as in 1e6, 100k or 2.5M");
        UnitError {
            reason: "RATE_MALFORMED",
            message,
        }
    };
    let bare = text.trim().trim_end_matches("/s");
    let (number, scale) = match bare.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&bare[..at], 1e3),
        Some((at, 'm' | 'M')) => (&bare[..at], 1e6),
        Some((at, 'g' | 'G')) => (&bare[..at], 1e9),
        _ => (bare, 1.0),
    };
    // `f64` also reads "inf" and "nan", which are no rates: a rate begins with a digit.
    if !number.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(malformed());
    }
    let found = number.parse::<f64>().map_err(|_| malformed())? * scale;
    if !(0.001..=1e9).contains(&found) {
        let message =
            format!("'{text}' is out of range: a rate is from 0.001 to 1e9 operations a second");
        return Err(UnitError {
            reason: "RATE_OUT_OF_RANGE",
            message,
        });
    }
    Ok(found)
}

/// Bytes for people: exact where a unit divides them (`64KiB`), else with two decimals (`1.18MiB`).
#[must_use]
pub fn show_bytes(bytes: u64) -> String {
    for (unit, scale) in [
        ("TiB", 1u64 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ] {
        if bytes >= scale {
            return if bytes.is_multiple_of(scale) {
                format!("{}{unit}", bytes / scale)
            } else {
                format!("{:.2}{unit}", bytes as f64 / scale as f64)
            };
        }
    }
    format!("{bytes}B")
}

/// A duration as [`duration`] reads it, without loss: `300ms`, `10s`, `1500us`.
#[must_use]
pub fn exact_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let scales: [(&str, u128); 3] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)];
    let fits = |(_, scale): &&(&str, u128)| nanos.is_multiple_of(*scale);
    match scales.iter().find(fits) {
        Some((unit, scale)) => format!("{}{unit}", nanos / scale),
        None => format!("{nanos}ns"),
    }
}

/// Bytes as [`any_bytes`] reads them, without loss: `64MiB`, `1064`.
#[must_use]
pub fn exact_bytes(bytes: u64) -> String {
    let scales = [
        ("TiB", 1u64 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    let fits = |(_, scale): &&(&str, u64)| bytes >= *scale && bytes.is_multiple_of(*scale);
    match scales.iter().find(fits) {
        Some((unit, scale)) => format!("{}{unit}", bytes / scale),
        None => bytes.to_string(),
    }
}

/// Nanoseconds for people, with three significant digits: `45.5ns`, `1.23µs`, `344µs`, `4.89ms`, `1.20s`.
#[must_use]
pub fn show_nanos(nanos: f64) -> String {
    let (value, unit) = match nanos {
        n if n < 999.5 => (n, "ns"),
        n if n < 999.5e3 => (n / 1e3, "µs"),
        n if n < 999.5e6 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    format!("{}{unit}", three_digits(value))
}

/// A rate for people: `14.8M/s`.
#[must_use]
pub fn show_rate(per_second: f64) -> String {
    let (value, unit) = match per_second {
        r if r < 999.5 => (r, ""),
        r if r < 999.5e3 => (r / 1e3, "k"),
        r if r < 999.5e6 => (r / 1e6, "M"),
        r => (r / 1e9, "G"),
    };
    format!("{}{unit}/s", three_digits(value))
}

/// Bandwidth for people, in the field's decimal unit: `12.3GB/s`, and `0.0123GB/s` for what is slow.
#[must_use]
pub fn show_bandwidth(bytes_per_second: f64) -> String {
    let giga = bytes_per_second / 1e9;
    if giga >= 0.01 {
        format!("{}GB/s", three_digits(giga))
    } else {
        format!("{giga:.4}GB/s")
    }
}

fn three_digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Splits `64KiB` into `64` and `KiB`: the number is the longest run of digits and points at the front.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// `number` times `scale`, exactly; `None` unless that is a whole number. Decimal, so that 1.1ms is 1,100,000 ns. More
/// than this counts is `u128::MAX`: out of any range.
fn scaled(number: &str, scale: u64) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let has_digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || !has_digits(whole) || !has_digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let parsed = |digits: &str| match digits.trim_start_matches('0') {
        "" => Some(0),
        digits => digits.parse::<u128>().ok(),
    };
    let unit = 10u128.pow(fraction.len() as u32);
    let digits = parsed(whole)
        .and_then(|whole| whole.checked_mul(unit)?.checked_add(parsed(fraction)?))
        .and_then(|digits| digits.checked_mul(u128::from(scale)));
    let Some(product) = digits else {
        return Some(u128::MAX);
    };
    product.is_multiple_of(unit).then_some(product / unit)
}

fn range(
    text: &str,
    from: u64,
    to: u64,
    factor: &str,
    sizes: &mut Vec<u64>,
) -> Result<(), UnitError> {
    let digits = factor.trim().trim_start_matches(['x', 'X', '×']);
    let factor = digits.parse::<u64>().ok().filter(|factor| *factor >= 2);
    let factor =
        factor.ok_or_else(|| range_error(text, "its factor is not a whole number of 2 or more"))?;
    if from > to {
        return Err(range_error(text, "it runs backwards"));
    }
    let mut size = from;
    while size < to {
        sizes.push(size);
        size = size.saturating_mul(factor);
    }
    sizes.push(to);
    Ok(())
}

fn range_error(text: &str, why: &str) -> UnitError {
    let message =
        format!("'{text}' is not a range of sizes: {why}; write from:to:xFactor, as in 8:64MiB:x4");
    UnitError {
        reason: "SIZE_RANGE",
        message,
    }
}

#[cfg(test)]
mod tests;
