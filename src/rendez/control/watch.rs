//! The watch: a small thread that sleeps in one poll over the listener, the connections that have not introduced
//! themselves, and the process handles of all peers.
//!
//! Why a thread of its own: glommio can await none of these descriptors. It knows sockets and handles, not what is
//! said: a connection that brought its preamble in time goes to the control thread, any other is closed; a process
//! that exits is told within the time of a wake-up.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::fabric::listeners::ParentOnly;
use crate::ground::Locked;
use crate::ground::limits::{GREETINGS_MAX, GREETINGS_OF_OTHERS_MAX};
use crate::users::UserNumbers;

use super::address::Listening;
use super::config::greeting_time;
use super::credentials::{Credentials, is_ready};
use super::gate::Pass;
use super::lane::{Lane, LaneError, Then};
use super::newcomers::{Data, Newcomers, TcpCaller};
use super::peer::PeerId;

/// Pause after an `accept` that failed for want of descriptors or memory: the connection stays in the backlog, so a
/// poll would return at once, for ever.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long the log hears no more of such failures. Some connections may be accepted between them.
const REST_QUIET: Duration = Duration::from_secs(10);

/// A connection that has introduced itself.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) socket: UnixStream,
    pub(crate) lane: Lane,
    pub(crate) then: Then,
    pub(crate) credentials: Credentials,
    /// When its greeting must be over.
    pub(crate) deadline: Instant,
    pub(crate) permit: Permit,
}

/// What the watch tells.
#[derive(Debug)]
pub(crate) enum Sight {
    /// A peer connected.
    Arrived(Arrived),
    /// A peer connected over TCP, to converse.
    Called(TcpCaller),
    /// A peer connected over TCP, to carry data.
    Data(Data),
    /// The process of a followed peer has exited.
    Exited(PeerId),
}

/// The right to be greeted, or to have a ticket judged: at most [`GREETINGS_MAX`] are out, and as many for TCP as its
/// gates let.
#[derive(Debug)]
pub(crate) struct Permit {
    shared: Arc<Shared>,
    /// Of a gate for TCP; those of Unix sockets are counted here.
    pass: Option<Pass>,
    /// Of a Unix socket whose other end is another user's.
    is_others: bool,
}

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
    /// Of them, those of other users.
    others: AtomicUsize,
    users: UserNumbers,
}

#[derive(Debug)]
enum Order {
    Follow(PeerId, Option<i32>, OwnedFd),
    Forget(PeerId),
    Stop,
}

/// A process whose exit is to be told, and its peers: one that lives long may have had many connections.
#[derive(Debug)]
struct Followed {
    process: Option<i32>,
    pidfd: OwnedFd,
    peers: Vec<PeerId>,
}

/// A connection whose preamble has not come.
#[derive(Debug)]
struct Silent {
    socket: UnixStream,
    deadline: Instant,
    permit: Permit,
}

impl Watch {
    /// Starts watching `listening`; what is seen goes to `tell`, which says whether the plane still listens.
    pub(crate) fn start(
        listening: Listening,
        tcp: Option<ParentOnly<TcpListener>>,
        greet_deadline: Duration,
        tell: impl Fn(Sight) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            wake,
            orders: Mutex::default(),
            permits: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
            users: UserNumbers::read(),
        });
        let mut round = Round {
            shared: Arc::clone(&shared),
            listening,
            tcp,
            greet_deadline,
            accept_after: None,
            told_rest: None,
            silent: Vec::new(),
            newcomers: Newcomers::new(greet_deadline),
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

    /// Tells [`Sight::Exited`] once the process behind `pidfd` has exited, which is number `process` here.
    pub(crate) fn follow(&self, peer: PeerId, process: Option<i32>, pidfd: OwnedFd) {
        self.shared.order(Order::Follow(peer, process, pidfd));
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

impl Permit {
    /// For a connection over TCP that has passed a gate.
    fn passed(shared: &Arc<Shared>, pass: Pass) -> Self {
        Self {
            shared: Arc::clone(shared),
            pass: Some(pass),
            is_others: false,
        }
    }

    /// For a connection of `user` of this machine, unless there are too many of other users.
    fn of_user(shared: &Arc<Shared>, user: u32) -> Option<Self> {
        let is_others = !shared.users.is_own(user);
        if is_others && shared.others.load(Ordering::Relaxed) >= GREETINGS_OF_OTHERS_MAX {
            return None;
        }
        shared
            .others
            .fetch_add(usize::from(is_others), Ordering::Relaxed);
        shared.permits.fetch_add(1, Ordering::Relaxed);
        Some(Self {
            shared: Arc::clone(shared),
            pass: None,
            is_others,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.pass.take().is_none() {
            self.shared.permits.fetch_sub(1, Ordering::Relaxed);
            self.shared
                .others
                .fetch_sub(usize::from(self.is_others), Ordering::Relaxed);
        }
        // A connection that waited for it has room now.
        self.shared.wake();
    }
}

impl Shared {
    fn order(&self, order: Order) {
        self.orders.locked().push(order);
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
    is_calling_tcp: bool,
    silent: Vec<bool>,
    newcomers: Vec<bool>,
    followed: Vec<bool>,
}

/// What the thread owns.
struct Round<T> {
    shared: Arc<Shared>,
    listening: Listening,
    tcp: Option<ParentOnly<TcpListener>>,
    greet_deadline: Duration,
    /// Set while accepting rests after a failure.
    accept_after: Option<Instant>,
    /// When the log was told of that last.
    told_rest: Option<Instant>,
    silent: Vec<Silent>,
    newcomers: Newcomers,
    followed: Vec<Followed>,
    tell: T,
}

impl<T: Fn(Sight) -> bool> Round<T> {
    /// One sleep and what it brought; false when it is time to end.
    fn turn(&mut self) -> bool {
        let woken = self.sleep();
        let mut counter = [0u8; 8];
        // Empty is fine: the poll may have returned for another reason.
        let _ = rustix::io::read(&self.shared.wake, &mut counter);
        let listens = self.take_exits(&woken.followed)
            && self.take_preambles(&woken.silent)
            && self.take_openings(&woken.newcomers);
        if woken.is_calling {
            self.accept();
        }
        if woken.is_calling_tcp {
            self.accept_tcp();
        }
        listens && self.take_orders()
    }

    fn sleep(&mut self) -> Woken {
        let now = Instant::now();
        if self.accept_after.is_some_and(|at| at <= now) {
            self.accept_after = None;
        }
        let rests = self.accept_after.is_some();
        let accepts = self.shared.has_room() && !rests;
        let accepts_tcp = self.newcomers.has_room() && !rests;
        let listened = |accepts| match accepts {
            true => PollFlags::IN,
            false => PollFlags::empty(),
        };
        let wake = std::iter::once(PollFd::new(&self.shared.wake, PollFlags::IN));
        let listener = std::iter::once(PollFd::new(&self.listening.socket, listened(accepts)));
        let tcp = self
            .tcp
            .iter()
            .map(|tcp| PollFd::new(tcp, listened(accepts_tcp)));
        let silent = self
            .silent
            .iter()
            .map(|silent| PollFd::new(&silent.socket, PollFlags::IN));
        let followed = self
            .followed
            .iter()
            .map(|followed| PollFd::new(&followed.pidfd, PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> = wake
            .chain(listener)
            .chain(tcp)
            .chain(silent)
            .chain(self.newcomers.polled())
            .chain(followed)
            .collect();
        let deadline = self
            .silent
            .iter()
            .map(|silent| silent.deadline)
            .chain(self.accept_after)
            .chain(self.newcomers.deadline())
            .min();
        let timeout = deadline.map(|at| to_timespec(at.saturating_duration_since(now)));
        // An interrupted poll fills nothing in: nothing is ready then, and the next turn asks again.
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
        let mut ready = polled
            .iter()
            .map(|polled| !polled.revents().is_empty())
            .skip(1);
        let is_calling = ready.next().unwrap_or(false) && accepts;
        let is_calling_tcp = self.tcp.is_some() && ready.next().unwrap_or(false) && accepts_tcp;
        let silent = ready.by_ref().take(self.silent.len()).collect();
        let newcomers = ready.by_ref().take(self.newcomers.len()).collect();
        Woken {
            is_calling,
            is_calling_tcp,
            silent,
            newcomers,
            followed: ready.collect(),
        }
    }

    fn accept(&mut self) {
        // Not for ever: those that are closed at once may be without end.
        for _ in 0..GREETINGS_MAX {
            if !self.shared.has_room() {
                return;
            }
            match rustix::net::accept_with(
                &self.listening.socket,
                rustix::net::SocketFlags::CLOEXEC,
            ) {
                Ok(socket) => {
                    let user = Credentials::of(socket.as_fd()).map(|of| of.user);
                    let Some(permit) = user
                        .ok()
                        .and_then(|user| Permit::of_user(&self.shared, user))
                    else {
                        continue;
                    };
                    let others = self
                        .shared
                        .permits
                        .load(Ordering::Relaxed)
                        .saturating_sub(1);
                    let deadline = Instant::now() + greeting_time(self.greet_deadline, others);
                    self.silent.push(Silent {
                        socket: UnixStream::from(socket),
                        deadline,
                        permit,
                    });
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(error) => return self.rest(error.into(), Instant::now()),
            }
        }
    }

    /// Accepts nothing for a moment: who dials hears nothing until then.
    fn rest(&mut self, error: io::Error, now: Instant) {
        self.accept_after = Some(now + ACCEPT_PAUSE);
        if self
            .told_rest
            .is_none_or(|told| now.saturating_duration_since(told) >= REST_QUIET)
        {
            self.told_rest = Some(now);
            let status = super::side::no_stream(error).status;
            tracing::warn!(%status, "new connections cannot be accepted for now, and have to wait");
        }
    }

    fn accept_tcp(&mut self) {
        let Some(listener) = &self.tcp else { return };
        // As above: those beyond their address' share take no room.
        for _ in 0..GREETINGS_MAX {
            if !self.newcomers.has_room() {
                return;
            }
            match listener.accept() {
                Ok((socket, from)) => {
                    self.newcomers.enter(socket, from);
                }
                Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                    Some(Errno::AGAIN) => return,
                    // What befell a connection before it was accepted is told by its accept.
                    Some(Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::NETDOWN) => {}
                    _ => return self.rest(error, Instant::now()),
                },
            }
        }
    }

    /// Hands over connections whose first bytes are there, and closes those that said something else, or nothing for
    /// too long.
    fn take_openings(&mut self, ready: &[bool]) -> bool {
        let shared = &self.shared;
        let permit = |pass| Permit::passed(shared, pass);
        self.newcomers.take(ready, permit, &self.tell)
    }

    /// Hands over connections that have introduced themselves, and closes those that said something else, or nothing
    /// for too long.
    fn take_preambles(&mut self, ready: &[bool]) -> bool {
        let now = Instant::now();
        for (silent, is_ready) in std::mem::take(&mut self.silent).into_iter().zip(ready) {
            match if *is_ready {
                Lane::take(silent.socket.as_fd())
            } else {
                Ok(None)
            } {
                Ok(None) if now < silent.deadline => self.silent.push(silent),
                // Closed without a word, as all below: none would be understood.
                Err(error @ (LaneError::System { .. } | LaneError::Short)) => {
                    tracing::debug!(%error, "a connection is closed: its lane cannot be taken");
                }
                // Too late, or not one of us.
                Ok(None) | Err(_) => {}
                Ok(Some((lane, then))) => {
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
                        then,
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
        self.followed.retain_mut(|followed| {
            let is_exited = ready.get(index).copied().unwrap_or(false);
            index += 1;
            if is_exited {
                exited.append(&mut followed.peers);
            }
            !is_exited
        });
        exited
            .into_iter()
            .all(|peer| (self.tell)(Sight::Exited(peer)))
    }

    /// Follows a process by one handle, however many connections it has had.
    fn follow(&mut self, peer: PeerId, process: Option<i32>, pidfd: OwnedFd) {
        let lives = |pidfd: &OwnedFd| !is_ready(pidfd.as_fd(), PollFlags::IN);
        let lives_now = lives(&pidfd);
        // Asked in this order: both were alive at one moment, when only one could have the number.
        let is_same = |followed: &&mut Followed| {
            lives_now && process.is_some() && followed.process == process && lives(&followed.pidfd)
        };
        match self.followed.iter_mut().find(is_same) {
            Some(followed) => followed.peers.push(peer),
            None => self.followed.push(Followed {
                process,
                pidfd,
                peers: vec![peer],
            }),
        }
    }

    fn take_orders(&mut self) -> bool {
        let orders = std::mem::take(&mut *self.shared.orders.locked());
        for order in orders {
            match order {
                Order::Follow(peer, process, pidfd) => self.follow(peer, process, pidfd),
                Order::Forget(peer) => self.followed.retain_mut(|followed| {
                    followed.peers.retain(|other| *other != peer);
                    !followed.peers.is_empty()
                }),
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

#[cfg(test)]
mod tests;
