//! Metrics: what a scraper reads, and whether the task lives and is ready, by HTTP.
//!
//! `page.rs` makes the text, `server.rs` answers requests. Both run on a thread of their own: the control plane does
//! not wait for a scraper, nor a shard for either. Off unless `metrics` names an address.

mod page;
mod server;

pub(crate) use page::Page;
pub use page::{reference_page, reference_rows};
pub(crate) use server::MetricsServer;

/// What is answered.
pub(crate) trait Pages: Send + 'static {
    /// The metrics, as OpenMetrics or as Prometheus' own text; `None` if the task has ended.
    fn metrics(&self, is_open: bool) -> Option<String>;
    /// The task lives: its shards answer.
    fn is_healthy(&self) -> bool;
    /// The task is ready: those of its peers whose addresses it knows are connected. Otherwise the missing ones.
    fn missing(&self) -> Vec<String>;
}
