//! Remote calls and remote references over rendez.

pub mod agent;
pub mod codec;
pub mod error;
pub mod functions;
pub mod id;
pub mod message;
pub mod node;
pub mod observer;
pub mod payload;
pub mod references;
pub mod value;

pub use agent::context::Context;
pub use agent::rref::RRef;
pub use agent::{Agent, Meeting, Options, Pending, Worker, WorkerInfo, wait_all};
pub use error::Error;
pub use functions::{Functions, Outcome};
pub use id::{ForkId, GlobalId, RRefId, WorkerId};
pub use observer::{Leg, Observer};
pub use value::{Args, Packer, Unpacker, Value, ValueError};
