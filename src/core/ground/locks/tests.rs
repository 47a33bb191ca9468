//! Locks that a thread panicked with.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, RwLock};

use super::{Locked, Unpoisoned};

#[test]
fn what_a_thread_panicked_with_is_locked_again() {
    let (mutex, both) = (Mutex::new(1), RwLock::new(2));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _guards = (mutex.lock(), both.write());
        panic!("with both");
    }));
    assert!(panicked.is_err() && mutex.is_poisoned() && both.is_poisoned());
    assert_eq!((*mutex.locked(), *both.read().unpoisoned()), (1, 2));
}
