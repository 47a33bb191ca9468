//! Any bytes as a stream of control messages, and as a peer's hello: no panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez::control::fuzz;

fuzz_target!(|bytes: &[u8]| {
    let _ = fuzz::envelopes(bytes);
    let _ = fuzz::hello(bytes);
});
