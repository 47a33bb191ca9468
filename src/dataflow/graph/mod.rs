//! Graphs: what a dataflow program is before it runs: nodes and edges, their types, shapes and devices, and the parts
//! that a graph is cut into.
//!
//! Pure: no clock, no I/O, no globals. A graph comes in as TensorFlow's message [`GraphDef`](rendez_proto::tensorflow),
//! is checked once, and goes out as such a message for each device. What runs a part is for others.

#![forbid(unsafe_code)]

pub mod attr;
mod builder;
mod decode;
mod devices;
mod errors;
mod flow;
mod frames;
pub(crate) mod gradients;
pub(crate) mod infer;
mod ops;
pub mod partition;
mod place;
mod prune;
pub mod shape;
mod shapes;
pub mod signature;
#[cfg(test)]
mod testing;
mod text;
pub mod types;

#[cfg(test)]
pub(crate) use builder::empty;
pub use builder::{Builder, NodeBuilder, floats, ints};
pub use decode::decode;
pub(crate) use decode::{Counted, Room};
pub use devices::{Device, Devices};
pub use flow::{
    Consumers, DeviceIndex, Graph, Import, Node, NodeId, Output, output_name, parse_input,
};
pub use frames::{Frame, FrameIndex, Frames, ROOT};
pub use gradients::{Back, gradients};
pub use ops::{Definition, Op, Ops, Role};
pub(crate) use ops::{GradientRule, ShapeRule};
pub use partition::{Parts, partition};
pub use place::{DeviceSetter, Placing, Strategy, place};
pub use prune::{Convention, Endpoints, Pruned, prune};
pub use shape::PartialShape;
pub use shapes::{Shapes, integers};
pub use types::Type;
