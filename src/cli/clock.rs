//! Waits that the clock ends: for what engines give, on a thread that has nothing else to do.
//!
//! Knows futures and the clock. It asks the system for nothing, no descriptor and no thread, so where these are short
//! it still waits.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What `future` gives, or nothing if it is `until` first; what is there already counts however late it is.
pub(super) fn before<T>(until: Instant, future: impl Future<Output = T>) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn, ready};
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_comes_is_given_and_what_does_not_come_is_waited_for_until_then() {
        let now = Instant::now();
        assert_eq!(before(now, ready(7)), Some(7));
        assert_eq!(before(now, pending::<()>()), None);
        let until = now + Duration::from_millis(1);
        assert_eq!(before(until, pending::<()>()), None);
        assert!(Instant::now() >= until);
        // Woken by another thread, long before.
        let mut other = None;
        let woken = poll_fn(|context| match other.take() {
            Some(_) => Poll::Ready(()),
            None => {
                let waker = context.waker().clone();
                other = Some(thread::spawn(move || waker.wake()));
                Poll::Pending
            }
        });
        assert_eq!(before(now + Duration::from_secs(600), woken), Some(()));
    }
}
