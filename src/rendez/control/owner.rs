//! Owners: which user of this machine holds the other end of a TCP connection, in the kernel's words.
//!
//! Knows sockets and tables of the kernel only; what a user may do is decided elsewhere. TCP names no user, but both
//! ends of a connection within one machine are sockets of one kernel, which tells the owner of each: by `sock_diag`,
//! asked for exactly the one socket, or where that is missing by the tables of `/proc`. Neither blocks: the kernel
//! answers within the call, and only a bounded part of a table is read.
//!
//! A socket that its process has closed has no owner any more, and the kernel names root instead. Such an answer is
//! ignored.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::ground::limits::SOCKET_TABLE_BYTES_MAX;
use crate::users::UserNumbers;

use super::tcp::is_loopback;

/// The kernel's numbers for a connection that a process may hold: it lasts, or one side has said its last.
const ESTABLISHED: u8 = 1;
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const CLOSE_WAIT: u8 = 8;

/// The owner of the other end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// This user of this machine, in our user namespace.
    User(u32),
    /// A user of this machine that the kernel does not name.
    Unknown,
    /// A process on another machine.
    Elsewhere,
}

impl Owner {
    /// The owner of the other end of `socket`.
    ///
    /// # Errors
    /// This process, or this machine, lacks at the moment what it takes to ask.
    pub(crate) fn of(socket: &TcpStream) -> io::Result<Self> {
        match (socket.local_addr(), socket.peer_addr()) {
            (Ok(local), Ok(peer)) => of_pair(local, peer),
            // The connection has ended, and its owner cannot be found any more.
            _ => Ok(Self::Unknown),
        }
    }
}

/// True if the kernel says that another user than our own holds the other end of `socket`; or does not say who, and the
/// end is on this machine by its address. It is asked in the one way that costs the same however many sockets there
/// are: to share room, not to trust.
pub(crate) fn is_of_another(socket: &TcpStream, users: UserNumbers) -> bool {
    let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else {
        return false;
    };
    let (source, destination) = (canonical(peer), canonical(local));
    match by_diag(source, destination) {
        Ok(Some(owner)) => !users.is_own(owner),
        _ => {
            [source.ip(), destination.ip()].into_iter().any(is_loopback)
                || source.ip() == destination.ip()
        }
    }
}

fn of_pair(local: SocketAddr, peer: SocketAddr) -> io::Result<Owner> {
    // From there the connection is seen the other way round.
    let (source, destination) = (canonical(peer), canonical(local));
    match by_diag(source, destination) {
        Ok(Some(user)) => return Ok(Owner::User(user)),
        Err(error) if is_shortage(&error) => return Err(error),
        _ => {}
    }
    if source.ip() != destination.ip() && !is_of_this_machine(peer)? {
        return Ok(Owner::Elsewhere);
    }
    // No such socket may also mean that this kernel cannot be asked that way. One that finds our end can: the other is
    // closed, and the tables, which grow with all sockets of the machine, would say no more.
    if let Ok(Some(_)) = by_diag(destination, source) {
        return Ok(Owner::Unknown);
    }
    match by_table(source, destination) {
        Ok(Some(user)) => Ok(Owner::User(user)),
        Err(error) if is_shortage(&error) => Err(error),
        _ => Ok(Owner::Unknown),
    }
}

/// True for an error that says nothing of who was asked about: there may be descriptors and memory later.
fn is_shortage(error: &io::Error) -> bool {
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS];
    Errno::from_io_error(error).is_some_and(|errno| short.contains(&errno))
}

/// Both ends of a connection are of one family, however our listener spells them.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// True unless the system says that no socket of this machine can have the address `peer`. Whatever else keeps us from
/// asking makes no stranger a process of another machine.
fn is_of_this_machine(peer: SocketAddr) -> io::Result<bool> {
    let ip = peer.ip().to_canonical();
    let mut any_port = match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, 0),
        // With its scope: a link's address is none without it.
        IpAddr::V6(_) => peer,
    };
    any_port.set_port(0);
    if is_loopback(ip) {
        return Ok(true);
    }
    match UdpSocket::bind(any_port) {
        Err(error) if is_shortage(&error) => Err(error),
        Err(error) => Ok(error.kind() != io::ErrorKind::AddrNotAvailable),
        Ok(socket) => Ok(!is_foreign(&socket, any_port)?),
    }
}

/// True if the machine lacks the address `bound` although `socket` got it: with `net.ipv4.ip_nonlocal_bind`, as hosts
/// with addresses that wander have it, every address can be bound. Multicast of IPv4 leaves by an address of this
/// machine alone, and to an own address of IPv6 packets go from that very address.
pub(super) fn is_foreign(socket: &UdpSocket, bound: SocketAddr) -> io::Result<bool> {
    let mut there = match bound {
        SocketAddr::V4(bound) => {
            let by = sockopt::set_ip_multicast_if(socket, bound.ip());
            return Ok(by == Err(Errno::ADDRNOTAVAIL));
        }
        SocketAddr::V6(there) => there,
    };
    let probe = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    // No packet is sent by this; a port has to be named.
    there.set_port(1);
    match probe.connect(there) {
        Ok(()) => Ok(probe.local_addr()?.ip() != *there.ip()),
        // To itself a machine finds a way.
        Err(error) => Ok(matches!(
            error.kind(),
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable
        )),
    }
}

/// Asks for the socket at `source` that is connected to `destination`; nothing if there is none with a holder.
fn by_diag(source: SocketAddr, destination: SocketAddr) -> io::Result<Option<u32>> {
    let request = InetRequest {
        family: match source {
            SocketAddr::V4(_) => AF_INET,
            SocketAddr::V6(_) => AF_INET6,
        },
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all(),
        socket_id: SocketId {
            source_port: source.port(),
            destination_port: destination.port(),
            source_address: source.ip(),
            destination_address: destination.ip(),
            interface_id: 0,
            // Any.
            cookie: [0xff; 8],
        },
    };
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut question = vec![0; message.buffer_len()];
    message.serialize(&mut question);
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    // Number zero is the kernel; a connected socket receives from no other sender.
    rustix::net::connect(&socket, &SocketAddrNetlink::new(0, 0))?;
    rustix::net::send(&socket, &question, SendFlags::empty())?;
    let mut answer = [0; 1024];
    // The answer lies there when the question has been sent.
    let (len, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT)?;
    let answer = NetlinkMessage::<SockDiagMessage>::deserialize(&answer[..len]);
    let answer = answer.map_err(|error| io::Error::other(error.to_string()))?;
    Ok(match answer.payload {
        NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(found)) => {
            let found = found.header;
            let is_it = found.socket_id.source_port == source.port()
                && found.socket_id.destination_port == destination.port()
                && found.socket_id.source_address.to_canonical() == source.ip()
                && found.socket_id.destination_address.to_canonical() == destination.ip();
            (is_it && is_held(found.state, found.inode.into())).then_some(found.uid)
        }
        _ => None,
    })
}

/// True for a connection that a process holds. A listener at the same address is none, and of one that was closed the
/// kernel names no owner but root.
const fn is_held(state: u8, inode: u64) -> bool {
    inode != 0 && matches!(state, ESTABLISHED | FIN_WAIT_1 | FIN_WAIT_2 | CLOSE_WAIT)
}

/// The same, by the tables that the kernel shows as files.
fn by_table(source: SocketAddr, destination: SocketAddr) -> io::Result<Option<u32>> {
    #[cfg(test)]
    tests::TABLE_LOOKS.set(tests::TABLE_LOOKS.get() + 1);
    // A socket of the newer family may speak the older one.
    for path in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let table = match File::open(path) {
            Ok(table) => BufReader::new(table.take(SOCKET_TABLE_BYTES_MAX)),
            // A machine without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for line in table.lines() {
            if let Some(row) = Row::read(&line?)
                && (row.source, row.destination) == (source, destination)
                && is_held(row.state, row.inode)
            {
                return Ok(Some(row.user));
            }
        }
    }
    Ok(None)
}

/// A line of the table.
#[derive(PartialEq, Eq, Debug)]
struct Row {
    source: SocketAddr,
    destination: SocketAddr,
    state: u8,
    user: u32,
    inode: u64,
}

impl Row {
    /// `number: address:port address:port state queues timer retransmits user timeout inode …`, hexadecimal except the
    /// last.
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(1);
        Some(Self {
            source: read_address(words.next()?)?,
            destination: read_address(words.next()?)?,
            state: u8::from_str_radix(words.next()?, 16).ok()?,
            user: words.nth(3)?.parse().ok()?,
            inode: words.nth(1)?.parse().ok()?,
        })
    }
}

/// An address as the tables spell it: words of the machine's own order.
fn read_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let word = u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip: IpAddr = match ip.len() {
        8 => word(0)?.into(),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            bytes.into()
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, port)))
}

#[cfg(test)]
mod tests;
