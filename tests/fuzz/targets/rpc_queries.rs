//! Queries of clients of a store: no bytes panic or take room without bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez_rpc::store::Query;

fuzz_target!(|bytes: &[u8]| {
    let mut at = 0;
    while let Ok(Some((query, size))) = Query::read(&bytes[at..]) {
        assert!(size > 0 && at + size <= bytes.len());
        let mut again = Vec::new();
        query.write(&mut again);
        assert_eq!(again, &bytes[at..at + size]);
        at += size;
    }
});
