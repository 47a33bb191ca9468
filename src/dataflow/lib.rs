//! Distributed dataflow graphs over `rendez`, as distributed TensorFlow has them: a graph is placed on the tasks of a
//! cluster and cut into parts, and what crosses the cuts is sent and received by key.
//!
//! * Floor 2: [`graph`], graphs, their gradients, and the parts they are cut into. Pure.
//! * Floor 4: [`kernel`], what computes a node's outputs, and what such code works with.
//! * Floor 5: [`operations`], the operations that graphs may have.
//! * Floor 6: [`server`], one task of a cluster from its description to a clean end: master, worker and sessions.

#[macro_use(mutant, reached, shown)]
extern crate rendez_core;

pub mod graph;
pub mod kernel;
pub mod operations;
pub mod server;
