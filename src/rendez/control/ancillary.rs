//! What comes beside a message over a Unix socket: every descriptor that the kernel installs for it is owned.
//!
//! Knows sockets and control messages; not what the descriptors are for.
#![allow(unsafe_code)]
// Why control messages are read here after rustix has read them: the maker of a lane may hold a duplicate of
// our end, and have the kernel install a handle of the sender's process with each message (`SO_PASSPIDFD`). rustix
// knows no such message, and would leave the handle open.

use std::io::IoSliceMut;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};

/// Since Linux 6.5; the C library's headers of older systems lack it.
const SCM_PIDFD: libc::c_int = 4;

const HEADER: usize = size_of::<libc::cmsghdr>();

/// Room for the control messages of one message: at an address where the kernel puts them, and zeroed.
#[repr(C, align(8))]
struct Room<const SPACE: usize>([MaybeUninit<u8>; SPACE]);

/// A message: its bytes' number, its descriptors, and whether some were cut off.
pub(crate) type Received = (usize, Vec<OwnedFd>, bool);

/// Takes a message that is there, with `SPACE` bytes for what comes beside it; an ended socket gives no bytes.
pub(crate) fn receive<const SPACE: usize>(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> Result<Received, Errno> {
    let mut room = Room([MaybeUninit::new(0); SPACE]);
    let mut control = RecvAncillaryBuffer::new(&mut room.0);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let mut descriptors = Vec::new();
    for ancillary in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = ancillary {
            descriptors.extend(rights);
        }
    }
    drop(control);
    // SAFETY: all bytes were zeroes at first, and the kernel has written bytes over them.
    let control = room.0.map(|byte| unsafe { byte.assume_init() });
    for number in handles_in(&control)
        .into_iter()
        .filter(|handle| *handle >= 0)
    {
        // SAFETY: the kernel has just installed it for us by this message, which the room was zeroed for: a control
        // message there is of no other. rustix passes over this kind, so nothing else owns or knows it.
        drop(unsafe { OwnedFd::from_raw_fd(number) });
    }
    let is_cut_off = message.flags.contains(ReturnFlags::CTRUNC);
    Ok((message.bytes, descriptors, is_cut_off))
}

/// The process handles, or errors below zero, that the kernel names in `control`: messages one after the other, and
/// zeroes behind the last.
fn handles_in(control: &[u8]) -> Vec<RawFd> {
    let mut handles = Vec::new();
    let mut rest = control;
    while let Some((header, data)) = rest.split_at_checked(HEADER) {
        // Bytes in all, then level and kind.
        let word = |at: usize| {
            <[u8; 4]>::try_from(&header[at..at + 4]).map_or(0, libc::c_int::from_ne_bytes)
        };
        let len = header
            .first_chunk()
            .map_or(0, |len| usize::from_ne_bytes(*len));
        if len < HEADER {
            break;
        }
        let (level, kind) = (word(HEADER - 8), word(HEADER - 4));
        if (level, kind) == (libc::SOL_SOCKET, SCM_PIDFD)
            && len >= HEADER + 4
            && let Some(number) = data.first_chunk()
        {
            handles.push(RawFd::from_ne_bytes(*number));
        }
        rest = rest
            .get(len.next_multiple_of(align_of::<libc::cmsghdr>())..)
            .unwrap_or_default();
    }
    handles
}
