//! Any text as `TF_CONFIG`: no panic, and a cluster that comes of it reads and writes.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use rendez::cluster::{ClusterSpec, Membership, Surroundings, resolve};

fuzz_target!(|text: &str| {
    let environment = BTreeMap::from([("TF_CONFIG".to_owned(), text.to_owned())]);
    let resolved = resolve(&Surroundings {
        environment,
        ..Surroundings::default()
    });
    if let Ok(resolved) = resolved
        && let Membership::Known(spec) = resolved.membership
    {
        assert_eq!(ClusterSpec::parse(&spec.to_string()).as_ref(), Ok(&spec));
    }
});
