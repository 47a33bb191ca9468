//! Shards in the hands of threads: their own, and those that wait.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Wake, Waker};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use super::{ARENA, Deaf};
use crate::drive::{Drive, Driver, PollPolicy, Running, finish_all, wait_aside};
use crate::ground::device::TaskName;
use crate::ground::{DType, Incarnation, Key, Nanos, Shape, StepId, TensorMeta};
use crate::mail::mailbox::{Cancel, Command};
use crate::mail::pending_send::SendCell;
use crate::mail::wait::{Awaited, WaitCell};
use crate::mail::{Handed, ShardStats};
use crate::memory::Tensor;
use crate::shard::{Call, Mailbox, Settings, Shard, Task, TaskContext, TaskEvent, TaskWaker};
use crate::testing::solo::{Queues, Team};
use crate::trace::Clock;

const PATIENCE: Duration = Duration::from_secs(60);
const ALL: [Driver; 3] = [Driver::Adaptive, Driver::Thread, Driver::Caller];

/// The shards of a task, each with its thread if it has one. They stop when this is dropped.
struct World {
    drives: Vec<Arc<Drive>>,
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<Option<Shard>>>,
}

impl World {
    fn new(driver: Driver, shards: u16) -> Self {
        let team = Team {
            task: TaskName::parse("/job:a/task:0").unwrap(),
            incarnation: Incarnation(1),
            settings: Settings {
                shards,
                ..Settings::default()
            },
            clock: Clock::system(),
            arena: ARENA,
            queues: Queues::default(),
        };
        let running = Running {
            driver,
            policy: PollPolicy::Park,
            spin: Duration::ZERO,
            is_shared: true,
        };
        let solos = team.muster(|_| Vec::new(), |_| Arc::new(Deaf)).unwrap();
        let mut world = Self {
            drives: Vec::new(),
            mailboxes: Vec::new(),
            threads: Vec::new(),
        };
        for solo in solos {
            let (shard, mailbox) = solo.into_shard();
            let drive = Arc::new(Drive::new(running, Arc::clone(&mailbox)).unwrap());
            if driver == Driver::Caller {
                drive.adopt(shard).unwrap();
            } else {
                let drive = Arc::clone(&drive);
                world.threads.push(thread::spawn(move || drive.run(shard)));
            }
            world.drives.push(drive);
            world.mailboxes.push(mailbox);
        }
        if driver == Driver::Caller {
            Drive::join(&world.drives);
        }
        world
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for mailbox in &self.mailboxes {
            let deadline = Nanos::ZERO;
            mailbox.call(Call::Stop { deadline });
        }
        if self.threads.is_empty() {
            finish_all(self.drives.iter().map(|drive| &**drive));
        }
        for thread in self.threads.drain(..) {
            assert!(thread.join().is_ok());
        }
    }
}

/// What another thread brings, once it was told whom to wake.
#[derive(Default)]
struct Flag {
    state: Mutex<(bool, Option<Waker>)>,
    is_watched: Condvar,
}

impl Flag {
    fn state(&self) -> MutexGuard<'_, (bool, Option<Waker>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings it to who watches. False if none does.
    fn bring(&self) -> bool {
        let is_alone = |state: &mut (bool, Option<Waker>)| state.1.is_none();
        let waiting = (self.is_watched).wait_timeout_while(self.state(), PATIENCE / 2, is_alone);
        let (mut state, _) = waiting.unwrap_or_else(PoisonError::into_inner);
        let Some(waker) = state.1.take() else {
            return false;
        };
        state.0 = true;
        drop(state);
        waker.wake();
        true
    }
}

impl Awaited for Flag {
    type Outcome = ();

    fn look(&self) -> Option<()> {
        self.state().0.then_some(())
    }

    fn watch(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.state();
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(waker.clone());
        self.is_watched.notify_one();
        Poll::Pending
    }
}

/// A thread that turns the shard sleeps with it: who brings what it waits for must find whom to wake, as it does where
/// the shard's own thread turns it.
#[test]
fn who_leads_is_woken_by_another_thread_that_brings_its_outcome() {
    for driver in ALL {
        let world = World::new(driver, 1);
        for _ in 0..3 {
            let flag = Arc::new(Flag::default());
            let bringer = thread::spawn({
                let flag = Arc::clone(&flag);
                move || flag.bring()
            });
            let outcome = world.drives[0].wait_for(&*flag, Some(PATIENCE));
            assert!(bringer.join().unwrap(), "{driver:?}: none watches");
            assert!(outcome.is_some(), "{driver:?}");
        }
    }
}

/// Waits for a state that other threads bring about.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        thread::yield_now();
    }
}

/// What its peers say, or a timer of its, is heard by a thread that waits in the engine, whichever shard it waits for.
#[test]
fn a_shard_that_a_thread_leaves_is_turned_by_who_sleeps_with_another() {
    let world = World::new(Driver::Caller, 2);
    let flag = Arc::new(Flag::default());
    let turn = world.drives[1].enter().unwrap();
    let waiting = thread::spawn({
        let (drive, flag) = (Arc::clone(&world.drives[0]), Arc::clone(&flag));
        move || drive.wait_for(&*flag, Some(PATIENCE))
    });
    until("it sleeps without the other", || {
        world.drives[1].is_wanted_beside()
    });
    drop(turn);
    // As a peer does, it rings the doorbell and turns nothing.
    let answer = Arc::new(WaitCell::<ShardStats>::default());
    world.mailboxes[1].call(Call::Stats {
        answer: Arc::clone(&answer),
    });
    let answered = wait_aside(&*answer, Some(PATIENCE / 2));
    assert!(flag.bring());
    assert!(waiting.join().unwrap().is_some());
    assert!(answered.is_some(), "no thread turned it");
}

/// Leaves its shard something to do at each turn, and says so to the holder.
struct Restless {
    drive: Weak<Drive>,
    of: ThreadId,
    /// Turns of that thread.
    turns: Arc<AtomicU32>,
}

const RESTLESS: u32 = 100_000;

impl Task for Restless {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        if matches!(event, TaskEvent::Stopping) {
            return context.finish();
        }
        let is_of = thread::current().id() == self.of;
        let turns = self.turns.fetch_add(u32::from(is_of), Ordering::Relaxed);
        if turns < RESTLESS
            && is_of
            && let Some(drive) = self.drive.upgrade()
        {
            context.again();
            drive.look_again();
        }
    }

    fn roams(&self) -> bool {
        true
    }
}

/// Others that send on and on take the shard themselves.
#[test]
fn who_lays_a_shard_down_serves_others_within_bounds() {
    let world = World::new(Driver::Adaptive, 1);
    let turns = Arc::new(AtomicU32::new(0));
    let waker = TaskWaker::new(Arc::clone(&world.mailboxes[0]));
    let task = Restless {
        drive: Arc::downgrade(&world.drives[0]),
        of: thread::current().id(),
        turns: Arc::clone(&turns),
    };
    world.mailboxes[0].call(Call::Spawn {
        task: Box::new(task),
        seat: Arc::clone(waker.seat()),
    });
    until("this thread has the shard", || {
        world.drives[0].enter_soon().is_some_and(|mut turn| {
            waker.wake();
            turn.turn();
            turns.load(Ordering::Relaxed) > 0
        })
    });
    let most = turns.load(Ordering::Relaxed);
    assert!(most > 128, "{most}: others were served more than once");
    assert!(most < RESTLESS, "it lays it down with more to do");
}

/// Memory whose release hook panics: in a turn it is taken for the shard.
fn trap() -> Tensor {
    const LEN: usize = 1 << 16;
    let shape = Shape::row(LEN as u64).unwrap();
    let meta = TensorMeta {
        dtype: DType::U8,
        shape,
    };
    Tensor::from_foreign(meta, vec![0_u8; LEN], |_| panic!("a hook panics")).unwrap()
}

struct Rung(AtomicU32);

impl Wake for Rung {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Such a value that is refused, and dropped where it is: its key's source is another task.
fn refused(answer: Option<Arc<WaitCell<()>>>) -> Command {
    Command::Send {
        key: Key::between("b", "a", "x").unwrap(),
        step: StepId(1),
        tensor: trap(),
        is_dead: false,
        answer,
        queued_at: Nanos::ZERO,
    }
}

/// A receive whose outcome comes to the cell.
fn receive(cell: &Arc<WaitCell<Handed>>) -> Command {
    Command::Recv {
        key: Key::between("a", "a", "x").unwrap(),
        step: StepId(1),
        deadline: Nanos::NEVER,
        cell: Arc::clone(cell),
        stops: None,
    }
}

/// What a shard has in its hands when it panics stands in no list of its. Who waits for that hears of the end as well,
/// a future too, though none looks for it again.
#[test]
fn who_waits_for_what_a_panicking_shard_has_in_hand_hears_of_it() {
    for driver in ALL {
        let world = World::new(driver, 1);
        let answer = Arc::new(WaitCell::<()>::default());
        let rings = Arc::new(Rung(AtomicU32::new(0)));
        assert!(answer.poll(&Waker::from(Arc::clone(&rings))).is_pending());
        let (drive, mailbox) = (&world.drives[0], &world.mailboxes[0]);
        let command = refused(Some(Arc::clone(&answer)));
        assert!(drive.command(command).is_ok());
        until("the future is woken", || {
            rings.0.load(Ordering::Acquire) == 1
        });
        let status = answer.take().unwrap().unwrap_err();
        assert_eq!(status.reason(), "SHARD_PANICKED");
        until("it takes nothing", || mailbox.is_closed());
        assert_eq!(mailbox.end(), status);
    }
}

/// What is dropped at that end may panic too.
#[test]
fn who_waits_for_a_shard_hears_of_its_end_though_that_panics_again() {
    let world = World::new(Driver::Caller, 1);
    let (drive, mailbox) = (&world.drives[0], &world.mailboxes[0]);
    let cell = Arc::new(WaitCell::default());
    // The first ends it. The others are dropped with its mailbox.
    for _ in 0..3 {
        assert!(mailbox.command(refused(None)).is_ok());
    }
    assert!(mailbox.command(receive(&cell)).is_ok());
    drive.progress();
    let status = cell.take().unwrap().unwrap_err();
    assert_eq!(status.reason(), "SHARD_PANICKED");
}

/// A shard that panics at what came before a command, or a call, has not begun with that.
#[test]
fn what_comes_behind_a_panic_is_refused() {
    let world = World::new(Driver::Caller, 2);
    let cell = Arc::new(WaitCell::default());
    assert!(world.mailboxes[0].command(refused(None)).is_ok());
    assert!(world.drives[0].command(receive(&cell)).is_err());
    let (drive, mailbox) = (&world.drives[1], &world.mailboxes[1]);
    let answer = Arc::new(WaitCell::<ShardStats>::default());
    mailbox.cancel(Cancel::Send(Arc::new(SendCell::new(trap(), None))));
    mailbox.call(Call::Stats {
        answer: Arc::clone(&answer),
    });
    drive.progress();
    let status = answer.take().unwrap().unwrap_err();
    assert_eq!(status.reason(), "SHARD_PANICKED");
}
