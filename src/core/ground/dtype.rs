//! Data types of tensor elements, their wire numbers, sizes and names.
//!
//! Knows nothing of memory: [`DType::size`] is what one element takes, and strings have none.
//!
//! ```
//! # extern crate rendez_core as rendez;
//! use rendez::ground::DType;
//!
//! assert_eq!(DType::from_wire(12), Some(DType::F32));
//! assert_eq!(DType::F32.size(), Some(4));
//! assert_eq!(DType::String.size(), None);
//! ```

use std::fmt;

#[cfg(test)]
mod tests;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $size:expr, $text:literal;)*) => {
        /// The type of a tensor's elements. Numbers are part of the wire format and never reused.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum DType { $($(#[$doc])* $name = $number,)* }

        impl DType {
            /// Every data type, in the order of their wire numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The data type of a wire number, if there is one.
            #[must_use]
            pub const fn from_wire(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// Bytes of one element; `None` for [`DType::String`], whose elements differ in length.
            #[inline]
            #[must_use]
            pub const fn size(self) -> Option<usize> {
                // One load: it is asked for in every hand-over, and the match is a jump.
                const SIZES: [u8; 256] = {
                    let mut sizes = [0; 256];
                    $(if let Some(size) = $size {
                        let size: usize = size;
                        sizes[$number] = size as u8;
                    })*
                    sizes
                };
                match SIZES[self as usize] {
                    0 => None,
                    size => Some(size as usize),
                }
            }

            /// The short lower-case name, as in `f32`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

dtypes! {
    /// One byte, 0 or 1.
    Bool = 1, Some(1), "bool";
    /// 8-bit signed integer.
    I8 = 2, Some(1), "i8";
    /// 8-bit unsigned integer.
    U8 = 3, Some(1), "u8";
    /// 16-bit signed integer.
    I16 = 4, Some(2), "i16";
    /// 16-bit unsigned integer.
    U16 = 5, Some(2), "u16";
    /// 32-bit signed integer.
    I32 = 6, Some(4), "i32";
    /// 32-bit unsigned integer.
    U32 = 7, Some(4), "u32";
    /// 64-bit signed integer.
    I64 = 8, Some(8), "i64";
    /// 64-bit unsigned integer.
    U64 = 9, Some(8), "u64";
    /// IEEE 754 half precision.
    F16 = 10, Some(2), "f16";
    /// Brain floating point: the upper half of an `f32`.
    BF16 = 11, Some(2), "bf16";
    /// IEEE 754 single precision.
    F32 = 12, Some(4), "f32";
    /// IEEE 754 double precision.
    F64 = 13, Some(8), "f64";
    /// Two `f32`: real, imaginary.
    C64 = 14, Some(8), "c64";
    /// Two `f64`: real, imaginary.
    C128 = 15, Some(16), "c128";
    /// Byte strings of any length, held encoded (see `memory::strings`).
    String = 16, None, "string";
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
