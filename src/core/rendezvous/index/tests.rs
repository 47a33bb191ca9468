//! Tests of the index against a map, with tags chosen to crowd.

use std::collections::BTreeMap;

use super::Index;
use crate::ground::rng::Rng;

#[test]
fn finds_what_a_map_finds_however_the_tags_crowd() {
    // Few tags make long runs; tags near the top of the mask make runs that wrap around the end.
    for (seed, tags, first) in [
        (1, 3, 0),
        (2, 40, 500),
        (3, 100_000, 0),
        (4, 8, 0xffff_fffa),
    ] {
        let mut rng = Rng::new(seed);
        let mut index = Index::new();
        let mut model: BTreeMap<u32, u32> = BTreeMap::new();
        for _ in 0..6_000 {
            let number = rng.below(400) as u32;
            match model.remove(&number) {
                Some(tag) => index.remove(tag, number),
                None => {
                    let tag = first + (rng.below(tags) as u32).min(u32::MAX - first);
                    index.insert(tag, number);
                    model.insert(number, tag);
                }
            }
            assert_eq!(index.len, model.len());
            let asked = rng.below(400) as u32;
            let tag = model.get(&asked).copied();
            assert_eq!(
                index.find(tag.unwrap_or(first), |number| number == asked),
                tag.map(|_| asked)
            );
        }
        for (&number, &tag) in &model {
            assert_eq!(index.find(tag, |other| other == number), Some(number));
            index.remove(tag, number);
        }
        assert!(
            index.entries.iter().all(|&entry| entry == 0),
            "removal leaves no graves"
        );
    }
}

#[test]
fn grows_without_asking_for_the_numbers() {
    let mut index = Index::new();
    for number in 0..50_000_u32 {
        index.insert(number.wrapping_mul(0x9e37_79b9), number);
    }
    assert!(index.capacity() >= 50_000);
    for number in 0..50_000_u32 {
        assert_eq!(
            index.find(number.wrapping_mul(0x9e37_79b9), |other| other == number),
            Some(number)
        );
    }
}
