//! The mailbox: how other threads hand things to the one control thread, whichever runtime that is.
//!
//! Knows nothing of what it carries. Bounded for senders that may be refused, and open for senders that are bounded
//! elsewhere.
//!
//! The waker is woken *under the lock*, and the receiver takes it out on its way out, also under the lock: so no
//! foreign thread can hold a waker of an executor that has ended, which one of our two runtimes would not survive.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use crate::ground::Locked;
use crate::ground::limits::CONTROL_COMMANDS_MAX;

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<T>,
    waker: Option<Waker>,
    open: bool,
}

/// The sending end; any thread may have one.
#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Mutex<State<T>>>);

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Mutex<State<T>>>);

/// Why something was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// The bound is reached.
    Full,
    /// The receiver is gone.
    Closed,
}

/// A new, empty mailbox.
pub(crate) fn mailbox<T>() -> (Sender<T>, Receiver<T>) {
    let state = Arc::new(Mutex::new(State {
        queue: VecDeque::new(),
        waker: None,
        open: true,
    }));
    (Sender(Arc::clone(&state)), Receiver(state))
}

impl<T> Sender<T> {
    /// Hands over `item` if fewer than the bound wait.
    pub(crate) fn try_send(&self, item: T) -> Result<(), Refused> {
        self.put(item, CONTROL_COMMANDS_MAX)
    }

    /// Hands over `item` unless the receiver is gone; its sender answers for the bound.
    pub(crate) fn send(&self, item: T) -> Result<(), Refused> {
        self.put(item, usize::MAX)
    }

    /// The same, and gives `item` back if the receiver is gone.
    pub(crate) fn offer(&self, item: T) -> Result<(), T> {
        let mut item = Some(item);
        let _ = self.put_from(&mut item, usize::MAX);
        item.map_or(Ok(()), Err)
    }

    fn put(&self, item: T, bound: usize) -> Result<(), Refused> {
        self.put_from(&mut Some(item), bound)
    }

    fn put_from(&self, item: &mut Option<T>, bound: usize) -> Result<(), Refused> {
        let mut state = self.0.locked();
        if !state.open {
            return Err(Refused::Closed);
        }
        if state.queue.len() >= bound {
            return Err(Refused::Full);
        }
        state.queue.extend(item.take());
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Receiver<T> {
    /// The next item, in the order of sending.
    pub(crate) async fn receive(&mut self) -> T {
        poll_fn(|context| self.poll_receive(context)).await
    }

    /// The same, as a poll.
    pub(crate) fn poll_receive(&self, context: &Context<'_>) -> Poll<T> {
        let mut state = self.0.locked();
        match state.queue.pop_front() {
            Some(item) => Poll::Ready(item),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The next item if there is one. Senders wake the receiver for none that comes after: it looks again.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.0.locked();
        state.waker = None;
        state.queue.pop_front()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.locked();
        state.open = false;
        state.waker = None;
        let left = std::mem::take(&mut state.queue);
        drop(state);
        drop(left);
    }
}
