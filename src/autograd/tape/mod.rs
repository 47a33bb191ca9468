//! The tape: eager tensors that remember how they were computed, and the gradients that flow back through them.
//!
//! What computes is a kernel of the dataflow runtime, called at once instead of from a graph; what flows back is
//! computed by the nodes that [`gradients`](rendez_dataflow::graph::gradients) adds to a graph of that one operation,
//! which are made once for each operation with its attributes and types, and kept.
//!
//! ```
//! use rendez_autograd::tape::Tape;
//! use rendez::ground::Shape;
//! use rendez::memory::Tensor;
//!
//! let tape = Tape::new()?;
//! let x = tape.leaf(Tensor::from_vec(vec![1.0f32, 2.0, 3.0], Shape::new(&[3])?)?);
//! let y = x.mul(&x)?.sum(&[0], false)?;
//! let gradients = tape.backward(&y)?;
//! assert_eq!(gradients[&x.leaf_id().unwrap()].as_slice::<f32>()?, [2.0, 4.0, 6.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | |
//! |---|---|
//! | `recipe.rs` | an operation, ready to be called |
//! | `back.rs` | how gradients flow back through it |
//! | `var.rs` | eager tensors and the functions that made them |
//! | `ops.rs`, `layers.rs` | what can be computed |
//! | `task.rs` | a backward pass through the functions that are here |
//! | `engine.rs` | the tape as the local engine of distributed autograd |

mod back;
mod engine;
mod layers;
mod ops;
mod recipe;
mod task;
#[cfg(test)]
mod tests;
mod var;

pub use layers::{Padding, Window};
pub use recipe::{Attr, Attrs};
pub use var::{Tape, Var};
