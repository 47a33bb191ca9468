//! Spans: what a program and the calls that it makes spend their time on, at all workers.
//!
//! A [`Profile`] records what happens in the threads that are in its scope. A call that is made there carries the
//! identity of its span; what its function does at the other side, and the calls that it makes in turn, come home with
//! the answer and stand under it. A call outside of any profile carries nothing, and costs nothing but a look at a
//! thread-local word.
//!
//! ```text
//!   caller     rpc_sync#scale(one -> two) ────────────────────────────────┐ from the call until it has ended
//!   callee          queued ── scale ──┬── whatever `span` names           │ until it began; the function
//!   callee                            └── rpc_async#norm(two -> three) …  │ a nested call, and so on
//! ```
//!
//! Spans are made by [`span`]; the ones of the crate `tracing` are taken too where [`layer`] is among a subscriber's
//! layers. They come home before the answer of their call, if the window to the caller has room; else soon after. What
//! ends after its call, in a thread or a future that goes on, comes when it has ended, as long as the profile is there.
//!
//! Times of another machine are moved by what the engine has found its clock to differ by.

mod layer;
mod recording;
mod report;
mod served;
mod travelling;

pub use layer::layer;
pub(crate) use recording::{CallSpan, Recording};
pub use recording::{Entered, Profile, SpanGuard, span};
pub use report::{Span, SpanId, Spans};
pub(crate) use served::ServedSpan;
#[cfg(any(test, feature = "testing"))]
pub(crate) use travelling::is_report;
pub(crate) use travelling::{Home, Trace, functions};
