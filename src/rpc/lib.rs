//! Remote calls and remote references over rendez.
//!
//! Functions are called by name on other tasks, values that live elsewhere are held by reference, and tensors travel
//! beside the calls by the shortest path that the engine has: between processes of one machine they are not copied.
//!
//! ```
//! use std::time::Duration;
//!
//! use rendez::{Config, Engine, Shape, Tensor};
//! use rendez_rpc::{Agent, Functions, Options, Worker};
//!
//! // A plain function; it may return a `Result`. See `Functions` for those that return a future, or run in the shard.
//! fn scale(tensor: Tensor, by: f32) -> Result<Tensor, Box<dyn std::error::Error + Send + Sync>> {
//!     let scaled: Vec<f32> = tensor.as_slice::<f32>()?.iter().map(|value| value * by).collect();
//!     Ok(Tensor::from_vec(scaled, tensor.shape())?)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let engine = |task: &str| {
//! #     let mut config = Config::new(task);
//! #     (config.shards, config.share_cores, config.arena.segment_bytes) = (1, true, 4 << 20);
//! #     Engine::start(config)
//! # };
//! let (one, two) = (engine("/job:one/task:0")?, engine("/job:two/task:0")?); // usually in two processes
//! let workers = [
//!     Worker::new("one", one.task().to_string()).at(one.address().expect("it listens").clone()),
//!     Worker::new("two", two.task().to_string()).at(two.address().expect("it listens").clone()),
//! ];
//! let options = Options::of_workers(workers).functions(Functions::new().add("scale", scale));
//!
//! let there = std::thread::spawn({
//!     let options = options.clone();
//!     move || Agent::init(&two, "two", options)?.shutdown(Duration::ZERO)
//! });
//! let agent = Agent::init(&one, "one", options)?;
//! let tensor = Tensor::from_slice(&[1.0_f32, 2.0], Shape::from([2]))?;
//! let scaled: Tensor = agent.rpc_sync("two", "scale", (tensor.clone(), 3.0_f32))?;
//! assert_eq!(scaled.as_slice::<f32>()?, [3.0, 6.0]);
//!
//! let kept = agent.remote::<Tensor>("two", "scale", (tensor, 0.5_f32))?; // stays there
//! assert_eq!(kept.to_here()?.as_slice::<f32>()?, [0.5, 1.0]);
//! drop(kept);
//! agent.shutdown(Duration::from_secs(60))?; // when all calls of all workers are done
//! there.join().expect("no panic")?;
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! * A call is carried out **at most once**, and ends exactly once: with its result, the function's error or panic at
//!   its worker, or the reason why there is no answer. The death of a worker ends all that depends on it at once; one
//!   whose process is stopped on this machine is not dead, and a call to it ends at its deadline.
//! * A **deadline** or a cancel reaches the other side: what has not begun does not begin, and what runs can see it
//!   ([`Context::is_cancelled`]); a future is dropped.
//! * **No order** between calls, unless [`Options::in_order`] asks for it: a small one may overtake a large one,
//!   and the pool has many threads.
//! * **Bounds** instead of unbounded queues: [`Options::window`], [`Options::waiting`], [`Options::serving`].
//! * A value is kept as long as a worker has a **reference** to it, and no longer; a reference may be handed on before
//!   its value is made.
//! * **Shutdown** waits for all calls of all workers, including those that calls make, and obeys its timeout.
//!
//! # Where things are
//!
//! A worker is a pure machine, [`node::Node`], with [`references::References`] in it: no clock, no I/O, no threads.
//! Its tests run thousands of random programs over a network that loses, delays, repeats and reorders. An [`Agent`]
//! drives it inside a shard of an engine.

#[macro_use(listed, mutant, rules, shown)]
extern crate rendez_core;

pub mod agent;
pub mod codec;
pub mod error;
pub mod functions;
pub mod header;
pub mod id;
pub mod message;
pub mod metrics;
pub mod node;
pub mod observer;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod parsers;
pub mod payload;
pub mod references;
pub mod signature;
pub mod spans;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod value;

pub use agent::context::Context;
#[cfg(any(test, feature = "testing"))]
pub use agent::faulty::{Faulty, MessageKind};
pub use agent::local::PendingLocal;
pub use agent::raw::PendingRaw;
pub use agent::rref::RRef;
pub use agent::{
    Agent, Meeting, Options, Pending, ReferenceInfo, WeakAgent, Worker, WorkerInfo, wait_all,
};
pub use error::Error;
pub use functions::{FunctionOutcome, Functions};
pub use id::{ForkId, GlobalId, RRefId, WorkerId};
pub use observer::{Leg, Observer};
pub use signature::{Signature, Type};
pub use value::{Args, Packer, Unpacker, Value, ValueError};
