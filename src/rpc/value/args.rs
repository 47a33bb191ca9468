//! Lists of arguments, and functions that take them: up to eight.

use super::{Packer, Unpacker, Value, ValueError};

/// The arguments of a call, as a tuple: `(tensor, 2.0_f32)`; one alone is `(tensor,)`, none is `()`.
pub trait Args: Sized + Send + 'static {
    /// Writes the names of their types, each with a comma behind it.
    fn names(to: &mut String);
    /// Writes them.
    ///
    /// # Errors
    /// As [`Value::put`].
    fn put(&self, to: &mut Packer) -> Result<(), ValueError>;
    /// Reads them.
    ///
    /// # Errors
    /// As [`Value::take`].
    fn take(from: &mut Unpacker) -> Result<Self, ValueError>;
}

/// A function of these arguments.
pub trait Function<A>: Send + Sync + 'static {
    /// What it returns.
    type Output;
    /// Calls it.
    fn apply(&self, args: A) -> Self::Output;
}

macro_rules! tuples {
    ($(($($name:ident $at:tt),*);)+) => {$(
        impl<$($name: Value),*> Args for ($($name,)*) {
            fn names(_to: &mut String) {
                $($name::name(_to); _to.push(',');)*
            }

            fn put(&self, _to: &mut Packer) -> Result<(), ValueError> {
                $(self.$at.put(_to)?;)*
                Ok(())
            }

            fn take(_from: &mut Unpacker) -> Result<Self, ValueError> {
                Ok(($($name::take(_from)?,)*))
            }
        }

        impl<F, R, $($name),*> Function<($($name,)*)> for F
        where
            F: Fn($($name),*) -> R + Send + Sync + 'static,
        {
            type Output = R;

            fn apply(&self, _args: ($($name,)*)) -> R {
                self($(_args.$at),*)
            }
        }
    )+};
}

tuples! {
    ();
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, G 5);
    (A 0, B 1, C 2, D 3, E 4, G 5, H 6);
    (A 0, B 1, C 2, D 3, E 4, G 5, H 6, I 7);
}

macro_rules! tuple_values {
    ($(($($name:ident $at:tt),+);)+) => {$(
        impl<$($name: Value),+> Value for ($($name,)+) {
            fn name(to: &mut String) {
                to.push('(');
                $($name::name(to); to.push(',');)+
                to.push(')');
            }

            fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
                $(self.$at.put(to)?;)+
                Ok(())
            }

            fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
                Ok(($($name::take(from)?,)+))
            }
        }
    )+};
}

tuple_values! {
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, G 5);
}
