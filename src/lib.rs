//! rendez hands a tensor from whoever made it to whoever needs it, by key.
//!
//! A producer *sends* a tensor under a key, a consumer *receives* by the same key. Either may come first; they may be
//! in one thread, in two processes, or on two machines. The engine takes the shortest way there is and copies as
//! little as that way allows.
//!
//! # Send
//!
//! A [`Key`](ground::Key) names who makes a value, who needs it, and what they call it. A [`Step`](engine::Step) is a
//! scope of values that end together. Sending never waits for a receiver.
//!
//! ```
//! use rendez::engine::{Config, Engine};
//! use rendez::ground::{DType, Key, StepId};
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
//! A receive is a future for any runtime, or blocks with [`wait`](engine::Recv::wait). It may come before the value or
//! after it, and can have a deadline. Values of one key come out in the order they were sent.
//!
//! ```
//! use std::time::Duration;
//!
//! use rendez::engine::{Config, Engine};
//! use rendez::ground::{Code, Key, StepId};
//! use rendez::memory::Tensor;
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
//! let nobody = step.recv(&early).deadline(Duration::from_millis(10)).wait();
//! assert_eq!(nobody.unwrap_err().code(), Code::DeadlineExceeded);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Two processes
//!
//! Each process is a task with an address. Whoever is told of the other dials it when a key first names it; large
//! values are then read in place. (Here both run in one process, and still meet over a socket and shared memory.)
//!
//! ```
//! use std::time::Duration;
//!
//! use rendez::engine::{Config, Engine};
//! use rendez::ground::{DType, Key, StepId};
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
//! Every failure is a [`Status`](ground::Status) with one of the field's seventeen [codes](ground::Code) and a reason
//! that never changes its name. All reasons, what happened and what to do stand in the
//! [catalogue](ground::catalogue::ALL), all bounds in [`limits`](ground::limits).
//!
//! # A tour of the floors
//!
//! From the ground up; arrows run downwards only, and the [architecture] page says why.
//!
//! * Floor 0: [`ground`], the plain values that everything is made of. [`sync`], the atomics.
//! * Floor 1: [`wire`], the hot frames as bytes. [`proto`], the control plane's messages.
//! * Floor 2: [`cluster`], which tasks there are and which of them this is. [`graph`], dataflow graphs and the parts
//!   they are cut into. Pure, as the column above them.
//! * Floor 3, the pure column: [`rendezvous`], the matching table, and [`channel`], the protocol with one peer. No
//!   clock, no I/O, no `unsafe`.
//! * Floor 3, the machine column: [`memory`], where tensors lie, and [`fabric`], which moves frames and bytes.
//! * Floor 4: [`shard`], the loop. One thread per core, and the only room where the columns meet.
//! * Floor 5: [`control`], how tasks meet and watch each other. [`engine`], the public handle.
//! * Floor 6: [`server`], one task of a cluster from its description to a clean end.
//! * Floor 8: [`cli`], the command.

#[doc = include_str!("ARCHITECTURE.md")]
pub mod architecture {}

// The README's examples run with the others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}

#[macro_use(mutant)]
extern crate rendez_core;
#[doc(hidden)]
pub use rendez_core::reached;
#[doc(inline)]
pub use rendez_core::{channel, drive, fabric, ground, memory, rendezvous, shard, sync, wire};

pub mod files;

pub mod proto;

pub mod cluster;
pub mod graph;

pub mod control;
pub mod engine;

pub mod server;

pub mod cli;
