//! `Debug` of types that hold what has none, as functions: a few of their fields stand for all.

/// `Debug` of a type by these fields alone, or by what these methods of it return.
#[macro_export]
macro_rules! shown {
    (
        $(<$($generic:ident $(: $bound:path)?),+>)?
        $type:ident $(<$($argument:ident),+>)? { $($field:ident $(($($given:tt)*))?),* }
    ) => {
        impl $(<$($generic $(: $bound)?),+>)? ::std::fmt::Debug for $type $(<$($argument),+>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($type))
                    $(.field(stringify!($field), &self.$field $(($($given)*))?))*
                    .finish_non_exhaustive()
            }
        }
    };
}
