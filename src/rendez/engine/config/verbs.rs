//! The settings of RDMA, as one value, and what the fabric is told of them.
//!
//! Their ranges stand with the others (`ranges.rs`); the device judges the rest.

use super::invalid;
use crate::fabric::verbs::sys::VerbsTable;
use crate::fabric::verbs::{PathConfig, RetryPolicy, VerbsConfig};
use crate::ground::Status;
use crate::ground::limits::{VERBS_INLINE_BYTES, VERBS_QUEUE_PAIRS, VERBS_WINDOW};

/// The settings of RDMA.
#[derive(Clone, Debug)]
pub struct VerbsSettings {
    /// Use RDMA between machines where both have it.
    pub enabled: bool,
    /// Use it although TLS is set, which RDMA has not.
    pub in_clear: bool,
    /// The devices to use, with commas between them; `None` is every one with an active port. Each shard uses the one
    /// that is nearest to its core.
    pub device: Option<String>,
    /// The port of the device; `None` is the first active one.
    pub port: Option<u32>,
    /// The index of the address; `None` is RoCE v2 over IPv4 where there is one.
    pub gid_index: Option<u32>,
    /// The path MTU in bytes; `None` is the port's.
    pub mtu: Option<u32>,
    /// The index of the partition key.
    pub pkey_index: u16,
    /// The service level.
    pub service_level: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// Receive entries that each queue pair grants its peer.
    pub depth: u16,
    /// Queue pairs of each shard.
    pub queue_pairs: u32,
    /// Bytes that are sent inline where the device can.
    pub inline_bytes: u32,
    /// How long an acknowledgement may take: 4.096 µs × 2 to this power.
    pub timeout: u8,
    /// How often a packet is sent again.
    pub retry_count: u8,
    /// Functions instead of the machine's libibverbs: for tests.
    #[doc(hidden)]
    pub table: Option<&'static VerbsTable>,
}

impl Default for VerbsSettings {
    fn default() -> Self {
        let patience = RetryPolicy::default();
        Self {
            enabled: true,
            in_clear: false,
            device: None,
            port: None,
            gid_index: None,
            mtu: None,
            pkey_index: 0,
            service_level: 0,
            traffic_class: 0,
            depth: VERBS_WINDOW,
            queue_pairs: VERBS_QUEUE_PAIRS,
            inline_bytes: VERBS_INLINE_BYTES,
            timeout: patience.timeout,
            retry_count: patience.retry_count,
            table: None,
        }
    }
}

impl VerbsSettings {
    /// The devices that are named.
    pub(crate) fn devices(&self) -> Vec<String> {
        let named = self.device.iter().flat_map(|names| names.split(','));
        let named = named.map(str::trim).filter(|name| !name.is_empty());
        named.map(str::to_owned).collect()
    }

    /// The way out of one device.
    pub(crate) fn path(&self, device: &str) -> PathConfig {
        PathConfig {
            device: Some(device.to_owned()),
            port: self.port.and_then(|port| u8::try_from(port).ok()),
            gid_index: self.gid_index,
            mtu: self.mtu,
            pkey_index: self.pkey_index,
            service_level: self.service_level,
            traffic_class: self.traffic_class,
        }
    }

    /// What each shard's port is told.
    pub(crate) fn port(&self) -> VerbsConfig {
        VerbsConfig {
            queue_pairs: self.queue_pairs,
            inline_bytes: self.inline_bytes,
            window: self.depth,
            patience: RetryPolicy {
                timeout: self.timeout,
                retry_count: self.retry_count,
                ..RetryPolicy::default()
            },
        }
    }

    /// Checks what no range says.
    pub(super) fn check(&self) -> Result<(), Status> {
        match self.mtu {
            Some(mtu) if !mtu.is_power_of_two() => Err(invalid(format!(
                "verbs_mtu = {mtu}: it should be 256, 512, 1024, 2048 or 4096"
            ))),
            _ => Ok(()),
        }
    }
}
