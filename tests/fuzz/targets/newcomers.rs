//! Any bytes as the first of a TCP connection, as a data ticket, and as a handshake: no panic, and no proof by chance.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez::control::fuzz;

fuzz_target!(|bytes: &[u8]| {
    let _ = fuzz::opening(bytes);
    let _ = fuzz::ticket(bytes);
    assert!(!fuzz::handshake(bytes), "a secret is not guessed");
});
