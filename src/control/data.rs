//! Data connections: how the dialler opens them and how either side answers for its tickets.
//!
//! Knows sockets and preambles; not who awaits them. What opens them blocks, and is done as an errand.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::ground::catalogue;
use crate::ground::limits::DATA_DIALS_WINDOW;

use super::greet_tcp::Expected;
use super::hello::Refusal;
use super::preamble::{self, OPENING, TICKET, Ticket, Verdict};
use super::secret::Session;
use super::tcp;

/// The data connections to one peer, to be opened.
#[derive(Debug)]
pub(crate) struct DataDial {
    pub(crate) to: SocketAddr,
    /// What each begins with, by channel.
    pub(crate) preambles: Vec<[u8; TICKET]>,
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
}

/// What each data connection to `expected` begins with, signed by `session` if there is one.
pub(crate) fn preambles(expected: Expected, session: Option<&Session>) -> Vec<[u8; TICKET]> {
    let Expected {
        incarnation,
        channels,
        id,
        expires_ms,
    } = expected;
    (0..channels)
        .map(|channel| {
            let ticket = Ticket {
                incarnation,
                channel,
                id,
                expires_ms,
            };
            let mac = session.map_or([0; 32], |session| session.sign_ticket(&ticket.signed()));
            ticket.emit(&mac)
        })
        .collect()
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
        Verdict::UnknownTicket => (
            catalogue::TICKET_UNKNOWN,
            "its ticket is not known, or somebody else signed it",
        ),
        Verdict::OtherUser => (
            catalogue::PEER_OTHER_USER,
            "it is of another user of this machine, and there is neither a cluster secret nor TLS",
        ),
        _ => (
            catalogue::PEER_PROTOCOL,
            "it was answered as no data connection is",
        ),
    }
}

impl DataDial {
    /// Opens all of them, some at a time, and gives them back by channel, ready for data.
    pub(crate) fn run(self) -> Result<Vec<OwnedFd>, DataError> {
        let mut opened = Vec::with_capacity(self.preambles.len());
        for window in self.preambles.chunks(DATA_DIALS_WINDOW) {
            let mut asked = Vec::with_capacity(window.len());
            for preamble in window {
                let channel = opened.len() + asked.len();
                asked.push(
                    self.ask(preamble)
                        .map_err(|error| self.system(channel, error))?,
                );
            }
            for socket in asked {
                let channel = opened.len();
                let verdict = self
                    .hear(&socket)
                    .map_err(|error| self.system(channel, error))?;
                if verdict != Verdict::Welcome {
                    return Err(DataError::Refused {
                        channel,
                        to: self.to,
                        verdict,
                    });
                }
                opened.push(OwnedFd::from(socket));
            }
        }
        Ok(opened)
    }

    fn ask(&self, preamble: &[u8; TICKET]) -> io::Result<TcpStream> {
        let mut socket = tcp::connect_to(self.to, self.left())?;
        tcp::tune(&socket, self.lost_after)?;
        socket.write_all(preamble)?;
        Ok(socket)
    }

    /// Reads the answer, and not a byte of the data that may follow it.
    fn hear(&self, mut socket: &TcpStream) -> io::Result<Verdict> {
        socket.set_read_timeout(Some(self.left().max(Duration::from_millis(1))))?;
        let mut answer = [0; OPENING];
        socket.read_exact(&mut answer)?;
        socket.set_read_timeout(None)?;
        socket.set_nonblocking(true)?;
        preamble::read_answer(answer).ok_or_else(|| io::Error::other("not answered by rendez"))
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

impl DataError {
    /// As an end of a dial: it may do better the next time.
    pub(crate) fn refusal(&self) -> Refusal {
        let reason = match self {
            Self::System { .. } => catalogue::PEER_LOST,
            Self::Refused { verdict, .. } => refusal(*verdict).0,
        };
        Refusal::later(reason, self.to_string())
    }
}
