//! Casts to fewer bits of a fraction against a rounding of their own, by whole numbers alone.

use crate::graph::types;
use crate::kernel::numbers::Number;
use crate::operations::testing::{one_with, tensor};
use half::{bf16, f16};
use rendez::memory::Element;

/// A format of floats: bits of its fraction with the one in front, and the exponents of its last bit, of the smallest
/// numbers and of the largest.
#[derive(Clone, Copy)]
struct Format {
    bits: i32,
    lowest: i32,
    highest: i32,
}

const HALF: Format = Format {
    bits: 11,
    lowest: -24,
    highest: 5,
};
const BRAIN: Format = Format {
    bits: 8,
    lowest: -133,
    highest: 120,
};
const SINGLE: Format = Format {
    bits: 24,
    lowest: -149,
    highest: 104,
};

/// The nearest of `format` to `whole` × 2^`exponent`, of two as near the one whose last bit is zero.
fn nearest(format: Format, whole: u64, exponent: i32) -> f64 {
    let length = 64 - whole.leading_zeros().cast_signed();
    let mut last = Ord::max(length + exponent - format.bits, format.lowest);
    let mut kept = u128::from(whole);
    match last - exponent {
        // More than a half is less than any last bit.
        cut if cut > 100 => kept = 0,
        cut if cut > 0 => {
            let (rest, half) = (kept & ((1 << cut) - 1), 1 << (cut - 1));
            kept >>= cut;
            kept += u128::from(rest > half || rest == half && kept & 1 == 1);
        }
        more => kept <<= -more,
    }
    if kept >> format.bits != 0 {
        kept >>= 1;
        last += 1;
    }
    if last > format.highest {
        return f64::INFINITY;
    }
    kept as f64 * 2f64.powi(last)
}

fn nearest_to(format: Format, number: f64) -> f64 {
    if number.is_nan() || number.is_infinite() {
        return number;
    }
    let bits = number.to_bits();
    let (fraction, exponent) = (bits & ((1 << 52) - 1), (bits >> 52 & 0x7ff) as i32);
    let (whole, exponent) = match exponent {
        0 => (fraction, -1074),
        exponent => (fraction | 1 << 52, exponent - 1075),
    };
    nearest(format, whole, exponent).copysign(number)
}

fn cast<T: Element, U: Element>(numbers: &[T]) -> Vec<U> {
    let (from, to) = (types::data_type(T::DTYPE), types::data_type(U::DTYPE));
    let input = tensor(&[numbers.len() as u64], numbers);
    one_with::<U>("Cast", &[input], |node| {
        node.attr("SrcT", from).attr("DstT", to)
    })
    .1
}

/// The same bits; but one that is not a number is as good as another.
fn is_same(left: f64, right: f64) -> bool {
    left.to_bits() == right.to_bits() || left.is_nan() && right.is_nan()
}

/// Numbers that lie on every border between two of a format, just beside it, and away from it.
fn near_borders(format: Format) -> Vec<f64> {
    let mut numbers = vec![f64::NAN, f64::INFINITY, 0.0, f64::MIN_POSITIVE, 5e-324];
    numbers.extend([
        f64::MAX,
        1e300,
        3.5e38,
        3.4e38,
        65520.0,
        65519.9,
        1e-40,
        1e-46,
        1e-60,
    ]);
    let least = format.lowest - 3;
    for exponent in (least..=format.highest + format.bits + 1)
        .step_by(7)
        .chain([
            format.lowest - 1,
            format.lowest,
            format.highest + format.bits - 1,
        ])
    {
        // The border behind an even and an odd one, and behind the last before the exponent grows.
        for kept in [0u64, 1, 0x55, (1 << (format.bits - 1)) - 1] {
            let border = (1u64 << format.bits | kept << 1 | 1) << (52 - format.bits);
            for near in [
                border,
                border - 1,
                border + 1,
                border - 3,
                border + (1 << 20),
                border >> 1,
            ] {
                numbers.push(near as f64 * 2f64.powi(exponent - 52));
            }
        }
    }
    let negative: Vec<_> = numbers.iter().map(|number| -number).collect();
    numbers.extend(negative);
    numbers
}

fn check<U: Element + Into<f64>>(format: Format) {
    let numbers = near_borders(format);
    for (number, rounded) in numbers.iter().zip(cast::<f64, U>(&numbers)) {
        let (expected, rounded) = (nearest_to(format, *number), rounded.into());
        assert!(
            is_same(rounded, expected),
            "{number:e} to {}: {rounded:e}, not {expected:e}",
            U::DTYPE
        );
    }
    let floats: Vec<_> = numbers.iter().map(|&number| number as f32).collect();
    for (number, rounded) in floats.iter().zip(cast::<f32, U>(&floats)) {
        let (expected, rounded) = (nearest_to(format, f64::from(*number)), rounded.into());
        assert!(
            is_same(rounded, expected),
            "{number:e} to {}: {rounded:e}, not {expected:e}",
            U::DTYPE
        );
    }
}

#[test]
fn floats_are_rounded_to_the_nearest_half() {
    check::<f16>(HALF);
    check::<bf16>(BRAIN);
}

#[test]
fn what_lies_just_above_the_middle_is_rounded_up() {
    let number = f32::from_bits(0x3f80_8001);
    let rounded = cast::<f32, bf16>(&[number, -number]);
    let bits: Vec<_> = rounded.into_iter().map(bf16::to_bits).collect();
    assert_eq!(bits, [0x3f81, 0xbf81]);
}

#[test]
fn integers_are_rounded_once() {
    let mut numbers = vec![0u64, 1, 3, u64::MAX, u64::MAX >> 1];
    // What lies between two of each format, at every size, and its neighbours.
    for middle in [0x101u64, 0x103, 0x801, 0x803, 0x0100_0001, 0x0100_0003] {
        for shift in 1..=middle.leading_zeros() {
            let middle = middle << shift;
            numbers.extend([middle - 1, middle, middle + 1]);
        }
    }
    check_integers::<u64, bf16>(BRAIN, &numbers, |size| size);
    check_integers::<u64, f16>(HALF, &numbers, |size| size);
    check_integers::<u64, f32>(SINGLE, &numbers, |size| size);

    numbers.retain(|&size| i64::try_from(size).is_ok());
    for sign in [1, -1] {
        let signed = |size: u64| sign * size.cast_signed();
        check_integers::<i64, bf16>(BRAIN, &numbers, signed);
        check_integers::<i64, f16>(HALF, &numbers, signed);
        check_integers::<i64, f32>(SINGLE, &numbers, signed);
    }
}

fn check_integers<T: Number, U: Element + Into<f64>>(
    format: Format,
    sizes: &[u64],
    number: impl Fn(u64) -> T,
) {
    let numbers: Vec<_> = sizes.iter().map(|&size| number(size)).collect();
    let rounded = cast::<T, U>(&numbers);
    for ((&size, number), rounded) in sizes.iter().zip(numbers).zip(rounded) {
        let expected = nearest(format, size, 0);
        let expected = if number < T::default() {
            -expected
        } else {
            expected
        };
        let rounded = rounded.into();
        assert!(
            rounded == expected,
            "{number:?} to {}: {rounded}, not {expected}",
            U::DTYPE
        );
    }
}
