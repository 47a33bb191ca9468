//! Tokens: which token cancels which, and that no waiter leaves anything at a token.

use std::sync::mpsc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::*;

fn waiters(token: &CancelToken) -> usize {
    token.lists.iter().map(|list| list.locked().len()).sum()
}

#[test]
fn a_token_cancels_its_children_and_not_its_parents() {
    let root = CancelToken::new();
    let (left, right) = (root.child(), root.child());
    let below = left.child();
    left.cancel();
    assert!(left.is_cancelled() && below.is_cancelled());
    assert!(!root.is_cancelled() && !right.is_cancelled());
    root.clone().cancel();
    assert!(right.is_cancelled() && right.child().is_cancelled());
}

#[test]
fn a_scope_cancels_however_it_is_left() {
    let run = CancelToken::new();
    let seen = std::panic::catch_unwind(|| {
        let scope = run.scope();
        let seen = scope.child();
        std::panic::resume_unwind(Box::new(seen));
    });
    let seen = seen.unwrap_err().downcast::<CancelToken>().unwrap();
    assert!(seen.is_cancelled() && !run.is_cancelled());
}

#[test]
fn what_waits_is_woken_by_each_token_above_it() {
    struct Count(std::sync::atomic::AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    for level in 0..3 {
        let tokens = [CancelToken::new()];
        let tokens = [tokens[0].clone(), tokens[0].child()];
        let tokens = [tokens[0].clone(), tokens[1].clone(), tokens[1].child()];
        let woken = Arc::new(Count(Default::default()));
        let waker = Waker::from(Arc::clone(&woken));
        let mut waiting = Box::pin(tokens[2].cancelled());
        let mut context = Context::from_waker(&waker);
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(woken.0.load(Ordering::SeqCst), 0);
        tokens[level].cancel();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
        assert_eq!(waiters(&tokens[2]), 0);
    }
}

#[test]
fn a_token_keeps_nothing_of_those_that_are_over() {
    let token = CancelToken::new();
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..100_000 {
        let child = token.child();
        let mut hook = Hook::on(&child);
        assert!(!hook.poll(&mut context));
        assert_eq!(waiters(&child), 2);
        drop(hook);
    }
    assert_eq!(waiters(&token), 0);
    assert_eq!(Arc::strong_count(&token.lists[0]), 1);
}

/// A cancel at any moment of a poll is either seen by it or wakes after it.
#[test]
fn a_cancel_is_never_missed() {
    for _ in 0..2_000 {
        let token = CancelToken::new();
        let waiting = token.child().cancelled();
        let canceller = std::thread::spawn(move || token.cancel());
        futures_lite::future::block_on(waiting);
        canceller.join().unwrap();
    }
}

/// Some executors run a task within its waker: what waits is then polled and dropped while `cancel` wakes.
#[test]
fn what_waits_may_be_polled_and_dropped_by_its_waker() {
    struct Run {
        waiting: Mutex<Option<Cancelled>>,
        polls: bool,
    }
    impl std::task::Wake for Run {
        fn wake(self: Arc<Self>) {
            let mut waiting = self.waiting.lock().unwrap().take().unwrap();
            let mut context = Context::from_waker(Waker::noop());
            assert!(!self.polls || Pin::new(&mut waiting).poll(&mut context).is_ready());
        }
    }
    for polls in [true, false] {
        let root = CancelToken::new();
        let token = root.child();
        let run = Arc::new(Run {
            waiting: Mutex::new(Some(token.cancelled())),
            polls,
        });
        let waker = Waker::from(Arc::clone(&run));
        let polled = {
            let mut waiting = run.waiting.lock().unwrap();
            Pin::new(waiting.as_mut().unwrap()).poll(&mut Context::from_waker(&waker))
        };
        assert!(polled.is_pending());
        let (told, ended) = mpsc::channel();
        let canceller = std::thread::spawn(move || {
            root.cancel();
            told.send(()).unwrap();
        });
        // A thread that waits for its own lock is not joined.
        ended.recv_timeout(Duration::from_secs(10)).unwrap();
        canceller.join().unwrap();
        assert!(run.waiting.lock().unwrap().is_none());
        assert_eq!(waiters(&token), 0);
    }
}
