//! The built-in file, hostile files one fault at a time, and any bytes at all.

use proptest::prelude::*;

use super::*;

/// A file with `header` as its header and `data_len` bytes of data.
fn file(header: &str, data_len: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend((0..data_len).map(|index| index as u8));
    bytes
}

fn what(bytes: &[u8]) -> String {
    match parse(bytes) {
        Err(Fault::Malformed { at, what }) => format!("{at}: {what}"),
        other => panic!("not refused as malformed: {other:?}"),
    }
}

#[test]
fn the_built_in_file_is_whole() {
    let weights = Weights::built_in().unwrap();
    let entries = weights.entries();
    assert_eq!(entries.len(), 12);
    assert!(weights.total_bytes() > 800_000 && weights.total_bytes() < 2_000_000);
    assert!(
        entries
            .windows(2)
            .all(|pair| pair[0].offset + pair[0].len == pair[1].offset),
        "file order, no holes"
    );
    let hidden = entries
        .iter()
        .find(|entry| entry.name == "hidden.0.weight")
        .unwrap();
    assert_eq!(
        (hidden.meta.dtype, hidden.meta.shape.to_string().as_str()),
        (DType::F32, "[512,288]")
    );
    let mut types: Vec<_> = entries.iter().map(|entry| entry.meta.dtype).collect();
    types.sort_unstable();
    types.dedup();
    assert_eq!(
        types,
        [
            DType::Bool,
            DType::U8,
            DType::I64,
            DType::F16,
            DType::BF16,
            DType::F32,
            DType::F64
        ]
    );
}

#[test]
fn the_built_in_bytes_are_the_trained_ones() {
    let weights = Weights::built_in().unwrap();
    let entry = weights
        .entries()
        .iter()
        .find(|entry| entry.name == "vocabulary.bytes")
        .unwrap();
    let mut bytes = vec![0; entry.len as usize];
    weights.read_into(entry, &mut bytes).unwrap();
    assert!(
        bytes.is_sorted() && bytes.contains(&b'A') && bytes.contains(&b'\n'),
        "the sorted bytes of a text"
    );
}

#[test]
fn a_file_on_disk_reads_as_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights.safetensors");
    std::fs::write(&path, DEFAULT_FILE).unwrap();
    let (disk, memory) = (Weights::open(&path).unwrap(), Weights::built_in().unwrap());
    assert_eq!(disk.entries(), memory.entries());
    for entry in disk.entries() {
        let (mut left, mut right) = (vec![0; entry.len as usize], vec![1; entry.len as usize]);
        disk.read_into(entry, &mut left).unwrap();
        memory.read_into(entry, &mut right).unwrap();
        assert!(left == right, "{}", entry.name);
    }
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights.safetensors");
    std::fs::write(&path, DEFAULT_FILE).unwrap();
    let weights = Weights::open(&path).unwrap();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(4096)
        .unwrap();
    let last = weights.entries().last().unwrap();
    let error = weights
        .read_into(last, &mut vec![0; last.len as usize])
        .unwrap_err();
    assert_eq!(error.reason(), "FILE_UNREADABLE");
    assert!(error.to_string().contains("shrank"), "{error}");
}

#[test]
fn what_is_no_file_is_unreadable() {
    let directory = tempfile::tempdir().unwrap();
    let missing = Weights::open(&directory.path().join("absent")).unwrap_err();
    assert_eq!(missing.reason(), "FILE_UNREADABLE");
    assert!(
        missing.to_string().contains("absent") && missing.to_string().contains("check the path")
    );
    let folder = Weights::open(directory.path()).unwrap_err();
    assert!(folder.to_string().contains("it is a directory"), "{folder}");
    let device = Weights::open(Path::new("/dev/zero")).unwrap_err();
    assert!(
        device.to_string().contains("not a regular file"),
        "{device}"
    );
}

#[test]
fn every_truncation_is_refused() {
    let header = r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#;
    let whole = file(header, 16);
    assert_eq!(parse(&whole).unwrap().len(), 1);
    for len in 0..whole.len() {
        assert!(
            matches!(parse(&whole[..len]), Err(Fault::Malformed { .. })),
            "cut at {len}"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cut");
    for len in [0, 5, 8, 20, whole.len() - 1] {
        std::fs::write(&path, &whole[..len]).unwrap();
        let error = Weights::open(&path).unwrap_err();
        assert_eq!(error.reason(), "SAFETENSORS_MALFORMED", "cut at {len}");
    }
}

#[test]
fn a_header_that_lies_about_its_length_is_refused() {
    let mut bytes = file("{}", 0);
    bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(what(&bytes).contains("the limit is 100000000"));
    bytes[..8].copy_from_slice(&99_999_999u64.to_le_bytes());
    assert!(what(&bytes).contains("only 2 follow"));
    bytes[..8].copy_from_slice(&1u64.to_le_bytes());
    assert!(what(&bytes).starts_with("the header"));
}

#[test]
fn offsets_that_lie_are_refused() {
    let overlap = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
        "b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
    assert!(
        what(&file(overlap, 6)).contains("offset"),
        "{}",
        what(&file(overlap, 6))
    );
    let hole = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#;
    assert!(what(&file(hole, 8)).contains("offset"));
    let past = r#"{"a":{"dtype":"U8","shape":[40],"data_offsets":[0,40]}}"#;
    assert!(what(&file(past, 8)).contains("describes 40 bytes of data, and the file has 8"));
    let backwards = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}"#;
    what(&file(backwards, 8));
    let trailing = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    assert!(what(&file(trailing, 5)).contains("the file has 5"));
}

#[test]
fn shapes_that_lie_are_refused() {
    let wrong = r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}}"#;
    what(&file(wrong, 16));
    let overflow =
        r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,16]}}"#;
    what(&file(overflow, 16));
    let unknown = r#"{"a":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}}"#;
    assert!(what(&file(unknown, 16)).contains("F128"));
    let deep = r#"{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}"#;
    assert!(matches!(
        parse(&file(deep, 1)),
        Err(Fault::Shape {
            what: ShapeError::Rank(9),
            ..
        })
    ));
}

#[test]
fn narrow_floats_are_carried_as_bytes_and_say_so() {
    let header = r#"{"a":{"dtype":"F8_E4M3","shape":[2,3],"data_offsets":[0,6]},
        "b":{"dtype":"F4","shape":[4],"data_offsets":[6,8]}}"#;
    let entries = parse(&file(header, 8)).unwrap();
    assert_eq!(
        (
            entries[0].meta.dtype,
            entries[0].meta.shape.to_string().as_str()
        ),
        (DType::U8, "[2,3]")
    );
    assert_eq!(entries[0].note, Some("f8_e4m3 as bytes"));
    assert_eq!(
        (entries[1].meta.shape.to_string().as_str(), entries[1].note),
        ("[2]", Some("f4 as bytes"))
    );
}

#[test]
fn tensors_without_bytes_lie_in_one_order() {
    let header = r#"{"z":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
        "d":{"dtype":"I64","shape":[0],"data_offsets":[4,4]},
        "b":{"dtype":"F32","shape":[0,3],"data_offsets":[4,4]},
        "c":{"dtype":"U8","shape":[5,0],"data_offsets":[4,4]},
        "a":{"dtype":"U8","shape":[1],"data_offsets":[4,5]}}"#;
    // Each reading has a hash of its own.
    for _ in 0..20 {
        let entries = parse(&file(header, 5)).unwrap();
        let names: Vec<_> = entries.iter().map(|entry| &*entry.name).collect();
        assert_eq!(names, ["z", "b", "c", "d", "a"]);
    }
}

#[test]
fn names_cannot_command_a_terminal() {
    let header = r#"{"\u001b[2Jevil":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}"#;
    let entries = parse(&file(header, 1)).unwrap();
    assert_eq!(entries[0].name, "\\u{1b}[2Jevil");
}

#[test]
fn a_file_without_tensors_is_whole() {
    assert_eq!(parse(&file("{}", 0)), Ok(vec![]));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn no_changed_header_panics_or_leaves_the_file(at in 8usize..1000, byte in any::<u8>()) {
        let mut bytes = DEFAULT_FILE[..DEFAULT_FILE.len()].to_vec();
        bytes[at] = byte;
        if let Ok(entries) = parse(&bytes) {
            for entry in entries {
                prop_assert!(entry.offset + entry.len <= bytes.len() as u64);
                prop_assert_eq!(entry.meta.size(), Some(entry.len));
            }
        }
    }
}
