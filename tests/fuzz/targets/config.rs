//! Any text as a configuration file or a variable: no panic, and an error that says where.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez::engine::Config;

fuzz_target!(|text: &str| {
    let mut config = Config::new("/job:a/task:0");
    if let Err(status) = config.apply_toml(text, "origin.toml") {
        assert!(
            status.message().contains("origin.toml"),
            "{}",
            status.message()
        );
    }
    let mut config = Config::new("/job:a/task:0");
    let _ = config.apply_env(|name| name.starts_with("RENDEZ_").then(|| text.to_owned()));
});
