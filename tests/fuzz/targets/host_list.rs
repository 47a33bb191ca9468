//! Any text as Slurm's list of hosts or of counts: no panic, and never more than a cluster may have.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez::cluster::host_list;
use rendez::ground::limits::{CLUSTER_TASKS_MAX, HOST_NAME_BYTES_MAX};

fuzz_target!(|text: &str| {
    if let Ok(hosts) = host_list::expand(text) {
        assert!((1..=CLUSTER_TASKS_MAX).contains(&hosts.len()));
        assert!(hosts.iter().all(|host| host.len() <= HOST_NAME_BYTES_MAX));
    }
    if let Ok(counts) = host_list::counts(text) {
        assert!((1..=CLUSTER_TASKS_MAX).contains(&counts.len()));
    }
});
