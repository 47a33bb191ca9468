//! Sockets that wait for peers, and that a child of `fork` must not keep.
//!
//! Knows their numbers; not what listens there.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// Sockets that children close: two or three for each engine. Those of further engines stay open in children.
static CLOSED_IN_CHILDREN: [AtomicI32; 64] = [const { AtomicI32::new(NONE) }; 64];

/// No descriptor.
const NONE: c_int = -1;

// SAFETY: the declaration is that of POSIX: three functions without arguments, any of them null, and a number back.
unsafe extern "C" {
    /// POSIX; the crate `libc` does not declare it for Linux.
    pub(crate) fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
}

/// Closes them, in a child of `fork`.
extern "C" fn in_child() {
    for place in &CLOSED_IN_CHILDREN {
        let fd = place.swap(NONE, Ordering::Relaxed);
        if fd != NONE {
            // SAFETY: any number may be given. It is the copy of a socket that only a thread of the parent owns, so
            // nothing in the child uses or closes it. The call may be made in a child of a process with threads.
            unsafe { libc::close(fd) };
        }
    }
}

/// A socket that a thread of this process owns, and that children of it close as soon as they begin: who dials an
/// engine is not to wait for a child that never accepts, and the address is free when the engine has ended.
#[derive(Debug)]
pub struct ParentOnly<T: AsFd> {
    socket: T,
    place: Option<&'static AtomicI32>,
}

impl<T: AsFd> ParentOnly<T> {
    /// Has children close `socket`. Only a thread may own what comes back, for a thread does not go on in a child.
    /// Where the system has no memory to note that, they do not.
    pub fn new(socket: T) -> Self {
        static WATCHED: OnceLock<c_int> = OnceLock::new();
        let watched = *WATCHED.get_or_init(|| {
            // SAFETY: the handler is a function of this program, which is never unloaded, and does what may be done in
            // a child of a process with threads: it stores to atomics and closes descriptors.
            unsafe { pthread_atfork(None, None, Some(in_child)) }
        });
        let fd = socket.as_fd().as_raw_fd();
        let take = |place: &&AtomicI32| {
            let taken = place.compare_exchange(NONE, fd, Ordering::Relaxed, Ordering::Relaxed);
            taken.is_ok()
        };
        Self {
            place: CLOSED_IN_CHILDREN
                .iter()
                .filter(|_| watched == 0)
                .find(take),
            socket,
        }
    }
}

impl<T: AsFd> AsFd for ParentOnly<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<T: AsFd> Deref for ParentOnly<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.socket
    }
}

impl<T: AsFd> Drop for ParentOnly<T> {
    /// Before the socket is closed: its number may be another's then.
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(NONE, Ordering::Relaxed);
        }
    }
}
