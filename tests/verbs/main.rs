//! RDMA: over the library that is played in memory, and over real devices where there are two.

mod calls;
#[path = "../../src/rpc/tests/carried/mod.rs"]
mod carried;
mod engines;
mod faults;
mod guest;
mod layout;
#[path = "../shim/mod.rs"]
mod shim;
