//! The log of a group that meets through a store of keys, to which all that reach the store may append.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez_rpc::parsers::store_log;

fuzz_target!(|bytes: &[u8]| {
    let _ = store_log(bytes);
});
