//! Waiting: how a thread waits for an outcome. As the leader, which turns the shard; as a follower; or aside, where it
//! may not turn.
//!
//! It knows cells and patience; not what a turn does, nor which other threads may turn.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::baton::{CALLED, KEPT, WANTED};
use super::beside::TURNS_BESIDE;
use super::line::LinePlace;
use super::thread::{self, Idle, Patience, is_shard_thread};
use super::{Drive, Driver, Turn};
use crate::fabric::doorbell::Doorbell;
use crate::ground::{Key, Nanos, Status, StepId};
use crate::mail::wait::{Awaited, WaitCell};
use crate::mail::{Handed, forks};
use crate::shard::{self, Progress, Shard, TaskWaker};

/// Looks before a thread sleeps: about 20 µs, as long as ending a sleep takes.
const LOOKS: u32 = 2_000;
/// How soon a thread that waits for what no shard brings learns that the shard has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Looks between two yields: the thread that turns the shard may need this very core.
const LOOKS_PER_YIELD: u32 = 32;

impl Drive {
    /// Waits for a cell's outcome, turning the shard itself if no other thread does. `None` if `patience` ran out
    /// first.
    pub fn wait<T>(
        &self,
        cell: &WaitCell<T>,
        patience: Option<Duration>,
    ) -> Option<Result<T, Status>> {
        match self.wait_led(cell, patience) {
            Led::Here(outcome) => Some(outcome),
            Led::Over => Some(self.over(cell)),
            Led::Late | Led::Left => cell.take(),
        }
    }

    /// The same for anything that the shard, or another thread, brings. `None` if the shard ended without it, too, and
    /// in a child of `fork`.
    pub fn wait_for<A: Awaited>(
        &self,
        awaited: &A,
        patience: Option<Duration>,
    ) -> Option<A::Outcome> {
        match self.wait_until(awaited, &Until::looking_again(patience)) {
            Led::Here(outcome) => Some(outcome),
            Led::Over | Led::Late | Led::Left => awaited.look(),
        }
    }

    /// Wakes a task, and waits for what it brings, or another thread does: as [`Drive::wake`] and then
    /// [`Drive::wait_for`], but the shard changes hands once.
    pub fn wake_and_wait<A: Awaited>(
        &self,
        waker: &TaskWaker,
        awaited: &A,
        patience: Option<Duration>,
    ) -> Option<A::Outcome> {
        if waker.seat().ring() {
            match self.enter() {
                Some(mut turn) => {
                    if !turn.run(waker) {
                        waker.call();
                    }
                    match turn.lead_to(&Until::new(patience), awaited) {
                        Led::Here(outcome) => return Some(outcome),
                        Led::Late | Led::Over => return awaited.look(),
                        Led::Left => {}
                    }
                }
                // The wait tells its holder.
                None => waker.call(),
            }
        }
        self.wait_for(awaited, patience)
    }

    fn wait_led<A: Awaited>(&self, awaited: &A, patience: Option<Duration>) -> Led<A::Outcome> {
        self.wait_until(awaited, &Until::new(patience))
    }

    fn wait_until<A: Awaited>(&self, awaited: &A, until: &Until) -> Led<A::Outcome> {
        loop {
            if let Some(outcome) = awaited.look() {
                return Led::Here(outcome);
            }
            let led = match self.enter_or(CALLED | WANTED) {
                Some(turn) => turn.lead_to(until, awaited),
                None => follow(Some(self), awaited, until),
            };
            match led {
                Led::Left => {}
                led => return led,
            }
        }
    }

    /// The shard has ended in this thread's hands: all receives that it knew of have heard so; this one hears it here.
    #[cold]
    fn over<T>(&self, cell: &WaitCell<T>) -> Result<T, Status> {
        cell.take().unwrap_or_else(|| Err(self.mailbox.end()))
    }

    /// Turns the shard as leader, until what is waited for is here: `take` takes it. `watch` does too, before a sleep,
    /// or has who brings it ring the doorbell.
    #[inline]
    fn lead<T>(
        &self,
        shard: &mut Shard,
        until: &Until,
        take: impl Fn(&mut Shard) -> Option<T>,
        watch: impl Fn() -> Poll<T>,
    ) -> Led<T> {
        let mut patience = Patience::new(&self.running);
        let has_thread = self.running.driver != Driver::Caller;
        let mut turns = 0_u32;
        loop {
            let progress = shard.turn();
            if progress == Progress::Stopped {
                return Led::Over;
            }
            if let Some(outcome) = take(shard) {
                return Led::Here(outcome);
            }
            turns = turns.wrapping_add(1);
            // Else a shard that always has work would keep who waits for longer than they wish.
            if turns.is_multiple_of(thread::TURNS_PER_LOOK) && until.is_over() {
                return Led::Late;
            }
            if turns.is_multiple_of(TURNS_BESIDE) && !has_thread && self.turn_beside() {
                patience.busy();
                continue;
            }
            if progress == Progress::Busy {
                patience.busy();
                if has_thread && shard.wants_home() {
                    return Led::Left;
                }
                continue;
            }
            let idle = patience.idle(shard);
            if idle != Idle::Turn && until.is_over() {
                return Led::Late;
            }
            if idle == Idle::Sleep {
                self.baton.sleeps();
                let mut seen = Poll::Pending;
                let must_wait = || {
                    seen = watch();
                    seen.is_pending()
                };
                if has_thread {
                    thread::sleep(shard, &self.doorbell, until.left(), must_wait);
                } else {
                    self.sleep_with_all(shard, until.left(), must_wait);
                }
                if let Poll::Ready(outcome) = seen {
                    return Led::Here(outcome);
                }
                patience.busy();
            }
        }
    }
}

impl Turn<'_> {
    /// A receive, after all that this thread left in the mailbox: turns the shard until the outcome is here, and lays
    /// it down. The outcome lies in the shard, which is this thread's, and in no cell; `spare` makes one if the shard
    /// must be left to its own thread before.
    #[inline]
    pub fn receive(
        self,
        key: &Key,
        step: StepId,
        deadline: Nanos,
        spare: impl FnOnce() -> Arc<WaitCell<Handed>>,
    ) -> shard::Led {
        let drive = self.drive;
        match self.receive_until(key, step, deadline, &Until::NEVER, spare) {
            Ok(led) => led,
            Err(cell) => {
                let outcome = drive.wait(&cell, None);
                shard::Led {
                    outcome: outcome.unwrap_or_else(|| Err(drive.mailbox.end())),
                    waking: cell.woke().unwrap_or(0),
                }
            }
        }
    }

    /// The same for at most `patience`.
    ///
    /// # Errors
    /// The cell that the outcome will be in: the receive goes on, and a thread must wait for it; and what is left of
    /// the patience.
    #[inline]
    pub fn receive_for(
        self,
        key: &Key,
        step: StepId,
        deadline: Nanos,
        patience: Duration,
        spare: impl FnOnce() -> Arc<WaitCell<Handed>>,
    ) -> Result<shard::Led, (Arc<WaitCell<Handed>>, Duration)> {
        let until = Until::new(Some(patience));
        let led = self.receive_until(key, step, deadline, &until, spare);
        led.map_err(|cell| (cell, until.left().unwrap_or(patience)))
    }

    #[inline]
    fn receive_until(
        mut self,
        key: &Key,
        step: StepId,
        deadline: Nanos,
        until: &Until,
        spare: impl FnOnce() -> Arc<WaitCell<Handed>>,
    ) -> Result<shard::Led, Arc<WaitCell<Handed>>> {
        let drive = self.drive;
        let mut outcome = None;
        let cell = self.with(|seat| {
            let mut place = None;
            let led = seat.inside(|shard| {
                place = shard.recv_of_leader(key, step, deadline);
                if shard.has_led() {
                    return Led::Here(());
                }
                // The outcome stays where it is until all is done: it is moved once.
                let take = |shard: &mut Shard| shard.has_led().then_some(());
                drive.lead(shard, until, take, || Poll::Pending)
            });
            let led = led.unwrap_or(Led::Over);
            seat.is_over |= matches!(led, Led::Over);
            let shard = seat.shard.as_mut()?;
            match led {
                // The end of a shard tells all that wait, after a panic too.
                Led::Here(()) | Led::Over => {
                    outcome = shard.take_led();
                    None
                }
                Led::Late | Led::Left => {
                    let cell = spare();
                    if let Some(place) = place {
                        shard.leader_leaves(place, Arc::clone(&cell));
                    }
                    Some(cell)
                }
            }
        });
        drop(self);
        if let Some(Some(cell)) = cell {
            return Err(cell);
        }
        Ok(outcome.unwrap_or_else(|| shard::Led {
            outcome: Err(drive.mailbox.end()),
            waking: 0,
        }))
    }

    /// Turns the shard until the outcome is here, which another thread may bring too.
    #[inline]
    fn lead_to<A: Awaited>(mut self, until: &Until, awaited: &A) -> Led<A::Outcome> {
        let drive = self.drive;
        self.with(|seat| {
            let take = |_: &mut Shard| awaited.look();
            let watch = || awaited.watch(&Waker::from(Arc::clone(&drive.doorbell)));
            let led = seat.inside(|shard| drive.lead(shard, until, take, watch));
            // After a panic, too, all waiters have been told.
            let led = led.unwrap_or(Led::Over);
            seat.is_over |= matches!(led, Led::Over);
            led
        })
        .unwrap_or(Led::Left)
    }
}

/// Waits for an outcome that another thread brings. `None` if `patience` ran out first, and in a child of `fork`.
pub fn wait_aside<A: Awaited>(awaited: &A, patience: Option<Duration>) -> Option<A::Outcome> {
    match follow(None, awaited, &Until::new(patience)) {
        Led::Here(outcome) => Some(outcome),
        Led::Late | Led::Left | Led::Over => awaited.look(),
    }
}

/// Another thread turns the shard: waits until the outcome is here, or `drive`, if there is one, may be free.
fn follow<A: Awaited>(drive: Option<&Drive>, awaited: &A, until: &Until) -> Led<A::Outcome> {
    if forks::is_child() {
        // The thread that would bring it is the parent's.
        return Led::Over;
    }
    let is_over = || until.looks_again && drive.is_some_and(|drive| drive.mailbox.is_closed());
    let drive = drive.filter(|drive| drive.is_shared() && !is_shard_thread());
    for look in 1..=LOOKS {
        if let Some(outcome) = awaited.look() {
            return Led::Here(outcome);
        }
        std::hint::spin_loop();
        if look.is_multiple_of(LOOKS_PER_YIELD) {
            if drive.is_some_and(|drive| drive.baton.is_free()) {
                return Led::Left;
            }
            std::thread::yield_now();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut place: Option<Arc<LinePlace>> = None;
    let led = loop {
        if let Poll::Ready(outcome) = awaited.watch(&waker) {
            break Led::Here(outcome);
        }
        if is_over() {
            break Led::Over;
        }
        // What is kept is turned by its own thread, which brings the outcome.
        if let Some(drive) = drive.filter(|drive| !drive.baton.is(KEPT)) {
            let was_called = place.take_if(|place| !drive.baton.stands(place)).is_some();
            if place.is_none() && !was_called {
                place = drive.baton.line_up(&waker);
            }
            if place.is_none() {
                // It is free, or was a moment ago: its holder then sees to the others in line.
                drive.progress();
                break Led::Left;
            }
        }
        if !until.park() {
            break Led::Late;
        }
    };
    if let Some(place) = place
        && let Some(drive) = drive
        && !drive.baton.leave(&place)
    {
        drive.progress();
    }
    led
}

/// How waiting as leader, or behind one, went.
enum Led<T> {
    /// The outcome is here.
    Here(T),
    /// Patience ran out.
    Late,
    /// Another thread turns the shard, or it may now be free for this one.
    Left,
    /// The shard has ended, or never was: in a child of `fork`.
    Over,
}

/// Until when a thread waits.
struct Until {
    at: Option<Instant>,
    /// No shard brings the outcome, so none says that it has ended: the thread looks now and then.
    looks_again: bool,
}

impl Until {
    const NEVER: Self = Self {
        at: None,
        looks_again: false,
    };

    fn new(patience: Option<Duration>) -> Self {
        Self {
            at: patience.and_then(|patience| Instant::now().checked_add(patience)),
            looks_again: false,
        }
    }

    fn looking_again(patience: Option<Duration>) -> Self {
        Self {
            looks_again: true,
            ..Self::new(patience)
        }
    }

    /// What is left; `None` for ever, zero for nothing.
    fn left(&self) -> Option<Duration> {
        self.at
            .map(|until| until.saturating_duration_since(Instant::now()))
    }

    fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Sleeps until this thread is woken. False if there is no time left.
    fn park(&self) -> bool {
        match self.left() {
            Some(left) if left.is_zero() => return false,
            Some(left) if self.looks_again => std::thread::park_timeout(left.min(LOOK_AGAIN)),
            Some(left) => std::thread::park_timeout(left),
            None if self.looks_again => std::thread::park_timeout(LOOK_AGAIN),
            None => std::thread::park(),
        }
        true
    }
}

/// Wakes who sleeps with the shard, which is to look again.
impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
