//! Addresses: where a task's control plane listens, and how to listen and dial there.
//!
//! Knows sockets and paths, and nothing of what is said over them.
//!
//! `unix:@name` is an abstract name: it dies with its last socket, so nothing is left behind by `kill -9`.
//! `host:port` and `[v6]:port` are TCP; a name is resolved anew at each dial, elsewhere.
//! `unix:/path` is a socket file. A file whose owner is dead answers `ECONNREFUSED` and is replaced; the look and the
//! replacement happen under a lock of the directory, so that of two starters only one can win.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::fabric::listeners::ParentOnly;
use crate::ground::limits::HOST_NAME_MAX;

/// Bytes of a Unix socket's name: `sun_path` has 108, one of which marks an abstract name or ends a path.
const NAME_MAX: usize = 107;
/// Connections the kernel keeps for us while we do not accept.
const BACKLOG: i32 = 128;

/// Where a control plane listens.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Address {
    /// `unix:@name`: an abstract name, alive only in the network namespace of its owner.
    Abstract(String),
    /// `unix:/path`: a socket file.
    Path(PathBuf),
    /// `host:port` or `[v6]:port`: TCP.
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        /// The port; zero, where one listens, is any that is free.
        port: u16,
    },
}

/// A text that is no address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "could not interpret {text:?} as an address ({why}); use unix:@name, unix:/absolute/path, host:port or [v6]:port"
)]
pub struct AddressError {
    text: String,
    why: &'static str,
}

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    /// A live process listens there.
    #[error("a running process listens on it already")]
    Taken,
    /// The path holds something that is no socket.
    #[error("a file of another kind is there")]
    NoSocket,
    /// Another process keeps the directory locked.
    #[error("another process holds a lock (flock) on its directory")]
    Locked,
    /// The system refused.
    #[error("{call}: {errno}")]
    System {
        call: &'static str,
        errno: std::io::Error,
    },
}

/// How long the directory of a socket may be locked by others: a starter holds it for some system calls. Another user
/// who can read the directory may lock it for ever.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

fn lock_within(directory: &OwnedFd, patience: Duration) -> Result<(), ListenError> {
    let until = Instant::now() + patience;
    loop {
        match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(Errno::WOULDBLOCK) => return Err(ListenError::Locked),
            locked => return locked.map_err(system("lock the socket's directory")),
        }
    }
}

/// A listening socket, and the file it must take away when it goes.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) socket: ParentOnly<UnixListener>,
    /// The socket file with its device and inode: only that very file is removed.
    file: Option<(PathBuf, u64, u64)>,
}

impl Address {
    /// An abstract name that no other task of this machine is likely to have, made from `task` and 64 random bits.
    #[must_use]
    pub fn unique(task: &str) -> Self {
        let mut random = [0u8; 8];
        // Without randomness the process number still tells the living apart.
        if getrandom::fill(&mut random).is_err() {
            random = u64::from(std::process::id()).to_le_bytes();
        }
        let task: String = task.chars().filter(char::is_ascii).take(64).collect();
        Self::Abstract(format!("rendez/{task}/{:016x}", u64::from_le_bytes(random)))
    }

    /// True if other machines may reach it.
    #[must_use]
    pub const fn is_tcp(&self) -> bool {
        matches!(self, Self::Tcp { .. })
    }

    /// The port of a TCP address.
    #[must_use]
    pub const fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp { port, .. } => Some(*port),
            _ => None,
        }
    }

    /// True if it means all addresses of a machine, and so says of none which machine it is.
    #[must_use]
    pub fn is_wildcard(&self) -> bool {
        match self {
            Self::Tcp { host, .. } => host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()),
            _ => false,
        }
    }

    /// The TCP address of a socket.
    pub(crate) fn of_socket(address: SocketAddr) -> Self {
        Self::Tcp {
            host: address.ip().to_string(),
            port: address.port(),
        }
    }

    /// This address, as the socket that listens at it is `bound`. A link's address keeps the name of its link: the
    /// number by which a socket tells it is this machine's alone.
    pub(crate) fn bound_at(&self, bound: SocketAddr) -> Self {
        match self {
            Self::Tcp { host, .. } if host.contains('%') => Self::Tcp {
                host: host.clone(),
                port: bound.port(),
            },
            _ => Self::of_socket(bound),
        }
    }

    /// Listens here, at a Unix address.
    pub(crate) fn listen(&self) -> Result<Listening, ListenError> {
        let (socket, file) = match self {
            Self::Abstract(_) | Self::Tcp { .. } => (self.bind()?, None),
            Self::Path(path) => {
                let (socket, file) = self.bind_file(path)?;
                (socket, Some(file))
            }
        };
        rustix::net::listen(&socket, BACKLOG).map_err(system("listen"))?;
        Ok(Listening {
            socket: ParentOnly::new(UnixListener::from(socket)),
            file,
        })
    }

    /// Tries to connect, and sends nothing. Blocks for at most `patience`, plus the time of a name look-up.
    ///
    /// # Errors
    /// Why it cannot connect, as text for people.
    pub fn reach(&self, patience: Duration) -> Result<(), String> {
        if self.is_tcp() {
            let connected = super::tcp::connect(self, Instant::now() + patience);
            return connected.map(drop).map_err(|error| error.to_string());
        }
        match self.connect() {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN) => {
                Err("a process listens there, and takes no connections: is it stopped?".into())
            }
            Err(errno @ (Errno::CONNREFUSED | Errno::NOENT)) => {
                Err(format!("no process listens there ({errno})"))
            }
            Err(errno) => Err(errno.to_string()),
        }
    }

    /// Connects to the listener here, at a Unix address; never blocks. A full backlog is `EAGAIN`.
    pub(crate) fn connect(&self) -> Result<UnixStream, Errno> {
        let socket = new_socket()?;
        rustix::net::connect(&socket, &self.to_system()?)?;
        Ok(UnixStream::from(socket))
    }

    fn bind(&self) -> Result<OwnedFd, ListenError> {
        let socket = new_socket().map_err(system("socket"))?;
        let name = self.to_system().map_err(system("address"))?;
        match rustix::net::bind(&socket, &name) {
            Ok(()) => Ok(socket),
            Err(Errno::ADDRINUSE) => Err(ListenError::Taken),
            Err(errno) => Err(system("bind")(errno)),
        }
    }

    fn bind_file(&self, path: &Path) -> Result<(OwnedFd, (PathBuf, u64, u64)), ListenError> {
        let directory = path.parent().unwrap_or_else(|| Path::new("/"));
        let lock = rustix::fs::open(
            directory,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(system("open the socket's directory"))?;
        lock_within(&lock, LOCK_PATIENCE)?;
        let socket = match self.bind() {
            Err(ListenError::Taken) => {
                self.remove_stale(path)?;
                self.bind()?
            }
            other => other?,
        };
        // Listen under the lock as well: a bound socket that does not listen yet looks dead to the next starter.
        rustix::net::listen(&socket, BACKLOG).map_err(system("listen"))?;
        let file = std::fs::symlink_metadata(path).map_err(|errno| ListenError::System {
            call: "stat",
            errno,
        })?;
        Ok((socket, (path.to_path_buf(), file.dev(), file.ino())))
    }

    /// Removes the socket file at `path` if its owner is dead.
    fn remove_stale(&self, path: &Path) -> Result<(), ListenError> {
        let file = std::fs::symlink_metadata(path).map_err(|errno| ListenError::System {
            call: "stat",
            errno,
        })?;
        if !file.file_type().is_socket() {
            return Err(ListenError::NoSocket);
        }
        match self.connect() {
            Err(Errno::CONNREFUSED) => {
                std::fs::remove_file(path).map_err(|errno| ListenError::System {
                    call: "unlink",
                    errno,
                })
            }
            // A full backlog, or a socket we may not connect to, is taken all the same.
            Ok(_) | Err(_) => Err(ListenError::Taken),
        }
    }

    fn to_system(&self) -> Result<SocketAddrUnix, Errno> {
        match self {
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
            Self::Path(path) => SocketAddrUnix::new(path.as_path()),
            Self::Tcp { .. } => Err(Errno::AFNOSUPPORT),
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let Some((path, device, inode)) = self.file.take() else {
            return;
        };
        let ours = std::fs::symlink_metadata(&path)
            .is_ok_and(|file| file.dev() == device && file.ino() == inode);
        if ours {
            // The error has no receiver, and the next owner finds a leftover file stale.
            let _ = std::fs::remove_file(&path);
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let fail = |why| AddressError {
            text: text.to_owned(),
            why,
        };
        let Some(name) = text.strip_prefix("unix:") else {
            return parse_tcp(text).map_err(fail);
        };
        if name.contains('\0') {
            return Err(fail("a NUL within"));
        }
        if name.len() > NAME_MAX {
            return Err(fail("longer than 107 bytes"));
        }
        match name.strip_prefix('@') {
            Some("") => Err(fail("empty name")),
            Some(name) => Ok(Self::Abstract(name.to_owned())),
            None if name.starts_with('/') && !name.ends_with('/') => {
                Ok(Self::Path(PathBuf::from(name)))
            }
            None => Err(fail("the path is not an absolute file name")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Abstract(name) => write!(f, "unix:@{name}"),
            Self::Path(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// A host and a port, in the one spelling that [`Address`] is displayed in.
fn parse_tcp(text: &str) -> Result<Address, &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once("]:").ok_or("no closing bracket and port")?;
            // A scope, as in fe80::1%eth0, is resolved with the rest.
            let (address, _) = host.split_once('%').unwrap_or((host, ""));
            if address.parse::<Ipv6Addr>().is_err() {
                return Err("there is no IPv6 address in the brackets");
            }
            (host, port)
        }
        None => text
            .split_once(':')
            .ok_or("it has neither a scheme nor a host and a port")?,
    };
    if host.is_empty() || host.len() > HOST_NAME_MAX {
        return Err("a host has 1 to 253 characters");
    }
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
    if !host.bytes().all(is_word) {
        return Err("it has a character that host names cannot have");
    }
    if port.is_empty()
        || (port.len() > 1 && port.starts_with('0'))
        || !port.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Err("the port is no number");
    }
    let port = port.parse().map_err(|_| "the port is beyond 65535")?;
    Ok(Address::Tcp {
        host: host.to_owned(),
        port,
    })
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn system(call: &'static str) -> impl Fn(Errno) -> ListenError {
    move |errno| ListenError::System {
        call,
        errno: errno.into(),
    }
}

#[cfg(test)]
mod tests;
