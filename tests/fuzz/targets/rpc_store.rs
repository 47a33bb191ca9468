//! The file that a group meets through, which any of its workers may have written.
#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use rendez_rpc::parsers::store_file;

thread_local! {
    static PATH: RefCell<Option<std::path::PathBuf>> = const { RefCell::new(None) };
}

fuzz_target!(|bytes: &[u8]| {
    PATH.with_borrow_mut(|path| {
        let path = path.get_or_insert_with(|| {
            std::env::temp_dir().join(format!("rpc-store-{}", std::process::id()))
        });
        std::fs::write(&*path, bytes).expect("room for a file");
        let _ = store_file(path);
        let _ = std::fs::remove_file(path);
    });
});
