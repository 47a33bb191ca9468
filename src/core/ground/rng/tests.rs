//! The generator is the published one, and its bounded draws are bounded and fair.

use proptest::prelude::*;

use super::Rng;

/// The reference sequence of `SplitMix64` for the seed 1234567.
#[test]
fn published_sequence() {
    let mut rng = Rng::new(1_234_567);
    let drawn: [u64; 5] = std::array::from_fn(|_| rng.next_u64());
    assert_eq!(
        drawn,
        [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ]
    );
}

#[test]
fn one_in_n() {
    let mut rng = Rng::new(1);
    assert!((0..100).all(|_| rng.one_in(1)));
    assert!((0..100).all(|_| !rng.one_in(0)));
    let hits = (0..10_000).filter(|_| rng.one_in(10)).count();
    assert!(
        (800..1200).contains(&hits),
        "{hits} of 10000 draws at one in ten"
    );
}

#[test]
fn below_reaches_every_number() {
    let mut rng = Rng::new(2);
    let mut counts = [0u32; 6];
    for _ in 0..6000 {
        counts[rng.below(6) as usize] += 1;
    }
    assert!(
        counts.iter().all(|count| (800..1200).contains(count)),
        "{counts:?}"
    );
}

proptest! {
    #[test]
    fn below_is_below(seed in any::<u64>(), bound in any::<u64>()) {
        let drawn = Rng::new(seed).below(bound);
        prop_assert!(drawn < bound || (bound == 0 && drawn == 0));
    }
}
