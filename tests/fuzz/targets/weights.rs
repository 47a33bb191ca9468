//! Any bytes as the head of a safetensors file: no panic, and entries lie within the file, apart.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez_cli::weights::parse;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(entries) = parse(bytes) {
        // One behind the other, from behind the header to the end.
        let mut ends = entries.iter().map(|entry| entry.offset + entry.len);
        for (entry, before) in entries.iter().zip([8].into_iter().chain(ends.clone())) {
            assert!(entry.offset >= before, "{entries:?}");
            assert_eq!(Some(entry.len), entry.meta.size(), "{entries:?}");
        }
        assert!(ends.next_back().is_none_or(|end| end == bytes.len() as u64));
    }
});
