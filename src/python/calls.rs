//! Remote calls of Python's: functions called at other workers, and references to what they made.
//!
//! ```text
//!   caller   agent.rs      what is called, and with what        worker   serve.rs    finds the function, and calls it
//!            plain.rs      values as bytes and tensors                   promise.rs  the result of a coroutine
//!            pickled.rs    what only pickle can write                    plain.rs, pickled.rs, answer.rs
//!            call.rs       the call under way                            typed.rs    calls from other languages
//!            typed.rs      functions of other languages
//!                                                               both     reference.rs, body.rs: what travels
//! ```
//!
//! The agent keeps values that stay as objects that cannot travel. Asking for one is a call like any other, because the
//! agent itself would write the answer inside a shard.
//!
//! All calls between workers of Python's are of two functions of the agent: one whose result travels, and one whose
//! result stays. Neither a shard nor what runs in one takes the interpreter's lock: what travels is written and read on
//! threads of Python's and of the agent's pool.

pub(crate) mod agent;
pub(crate) mod answer;
pub(crate) mod body;
pub(crate) mod call;
pub(crate) mod core;
pub(crate) mod exit;
pub(crate) mod pickled;
pub(crate) mod plain;
pub(crate) mod promise;
pub(crate) mod reference;
pub(crate) mod serve;
pub(crate) mod setup;
pub(crate) mod typed;
