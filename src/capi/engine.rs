//! The engine as C sees it: started, told of peers, sent by, asked about, stopped.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_void};
use std::sync::OnceLock;
use std::time::Duration;

use rendez::engine::{Loaded, Sources};
use rendez::ground::{catalogue, faults};
use rendez::mail::forks;
use rendez::{Address, Code, Driver, Engine, Status, StepId, TaskName};

use super::key::CKey;
use super::receive::Receiver;
use super::status::{
    CStatus, answer, answer_new, argument, c_text, free, patience, quietly, read, text,
};
use super::tensor::CTensor;

/// The codes of errors.
const CODES: std::ops::RangeInclusive<u8> = Code::Cancelled as u8..=Code::Unauthenticated as u8;

/// A running engine: one task of a cluster.
#[derive(Debug)]
pub struct CEngine {
    /// Ends, with all callbacks, before the engine does.
    receiver: OnceLock<Receiver>,
    engine: Engine,
    task: CString,
    address: Option<CString>,
    tcp_address: Option<CString>,
}

impl CEngine {
    /// A handle for C of an engine that runs already, to be given to C by `Box::into_raw`: `engine_free` frees the
    /// handle. Other languages use it so that their engine and C's are one.
    #[must_use]
    pub fn of(engine: Engine) -> Self {
        let named = |address: Option<&Address>| address.map(|it| c_text(&it.to_string()));
        Self {
            receiver: OnceLock::new(),
            task: c_text(&engine.task().to_string()),
            address: named(engine.address()),
            tcp_address: named(engine.tcp_address()),
            engine,
        }
    }

    /// Cancels the receives whose callbacks are still to come, and waits until they have been called. They may use the
    /// handle meanwhile, so this comes before it is dropped.
    pub fn end_callbacks(&self) {
        if let Some(receiver) = self.receiver.get() {
            receiver.end();
        }
    }

    pub(crate) const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What calls C when a value is here. It begins with the first receive that wants that.
    pub(crate) fn receiver(&self) -> Result<&Receiver, Status> {
        if self.receiver.get().is_none() {
            let is_alone = self.engine.driver() == Driver::Caller;
            let alone = is_alone.then(|| self.engine.downgrade());
            // Of two made at the same time one is dropped, which ends it.
            let _ = self.receiver.set(Receiver::start(alone)?);
        }
        self.receiver
            .get()
            .ok_or_else(|| argument("there is no thread for callbacks"))
    }
}

pub(crate) unsafe extern "C" fn engine_start(
    settings: *const c_char,
    engine: *mut *mut CEngine,
) -> *mut CStatus {
    let make = || {
        if settings.is_null() {
            return start(Sources::of_process().load()?);
        }
        // SAFETY: the header's contract is that of `text`.
        let settings = unsafe { text(settings, "settings") }?;
        start(over(Loaded::default(), settings)?)
    };
    // SAFETY: the header's contract is that of `answer_new`.
    unsafe { answer_new(engine, "engine", make) }
}

pub(crate) unsafe extern "C" fn engine_start_over(
    settings: *const c_char,
    engine: *mut *mut CEngine,
) -> *mut CStatus {
    let make = || {
        // SAFETY: the header's contract is that of `text`.
        let settings = unsafe { text(settings, "settings") }?;
        start(over(Sources::of_process().load()?, settings)?)
    };
    // SAFETY: the header's contract is that of `answer_new`.
    unsafe { answer_new(engine, "engine", make) }
}

/// Lets a TOML text override what was found.
fn over(mut found: Loaded, settings: &str) -> Result<Loaded, Status> {
    found.config.apply_toml(settings, "settings")?;
    found.config.check()?;
    Ok(found)
}

fn start(settings: Loaded) -> Result<CEngine, Status> {
    Ok(CEngine::of(Engine::start(settings.told())?))
}

pub(crate) unsafe extern "C" fn engine_task(engine: *const CEngine) -> *const c_char {
    // SAFETY: the header's contract is that of `read`.
    unsafe { read(engine, "engine") }.map_or(std::ptr::null(), |engine| engine.task.as_ptr())
}

pub(crate) unsafe extern "C" fn engine_address(engine: *const CEngine) -> *const c_char {
    // SAFETY: the header's contract is that of `read`.
    let engine = unsafe { read(engine, "engine") }.ok();
    let address = engine.and_then(|engine| engine.address.as_ref());
    address.map_or(std::ptr::null(), |address| address.as_ptr())
}

pub(crate) unsafe extern "C" fn engine_tcp_address(engine: *const CEngine) -> *const c_char {
    // SAFETY: the header's contract is that of `read`.
    let engine = unsafe { read(engine, "engine") }.ok();
    let address = engine.and_then(|engine| engine.tcp_address.as_ref());
    address.map_or(std::ptr::null(), |address| address.as_ptr())
}

pub(crate) unsafe extern "C" fn engine_incarnation(engine: *const CEngine) -> u64 {
    // SAFETY: the header's contract is that of `read`.
    unsafe { read(engine, "engine") }.map_or(0, |engine| engine.engine.incarnation().0)
}

/// Refuses what Rust passes over in silence in a child of `fork`: C has a status to hear it by.
fn not_forked() -> Result<(), Status> {
    match forks::is_child() {
        true => Err(faults::forked()),
        false => Ok(()),
    }
}

pub(crate) unsafe extern "C" fn engine_add_peer(
    engine: *const CEngine,
    task: *const c_char,
    address: *const c_char,
) -> *mut CStatus {
    answer(|| {
        // SAFETY: the header's contract is that of `read`.
        let engine = unsafe { read(engine, "engine") }?;
        // SAFETY: the header's contract is that of `text`.
        let task = unsafe { text(task, "task") }?;
        // SAFETY: as above.
        let address = unsafe { text(address, "address") }?;
        let task = TaskName::parse(task)?;
        let address = address
            .parse()
            .map_err(|error| argument(format!("address `{address}`: {error}")))?;
        not_forked()?;
        engine.engine.add_peer(task, address);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn engine_metrics(
    engine: *const CEngine,
    take: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize)>,
    context: *mut c_void,
) -> *mut CStatus {
    answer(|| {
        // SAFETY: the header's contract is that of `read`.
        let engine = unsafe { read(engine, "engine") }?;
        let take = take.ok_or_else(|| argument("`take` is NULL"))?;
        let page = c_text(&engine.engine.metrics_text()?);
        // SAFETY: the header says that `take` may be called with this context and a text, which stays until it returns.
        unsafe { take(context, page.as_ptr(), page.as_bytes().len()) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn engine_progress(engine: *const CEngine) -> bool {
    let mut is_done = false;
    // SAFETY: the header's contract is that of `read`.
    if let Ok(engine) = unsafe { read(engine, "engine") } {
        quietly(|| is_done = engine.engine.progress());
    }
    is_done
}

pub(crate) unsafe extern "C" fn engine_shutdown(
    engine: *const CEngine,
    patience_ns: u64,
) -> *mut CStatus {
    answer(|| {
        // SAFETY: the header's contract is that of `read`.
        let engine = unsafe { read(engine, "engine") }?;
        let longest = Duration::from_secs(u64::from(u32::MAX));
        let patience = patience(patience_ns).unwrap_or(longest);
        engine.engine.shutdown(patience.min(longest));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn engine_free(engine: *mut CEngine) {
    // SAFETY: the header's contract is that of `read`.
    if let Ok(engine) = unsafe { read(engine, "engine") } {
        quietly(|| engine.end_callbacks());
    }
    // SAFETY: the header's contract is that of `free`: it came from `answer_new`.
    unsafe { free(engine) }
}

pub(crate) unsafe extern "C" fn send(
    engine: *const CEngine,
    step: u64,
    key: *const CKey,
    tensor: *mut CTensor,
    patience_ns: u64,
) -> *mut CStatus {
    answer(|| {
        // The handle is gone whatever comes of it, so it is taken first.
        // SAFETY: the header's contract is that of `take`.
        let tensor = unsafe { CTensor::take(tensor) }?;
        // SAFETY: the header's contract is that of `read`.
        let engine = unsafe { read(engine, "engine") }?;
        // SAFETY: as above.
        let CKey(key) = unsafe { read(key, "key") }?;
        let step = engine.engine.step(StepId(step));
        if patience_ns == 0 {
            return step.send(key, tensor);
        }
        let mut send = step.send_async(key, tensor);
        if let Some(patience) = patience(patience_ns) {
            send = send.deadline(patience);
        }
        send.wait().map_err(|unsent| unsent.status().clone())
    })
}

pub(crate) unsafe extern "C" fn step_abort(
    engine: *const CEngine,
    step: u64,
    code: u32,
    message: *const c_char,
) -> *mut CStatus {
    answer(|| {
        // SAFETY: the header's contract is that of `read`.
        let engine = unsafe { read(engine, "engine") }?;
        // SAFETY: the header's contract is that of `text`.
        let message = unsafe { text(message, "message") }?;
        let code = u8::try_from(code).ok().filter(|code| CODES.contains(code));
        let code = code.ok_or_else(|| argument("`code` is not 1 to 16, as gRPC numbers errors"))?;
        let status = Status::from_wire(code, false, message).with_reason(catalogue::STEP_ABORTED);
        not_forked()?;
        engine.engine.step(StepId(step)).abort(status);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn step_finish(engine: *const CEngine, step: u64) -> *mut CStatus {
    answer(|| {
        // SAFETY: the header's contract is that of `read`.
        let engine = unsafe { read(engine, "engine") }?;
        not_forked()?;
        engine.engine.step(StepId(step)).finish();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn step_deadline(
    engine: *const CEngine,
    step: u64,
    patience_ns: u64,
) -> *mut CStatus {
    answer(|| {
        // SAFETY: the header's contract is that of `read`.
        let engine = unsafe { read(engine, "engine") }?;
        let within = patience(patience_ns);
        let within = within.ok_or_else(|| argument("`patience_ns` is no time to end by"))?;
        engine.engine.step(StepId(step)).deadline(within)
    })
}
