//! A store's server: one thread that polls its sockets.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use rendez::ground::catalogue;
use rendez::mail::forks::{self, ParentOnly};
use rustix::event::{PollFd, PollFlags, poll};

use super::query::{QUERY_MAX, Query};
use super::table::{Id, Table};
use crate::error::Error;

/// Bytes that are read of a connection at once.
const READ: usize = 64 << 10;
/// A connection with more bytes of answers than this is not read from until it has taken some.
const UNSENT: usize = 1 << 20;
/// More bytes than all connections hold, of queries that have not come whole and of answers that were not taken. The
/// one that exceeds it is ended.
const HELD_MAX: usize = 1 << 30;
/// Connections at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 16 << 10;
/// How long no more are accepted when the system has no room for one.
const NO_ROOM: rustix::time::Timespec = rustix::time::Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// A store that programs of this and other machines meet through: clients are [`Client`](super::Client) and PyTorch's
/// `TCPStore`. It ends when it is dropped, and what it held is gone.
///
/// A client that reaches its port may read and change what it holds: see [the module](crate::store).
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// Its other end stops the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `address`, as `"10.0.0.1:29500"`; with port 0 at one that is free.
    ///
    /// # Errors
    /// `RPC_STORE`: why it cannot listen there.
    pub fn start(address: impl ToSocketAddrs) -> Result<Self, Error> {
        let fault = |error: std::io::Error| {
            Error::of(
                catalogue::RPC_STORE,
                format!("the store cannot listen: {error}"),
            )
        };
        let listener = ParentOnly::new(TcpListener::bind(address).map_err(fault)?);
        listener.set_nonblocking(true).map_err(fault)?;
        let address = listener.local_addr().map_err(fault)?;
        let (stop, stopped) = UnixStream::pair().map_err(fault)?;
        let serve = move || {
            let mut floor = Floor {
                listener,
                stopped,
                table: Table::default(),
                connections: BTreeMap::new(),
                next: 0,
                is_full: false,
            };
            floor.serve();
        };
        let thread = std::thread::Builder::new().name("rpc-store".into());
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread.spawn(serve).map_err(fault)?),
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        // In a child of `fork` there is no such thread.
        if let Some(thread) = self.thread.take()
            && !forks::is_child()
        {
            // A panic of it was told where it happened.
            let _ = thread.join();
        }
    }
}

struct Connection {
    stream: TcpStream,
    /// What has come, and is no whole query yet.
    unread: Vec<u8>,
    /// How many bytes the query that has not come whole has at least.
    least: usize,
    /// Answers, of which the other side has taken the first `sent` bytes.
    unsent: Vec<u8>,
    sent: usize,
}

struct Floor {
    listener: ParentOnly<TcpListener>,
    stopped: UnixStream,
    table: Table,
    connections: BTreeMap<Id, Connection>,
    next: Id,
    /// The system had no room for one more.
    is_full: bool,
}

impl Floor {
    fn serve(&mut self) {
        loop {
            let (ids, ready) = match self.poll() {
                Ok(ready) => ready,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    return tracing::error!(%error, "a store cannot poll its sockets, and stops");
                }
            };
            let [stopped, listener, ready @ ..] = &*ready else {
                return;
            };
            if !stopped.is_empty() {
                return;
            }
            for (id, ready) in ids.into_iter().zip(ready) {
                if !ready.is_empty() {
                    self.turn(id);
                }
            }
            if !listener.is_empty() {
                self.accept();
            }
        }
    }

    /// Waits until there is something to do: for whom, and what.
    fn poll(&mut self) -> rustix::io::Result<(Vec<Id>, Vec<PollFlags>)> {
        let mut fds = Vec::with_capacity(self.connections.len() + 2);
        fds.push(PollFd::new(&self.stopped, PollFlags::IN));
        let is_open = !self.is_full && self.connections.len() < CONNECTIONS_MAX;
        let wants = if is_open {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        fds.push(PollFd::new(&self.listener, wants));
        for connection in self.connections.values() {
            let mut wants = PollFlags::empty();
            wants.set(PollFlags::IN, connection.owes() < UNSENT);
            wants.set(PollFlags::OUT, connection.owes() > 0);
            fds.push(PollFd::from_borrowed_fd(connection.stream.as_fd(), wants));
        }
        poll(&mut fds, self.is_full.then_some(&NO_ROOM))?;
        self.is_full = false;
        let ready = fds.iter().map(PollFd::revents).collect();
        Ok((self.connections.keys().copied().collect(), ready))
    }

    fn accept(&mut self) {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                let is_passing = [
                    ErrorKind::WouldBlock,
                    ErrorKind::Interrupted,
                    ErrorKind::ConnectionAborted,
                ];
                if !is_passing.contains(&error.kind()) {
                    tracing::warn!(%error, "a store cannot accept a connection now");
                    self.is_full = true;
                }
                return;
            }
        };
        // Without either it would hold the others up, or be slow.
        if stream.set_nonblocking(true).is_ok() && stream.set_nodelay(true).is_ok() {
            let connection = Connection {
                stream,
                unread: Vec::new(),
                least: 0,
                unsent: Vec::new(),
                sent: 0,
            };
            self.connections.insert(self.next, connection);
            self.next += 1;
        }
    }

    /// Does what can be done for a connection now.
    fn turn(&mut self, id: Id) {
        // A turn of another may have ended it.
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let mut outcome = connection.send();
        if outcome.is_ok() && connection.owes() < UNSENT {
            outcome = connection.receive();
        }
        outcome = outcome.and_then(|()| self.answer(id));
        let connection = self.connections.get(&id);
        let is_large = connection.is_some_and(|one| one.held() > 2 * UNSENT);
        if outcome.is_ok() && is_large && !self.is_bounded() {
            outcome = Err("the connections of the store hold too much");
        }
        if let Err(why) = outcome {
            self.end(id, why);
        }
    }

    /// Answers the whole queries that a connection has sent, until too much waits for it to be read: the rest follows
    /// when it has read that.
    fn answer(&mut self, id: Id) -> Result<(), &'static str> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        if connection.unread.len() < connection.least {
            return Ok(());
        }
        let unread = std::mem::take(&mut connection.unread);
        let (mut at, mut least, mut answers) = (0, 0, Vec::new());
        let is_ready = |floor: &Self| {
            let connection = floor.connections.get(&id);
            connection.is_some_and(|connection| connection.owes() < UNSENT)
        };
        let mut outcome = Ok(());
        while outcome.is_ok() && is_ready(self) {
            outcome = match Query::read_or_least(&unread[at..]) {
                Ok(Err(size)) => {
                    least = size;
                    break;
                }
                Ok(Ok((query, size))) => {
                    at += size;
                    let handled = self.table.handle(id, query, &mut answers);
                    handled.map_err(|refused| refused.0)
                }
                Err(malformed) => Err(malformed.0),
            };
            for (to, answer) in answers.drain(..) {
                self.deliver(to, &answer);
            }
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.unread = unread;
            connection.unread.drain(..at);
            connection.least = least;
        }
        outcome
    }

    fn deliver(&mut self, to: Id, answer: &[u8]) {
        let Some(connection) = self.connections.get_mut(&to) else {
            return;
        };
        connection.unsent.extend_from_slice(answer);
        if let Err(why) = connection.send() {
            self.end(to, why);
        }
    }

    /// Whether the bytes that connections hold are within the bound. Asked for only when one of them holds many.
    fn is_bounded(&self) -> bool {
        self.connections
            .values()
            .map(Connection::held)
            .sum::<usize>()
            <= HELD_MAX
    }

    fn end(&mut self, id: Id, why: &'static str) {
        tracing::debug!(connection = id, why, "a store ends a connection");
        self.table.forget(id);
        self.connections.remove(&id);
    }
}

impl Connection {
    fn receive(&mut self) -> Result<(), &'static str> {
        let mut bytes = [0; READ];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err("it was closed"),
            Ok(_) if self.unread.len() > QUERY_MAX => Err("a query that is too long"),
            Ok(count) => {
                self.unread.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Err(error) if is_later(&error) => Ok(()),
            Err(_) => Err("it cannot be read"),
        }
    }

    fn send(&mut self) -> Result<(), &'static str> {
        let outcome = loop {
            if self.owes() == 0 {
                break Ok(());
            }
            match self.stream.write(&self.unsent[self.sent..]) {
                Ok(0) => break Err("it takes nothing"),
                Ok(count) => self.sent += count,
                Err(error) if is_later(&error) => break Ok(()),
                Err(_) => break Err("it cannot be written"),
            }
        };
        // What is left moves down once for as many bytes as were taken.
        if self.sent >= self.owes() {
            self.unsent.drain(..self.sent);
            self.sent = 0;
        }
        outcome
    }

    /// Bytes of answers that the other side has not taken.
    const fn owes(&self) -> usize {
        self.unsent.len() - self.sent
    }

    const fn held(&self) -> usize {
        self.unread.len() + self.unsent.len()
    }
}

fn is_later(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
