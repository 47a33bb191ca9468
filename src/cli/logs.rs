//! Logs: what the control plane and the servers say of peers, on standard error; and how an error is written there, so
//! that with `--log json` all of it is JSON.
//!
//! Knows the variable that says how much. The datapath says nothing, ever; and what is said over and over, by one place
//! of the code, is said so many times in a second and counted beyond that (`limited.rs`).

mod limited;

use std::ffi::OsString;
use std::io::Write;

pub use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::args::LogFormat;
use super::error::CliError;
use limited::Limited;

/// Says how much: a level, or a level for each target, as `warn,rendez=debug` (`tracing_subscriber::filter::Targets`).
const VARIABLE: &str = "RENDEZ_LOG";

/// Begins to log; `usual` is the level if none is set. A logger that is set already stays.
pub fn begin(usual: LevelFilter, format: LogFormat) {
    let usual = Targets::new().with_target("rendez", usual);
    let asked = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let parsed = asked.as_deref().map(filter_of);
    let (filter, refusal) = match parsed {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (usual, Some(error)),
        None => (usual, None),
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(Limited::new(std::io::stderr, format))
        .with_target(false)
        .with_ansi(is_colourful());
    if format == LogFormat::Json {
        std::panic::set_hook(Box::new(|panic| {
            let line = serde_json::json!({
                "level": "ERROR", "reason": "PANIC", "message": panic.to_string(),
                "thread": std::thread::current().name(),
            });
            let _ = writeln!(std::io::stderr(), "{line}");
        }));
    }
    // Refused if a program that uses this as a library has a subscriber of its own.
    let registry = tracing_subscriber::registry().with(filter);
    let _ = match format {
        LogFormat::Text => registry.with(layer).try_init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
    };
    if let (Some(error), Some(asked)) = (refusal, asked) {
        tracing::warn!(
            error,
            asked,
            "RENDEZ_LOG is ignored: write a level (off, error, warn, info, debug or trace), or warn,rendez=debug"
        );
    }
}

/// The filter that a text says. To the library a word that is no level is a target, of which then all is logged, and
/// nothing else: so a level that is misspelt would silence everything.
fn filter_of(text: &str) -> Result<Targets, String> {
    let is_ours = |target: &str| {
        let root = target.split("::").next().unwrap_or(target);
        root == "rendez" || root.starts_with("rendez_")
    };
    let words = text.split(',').filter(|part| !part.contains('='));
    for word in words.filter(|word| !word.is_empty()) {
        if word.parse::<LevelFilter>().is_err() && !is_ours(word) {
            return Err(format!("`{word}` is no level, and no part of rendez"));
        }
    }
    text.parse()
        .map_err(|error: tracing_subscriber::filter::ParseError| error.to_string())
}

/// The format that arguments ask for, also if they are no command: what is wrong with them is told in it.
pub(super) fn format_of(arguments: &[OsString]) -> LogFormat {
    let texts: Vec<&str> = arguments
        .iter()
        .take_while(|argument| *argument != "--")
        .filter_map(|argument| argument.to_str())
        .collect();
    let is_json =
        texts.contains(&"--log=json") || texts.windows(2).any(|pair| pair == ["--log", "json"]);
    match is_json {
        true => LogFormat::Json,
        false => LogFormat::Text,
    }
}

/// An error as it is written to standard error.
pub(super) fn error_line(error: &CliError, format: LogFormat) -> String {
    match format {
        LogFormat::Text => error.to_string(),
        LogFormat::Json => serde_json::json!({
            "level": "ERROR", "reason": error.reason(), "message": error.message(), "exit": error.exit(),
        })
        .to_string(),
    }
}

/// A terminal, and no request for plain output: see no-color.org.
fn is_colourful() -> bool {
    let is_forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !is_forbidden && std::io::IsTerminal::is_terminal(&std::io::stderr())
}
