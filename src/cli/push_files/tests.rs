//! Names that come from elsewhere.

use super::is_plain;

#[test]
fn a_name_is_of_one_file_and_of_nothing_beyond_its_folder() {
    for name in ["model.safetensors", "a b", ".hidden", "…", "..."] {
        assert!(is_plain(name), "{name}");
    }
    let long = "x".repeat(256);
    for name in [
        "", ".", "..", "/", "a/b", "../a", "a\\b", "a\nb", "a\0b", &long,
    ] {
        assert!(!is_plain(name), "{name:?}");
    }
}
