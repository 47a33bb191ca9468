//! A connected stream socket: sends and receives what it can at once, and never waits.
//!
//! Knows descriptors and the system's errors; not what the bytes mean. Under TLS it gives them to `records.rs`.
//! For simulations its sends and receives are cut short by a seed, so that a stream comes in every
//! fragmentation there is.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketType, sockopt};

use super::records::TlsRecords;
use super::secured::{RecordLayer, Secured};
use super::{TcpConfig, TcpError};
use crate::fabric::DownReason;
use crate::ground::limits::{
    KERNEL_TLS_RECORD_BYTES, KERNEL_TLS_RECORDS_MAX, STREAM_CHUNK_FAR, STREAM_CHUNK_MAX,
};
use crate::ground::rng::Rng;

/// What a connection sends through and receives from. The one seam between the protocol and the system.
pub(super) trait Pipe {
    /// Sends what goes at once, from the front; how many bytes were taken. None may be, if some that were taken before
    /// went out now.
    fn send(&mut self, parts: [&[u8]; 3]) -> Result<usize, Stop>;
    /// Receives what is there, into the first and then the second; never zero bytes.
    fn receive(&mut self, into: [&mut [u8]; 2]) -> Result<usize, Stop>;
    /// True if bytes were taken that have not gone out: a send of nothing moves them on.
    fn has_unsent(&self) -> bool {
        false
    }
    /// True if the next receive may bring something although the system has nothing new.
    fn has_unread(&self) -> bool {
        false
    }
}

/// Why no byte went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// No room, or nothing there, now.
    NotNow,
    /// The connection is over.
    Over(DownReason),
}

#[derive(Debug)]
pub(super) struct Socket {
    wire: Wire,
    /// TLS, where this process keeps its records.
    records: Option<Box<TlsRecords>>,
    /// How many records the kernel may still seal, where it keeps them.
    sealable: u64,
    /// What is sent goes over no wire.
    is_of_one_machine: bool,
}

/// The descriptor itself.
#[derive(Debug)]
pub(super) struct Wire {
    fd: OwnedFd,
    #[cfg(any(test, feature = "testing"))]
    cuts: Option<Rng>,
}

impl Socket {
    /// Readies a connected stream socket for a port.
    pub(super) fn new(
        fd: OwnedFd,
        secured: Option<Secured>,
        config: &TcpConfig,
    ) -> Result<Self, TcpError> {
        let os = |what| move |errno| TcpError::Os(what, errno);
        if sockopt::socket_type(&fd).map_err(os("getsockopt(SO_TYPE)"))? != SocketType::STREAM {
            return Err(TcpError::NoStream);
        }
        rustix::net::getpeername(&fd).map_err(|_| TcpError::NotConnected)?;
        rustix::io::ioctl_fionbio(&fd, true).map_err(os("ioctl(FIONBIO)"))?;
        if let Some(bytes) = config.socket_bytes {
            sockopt::set_socket_send_buffer_size(&fd, bytes)
                .map_err(os("setsockopt(SO_SNDBUF)"))?;
            sockopt::set_socket_recv_buffer_size(&fd, bytes)
                .map_err(os("setsockopt(SO_RCVBUF)"))?;
        }
        let family = sockopt::socket_domain(&fd).map_err(os("getsockopt(SO_DOMAIN)"))?;
        let mut is_of_one_machine = true;
        if matches!(family, AddressFamily::INET | AddressFamily::INET6) {
            set_tcp(&fd, config.user_timeout_ms)?;
            is_of_one_machine = has_one_address(&fd);
            if is_of_one_machine {
                // An error is that the system does not let us choose: then it goes as its own choice does.
                let _ = sockopt::set_tcp_congestion(&fd, OF_ONE_MACHINE);
            }
        }
        let (records, sealable) = match secured.map(|secured| secured.0) {
            Some(RecordLayer::Process(session)) => {
                (Some(Box::new(TlsRecords::new(*session))), u64::MAX)
            }
            Some(RecordLayer::Kernel) => (None, KERNEL_TLS_RECORDS_MAX),
            None => (None, u64::MAX),
        };
        Ok(Self {
            wire: Wire {
                fd,
                #[cfg(any(test, feature = "testing"))]
                cuts: None,
            },
            records,
            sealable,
            is_of_one_machine,
        })
    }

    /// The same, which cuts what it sends and receives.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn cut_by(mut self, cuts: Option<Rng>) -> Self {
        self.wire.cuts = cuts;
        self
    }

    /// Bytes of one chunk of a write at most: the frames behind it wait for it, on a slow wire for long.
    pub(super) const fn chunk_max(&self) -> usize {
        if self.is_of_one_machine {
            STREAM_CHUNK_MAX
        } else {
            STREAM_CHUNK_FAR
        }
    }

    /// As if the kernel had sealed all records but so many.
    #[cfg(test)]
    pub(super) const fn seal_at_most(&mut self, records: u64) {
        self.sealable = records;
    }

    /// Tells the peer that nothing more comes, at once rather than when the descriptor's last copy is closed.
    pub(super) fn shut(&mut self) {
        if let Some(records) = &mut self.records {
            records.end(&mut self.wire);
        }
        self.wire.shut();
    }

    /// Sends what goes at once, from the front.
    #[inline]
    fn send_some(&mut self, parts: [&[u8]; 3]) -> Result<usize, Stop> {
        if let Some(records) = &mut self.records {
            return records.send(&mut self.wire, parts);
        }
        if self.sealable == 0 {
            return Err(Stop::Over(DownReason::Reset));
        }
        let parts = self.wire.cut(parts)?;
        let used = if parts[1].is_empty() { 1 } else { 3 };
        let sent = self.wire.send(&parts.map(IoSlice::new)[..used])?;
        let records = 1 + (sent / KERNEL_TLS_RECORD_BYTES) as u64;
        self.sealable = self.sealable.saturating_sub(records);
        Ok(sent)
    }
}

/// How congestion is controlled between two ends of one machine, where there is none. Every kernel has this way. One
/// that paces what is sent, as BBR does, sets a timer for every packet or two, and a stream spends its time on them.
const OF_ONE_MACHINE: &str = "reno";

/// True if what is sent goes over no wire: the peer has the address that we have.
fn has_one_address(fd: &OwnedFd) -> bool {
    let ip = |address| {
        SocketAddr::try_from(address)
            .map(|address| address.ip())
            .ok()
    };
    let ours = rustix::net::getsockname(fd).ok().and_then(ip);
    let theirs = rustix::net::getpeername(fd).ok().flatten().and_then(ip);
    ours.is_some() && ours == theirs
}

/// The options of TCP: no waiting to fill a packet, and a bound on how long a silent peer passes for a living one.
fn set_tcp(fd: &OwnedFd, user_timeout_ms: u32) -> Result<(), TcpError> {
    let os = |what| move |errno| TcpError::Os(what, errno);
    sockopt::set_tcp_nodelay(fd, true).map_err(os("setsockopt(TCP_NODELAY)"))?;
    sockopt::set_socket_keepalive(fd, true).map_err(os("setsockopt(SO_KEEPALIVE)"))?;
    // With a user timeout set the kernel asks it, and not the count of probes, when to give up (tcp(7)).
    let quarter = Duration::from_secs(u64::from(user_timeout_ms / 4000).max(1));
    sockopt::set_tcp_keepidle(fd, quarter).map_err(os("setsockopt(TCP_KEEPIDLE)"))?;
    sockopt::set_tcp_keepintvl(fd, quarter).map_err(os("setsockopt(TCP_KEEPINTVL)"))?;
    sockopt::set_tcp_user_timeout(fd, user_timeout_ms).map_err(os("setsockopt(TCP_USER_TIMEOUT)"))
}

impl Pipe for Socket {
    #[inline]
    fn send(&mut self, parts: [&[u8]; 3]) -> Result<usize, Stop> {
        let sent = self.send_some(parts);
        if let Err(Stop::Over(_)) = sent
            && !mutant!("unsendable_sockets_stay_open")
        {
            // The system may know no error: so a receive finds the end too, behind what the peer has sent.
            self.wire.shut();
        }
        sent
    }

    #[inline]
    fn receive(&mut self, into: [&mut [u8]; 2]) -> Result<usize, Stop> {
        match &mut self.records {
            Some(records) => records.receive(&mut self.wire, into),
            None => self.wire.receive(into),
        }
    }

    #[inline]
    fn has_unsent(&self) -> bool {
        self.records
            .as_ref()
            .is_some_and(|records| records.has_unsent())
    }

    #[inline]
    fn has_unread(&self) -> bool {
        self.records
            .as_ref()
            .is_some_and(|records| records.has_unread())
    }
}

impl Wire {
    /// Nothing goes either way any more; what has come can still be received.
    fn shut(&self) {
        // An error is that it is over already.
        let _ = rustix::net::shutdown(&self.fd, rustix::net::Shutdown::Both);
    }

    /// Sends what goes at once, from the front.
    #[inline]
    pub(super) fn send(&self, slices: &[IoSlice<'_>]) -> Result<usize, Stop> {
        loop {
            // No signal for a broken pipe: an error is enough.
            let sent = match slices {
                [one] => rustix::net::send(&self.fd, one, SendFlags::NOSIGNAL),
                _ => rustix::net::sendmsg(
                    &self.fd,
                    slices,
                    &mut SendAncillaryBuffer::default(),
                    SendFlags::NOSIGNAL,
                ),
            };
            match sent {
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(stop(errno)),
            }
        }
    }

    /// The same, as much of it as a simulation lets through.
    pub(super) fn send_cut(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Stop> {
        if self.cuts().is_none() {
            return self.send(slices);
        }
        let first = slices.iter().find(|slice| !slice.is_empty());
        let Some(first) = first else { return Ok(0) };
        let [first, ..] = self.cut([first, &[], &[]])?;
        self.send(&[IoSlice::new(first)])
    }

    /// Receives what is there; never zero bytes.
    #[inline]
    pub(super) fn receive(&mut self, into: [&mut [u8]; 2]) -> Result<usize, Stop> {
        let [mut first, mut second] = into;
        if let Some(rng) = self.cuts() {
            if rng.one_in(4) {
                return Err(Stop::NotNow);
            }
            let keep = cut(rng, first.len() + second.len());
            let of_first = keep.min(first.len());
            second = &mut second[..keep - of_first];
            first = &mut first[..of_first];
        }
        loop {
            let received = if first.is_empty() {
                self.receive_one(second)
            } else if second.is_empty() {
                self.receive_one(first)
            } else {
                let mut slices = [IoSliceMut::new(first), IoSliceMut::new(second)];
                rustix::io::readv(&self.fd, &mut slices)
            };
            match received {
                // An end without a BYE: the process is gone, or something between us is.
                Ok(0) => return Err(Stop::Over(DownReason::Reset)),
                Ok(count) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(stop(errno)),
            }
        }
    }

    /// As a read, without what the kernel asks about files first.
    #[inline]
    fn receive_one(&self, into: &mut [u8]) -> Result<usize, Errno> {
        rustix::net::recv(&self.fd, into, RecvFlags::empty()).map(|(count, _)| count)
    }

    /// How a simulation cuts, if one runs.
    #[inline(always)]
    const fn cuts(&mut self) -> Option<&mut Rng> {
        #[cfg(any(test, feature = "testing"))]
        return self.cuts.as_mut();
        #[cfg(not(any(test, feature = "testing")))]
        None
    }

    /// What of `parts` a simulation lets through.
    fn cut<'a>(&mut self, parts: [&'a [u8]; 3]) -> Result<[&'a [u8]; 3], Stop> {
        let Some(rng) = self.cuts() else {
            return Ok(parts);
        };
        if rng.one_in(4) {
            return Err(Stop::NotNow);
        }
        let mut keep = cut(rng, parts.iter().map(|part| part.len()).sum());
        Ok(parts.map(|part| {
            let of_part = keep.min(part.len());
            keep -= of_part;
            &part[..of_part]
        }))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wire.fd.as_fd()
    }
}

/// A length from one to `len`: often a few bytes, so that heads are cut too.
fn cut(rng: &mut Rng, len: usize) -> usize {
    let most = if rng.one_in(2) { len.min(100) } else { len };
    (1 + rng.below(most as u64) as usize).min(len)
}

pub(super) const fn stop(errno: Errno) -> Stop {
    match errno {
        Errno::AGAIN => Stop::NotNow,
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH => {
            Stop::Over(DownReason::TimedOut)
        }
        _ => Stop::Over(DownReason::Reset),
    }
}
