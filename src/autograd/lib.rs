//! Distributed autograd over `rendez`: gradients of what several workers computed together.
//!
//! What a call inside a context does with eager tensors is recorded at both workers, and a backward pass goes through
//! all of them:
//!
//! ```
//! use std::time::Duration;
//!
//! use rendez::{Config, Engine, Shape, Tensor};
//! use rendez_autograd::remote::Joining;
//! use rendez_autograd::tape::{Tape, Var};
//! use rendez_autograd::worker::Worker;
//! use rendez_rpc::{Agent, Error, Functions, Options};
//!
//! fn scale(x: Var, by: f64) -> Result<Var, Error> {
//!     x.scale(by).map_err(Error::local)
//! }
//!
//! /// An agent, and autograd over its calls.
//! fn join(engine: &Engine, name: &str, options: Options) -> Result<(Agent, Worker<Tape>), Error> {
//!     let joining = Joining::new(engine);
//!     let agent = Agent::init(engine, name, joining.options(options))?;
//!     let worker = joining.attach(&agent).map_err(Error::local)?;
//!     Ok((agent, worker))
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let engine = |task: &str| {
//! #     let mut config = Config::new(task);
//! #     (config.shards, config.share_cores, config.arena.segment_bytes) = (1, true, 4 << 20);
//! #     Engine::start(config)
//! # };
//! let (one, two) = (engine("/job:one/task:0")?, engine("/job:two/task:0")?); // usually in two processes
//! let named = [("one", &one), ("two", &two)].map(|(name, engine)| {
//!     let worker = rendez_rpc::Worker::new(name, engine.task().to_string());
//!     worker.at(engine.address().expect("it listens").clone())
//! });
//! let options = Options::of_workers(named).functions(Functions::new().add("scale", scale));
//!
//! let there = std::thread::spawn({
//!     let options = options.clone();
//!     move || join(&two, "two", options)?.0.shutdown(Duration::ZERO)
//! });
//! let (agent, worker) = join(&one, "one", options)?;
//! let x = worker.engine().leaf(Tensor::from_slice(&[1.0_f32, 2.0], Shape::from([2]))?);
//! let scope = worker.scope()?;
//! let y: Var = agent.rpc_sync("two", "scale", (x.clone(), 3.0))?;
//! scope.backward_within(&[y.total()?], Duration::from_secs(60))?;
//! let gradients = scope.gradients()?;
//! assert_eq!(gradients[&x.leaf_id().expect("a leaf")].as_slice::<f32>()?, [3.0, 3.0]);
//! drop(scope); // the context ends at all workers
//! agent.shutdown(Duration::from_secs(60))?;
//! there.join().expect("no panic")?;
//! # Ok(())
//! # }
//! ```
//!
//! Parameters stay at the workers that made them, and so do their gradients: see
//! [`DistributedOptimizer`](remote::DistributedOptimizer).
//!
//! # Where things are
//!
//! * [`autograd`]: contexts, and backward passes that go through workers. Pure.
//! * [`tape`]: eager tensors on the kernels of the dataflow runtime, and the gradients that flow back through them.
//! * [`worker`]: both put together, with what carries messages.
//! * [`optim`] has the optimizers.
//! * [`remote`]: all of it over remote calls.

#![forbid(unsafe_code)]

#[macro_use(mutant, rules, shown)]
extern crate rendez_core;

pub mod autograd;
pub mod optim;
pub mod remote;
pub mod tape;
pub mod worker;
