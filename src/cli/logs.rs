//! Logs: what the control plane and the servers say of peers, on standard error.
//!
//! Knows the variable that says how much. The datapath says nothing, ever.

use tracing_subscriber::EnvFilter;

/// Says how much: `info`, `rendez=debug`, or whatever `tracing-subscriber` calls a filter.
const VARIABLE: &str = "RENDEZ_LOG";

/// Begins to log; `usual` is how much where nobody says. Whoever logs already goes on as it does.
pub(super) fn begin(usual: &str) {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(usual));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
    // Refused if a program that uses this as a library has a subscriber of its own.
    let _ = subscriber.try_init();
}
