//! Distributed autograd over `rendez`: gradients of what several workers computed together.
//!
//! * [`autograd`]: contexts, and backward passes that go through workers. Pure.
//! * [`tape`]: eager tensors on the kernels of the dataflow runtime, and the gradients that flow back through them.
//! * [`worker`]: both put together, with what brings messages.
//! * [`optim`] has the optimizers.
//! * [`remote`]: all of it over remote calls.

#![forbid(unsafe_code)]

#[macro_use(mutant, rules)]
extern crate rendez_core;

pub mod autograd;
pub mod optim;
pub mod remote;
pub mod tape;
pub mod worker;
