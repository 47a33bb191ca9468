//! Protocols: the registry of ways that tasks speak, and the spellings of other systems.
//!
//! Knows names only. `auto` takes the best path to each peer; a path's name demands it. TensorFlow's names say which
//! transport carries tensors beside gRPC: each stands for the path that does the same here, or is refused with the
//! reason.

use std::fmt;

use rendez::engine::Require;
use rendez::ground::{Code, Status, catalogue};

/// How a server reaches its peers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Protocol {
    /// The best path to each peer.
    #[default]
    Auto,
    /// Shared memory.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA.
    Verbs,
}

/// What a name stands for.
type Entry = (&'static str, Result<Protocol, &'static str>);

const NO_GDR: &str = "GPU memory does not travel by RDMA here; `verbs` is the path for host memory";

/// Every name, in the order in which they are listed.
const REGISTRY: [Entry; 9] = [
    ("auto", Ok(Protocol::Auto)),
    ("shm", Ok(Protocol::Shm)),
    ("tcp", Ok(Protocol::Tcp)),
    ("verbs", Ok(Protocol::Verbs)),
    // Tensors by the best path there is, which gRPC's own was.
    ("grpc", Ok(Protocol::Auto)),
    ("grpc+verbs", Ok(Protocol::Verbs)),
    ("grpc+gdr", Err(NO_GDR)),
    (
        "grpc+mpi",
        Err(
            "tensors do not travel by MPI here; under mpirun `auto` finds the tasks and takes its own paths",
        ),
    ),
    (
        "grpc+seastar",
        Err("Seastar's wire format is not spoken; `tcp` is the path that does its work"),
    ),
];

impl Protocol {
    /// The protocol of that name.
    ///
    /// # Errors
    /// `FailedPrecondition` with the reason for a name that is known and unavailable; `NotFound` with those that are
    /// for any other.
    pub fn find(name: &str) -> Result<Self, Status> {
        let found = REGISTRY.iter().find(|(known, _)| *known == name);
        match found {
            Some((_, Ok(protocol))) => Ok(*protocol),
            Some((_, Err(why))) => Err(Status::new(
                Code::FailedPrecondition,
                catalogue::PROTOCOL_REFUSED,
                format!("protocol {name:?} is unavailable: {why}"),
            )),
            None => Err(Status::new(
                Code::NotFound,
                catalogue::PROTOCOL_UNKNOWN,
                format!(
                    "No server factory registered for the given ServerDef: protocol {:?}. The available server \
                     factories are: [ {} ]",
                    name.chars().take(64).collect::<String>(),
                    Self::names().collect::<Vec<_>>().join(", ")
                ),
            )),
        }
    }

    /// The names that are available.
    pub fn names() -> impl Iterator<Item = &'static str> {
        REGISTRY
            .iter()
            .filter(|(_, what)| what.is_ok())
            .map(|(name, _)| *name)
    }

    /// The path it demands, given what the settings demand already.
    ///
    /// # Errors
    /// `InvalidArgument` if the two contradict each other.
    pub fn require(self, settings: Require) -> Result<Require, Status> {
        let own = match self {
            Self::Auto => return Ok(settings),
            Self::Shm => Require::Shm,
            Self::Tcp => Require::Tcp,
            Self::Verbs => Require::Verbs,
        };
        if settings == Require::None || settings == own {
            return Ok(own);
        }
        Err(Status::new(
            Code::InvalidArgument,
            catalogue::CONFIG,
            format!(
                "protocol {self} and require = {settings:?} contradict each other: set one of them"
            ),
        ))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        })
    }
}
