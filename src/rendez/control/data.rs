//! Data connections: how the dialler opens them and how either side answers for its tickets.
//!
//! Knows sockets, TLS and preambles; not what awaits them. What opens them blocks, and is done as an errand.
//!
//! ```text
//!   in the clear:   D ticket ─────────────────▶       ◀──────────── verdict
//!   under TLS:      E, then TLS 1.3 with both certificates: ◀══════════════▶
//!                   in it: D ticket, signed for this very TLS connection ══▶      ◀════════════ verdict
//! ```

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustls::ClientConnection;

use crate::fabric::Secured;
use crate::ground::limits::DATA_DIALS_WINDOW;
use crate::ground::{Status, catalogue};

use super::greeting::Expected;
use super::preamble::{self, ConnectionKind, OPENING, TICKET, Ticket, Verdict};
use super::refusal::Refusal;
use super::secret::Session;
use super::tcp;
use super::tls::{self, Tls};

/// A connection that carries data.
#[derive(Debug)]
pub(crate) struct Carrier {
    pub(crate) fd: OwnedFd,
    /// Its TLS, if it has any.
    pub(crate) secured: Option<Secured>,
}

/// The data connections to one peer, to be opened.
#[derive(Debug)]
pub(crate) struct DataDial {
    pub(crate) to: SocketAddr,
    pub(crate) expected: Expected,
    /// What signs the tickets, if anything does.
    pub(crate) session: Option<Session>,
    /// What they are to be under, if anything.
    pub(crate) tls: Option<Tls>,
    pub(crate) deadline: Instant,
    /// How long each may be silent until the system gives it up.
    pub(crate) lost_after: Duration,
}

/// Why there are no data connections.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DataError {
    /// The system, or the network.
    #[error("data connection {channel} to {to}: {error}")]
    System {
        channel: usize,
        to: SocketAddr,
        error: io::Error,
    },
    /// The peer's no.
    #[error("data connection {channel} to {to}: {}", refusal(*verdict).1)]
    Refused {
        channel: usize,
        to: SocketAddr,
        verdict: Verdict,
    },
    /// TLS came to nothing.
    #[error("data connection {channel} to {to}: {}", refusal.status.message())]
    Tls {
        channel: usize,
        to: SocketAddr,
        refusal: Refusal,
    },
}

/// A dialled connection that has begun to say what it is.
struct Asked {
    socket: TcpStream,
    tls: Option<ClientConnection>,
}

/// A socket whose reads and writes are over by a deadline.
struct Bounded<'a> {
    socket: &'a TcpStream,
    deadline: Instant,
}

/// A socket of which TLS reads whole records and not a byte behind them: what the peer sends behind its answer may be
/// the kernel's to open.
struct ByRecord<'a> {
    bounded: Bounded<'a>,
    /// The head of the record that is being read: its type, its version, and the length of the rest.
    head: [u8; 5],
    /// How much of the head was read.
    of_head: usize,
    /// How much of the record is left behind its head.
    left: usize,
}

/// What data connection `channel` of `expected` begins with, signed by `session`, if there is one, for the connection
/// that `binding` belongs to.
fn preamble_of(
    expected: &Expected,
    channel: u32,
    session: Option<&Session>,
    binding: &[u8],
) -> [u8; TICKET] {
    let ticket = Ticket {
        incarnation: expected.incarnation,
        channel,
        id: expected.id,
        expires_ms: expected.expires_ms,
    };
    let mac = session.map_or([0; 32], |session| {
        session.sign_ticket(&ticket.signed(), binding)
    });
    ticket.emit(&mac)
}

/// Answers a data connection; false if that was not possible. Never blocks: nothing was written to it before.
pub(crate) fn answer(mut socket: &TcpStream, verdict: Verdict) -> bool {
    matches!(socket.write(&preamble::answer(verdict)), Ok(OPENING))
}

/// What a no to a data connection is called, and why it was given.
pub(crate) const fn refusal(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::ExpiredTicket => (catalogue::TICKET_EXPIRED, "its ticket had expired"),
        Verdict::ReusedTicket => (catalogue::TICKET_REUSED, "its ticket had been used"),
        Verdict::WantsTls => (
            catalogue::TLS_REFUSED,
            "it came unencrypted, but TLS is set",
        ),
        Verdict::NoTls => (catalogue::TLS_REFUSED, "it came under TLS, and none is set"),
        Verdict::UnknownTicket => (
            catalogue::TICKET_UNKNOWN,
            "its ticket is not known, or it was not signed by its task",
        ),
        Verdict::OtherUser => (
            catalogue::PEER_OTHER_USER,
            "it comes from another user of this machine, and there is neither a cluster secret nor TLS",
        ),
        _ => (
            catalogue::PEER_PROTOCOL,
            "the answer was not that of a data connection",
        ),
    }
}

impl DataDial {
    /// Opens all of them, some at a time, and gives them back by channel, ready for data.
    pub(crate) fn run(self) -> Result<Vec<Carrier>, DataError> {
        let channels: Vec<u32> = (0..self.expected.channels).collect();
        let mut opened = Vec::with_capacity(channels.len());
        for window in channels.chunks(DATA_DIALS_WINDOW) {
            let mut asked = Vec::with_capacity(window.len());
            for &channel in window {
                let begun = self.ask(channel);
                asked.push(begun.map_err(|error| self.system(channel as usize, error))?);
            }
            for asked in asked {
                opened.push(self.finish(opened.len(), asked)?);
            }
        }
        Ok(opened)
    }

    /// Connects, and says what goes without an answer.
    fn ask(&self, channel: u32) -> io::Result<Asked> {
        let mut socket = tcp::connect_to(self.to, self.left())?;
        tcp::tune(&socket, self.lost_after)?;
        let Some(tls) = &self.tls else {
            let preamble = preamble_of(&self.expected, channel, self.session.as_ref(), &[]);
            socket.write_all(&preamble)?;
            return Ok(Asked { socket, tls: None });
        };
        let mut connection = tls.dial_data().map_err(io::Error::other)?;
        socket.write_all(&preamble::opening(ConnectionKind::SealedData))?;
        while connection.wants_write() {
            connection.write_tls(&mut self.bounded(&socket))?;
        }
        Ok(Asked {
            socket,
            tls: Some(connection),
        })
    }

    /// Hears the answer, with TLS and the ticket before it if so it is to be.
    fn finish(&self, channel: usize, asked: Asked) -> Result<Carrier, DataError> {
        let Asked { socket, tls } = asked;
        let (verdict, tls) = match tls {
            None => (self.hear(&socket), None),
            Some(connection) => {
                let connection = self.agree(channel, &socket, connection)?;
                (connection.0, Some(connection.1))
            }
        };
        let verdict = verdict.map_err(|error| self.system(channel, error))?;
        if verdict != Verdict::Welcome {
            return Err(DataError::Refused {
                channel,
                to: self.to,
                verdict,
            });
        }
        let ready = socket
            .set_read_timeout(None)
            .and_then(|()| socket.set_write_timeout(None))
            .and_then(|()| socket.set_nonblocking(true));
        ready.map_err(|error| self.system(channel, error))?;
        let secured = match (tls, &self.tls) {
            (Some(session), Some(tls)) => Some(
                tls.settle(session.into(), &socket)
                    .map_err(|error| self.system(channel, error))?,
            ),
            _ => None,
        };
        Ok(Carrier {
            fd: OwnedFd::from(socket),
            secured,
        })
    }

    /// Shakes hands, shows the ticket, and hears the answer.
    #[allow(clippy::type_complexity)] // What was heard, and in what.
    fn agree(
        &self,
        channel: usize,
        socket: &TcpStream,
        mut connection: ClientConnection,
    ) -> Result<(io::Result<Verdict>, ClientConnection), DataError> {
        let mut bounded = ByRecord::of(self.bounded(socket));
        let failed = |refusal| DataError::Tls {
            channel,
            to: self.to,
            refusal,
        };
        while connection.is_handshaking() {
            connection
                .complete_io(&mut bounded)
                .map_err(|error| failed(tls::refused(&error)))?;
        }
        let binding = tls::data_binding(&connection).map_err(failed)?;
        let preamble = preamble_of(
            &self.expected,
            channel as u32,
            self.session.as_ref(),
            &binding,
        );
        let mut stream = rustls::Stream::new(&mut connection, &mut bounded);
        let said = stream.write_all(&preamble).and_then(|()| stream.flush());
        let mut answer = [0; OPENING];
        let heard = said.and_then(|()| stream.read_exact(&mut answer));
        let verdict = match heard {
            Ok(()) => read_answer(answer),
            // The peer's judgement of our certificate is the first that is read after our own side of TLS is done.
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(failed(tls::refused(&error)));
            }
            Err(error) => Err(error),
        };
        Ok((verdict, connection))
    }

    /// Reads the answer, and not a byte of the data that may follow it.
    fn hear(&self, socket: &TcpStream) -> io::Result<Verdict> {
        let mut answer = [0; OPENING];
        self.bounded(socket).read_exact(&mut answer)?;
        read_answer(answer)
    }

    const fn bounded<'a>(&self, socket: &'a TcpStream) -> Bounded<'a> {
        Bounded {
            socket,
            deadline: self.deadline,
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn system(&self, channel: usize, error: io::Error) -> DataError {
        DataError::System {
            channel,
            to: self.to,
            error,
        }
    }
}

fn read_answer(answer: [u8; OPENING]) -> io::Result<Verdict> {
    preamble::read_answer(answer).ok_or_else(|| io::Error::other("not answered by rendez"))
}

impl Bounded<'_> {
    /// What is left, for the next read or write; an error if it is nothing: a peer that never stops has one follow
    /// the other.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Bounded<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.left()?)?;
        self.socket.read(bytes)
    }
}

impl<'a> ByRecord<'a> {
    const fn of(bounded: Bounded<'a>) -> Self {
        Self {
            bounded,
            head: [0; 5],
            of_head: 0,
            left: 0,
        }
    }
}

impl Read for ByRecord<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.left > 0 {
            let most = self.left.min(bytes.len());
            let count = self.bounded.read(&mut bytes[..most])?;
            self.left -= count;
            return Ok(count);
        }
        let rest = &mut self.head[self.of_head..];
        let most = rest.len().min(bytes.len());
        let count = self.bounded.read(&mut rest[..most])?;
        bytes[..count].copy_from_slice(&rest[..count]);
        self.of_head += count;
        if self.of_head == self.head.len() {
            self.of_head = 0;
            self.left = usize::from(u16::from_be_bytes([self.head[3], self.head[4]]));
        }
        Ok(count)
    }
}

impl Write for ByRecord<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bounded.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.left()?)?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl DataError {
    /// As an end of a dial: it may do better the next time.
    pub(crate) fn refusal(&self) -> Refusal {
        let reason = match self {
            Self::Tls { refusal, .. } => {
                let status = Status::new(
                    refusal.status.code(),
                    refusal.status.reason(),
                    self.to_string(),
                );
                return Refusal {
                    status,
                    retry: refusal.retry,
                };
            }
            Self::System { .. } => catalogue::PEER_LOST,
            Self::Refused { verdict, .. } => refusal(*verdict).0,
        };
        Refusal::later(reason, self.to_string())
    }
}

#[cfg(test)]
mod tests;
