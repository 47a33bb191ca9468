//! Any text as `TF_CONFIG`: no panic, and a cluster that comes of it reads and writes.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use rendez::cluster::{ClusterSpec, Membership, Surroundings, resolve};
use rendez_proto::tensorflow::ClusterDef;

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
        let numbers = spec
            .tasks()
            .all(|(task, _)| i32::try_from(task.task()).is_ok());
        if numbers {
            assert_eq!(ClusterSpec::try_from(&ClusterDef::from(&spec)), Ok(spec));
        }
    }
});
