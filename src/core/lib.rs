//! The path of every tensor of rendez, and nothing else: this crate builds in half a minute, so that changing and
//! measuring it is a short loop. Use it through `rendez`, which re-exports its rooms.
//!
//! * Floor 0: [`ground`], the plain values that everything is made of. [`sync`], the atomics.
//! * Floor 1: [`wire`], the hot frames as bytes.
//! * Floor 3, the pure column: [`rendezvous`], the matching table, and [`channel`], the protocol with one peer. No
//!   clock, no I/O, no `unsafe`.
//! * Floor 3, the machine column: [`memory`], where tensors lie, and [`fabric`], which moves frames and bytes.
//! * Floor 4: [`trace`], what times hand-overs; [`mail`], how other threads reach a shard; [`shard`], the loop, the
//!   only room where the columns meet; and [`drive`], which thread turns it. Above them `testing`, shards turned by
//!   hand, which is there with the feature of that name.

#[macro_use]
#[doc(hidden)]
pub mod listed;
#[macro_use]
#[doc(hidden)]
pub mod mutant;
#[macro_use]
#[doc(hidden)]
pub mod reached;
#[macro_use]
#[doc(hidden)]
pub mod shown;
pub mod sync;

pub mod ground;

pub mod wire;

pub mod channel;
pub mod rendezvous;

pub mod fabric;
pub mod memory;

pub mod trace;

pub mod mail;

pub mod drive;
pub mod shard;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
