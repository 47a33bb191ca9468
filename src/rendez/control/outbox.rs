//! What a conversation has yet to write: messages in order, for one writer, and the waiter until all are out.
//!
//! Knows neither streams nor what the messages say.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use rendez_proto::Envelope;

/// Messages to be written, in order, and the waiter for them.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: RefCell<VecDeque<Envelope>>,
    /// Messages put in and not yet written: counts the one in the writer's hands too.
    unwritten: Cell<usize>,
    /// Of those in the queue, answers to the peer's requests.
    replies: Cell<usize>,
    writer: RefCell<Option<Waker>>,
    drained: RefCell<Option<Waker>>,
}

impl Outbox {
    /// Puts one in.
    pub(crate) fn put(&self, envelope: Envelope) {
        self.replies
            .set(self.replies.get() + usize::from(envelope.reply));
        self.queue.borrow_mut().push_back(envelope);
        self.unwritten.set(self.unwritten.get() + 1);
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    /// Takes the next, once there is one.
    pub(crate) async fn take(&self) -> Envelope {
        poll_fn(|context| match self.next() {
            Some(envelope) => Poll::Ready(envelope),
            None => {
                *self.writer.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// Takes the next, if there is one.
    pub(crate) fn next(&self) -> Option<Envelope> {
        let envelope = self.queue.borrow_mut().pop_front()?;
        self.replies
            .set(self.replies.get() - usize::from(envelope.reply));
        Some(envelope)
    }

    /// Takes back the first that `is_it`, if it waits.
    pub(crate) fn withdraw(&self, is_it: impl Fn(&Envelope) -> bool) -> Option<Envelope> {
        let mut queue = self.queue.borrow_mut();
        let index = queue.iter().position(is_it)?;
        let envelope = queue.remove(index)?;
        self.replies
            .set(self.replies.get() - usize::from(envelope.reply));
        drop(queue);
        self.written();
        Some(envelope)
    }

    /// Waits until all that was queued is written.
    pub(crate) async fn drained(&self) {
        poll_fn(|context| {
            if self.unwritten.get() == 0 {
                return Poll::Ready(());
            }
            *self.drained.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The envelope taken last has been written, or never will be.
    pub(crate) fn written(&self) {
        self.unwritten.set(self.unwritten.get().saturating_sub(1));
        if self.unwritten.get() == 0
            && let Some(drained) = self.drained.take()
        {
            drained.wake();
        }
    }

    /// How many answers wait to be written.
    pub(crate) fn unwritten_replies(&self) -> usize {
        self.replies.get()
    }
}
