//! A seam for fuzzing and for wire tests: a connection without a socket, on any bytes in any fragmentation.
//!
//! Not part of the interface: it knows no system.

use super::connection::Connection;
use super::socket::{Pipe, Stop};
use super::{TcpConfig, TcpError, TcpPort};
use crate::fabric::queue_pair::Left;
use crate::fabric::{Arrival, BODY_MAX, Caps, DownReason, Landing, QpId, Write};
use crate::ground::Nanos;
use crate::ground::limits::{STREAM_CHUNK_MAX, STREAM_SEND_BYTES};
use crate::ground::rng::Rng;
use crate::memory::Buffer;
use crate::wire::Frame;

impl TcpPort {
    /// A port that cuts every send and receive short, by seed: for simulations.
    ///
    /// # Errors
    /// As [`TcpPort::new`].
    pub fn cutting(config: TcpConfig, seed: u64) -> Result<Self, TcpError> {
        Ok(Self {
            cuts: Some(Rng::new(seed)),
            ..Self::new(config)?
        })
    }
}

/// A connection whose peer is a list of bytes.
#[derive(Debug)]
pub struct Lone(Connection);

/// Gives the bytes in pieces, and takes whatever it is given.
struct Bytes<'a> {
    rest: &'a [u8],
    /// Lengths of the pieces, in turn; of one byte each where there are none.
    cuts: &'a [u8],
    at: usize,
    sent: Vec<u8>,
}

impl Bytes<'_> {
    fn cut(&mut self, len: usize) -> usize {
        let cut = self
            .cuts
            .get(self.at % self.cuts.len().max(1))
            .map_or(1, |&cut| usize::from(cut) * usize::from(cut) + 1);
        self.at += 1;
        cut.min(len)
    }
}

impl Pipe for Bytes<'_> {
    fn send(&mut self, parts: [&[u8]; 3]) -> Result<usize, Stop> {
        let mut left = self.cut(parts.iter().map(|part| part.len()).sum());
        let count = left;
        for part in parts {
            let taken = left.min(part.len());
            self.sent.extend_from_slice(&part[..taken]);
            left -= taken;
        }
        Ok(count)
    }

    fn receive(&mut self, into: [&mut [u8]; 2]) -> Result<usize, Stop> {
        if self.rest.is_empty() {
            return Err(Stop::Over(DownReason::Reset));
        }
        let len = into[0].len() + into[1].len();
        let mut left = self.cut(len.min(self.rest.len()));
        let count = left;
        for part in into {
            let taken = left.min(part.len());
            part[..taken].copy_from_slice(&self.rest[..taken]);
            self.rest = &self.rest[taken..];
            left -= taken;
        }
        Ok(count)
    }
}

const QP: QpId = QpId(0);

impl Lone {
    /// A connection that is up.
    #[must_use]
    pub fn new() -> Self {
        let caps = Caps {
            body_max: BODY_MAX,
            one_sided: false,
            read_domain: false,
        };
        Self(Connection::new(caps, STREAM_SEND_BYTES, STREAM_CHUNK_MAX))
    }

    /// Opens a landing.
    ///
    /// # Errors
    /// The buffer, where [`super::super::Port::open_landing`] gives it back.
    pub fn open_landing(&mut self, landing: Landing, buffer: Buffer) -> Result<(), Buffer> {
        self.0.open_landing(landing, buffer).map(|_| ())
    }

    /// Closes a landing; false if it was not open.
    pub fn close_landing(&mut self, landing: Landing) -> bool {
        self.0.close_landing(landing)
    }

    /// Posts a frame; false if it was refused.
    pub fn post_send(&mut self, frame: &Frame, body: &[u8]) -> bool {
        self.0.post_send(frame, [body, &[]]).is_ok()
    }

    /// Posts a write; false if it was refused.
    pub fn post_write(&mut self, write: Write) -> bool {
        self.0.post_write(write).is_ok()
    }

    /// Closes it: what is sent from here on ends with BYE.
    pub fn close(&mut self) {
        self.0.leave(Nanos::NEVER);
    }

    /// Everything that is to be sent, as bytes, taken in pieces as `cuts` says.
    #[must_use]
    pub fn sent(&mut self, cuts: &[u8]) -> Vec<u8> {
        let mut pipe = bytes(&[], cuts);
        while self.0.push(&mut pipe, usize::MAX) > 0 {}
        pipe.sent
    }

    /// Hears `all` in pieces as `cuts` says, and answers; why it went down in the end, and the bytes it sent meanwhile.
    pub fn hear<S: FnMut(Arrival<'_>)>(
        &mut self,
        all: &[u8],
        cuts: &[u8],
        sink: &mut S,
    ) -> (DownReason, Vec<u8>) {
        let mut pipe = bytes(all, cuts);
        loop {
            let received = self.0.receive(QP, 4, &mut pipe, sink);
            if let Some(reason) = received.down {
                while self.0.push(&mut pipe, usize::MAX) > 0 {}
                return (reason, pipe.sent);
            }
            self.work(&mut pipe, sink);
        }
    }

    fn work<S: FnMut(Arrival<'_>)>(&mut self, pipe: &mut Bytes<'_>, sink: &mut S) -> Left {
        let mut room = usize::MAX;
        self.0.work(QP, Nanos::ZERO, (4, &mut room), pipe, sink).2
    }

    /// Goes down: everything that it holds comes back.
    pub fn go_down<S: FnMut(Arrival<'_>)>(mut self, sink: &mut S) {
        let mut pipe = bytes(&[], &[]);
        self.0.go_down(DownReason::Closed);
        while self.work(&mut pipe, sink) != Left::Gone {}
    }
}

impl Default for Lone {
    fn default() -> Self {
        Self::new()
    }
}

const fn bytes<'a>(rest: &'a [u8], cuts: &'a [u8]) -> Bytes<'a> {
    Bytes {
        rest,
        cuts,
        at: 0,
        sent: Vec::new(),
    }
}
