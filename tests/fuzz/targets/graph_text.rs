//! Any bytes as a graph, in either format: no panic, and what is read is written as it was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez_dataflow::graph::{decode, text};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(def) = decode(bytes) {
        let text = text::write(&def);
        let again = decode(text.as_bytes()).expect("what was written is a graph");
        // Not compared as messages: NaN is not NaN, and of functions only the names are written.
        assert_eq!(text::write(&again), text);
    }
});
