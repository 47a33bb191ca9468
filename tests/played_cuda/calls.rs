//! How every call is counted, made to fail, and made to wait; and the one state behind all of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::code::{NOT_INITIALIZED, SUCCESS};
use crate::devices::Devices;
use crate::memory::Memory;
use crate::streams::Streams;

/// The driver's state in this process.
pub(crate) struct State {
    pub(crate) is_up: bool,
    pub(crate) devices: Devices,
    pub(crate) memory: Memory,
    pub(crate) streams: Streams,
    pub(crate) counts: BTreeMap<&'static str, u64>,
    pub(crate) calls: u64,
    pub(crate) faults: Vec<Fault>,
    pub(crate) failed: Vec<&'static str>,
    /// The devices have failed: every call for them does, with this code.
    pub(crate) broken: Option<u32>,
    /// Each call of this name takes so long.
    pub(crate) stall: Option<(String, Duration)>,
    pub(crate) violations: Vec<String>,
}

/// A call that will fail, once.
pub(crate) struct Fault {
    /// Its name; empty for any.
    pub(crate) name: String,
    /// How many of them come before it, and it: 1 is the next.
    pub(crate) nth: u64,
    pub(crate) code: u32,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// The state, and nothing else of the library runs meanwhile.
pub(crate) struct Locked(MutexGuard<'static, Option<State>>);

impl std::ops::Deref for Locked {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().expect("made by `lock`")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("made by `lock`")
    }
}

pub(crate) fn lock() -> Locked {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.get_or_insert_with(State::new);
    Locked(state)
}

impl State {
    fn new() -> Self {
        Self {
            is_up: false,
            devices: Devices::from_environment(),
            memory: Memory::default(),
            streams: Streams::default(),
            counts: BTreeMap::new(),
            calls: 0,
            faults: Vec::new(),
            failed: Vec::new(),
            broken: None,
            stall: None,
            violations: Vec::new(),
        }
    }

    /// Counts a call; the code that it fails with, if it is to.
    fn enter(&mut self, name: &'static str) -> Outcome {
        self.calls += 1;
        *self.counts.entry(name).or_default() += 1;
        let mut due = None;
        for (index, fault) in self.faults.iter_mut().enumerate() {
            if fault.name.is_empty() || fault.name == name {
                fault.nth = fault.nth.saturating_sub(1);
                if fault.nth == 0 && due.is_none() {
                    due = Some(index);
                }
            }
        }
        if let Some(code) = self.broken.filter(|_| !name.starts_with("cuCtx")) {
            return Err(code);
        }
        match due {
            Some(index) => {
                self.failed.push(name);
                Err(self.faults.swap_remove(index).code)
            }
            None => Ok(()),
        }
    }
}

/// Runs one call: counted, perhaps failed before it has had any effect, and then streams go on.
pub(crate) fn call(name: &'static str, body: impl FnOnce(&mut State) -> Outcome) -> u32 {
    let began = Instant::now();
    let is_stalled = || {
        let state = lock();
        let stall = state.stall.as_ref().filter(|(of, _)| of == name);
        stall.is_some_and(|(_, time)| began.elapsed() < *time)
    };
    while is_stalled() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut state = lock();
    let outcome = state.enter(name).and_then(|()| {
        if !state.is_up && name != "cuInit" {
            return Err(NOT_INITIALIZED);
        }
        body(&mut state)
    });
    crate::streams::pump(&mut state);
    outcome.err().unwrap_or(SUCCESS)
}

/// Writes an answer where the caller wants it.
///
/// # Safety
/// `to` is null, or valid for writing a `T`.
pub(crate) unsafe fn put<T>(to: *mut T, value: T) -> Outcome {
    if to.is_null() {
        return Err(crate::code::INVALID_VALUE);
    }
    // SAFETY: not null, so valid for a write, as the caller vouches.
    unsafe { to.write(value) };
    Ok(())
}
