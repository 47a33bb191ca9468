//! The watch: a small thread that sleeps in one poll over the listener, the connections that have not introduced themselves,
//! and the process handles of all peers.
//!
//! Why a thread of its own: glommio can await none of these descriptors. It knows sockets and handles, not what is said: a
//! connection that brought its preamble in time goes to the control thread, any other is closed; a process that exits is
//! told within the time of a wake-up.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::ground::limits::GREETINGS_MAX;

use super::address::Listening;
use super::credentials::Credentials;
use super::lane::Lane;
use super::peer::PeerId;

/// Pause after an `accept` that failed for want of descriptors or memory: the connection stays in the backlog, so a poll
/// would return at once, for ever.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A connection that has introduced itself.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) socket: UnixStream,
    pub(crate) lane: Lane,
    pub(crate) credentials: Credentials,
    /// When its greeting must be over.
    pub(crate) deadline: Instant,
    pub(crate) permit: Permit,
}

/// What the watch tells.
#[derive(Debug)]
pub(crate) enum Sight {
    /// Somebody connected.
    Arrived(Arrived),
    /// The process of a followed peer has exited.
    Exited(PeerId),
}

/// The right to be greeted: at most [`GREETINGS_MAX`] are out.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Shared>);

/// A handle of the watch.
#[derive(Debug)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    orders: Mutex<Vec<Order>>,
    permits: AtomicUsize,
}

#[derive(Debug)]
enum Order {
    Follow(PeerId, OwnedFd),
    Forget(PeerId),
    Stop,
}

/// A connection whose preamble has not come.
#[derive(Debug)]
struct Silent {
    socket: UnixStream,
    deadline: Instant,
    permit: Permit,
}

impl Watch {
    /// Starts watching `listening`; what is seen goes to `tell`, which says whether anybody still listens.
    pub(crate) fn start(
        listening: Listening,
        greet_deadline: Duration,
        tell: impl Fn(Sight) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            wake,
            orders: Mutex::default(),
            permits: AtomicUsize::new(0),
        });
        let mut round = Round {
            shared: Arc::clone(&shared),
            listening,
            greet_deadline,
            accept_after: None,
            silent: Vec::new(),
            followed: Vec::new(),
            tell,
        };
        let thread = std::thread::Builder::new()
            .name("rendez-watch".into())
            .spawn(move || while round.turn() {})?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Tells [`Sight::Exited`] once the process behind `pidfd` has exited.
    pub(crate) fn follow(&self, peer: PeerId, pidfd: OwnedFd) {
        self.shared.order(Order::Follow(peer, pidfd));
    }

    /// Follows the process of `peer` no longer.
    pub(crate) fn forget(&self, peer: PeerId) {
        self.shared.order(Order::Forget(peer));
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.order(Order::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic of the watch was told by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.permits.fetch_sub(1, Ordering::Relaxed);
        self.0.wake();
    }
}

impl Shared {
    fn order(&self, order: Order) {
        self.orders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(order);
        self.wake();
    }

    fn wake(&self) {
        // The only failure is a counter at its top, which wakes as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn has_room(&self) -> bool {
        self.permits.load(Ordering::Relaxed) < GREETINGS_MAX
    }
}

/// What a sleep brought: for each descriptor that was polled, in order, whether it is ready.
#[derive(Debug)]
struct Woken {
    is_calling: bool,
    silent: Vec<bool>,
    followed: Vec<bool>,
}

/// What the thread owns.
struct Round<T> {
    shared: Arc<Shared>,
    listening: Listening,
    greet_deadline: Duration,
    /// Set while accepting rests after a failure.
    accept_after: Option<Instant>,
    silent: Vec<Silent>,
    followed: Vec<(PeerId, OwnedFd)>,
    tell: T,
}

impl<T: Fn(Sight) -> bool> Round<T> {
    /// One sleep and what it brought; false when it is time to end.
    fn turn(&mut self) -> bool {
        let woken = self.sleep();
        let mut counter = [0u8; 8];
        // Empty is fine: the poll may have returned for another reason.
        let _ = rustix::io::read(&self.shared.wake, &mut counter);
        let listens = self.take_exits(&woken.followed) && self.take_preambles(&woken.silent);
        if woken.is_calling {
            self.accept();
        }
        listens && self.take_orders()
    }

    fn sleep(&mut self) -> Woken {
        let now = Instant::now();
        if self.accept_after.is_some_and(|at| at <= now) {
            self.accept_after = None;
        }
        let accepts = self.shared.has_room() && self.accept_after.is_none();
        let listened = if accepts {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let wake = std::iter::once(PollFd::new(&self.shared.wake, PollFlags::IN));
        let listener = std::iter::once(PollFd::new(&self.listening.socket, listened));
        let silent = self
            .silent
            .iter()
            .map(|silent| PollFd::new(&silent.socket, PollFlags::IN));
        let followed = self
            .followed
            .iter()
            .map(|(_, pidfd)| PollFd::new(pidfd, PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> =
            wake.chain(listener).chain(silent).chain(followed).collect();
        let deadline = self
            .silent
            .iter()
            .map(|silent| silent.deadline)
            .chain(self.accept_after)
            .min();
        let timeout = deadline.map(|at| to_timespec(at.saturating_duration_since(now)));
        // An interrupted poll fills nothing in: nothing is ready then, and the next turn asks again.
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
        let mut ready = polled
            .iter()
            .map(|polled| !polled.revents().is_empty())
            .skip(1);
        let is_calling = ready.next().unwrap_or(false) && accepts;
        let silent = ready.by_ref().take(self.silent.len()).collect();
        Woken {
            is_calling,
            silent,
            followed: ready.collect(),
        }
    }

    fn accept(&mut self) {
        while self.shared.has_room() {
            match rustix::net::accept_with(
                &self.listening.socket,
                rustix::net::SocketFlags::CLOEXEC,
            ) {
                Ok(socket) => {
                    self.shared.permits.fetch_add(1, Ordering::Relaxed);
                    let permit = Permit(Arc::clone(&self.shared));
                    let deadline = Instant::now() + self.greet_deadline;
                    self.silent.push(Silent {
                        socket: UnixStream::from(socket),
                        deadline,
                        permit,
                    });
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(_) => {
                    self.accept_after = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
    }

    /// Hands over who has introduced itself, and closes who said something else or nothing for too long.
    fn take_preambles(&mut self, ready: &[bool]) -> bool {
        let now = Instant::now();
        for (silent, is_ready) in std::mem::take(&mut self.silent).into_iter().zip(ready) {
            match if *is_ready {
                Lane::take(silent.socket.as_fd())
            } else {
                Ok(None)
            } {
                Ok(None) if now < silent.deadline => self.silent.push(silent),
                // Too late, or not one of us: closed without a word, since no word would be understood.
                Ok(None) | Err(_) => {}
                Ok(Some(lane)) => {
                    let Ok(credentials) = Credentials::of(silent.socket.as_fd()) else {
                        continue;
                    };
                    let Silent {
                        socket,
                        deadline,
                        permit,
                    } = silent;
                    if !(self.tell)(Sight::Arrived(Arrived {
                        socket,
                        lane,
                        credentials,
                        deadline,
                        permit,
                    })) {
                        return false;
                    }
                }
            }
        }
        true
    }

    fn take_exits(&mut self, ready: &[bool]) -> bool {
        let mut index = 0;
        let mut exited = Vec::new();
        self.followed.retain(|(peer, _)| {
            let is_exited = ready.get(index).copied().unwrap_or(false);
            index += 1;
            if is_exited {
                exited.push(*peer);
            }
            !is_exited
        });
        exited
            .into_iter()
            .all(|peer| (self.tell)(Sight::Exited(peer)))
    }

    fn take_orders(&mut self) -> bool {
        let orders = std::mem::take(
            &mut *self
                .shared
                .orders
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        for order in orders {
            match order {
                Order::Follow(peer, pidfd) => self.followed.push((peer, pidfd)),
                Order::Forget(peer) => self.followed.retain(|(followed, _)| *followed != peer),
                Order::Stop => return false,
            }
        }
        true
    }
}

fn to_timespec(time: Duration) -> Timespec {
    // One more nanosecond than nothing, so that a deadline is over when the poll returns.
    let time = time.saturating_add(Duration::from_nanos(1));
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}
