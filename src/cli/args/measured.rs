//! What `bench` measures, and how: the words of its options.
//!
//! Knows their names; not what a measurement makes of them.

use clap::ValueEnum;
use rendez::drive::PollPolicy;
use serde::{Deserialize, Serialize};

rendez::listed! {
    /// How shards wait for work.
    #[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
    #[serde(rename_all = "lowercase")]
    pub enum Poll {
        /// Spin for ever.
        Busy => "busy",
        /// Spin a while, then sleep.
        Adaptive => "adaptive",
        /// Sleep at once.
        Park => "park",
    }
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

rendez::listed! {
    /// What is measured.
    #[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
    #[serde(rename_all = "lowercase")]
    pub enum Pattern {
        /// There and back: half of a round trip.
        Pingpong => "pingpong",
        /// One way, as a stream, at its receiver.
        Oneway => "oneway",
        /// As many as will go, counted at the receiver.
        Rate => "rate",
    }
}

rendez::listed! {
    /// What carries it.
    #[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Transport {
        /// Within one process.
        Loopback => "loopback",
        /// Between two processes, through shared memory.
        Shm => "shm",
        /// Between two processes, of one machine or of two, through a socket.
        Tcp => "tcp",
        /// Between two processes, of one machine or of two, by RDMA; RENDEZ_VERBS_DEVICE names the device, or two
        /// with a comma between them: one for each side.
        Verbs => "verbs",
        /// Within one shard: the table alone.
        Local => "local",
    }
}

rendez::listed! {
    /// Who calls.
    #[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
    #[serde(rename_all = "lowercase")]
    pub enum From {
        /// A task within the shard.
        #[default]
        Shard => "shard",
        /// A thread of the application.
        Thread => "thread",
    }
}
