//! TLS records kept by this process: bytes of frames and chunks in, records out, and back.
//!
//! Knows a rustls connection whose handshake is done, and the descriptor below it; not what the bytes mean. Nothing
//! here waits, and nothing grows: at most [`TLS_SEND_BYTES`] are sealed and not gone, at most [`TLS_RECEIVE_BYTES`]
//! received and not opened. rustls takes the memory of each record from the heap and gives it back: the one
//! thing on the path of a value that does.
//!
//! Besides data the other side may send a new key, which is taken. A warning, an alert or a record that was changed on
//! its way ends the connection. What was received before is authentic and is given. So much as is received at once
//! holds whole records: a peer of ours never sends all of it without data, and one that does would keep a shard at it.

use std::io::{self, IoSlice, Read, Write};

use rustix::io::Errno;
use rustls::Connection;

use super::socket::{Stop, Wire, stop};
use crate::fabric::DownReason;
use crate::ground::limits::{TLS_RECEIVE_BYTES, TLS_SEND_BYTES};

/// One connection's records.
pub(super) struct TlsRecords {
    connection: Connection,
    /// Received, and not given to rustls yet.
    incoming: Box<[u8]>,
    start: usize,
    end: usize,
    has_unread: bool,
    /// rustls takes no more: what it opened before is still to be given.
    is_over: bool,
}

/// The descriptor, as rustls writes to it.
struct Out<'a>(&'a mut Wire);

impl TlsRecords {
    /// Of a connection whose handshake is done.
    pub(super) fn new(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(TLS_SEND_BYTES));
        Self {
            connection,
            // Untouched zero pages take no memory yet.
            incoming: vec![0; TLS_RECEIVE_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            has_unread: false,
            is_over: false,
        }
    }

    /// Sealed bytes wait for room.
    pub(super) fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    pub(super) const fn has_unread(&self) -> bool {
        self.has_unread
    }

    /// Seals and sends what goes at once; how many bytes were sealed, all of which go sooner or later.
    pub(super) fn send(&mut self, wire: &mut Wire, parts: [&[u8]; 3]) -> Result<usize, Stop> {
        let whole: usize = parts.iter().map(|part| part.len()).sum();
        let mut moved = self.move_on(wire)?;
        let mut sealed = 0;
        while sealed < whole && !self.has_unsent() {
            let slices = rest(parts, sealed).map(IoSlice::new);
            let some = match slices.iter().filter(|slice| !slice.is_empty()).count() {
                1 => self.seal(slices.iter().find(|slice| !slice.is_empty())),
                _ => self.connection.writer().write_vectored(&slices),
            };
            match some {
                Ok(some @ 1..) => sealed += some,
                // It was over before: rustls has judged what the peer said.
                _ => return Err(Stop::Over(DownReason::Reset)),
            }
            moved |= self.move_on(wire)?;
        }
        match sealed > 0 || moved || !self.has_unsent() {
            true => Ok(sealed),
            false => Err(Stop::NotNow),
        }
    }

    fn seal(&mut self, slice: Option<&IoSlice<'_>>) -> io::Result<usize> {
        slice.map_or(Ok(0), |slice| self.connection.writer().write(slice))
    }

    /// Sends what is sealed, as far as there is room; true if any of it went.
    fn move_on(&mut self, wire: &mut Wire) -> Result<bool, Stop> {
        let mut moved = false;
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Out(wire)) {
                Ok(count) => moved |= count > 0,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::CONNRESET);
                    return Err(stop(errno));
                }
            }
        }
        Ok(moved)
    }

    /// Receives and opens what is there; never zero bytes.
    pub(super) fn receive(&mut self, wire: &mut Wire, into: [&mut [u8]; 2]) -> Result<usize, Stop> {
        let [first, second] = into;
        let asked = first.len() + second.len();
        let mut got = 0;
        // Received since data came last.
        let mut barren = 0;
        let mut is_dry = false;
        self.has_unread = true;
        loop {
            while got < asked {
                let room = match got < first.len() {
                    true => &mut first[got..],
                    false => &mut second[got - first.len()..],
                };
                match self.connection.reader().read(room) {
                    Ok(count @ 1..) => {
                        got += count;
                        barren = 0;
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The peer has ended TLS, and said no BYE; or rustls was told of an end.
                    _ => return over(got),
                }
            }
            if got == asked {
                return Ok(got);
            }
            if self.is_over {
                return over(got);
            }
            if self.start < self.end {
                self.is_over = !self.open();
                continue;
            }
            if is_dry && got > 0 {
                self.has_unread = false;
                return Ok(got);
            }
            if barren >= TLS_RECEIVE_BYTES {
                return match got {
                    0 => Err(Stop::Over(DownReason::Corrupt)),
                    got => Ok(got),
                };
            }
            match wire.receive([&mut self.incoming, &mut []]) {
                Ok(count) => {
                    (self.start, self.end) = (0, count);
                    barren += count;
                    is_dry = count < self.incoming.len();
                }
                Err(stop) => {
                    // Whatever it was, the system says it again.
                    self.has_unread = false;
                    return if got > 0 { Ok(got) } else { Err(stop) };
                }
            }
        }
    }

    /// Gives rustls some of what was received; false if it takes no more, or refuses it.
    fn open(&mut self) -> bool {
        let mut rest = &self.incoming[self.start..self.end];
        let Ok(count @ 1..) = self.connection.read_tls(&mut rest) else {
            return false;
        };
        self.start += count;
        self.connection.process_new_packets().is_ok()
    }

    /// Says that nothing more comes, if there is room to say it.
    pub(super) fn end(&mut self, wire: &mut Wire) {
        self.connection.send_close_notify();
        let _ = self.move_on(wire);
    }
}

shown! { TlsRecords {} }

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_cut(slices).map_err(|stop| match stop {
            Stop::NotNow => io::ErrorKind::WouldBlock.into(),
            Stop::Over(DownReason::TimedOut) => Errno::TIMEDOUT.into(),
            Stop::Over(_) => Errno::CONNRESET.into(),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The end, told when all that came before it was given.
const fn over(got: usize) -> Result<usize, Stop> {
    match got {
        0 => Err(Stop::Over(DownReason::Reset)),
        got => Ok(got),
    }
}

/// What is left of `parts` behind their first `skip` bytes.
fn rest(parts: [&[u8]; 3], mut skip: usize) -> [&[u8]; 3] {
    parts.map(|part| {
        let of_part = skip.min(part.len());
        skip -= of_part;
        &part[of_part..]
    })
}
