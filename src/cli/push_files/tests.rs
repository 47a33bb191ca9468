//! Names that come from elsewhere.

use std::fs;
use std::path::Path;

use super::{FILES_MAX, PushFiles, is_plain};

/// A file of weights with one tensor.
fn weights(path: &Path) {
    let header = br#"{"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header].concat();
    fs::write(path, bytes).expect("written");
}

#[test]
fn what_goes_into_a_folder_is_called_as_files_of_models_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let [good, other] = ["good.safetensors", "Makefile"].map(|name| folder.path().join(name));
    weights(&good);
    weights(&other);
    let error = PushFiles::of(&[good.clone(), other.clone()]).expect_err("one is refused");
    assert_eq!(error.reason(), "FILE_UNREADABLE", "{error}");
    assert!(error.message().contains("Makefile"), "{error}");
    assert!(error.message().contains(".safetensors"), "{error}");
    PushFiles::of(&[other]).expect("one file gets its name from the other end");
}

#[test]
fn a_name_that_cannot_be_sent_is_told_what_it_may_not_have() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a\\b.safetensors");
    weights(&path);
    let error = PushFiles::of(&[path]).expect_err("it is refused");
    assert!(error.message().contains("backslash"), "{error}");
}

#[test]
fn a_file_that_is_named_in_two_ways_is_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("x.safetensors");
    weights(&file);
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(&index, r#"{"weight_map":{"t":"x.safetensors"}}"#).expect("written");
    let name = folder.path().file_name().expect("it has a name");
    let again = folder.path().join("..").join(name).join("x.safetensors");
    for paths in [[again.clone(), index.clone()], [index, again]] {
        let push_files = PushFiles::of(&paths).expect("one file and its index");
        assert_eq!(push_files.push_files.len(), 2);
    }
}

#[test]
fn more_files_than_an_exchange_has_are_refused_before_any_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut names = std::collections::BTreeMap::new();
    for at in 0..=FILES_MAX {
        let name = format!("{at}.safetensors");
        fs::write(folder.path().join(&name), "no file of weights").expect("written");
        names.insert(at, name);
    }
    let other = tempfile::tempdir().expect("a folder");
    let index = other.path().join("model.safetensors.index.json");
    let map = serde_json::json!({ "weight_map": names });
    fs::write(&index, map.to_string()).expect("written");
    for path in [folder.path().to_owned(), index] {
        let error = PushFiles::of(&[path]).expect_err("too many");
        assert_eq!(error.reason(), "USAGE", "{error}");
        assert!(error.message().contains("4096"), "{error}");
    }
}

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
