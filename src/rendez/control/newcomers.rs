//! Newcomers: TCP connections that have not said yet what they are for.
//!
//! Knows first bytes and how many may wait; not what follows them. Garbage costs its own connection and nothing else;
//! a slow connection is closed when its time is over; a flood from one address, or from other users of this machine,
//! fills that share.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::ground::limits::{
    NEWCOMERS_MAX, NEWCOMERS_PER_SOURCE_MAX, TCP_GREETINGS_MAX, TCP_GREETINGS_PER_SOURCE_MAX,
};
use crate::users::UserNumbers;

use super::config::greeting_time;
use super::gate::{Gate, Pass};
use super::owner;
use super::preamble::{
    ConnectionKind, OPENING, Opening, TICKET, VERSION, Verdict, answer, may_be_opening,
    read_opening,
};
use super::watch::{Permit, Sight};

/// What other users of this machine count for, whichever of its addresses they dial from: an address that no connection
/// comes from. They lock out our own user's no more than another machine does.
const OTHERS_HERE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A peer that wants to converse over TCP.
#[derive(Debug)]
pub(crate) struct TcpCaller {
    pub(crate) socket: TcpStream,
    pub(crate) from: SocketAddr,
    pub(crate) is_tls: bool,
    /// When its greeting must be over.
    pub(crate) deadline: Instant,
    pub(crate) permit: Permit,
}

/// A peer's connection for data.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) socket: TcpStream,
    pub(crate) from: SocketAddr,
    /// Its ticket, unless it is to come in TLS.
    pub(crate) preamble: Option<[u8; TICKET]>,
    /// When it must have been judged.
    pub(crate) deadline: Instant,
    /// It counts as a newcomer until its ticket is judged.
    _permit: Permit,
}

/// Connections that have not said enough yet.
#[derive(Debug)]
pub(crate) struct Newcomers {
    time: Duration,
    users: UserNumbers,
    waiting: Vec<Newcomer>,
    gate: Arc<Gate>,
    greetings: Arc<Gate>,
    has_warned: bool,
}

#[derive(Debug)]
struct Newcomer {
    socket: TcpStream,
    from: SocketAddr,
    /// Whose share it counts for.
    source: IpAddr,
    bytes: [u8; TICKET],
    filled: usize,
    /// Set once it has said that it wants to converse: it waits for room among the greetings then.
    wants: Option<ConnectionKind>,
    deadline: Instant,
    pass: Pass,
}

/// What has become of a newcomer.
enum Said {
    /// Nothing yet.
    Little,
    /// It wants to converse.
    Conversation(ConnectionKind),
    /// It brought its ticket.
    Ticket,
    /// It brings its ticket in TLS.
    Sealed,
    /// It is none of ours, or gone.
    Nonsense,
}

impl Newcomers {
    /// No newcomer yet; each may wait for `time`.
    pub(crate) fn new(time: Duration) -> Self {
        Self {
            time,
            users: UserNumbers::read(),
            waiting: Vec::new(),
            gate: Gate::new(NEWCOMERS_MAX, NEWCOMERS_PER_SOURCE_MAX),
            greetings: Gate::new(TCP_GREETINGS_MAX, TCP_GREETINGS_PER_SOURCE_MAX),
            has_warned: false,
        }
    }

    /// Takes a connection in, unless those that it shares room with are too many.
    pub(crate) fn enter(&mut self, socket: TcpStream, from: SocketAddr) {
        let source = match owner::is_of_another(&socket, self.users) {
            true => OTHERS_HERE,
            false => from.ip(),
        };
        let pass = self.gate.enter(source);
        if pass.is_none() && !self.has_warned {
            self.has_warned = true;
            tracing::warn!(
                %from,
                "an address, or the other users of this machine together, have more than \
                 {NEWCOMERS_PER_SOURCE_MAX} connections that say nothing: further ones are closed, and this is not \
                 logged again"
            );
        }
        if let Some(pass) = pass
            && socket.set_nonblocking(true).is_ok()
        {
            self.waiting.push(Newcomer {
                socket,
                from,
                source,
                bytes: [0; TICKET],
                filled: 0,
                wants: None,
                deadline: Instant::now()
                    + greeting_time(self.time, self.waiting.len() + self.greetings.count()),
                pass,
            });
        }
    }

    /// Hands over the newcomers of which enough is known, in the order they came. `ready` tells of each in turn; false
    /// if the plane no longer listens.
    pub(crate) fn take(
        &mut self,
        ready: &[bool],
        permit: impl Fn(Pass) -> Permit,
        tell: &impl Fn(Sight) -> bool,
    ) -> bool {
        let now = Instant::now();
        let ready = ready.iter().copied().chain(std::iter::repeat(false));
        for (mut newcomer, is_ready) in std::mem::take(&mut self.waiting).into_iter().zip(ready) {
            let said = match newcomer.wants {
                // It is polled for nothing, so it has hung up.
                Some(_) if is_ready => Said::Nonsense,
                Some(kind) => Said::Conversation(kind),
                None if is_ready => newcomer.read(),
                None => Said::Little,
            };
            let sight = match said {
                Said::Nonsense => continue,
                Said::Ticket => {
                    let preamble = newcomer.bytes;
                    Sight::Data(newcomer.into_data(Some(preamble), &permit))
                }
                Said::Sealed => Sight::Data(newcomer.into_data(None, &permit)),
                Said::Conversation(kind) => match self.greetings.enter(newcomer.source) {
                    Some(pass) => Sight::Called(newcomer.into_called(kind, permit(pass))),
                    None => {
                        newcomer.wants = Some(kind);
                        self.keep(newcomer, now);
                        continue;
                    }
                },
                Said::Little => {
                    self.keep(newcomer, now);
                    continue;
                }
            };
            if !tell(sight) {
                return false;
            }
        }
        true
    }

    /// True if another may enter.
    pub(crate) fn has_room(&self) -> bool {
        self.gate.has_room()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// When the first of them has waited long enough.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|newcomer| newcomer.deadline).min()
    }

    /// What to poll for each.
    pub(crate) fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.waiting.iter().map(|newcomer| {
            // A newcomer that waits for room has said enough for now.
            let flags = match newcomer.wants {
                Some(_) => PollFlags::empty(),
                None => PollFlags::IN,
            };
            PollFd::new(&newcomer.socket, flags)
        })
    }

    fn keep(&mut self, newcomer: Newcomer, now: Instant) {
        // Too late: closed without a word, since no word would be understood.
        if now < newcomer.deadline {
            self.waiting.push(newcomer);
        }
    }
}

impl Newcomer {
    /// Takes in what has come, and not a byte more than its first ones.
    fn read(&mut self) -> Said {
        loop {
            let end = if self.filled < OPENING {
                OPENING
            } else {
                TICKET
            };
            match self.socket.read(&mut self.bytes[self.filled..end]) {
                Ok(0) => return Said::Nonsense,
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return Said::Little;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => return Said::Nonsense,
            }
            if !may_be_opening(&self.bytes[..self.filled]) {
                return Said::Nonsense;
            }
            if self.filled < OPENING {
                continue;
            }
            let opening: [u8; OPENING] = std::array::from_fn(|index| self.bytes[index]);
            match read_opening(opening) {
                Opening::Known(ConnectionKind::Data) if self.filled == TICKET => {
                    return Said::Ticket;
                }
                Opening::Known(ConnectionKind::Data) => {}
                Opening::Known(ConnectionKind::SealedData) => return Said::Sealed,
                Opening::Known(kind) => return Said::Conversation(kind),
                Opening::OtherVersion(_) => {
                    // The one thing a stranger is told: which version it would have to speak.
                    let _ = self.socket.write(&answer(Verdict::OtherVersion(VERSION)));
                    return Said::Nonsense;
                }
                Opening::Stranger => return Said::Nonsense,
            }
        }
    }

    fn into_called(self, kind: ConnectionKind, permit: Permit) -> TcpCaller {
        TcpCaller {
            socket: self.socket,
            from: self.from,
            is_tls: kind == ConnectionKind::Tls,
            deadline: self.deadline,
            permit,
        }
    }

    fn into_data(self, preamble: Option<[u8; TICKET]>, permit: impl Fn(Pass) -> Permit) -> Data {
        Data {
            socket: self.socket,
            from: self.from,
            preamble,
            deadline: self.deadline,
            _permit: permit(self.pass),
        }
    }
}

#[cfg(test)]
mod tests;
