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
//! | `rules.rs` | its rules, which tests can switch off |

//!
//! That a worker is lost is told to each of the others on its own, at any time: one may lose another that has not lost
//! it, and hear what the other says next before that. So each pair has *sessions* ([`Session`]), which messages name;
//! who has lost another forgets what was between them, and says so when it is there again. A worker that took part in a
//! pass and loses another that did asks the root whether the pass has failed. The worlds of `tests/seeds.rs` run the
//! machine over remote calls whose workers die, start again, pause and are cut off: every pass ends, with exact
//! gradients or with an error.

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
mod rules;
#[cfg(test)]
mod tests;

pub use engine::LocalEngine;
pub use ids::{COUNTER_MAX, ContextId, MessageId, PassId, WorkerId};
pub use machine::{Autograd, Load};
pub use message::{
    Body, Effect, Envelope, Input, Message, Mode, Options, Port, Session, Standing, Start,
};
pub use passes::Ran;
