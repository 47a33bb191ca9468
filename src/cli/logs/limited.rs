//! A bound on how often one place of the code is heard: so many lines in a second, and then how many were left out.
//!
//! Knows where a line comes from, and not what it says.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tracing::Metadata;
use tracing::callsite::Identifier;
use tracing_subscriber::fmt::MakeWriter;

use super::LogFormat;
use rendez::ground::Locked;

#[cfg(test)]
mod tests;

/// Lines of one place in one second.
const LINES: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// Makes writers for lines, and swallows those that are too many.
pub(super) struct Limited<M> {
    inner: M,
    format: LogFormat,
    now: fn() -> Instant,
    places: Mutex<HashMap<Identifier, Place>>,
}

/// What one place of the code has said in the second that began then.
struct Place {
    began: Instant,
    lines: u32,
    left_out: u64,
}

/// One line: written, or swallowed.
pub(super) enum Line<W> {
    Shown(W),
    LeftOut,
}

impl<M> Limited<M> {
    pub(super) fn new(inner: M, format: LogFormat) -> Self {
        Self {
            inner,
            format,
            now: Instant::now,
            places: Mutex::default(),
        }
    }

    /// Whether a line from there may be shown, and how many were left out since the last one that was.
    fn admit(&self, from: Identifier) -> Option<u64> {
        let now = (self.now)();
        let mut places = self.places.locked();
        let place = places.entry(from).or_insert(Place {
            began: now,
            lines: 0,
            left_out: 0,
        });
        if now.duration_since(place.began) >= SECOND {
            (place.began, place.lines) = (now, 0);
        }
        if place.lines == LINES {
            place.left_out += 1;
            return None;
        }
        place.lines += 1;
        Some(std::mem::take(&mut place.left_out))
    }

    /// What is said of lines that were left out, in the format of the others.
    fn notice(&self, left_out: u64) -> String {
        let message = format!(
            "{left_out} lines like the next one were left out: at most {LINES} in a second"
        );
        match self.format {
            LogFormat::Text => format!("{message}\n"),
            LogFormat::Json => {
                let line = serde_json::json!({
                    "level": "WARN", "message": message, "left_out": left_out,
                });
                format!("{line}\n")
            }
        }
    }
}

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for Limited<M> {
    type Writer = Line<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Line::Shown(self.inner.make_writer())
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Self::Writer {
        let Some(left_out) = self.admit(meta.callsite()) else {
            return Line::LeftOut;
        };
        let mut writer = self.inner.make_writer_for(meta);
        if left_out > 0 {
            // An output that cannot be written to does not get the line either.
            let _ = writer.write_all(self.notice(left_out).as_bytes());
        }
        Line::Shown(writer)
    }
}

impl<W: Write> Write for Line<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Shown(writer) => writer.write(bytes),
            Self::LeftOut => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Shown(writer) => writer.flush(),
            Self::LeftOut => Ok(()),
        }
    }
}
