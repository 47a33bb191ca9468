//! Optimizers: how parameters follow their gradients, here and at other workers.
//!
//! The rules are those of `torch.optim`, whose pages give each as pseudo code
//! (<https://docs.pytorch.org/docs/stable/optim.html>), with its names and defaults. They are functions from values and
//! state to values and state: nothing is locked but the one parameter that is stepped. PyTorch's distributed optimizer
//! held one lock for the whole process.
//!
//! | file | |
//! |---|---|
//! | `rule.rs` | the settings of each optimizer |
//! | `step.rs` | the arithmetic |
//! | `local.rs` | parameters, and an optimizer of some of them |

mod local;
mod rule;
mod step;
#[cfg(test)]
mod tests;

pub use local::{Optimizer, Parameter};
pub use rule::{Adagrad, Adam, AdamW, RmsProp, Rule, Sgd};
