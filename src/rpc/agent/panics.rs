//! Where a function panicked, for its caller: a panic itself does not say.
//!
//! The first agent of a process puts a hook before the one that is there, which it calls in any case. It notes what
//! happens in threads that carry a function out, and nothing else. A program that sets a hook of its own afterwards
//! has errors without it.

use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;

use super::context::Context;

std::thread_local! {
    static LAST: RefCell<Option<PanicPlace>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Where a panic was.
#[derive(Clone, Default, Debug)]
pub(crate) struct PanicPlace {
    /// File, line and column.
    pub(crate) at: String,
    /// Empty if none was captured: without `RUST_BACKTRACE`.
    pub(crate) backtrace: String,
}

/// From now on panics of functions are noted.
pub(crate) fn watch() {
    // A thread that panics may not set a hook.
    if std::thread::panicking() {
        return;
    }
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            note(info);
            before(info);
        }));
    });
}

fn note(info: &PanicHookInfo<'_>) {
    if !Context::is_within() {
        return;
    }
    let trace = Backtrace::capture();
    let place = PanicPlace {
        at: info.location().map(ToString::to_string).unwrap_or_default(),
        backtrace: match trace.status() {
            BacktraceStatus::Captured => trace.to_string(),
            _ => String::new(),
        },
    };
    // A thread that ends has none any more.
    let _ = LAST.try_with(|last| last.replace(Some(place)));
}

/// Where the last panic of this thread was, if it was in a function. Asked once.
pub(crate) fn take() -> Option<PanicPlace> {
    LAST.take()
}

/// What a panic says.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "something that is not text".into())
}

/// Runs what a program wants run at the end of `what`. A panic of it is told in the log and ends nothing else: this may
/// be the desk's thread, on which all calls of a worker depend.
pub(crate) fn contained(what: &str, run: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        tracing::warn!(
            "the code that was to run at the end of {what} panicked: {}",
            text_of(&*panic)
        );
        // It may be anything, and panic itself.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
    }
}
