//! Ground: the plain values every floor stands on. No clock, no I/O, no globals, no unsafe.
//!
//! Nothing here knows of tables, channels or fabrics.

pub mod catalogue;
pub mod device;
pub mod dtype;
pub mod faults;
pub mod hash;
pub mod key;
pub mod limits;
mod locks;
#[cfg(test)]
pub(crate) mod pattern;
pub mod region;
pub mod rng;
pub mod shape;
pub mod spelling;
pub mod status;
pub mod step;
pub mod time;
pub mod traceparent;
pub mod units;

pub use device::{DeviceName, TaskName};
pub use dtype::DType;
pub use key::{FrameIter, Key};
pub use locks::{Locked, Unpoisoned};
pub use region::{MemoryKind, Region};
pub use shape::{Shape, TensorMeta};
pub use status::{Code, Status, StatusGroup};
pub use step::{Incarnation, StepId};
pub use time::Nanos;
pub use traceparent::Traceparent;
