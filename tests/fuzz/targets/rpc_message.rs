//! Messages of remote calls: what another worker sends as a head.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez_rpc::codec::{decode, encode};
use rendez_rpc::payload::Payload;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = decode::<Payload>(bytes) {
        // What was read can be written, and what is written of it is read again. Tensors travel beside it.
        let again = decode::<Payload>(&encode(&message)).expect("what was written");
        assert_eq!(encode(&again), encode(&message));
    }
});
