//! After warm-up a hand-over touches neither the heap nor the kernel: counted, and enforced by a filter.
//!
//! Two engines of this process play ping-pong with in-shard tasks. Heap calls are counted for each thread on its
//! own, so
//! that the test's other threads do not disturb. For system calls a child of this test puts a filter on each of
//! its shards'
//! threads, from inside the task, that turns every system call into a signal; the signal's handler writes down
//! which call it
//! was, since the thread itself cannot say anything any more.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::Command;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rendez::drive::PollPolicy;
use rendez::engine::{Config, Engine};
use rendez::ground::{DType, Key, Shape, Status, StepId, TensorMeta};
use rendez::mail::Received;
use rendez::memory::Tensor;
use rendez::shard::{PreparedKey, Task, TaskContext, TaskEvent};
use rendez::trace::Path;

/// The system's allocator, counting what each thread asks of it.
struct Counting;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// The stack of the first heap call that was counted.
static FIRST: Mutex<Option<String>> = Mutex::new(None);

fn count() {
    // A thread that is ending has no counter any more, and is not measured.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    // The stack takes heap itself: that is not counted.
    if IS_COUNTED
        .try_with(|is_counted| is_counted.replace(false))
        .unwrap_or(false)
    {
        let stack = std::backtrace::Backtrace::force_capture().to_string();
        FIRST
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(stack);
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promises are the callee's.
        unsafe { System.dealloc(at, layout) };
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the callee's.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Hand-overs each way before anything is counted: every queue has been round its ring, every list has its size.
const WARM_UP: u64 = 10_000;
/// Hand-overs each way that are counted.
const COUNTED: u64 = 20_000;
/// Longer than any of it takes on the slowest machine: a test that hangs fails instead.
const PATIENCE: Duration = Duration::from_secs(30);
/// Tensors out at once at the most: a shard takes leases home at least every 64th turn.
const TIDE: u64 = 300;
const STEP: StepId = StepId(1);

/// What travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Values {
    /// The same tensor again and again, made before.
    Ready,
    /// A new one for each hand-over, written in place in the shard's arena.
    New,
}

/// How the two engines meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Loopback,
    Shm,
}

/// What the sides tell the test.
#[derive(Default, Debug)]
struct Told {
    heap_calls: AtomicU64,
    ended: AtomicU64,
    failure: Mutex<Option<String>>,
}

/// One side: the near one serves first.
struct Side {
    is_near: bool,
    is_filtered: bool,
    /// After the filter is on, does what the filter must catch.
    is_guilty: bool,
    values: Values,
    meta: TensorMeta,
    tensor: Tensor,
    keys: [Key; 2],
    out: Option<PreparedKey>,
    back: Option<PreparedKey>,
    received: u64,
    heap_calls: u64,
    told: Arc<Told>,
}

impl Task for Side {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        let handled = match event {
            TaskEvent::Started => self.start(context),
            TaskEvent::Received { outcome, .. } => self.hear(outcome, context),
            _ => Ok(()),
        };
        if let Err(status) = handled {
            self.fail(&status.to_string());
        }
    }
}

impl Side {
    fn start(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let [there, back] = &self.keys;
        let (out, back) = if self.is_near {
            (there, back)
        } else {
            (back, there)
        };
        self.out = Some(context.prepare(out)?);
        self.back = Some(context.prepare(back)?);
        self.raise_the_tide(context)?;
        self.wait(context);
        if self.is_near {
            self.serve(context)
        } else {
            Ok(())
        }
    }

    /// The arena grows to more than is ever out at once: a peer that was late once gives many blocks back
    /// together, and
    /// only the first time is it a matter for the heap.
    fn raise_the_tide(&self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let held: Result<Vec<_>, _> = (0..TIDE).map(|_| context.builder(self.meta)).collect();
        held.map(drop).map_err(Status::from)
    }

    fn hear(
        &mut self,
        outcome: Result<Received, Status>,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        let received = outcome?;
        let path = if self.meta.size() > Some(1024) {
            Path::Lease
        } else {
            Path::Inline
        };
        if received.path != path || received.tensor.host().unwrap().last() != Some(&7) {
            self.fail(&format!("a value came by {:?}", received.path));
            return Ok(());
        }
        drop(received);
        self.received += 1;
        if self.received == WARM_UP {
            if self.is_filtered {
                filter::forbid_system_calls();
            }
            if self.is_guilty {
                let _ = rustix::process::getppid();
            }
            self.heap_calls = CALLS.with(Cell::get);
            IS_COUNTED.set(!self.is_filtered);
        }
        if self.received == WARM_UP + COUNTED {
            IS_COUNTED.set(false);
            self.told
                .heap_calls
                .fetch_add(CALLS.with(Cell::get) - self.heap_calls, Ordering::SeqCst);
            self.told.ended.fetch_add(1, Ordering::SeqCst);
        }
        // The far side answers the last one too: the near side must hear as often.
        if self.is_near && self.received == WARM_UP + COUNTED {
            return Ok(());
        }
        if self.received < WARM_UP + COUNTED {
            self.wait(context);
        }
        self.serve(context)
    }

    fn wait(&self, context: &mut TaskContext<'_>) {
        if let Some(back) = self.back {
            context.recv(STEP, back, 0);
        }
    }

    fn serve(&self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let Some(out) = self.out else { return Ok(()) };
        let tensor = match self.values {
            Values::Ready => self.tensor.clone(),
            Values::New => {
                let mut builder = context.builder(self.meta)?;
                // The last byte alone: what is counted is the hand-over.
                if let Some(last) = builder.bytes_mut().last_mut() {
                    *last = 7;
                }
                builder.finish()
            }
        };
        context.send(STEP, out, tensor)
    }

    fn fail(&self, why: &str) {
        let mut failure = self
            .told
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| why.to_owned());
    }
}

fn engines(way: Way) -> (Engine, Engine) {
    let cores: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .iter()
        .map(|core| core.id)
        .collect();
    let is_shared = has_one_core();
    let config = |task: &str, at: usize| {
        let mut config = Config::new(task);
        config.shards = 1;
        config.cores = vec![cores[at % cores.len()]];
        config.share_cores = is_shared;
        config.poll = PollPolicy::Busy;
        config.control = way == Way::Shm;
        config.arena.segment_bytes = 32 << 20;
        config
    };
    let near = Engine::start(config("/job:near/task:0", 0)).unwrap();
    let far = Engine::start(config("/job:far/task:0", 1)).unwrap();
    match way {
        Way::Loopback => near.connect_local(&far).unwrap(),
        Way::Shm => near.add_peer(far.task().clone(), far.address().unwrap().clone()),
    }
    (near, far)
}

fn has_one_core() -> bool {
    core_affinity::get_core_ids().unwrap_or_default().len() < 2
}

/// What a game is played with.
#[derive(Clone, Copy, Debug)]
struct Game {
    way: Way,
    bytes: u64,
    values: Values,
    is_filtered: bool,
    is_guilty: bool,
}

/// Plays, and tells how many heap calls both shards' threads made while it was counted.
fn play(game: Game) -> Result<u64, String> {
    let (near, far) = engines(game.way);
    let told = Arc::new(Told::default());
    let keys = ["there", "back"].map(|edge| match edge {
        "there" => Key::between("near", "far", edge).unwrap(),
        _ => Key::between("far", "near", edge).unwrap(),
    });
    for (is_near, engine) in [(false, &far), (true, &near)] {
        let mut builder = engine.tensor(DType::U8, &[game.bytes]).unwrap();
        builder.bytes_mut().fill(7);
        let side = Side {
            is_near,
            is_filtered: game.is_filtered,
            is_guilty: game.is_guilty && is_near,
            values: game.values,
            meta: TensorMeta::new(DType::U8, Shape::new(&[game.bytes]).unwrap()).unwrap(),
            tensor: builder.finish(),
            keys: keys.clone(),
            out: None,
            back: None,
            received: 0,
            heap_calls: 0,
            told: Arc::clone(&told),
        };
        engine.spawn(0, Box::new(side)).unwrap();
    }
    let outcome = await_end(game, &told);
    if game.is_filtered {
        // Threads under the filter cannot even end: the process does, with what it has found out.
        std::mem::forget((near, far));
    }
    outcome
}

fn await_end(game: Game, told: &Told) -> Result<u64, String> {
    let began = Instant::now();
    loop {
        if let Some(failure) = told
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
        {
            return Err(failure);
        }
        if let Some(call) = filter::caught() {
            return Err(format!("system call {call}"));
        }
        if told.ended.load(Ordering::SeqCst) == 2 {
            return Ok(told.heap_calls.load(Ordering::SeqCst));
        }
        if began.elapsed() > PATIENCE {
            return Err(format!("{game:?} did not end"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Games poll two cores without end: two at once would wait for each other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_hand_over_takes_nothing_from_the_heap() {
    let _alone = alone();
    for way in [Way::Loopback, Way::Shm] {
        for bytes in [4, 64, 1024 - 64, 64 << 10] {
            for values in [Values::Ready, Values::New] {
                let game = Game {
                    way,
                    bytes,
                    values,
                    is_filtered: false,
                    is_guilty: false,
                };
                let heap_calls = play(game);
                let first = FIRST
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take()
                    .unwrap_or_default();
                assert_eq!(
                    heap_calls,
                    Ok(0),
                    "in {COUNTED} hand-overs each way of {game:?}; the first:\n{first}"
                );
            }
        }
    }
}

#[test]
fn a_hand_over_makes_no_system_call() {
    let _alone = alone();
    for way in ["loopback", "shm"] {
        for (bytes, values) in [(4, "ready"), (64 << 10, "ready"), (64 << 10, "new")] {
            let case = format!("{way} {bytes} {values}");
            let (code, shown) = filtered(&case);
            assert_eq!(code, Some(0), "{case}: {shown}");
        }
    }
}

#[test]
fn the_filter_catches_and_names_what_is_called() {
    let _alone = alone();
    let (code, shown) = filtered("loopback 4 ready guilty");
    assert!(
        code == Some(1) && shown.contains("caught: system call getppid"),
        "{code:?}: {shown}"
    );
}

/// A game under the filter, in a process of its own: its exit code and what it said.
fn filtered(case: &str) -> (Option<i32>, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "under_the_filter",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("HOT_PATH_CASE", case)
        .output()
        .unwrap();
    let shown = [output.stdout, output.stderr].concat();
    (
        output.status.code(),
        format!("{}: {}", output.status, String::from_utf8_lossy(&shown)),
    )
}

/// The body of the children of the tests above; nothing without their word.
#[test]
fn under_the_filter() {
    let Ok(case) = std::env::var("HOT_PATH_CASE") else {
        return;
    };
    let words: Vec<&str> = case.split(' ').collect();
    let game = Game {
        way: if words[0] == "shm" {
            Way::Shm
        } else {
            Way::Loopback
        },
        bytes: words[1].parse().unwrap(),
        values: if words[2] == "new" {
            Values::New
        } else {
            Values::Ready
        },
        is_filtered: true,
        is_guilty: words.len() > 3,
    };
    filter::install_handler();
    match play(game) {
        Ok(_) => std::process::exit(0),
        Err(why) => {
            eprintln!("caught: {why}");
            std::process::exit(1);
        }
    }
}

/// The filter, and the handler that learns what it caught.
mod filter {
    use super::{AtomicI64, Ordering};
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

    /// The number of the first system call that was caught; negative while there was none.
    static CAUGHT: AtomicI64 = AtomicI64::new(-1);

    /// From here on this thread makes no system call but the one that ends the process; where shards share their
    /// core, they may yield it.
    pub(super) fn forbid_system_calls() {
        let mut allowed = vec![(libc::SYS_exit_group, vec![])];
        if super::has_one_core() {
            allowed.push((libc::SYS_sched_yield, vec![]));
        }
        let target: TargetArch = std::env::consts::ARCH
            .try_into()
            .expect("an architecture of seccomp's");
        let filter = SeccompFilter::new(
            allowed.into_iter().collect(),
            SeccompAction::Trap,
            SeccompAction::Allow,
            target,
        );
        let program: BpfProgram = filter.expect("a filter").try_into().expect("a program");
        seccompiler::apply_filter(&program).expect("applied");
    }

    pub(super) fn install_handler() {
        // SAFETY: all zeroes are a `sigaction` without flags, mask or handler.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handle as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: `action` is initialised and its handler has the signature that SA_SIGINFO asks for; the old
        // action is
        // not asked for.
        let set = unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) };
        assert_eq!(set, 0, "a handler for SIGSYS");
    }

    /// Where the kernel puts the number of the call in a SIGSYS's `siginfo_t`: after three integers, their padding
    /// and
    /// the address of the call.
    const CALL_AT: usize = 24;

    extern "C" fn handle(
        _signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _context: *mut libc::c_void,
    ) {
        // SAFETY: the kernel gives a whole `siginfo_t`, 128 bytes, of which this is the first 24.
        let at = unsafe { info.cast::<u8>().add(CALL_AT) };
        // SAFETY: a SIGSYS of a filter has an initialised, aligned `int` there.
        let call = unsafe { at.cast::<libc::c_int>().read() };
        let _ = CAUGHT.compare_exchange(-1, i64::from(call), Ordering::SeqCst, Ordering::SeqCst);
        // Returning would be a system call: the main thread ends the process.
        loop {
            std::hint::spin_loop();
        }
    }

    /// The name of the call that was caught.
    pub(super) fn caught() -> Option<String> {
        const NAMES: &[(i64, &str)] = &[
            (libc::SYS_brk, "brk"),
            (libc::SYS_clock_gettime, "clock_gettime"),
            (libc::SYS_exit, "exit"),
            (libc::SYS_futex, "futex"),
            (libc::SYS_getppid, "getppid"),
            (libc::SYS_getrandom, "getrandom"),
            (libc::SYS_madvise, "madvise"),
            (libc::SYS_mmap, "mmap"),
            (libc::SYS_mprotect, "mprotect"),
            (libc::SYS_mremap, "mremap"),
            (libc::SYS_munmap, "munmap"),
            (libc::SYS_ppoll, "ppoll"),
            (libc::SYS_read, "read"),
            (libc::SYS_sched_yield, "sched_yield"),
            (libc::SYS_write, "write"),
        ];
        let call = CAUGHT.load(Ordering::SeqCst);
        if call < 0 {
            return None;
        }
        let name = NAMES.iter().find(|(number, _)| *number == call);
        Some(name.map_or_else(|| format!("number {call}"), |(_, name)| (*name).to_owned()))
    }
}
