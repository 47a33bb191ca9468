//! Enums whose variants are all known: each variant is written once, with its number and its name.

/// An enum, and `ALL` of its variants; `name` where each has one behind `=>`, and `from_wire` where each has a number.
#[macro_export]
macro_rules! listed {
    (
        $(#[$meta:meta])*
        $vis:vis enum $enum:ident {
            $($(#[$attribute:meta])* $variant:ident $(= $number:literal)? $(=> $name:expr)?,)*
        }
    ) => {
        $(#[$meta])*
        $vis enum $enum { $($(#[$attribute])* $variant $(= $number)?,)* }

        impl $enum {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];
        }

        $crate::listed!(@numbers $enum $($variant $($number)?,)*);
        $crate::listed!(@names $enum $($variant $($name)?,)*);
    };
    (@numbers $enum:ident $($variant:ident,)*) => {};
    (@numbers $enum:ident $($variant:ident $number:literal,)*) => {
        impl $enum {
            /// The one of this number, if there is one.
            #[inline]
            #[must_use]
            pub const fn from_wire(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
        }
    };
    (@names $enum:ident $($variant:ident,)*) => {};
    (@names $enum:ident $($variant:ident $name:expr,)*) => {
        impl $enum {
            /// What it is called, in messages, labels and reports.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}
