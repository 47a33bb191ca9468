//! After warm-up the hot paths touch the heap no more: counted by thread, with an allocator of this program's own.

mod counting;
mod counting_loop;
mod devices;
mod executor;
mod memory;
#[path = "../shim/mod.rs"]
mod shim;
mod tcp;
mod verbs;
mod warm;
