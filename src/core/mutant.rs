//! Builds that are broken on purpose, so that the proofs can be proved (`scripts/mutants.sh`).
//!
//! `mutant!("name")` stands at the spot that the mutant of this name breaks. It is `false` before anything is compiled,
//! in every build but one with `--cfg rendez_mutants`; there it is true in a process that is started with
//! `MUTANT=name`. So one build holds all mutants, and each is shown to the test that must catch it.

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
