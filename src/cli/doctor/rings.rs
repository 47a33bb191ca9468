//! Rings of io_uring, tried: which features the kernel gives, or that something refuses them.
//!
//! Makes rings of eight entries and closes them at once; nothing is ever submitted.
#![allow(unsafe_code)]

use rustix::io_uring::{IoringFeatureFlags, IoringSetupFlags, io_uring_params, io_uring_setup};

/// What rings there are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Ring {
    /// Why there is none.
    pub(super) refusal: Option<String>,
    /// What a data shard's ring wants and this kernel has not got.
    pub(super) missing: Vec<&'static str>,
}

/// Tries.
pub(super) fn probe() -> Ring {
    let features = match setup(IoringSetupFlags::empty()) {
        Ok(features) => features,
        Err(errno) => {
            return Ring {
                refusal: Some(errno.to_string()),
                missing: Vec::new(),
            };
        }
    };
    let mut missing = Vec::new();
    for (feature, name) in [
        (IoringFeatureFlags::SINGLE_MMAP, "single mapping"),
        (IoringFeatureFlags::NODROP, "no dropped completions"),
        (IoringFeatureFlags::FAST_POLL, "fast poll"),
        (IoringFeatureFlags::EXT_ARG, "waits with a time limit"),
    ] {
        if !features.contains(feature) {
            missing.push(name);
        }
    }
    let wanted = IoringSetupFlags::SINGLE_ISSUER
        | IoringSetupFlags::COOP_TASKRUN
        | IoringSetupFlags::TASKRUN_FLAG;
    if setup(wanted).is_err() {
        missing.push("single issuer with cooperative task run (Linux 6.0)");
    }
    Ring {
        refusal: None,
        missing,
    }
}

fn setup(flags: IoringSetupFlags) -> rustix::io::Result<IoringFeatureFlags> {
    let mut parameters = io_uring_params::default();
    parameters.flags = flags;
    // SAFETY: the contract asks only that `wq_fd` be open if `ATTACH_WQ` is set, and no caller sets that flag.
    let ring = unsafe { io_uring_setup(8, &mut parameters) };
    ring.map(|_| parameters.features)
}
