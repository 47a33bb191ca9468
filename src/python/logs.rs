//! What the engine says of peers and of itself, for Python's `logging`: loggers `rendez`, `rendez.control` and so on.
//!
//! Lines come from any thread, and a thread of the package's logs them: see [`errands`](super::errands).

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use pyo3::prelude::*;
use rendez_c::Line;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use super::errands;

/// Lines that may wait for that thread; those beyond are counted.
const WAITING_MAX: usize = 1024;

static LEVEL: AtomicU8 = AtomicU8::new(30);
static WAITING: AtomicUsize = AtomicUsize::new(0);
static LOST: AtomicUsize = AtomicUsize::new(0);

struct ToPython;

/// A level as `logging` numbers it.
const fn number_of(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        Level::TRACE => 5,
    }
}

impl<S: Subscriber> Layer<S> for ToPython {
    fn enabled(&self, about: &Metadata<'_>, _: Context<'_, S>) -> bool {
        about.target().starts_with("rendez")
            && number_of(about.level()) >= LEVEL.load(Ordering::Relaxed)
    }

    /// Asked each time: the level may change.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if WAITING.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            LOST.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut line = Line::default();
        event.record(&mut line);
        let level = number_of(event.metadata().level());
        let target = event.metadata().target().replace("::", ".");
        // The crates are one package here.
        let logger = match target.strip_prefix("rendez_") {
            Some(within) => format!("rendez.{within}"),
            None => target,
        };
        errands::tell(move |py| {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            let lost = LOST.swap(0, Ordering::Relaxed);
            if lost > 0 {
                let text = format!("{lost} lines of rendez were lost: there were too many at once");
                errands::tell(move |py| logged(py, "rendez", number_of(&Level::WARN), text));
            }
            let text = format!("{}{}", line.message, line.fields);
            logged(py, &logger, level, text)
        });
    }
}

/// The call that logs a line.
fn logged(py: Python<'_>, logger: &str, level: u8, text: String) -> PyResult<errands::Call> {
    let logging = py.import("logging")?;
    let logger = logging.call_method1("getLogger", (logger,))?;
    let arguments = (level, "%s", text).into_pyobject(py)?;
    Ok((logger.getattr("log")?.unbind(), arguments.unbind()))
}

/// Begins to hand lines over; a process that has a subscriber already keeps it.
pub(crate) fn begin() {
    let _ = tracing_subscriber::registry().with(ToPython).try_init();
}

/// From now on lines below this level are dropped, and no work is done for them.
#[pyfunction]
#[pyo3(name = "_log_from")]
pub(crate) fn log_from(level: u8) {
    LEVEL.store(level, Ordering::Relaxed);
}
