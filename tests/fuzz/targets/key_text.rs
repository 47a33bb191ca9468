//! Any text as a key: no panic, and what parses is canonical.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez::ground::Key;

fuzz_target!(|text: &str| {
    if let Ok(key) = Key::parse(text) {
        let canonical = key.text();
        let again = Key::parse(&canonical).expect("a canonical text is a key");
        assert_eq!(key, again);
        assert_eq!(canonical, again.text());
        assert_eq!(key.hash(), again.hash());
        assert!(key.shard_of(7) < 7);
    }
});
