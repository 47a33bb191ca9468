//! The lane: how file descriptors go from one task to another, beside the stream of messages.
//!
//! Knows sockets and counts. The message that names a batch says what its descriptors are; the lane does not know what
//! they are *for*.
//!
//! ```text
//!   dialler                                        acceptor
//!   connect ──────────── stream ─────────────────▶ accept
//!   socketpair(SEQPACKET): ours │ theirs
//!   preamble "rendez\0\1" + theirs as SCM_RIGHTS ▶ recvmsg, the first bytes of the connection
//!   ours ◀═══════════════ lane ══════════════════▶ theirs
//! ```
//!
//! A message that names batch *n* is written to the stream only after batch *n* was put into the lane. Unix sockets
//! deliver into the receiver's queue at once, so a side that has read the message finds the batch there: neither ever
//! waits on a lane, and a batch that is missing, misnumbered or of another count is a broken promise. The window of
//! unanswered batches keeps the lane's buffer from filling. The preamble is the only thing about a connection that no
//! version may change.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::ancillary;
use super::credentials::Credentials;
use crate::ground::faults::more_descriptors;
use crate::ground::limits::DESCRIPTORS_PER_BATCH;

/// The first bytes of every connection: a name and a version of this very layout.
pub(crate) const PREAMBLE: [u8; 8] = *b"rendez\0\x01";

/// The same, of a dialler with a cluster secret: the handshake comes before the greeting.
const PREAMBLE_HANDSHAKE: [u8; 8] = *b"rendez\0\x02";

/// What follows a preamble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    /// The greeting.
    Greeting,
    /// The handshake, and then the greeting.
    Handshake,
}

/// One more than we take, so that one too many is seen rather than cut off.
const SPACE: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_PER_BATCH + 1));

/// A broken promise about descriptors, or the system's refusal to move them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum LaneError {
    /// The connection's first bytes are not ours.
    #[error("the connection does not begin with rendez' preamble")]
    NotRendez,
    /// What came as a lane is no lane.
    #[error("the preamble's descriptor is not a Unix sequenced-packet socket")]
    NotALane,
    /// A message named a batch that is not in the lane.
    #[error("batch {0} is not in the lane")]
    Missing(u32),
    /// The lane holds another batch than named.
    #[error("the lane holds batch {found} where batch {named} was named")]
    Misnumbered { named: u32, found: u32 },
    /// Another number of descriptors than named.
    #[error("{found} descriptors came where {named} were named")]
    Miscounted { named: usize, found: usize },
    /// More descriptors came, or were to go, than one batch may have.
    #[error("more than {DESCRIPTORS_PER_BATCH} descriptors in a batch")]
    CutOff,
    /// Fewer descriptors came through than were sent.
    #[error(
        "descriptors were lost: most likely this process has as many open as it may; raise the limit on open files \
         (`ulimit -n`, `LimitNOFILE`)"
    )]
    Short,
    /// The peer does not take what it was sent.
    #[error("the lane is full")]
    Full,
    /// The system refused.
    #[error("{call}: {errno}{}", more_descriptors(errno.raw_os_error()))]
    System { call: &'static str, errno: Errno },
}

/// One end of a lane. Its maker may hold a duplicate of it.
#[derive(Debug)]
pub(crate) struct Lane {
    socket: OwnedFd,
    mark: u64,
    sent: u32,
    received: u32,
}

impl Lane {
    /// Makes a lane over the fresh connection `stream` and sends its other end along: the dialler's first act.
    pub(crate) fn open(stream: BorrowedFd<'_>, then: Then) -> Result<Self, LaneError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(|errno| LaneError::System {
                    call: "socketpair",
                    errno,
                })?;
        let preamble = match then {
            Then::Greeting => PREAMBLE,
            Then::Handshake => PREAMBLE_HANDSHAKE,
        };
        let mark = mark_of(&theirs, then)?;
        let sent = send(stream, &preamble, &[theirs.as_fd()])?;
        if sent == preamble.len() {
            Ok(Self::new(ours, mark))
        } else {
            Err(LaneError::Full)
        }
    }

    /// Takes the preamble from `stream` once it is readable: the acceptor's first act. `None` if it was not readable.
    pub(crate) fn take(stream: BorrowedFd<'_>) -> Result<Option<(Self, Then)>, LaneError> {
        let mut bytes = [0u8; PREAMBLE.len()];
        let Some(received) = receive(stream, &mut bytes)? else {
            return Ok(None);
        };
        let (len, mut descriptors) = received.whole()?;
        let then = match (len == PREAMBLE.len(), bytes) {
            (true, PREAMBLE) => Then::Greeting,
            (true, PREAMBLE_HANDSHAKE) => Then::Handshake,
            _ => return Err(LaneError::NotRendez),
        };
        let found = descriptors.len();
        let (1, Some(socket)) = (found, descriptors.pop()) else {
            return Err(LaneError::Miscounted { named: 1, found });
        };
        let is_lane = rustix::net::sockopt::socket_domain(&socket) == Ok(AddressFamily::UNIX)
            && rustix::net::sockopt::socket_type(&socket) == Ok(SocketType::SEQPACKET);
        if is_lane {
            let mark = mark_of(&socket, then)?;
            Ok(Some((Self::new(socket, mark), then)))
        } else {
            Err(LaneError::NotALane)
        }
    }

    /// The number that the acceptor's end has among all sockets of the machine, as both sides see it, whatever
    /// namespaces they are in; zero where no proof is tied to it.
    pub(crate) const fn mark(&self) -> u64 {
        self.mark
    }

    /// Who made it, by the kernel's word.
    pub(crate) fn maker(&self) -> std::io::Result<Credentials> {
        Credentials::of(self.socket.as_fd())
    }

    fn new(socket: OwnedFd, mark: u64) -> Self {
        Self {
            socket,
            mark,
            sent: 0,
            received: 0,
        }
    }

    /// Puts `descriptors` into the lane as one batch and returns its number; never blocks.
    pub(crate) fn send(&mut self, descriptors: &[BorrowedFd<'_>]) -> Result<u32, LaneError> {
        if descriptors.len() > DESCRIPTORS_PER_BATCH {
            return Err(LaneError::CutOff);
        }
        let batch = self.sent.wrapping_add(1);
        send(self.socket.as_fd(), &batch.to_le_bytes(), descriptors)?;
        self.sent = batch;
        Ok(batch)
    }

    /// Takes the batch that a message named, of `count` descriptors. Whatever came besides is closed. After
    /// [`LaneError::Short`] the batch is taken, and the next may be.
    pub(crate) fn receive(&mut self, batch: u32, count: usize) -> Result<Vec<OwnedFd>, LaneError> {
        let mut bytes = [0u8; 4];
        let Some(received) = receive(self.socket.as_fd(), &mut bytes)? else {
            return Err(LaneError::Missing(batch));
        };
        let (found, len) = (u32::from_le_bytes(bytes), received.len);
        if len != bytes.len() || found != batch || batch != self.received.wrapping_add(1) {
            return Err(LaneError::Misnumbered {
                named: batch,
                found,
            });
        }
        self.received = batch;
        let (_, descriptors) = received.whole()?;
        if descriptors.len() != count {
            return Err(LaneError::Miscounted {
                named: count,
                found: descriptors.len(),
            });
        }
        Ok(descriptors)
    }
}

/// The mark of a lane, by the end that goes to the acceptor.
fn mark_of(theirs: &OwnedFd, then: Then) -> Result<u64, LaneError> {
    match then {
        Then::Greeting => Ok(0),
        Then::Handshake => {
            rustix::net::sockopt::socket_cookie(theirs).map_err(|errno| LaneError::System {
                call: "getsockopt (SO_COOKIE)",
                errno,
            })
        }
    }
}

fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize, LaneError> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(LaneError::CutOff);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags).map_err(|errno| {
        match errno {
            Errno::AGAIN => LaneError::Full,
            errno => LaneError::System {
                call: "sendmsg",
                errno,
            },
        }
    })
}

/// A message that came.
struct Received {
    len: usize,
    descriptors: Vec<OwnedFd>,
    is_cut_off: bool,
}

impl Received {
    /// Its length, and its descriptors if they are all that were sent.
    fn whole(self) -> Result<(usize, Vec<OwnedFd>), LaneError> {
        match self {
            Self { descriptors, .. } if descriptors.len() > DESCRIPTORS_PER_BATCH => {
                Err(LaneError::CutOff)
            }
            Self {
                is_cut_off: true, ..
            } => Err(LaneError::Short),
            Self {
                len, descriptors, ..
            } => Ok((len, descriptors)),
        }
    }
}

/// One message and its descriptors, all of them owned; `None` if there is none yet. An ended socket gives no bytes.
fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<Option<Received>, LaneError> {
    let (len, descriptors, is_cut_off) = match ancillary::receive::<SPACE>(socket, bytes) {
        Ok(received) => received,
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => {
            return Err(LaneError::System {
                call: "recvmsg",
                errno,
            });
        }
    };
    Ok(Some(Received {
        len,
        descriptors,
        is_cut_off,
    }))
}

#[cfg(test)]
mod tests;
