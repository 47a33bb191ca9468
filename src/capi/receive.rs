//! Receives as C sees them: waited for, into memory of C's, or told by a callback.
//!
//! Callbacks run one after the other on one thread of the library's for each engine, which begins with the first.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use async_executor::Executor;
use futures_lite::future::{block_on, yield_now};
use rendez::ground::{Locked, Unpoisoned, catalogue};
use rendez::mail::forks;
use rendez::{CancelToken, Received, Recv, Status, StepId, WeakEngine};

use super::engine::CEngine;
use super::key::CKey;
use super::status::{CStatus, answer, argument, free, give, patience, put, quietly, read};
use super::tensor::{Meta, Value};

/// How often an engine that had nothing to do is turned again, if no other thread does.
const TURN_EVERY: Duration = Duration::from_millis(1);
/// How long a receive whose value is looked at waits at a time. Nothing is done in between.
const SLICE: Duration = Duration::from_secs(3600);

/// A receive that was begun, and whose outcome a callback is told.
#[derive(Debug)]
pub struct CReceive(CancelToken);

/// What is called with the outcome of a receive: either a status, which is freed with status_free, or NULL and a value.
pub(crate) type Told = unsafe extern "C" fn(*mut c_void, *mut CStatus, Value);

/// Where C is told.
struct Callback {
    told: Told,
    context: *mut c_void,
}

// SAFETY: the header says that the callback runs on a thread of the library, with its context.
unsafe impl Send for Callback {}

impl Callback {
    fn tell(&self, outcome: Result<Value, Status>) {
        let (status, value) = match outcome {
            Ok(value) => (std::ptr::null_mut(), value),
            Err(status) => (give(&status), Value::NONE),
        };
        // SAFETY: the header says that it may be called once with its context; both others are C's from here on.
        unsafe { (self.told)(self.context, status, value) }
    }
}

/// The thread that tells C of outcomes.
#[derive(Debug)]
pub(crate) struct Receiver {
    executor: Arc<Executor<'static>>,
    stop: CancelToken,
    thread: Thread,
    /// `None` once the end has taken it.
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl Receiver {
    /// `alone` is the engine if no thread of its own turns its shards.
    pub(crate) fn start(alone: Option<WeakEngine>) -> Result<Self, Status> {
        let (executor, stop) = (Arc::new(Executor::new()), CancelToken::new());
        let (running, stopped) = (Arc::clone(&executor), stop.clone());
        let body = move || match alone {
            Some(engine) => turn(&running, &stopped, &engine),
            None => block_on(running.run(async {
                stopped.cancelled().await;
                // Every receive hangs on the token, and has its end told.
                while !running.is_empty() {
                    yield_now().await;
                }
            })),
        };
        let thread = std::thread::Builder::new().name("rendez-callbacks".into());
        let handle = thread.spawn(body).map_err(|error| {
            let message = format!("no thread for callbacks: {error}");
            Status::of(catalogue::SYSTEM_LIMIT, message)
        })?;
        Ok(Self {
            executor,
            stop,
            thread: handle.thread().clone(),
            handle: Mutex::new(Some(handle)),
        })
    }

    fn tell(&self, receive: Recv, callback: Callback) {
        let task = async move {
            let outcome = receive.await.map(Value::of);
            callback.tell(outcome);
        };
        self.executor.spawn(task).detach();
        self.thread.unpark();
    }

    fn take_handle(&self) -> Option<JoinHandle<()>> {
        let mut handle = self.handle.locked();
        handle.take()
    }

    /// Cancels what waits, and returns when all of it was told. Callbacks may begin receives here meanwhile.
    pub(crate) fn end(&self) {
        if forks::is_child() {
            return;
        }
        self.stop.cancel();
        self.thread.unpark();
        // A callback may free the engine: then its thread ends by itself.
        let other = |handle: &JoinHandle<()>| handle.thread().id() != std::thread::current().id();
        if let Some(handle) = self.take_handle().filter(other) {
            // A panic there was told by the panic hook.
            let _ = handle.join();
        }
    }
}

/// Tells of outcomes for an engine without threads of its own: while receives wait, this thread turns it.
fn turn(receives: &Executor<'_>, stop: &CancelToken, engine: &WeakEngine) {
    loop {
        while receives.try_tick() {}
        if !receives.is_empty() {
            if !engine.upgrade().is_some_and(|engine| engine.progress()) {
                std::thread::park_timeout(TURN_EVERY);
            }
        } else if stop.is_cancelled() {
            return;
        } else {
            // The next receive unparks it, and so does the end: what was called above may have used up a token.
            std::thread::park();
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if forks::is_child() {
            // The thread is not here, and may have held locks of both others when the process was copied.
            let handle = self.handle.get_mut().unpoisoned();
            std::mem::forget(handle.take());
            std::mem::forget((Arc::clone(&self.executor), self.stop.clone()));
            return;
        }
        self.end();
    }
}

/// The receive that C describes, not begun.
///
/// # Safety
/// `engine` and `key` are as for [`read`].
unsafe fn describe<'a>(
    engine: *const CEngine,
    step: u64,
    key: *const CKey,
    patience_ns: u64,
) -> Result<(&'a CEngine, Recv), Status> {
    // SAFETY: the caller's contract is that of `read`.
    let engine = unsafe { read(engine, "engine") }?;
    // SAFETY: as above.
    let CKey(key) = unsafe { read(key, "key") }?;
    let receive = engine.engine().step(StepId(step)).recv(key);
    Ok(match patience(patience_ns) {
        Some(patience) => (engine, receive.deadline(patience)),
        None => (engine, receive),
    })
}

pub(crate) unsafe extern "C" fn recv(
    engine: *const CEngine,
    step: u64,
    key: *const CKey,
    patience_ns: u64,
    value: *mut Value,
) -> *mut CStatus {
    answer(|| {
        if value.is_null() {
            return Err(argument("`value` is NULL"));
        }
        // SAFETY: the header's contract is that of `put`.
        unsafe { put(value, Value::NONE, "value") }?;
        // SAFETY: the header's contract is that of `describe`.
        let (_, receive) = unsafe { describe(engine, step, key, patience_ns) }?;
        let received = receive.wait()?;
        // SAFETY: the header's contract is that of `put`.
        unsafe { put(value, Value::of(received), "value") }
    })
}

pub(crate) unsafe extern "C" fn recv_into(
    engine: *const CEngine,
    step: u64,
    key: *const CKey,
    patience_ns: u64,
    room: *mut c_void,
    room_size: usize,
    meta: *mut Meta,
    size: *mut usize,
) -> *mut CStatus {
    let mut is_dead = false;
    let dead = &raw mut is_dead;
    // SAFETY: the header's contract is that of `recv_into_value`.
    unsafe {
        recv_into_value(
            engine,
            step,
            key,
            patience_ns,
            room,
            room_size,
            meta,
            size,
            dead,
        )
    }
}

pub(crate) unsafe extern "C" fn recv_into_value(
    engine: *const CEngine,
    step: u64,
    key: *const CKey,
    patience_ns: u64,
    room: *mut c_void,
    room_size: usize,
    meta: *mut Meta,
    size: *mut usize,
    is_dead: *mut bool,
) -> *mut CStatus {
    answer(|| {
        if meta.is_null() || size.is_null() || is_dead.is_null() {
            return Err(argument("`meta`, `size` or `is_dead` is NULL"));
        }
        if room.is_null() && room_size > 0 || isize::try_from(room_size).is_err() {
            return Err(argument(format!(
                "`room` is no memory of {room_size} bytes"
            )));
        }
        // SAFETY: the header's contract is that of `describe`.
        let (engine, mut receive) = unsafe { describe(engine, step, key, patience_ns) }?;
        let mut none = [];
        let room = if room_size == 0 {
            &mut none[..]
        } else {
            // SAFETY: not null, and the header says that it is `room_size` bytes which nothing else uses until the call
            // ends. They come over a foreign call, so they hold some bytes, whether C has written them or not.
            unsafe { std::slice::from_raw_parts_mut(room.cast::<u8>(), room_size) }
        };
        let mut fill = |it: &Received| {
            // Said also of a value that stays: C can bring enough room for it.
            // SAFETY: the header's contract is that of `put`.
            unsafe { put(meta, Meta::of(it.tensor.meta()), "meta") }?;
            // SAFETY: as above.
            unsafe { put(size, it.tensor.size(), "size") }?;
            // SAFETY: as above.
            unsafe { put(is_dead, it.is_dead, "is_dead") }?;
            engine.engine().copy_into(it, room).map(drop)
        };
        loop {
            if let Some(ended) = receive.wait_at_most_and(SLICE, &mut fill) {
                return ended;
            }
        }
    })
}

pub(crate) unsafe extern "C" fn recv_async(
    engine: *const CEngine,
    step: u64,
    key: *const CKey,
    patience_ns: u64,
    told: Option<Told>,
    context: *mut c_void,
    receive: *mut *mut CReceive,
) -> *mut CStatus {
    answer(|| {
        if !receive.is_null() {
            // SAFETY: the header's contract is that of `put`.
            unsafe { put(receive, std::ptr::null_mut(), "receive") }?;
        }
        let told = told.ok_or_else(|| argument("`told` is NULL"))?;
        // SAFETY: the header's contract is that of `describe`.
        let (engine, begins) = unsafe { describe(engine, step, key, patience_ns) }?;
        let receiver = engine.receiver()?;
        let token = receiver.stop.child();
        let begun = begins.cancel_on(&token).start()?;
        if !receive.is_null() {
            let handle = Box::into_raw(Box::new(CReceive(token)));
            // SAFETY: the header's contract is that of `put`.
            unsafe { put(receive, handle, "receive") }?;
        }
        receiver.tell(begun, Callback { told, context });
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn receive_cancel(receive: *const CReceive) {
    // SAFETY: the header's contract is that of `read`.
    if let Ok(CReceive(token)) = unsafe { read(receive, "receive") } {
        quietly(|| token.cancel());
    }
}

pub(crate) unsafe extern "C" fn receive_free(receive: *mut CReceive) {
    // SAFETY: the header's contract is that of `free`: it came from `answer_new`.
    unsafe { free(receive) }
}
