//! A peer that writes anything into the rings it shares: the port gives all back once, says that it is down, and never
//! panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez::fabric::fuzz::Spoiled;

fuzz_target!(|bytes: &[u8]| {
    Spoiled::new().play(bytes);
});
