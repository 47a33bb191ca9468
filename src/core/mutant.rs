//! Builds that are broken on purpose, so that the proofs can be proved (`scripts/mutants.sh`).
//!
//! `mutant!("name")` stands at the spot that the mutant of this name breaks. It is `false` before anything is compiled,
//! in every build but one with `--cfg rendez_mutants`; there it is true in a process that is started with
//! `MUTANT=name`. So one build holds all mutants, and each is shown to the test that must catch it.
//!
//! A state machine whose rules have names ([`NamedRule`]) keeps a set of them ([`Rules`]), of which a simulation can
//! turn one off and must then see the harm that the rule prevents. In a release build every rule is always on and the
//! switches cost nothing.

use std::marker::PhantomData;

/// True in a process that is to be broken at this spot.
#[cfg(not(rendez_mutants))]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        false
    };
}

/// True in a process that is to be broken at this spot.
#[cfg(rendez_mutants)]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutant::is_chosen($name)
    };
}

/// True if the process was started with `MUTANT=name`.
#[cfg(rendez_mutants)]
#[must_use]
pub fn is_chosen(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| std::env::var_os("MUTANT"));
    chosen.as_deref() == Some(std::ffi::OsStr::new(name))
}

/// A rule of a state machine, by its name.
pub trait NamedRule: Copy {
    /// Its number, below 32.
    fn number(self) -> u32;

    /// True in a build that is broken by being without it.
    fn is_broken(self) -> bool;
}

/// The rules of a state machine, each with the broken build that is without it; the set of those that are on is
/// `Rules`.
#[macro_export]
macro_rules! rules {
    (
        $(#[$meta:meta])*
        $vis:vis enum $rules:ident { $($(#[$doc:meta])* $name:ident $(= $number:literal)? => $broken:expr,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        $vis enum $rules { $($(#[$doc])* $name $(= $number)?,)* }

        impl $rules {
            /// All of them.
            #[allow(dead_code)] // Only tests of some machines ask.
            $vis const ALL: &[Self] = &[$(Self::$name,)*];
        }

        impl $crate::mutant::NamedRule for $rules {
            fn number(self) -> u32 {
                self as u32
            }

            fn is_broken(self) -> bool {
                match self { $(Self::$name => $broken,)* }
            }
        }

        /// Which of them are on.
        $vis type Rules = $crate::mutant::Rules<$rules>;
    };
}

/// Which rules are on: all of them, but in a simulation that shows what one is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules<R>(u32, PhantomData<R>);

impl<R: NamedRule> Rules<R> {
    /// Every rule on: the only setting outside tests.
    pub const ALL: Self = Self(!0, PhantomData);

    /// All but `rule`. Has no effect without debug assertions.
    #[must_use]
    pub fn without(rule: R) -> Self {
        Self(!(1 << rule.number()), PhantomData)
    }

    /// True if `rule` is on.
    #[inline]
    #[must_use]
    pub fn on(self, rule: R) -> bool {
        !cfg!(debug_assertions) || (self.0 & (1 << rule.number()) != 0 && !rule.is_broken())
    }
}

impl<R: NamedRule> Default for Rules<R> {
    fn default() -> Self {
        Self::ALL
    }
}
