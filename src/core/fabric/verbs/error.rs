//! What can go wrong with verbs: the call, its error number, the device, and what to do about it.
//!
//! Knows numbers and their meaning; not what was being attempted. All of this is for the set-up and for the end of a
//! queue pair: the path of a frame returns none of it.

use std::fmt;
use std::sync::Arc;

use super::sys::{self, VerbsLoadError};
use crate::ground::catalogue;

/// Why something of verbs could not be had.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// There is no libibverbs.
    #[error(transparent)]
    Load(#[from] VerbsLoadError),
    /// A call failed.
    #[error("{call} on {device}: {}", rustix::io::Errno::from_raw_os_error(*errno))]
    Call {
        /// Its name, and what for where it is called for several things.
        call: &'static str,
        /// Its error number.
        errno: i32,
        /// The device.
        device: VerbsDeviceName,
    },
    /// The machine has no RDMA device, or none of that name.
    #[error("no RDMA device{}{}", if wanted.is_empty() { "" } else { " named " }, wanted)]
    NoDevice {
        /// The name that was asked for; empty for any.
        wanted: String,
    },
    /// No port of the device is active, or not the one that was asked for.
    #[error("{device} has no active port{}", asked(" ", wanted.map(u32::from)))]
    NoPort {
        /// The device.
        device: VerbsDeviceName,
        /// The port that was asked for.
        wanted: Option<u8>,
    },
    /// The port has no usable address, or none at that index.
    #[error("port {port} of {device} has no usable GID{}", asked(" at index ", *wanted))]
    NoGid {
        /// The device.
        device: VerbsDeviceName,
        /// The port.
        port: u8,
        /// The index that was asked for.
        wanted: Option<u32>,
    },
    /// A setting that the device or the protocol does not allow.
    #[error("{setting} is {value}: {rule}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What it says.
        value: u64,
        /// What it may say.
        rule: &'static str,
    },
    /// What a peer says of its end of a queue pair cannot be.
    #[error("the peer's {field} is {value}: {rule}")]
    Endpoint {
        /// Which part of it.
        field: &'static str,
        /// What it says.
        value: u64,
        /// What it may say.
        rule: &'static str,
    },
    /// A bound of ours or of the device.
    #[error("{device} holds at most {limit} {what}")]
    Limit {
        /// The device.
        device: VerbsDeviceName,
        /// Of what.
        what: &'static str,
        /// How many.
        limit: u64,
    },
    /// An operation that was posted ended with an error, and its queue pair with it.
    #[error("queue pair {queue_pair} on {device}: {status}, vendor error {vendor:#x}")]
    Completion {
        /// The device.
        device: VerbsDeviceName,
        /// The number of the queue pair.
        queue_pair: u32,
        /// How it ended.
        status: CompletionStatus,
        /// What the device's maker calls it.
        vendor: u32,
    },
    /// The device itself is gone or broken.
    #[error("{device} reports a fatal error")]
    Fatal {
        /// The device.
        device: VerbsDeviceName,
    },
    /// Memory for messages could not be had.
    #[error("memory for messages: {0}")]
    Memory(#[from] crate::memory::MemoryError),
}

impl VerbsError {
    /// Its name in the [catalogue].
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Load(_) => catalogue::VERBS_MISSING,
            Self::NoDevice { .. } | Self::NoPort { .. } | Self::NoGid { .. } => {
                catalogue::VERBS_NO_DEVICE
            }
            Self::Call { .. } => catalogue::VERBS_CALL,
            Self::Setting { .. } => catalogue::VERBS_SETTING,
            Self::Endpoint { .. } => catalogue::VERBS_ENDPOINT,
            Self::Limit { .. } => catalogue::VERBS_LIMIT,
            Self::Completion { .. } | Self::Fatal { .. } => catalogue::VERBS_COMPLETION,
            Self::Memory(_) => catalogue::SYSTEM_CALL,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Call { errno, .. } => match rustix::io::Errno::from_raw_os_error(*errno) {
                rustix::io::Errno::NOMEM | rustix::io::Errno::AGAIN => {
                    "Raise the limit on locked memory (`ulimit -l`, or LimitMEMLOCK in a unit), or configure less."
                }
                rustix::io::Errno::NOSYS | rustix::io::Errno::NODEV => {
                    "Load the kernel's RDMA modules: `modprobe ib_uverbs`, and the driver of the card."
                }
                rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => {
                    "Give the process access to /dev/infiniband/uverbs*."
                }
                rustix::io::Errno::INVAL => {
                    "Compare the settings with what `ibv_devinfo -v` says the device can do."
                }
                rustix::io::Errno::TIMEDOUT | rustix::io::Errno::HOSTUNREACH => {
                    "Check that the peer's address answers on the network of the device (`ip neigh`, `ping -I`)."
                }
                _ => "Look the error number up in the call's manual page.",
            },
            Self::Completion { status, .. } => status.remedy(),
            _ => catalogue::find(self.reason()).map_or("", |entry| entry.remedy),
        }
    }
}

/// The number that was asked for, if there was one, behind its word.
fn asked(word: &'static str, number: Option<u32>) -> impl fmt::Display {
    fmt::from_fn(move |f| number.map_or(Ok(()), |number| write!(f, "{word}{number}")))
}

/// A device's name, cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerbsDeviceName(pub(super) Arc<str>);

impl VerbsDeviceName {
    /// The name, as `ibv_devices` prints it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VerbsDeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a posted operation ended: a number of `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionStatus(pub u32);

impl CompletionStatus {
    /// It did what it should.
    pub const SUCCESS: Self = Self(sys::IBV_WC_SUCCESS);
    /// It was never tried: the queue pair was in error already.
    pub const FLUSHED: Self = Self(sys::IBV_WC_WR_FLUSH_ERR);

    /// What to do about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self.0 {
            sys::IBV_WC_RETRY_EXC_ERR | sys::IBV_WC_RESP_TIMEOUT_ERR => {
                "The peer's device does not answer: check its link, its process, and the network between."
            }
            sys::IBV_WC_RNR_RETRY_EXC_ERR => {
                "The peer had no receive entry, which its grants rule out: report it with both logs."
            }
            sys::IBV_WC_REM_ACCESS_ERR | sys::IBV_WC_REM_INV_REQ_ERR | sys::IBV_WC_REM_OP_ERR => {
                "The peer's device refused the access: run the same release on both; if they do, report it."
            }
            sys::IBV_WC_LOC_PROT_ERR => "Memory was posted that is not registered here: report it.",
            _ => {
                "Look the status up in `man 3 ibv_poll_cq`, and the vendor error in the vendor's documentation."
            }
        }
    }
}

/// The words of `ibv_wc_status_str`, and the number.
impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WORDS: [&str; 24] = [
            "success",
            "local length error",
            "local queue pair operation error",
            "local EE context operation error",
            "local protection error",
            "flushed",
            "memory window bind error",
            "bad response",
            "local access error",
            "remote invalid request",
            "remote access error",
            "remote operation error",
            "transport retries exceeded",
            "receiver-not-ready retries exceeded",
            "local RDD violation",
            "remote invalid RD request",
            "remote aborted",
            "invalid EE context number",
            "invalid EE context state",
            "fatal error",
            "response timed out",
            "general error",
            "tag matching error",
            "tag matching rendezvous incomplete",
        ];
        let words = WORDS.get(self.0 as usize).unwrap_or(&"unknown status");
        write!(f, "{words} (status {})", self.0)
    }
}
