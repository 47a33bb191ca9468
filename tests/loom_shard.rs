//! How threads reach a shard, under loom: the doorbell's word, the mailbox, and the wait cell, each the very source.
//!
//! `doorbell/word.rs`, `mailbox.rs` and `wait.rs` import their atomics, queues and waker from `crate::sync`; here those
//! are loom's, and queues of a few lines that promise no more than crossbeam's do: a pop that finds nothing has looked
//! behind a fence. Loom takes a sequentially consistent access for acquire and release alone, so what is proved here
//! rests on fences: the one in the doorbell's ring, and the one in an empty pop.
//!
//! Each of these was taken away, and a model failed:
//!
//! | taken away | what fails |
//! |---|---|
//! | a fence of `word.rs`, either | `a_sleeper_sees_the_post_or_is_rung`, `a_command_is_seen_before_sleep_or_rings` |
//! | the ring in `command` | `a_command_is_seen_before_sleep_or_rings`, `a_push_that_meets_a_close_is_answered` |
//! | `look_again` in `command`, or in `call` | `a_push_that_meets_a_close_…`, `a_call_that_meets_a_close_is_answered` |
//! | the store of `is_closed` moved behind the loops of `close` | both |
//! | the Release of `give_up` | `who_sees_a_waiter_gone_sees_what_it_did` |
//! | the look of `complete` whether the waiter has left | `an_outcome_that_meets_a_waiter_that_leaves_…` |
//! | the flag of `cancel`, set behind the doorbell | `a_command_is_taken_after_the_cancels_before_it` |
//! | the second look of `poll` | `an_outcome_that_meets_a_poll_is_taken_or_wakes`, `a_cell_that_is_used_again_…` |
//! | the arming before the look at the outcome | `an_outcome_is_seen_before_sleep_or_rings` |
//!
//! Not seen to fail: the Release of the flag in `command`.
#![allow(dead_code, unreachable_pub, unused_imports, missing_docs)]

/// Loom's types, and queues over them, under the names of `src/core/sync.rs`.
mod sync {
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };

    pub(crate) use super::stand_ins::{ArrayQueue, AtomicWaker, SegQueue};
}

/// What the sources name beside their atomics, as little as they need.
mod stand_ins {
    use std::fmt;
    use std::sync::Mutex;
    use std::task::Waker;

    use super::sync::{AtomicUsize, Ordering, fence};

    /// A queue of any number of threads. The values lie where loom does not look; what loom sees are the two counters,
    /// so that a pop may miss what a real one may miss.
    #[derive(Debug)]
    pub(crate) struct SegQueue<T> {
        values: Mutex<Vec<Option<T>>>,
        head: AtomicUsize,
        tail: AtomicUsize,
    }

    impl<T> SegQueue<T> {
        pub(crate) fn new() -> Self {
            Self {
                values: Mutex::new(Vec::new()),
                head: AtomicUsize::new(0),
                tail: AtomicUsize::new(0),
            }
        }

        pub(crate) fn push(&self, value: T) {
            self.values.lock().unwrap().push(Some(value));
            self.tail.fetch_add(1, Ordering::Release);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            loop {
                let head = self.head.load(Ordering::Relaxed);
                if head >= self.tail.load(Ordering::Acquire) {
                    fence(Ordering::SeqCst);
                    if head >= self.tail.load(Ordering::Acquire) {
                        return None;
                    }
                }
                if self
                    .head
                    .compare_exchange(head, head + 1, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
                {
                    return self.values.lock().unwrap()[head].take();
                }
            }
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.head.load(Ordering::Relaxed) >= self.tail.load(Ordering::Acquire)
        }
    }

    /// The same with a bound.
    #[derive(Debug)]
    pub(crate) struct ArrayQueue<T> {
        queue: SegQueue<T>,
        capacity: usize,
    }

    impl<T> ArrayQueue<T> {
        pub(crate) fn new(capacity: usize) -> Self {
            Self {
                queue: SegQueue::new(),
                capacity,
            }
        }

        pub(crate) fn push(&self, value: T) -> Result<(), T> {
            let held = self.queue.values.lock().unwrap().iter().flatten().count();
            if held >= self.capacity {
                return Err(value);
            }
            self.queue.push(value);
            Ok(())
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.queue.pop()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.queue.is_empty()
        }

        pub(crate) fn len(&self) -> usize {
            self.queue.values.lock().unwrap().iter().flatten().count()
        }
    }

    /// The promise of the real one: of a registration and a wake, the wake finds the waker, or what was done before
    /// the wake is seen after the registration.
    pub(crate) struct AtomicWaker {
        waker: Mutex<Option<Waker>>,
        order: AtomicUsize,
    }

    impl AtomicWaker {
        pub(crate) fn new() -> Self {
            Self {
                waker: Mutex::new(None),
                order: AtomicUsize::new(0),
            }
        }

        pub(crate) fn register(&self, waker: &Waker) {
            *self.waker.lock().unwrap() = Some(waker.clone());
            self.order.fetch_add(1, Ordering::AcqRel);
        }

        pub(crate) fn wake(&self) {
            if let Some(waker) = self.take() {
                waker.wake();
            }
        }

        pub(crate) fn take(&self) -> Option<Waker> {
            self.order.fetch_add(1, Ordering::AcqRel);
            self.waker.lock().unwrap().take()
        }
    }

    impl fmt::Debug for AtomicWaker {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("AtomicWaker")
        }
    }
}

mod ground {
    pub(crate) use rendez::ground::{Code, Key, Nanos, Status, StepId, faults, limits};
}

mod memory {
    /// A value is its number.
    #[derive(Debug)]
    pub(crate) struct Tensor(pub(crate) u64);

    impl Tensor {
        pub(crate) const fn size(&self) -> usize {
            8
        }
    }
}

mod delivery {
    #[derive(Debug, PartialEq, Eq)]
    pub(crate) struct Handed(pub(crate) u64);
}

mod call {
    use std::sync::Arc;

    use super::ground::Status;
    use super::wait::WaitCell;

    /// Where a task would sit.
    #[derive(Debug)]
    pub(crate) struct Seat;

    impl Seat {
        pub(crate) fn ends(&self, _: Result<(), Status>) {}
    }

    /// The calls that carry an answer, and one that does not.
    #[derive(Debug)]
    pub(crate) enum Call<T> {
        Deadline {
            answer: Arc<WaitCell<()>>,
        },
        Pending {
            answer: Arc<WaitCell<u64>>,
        },
        Stats {
            answer: Arc<WaitCell<u64>>,
        },
        /// Taken apart by the mailbox, and made by no test here.
        #[allow(dead_code)]
        Spawn {
            task: T,
            seat: Arc<Seat>,
        },
        Stop,
    }
}

mod forks {
    /// No model forks.
    pub(crate) fn is_child() -> bool {
        false
    }
}

mod fabric {
    pub(crate) mod doorbell {
        use crate::sync::{AtomicU64, Ordering};
        use crate::word;

        /// A doorbell whose eventfd is a counter.
        #[derive(Debug)]
        pub(crate) struct Doorbell {
            pub(crate) sleeping: AtomicU64,
            pub(crate) rung: AtomicU64,
        }

        impl Doorbell {
            pub(crate) fn new() -> Self {
                Self {
                    sleeping: AtomicU64::new(0),
                    rung: AtomicU64::new(0),
                }
            }

            pub(crate) fn ring(&self) {
                if word::must_ring(&self.sleeping) {
                    self.rung.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
    }
}

#[path = "../src/core/mail/mailbox.rs"]
mod mailbox;
#[path = "../src/core/mail/pending_send.rs"]
mod pending_send;
#[path = "../src/core/mail/stops.rs"]
mod stops;
#[path = "../src/core/mail/wait.rs"]
mod wait;
#[path = "../src/core/fabric/doorbell/word.rs"]
mod word;

use std::sync::Arc;
use std::task::{Poll, Waker};

use call::Call;
use delivery::Handed;
use fabric::doorbell::Doorbell;
use ground::{Key, Nanos, StepId, faults};
use loom::thread;
use mailbox::{Cancel, Command};
use memory::Tensor;
use stops::Stops;
use sync::{AtomicBool, AtomicU64, Ordering};
use wait::WaitCell;

/// The mailbox of a shard that runs no tasks.
type Mailbox = mailbox::Mailbox<()>;

/// Every interleaving with at most so many preemptions: loom's authors find that two or three show what there is.
fn model(preemptions: Option<usize>, check: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(check);
}

fn mailbox() -> (Arc<Mailbox>, Arc<Doorbell>) {
    let bell = Arc::new(Doorbell::new());
    (Arc::new(Mailbox::new(2, Arc::clone(&bell))), bell)
}

fn recv(cell: &Arc<WaitCell<Handed>>) -> Command {
    Command::Recv {
        key: Key::between("a", "b", "e").unwrap(),
        step: StepId(1),
        deadline: Nanos::NEVER,
        cell: Arc::clone(cell),
        stops: None,
    }
}

#[test]
fn a_sleeper_sees_the_post_or_is_rung() {
    model(None, || {
        let bell = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let posters = Arc::clone(&bell);
        let poster = thread::spawn(move || {
            let (sleeping, posted) = &*posters;
            posted.store(1, Ordering::Release);
            word::must_ring(sleeping)
        });
        let (sleeping, posted) = &*bell;
        // Awake before it: what one sleep left behind does no harm to the next.
        word::arm(sleeping);
        word::disarm(sleeping);
        word::arm(sleeping);
        let is_seen = posted.load(Ordering::Relaxed) == 1;
        let is_rung = poster.join().unwrap();
        assert!(is_seen || is_rung, "the owner sleeps, and is not woken");
    });
}

/// Rings who sleeps with the shard.
struct Ring(Arc<Doorbell>);

impl std::task::Wake for Ring {
    fn wake(self: Arc<Self>) {
        self.0.ring();
    }
}

/// As a thread sleeps that turns the shard and waits for what another thread brings (`drive/thread.rs`).
#[test]
fn an_outcome_is_seen_before_sleep_or_rings() {
    model(Some(3), || {
        let (cell, bell) = (Arc::new(WaitCell::default()), Arc::new(Doorbell::new()));
        let theirs = Arc::clone(&cell);
        let bringer = thread::spawn(move || assert!(theirs.complete(Ok(1)).is_none()));
        let waker = Waker::from(Arc::new(Ring(Arc::clone(&bell))));
        word::arm(&bell.sleeping);
        let is_seen = cell.poll(&waker).is_ready();
        bringer.join().unwrap();
        let is_rung = bell.rung.load(Ordering::Acquire) > 0;
        assert!(is_seen || is_rung, "the owner sleeps, and is not woken");
    });
}

#[test]
fn a_command_is_seen_before_sleep_or_rings() {
    model(Some(3), || {
        let (mailbox, bell) = mailbox();
        let cell = Arc::new(WaitCell::default());
        let theirs = Arc::clone(&mailbox);
        let sender = thread::spawn(move || assert!(theirs.command(recv(&cell)).is_ok()));
        word::arm(&bell.sleeping);
        let is_seen = !mailbox.is_empty();
        sender.join().unwrap();
        let is_rung = bell.rung.load(Ordering::Acquire) > 0;
        assert!(is_seen || is_rung, "the shard sleeps beside a command");
    });
}

#[test]
fn who_sees_the_flag_sees_the_command() {
    model(Some(3), || {
        let (mailbox, _bell) = mailbox();
        let cell = Arc::new(WaitCell::default());
        let theirs = Arc::clone(&mailbox);
        let sender = thread::spawn(move || assert!(theirs.command(recv(&cell)).is_ok()));
        let mut taken = 0;
        for _ in 0..2 {
            if mailbox.commands_came() {
                while mailbox.next_command().is_some() {
                    taken += 1;
                }
                assert_eq!(taken, 1, "a flag without its command");
            }
        }
        sender.join().unwrap();
        if mailbox.commands_came() {
            while mailbox.next_command().is_some() {
                taken += 1;
            }
        }
        assert_eq!(taken, 1, "a command without a flag stays for ever");
    });
}

#[test]
fn a_push_that_meets_a_close_is_answered() {
    model(Some(3), || {
        let (mailbox, _bell) = mailbox();
        let cell = Arc::new(WaitCell::default());
        let (theirs, waits) = (Arc::clone(&mailbox), Arc::clone(&cell));
        let sender = thread::spawn(move || theirs.command(recv(&waits)).is_ok());
        mailbox.close(&faults::shutdown());
        let is_taken = sender.join().unwrap();
        let answers = std::iter::from_fn(|| cell.take()).count();
        assert_eq!(
            answers,
            usize::from(is_taken),
            "accepted and answered once, or refused"
        );
    });
}

#[test]
fn a_call_that_meets_a_close_is_answered() {
    model(Some(3), || {
        let (mailbox, _bell) = mailbox();
        let answer = Arc::new(WaitCell::default());
        let (theirs, waits) = (Arc::clone(&mailbox), Arc::clone(&answer));
        let asker = thread::spawn(move || {
            let is_late = theirs.is_closed();
            theirs.call(Call::Pending { answer: waits });
            is_late
        });
        mailbox.close(&faults::shutdown());
        let is_late = asker.join().unwrap();
        // A call after the end is dropped with its answer's other handle: that is what its asker sees.
        let is_alone = Arc::strong_count(&answer) == 1;
        assert!(
            answer.take().is_some() || is_late || is_alone,
            "asked, and never told"
        );
    });
}

/// A waker that counts, where loom does not look.
#[derive(Default)]
struct Wakes(std::sync::atomic::AtomicU64);

impl Wakes {
    fn count(&self) -> u64 {
        self.0.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl std::task::Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn an_outcome_that_meets_a_poll_is_taken_or_wakes() {
    model(None, || {
        let cell = Arc::new(WaitCell::default());
        let theirs = Arc::clone(&cell);
        let shard = thread::spawn(move || assert_eq!(theirs.complete(Ok(7)), None));
        let wakes = Arc::new(Wakes::default());
        let outcome = cell.poll(&Waker::from(Arc::clone(&wakes)));
        shard.join().unwrap();
        if outcome.is_pending() {
            assert_eq!(wakes.count(), 1, "it sleeps on its outcome");
            assert_eq!(cell.take(), Some(Ok(7)));
        }
        assert_eq!(cell.take(), None, "once");
    });
}

#[test]
fn who_sees_a_waiter_gone_sees_what_it_did() {
    model(None, || {
        let cell = Arc::new((WaitCell::<u64>::default(), AtomicU64::new(0)));
        let theirs = Arc::clone(&cell);
        let waiter = thread::spawn(move || {
            theirs.1.store(1, Ordering::Relaxed);
            theirs.0.give_up()
        });
        if cell.0.is_abandoned() {
            assert_eq!(cell.1.load(Ordering::Relaxed), 1);
        }
        let back = cell.0.complete(Ok(1));
        let is_gone = waiter.join().unwrap();
        assert_eq!(cell.0.is_abandoned(), is_gone);
        assert_eq!(back.is_some(), is_gone);
    });
}

/// A value that meets a waiter that gives up is had by one of them: by the shard, which brings it to another waiter, or
/// by the waiter, who gives it back.
#[test]
fn an_outcome_that_meets_a_waiter_that_leaves_is_had_by_one_of_them() {
    model(None, || {
        let cell = Arc::new(WaitCell::default());
        let theirs = Arc::clone(&cell);
        let shard = thread::spawn(move || theirs.complete(Ok(7)));
        let is_gone = cell.give_up();
        let left = if is_gone { None } else { cell.take() };
        let back = shard.join().unwrap();
        assert_eq!((is_gone, left.is_none()), (back.is_some(), back.is_some()));
        assert_eq!(left.or(back), Some(Ok(7)));
        assert_eq!(cell.take(), None, "nothing stays behind");
    });
}

/// The same, with a waiter that may take it first: a future that is polled once more, and dropped.
#[test]
fn an_outcome_that_meets_a_last_look_is_had_by_one_of_them() {
    model(Some(3), || {
        let cell = Arc::new(WaitCell::default());
        let theirs = Arc::clone(&cell);
        let shard = thread::spawn(move || theirs.complete(Ok(7)));
        let mut had = cell.take();
        if had.is_none() && !cell.give_up() {
            had = cell.take();
        }
        let back = shard.join().unwrap();
        assert!(had.is_some() ^ back.is_some(), "{had:?} {back:?}");
    });
}

/// What a receive is cancelled by is seen with a value in hand that was sent afterwards, by whatever lane it came.
#[test]
fn a_value_sent_after_a_cancel_finds_it_raised() {
    model(None, || {
        let stops = Stops::new();
        let child = stops.child();
        let lane = Arc::new(AtomicU64::new(0));
        let theirs = Arc::clone(&lane);
        let sender = thread::spawn(move || {
            assert!(stops.raise());
            theirs.store(1, Ordering::Release);
        });
        if lane.load(Ordering::Acquire) == 1 {
            assert!(child.is_raised(), "a cancelled receive takes a later value");
        }
        sender.join().unwrap();
        assert!(child.is_raised());
    });
}

/// When a receive is given up and another begins, the shard knows of the first when it takes the second: what
/// the first was brought lies in its place again. Of two who do so at once neither hides the other.
#[test]
fn a_command_is_taken_after_the_cancels_before_it() {
    model(Some(2), || {
        let (mailbox, _bell) = mailbox();
        let leavers: Vec<_> = (0..2)
            .map(|number| {
                let theirs = Arc::clone(&mailbox);
                thread::spawn(move || {
                    theirs.cancel(Cancel::Unread(Handed(number)));
                    let again = Arc::new(WaitCell::default());
                    assert!(theirs.command(recv(&again)).is_ok());
                })
            })
            .collect();
        let (mut returned, mut begun) = (0, 0);
        let mut look = || {
            while mailbox.next_command().is_some() {
                begun += 1;
                if mailbox.cancels_came() {
                    while mailbox.next_cancel().is_some() {
                        returned += 1;
                    }
                }
                assert!(
                    returned >= begun,
                    "the second receive went before the first came back"
                );
            }
        };
        look();
        for leaver in leavers {
            leaver.join().unwrap();
        }
        look();
        assert_eq!((returned, begun), (2, 2));
    });
}

/// As the engine does: a cell is used again when nothing else holds it, and never by whom it was meant for before.
#[test]
fn a_cell_that_is_used_again_brings_only_its_new_outcome() {
    model(Some(3), || {
        let cell = loom::sync::Arc::new(WaitCell::default());
        let theirs = loom::sync::Arc::clone(&cell);
        let first = thread::spawn(move || theirs.complete(Ok(1)));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let came = matches!(cell.poll(&waker), Poll::Ready(Ok(1)));
        if came && loom::sync::Arc::strong_count(&cell) == 1 {
            cell.reset();
            let theirs = loom::sync::Arc::clone(&cell);
            let second = thread::spawn(move || theirs.complete(Ok(2)));
            let again = Arc::new(Wakes::default());
            let outcome = cell.poll(&Waker::from(Arc::clone(&again)));
            second.join().unwrap();
            match outcome {
                Poll::Ready(outcome) => assert_eq!(outcome, Ok(2)),
                Poll::Pending => {
                    assert_eq!(again.count(), 1, "it sleeps on its outcome");
                    assert_eq!(cell.take(), Some(Ok(2)));
                }
            }
        }
        first.join().unwrap();
    });
}
