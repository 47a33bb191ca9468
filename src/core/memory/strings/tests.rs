//! Tests of `strings.rs`: what was encoded comes back, and no bytes make the decoder panic.

use super::*;
use crate::ground::rng::Rng;

fn encoded(items: &[&str]) -> Vec<u8> {
    let mut bytes = vec![0xff; encoded_len(items)];
    encode(items, &mut bytes);
    bytes
}

#[test]
fn strings_come_back_as_they_were() {
    for items in [
        &[][..],
        &[""],
        &["a", "", "grüße", ""],
        &["one", "two", "three"],
    ] {
        let bytes = encoded(items);
        let strings = Strings::decode(&bytes, items.len() as u64).expect("an encoding");
        assert_eq!(
            (strings.len(), strings.is_empty()),
            (items.len(), items.is_empty())
        );
        assert!(strings.iter().eq(items.iter().map(|item| item.as_bytes())));
        assert_eq!(strings.at(items.len()), None);
    }
}

#[test]
fn wrong_encodings_are_refused() {
    let good = encoded(&["ab", "cde"]);
    for count in [0, 1, 3, u64::MAX, u64::MAX / 8, u64::MAX / 8 + 1] {
        assert!(Strings::decode(&good, count).is_err(), "as {count} strings");
    }
    for (at, byte) in [(0, 6), (0, 0xff), (7, 1), (8, 4), (8, 6), (15, 0x80)] {
        let mut bad = good.clone();
        bad[at] = byte;
        assert_eq!(
            Strings::decode(&bad, 2).map(drop),
            Err(TensorError::Encoding { count: 2 }),
            "byte {at} = {byte}"
        );
    }
    assert!(Strings::decode(&good[..good.len() - 1], 2).is_err());
}

#[test]
fn any_bytes_are_strings_or_an_error() {
    let mut rng = Rng::new(11);
    let mut decoded = 0;
    for _ in 0..50_000 {
        let mut bytes: Vec<u8> = (0..rng.below(64)).map(|_| 0).collect();
        for byte in &mut bytes {
            *byte = if rng.one_in(6) {
                rng.below(40) as u8
            } else {
                0
            };
        }
        if let Ok(strings) = Strings::decode(&bytes, rng.below(6)) {
            decoded += 1;
            let total: usize = strings.iter().map(<[u8]>::len).sum();
            assert_eq!(
                total + strings.len() * 8,
                bytes.len(),
                "every byte belongs to one string"
            );
        }
    }
    assert!(decoded > 100, "some were good: {decoded}");
}
