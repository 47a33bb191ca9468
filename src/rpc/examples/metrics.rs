//! Writes the reference of the metrics of agents: `src/rpc/METRICS.md`.

use std::io::Write;

fn main() -> std::io::Result<()> {
    let page = rendez_rpc::metrics::reference_page();
    std::io::stdout().write_all(page.as_bytes())
}
