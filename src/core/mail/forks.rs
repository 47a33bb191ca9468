//! Forks: whether this process is a copy of one that had an engine.
//!
//! Knows nothing of engines. A child of `fork` has the handles of its parent, and none of the threads behind them; its
//! locks may be held by threads that it does not have, and its descriptors and mappings are the parent's own. So
//! nothing of an engine can work there, and a call would wait for ever or disturb the parent. The check costs one
//! relaxed load.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

#[doc(hidden)]
pub use crate::fabric::listeners::ParentOnly;
use crate::fabric::listeners::pthread_atfork;

static IS_CHILD: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
}

/// From now on children of this process know what they are.
///
/// # Errors
/// The system has no memory to note it.
pub fn watch() -> Result<(), std::io::Error> {
    static FAILED: OnceLock<c_int> = OnceLock::new();
    let failed = *FAILED.get_or_init(|| {
        // SAFETY: the handler is a function of this program, which is never unloaded, and does one store to an atomic,
        // which may be done in a child of a process with threads.
        unsafe { pthread_atfork(None, None, Some(in_child)) }
    });
    match failed {
        0 => Ok(()),
        errno => Err(std::io::Error::from_raw_os_error(errno)),
    }
}

/// True in a child, or a child's child, of a process that had started an engine.
#[inline]
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// From now on this process takes itself for such a child: for tests of what a child does where a lock is held, which a
/// true one has as chance will have it.
#[doc(hidden)]
pub fn pretend() {
    in_child();
}
