//! Any text as an address of the control plane: no panic, and what parses is shown as it is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez::control::Address;

fuzz_target!(|text: &str| {
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string().parse::<Address>(), Ok(address));
    }
});
