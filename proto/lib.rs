//! Proto: the control plane's messages, as generated from `rendez.proto`, those of services from
//! `services.proto`, and TensorFlow's of a cluster, a graph, a session, a worker and a master from
//! `cluster.proto`, `graph.proto`, `session.proto`, `worker.proto` and `master.proto`; and the [`Method`]s of their
//! services, each spelled once, in those files.
//!
//! Fields are TensorFlow's by their published numbers. A field that is here is read and obeyed as there, unless its
//! documentation says *ignored* (it is accepted and has no effect) or *refused* (with which reason); a field that is
//! not here is skipped when a message is read.
//!
//! Plain data: nothing here knows of sockets, tasks or threads, and nothing here is ever in a hot frame.

/// Version 1 of the messages.
// Generated code: its style is the generator's.
#[allow(clippy::all, unreachable_pub, missing_docs)]
pub mod v1 {
    include!("generated/rendez.v1.rs");
}

/// What tasks answer each other.
// Generated code: its style is the generator's.
#[allow(clippy::all, unreachable_pub, missing_docs)]
pub mod services {
    include!("generated/rendez.services.v1.rs");
}

/// TensorFlow's messages of a cluster, a graph, a session, and of what masters and workers answer.
// Generated code: its style is the generator's.
#[allow(clippy::all, unreachable_pub, missing_docs)]
pub mod tensorflow {
    include!("generated/tensorflow.rs");
}

/// A method of a service: what it takes, what it gives, and its number on the wire.
pub trait Method {
    /// Its number among those of its service.
    const NUMBER: u32;
    /// Its name.
    const NAME: &'static str;
    /// What is asked.
    type Request: prost::Message + Default;
    /// What is answered.
    type Answer: prost::Message + Default;
}

/// The methods, in a module for each service.
// Generated code: its style is the generator's.
#[allow(clippy::all, unreachable_pub)]
pub mod methods {
    include!("generated/methods.rs");
}

pub use v1::*;
