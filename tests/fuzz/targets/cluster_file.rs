//! Any text as a configuration file with a cluster in it, and as `RENDEZ_CLUSTER`: no panic, and what is read is
//! written as it was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez::cluster::{ClusterSpec, File, Surroundings, resolve};

fuzz_target!(|text: &str| {
    let _ = resolve(&Surroundings {
        file: Some(File {
            path: "here.toml".into(),
            text: text.into(),
        }),
        ..Surroundings::default()
    });
    if let Ok(spec) = ClusterSpec::parse(text) {
        assert_eq!(ClusterSpec::parse(&spec.to_string()), Ok(spec));
    }
});
