//! Numbers: the arithmetic of each element type, as TensorFlow's on a processor. Knows no tensors.
//!
//! Integers wrap; halves compute in 32 bits and round once. They are widened in pieces: the processor's own conversion
//! is looked for once for many, and the loop of an operation is compiled for 32 bits alone. What can fail (division by
//! zero) is looked for before.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rendez::memory::{Bool8, Element};

/// Elements that are widened at once, on the stack.
pub(crate) const PIECE: usize = 512;

/// What is done with elements of two slices.
pub(crate) type Then<'a, T> = &'a mut dyn FnMut([&[T]; 2]);

/// An element that can be reckoned with.
pub(crate) trait Number: Element + Default + PartialOrd + std::fmt::Debug {
    /// What they are reckoned in, and many of them added up.
    type Wide: Number<Wide = Self::Wide>;
    /// Elements of a piece of work: as many as there are, or those that are widened at once.
    const MOST: usize = usize::MAX;
    const ONE: Self;
    const LOWEST: Self;
    const HIGHEST: Self;
    const IS_INTEGER: bool;
    fn wide(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    /// Gives `then` the elements of two slices of at most [`MOST`](Self::MOST), widened.
    fn widened(elements: [&[Self]; 2], then: Then<'_, Self::Wide>);
    /// Fills a slice of at most [`MOST`](Self::MOST) with what `write` gives, narrowed.
    fn narrowed(out: &mut [Self], write: &mut dyn FnMut(&mut [Self::Wide]));
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Towards zero for integers, whose `other` is not zero.
    fn over(self, other: Self) -> Self;
    /// Towards negative infinity.
    fn floor_over(self, other: Self) -> Self;
    /// What is left of [`over`](Self::over), with the sign of `self`.
    fn remainder(self, other: Self) -> Self;
    /// What is left of [`floor_over`](Self::floor_over), with the sign of `other`.
    fn modulo(self, other: Self) -> Self;
    fn power(self, other: Self) -> Self;
    fn negative(self) -> Self;
    fn absolute(self) -> Self;
    /// -1, 0 or 1; not a number stays that.
    fn sign(self) -> Self;
    fn is_nan(self) -> bool;
    fn from_f64(number: f64) -> Self;
    fn from_i64(number: i64) -> Self;
    fn to_f64(self) -> f64;
    /// The low 64 bits of an integer.
    fn to_i64(self) -> i64;
    /// The number, if it is an integer's.
    fn to_i128(self) -> Option<i128>;

    /// The larger; not a number if either is that.
    fn max(self, other: Self) -> Self {
        if self > other || self.is_nan() {
            self
        } else {
            other
        }
    }

    /// The smaller; not a number if either is that.
    fn min(self, other: Self) -> Self {
        if self < other || self.is_nan() {
            self
        } else {
            other
        }
    }
}

/// A number with a fraction, whose functions are computed in 32 or 64 bits.
pub(crate) trait Real: Number<Wide: Float> {}

impl<T: Number<Wide: Float>> Real for T {}

/// Functions of a real number.
pub(crate) trait Float: Number<Wide = Self> {
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn ln_1p(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
}

/// A power with an exponent of more than 32 bits, of integers with or without a sign.
#[cold]
fn long_power(mut base: u64, mut exponent: u64) -> u64 {
    let mut power = 1u64;
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = power.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    power
}

macro_rules! integers {
    ($($type:ident $signed:literal)*) => {$(
        impl Number for $type {
            type Wide = Self;
            const ONE: Self = 1;
            const LOWEST: Self = $type::MIN;
            const HIGHEST: Self = $type::MAX;
            const IS_INTEGER: bool = true;
            #[inline]
            fn wide(self) -> Self { self }
            #[inline]
            fn narrow(wide: Self) -> Self { wide }
            #[inline]
            fn widened(elements: [&[Self]; 2], then: Then<'_, Self>) { then(elements); }
            #[inline]
            fn narrowed(out: &mut [Self], write: &mut dyn FnMut(&mut [Self])) { write(out); }
            #[inline]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline]
            fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline]
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline]
            fn over(self, other: Self) -> Self { if other == 0 { 0 } else { self.wrapping_div(other) } }
            #[inline]
            fn floor_over(self, other: Self) -> Self {
                let quotient = self.over(other);
                let is_exact = quotient.wrapping_mul(other) == self;
                if !is_exact && $signed && (self ^ other) >> ($type::BITS - 1) != 0 {
                    quotient.wrapping_sub(1)
                } else {
                    quotient
                }
            }
            #[inline]
            fn remainder(self, other: Self) -> Self { if other == 0 { 0 } else { self.wrapping_rem(other) } }
            #[inline]
            fn modulo(self, other: Self) -> Self {
                self.wrapping_sub(self.floor_over(other).wrapping_mul(other))
            }
            #[inline]
            fn power(self, other: Self) -> Self {
                match u32::try_from(other) {
                    Err(_) if $type::BITS > 32 => long_power(self as u64, other as u64) as Self,
                    other => self.wrapping_pow(other.unwrap_or(u32::MAX)),
                }
            }
            #[inline]
            fn negative(self) -> Self { self.wrapping_neg() }
            #[inline]
            #[allow(unused_comparisons, reason = "unsigned numbers share the text")]
            fn absolute(self) -> Self { if self < 0 { self.wrapping_neg() } else { self } }
            #[inline]
            #[allow(unused_comparisons, reason = "unsigned numbers share the text")]
            fn sign(self) -> Self {
                if self < 0 { (0 as $type).wrapping_sub(1) } else { $type::from(self > 0) }
            }
            #[inline]
            fn is_nan(self) -> bool { false }
            #[inline]
            fn from_f64(number: f64) -> Self { number as Self }
            #[inline]
            fn from_i64(number: i64) -> Self { number as Self }
            #[inline]
            fn to_f64(self) -> f64 { self as f64 }
            #[inline]
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline]
            fn to_i128(self) -> Option<i128> { Some(self.into()) }
        }
    )*};
}

integers! { i8 true i16 true i32 true i64 true u8 false u16 false u32 false u64 false }

macro_rules! floats {
    ($($type:ident)*) => {$(
        impl Number for $type {
            type Wide = Self;
            const ONE: Self = 1.0;
            const LOWEST: Self = $type::NEG_INFINITY;
            const HIGHEST: Self = $type::INFINITY;
            const IS_INTEGER: bool = false;
            #[inline]
            fn wide(self) -> Self { self }
            #[inline]
            fn narrow(wide: Self) -> Self { wide }
            #[inline]
            fn widened(elements: [&[Self]; 2], then: Then<'_, Self>) { then(elements); }
            #[inline]
            fn narrowed(out: &mut [Self], write: &mut dyn FnMut(&mut [Self])) { write(out); }
            #[inline]
            fn plus(self, other: Self) -> Self { self + other }
            #[inline]
            fn minus(self, other: Self) -> Self { self - other }
            #[inline]
            fn times(self, other: Self) -> Self { self * other }
            #[inline]
            fn over(self, other: Self) -> Self { self / other }
            #[inline]
            fn floor_over(self, other: Self) -> Self { (self / other).floor() }
            #[inline]
            fn remainder(self, other: Self) -> Self { self % other }
            #[inline]
            fn modulo(self, other: Self) -> Self {
                let rest = self % other;
                if rest != 0.0 && (rest < 0.0) != (other < 0.0) { rest + other } else { rest }
            }
            #[inline]
            fn power(self, other: Self) -> Self { self.powf(other) }
            #[inline]
            fn negative(self) -> Self { -self }
            #[inline]
            fn absolute(self) -> Self { self.abs() }
            #[inline]
            fn sign(self) -> Self {
                if self > 0.0 { 1.0 } else if self < 0.0 { -1.0 } else { self }
            }
            #[inline]
            fn is_nan(self) -> bool { self != self }
            #[inline]
            fn from_f64(number: f64) -> Self { number as Self }
            #[inline]
            fn from_i64(number: i64) -> Self { number as Self }
            #[inline]
            fn to_f64(self) -> f64 { f64::from(self) }
            #[inline]
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline]
            fn to_i128(self) -> Option<i128> { None }
        }

        impl Float for $type {
            #[inline]
            fn exp(self) -> Self { $type::exp(self) }
            #[inline]
            fn ln(self) -> Self { $type::ln(self) }
            #[inline]
            fn ln_1p(self) -> Self { $type::ln_1p(self) }
            #[inline]
            fn sqrt(self) -> Self { $type::sqrt(self) }
            #[inline]
            fn tanh(self) -> Self { $type::tanh(self) }
        }
    )*};
}

floats! { f32 f64 }

/// The number in 32 bits, so that rounding it once more, to half as many, is as good as rounding the number itself: if
/// it lies between two, the one of them whose last bit is set. That is no middle of coarser ones, and lies on the
/// number's side of each.
#[inline]
fn odd_single(number: f64) -> f32 {
    let near = number as f32;
    let (back, bits) = (f64::from(near), near.to_bits());
    if back == number || bits & 1 == 1 || number.is_nan() {
        return near;
    }
    f32::from_bits(if back.abs() > number.abs() {
        bits - 1
    } else {
        bits + 1
    })
}

/// The integer in 64 bits of a float, rounded likewise.
#[inline]
pub(crate) fn odd_double(number: u64) -> f64 {
    let low = number & 0x7ff;
    let is_exact = number >> 53 == 0 || low == 0;
    (if is_exact {
        number
    } else {
        (number - low) | 0x800
    }) as f64
}

/// The halves of a piece, in 32 bits.
fn widen<'a, H>(halves: &[H], room: &'a mut [f32; PIECE]) -> &'a [f32]
where
    [H]: HalfFloatSliceExt,
{
    let len = halves.len().min(PIECE);
    halves[..len].convert_to_f32_slice(&mut room[..len]);
    &room[..len]
}

macro_rules! halves {
    ($($type:ident)*) => {$(
        impl Number for $type {
            type Wide = f32;
            const ONE: Self = $type::ONE;
            const LOWEST: Self = $type::NEG_INFINITY;
            const HIGHEST: Self = $type::INFINITY;
            const IS_INTEGER: bool = false;
            const MOST: usize = PIECE;
            #[inline]
            fn wide(self) -> f32 { self.to_f32() }
            #[inline]
            fn narrow(wide: f32) -> Self { Self::from_f32(wide) }
            fn widened(elements: [&[Self]; 2], then: Then<'_, f32>) {
                let mut rooms = [[0f32; PIECE]; 2];
                let [left, right] = &mut rooms;
                then([widen(elements[0], left), widen(elements[1], right)]);
            }
            fn narrowed(out: &mut [Self], write: &mut dyn FnMut(&mut [f32])) {
                let mut room = [0f32; PIECE];
                let (wide, _) = room.split_at_mut(out.len().min(PIECE));
                write(wide);
                out[..wide.len()].convert_from_f32_slice(wide);
            }
            #[inline]
            fn plus(self, other: Self) -> Self { Self::narrow(self.wide() + other.wide()) }
            #[inline]
            fn minus(self, other: Self) -> Self { Self::narrow(self.wide() - other.wide()) }
            #[inline]
            fn times(self, other: Self) -> Self { Self::narrow(self.wide() * other.wide()) }
            #[inline]
            fn over(self, other: Self) -> Self { Self::narrow(self.wide() / other.wide()) }
            #[inline]
            fn floor_over(self, other: Self) -> Self { Self::narrow(self.wide().floor_over(other.wide())) }
            #[inline]
            fn remainder(self, other: Self) -> Self { Self::narrow(self.wide() % other.wide()) }
            #[inline]
            fn modulo(self, other: Self) -> Self { Self::narrow(self.wide().modulo(other.wide())) }
            #[inline]
            fn power(self, other: Self) -> Self { Self::narrow(self.wide().powf(other.wide())) }
            #[inline]
            fn negative(self) -> Self { -self }
            #[inline]
            fn absolute(self) -> Self { Self::narrow(self.wide().abs()) }
            #[inline]
            fn sign(self) -> Self { Self::narrow(Number::sign(self.wide())) }
            #[inline]
            fn is_nan(self) -> bool { $type::is_nan(self) }
            #[inline]
            fn from_f64(number: f64) -> Self { Self::from_f32(odd_single(number)) }
            #[inline]
            fn from_i64(number: i64) -> Self {
                let size = odd_double(number.unsigned_abs());
                Number::from_f64(if number < 0 { -size } else { size })
            }
            #[inline]
            fn to_f64(self) -> f64 { $type::to_f64(self) }
            #[inline]
            fn to_i64(self) -> i64 {
                self.to_f64() as i64
            }
            #[inline]
            fn to_i128(self) -> Option<i128> { None }
        }
    )*};
}

halves! { f16 bf16 }

/// `body` with `$T` the Rust type of `$dtype`, in `Some`; `None` if `$dtype` is not among the set.
///
/// Arithmetic has the types of `numbers`: what models compute with. `all` adds what is only stored, cast and shown.
/// Each type of a set is compiled for each operation, so sets are kept small.
macro_rules! by_type {
    ($dtype:expr, $T:ident: all => $body:expr) => {
        $crate::kernel::numbers::by_type!(@ $dtype, $T, $body, F32 f32, F64 f64, F16 half::f16, BF16 half::bf16,
            I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64)
    };
    ($dtype:expr, $T:ident: numbers => $body:expr) => {
        $crate::kernel::numbers::by_type!(@ $dtype, $T, $body, F32 f32, F64 f64, F16 half::f16, BF16 half::bf16,
            I32 i32, I64 i64, U8 u8)
    };
    ($dtype:expr, $T:ident: reals => $body:expr) => {
        $crate::kernel::numbers::by_type!(@ $dtype, $T, $body, F32 f32, F64 f64, F16 half::f16, BF16 half::bf16)
    };
    (@ $dtype:expr, $T:ident, $body:expr, $($name:ident $type:ty),*) => {
        match $dtype {
            $(rendez::ground::DType::$name => {
                type $T = $type;
                Some($body)
            })*
            _ => None,
        }
    };
}
pub(crate) use by_type;

/// The truth value as an element.
#[inline]
pub(crate) fn truth(value: bool) -> Bool8 {
    value.into()
}
