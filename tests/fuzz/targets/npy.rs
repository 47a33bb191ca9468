//! Any bytes as a file of NumPy's: no panic, and a tensor of numbers has no more bytes than the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez_cli::npy::parse;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tensor) = parse(bytes.to_vec()) {
        let size = tensor.meta().size();
        assert!(size.is_none_or(|size| size <= bytes.len() as u64));
    }
});
