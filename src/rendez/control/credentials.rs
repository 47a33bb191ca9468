//! Credentials: which process is at the other end of a Unix socket, by the kernel's word, and a handle that proves its
//! death.
//!
//! Knows sockets and processes only; what a user may do is decided elsewhere.
#![allow(unsafe_code)]
// Why own `getsockopt` calls: rustix reads `SO_PEERCRED` into a non-zero process number, but the kernel writes zero
// for a peer outside our process namespace; and it has no `SO_PEERPIDFD`, the only handle that no reuse of numbers
// can fool.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::users::UserNumbers;

/// Since Linux 6.5; the C library's headers of older systems lack it.
const SO_PEERPIDFD: libc::c_int = 77;

/// The process at the other end, as it was when it connected or began to listen.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// Its user, in our user namespace.
    pub(crate) user: u32,
    /// Its number in our process namespace; `None` for a process outside.
    pub(crate) process: Option<i32>,
    /// Readable once the process has exited. `None` where the kernel has no such handle for it.
    pub(crate) pidfd: Option<OwnedFd>,
}

impl Credentials {
    /// Asks the kernel about the peer of `socket`.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let peer = peer_cred(socket)?;
        let process = (peer.pid > 0).then_some(peer.pid);
        let pidfd = match peer_pidfd(socket) {
            Ok(pidfd) => Some(pidfd),
            // An older kernel: by number.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                process.and_then(|process| open_by_number(socket, process))
            }
            // The process is gone and reaped, or lives where we cannot see it: no proof is available.
            Err(_) => None,
        };
        Ok(Self {
            user: peer.uid,
            process,
            pidfd,
        })
    }
}

impl Credentials {
    /// True if both are of one user that has a number here, or surely of one process: `other` lives, so its number is
    /// not another's.
    pub(crate) fn is_of(&self, other: &Self, users: UserNumbers) -> bool {
        (self.user, self.process) == (other.user, other.process)
            && (!users.is_nameless(self.user) || self.process.is_some() && other.lives())
    }

    /// True if the process is known to run still.
    fn lives(&self) -> bool {
        let handle = self.pidfd.as_ref();
        handle.is_some_and(|handle| !is_ready(handle.as_fd(), PollFlags::IN))
    }
}

/// True if any of `flags` holds for `fd` now; never blocks.
pub(crate) fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, flags)];
    let zero = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(rustix::event::poll(&mut polled, Some(&zero)), Ok(1..))
        && polled[0].revents().intersects(flags)
}

/// Opens a handle by number, without being fooled by reuse of the number.
///
/// The number named the peer when it connected. If the connection still stands *after* the handle was opened, the
/// process that holds its other end was alive all the time, so its number had not been given to another. (A child
/// that inherited the socket from a dead parent would fool this; we open all sockets close-on-exec, and newer kernels
/// do not need it.)
fn open_by_number(socket: BorrowedFd<'_>, process: i32) -> Option<OwnedFd> {
    let process = rustix::process::Pid::from_raw(process)?;
    let pidfd = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).ok()?;
    let gone = is_ready(socket, PollFlags::HUP) || is_ready(pidfd.as_fd(), PollFlags::IN);
    (!gone).then_some(pidfd)
}

fn peer_cred(socket: BorrowedFd<'_>) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `socket` is borrowed and hence open; `peer` and `len` are live, writable and not aliased for the call;
    // `len` holds the size of `peer`, so the kernel writes no further. `ucred` is plain integers: any bytes are a
    // value of it.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize != size_of::<libc::ucred>() || peer.uid == u32::MAX {
        return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
    }
    Ok(peer)
}

fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut pidfd: libc::c_int = -1;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: as in `peer_cred`; the option's value is one `int`, the size that `len` holds.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut pidfd).cast(),
            &raw mut len,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    if pidfd < 0 {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // SAFETY: the call succeeded, so `pidfd` is a descriptor the kernel has just installed for us; no other code knows
    // its number, so we own it alone. The kernel made it close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

#[cfg(test)]
mod tests;
