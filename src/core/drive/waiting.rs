//! Waiting: how a thread waits for an outcome. As leader, who turns the shard; behind one; or aside, where it may not.
//!
//! It knows cells and patience; not what a turn does, nor who else may turn.

use std::sync::Arc;
use std::task::{Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use super::baton::{CALLED, KEPT, WANTED};
use super::line::Place;
use super::thread::{self, Idle, Patience, is_shard_thread};
use super::{Drive, Driver, Turn};
use crate::ground::Status;
use crate::shard::wait::WaitCell;
use crate::shard::{Progress, Shard};

/// Looks before a thread sleeps: about 20 µs, as long as ending a sleep takes.
const LOOKS: u32 = 2_000;
/// Looks between two yields: the thread that turns the shard may need this very core.
const LOOKS_PER_YIELD: u32 = 32;

impl Drive {
    /// Waits for a cell's outcome, turning the shard itself where nobody else does. `None` if `patience` ran out first.
    pub fn wait<T>(
        &self,
        cell: &WaitCell<T>,
        patience: Option<Duration>,
    ) -> Option<Result<T, Status>> {
        let until = Until::new(patience);
        loop {
            if let Some(outcome) = cell.take() {
                return Some(outcome);
            }
            let led = match self.enter_or(CALLED | WANTED) {
                Some(turn) => turn.lead(cell, &until),
                None => follow(Some(self), cell, &until),
            };
            match led {
                Led::Here(outcome) => return Some(outcome),
                Led::Late => return cell.take(),
                Led::Left => {}
                Led::Over => return Some(self.over(cell)),
            }
        }
    }

    /// The shard has ended in this thread's hands: all receives that it knew of have heard so; this one hears it here.
    #[cold]
    fn over<T>(&self, cell: &WaitCell<T>) -> Result<T, Status> {
        cell.take().unwrap_or_else(|| Err(self.mailbox.end()))
    }

    /// Turns the shard as leader, until the outcome is here.
    fn lead<T>(&self, shard: &mut Shard, cell: &WaitCell<T>, until: &Until) -> Led<T> {
        let mut patience = Patience::new(&self.running);
        let has_thread = self.running.driver != Driver::Caller;
        loop {
            let progress = shard.turn();
            if progress == Progress::Stopped {
                return Led::Over;
            }
            if let Some(outcome) = cell.take() {
                return Led::Here(outcome);
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
                thread::sleep(shard, &self.doorbell, until.left());
                patience.busy();
            }
        }
    }
}

impl Turn<'_> {
    /// Turns the shard until the cell's outcome is here, and lays it down. `None` if `patience` ran out first.
    pub fn wait<T>(
        self,
        cell: &WaitCell<T>,
        patience: Option<Duration>,
    ) -> Option<Result<T, Status>> {
        let drive = self.drive;
        let until = Until::new(patience);
        match self.lead(cell, &until) {
            Led::Here(outcome) => Some(outcome),
            Led::Late => cell.take(),
            Led::Left => drive.wait(cell, until.left()),
            Led::Over => Some(drive.over(cell)),
        }
    }

    #[inline]
    fn lead<T>(mut self, cell: &WaitCell<T>, until: &Until) -> Led<T> {
        let drive = self.drive;
        self.with(|seat| {
            let led = seat.inside(|shard| drive.lead(shard, cell, until));
            // After a panic too everybody has heard of it.
            let led = led.unwrap_or(Led::Over);
            seat.is_over |= matches!(led, Led::Over);
            led
        })
        .unwrap_or(Led::Left)
    }
}

/// Waits for a cell's outcome, which somebody else brings. `None` if `patience` ran out first.
pub fn wait_aside<T>(cell: &WaitCell<T>, patience: Option<Duration>) -> Option<Result<T, Status>> {
    match follow(None, cell, &Until::new(patience)) {
        Led::Here(outcome) => Some(outcome),
        Led::Late | Led::Left | Led::Over => cell.take(),
    }
}

/// Somebody else turns the shard: waits until the outcome is here, or `drive`, if there is one, may be free.
fn follow<T>(drive: Option<&Drive>, cell: &WaitCell<T>, until: &Until) -> Led<T> {
    let drive = drive.filter(|drive| drive.is_shared() && !is_shard_thread());
    for look in 1..=LOOKS {
        if let Some(outcome) = cell.take() {
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
    let mut place: Option<Arc<Place>> = None;
    let led = loop {
        if let Poll::Ready(outcome) = cell.poll(&waker) {
            break Led::Here(outcome);
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
    Here(Result<T, Status>),
    /// Patience ran out.
    Late,
    /// It is somebody else's to turn the shard, or may be ours.
    Left,
    /// The shard has ended.
    Over,
}

/// Until when a thread waits.
struct Until(Option<Instant>);

impl Until {
    fn new(patience: Option<Duration>) -> Self {
        Self(patience.and_then(|patience| Instant::now().checked_add(patience)))
    }

    /// What is left; `None` for ever, zero for nothing.
    fn left(&self) -> Option<Duration> {
        self.0
            .map(|until| until.saturating_duration_since(Instant::now()))
    }

    fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// Sleeps until this thread is woken. False if there is no time left.
    fn park(&self) -> bool {
        match self.left() {
            None => std::thread::park(),
            Some(left) if left.is_zero() => return false,
            Some(left) => std::thread::park_timeout(left),
        }
        true
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
