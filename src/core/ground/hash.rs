//! Hashes of bytes, the same in every build and at every task. Proof against accidents, not against attackers.

/// The state of [`fnv1a`] before the first byte.
pub const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// FNV-1a (Fowler, Noll, Vo) of 64 bits.
///
/// ```
/// # extern crate rendez_core as rendez;
/// use rendez::ground::hash::fnv1a;
///
/// assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
/// ```
#[must_use]
pub fn fnv1a(bytes: &[u8]) -> u64 {
    fnv1a_after(FNV_BASIS, bytes.iter().copied())
}

/// The state of [`fnv1a`] behind these bytes, from what it was before them.
#[inline]
#[must_use]
pub fn fnv1a_after(before: u64, bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(before, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The finaliser of `SplitMix64` (Steele, Lea, Flood): every bit of the state changes every bit of the hash.
#[inline]
#[must_use]
pub const fn mix(state: u64) -> u64 {
    let hash = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
