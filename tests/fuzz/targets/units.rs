//! Any text as a size, a list of sizes, a duration or a rate: no panic, and what is shown exactly is read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez_cli::units;

fuzz_target!(|text: &str| {
    if let Ok(bytes) = units::any_bytes(text) {
        assert_eq!(
            units::any_bytes(&units::exact_bytes(bytes)).ok(),
            Some(bytes)
        );
        let _ = units::show_bytes(bytes);
    }
    let _ = units::sizes(text);
    if let Ok(duration) = units::duration(text) {
        let shown = units::exact_duration(duration);
        assert_eq!(units::duration(&shown).ok(), Some(duration), "{shown}");
    }
    let _ = units::positive_duration(text);
    if let Ok(rate) = units::rate(text) {
        let _ = (
            units::show_rate(rate),
            units::show_bandwidth(rate),
            units::show_nanos(rate),
        );
    }
});
