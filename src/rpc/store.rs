//! A store of keys and values that programs meet through, with the protocol of PyTorch's `TCPStore`.
//!
//! A [`Client`] uses a store that a PyTorch process or a [`Server`] hosts, and a [`Server`] is used by PyTorch's
//! clients and by ours: `torch.distributed.TCPStore(host, port, is_master=False)`. A group meets through one by
//! [`Options::through_store`](crate::Options::through_store).
//!
//! The protocol knows no secrets: a client that reaches the port can read and change all in the store. So a server
//! listens where it is told to, and belongs into a network of which all are trusted, as PyTorch's own does. What a
//! group reads from it is checked, and a task that is met still has to prove the cluster's secret to the engine.
//!
//! `query.rs` is the protocol, `table.rs` what a server answers: both pure. Bytes of all queries and answers were
//! recorded from torch 2.15, and stand in the tests.

mod client;
mod query;
mod server;
mod table;

#[cfg(test)]
mod tests;

pub(crate) use client::Breaker;
pub use client::Client;
pub use query::{MalformedQuery, Query};
pub use server::Server;
