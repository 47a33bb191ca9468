//! Worked examples: three trainings over three processes, each beside the same model in one process, with equal losses.
//!
//! | file | |
//! |---|---|
//! | `parameter_server.rs` | a trainer, whose layers live on two parameter servers |
//! | `pipeline.rs` | a convolutional network in two stages, through which parts of a batch go one behind the other |
//! | `recurrent.rs` | a recurrent network with its embedding at one worker and its decoder at another |
//! | `training.rs` | the training of a model whose parts are here or at other workers |
//! | `parts.rs` | the parts of the models |
//! | `digits.rs` | what they learn |
//! | `group.rs` | the processes: engines, agents and workers |
//!
//! An example gives its model as parts with their places, and how it comes to a loss. That is the same code wherever
//! the parts are.

mod digits;
mod group;
mod parameter_server;
mod parts;
mod pipeline;
mod recurrent;
mod training;

/// Steps of each training.
const STEPS: usize = 50;
/// Digits in a batch.
const BATCH: usize = 32;
