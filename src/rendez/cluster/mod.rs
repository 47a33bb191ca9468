//! Cluster: which tasks there are, where they listen, and which of them this process is.
//!
//! Pure: environment, files and host names come as arguments, and names are not looked up. What a launcher told its
//! processes becomes a [`Resolved`], with where it was found and why nothing before it applied:
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use rendez::cluster::{Membership, Surroundings, resolve};
//!
//! let config = r#"{"cluster": {"ps": ["ps0:2222"], "worker": ["w0:2222", "w1:2222"]},
//!                  "task": {"type": "worker", "index": 1}}"#;
//! let environment = BTreeMap::from([("TF_CONFIG".to_owned(), config.to_owned())]);
//! let resolved = resolve(&Surroundings { environment, ..Surroundings::default() })?;
//! assert_eq!(resolved.task.to_string(), "/job:worker/replica:0/task:1");
//! assert!(matches!(&resolved.membership, Membership::Known(spec) if spec.len() == 3));
//! # Ok::<(), rendez::ground::Status>(())
//! ```

mod address;
mod def;
pub mod host_list;
mod quoted;
mod resolve;
mod spec;
pub mod variables;

#[cfg(test)]
mod tests;

pub use address::HostPort;
pub use def::Server;
pub use resolve::{
    Epoch, File, Flags, Local, Membership, PassedOver, Resolved, Source, Surroundings, members,
    resolve,
};
pub use spec::ClusterSpec;
