//! Signatures of functions, as another worker tells them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez_rpc::Signature;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Some(signature) = Signature::parse(text) {
        // What was read is written as it was, and all of it can be shown.
        assert_eq!(signature.to_string(), text);
        let _ = format!("{:?} {:?}", signature.arguments(), signature.result());
    }
});
