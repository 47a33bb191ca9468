//! What `bench` measures, and how: the words of its options.
//!
//! Knows their names; not what a measurement makes of them.

use clap::ValueEnum;
use rendez::drive::PollPolicy;
use serde::{Deserialize, Serialize};

/// How shards wait for work.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Poll {
    /// Spin for ever.
    Busy,
    /// Spin a while, then sleep.
    Adaptive,
    /// Sleep at once.
    Park,
}

impl Poll {
    /// How shards wait that are called so, unless it is said.
    #[must_use]
    pub const fn implied(from: From) -> Self {
        match from {
            From::Shard => Self::Busy,
            From::Thread => Self::Adaptive,
        }
    }

    /// As it is written on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Adaptive => "adaptive",
            Self::Park => "park",
        }
    }
}

impl std::convert::From<Poll> for PollPolicy {
    fn from(poll: Poll) -> Self {
        match poll {
            Poll::Busy => Self::Busy,
            Poll::Adaptive => Self::Adaptive,
            Poll::Park => Self::Park,
        }
    }
}

impl std::convert::From<PollPolicy> for Poll {
    fn from(policy: PollPolicy) -> Self {
        match policy {
            PollPolicy::Busy => Self::Busy,
            PollPolicy::Adaptive => Self::Adaptive,
            PollPolicy::Park => Self::Park,
        }
    }
}

/// What is measured.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// There and back: half of a round trip.
    Pingpong,
    /// One way, as a stream, at its receiver.
    Oneway,
    /// As many as will go, counted at the receiver.
    Rate,
}

/// What carries it.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Within one process.
    Loopback,
    /// Between two processes, through shared memory.
    Shm,
    /// Between two processes, of one machine or of two, through a socket.
    Tcp,
    /// Between two processes, of one machine or of two, by RDMA; RENDEZ_VERBS_DEVICE names the device, or two with a
    /// comma between them: one for each side.
    Verbs,
    /// Within one shard: the table alone.
    Local,
}

/// Who calls.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// A task within the shard.
    #[default]
    Shard,
    /// A thread of the application.
    Thread,
}

impl Pattern {
    /// As it is written on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pingpong => "pingpong",
            Self::Oneway => "oneway",
            Self::Rate => "rate",
        }
    }
}

impl From {
    /// As it is written on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shard => "shard",
            Self::Thread => "thread",
        }
    }
}

impl Transport {
    /// As it is written on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
            Self::Local => "local",
        }
    }
}
