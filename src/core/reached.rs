//! States that a regression is about: whether a world still reaches them.
//!
//! A world is made from a number, and each change of what is drawn makes another world of it. So a regression that
//! runs a number says nothing by passing, unless the state that once went wrong was reached. `reached!("name")` stands
//! where that state arises; `tests/sim/regressions.rs` looks at the count. Builds without debug assertions, which all
//! that are installed are, hold nothing of it.

/// Counts, in builds with debug assertions, that this thread came here.
#[cfg(debug_assertions)]
#[macro_export]
macro_rules! reached {
    ($name:literal) => {
        $crate::reached::count($name)
    };
}

/// Counts, in builds with debug assertions, that this thread came here.
#[cfg(not(debug_assertions))]
#[macro_export]
macro_rules! reached {
    ($name:literal) => {};
}

#[cfg(debug_assertions)]
mod counts {
    use std::cell::RefCell;

    /// More than there are names.
    const NAMES: usize = 64;

    std::thread_local! {
        // In place: marks stand where nothing may be allocated.
        static COUNTS: RefCell<[Option<(&'static str, u64)>; NAMES]> = const { RefCell::new([None; NAMES]) };
    }

    /// This thread came to the mark.
    pub fn count(name: &'static str) {
        COUNTS.with_borrow_mut(|counts| {
            let place = counts
                .iter_mut()
                .find(|place| place.is_none_or(|(other, _)| other == name));
            if let Some(place) = place {
                let (_, count) = place.get_or_insert((name, 0));
                *count += 1;
            }
        });
    }

    /// How often this thread came to the mark.
    #[must_use]
    pub fn times(name: &str) -> u64 {
        COUNTS.with_borrow(|counts| {
            let of_name = |place: &&(&str, u64)| place.0 == name;
            counts
                .iter()
                .flatten()
                .find(of_name)
                .map_or(0, |place| place.1)
        })
    }
}

#[cfg(debug_assertions)]
pub use counts::{count, times};
