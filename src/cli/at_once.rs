//! Work of the same kind done with many items at once, on some threads.
//!
//! Knows nothing of the work.

use rendez::ground::{Locked, Unpoisoned};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Does `work` with all `items`, with `most` of them at once, and gives what came of each, in their order. Where the
/// system gives no more threads it is fewer at once: this thread works too.
pub(super) fn at_once<'a, T: Sync, R: Send>(
    items: &'a [T],
    most: usize,
    work: impl Fn(&'a T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    let some = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return };
            let result = work(item);
            let mut done = done.locked();
            done.push((at, result));
        }
    };
    thread::scope(|scope| {
        for _ in 1..items.len().min(most) {
            if thread::Builder::new().spawn_scoped(scope, some).is_err() {
                break;
            }
        }
        some();
    });
    let mut done = done.into_inner().unpoisoned();
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn what_comes_of_all_is_in_their_order_and_as_many_go_on_at_once() {
        let items: Vec<usize> = (0..12).collect();
        // Each waits for three others.
        let four = Barrier::new(4);
        let work = |item: &usize| {
            four.wait();
            item * 2
        };
        let doubled: Vec<usize> = items.iter().map(|item| item * 2).collect();
        assert_eq!(at_once(&items, 4, work), doubled);
        assert_eq!(at_once(&[], 4, |item: &usize| *item), [0; 0]);
    }
}
