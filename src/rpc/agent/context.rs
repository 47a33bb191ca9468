//! The call that this thread carries out.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Waker;

use rendez::ground::{Locked, Nanos, Traceparent, catalogue, faults};
use rendez::mail::forks;
use smol_str::SmolStr;

use super::Agent;
use super::shared::Shared;
use crate::error::Error;
use crate::id::WorkerId;
use crate::observer::Leg;
use crate::spans::ServedSpan;

scoped_tls::scoped_thread_local! {
    /// The innermost: a function that waits may have another carried out by its thread meanwhile.
    static CURRENT: Context
}

std::thread_local! {
    static IN_SHARD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether a call may still begin, and whether its caller still wants it.
#[derive(Default)]
pub(crate) struct Gate {
    state: AtomicU8,
    waker: std::sync::Mutex<Option<Waker>>,
}

const QUEUED: u8 = 0;
const BEGUN: u8 = 1;
const STOPPED: u8 = 2;

impl Gate {
    /// Begins; false if the caller has given the call up.
    pub(crate) fn begin(&self) -> bool {
        let begun = self
            .state
            .compare_exchange(QUEUED, BEGUN, Ordering::AcqRel, Ordering::Acquire);
        begun.is_ok()
    }

    pub(crate) fn stop(&self) {
        self.state.store(STOPPED, Ordering::Release);
        let waker = self.waker.locked().take();
        waker.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.load(Ordering::Acquire) == STOPPED
    }

    /// Wakes `waker` when it is stopped.
    pub(crate) fn watch(&self, waker: &Waker) {
        *self.waker.locked() = Some(waker.clone());
    }
}

/// The call that is carried out: who called, and whether it is still wanted. A function gets it from
/// [`Context::current`].
#[derive(Clone)]
pub struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) caller: WorkerId,
    pub(crate) function: SmolStr,
    /// `None` for a function that runs at once and cannot be stopped.
    pub(crate) gate: Option<Arc<Gate>>,
    pub(crate) header: Option<Arc<[u8]>>,
    pub(crate) deadline: Nanos,
    /// If it is called within a profile.
    pub(crate) recording: Option<ServedSpan>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({} for worker {})", self.function, self.caller)
    }
}

impl Context {
    /// The call that this thread carries out now; `None` outside functions.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.is_set().then(|| CURRENT.with(Self::clone))
    }

    /// True if this thread carries a function out, also in a thread that ends or panics.
    pub(crate) fn is_within() -> bool {
        CURRENT.is_set()
    }

    /// The agent, for calls of one's own.
    #[must_use]
    pub fn agent(&self) -> Agent {
        Agent::of(&self.shared)
    }

    /// The worker that called.
    #[must_use]
    pub const fn caller(&self) -> WorkerId {
        self.caller
    }

    /// The name of the worker that called.
    #[must_use]
    pub fn caller_name(&self) -> String {
        self.shared.name_of(self.caller)
    }

    /// True once the caller has given the call up, or its time is over: no one waits for the result.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_stopped())
    }

    /// How long the caller still waits; `None` for ever.
    #[must_use]
    pub fn time_left(&self) -> Option<std::time::Duration> {
        (self.deadline != Nanos::NEVER)
            .then(|| self.deadline.since(self.shared.engine.clock().stamp()))
    }

    /// The header that observers gave the request.
    #[must_use]
    pub fn header(&self) -> Option<&[u8]> {
        self.header.as_deref()
    }

    /// Its span, if it is called within a [profile](crate::spans::Profile): for
    /// [`Step::traced`](rendez::engine::Step::traced), and for systems that know traces.
    #[must_use]
    pub fn traceparent(&self) -> Option<Traceparent> {
        self.recording.as_ref().and_then(ServedSpan::traceparent)
    }

    pub(crate) fn leg(&self, is_reply: bool) -> Leg<'_> {
        Leg {
            is_reply,
            me: self.shared.me,
            peer: self.caller,
            function: &self.function,
        }
    }

    /// Does `work` as this call.
    pub(crate) fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        CURRENT.set(self, || {
            let observers = &self.shared.options.observers;
            let header = self.header.as_deref();
            observers
                .iter()
                .for_each(|one| one.enter(self.leg(false), header));
            let work = || ServedSpan::within(self.recording.as_ref(), work);
            let result = catch_unwind(AssertUnwindSafe(work));
            observers
                .iter()
                .for_each(|one| one.leave(self.leg(false), header));
            // Observers have left also what panics: the thread goes on with other calls.
            result.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }
}

/// Does `work` as a shard's own thread: nothing may be waited for.
pub(crate) fn in_shard<R>(work: impl FnOnce() -> R) -> R {
    /// What it was before, also after a panic.
    struct Was(bool);
    impl Drop for Was {
        fn drop(&mut self) {
            IN_SHARD.set(self.0);
        }
    }
    let _was = Was(IN_SHARD.replace(true));
    work()
}

/// Whether calls can be made: in no child of `fork`, where no desk is.
pub(crate) fn may_call() -> Result<(), Error> {
    match forks::is_child() {
        false => Ok(()),
        true => Err(Error::local(faults::forked())),
    }
}

/// Whether this thread may wait for calls.
pub(crate) fn may_wait() -> Result<(), Error> {
    may_call()?;
    match IN_SHARD.get() || rendez::drive::is_shard_thread() {
        false => Ok(()),
        true => Err(Error::of(
            catalogue::WAIT_IN_SHARD,
            "what runs inside the shard, a function or a callback, cannot wait for a call: it would wait for itself; \
             register the function with `add` or `add_async`",
        )),
    }
}
