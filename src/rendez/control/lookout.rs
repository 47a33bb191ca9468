//! The lookout: for a while after a call the control thread looks for what comes next itself, before it sleeps.
//!
//! Knows the mailbox, sockets and the time; not what is said. A call is often followed by its answer, or by another
//! call, within less time than it takes to put a thread to sleep and to wake it; glommio needs several system calls for
//! that. While the lookout lasts, commands and messages need none of them.
//!
//! It runs where the commands are received. A task that it wakes comes before it in the executor's queue, so all that
//! can be done is done when it looks again. What it cannot see, timers and sockets of greetings, has a turn every so
//! often. It yields the core at every look, and ends soon after the last call.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::conversation::Conversation;
use super::mailbox::Receiver;
use super::runtime::Runtime;

/// Conversations that are looked at. Calls on more of them end the lookout: something is always ready then.
const WATCHED_MAX: usize = 16;
/// How long the executor's own timers and sockets may wait for their turn.
const TURN_EVERY: Duration = Duration::from_micros(250);

/// What the control thread looks for, and until when.
#[derive(Debug)]
pub(crate) struct Lookout {
    patience: Duration,
    until: Cell<Option<Instant>>,
    /// When the executor had its last turn.
    turned: Cell<Option<Instant>>,
    /// A command was given out: what it woke comes first.
    has_given: Cell<bool>,
    watched: RefCell<Vec<Weak<Conversation>>>,
    /// The receiver of commands, asleep.
    sleeper: RefCell<Option<Waker>>,
}

/// What was seen.
enum Seen<T> {
    /// A command.
    Command(T),
    /// The executor must have its turn.
    TurnDue,
}

impl Lookout {
    /// One that lasts for `patience` after each call; with none there is no lookout.
    pub(crate) const fn new(patience: Duration) -> Self {
        Self {
            patience,
            until: Cell::new(None),
            turned: Cell::new(None),
            has_given: Cell::new(false),
            watched: RefCell::new(Vec::new()),
            sleeper: RefCell::new(None),
        }
    }

    /// A call was sent to this peer or came from it, or its answer: more will follow soon. False if there is no
    /// lookout.
    pub(crate) fn attend(&self, conversation: &Rc<Conversation>) -> bool {
        if self.patience.is_zero() {
            return false;
        }
        let mut watched = self.watched.borrow_mut();
        let is_it =
            |known: &Weak<Conversation>| std::ptr::eq(known.as_ptr(), Rc::as_ptr(conversation));
        if !watched.iter().any(is_it) {
            if watched.len() >= WATCHED_MAX {
                self.until.set(Some(Instant::now()));
                return false;
            }
            watched.push(Rc::downgrade(conversation));
        }
        self.until.set(Some(Instant::now() + self.patience));
        if let Some(sleeper) = self.sleeper.take() {
            sleeper.wake();
        }
        true
    }

    /// The next command.
    pub(crate) async fn next<T>(&self, commands: &Receiver<T>, runtime: &Runtime) -> T {
        loop {
            match poll_fn(|context| self.poll(commands, context)).await {
                Seen::Command(command) => return command,
                Seen::TurnDue => {
                    if !mutant!("lookouts_acknowledge_at_their_end") {
                        self.acknowledge_all();
                    }
                    runtime.turn().await;
                }
            }
        }
    }

    fn poll<T>(&self, commands: &Receiver<T>, context: &Context<'_>) -> Poll<Seen<T>> {
        if let Some(until) = self.until.get() {
            if self.has_given.replace(false) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            match self.look(until, commands, context) {
                Poll::Ready(None) => self.end(),
                Poll::Ready(Some(seen)) => return Poll::Ready(seen),
                Poll::Pending => return Poll::Pending,
            }
        }
        let received = commands.poll_receive(context);
        self.has_given.set(received.is_ready());
        if received.is_pending() {
            *self.sleeper.borrow_mut() = Some(context.waker().clone());
        }
        received.map(Seen::Command)
    }

    /// Looks until something is seen, or nothing for too long. Pending if a conversation was woken: it comes first.
    fn look<T>(
        &self,
        until: Instant,
        commands: &Receiver<T>,
        context: &Context<'_>,
    ) -> Poll<Option<Seen<T>>> {
        let watched = self.conversations();
        let turned = self.turned.get().unwrap_or_else(Instant::now);
        self.turned.set(Some(turned));
        loop {
            let now = Instant::now();
            // Before commands, which may never end. One that rests is readable, and waits for a timer.
            let is_late = now - turned >= TURN_EVERY && !mutant!("lookouts_give_no_turns");
            if is_late || watched.iter().any(|it| it.is_resting()) {
                self.turned.set(None);
                return Poll::Ready(Some(Seen::TurnDue));
            }
            if let Some(command) = commands.take() {
                self.has_given.set(true);
                return Poll::Ready(Some(Seen::Command(command)));
            }
            if now >= until {
                return Poll::Ready(None);
            }
            if wake_ready(&watched) {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            std::thread::yield_now();
        }
    }

    /// The lookout is over: what it put off is said.
    fn end(&self) {
        self.acknowledge_all();
        self.until.set(None);
        self.turned.set(None);
        self.watched.borrow_mut().clear();
    }

    /// Tells all that are watched which answers came. No answer waits for longer than a turn: others' calls may never
    /// end, and the lookout with them.
    fn acknowledge_all(&self) {
        for conversation in self.conversations() {
            conversation.acknowledge_all();
        }
    }

    /// Those that are watched, and have not ended.
    fn conversations(&self) -> Vec<Rc<Conversation>> {
        let watched = self.watched.borrow();
        let watched = watched.iter().filter_map(Weak::upgrade);
        watched.filter(|it| it.is_reading()).collect()
    }
}

/// Wakes those conversations that have something to read. False if there is none.
fn wake_ready(watched: &[Rc<Conversation>]) -> bool {
    let mut polled: Vec<_> = watched
        .iter()
        .map(|conversation| PollFd::from_borrowed_fd(conversation.as_fd(), PollFlags::IN))
        .collect();
    // An error is as good as nothing seen: the executor looks too.
    let ready = rustix::event::poll(&mut polled, Some(&Timespec::default())).unwrap_or_default();
    let readable = polled
        .iter()
        .zip(watched)
        .filter(|(polled, _)| !polled.revents().is_empty());
    readable.for_each(|(_, conversation)| conversation.wake());
    ready > 0
}
