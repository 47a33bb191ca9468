//! Any bytes as a tensor of strings: no panic, and what decodes encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez::memory::strings::{Strings, encode, encoded_len};

fuzz_target!(|input: (u64, &[u8])| {
    let (count, bytes) = input;
    // Mostly counts that could be true; now and then any at all.
    for count in [count, count % (bytes.len() as u64 / 8 + 2)] {
        let Ok(strings) = Strings::decode(bytes, count) else {
            continue;
        };
        let items: Vec<_> = strings.iter().collect();
        assert_eq!(items.len() as u64, count);
        assert_eq!(strings.at(items.len()), None);
        let mut again = vec![0; encoded_len(&items)];
        encode(&items, &mut again);
        assert_eq!(again, bytes);
    }
});
