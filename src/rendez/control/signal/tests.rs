//! Who waits, who has stopped waiting, and who is woken.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake};

use super::*;

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn those_that_wait_no_longer_leave_nothing() {
    let signal = Signal::default();
    for _ in 0..100 {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut wait = Box::pin(signal.wait());
        for _ in 0..3 {
            let polled = wait.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        drop((wait, waker));
        assert_eq!(Arc::strong_count(&woken), 1, "its waker is kept");
    }
    assert_eq!(signal.wakers.borrow().len(), 0);
}

#[test]
fn all_that_wait_are_woken_once_and_later_ones_do_not_wait() {
    let signal = Signal::default();
    let woken = [Woken::default(), Woken::default()].map(Arc::new);
    let wakers = woken.each_ref().map(|woken| Waker::from(Arc::clone(woken)));
    let [mut one, mut other] = wakers.each_ref().map(Context::from_waker);
    let (mut first, mut second) = (pin!(signal.wait()), pin!(signal.wait()));
    assert!(first.as_mut().poll(&mut one).is_pending());
    assert!(first.as_mut().poll(&mut one).is_pending());
    assert!(second.as_mut().poll(&mut other).is_pending());
    signal.set();
    for woken in &woken {
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    }
    assert!(first.poll(&mut one).is_ready() && second.poll(&mut other).is_ready());
    assert!(pin!(signal.wait()).poll(&mut one).is_ready());
}
