//! Distributed autograd: contexts, and backward passes that go through several workers.
//!
//! Pure: no clock, no I/O, no globals; knows neither how messages travel nor what a gradient is. The rules are those of
//! PyTorch's distributed autograd (its design notes:
//! <https://docs.pytorch.org/docs/stable/rpc/distributed_autograd.html>), of whose two modes only the first was built
//! there.
//!
//! | file | |
//! |---|---|
//! | `ids.rs`, `message.rs` | what workers, contexts, messages and passes are called, and what is said |
//! | `machine.rs` | contexts: made, found, released, orphaned |
//! | `passes.rs` | backward passes |
//! | `codec.rs` | messages as bytes, with gradients beside them |
//! | `engine.rs` | what runs gradients through the functions of one worker |
//! | `context.rs`, `pass.rs`, `peers.rs` | what the machine keeps |

#![forbid(unsafe_code)]

pub mod codec;
mod context;
mod engine;
mod ids;
mod machine;
mod message;
mod pass;
mod passes;
mod peers;
#[cfg(test)]
mod tests;

pub use engine::LocalEngine;
pub use ids::{COUNTER_MAX, ContextId, MessageId, PassId, WorkerId};
pub use machine::{Autograd, Load};
pub use message::{Body, Effect, Envelope, Input, Message, Mode, Options, Port, Standing, Start};
pub use passes::Ran;
