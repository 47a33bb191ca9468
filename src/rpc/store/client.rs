//! A store's client: one connection, one question at a time.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use rendez::ground::catalogue;
use rendez::mail::forks;

use super::query::{NOT_READY, Query, READY, VALUE_MAX};
use crate::error::Error;

/// How long after a refused connection another is tried, at first and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];
/// How long a store may take to answer what it can answer at once, unless less was said.
const ANSWER: Duration = Duration::from_secs(60);

/// A connection to a store: one of PyTorch's, or a [`Server`](super::Server).
///
/// A key named `k` here is `k` to PyTorch's clients, too.
///
/// ```
/// use std::time::Duration;
///
/// use rendez_rpc::store::{Client, Server};
///
/// # fn main() -> Result<(), rendez_rpc::Error> {
/// let server = Server::start("127.0.0.1:0")?;
/// let mut store = Client::connect(&server.address().to_string(), Duration::from_secs(5))?;
/// store.set("greeting", b"hello")?;
/// assert_eq!(store.get("greeting", Duration::from_secs(5))?, b"hello");
/// assert_eq!((store.add("count", 2)?, store.add("count", 3)?), (2, 5));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Client {
    address: String,
    stream: TcpStream,
    /// How long the store may take to answer what it can answer at once.
    answer: Duration,
    /// An answer was not read to its end: nothing that comes means anything.
    is_broken: bool,
}

impl Client {
    /// Connects to the store at `address`, as `"host:port"`, and tries for so long: it may not be there yet.
    ///
    /// # Errors
    /// `RPC_STORE`: why it cannot be reached, or what listens there is no store.
    pub fn connect(address: &str, patience: Duration) -> Result<Self, Error> {
        Self::connect_within(address, patience, ANSWER)
    }

    /// True if nothing listens there.
    pub(crate) fn is_refused(address: &str) -> bool {
        let until = Instant::now().checked_add(ANSWER);
        dial(address, until).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    }

    /// The same, to a store that may take so long for an answer.
    pub(crate) fn connect_within(
        address: &str,
        patience: Duration,
        answer: Duration,
    ) -> Result<Self, Error> {
        let until = Instant::now().checked_add(patience);
        let mut pause = AGAIN[0];
        loop {
            match dial(address, until) {
                Ok(stream) => return Self::greet(address, stream, answer),
                Err(error) if until.is_some_and(|until| Instant::now() + pause >= until) => {
                    let message = format!(
                        "the store {address} cannot be reached within {patience:?}: {error}"
                    );
                    return Err(Error::of(catalogue::RPC_STORE, message));
                }
                Err(_) => std::thread::sleep(pause),
            }
            pause = (2 * pause).min(AGAIN[1]);
        }
    }

    fn greet(address: &str, stream: TcpStream, answer: Duration) -> Result<Self, Error> {
        let mut client = Self {
            address: address.to_owned(),
            stream,
            answer,
            is_broken: false,
        };
        let nonce = std::process::id();
        let echo = client.with("greeting", |client| {
            client.stream.set_nodelay(true)?;
            let mut bytes = Vec::new();
            Query::Validate.write(&mut bytes);
            Query::Ping(nonce).write(&mut bytes);
            client.stream.write_all(&bytes)?;
            client.array()
        })?;
        match u32::from_le_bytes(echo) == nonce {
            true => Ok(client),
            false => Err(client.fault("what listens there is no TCPStore")),
        }
    }

    /// The key has that value now.
    ///
    /// # Errors
    /// `RPC_STORE`: the connection is lost, or the store does not answer. So of all others.
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        let key = wire(key);
        self.tell("set", &Query::Set(&key, value))
    }

    /// The key's value. Waits so long until there is one.
    ///
    /// # Errors
    /// As of [`Client::set`], and `RPC_STORE` when the time is over.
    pub fn get(&mut self, key: &str, patience: Duration) -> Result<Vec<u8>, Error> {
        if !self.wait(&[key], patience)? {
            return Err(self.fault(format!("after {patience:?} there is no key '{key}'")));
        }
        let key = wire(key);
        self.ask("get", &Query::Get(&key), Self::value)
    }

    /// The key's value, if it has one.
    ///
    /// # Errors
    /// As of [`Client::set`].
    pub fn find(&mut self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        match self.check(&[key])? {
            true => {
                let key = wire(key);
                self.ask("get", &Query::Get(&key), Self::value).map(Some)
            }
            false => Ok(None),
        }
    }

    /// Adds to the key's value, a decimal number, zero if it is absent. Returns the sum.
    ///
    /// # Errors
    /// As of [`Client::set`].
    pub fn add(&mut self, key: &str, by: i64) -> Result<i64, Error> {
        let key = wire(key);
        let sum = self.ask("add", &Query::Add(&key, by), Self::array)?;
        Ok(i64::from_le_bytes(sum))
    }

    /// Gives the key the value `desired` if it has the value `expected`; with an empty `expected` also if it is absent.
    /// Returns the value that it has then; for an absent key with another `expected` returns that.
    ///
    /// # Errors
    /// As of [`Client::set`].
    pub fn compare_set(
        &mut self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
    ) -> Result<Vec<u8>, Error> {
        let key = wire(key);
        let query = Query::CompareSet(&key, expected, desired);
        self.ask("compareSet", &query, Self::value)
    }

    /// Appends to the key's value, in one piece whatever others do.
    ///
    /// # Errors
    /// As of [`Client::set`].
    pub fn append(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        let key = wire(key);
        self.tell("append", &Query::Append(&key, value))
    }

    /// Whether all these keys are there.
    ///
    /// # Errors
    /// As of [`Client::set`].
    pub fn check(&mut self, keys: &[&str]) -> Result<bool, Error> {
        let keys: Vec<_> = keys.iter().map(|key| wire(key)).collect();
        let query = Query::Check(keys.iter().map(|key| &**key).collect());
        match self.ask("check", &query, Self::array)? {
            [READY] => Ok(true),
            [NOT_READY] => Ok(false),
            _ => Err(self.confused()),
        }
    }

    /// Waits so long until all these keys are there. Returns whether they are.
    ///
    /// # Errors
    /// As of [`Client::set`].
    pub fn wait(&mut self, keys: &[&str], patience: Duration) -> Result<bool, Error> {
        let keys: Vec<_> = keys.iter().map(|key| wire(key)).collect();
        let query = Query::Wait(keys.iter().map(|key| &**key).collect());
        self.tell("wait", &query)?;
        let until = Instant::now().checked_add(patience);
        let came = self.with("wait", |client| client.byte_until(until))?;
        match came {
            Some(READY) => return Ok(true),
            Some(_) => return Err(self.confused()),
            None => {}
        }
        // The answer may be on its way; then another follows.
        match self.ask("cancelWait", &Query::CancelWait, Self::array)? {
            [NOT_READY] => Ok(false),
            [READY] => match self.with("cancelWait", Self::array)? {
                [NOT_READY] => Ok(true),
                _ => Err(self.confused()),
            },
            _ => Err(self.confused()),
        }
    }

    /// Removes the key. Returns whether it was there.
    ///
    /// # Errors
    /// As of [`Client::set`].
    pub fn delete(&mut self, key: &str) -> Result<bool, Error> {
        let key = wire(key);
        let gone = self.ask("deleteKey", &Query::Delete(&key), Self::array)?;
        Ok(i64::from_le_bytes(gone) == 1)
    }

    /// How many keys there are.
    ///
    /// # Errors
    /// As of [`Client::set`].
    pub fn count(&mut self) -> Result<i64, Error> {
        self.ask("getNumKeys", &Query::Count, Self::array)
            .map(i64::from_le_bytes)
    }

    /// The values of these keys, all of which are there.
    ///
    /// # Errors
    /// As of [`Client::set`]; the store ends the connection if one of them is absent.
    pub fn multi_get(&mut self, keys: &[&str]) -> Result<Vec<Vec<u8>>, Error> {
        let wires: Vec<_> = keys.iter().map(|key| wire(key)).collect();
        let query = Query::MultiGet(wires.iter().map(|key| &**key).collect());
        self.ask("multiGet", &query, |client| {
            keys.iter().map(|_| client.value()).collect()
        })
    }

    /// These keys have these values now.
    ///
    /// # Errors
    /// As of [`Client::set`].
    pub fn multi_set(&mut self, pairs: &[(&str, &[u8])]) -> Result<(), Error> {
        let wires: Vec<_> = pairs
            .iter()
            .map(|&(key, value)| (wire(key), value))
            .collect();
        let query = Query::MultiSet(wires.iter().map(|(key, value)| (&**key, *value)).collect());
        self.tell("multiSet", &query)
    }

    /// Its connection is lost: another client has to be made.
    #[must_use]
    pub const fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// It may take so long for an answer from now on.
    pub(crate) const fn set_answer(&mut self, answer: Duration) {
        self.answer = answer;
    }

    /// What ends a wait of this client in another thread: the connection is lost then.
    pub(crate) fn breaker(&self) -> Option<Breaker> {
        self.stream.try_clone().ok().map(Breaker)
    }

    fn tell(&mut self, what: &'static str, query: &Query<'_>) -> Result<(), Error> {
        let mut bytes = Vec::new();
        query.write(&mut bytes);
        self.with(what, |client| client.stream.write_all(&bytes))
    }

    fn ask<R>(
        &mut self,
        what: &'static str,
        query: &Query<'_>,
        answer: impl FnOnce(&mut Self) -> std::io::Result<R>,
    ) -> Result<R, Error> {
        self.tell(what, query)?;
        self.with(what, answer)
    }

    fn with<R>(
        &mut self,
        what: &'static str,
        work: impl FnOnce(&mut Self) -> std::io::Result<R>,
    ) -> Result<R, Error> {
        if self.is_broken {
            return Err(self.fault(format!("{what}: its connection is lost")));
        }
        let answer = self.answer;
        let limited = self.stream.set_read_timeout(Some(answer));
        let limited = limited.and_then(|()| self.stream.set_write_timeout(Some(answer)));
        limited.and_then(|()| work(self)).map_err(|error| {
            self.is_broken = true;
            match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    self.fault(format!("{what}: it did not answer in {answer:?}"))
                }
                ErrorKind::UnexpectedEof => self.fault(format!("{what}: it ended the connection")),
                _ => self.fault(format!("{what}: {error}")),
            }
        })
    }

    fn fault(&self, what: impl std::fmt::Display) -> Error {
        Error::of(
            catalogue::RPC_STORE,
            format!("the store {}: {what}", self.address),
        )
    }

    fn confused(&mut self) -> Error {
        self.is_broken = true;
        self.fault("an answer that the question does not have")
    }

    fn array<const N: usize>(&mut self) -> std::io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn value(&mut self) -> std::io::Result<Vec<u8>> {
        let size = u64::from_le_bytes(self.array()?);
        let size = usize::try_from(size).ok().filter(|&size| size <= VALUE_MAX);
        let size = size.ok_or_else(|| {
            std::io::Error::new(ErrorKind::InvalidData, "a value of more than 8 MiB")
        })?;
        let mut value = Vec::new();
        // Room grows with what comes, not with what is announced.
        (&self.stream).take(size as u64).read_to_end(&mut value)?;
        match value.len() == size {
            true => Ok(value),
            false => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    /// The next byte, if it comes by then; `None` waits for ever.
    fn byte_until(&mut self, until: Option<Instant>) -> std::io::Result<Option<u8>> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            self.stream.set_read_timeout(left)?;
            match self.array() {
                Ok([byte]) => return Ok(Some(byte)),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// See [`Client::breaker`].
#[derive(Debug)]
pub(crate) struct Breaker(TcpStream);

impl Drop for Breaker {
    fn drop(&mut self) {
        // In a child of `fork` the connection is the parent's. Else it may be closed already.
        if !forks::is_child() {
            let _ = self.0.shutdown(Shutdown::Both);
        }
    }
}

/// A key as it travels: PyTorch's clients put this before each.
fn wire(key: &str) -> Vec<u8> {
    [b"/", key.as_bytes()].concat()
}

fn dial(address: &str, until: Option<Instant>) -> std::io::Result<TcpStream> {
    let mut error = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        let left = until.map_or(ANSWER, |until| {
            until.saturating_duration_since(Instant::now())
        });
        match TcpStream::connect_timeout(&address, left.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(failed) => error = failed,
        }
    }
    Err(error)
}
