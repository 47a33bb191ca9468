//! What tests call: to hold streams, make calls fail, and see what is held. None of it is in a real driver.

use std::ffi::{CStr, c_char};
use std::time::Duration;

use crate::calls::{Fault, lock};
use crate::streams::pump;

/// # Safety
/// `name` is null or a C string.
unsafe fn text(name: *const c_char) -> String {
    if name.is_null() {
        return String::new();
    }
    // SAFETY: not null, so a C string, as the caller vouches.
    unsafe { CStr::from_ptr(name) }
        .to_string_lossy()
        .into_owned()
}

/// The `nth` call from now on of that name, or of any if it is null, fails with `code`, once and before it has had any
/// effect.
#[unsafe(no_mangle)]
unsafe extern "C" fn played_fail(name: *const c_char, nth: u64, code: u32) {
    // SAFETY: null or a C string, as the tests give it.
    let name = unsafe { text(name) };
    lock().faults.push(Fault { name, nth, code });
}

/// The devices fail: no stream does anything any more, and every call but those for contexts fails with `code`.
#[unsafe(no_mangle)]
extern "C" fn played_break(code: u32) {
    lock().broken = Some(code);
}

/// No call fails or takes longer from now on; how many faults had not come to anything.
#[unsafe(no_mangle)]
extern "C" fn played_heal() -> u64 {
    let mut state = lock();
    let left = state.faults.len() as u64;
    state.faults.clear();
    state.failed.clear();
    state.broken = None;
    state.stall = None;
    left
}

/// True if a call has failed by `played_fail` since `played_heal`.
#[unsafe(no_mangle)]
extern "C" fn played_failed() -> bool {
    !lock().failed.is_empty()
}

/// How many calls of that name there were; of all names if it is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn played_count(name: *const c_char) -> u64 {
    // SAFETY: null or a C string, as the tests give it.
    let name = unsafe { text(name) };
    let state = lock();
    if name.is_empty() {
        return state.calls;
    }
    state.counts.get(name.as_str()).copied().unwrap_or(0)
}

/// Each call of that name takes `millis` longer until this is called again; none if it is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn played_stall(name: *const c_char, millis: u64) {
    // SAFETY: null or a C string, as the tests give it.
    let name = unsafe { text(name) };
    let stall = (name, Duration::from_millis(millis));
    lock().stall = Some(stall).filter(|(name, _)| !name.is_empty());
}

/// A stream does nothing more by itself, or all of it.
#[unsafe(no_mangle)]
extern "C" fn played_hold(stream: usize, is_held: bool) -> bool {
    let mut state = lock();
    let found = state.streams.hold(stream, is_held);
    pump(&mut state);
    found
}

/// Streams that are made from now on are held, or not.
#[unsafe(no_mangle)]
extern "C" fn played_hold_new(is_held: bool) {
    lock().streams.holds_new = is_held;
}

/// A held stream does so many pieces of its work.
#[unsafe(no_mangle)]
extern "C" fn played_step(stream: usize, count: u64) -> bool {
    let mut state = lock();
    let found = state.streams.allow(stream, count);
    pump(&mut state);
    found
}

/// How many pieces of work wait in a stream.
#[unsafe(no_mangle)]
extern "C" fn played_pending(stream: usize) -> usize {
    let mut state = lock();
    pump(&mut state);
    state.streams.pending(stream)
}

/// Gives the devices an ability, or takes it away: `words`, `descriptors`, `vmm`, `readonly`, `peers`, `copies`.
#[unsafe(no_mangle)]
unsafe extern "C" fn played_can(what: *const c_char, can: bool) {
    // SAFETY: null or a C string, as the tests give it.
    let what = unsafe { text(what) };
    lock().devices.set(&what, can);
}

/// A stream of a context that is no device's primary one.
#[unsafe(no_mangle)]
extern "C" fn played_alien_stream() -> usize {
    lock().streams.make_alien()
}

/// At most so many bytes more can be held by handles; zero for no such bound.
#[unsafe(no_mangle)]
extern "C" fn played_limit(bytes: usize) {
    let mut state = lock();
    // What a call that failed has left behind is no part of it.
    let used = state.memory.used();
    state.memory.limit = (bytes > 0).then_some(used + bytes);
}

/// What is held: allocation handles, reservations, mappings, registrations, streams, events, retained contexts.
#[unsafe(no_mangle)]
unsafe extern "C" fn played_held(counts: *mut [u64; 7]) {
    let state = lock();
    let [handles, reserved, mapped, registered] = state.memory.held();
    let [streams, events] = state.streams.held();
    let retained = state
        .devices
        .all
        .iter()
        .map(|device| device.retained as usize)
        .sum();
    let all = [
        handles, reserved, mapped, registered, streams, events, retained,
    ];
    // SAFETY: the tests give room for them.
    unsafe { counts.write(all.map(|count| count as u64)) };
}

/// How often work met memory that it might not touch, or that was gone. What was wrong is told on the standard error.
#[unsafe(no_mangle)]
extern "C" fn played_violations() -> u64 {
    let state = lock();
    for what in &state.violations {
        eprintln!("played CUDA: {what}");
    }
    state.violations.len() as u64
}
