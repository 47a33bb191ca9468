//! Logs: what the control plane and the servers say of peers, on standard error.
//!
//! Knows the variable that says how much. The datapath says nothing, ever; and what is said over and over, by one place
//! of the code, is said so many times in a second and counted beyond that (`limited.rs`).

mod limited;

use tracing_subscriber::EnvFilter;

use super::args::LogFormat;
use limited::Limited;

/// Says how much: `info`, `rendez=debug`, or whatever `tracing-subscriber` calls a filter.
const VARIABLE: &str = "RENDEZ_LOG";

/// Begins to log; `usual` is how much where nobody says. Whoever logs already goes on as it does.
pub(super) fn begin(usual: &str, format: LogFormat) {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(usual));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Limited::new(std::io::stderr, format))
        .with_target(false)
        .with_ansi(is_colourful());
    // Refused if a program that uses this as a library has a subscriber of its own.
    let _ = match format {
        LogFormat::Text => subscriber.try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).try_init(),
    };
}

/// A terminal, and nobody who asks for no colours: see no-color.org.
fn is_colourful() -> bool {
    let is_forbidden = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !is_forbidden && std::io::IsTerminal::is_terminal(&std::io::stderr())
}
