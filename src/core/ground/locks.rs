//! Locks that are used also after a thread panicked with one: what they guard is whole whenever that can happen.

use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};

/// A mutex that is locked whether or not a thread panicked with it.
pub trait Locked<T> {
    /// Its guard.
    fn locked(&self) -> MutexGuard<'_, T>;
}

impl<T> Locked<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unpoisoned()
    }
}

/// What any lock says, whether or not a thread panicked with it.
pub trait Unpoisoned<T> {
    /// The guard, or what else was asked of the lock.
    fn unpoisoned(self) -> T;
}

impl<T> Unpoisoned<T> for LockResult<T> {
    fn unpoisoned(self) -> T {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
