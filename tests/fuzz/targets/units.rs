//! Any text as a size, a list of sizes, a duration or a rate: no panic, and what is shown can be read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez_cli::units;

fuzz_target!(|text: &str| {
    if let Ok(bytes) = units::bytes(text) {
        let _ = units::show_bytes(bytes);
    }
    let _ = units::sizes(text);
    let _ = units::duration(text);
    let _ = units::positive_duration(text);
    if let Ok(rate) = units::rate(text) {
        let _ = (
            units::show_rate(rate),
            units::show_bandwidth(rate),
            units::show_nanos(rate),
        );
    }
});
