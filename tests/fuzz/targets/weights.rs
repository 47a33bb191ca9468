//! Any bytes as the head of a safetensors file: no panic, and every entry lies within the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez_cli::weights::parse;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(entries) = parse(bytes) {
        for entry in &entries {
            let _ = format!("{entry:?}");
        }
    }
});
