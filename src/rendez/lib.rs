//! rendez hands a tensor from its producer to its consumer, by key.
//!
//! A producer *sends* a tensor under a key, a consumer *receives* by the same key. Either may come first; they may be
//! in one thread, in two processes, or on two machines. The engine takes the shortest path there is and copies as
//! little as that path allows.
//!
//! # Send
//!
//! A [`Key`] names a value's producer, its consumer, and the value. A [`Step`] is a scope of values that end together.
//! Sending never waits for a receiver.
//!
//! ```
//! use rendez::{Config, DType, Engine, Key, StepId};
//!
//! # let mut config = Config::new("/job:trainer/task:0");
//! # (config.shards, config.share_cores, config.arena.segment_bytes) = (1, true, 4 << 20);
//! # let config = config;
//! let engine = Engine::start(config)?; // usually Config::load()?
//! let step = engine.step(StepId(1));
//! let key = Key::between("trainer", "trainer", "weights")?;
//!
//! let mut weights = engine.tensor(DType::F32, &[2, 3])?; // memory that a peer can read in place
//! weights.as_mut_slice::<f32>()?.fill(0.5);
//! step.send(&key, weights.finish())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Receive
//!
//! A receive is a future for any runtime, or blocks with [`wait`](Recv::wait). It may come before the value or
//! after it, and can have a deadline. Values of one key come out in the order they were sent.
//!
//! ```
//! use std::time::Duration;
//!
//! use rendez::{Code, Config, Engine, Key, StepId, Tensor};
//!
//! # let mut config = Config::new("/job:a/task:0");
//! # (config.shards, config.share_cores, config.arena.segment_bytes) = (1, true, 4 << 20);
//! let engine = Engine::start(config)?;
//! let step = engine.step(StepId(1));
//! let (early, late) = (Key::between("a", "a", "early")?, Key::between("a", "a", "late")?);
//!
//! step.send(&late, Tensor::scalar(1_u32))?; // the value first …
//! assert_eq!(step.recv(&late).wait()?.tensor.as_slice::<u32>()?, [1]);
//!
//! let waiter = std::thread::spawn({
//!     let receive = step.recv(&early); // … or the receiver
//!     move || receive.wait()
//! });
//! step.send(&early, Tensor::scalar(2_u32))?;
//! assert_eq!(waiter.join().expect("no panic")?.tensor.as_slice::<u32>()?, [2]);
//!
//! let late = step.recv(&early).deadline(Duration::from_millis(10)).wait();
//! assert_eq!(late.unwrap_err().code(), Code::DeadlineExceeded);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Two processes
//!
//! Each process is a task with an address. A task that knows the other's address dials it when a key first names it;
//! large values are then read in place. (Here both run in one process, and still meet over a socket and shared memory.)
//!
//! ```
//! use std::time::Duration;
//!
//! use rendez::{Config, DType, Engine, Key, StepId};
//!
//! # let config = |task: &str| {
//! #     let mut config = Config::new(task);
//! #     (config.shards, config.share_cores, config.arena.segment_bytes) = (1, true, 4 << 20);
//! #     config
//! # };
//! let worker = Engine::start(config("/job:worker/task:0"))?;
//! let server = Engine::start(config("/job:server/task:0"))?;
//! let address = server.address().expect("it listens").clone();
//! worker.add_peer(server.task().clone(), address);
//!
//! let key = Key::between("worker", "server", "gradient")?;
//! let mut gradient = worker.tensor(DType::F32, &[100_000])?;
//! gradient.as_mut_slice::<f32>()?.fill(0.25);
//! worker.step(StepId(1)).send(&key, gradient.finish())?;
//!
//! let got = server.step(StepId(1)).recv(&key).deadline(Duration::from_secs(10)).wait()?;
//! assert!(got.tensor.is_leased(), "it lies in the worker's memory, and nothing was copied");
//! assert_eq!(got.tensor.as_slice::<f32>()?[99_999], 0.25);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # When it fails
//!
//! Every failure is a [`Status`] with one of gRPC's sixteen [codes](Code) and a reason
//! that never changes its name. All reasons, what happened and what to do stand in the
//! [catalogue](catalogue::ALL), all bounds in [`limits`].
//!
//! # The pages
//!
//! * [`configuration`]: every setting, with its default. [`metrics`]: every metric.
//! * [`failure_model`]: what happens when something fails. [`threat_model`]: what is kept out, and what is not.
//! * [`catalogue`]: every reason of a failure. [`limits`]: every bound.
//!
//! What is listed below is the library. Its rooms, [`engine`] and the others, can be named as well, for the crates of
//! this repository and their tests: they change without notice, and `src/ARCHITECTURE.md` describes them.

#[macro_use(listed, mutant, shown)]
extern crate rendez_core;
#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub use rendez_core::testing;
#[doc(hidden)]
pub use rendez_core::{
    channel, drive, fabric, ground, mail, memory, rendezvous, shard, sync, trace, wire,
};
#[doc(hidden)]
pub use rendez_core::{listed, reached, shown};

#[doc(hidden)]
pub mod cluster;
#[doc(hidden)]
pub mod control;
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod files;
mod users;

#[doc = include_str!("engine/CONFIG.md")]
pub mod configuration {}

#[doc = include_str!("engine/METRICS.md")]
pub mod metrics {}

#[doc = include_str!("engine/FAILURE_MODEL.md")]
pub mod failure_model {}

#[doc = include_str!("control/THREAT_MODEL.md")]
pub mod threat_model {}

// Why something fails, and what bounds there are.
#[doc(inline)]
pub use ground::device::DeviceError;
#[doc(inline)]
pub use ground::key::KeyError;
#[doc(inline)]
pub use ground::shape::ShapeError;
#[doc(inline)]
pub use ground::{catalogue, limits};

// An engine: how it is set up, and what it says of itself.
#[doc(inline)]
pub use drive::{Driver, PollPolicy};
#[doc(inline)]
pub use engine::{Config, Connected, Engine, Fallback, Require, WeakEngine};
#[doc(inline)]
pub use mail::{PendingItem, PendingWhat, ShardStats};

// Where tasks are, and what they ask each other.
#[doc(inline)]
pub use cluster::ClusterSpec;
#[doc(inline)]
pub use control::{Address, AddressError, Incoming, PendingCall, Secret, Services};
#[doc(inline)]
pub use ground::{DeviceName, Incarnation, TaskName};

// Sending and receiving.
#[doc(inline)]
pub use engine::{CancelScope, CancelToken, Cancelled, Filled, Recv, SendAsync, Step, Unsent};
#[doc(inline)]
pub use ground::{Code, FrameIter, Key, Nanos, Status, StatusGroup, StepId, Traceparent};
#[doc(inline)]
pub use mail::Received;
#[doc(inline)]
pub use trace::Path;

// Tensors, and the memory that they lie in.
#[doc(inline)]
pub use ground::{DType, MemoryKind, Shape, TensorMeta};
#[doc(inline)]
pub use memory::{
    ArenaConfig, Bool8, DeviceEvent, DeviceMemory, DevicePtr, Element, HugePages, HugePagesReport,
    MemoryError, PrivateTensor, Readiness, Tensor, TensorBuilder, TensorBytes, TensorError,
};

// Code that runs inside a shard.
#[doc(inline)]
pub use engine::TaskEnd;
#[doc(inline)]
pub use shard::{PreparedKey, Task, TaskContext, TaskEvent, TaskWaker};
