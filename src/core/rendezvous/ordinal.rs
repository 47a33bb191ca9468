//! Ordinals: which of two values of a slot was sent first.
//!
//! A slot's values are numbered one after the other, and after 2^32 of them the numbers begin anew: they are serial
//! numbers, as RFC 1982 has them. Two that are compared are less than 2^31 apart: far more than a table holds, or than
//! can be on their way.

/// True if the value of ordinal `a` is sent before that of `b`.
#[inline(always)]
#[must_use]
pub fn is_before(a: u32, b: u32) -> bool {
    if mutant!("ordinals_never_turn") {
        return a < b;
    }
    distance(b, a) < 0
}

/// How many values after that of ordinal `from` the value of `ordinal` is sent; less than zero if it is sent before it.
#[inline(always)]
#[must_use]
pub const fn distance(from: u32, ordinal: u32) -> i32 {
    ordinal.wrapping_sub(from).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::{distance, is_before};

    #[test]
    fn order_goes_on_where_the_numbers_begin_anew() {
        for first in [0, 1, u32::MAX - 1, u32::MAX, 1 << 31, (1 << 31) - 1] {
            let next = first.wrapping_add(1);
            assert!(is_before(first, next) && !is_before(next, first));
            assert!(!is_before(first, first));
            let later = first.wrapping_add(i32::MAX as u32);
            assert!(is_before(first, later) && !is_before(later, first));
            assert_eq!(
                (distance(first, later), distance(next, first)),
                (i32::MAX, -1)
            );
        }
    }
}
