//! What the library logs, as C hears it: one function of the process is called with each line.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::fmt::{self, Write as _};

use rendez::Status;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::status::{CStatus, answer, argument, c_text};

/// What is called with the level of a line and its text.
pub(crate) type Heard = unsafe extern "C" fn(*mut c_void, u32, *const c_char, usize);

/// Levels as C numbers them, from 1.
const LEVELS: [Level; 5] = [
    Level::ERROR,
    Level::WARN,
    Level::INFO,
    Level::DEBUG,
    Level::TRACE,
];

/// Where C hears lines.
struct ToC {
    level: Level,
    heard: Heard,
    context: *mut c_void,
}

// SAFETY: the header says that the function may be called on any thread, with its context, until the process ends.
unsafe impl Send for ToC {}
// SAFETY: as above, by several threads at the same time.
unsafe impl Sync for ToC {}

impl Subscriber for ToC {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.is_event() && about.target().starts_with("rendez") && *about.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level.into())
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let text = c_text(&(line.message + &line.fields));
        let level = LEVELS
            .iter()
            .position(|level| level == event.metadata().level());
        let level = level.map_or(0, |at| at as u32 + 1);
        // SAFETY: the header says that it may be called with its context and a text, which stays until it returns.
        unsafe { (self.heard)(self.context, level, text.as_ptr(), text.as_bytes().len()) }
    }

    // No span is enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A line's text, and its fields behind it; for other languages too.
#[derive(Default, Debug)]
pub struct Line {
    /// The text.
    pub message: String,
    /// Each with its name, and a space before it.
    pub fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a text does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

pub(crate) unsafe extern "C" fn log_to(
    level: u32,
    heard: Option<Heard>,
    context: *mut c_void,
) -> *mut CStatus {
    answer(|| {
        let at = usize::try_from(level)
            .ok()
            .and_then(|level| level.checked_sub(1));
        let level = at.and_then(|at| LEVELS.get(at).copied());
        let to_c = ToC {
            level: level.ok_or_else(|| argument("`level` is not 1 to 5"))?,
            heard: heard.ok_or_else(|| argument("`heard` is NULL"))?,
            context,
        };
        tracing::subscriber::set_global_default(to_c).map_err(taken)
    })
}

fn taken(_: tracing::subscriber::SetGlobalDefaultError) -> Status {
    argument("the process has a logger already, which stays")
}
