//! Cancelling by token: one word ends every receive and every waiting send that hangs on it.
//!
//! A waiter stands in the list of the token and of each of its parents, for as long as it waits; so a token that
//! outlives a million receives holds nothing of them, and a child costs its parents nothing. What waits takes the
//! token's stops along, and the shard looks at them with a value in its hand, before it hands it over. So a cancel
//! takes effect at once, whether or not the receive is polled, and whatever stands in the shard's mailbox.
//!
//! No lock is held where a waker is called, cloned or dropped: a waker is foreign code, which may poll or drop on the
//! spot what waits, or take a lock under which another thread does.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::ground::Locked;
use crate::mail::stops::Stops;

/// Cancels whatever hangs on it: [`Recv::cancel_on`](super::Recv::cancel_on) and
/// [`SendAsync::cancel_on`](super::SendAsync::cancel_on). Cheap to clone; all clones are one token.
///
/// ```
/// use rendez::engine::{CancelToken, Config, Engine};
/// use rendez::ground::{Code, Key, StepId};
///
/// # let mut config = Config::new("/job:a/task:0");
/// # config.shards = 1;
/// # config.share_cores = true;
/// # config.control = false;
/// let engine = Engine::start(config)?;
/// let key = Key::between("a", "a", "never")?;
/// let token = CancelToken::new();
/// let waiting = engine.step(StepId(1)).recv(&key).cancel_on(&token.child());
/// let canceller = std::thread::spawn(move || token.cancel());
/// assert_eq!(waiting.wait().unwrap_err().code(), Code::Cancelled);
/// # canceller.join().unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CancelToken {
    /// What shards look at.
    stops: Stops,
    /// Who waits. Its own list is the last, after those of which it is a child.
    lists: Arc<[Arc<List>]>,
}

/// Who waits at one token, by number: in the order in which they came.
type List = Mutex<BTreeMap<u64, Arc<Waiter>>>;

/// What waits at a token and at each of its parents.
#[derive(Debug)]
struct Waiter {
    number: u64,
    /// Taken out by the cancel that calls it.
    waker: Mutex<Option<Waker>>,
}

impl Waiter {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            waker: Mutex::default(),
        }
    }

    /// The next cancel calls this one.
    fn watch(&self, waker: &Waker) {
        let waker = waker.clone();
        let former = self.waker.locked().replace(waker);
        drop(former);
    }

    fn wake(&self) {
        let waker = self.waker.locked().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Default for CancelToken {
    fn default() -> Self {
        Self::new()
    }
}

impl CancelToken {
    /// A token that only its holders cancel.
    #[must_use]
    pub fn new() -> Self {
        Self {
            stops: Stops::new(),
            lists: Arc::new([Arc::default()]),
        }
    }

    /// A token that this one cancels too, and that does not cancel this one.
    #[must_use]
    pub fn child(&self) -> Self {
        let own = std::iter::once(Arc::default());
        Self {
            stops: self.stops.child(),
            lists: self.lists.iter().cloned().chain(own).collect(),
        }
    }

    /// A child that is cancelled when the guard is dropped, however its scope is left.
    ///
    /// ```
    /// use rendez::engine::CancelToken;
    ///
    /// let run = CancelToken::new();
    /// let inner = {
    ///     let scope = run.scope();
    ///     // … `recv(&key).cancel_on(&scope)` …
    ///     scope.token().clone()
    /// };
    /// assert!(inner.is_cancelled() && !run.is_cancelled());
    /// ```
    #[must_use = "the scope is over, and what hangs on it cancelled, when this is dropped"]
    pub fn scope(&self) -> CancelScope {
        CancelScope(self.child())
    }

    /// Cancels everything that hangs on this token and its children, now and later. When this has returned, no receive
    /// under it takes a value that is sent afterwards, whether it is polled or not: that value goes to the next
    /// receive.
    pub fn cancel(&self) {
        if self.stops.raise()
            && let Some(own) = self.lists.last()
        {
            // What comes into the list after this sees the stop.
            let waiting = std::mem::take(&mut *own.locked());
            for waiter in waiting.into_values() {
                waiter.wake();
            }
        }
    }

    /// True once it, or one it is a child of, was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.stops.is_raised()
    }

    /// Waits until it is cancelled.
    pub fn cancelled(&self) -> Cancelled {
        Cancelled(Hook::on(self))
    }
}

/// See [`CancelToken::cancelled`].
#[derive(Debug)]
#[must_use = "it waits when it is awaited"]
pub struct Cancelled(Hook);

impl Future for Cancelled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.0.is_loose() || self.0.poll(context) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

/// A token that is cancelled when this is dropped. See [`CancelToken::scope`].
#[derive(Debug)]
pub struct CancelScope(CancelToken);

impl CancelScope {
    /// The token of the scope.
    #[must_use]
    pub const fn token(&self) -> &CancelToken {
        &self.0
    }
}

impl Deref for CancelScope {
    type Target = CancelToken;

    fn deref(&self) -> &CancelToken {
        &self.0
    }
}

impl Drop for CancelScope {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// How something that waits hangs on a token, if it does.
#[derive(Debug, Default)]
pub(super) struct Hook(Option<Box<Hung>>);

#[derive(Debug)]
struct Hung {
    token: CancelToken,
    /// What stands in the token's lists, from the first poll on.
    waiter: Option<Arc<Waiter>>,
}

impl Drop for Hung {
    fn drop(&mut self) {
        if let Some(waiter) = &self.waiter {
            for list in self.token.lists.iter() {
                // Not the last holder of the waker, which is dropped without a lock.
                list.locked().remove(&waiter.number);
            }
        }
    }
}

impl Hook {
    pub(super) fn on(token: &CancelToken) -> Self {
        Self(Some(Box::new(Hung {
            token: token.clone(),
            waiter: None,
        })))
    }

    /// True if it hangs on nothing, or nothing any more.
    pub(super) const fn is_loose(&self) -> bool {
        self.0.is_none()
    }

    /// The token that it hangs on.
    pub(super) fn token(&self) -> Option<CancelToken> {
        self.0.as_ref().map(|hung| hung.token.clone())
    }

    /// True if the token is cancelled already.
    pub(super) fn is_cancelled(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|hung| hung.token.is_cancelled())
    }

    /// What the shard is to look at, if it hangs on a token.
    pub(super) fn stops(&self) -> Option<Stops> {
        self.0.as_ref().map(|hung| hung.token.stops.clone())
    }

    /// Lets go of the token.
    pub(super) fn loosen(&mut self) {
        self.0 = None;
    }

    /// Has `tell` called when the token is cancelled. True if it is already.
    pub(super) fn call(&mut self, tell: impl Fn() + Send + Sync + 'static) -> bool {
        let waker = Waker::from(Arc::new(Tell(tell)));
        self.poll(&mut Context::from_waker(&waker))
    }

    /// True once, when the token is cancelled. Until then the context's waker is woken for it.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let Some(hung) = &mut self.0 else {
            return false;
        };
        if let Some(waiter) = &hung.waiter {
            waiter.watch(context.waker());
        } else {
            let waiter = Arc::new(Waiter::new());
            waiter.watch(context.waker());
            for list in hung.token.lists.iter() {
                list.locked().insert(waiter.number, Arc::clone(&waiter));
            }
            hung.waiter = Some(waiter);
        }
        // Looked at after it stands there: a cancel in between is seen here, or wakes.
        let is_cancelled = hung.token.is_cancelled();
        if is_cancelled {
            self.loosen();
        }
        is_cancelled
    }
}

struct Tell<F>(F);

impl<F: Fn() + Send + Sync> Wake for Tell<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests;
