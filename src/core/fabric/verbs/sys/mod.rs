//! libibverbs as it is: its structs, its numbers, and a table of its functions that can be filled in several ways.
//!
//! Knows the binary interface; not what its callers do with it. Everything unsafe that the library asks of its callers
//! is answered one floor up, in the wrappers.
//!
//! | feature | what fills the table | needs, to build | needs, to run |
//! |---|---|---|---|
//! | `verbs` (default) | `loaded.rs`: the loader, at run time | nothing | nothing: without it, a [`VerbsLoadError`] |
//! | `verbs-linked` | `linked.rs`: rdma-sys | libibverbs-dev, librdmacm-dev, clang | libibverbs.so.1 |
//! | neither | – | nothing | – |

mod inline;
#[cfg(feature = "verbs-linked")]
mod linked;
#[cfg(all(feature = "verbs", not(feature = "verbs-linked")))]
mod loaded;
mod table;
mod types;

/// For the test that holds its structs against ours.
#[cfg(feature = "verbs-linked")]
#[doc(hidden)]
pub use rdma_sys;

pub use inline::{ibv_poll_cq, ibv_post_send, ibv_post_srq_recv, ibv_req_notify_cq};
pub use table::{IsForkInitialized, SYMBOLS, VerbsTable};
pub use types::*;

/// Why there is no table.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsLoadError {
    /// The machine has no such library; what its loader said.
    #[error("libibverbs.so.1 cannot be loaded: {0}")]
    Library(String),
    /// The library is too old: it lacks a function.
    #[error("libibverbs.so.1 lacks {0}: it is older than rdma-core 32")]
    Symbol(&'static str),
    /// Neither feature was on when this was built.
    #[error("built without the features `verbs` and `verbs-linked`")]
    NotBuilt,
}

/// The machine's libibverbs.
///
/// # Errors
/// [`VerbsLoadError`] where there is none.
pub fn table() -> Result<&'static VerbsTable, VerbsLoadError> {
    #[cfg(feature = "verbs-linked")]
    return Ok(linked::table());
    #[cfg(all(feature = "verbs", not(feature = "verbs-linked")))]
    return loaded::table();
    #[cfg(not(any(feature = "verbs", feature = "verbs-linked")))]
    Err(VerbsLoadError::NotBuilt)
}
