//! TCP: a port whose peers are anywhere, over connected sockets. Which of them to look at, and when.
//!
//! Knows descriptors and queue pairs by number; not how a socket came to be connected, nor what frames mean.
//!
//! ```text
//!  poll:  cold     most sockets: one epoll, asked in one look of eight, whatever their number
//!         active   connections with work besides their socket: output, closed landings, going down; more of them to
//!                  read than a budget allowed; cold ones that epoll named, while all hot ones are busy
//!         hot      at most four sockets that brought something lately: each is simply read
//! ```
//!
//! The active and the hot come first in turn, and each of them begins where its budget ended: so greedy peers starve no
//! other.
//!
//! A read that finds nothing costs 0.3 µs, as much as asking epoll about all of them; so few sockets are hot, one that
//! brings nothing for a while is cold again, and a port that receives nothing looks less often: in one poll of eight
//! after some 20 µs, later in one of thirty-two. Shared memory beside it is not slowed down by idle sockets.
//!
//! Sockets are spun upon and not driven by an io_uring ring: reading one in vain costs less than a submission, a ring's
//! round trip of 64 bytes was measured no shorter, and a readiness model knows no receive that is still under way when
//! a landing is closed. `socket::Pipe` is the seam where another driver would go.
//!
//! Epoll is level-triggered and holds every socket always, for reading; for writing only where a send found no room for
//! a while. So a sleeper needs no last look at its sockets: it waits for [`Port::wake_fd`] beside its doorbell, which
//! is readable as long as any of them is.

mod config;
mod connection;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod hot;
mod kernel;
mod reader;
mod records;
mod secured;
mod socket;
mod writer;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};

pub use self::config::{TcpConfig, TcpError};
pub use self::kernel::{Missing as KernelTlsMissing, kernel_tls};
pub use self::secured::{Protection, Secured};

use self::connection::{BYTES_PER_LOOK, Connection};
use self::socket::Socket;
use super::queue_pair::Left;
use super::{
    Arrival, Caps, DownReason, Landing, Port, PostRefusal, QUEUE_PAIRS_MAX, QpId, RefusedWrite,
    Write,
};
use crate::ground::limits::{FRAME_BYTES, STREAM_LINGER_NS};
#[cfg(any(test, feature = "testing"))]
use crate::ground::rng::Rng;
use crate::ground::{Nanos, Region};
use crate::memory::Buffer;
use crate::wire::Frame;

/// Sockets read in every look.
const HOT_MAX: usize = 4;

/// Pieces taken from one socket at a time.
const BURST: usize = 32;

/// Empty looks after which a port looks less often: 20 µs, several round trips on one machine.
const BUSY_LOOKS: u32 = 64;

/// What a port has counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpStats {
    /// Polls.
    pub polls: u64,
    /// Sockets read in them.
    pub reads: u64,
    /// Questions to epoll.
    pub epolls: u64,
    /// Posts refused for want of room.
    pub refused_full: u64,
    /// Times a connection's sends were left to the system, because the peer took nothing.
    pub stalls: u64,
}

/// A shard's end of TCP.
#[derive(Debug)]
pub struct TcpPort {
    config: TcpConfig,
    epoll: OwnedFd,
    places: Vec<Place>,
    /// Places not in use.
    free: Vec<u32>,
    /// Connections that are neither leaving nor down.
    open: usize,
    hot: [Hot; HOT_MAX],
    hot_count: usize,
    /// The hot socket looked at next.
    turn: usize,
    /// Places with work besides their socket.
    active: Vec<u32>,
    /// Places posted to since the last flush.
    due: Vec<u32>,
    /// Connections whose sends are left to the system.
    stalled: usize,
    now: Nanos,
    /// Polls left out since the last look.
    skipped: u32,
    /// Looks since anything was done.
    idle: u32,
    /// Looks since epoll was asked.
    unasked: u32,
    #[cfg(any(test, feature = "testing"))]
    cuts: Option<Rng>,
    stats: TcpStats,
}

/// Room for one connection.
#[derive(Debug, Default)]
struct Place {
    generation: u16,
    line: Option<Line>,
    is_active: bool,
    is_due: bool,
    is_hot: bool,
}

#[derive(Debug)]
struct Line {
    connection: Connection,
    socket: Socket,
    interest: EventFlags,
}

#[derive(Clone, Copy, Debug, Default)]
struct Hot {
    place: u32,
    idle: u32,
}

impl TcpPort {
    /// A port without peers.
    ///
    /// # Errors
    /// [`TcpError::Os`] when the kernel gives no epoll.
    pub fn new(config: TcpConfig) -> Result<Self, TcpError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| TcpError::Os("epoll_create1", errno))?;
        let least = 2 * (FRAME_BYTES + super::BODY_MAX);
        Ok(Self {
            config: TcpConfig {
                send_bytes: config.send_bytes.max(least),
                ..config
            },
            epoll,
            places: Vec::new(),
            free: Vec::new(),
            open: 0,
            hot: [Hot::default(); HOT_MAX],
            hot_count: 0,
            turn: 0,
            active: Vec::new(),
            due: Vec::new(),
            stalled: 0,
            now: Nanos::ZERO,
            skipped: 0,
            idle: 0,
            unasked: 0,
            #[cfg(any(test, feature = "testing"))]
            cuts: None,
            stats: TcpStats::default(),
        })
    }

    /// Makes a queue pair of a connected stream socket, from which no byte of a frame has been read. Of `caps` the port
    /// takes `read_domain` as it is and lowers `body_max` to [`super::BODY_MAX`]. A Unix stream will do, and is what
    /// simulations use. The only call that allocates.
    ///
    /// # Errors
    /// [`TcpError`]; the socket is closed then.
    pub fn attach(&mut self, socket: OwnedFd, caps: Caps) -> Result<QpId, TcpError> {
        self.attach_secured(socket, None, caps)
    }

    /// The same of a socket on which both ends have agreed on a TLS session, from which nothing behind the session's
    /// own bytes has been read.
    ///
    /// # Errors
    /// As [`TcpPort::attach`].
    pub fn attach_secured(
        &mut self,
        socket: OwnedFd,
        secured: Option<Secured>,
        caps: Caps,
    ) -> Result<QpId, TcpError> {
        let socket = Socket::new(socket, secured, &self.config)?;
        #[cfg(any(test, feature = "testing"))]
        let socket = socket.cut_by(self.cuts.as_mut().map(|rng| Rng::new(rng.next_u64())));
        let index = match self.free.last() {
            Some(&place) => place,
            None if self.places.len() < QUEUE_PAIRS_MAX => {
                self.places.push(Place::default());
                self.free.push(self.places.len() as u32 - 1);
                self.places.len() as u32 - 1
            }
            None => return Err(TcpError::Full),
        };
        let id = self.id(index);
        epoll::add(&self.epoll, &socket, data(id), EventFlags::IN)
            .map_err(|errno| TcpError::Os("epoll_ctl(EPOLL_CTL_ADD)", errno))?;
        self.free.pop();
        self.places[index as usize].line = Some(Line {
            connection: Connection::new(caps, self.config.send_bytes, socket.chunk_max()),
            socket,
            interest: EventFlags::IN,
        });
        self.open += 1;
        // Everything that can grow later grows now.
        for list in [&mut self.free, &mut self.active, &mut self.due] {
            list.reserve(self.places.len().saturating_sub(list.len()));
        }
        self.idle = 0;
        self.promote(index);
        Ok(id)
    }

    /// What it counted.
    #[must_use]
    pub const fn stats(&self) -> TcpStats {
        self.stats
    }

    fn id(&self, index: u32) -> QpId {
        QpId(index | u32::from(self.places[index as usize].generation) << 16)
    }

    /// The place and the connection that `qp` names, if it is open.
    #[inline]
    fn find(&mut self, qp: QpId) -> Option<(u32, &mut Connection)> {
        let index = qp.0 & 0xffff;
        let place = self.places.get_mut(index as usize)?;
        if u32::from(place.generation) != qp.0 >> 16 {
            return None;
        }
        let connection = &mut place.line.as_mut()?.connection;
        connection.is_open().then_some((index, connection))
    }

    /// Puts a place on the list of those with work besides their socket.
    fn activate(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        if !std::mem::replace(&mut place.is_active, true) {
            self.active.push(index);
        }
    }

    /// One connection less to receive from; what it holds goes back through `active`.
    fn retire(&mut self, index: u32) {
        self.open -= 1;
        if let Some(at) = self.hot_at(index) {
            self.cool(at);
        }
        self.tell_interest(index);
        self.activate(index);
    }

    fn go_down(&mut self, index: u32, reason: DownReason) {
        if let Some(line) = &mut self.places[index as usize].line {
            line.connection.go_down(reason);
        }
        self.retire(index);
    }

    /// Asks epoll for what the connection waits for.
    fn tell_interest(&mut self, index: u32) {
        let id = self.id(index);
        let Some(line) = &mut self.places[index as usize].line else {
            return;
        };
        let Line {
            connection,
            socket,
            interest,
        } = line;
        let mut wanted = EventFlags::empty();
        if connection.is_open() {
            wanted |= EventFlags::IN;
        }
        if connection.waits_for_room() && connection.has_output() {
            wanted |= EventFlags::OUT;
        }
        if *interest == wanted {
            return;
        }
        // It cannot fail: the socket was added, and no memory is needed.
        let _ = epoll::modify(&self.epoll, &*socket, data(id), wanted);
        match (
            interest.contains(EventFlags::OUT),
            wanted.contains(EventFlags::OUT),
        ) {
            (false, true) => {
                self.stalled += 1;
                self.stats.stalls += 1;
            }
            (true, false) => self.stalled -= 1,
            _ => {}
        }
        *interest = wanted;
    }

    // ───────────────────────────────────────────────── looking ─────────────────────────────────────────────────

    /// True if this poll is to look at sockets.
    #[inline]
    fn is_time(&mut self) -> bool {
        self.skipped += 1;
        let every = match self.idle {
            0..BUSY_LOOKS => 1,
            BUSY_LOOKS..1024 => 8,
            _ => 32,
        };
        self.skipped >= every
    }

    fn look_at_all<S: FnMut(Arrival<'_>)>(&mut self, budget: usize, sink: &mut S) -> usize {
        let mut left = budget;
        let mut done = 0;
        if self.is_epoll_due() {
            self.look_at_cold();
        }
        // Either could use up the budget every time.
        let hot_first = self.stats.polls.is_multiple_of(2);
        if hot_first {
            done += self.look_at_hot(&mut left, sink);
        }
        if !self.active.is_empty() {
            done += self.work(&mut left, sink);
        }
        if !hot_first {
            done += self.look_at_hot(&mut left, sink);
        }
        done
    }

    /// Work besides hot sockets.
    fn work<S: FnMut(Arrival<'_>)>(&mut self, left: &mut usize, sink: &mut S) -> usize {
        let mut done = 0;
        let mut at = 0;
        let had_budget = *left > 0;
        let mut room = BYTES_PER_LOOK;
        for _ in 0..self.active.len() {
            let index = self.active[at];
            let id = self.id(index);
            let now = self.now;
            let Some(line) = &mut self.places[index as usize].line else {
                unreachable!("active places are in use")
            };
            let Line {
                connection, socket, ..
            } = line;
            let (given, moved, state) = connection.work(id, now, (*left, &mut room), socket, sink);
            let (must_look, waits) = (connection.must_look(), connection.waits_for_room());
            *left -= given;
            done += given + usize::from(moved);
            if waits {
                self.tell_interest(index);
            }
            let mut is_busy = state == Left::Something;
            // Without a budget the connection would only forget that it is to be looked at.
            if must_look && *left > 0 {
                done += self.look(index, left, sink);
                is_busy = self.places[index as usize]
                    .line
                    .as_ref()
                    .is_some_and(|line| line.connection.is_busy());
            }
            match state {
                Left::Gone => {
                    self.deactivate(at);
                    self.forget(index);
                }
                _ if is_busy => at += 1,
                _ => self.deactivate(at),
            }
        }
        // The first was served and comes last next time, so that a small budget serves all in turn.
        if had_budget && self.active.len() > 1 {
            self.active.rotate_left(1);
        }
        done
    }

    fn deactivate(&mut self, at: usize) {
        let index = self.active.swap_remove(at);
        self.places[index as usize].is_active = false;
    }

    /// The connection gave back everything: closes it, and frees the place under a new generation.
    fn forget(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        if let Some(mut line) = place.line.take() {
            self.stalled -= usize::from(line.interest.contains(EventFlags::OUT));
            // Out of the set first: a copy of the descriptor elsewhere would keep it there.
            let _ = epoll::delete(&self.epoll, &line.socket);
            line.socket.shut();
        }
        place.generation = place.generation.wrapping_add(1);
        self.free.push(index);
    }
}

impl Port for TcpPort {
    fn caps(&self, qp: QpId) -> Caps {
        let place = self.places.get((qp.0 & 0xffff) as usize);
        let line = place
            .filter(|place| u32::from(place.generation) == qp.0 >> 16)
            .and_then(|place| place.line.as_ref())
            .filter(|line| line.connection.is_open());
        line.map_or(Caps::CLOSED, |line| line.connection.caps())
    }

    #[inline]
    fn post_send(&mut self, qp: QpId, frame: &Frame, body: [&[u8]; 2]) -> Result<(), PostRefusal> {
        let (index, connection) = self.find(qp).ok_or(PostRefusal::Closed)?;
        if let Err(refusal) = connection.post_send(frame, body) {
            self.stats.refused_full += u64::from(refusal == PostRefusal::Full);
            return Err(refusal);
        }
        let place = &mut self.places[index as usize];
        if !std::mem::replace(&mut place.is_due, true) {
            self.due.push(index);
        }
        Ok(())
    }

    fn post_write(&mut self, write: Write) -> Result<(), RefusedWrite> {
        let Some((index, connection)) = self.find(write.qp) else {
            return Err(PostRefusal::Closed.of(write));
        };
        if write.source.is_device() {
            return Err(PostRefusal::Unreadable.of(write));
        }
        if let Err(write) = connection.post_write(write) {
            self.stats.refused_full += 1;
            return Err(PostRefusal::Full.of(write));
        }
        self.activate(index);
        Ok(())
    }

    fn open_landing(
        &mut self,
        qp: QpId,
        landing: Landing,
        buffer: Buffer,
    ) -> Result<Region, Buffer> {
        match self.find(qp) {
            Some((_, connection)) => connection.open_landing(landing, buffer),
            None => Err(buffer),
        }
    }

    fn close_landing(&mut self, qp: QpId, landing: Landing) {
        if let Some((index, connection)) = self.find(qp)
            && connection.close_landing(landing)
        {
            self.activate(index);
        }
    }

    #[inline(never)]
    fn poll<S: FnMut(Arrival<'_>)>(&mut self, now: Nanos, budget: usize, sink: &mut S) -> usize {
        self.stats.polls += 1;
        self.now = now;
        if self.active.is_empty() && self.due.is_empty() && (self.open == 0 || !self.is_time()) {
            return 0;
        }
        self.skipped = 0;
        self.flush();
        let done = self.look_at_all(budget, sink);
        self.idle = if done > 0 {
            0
        } else {
            self.idle.saturating_add(1)
        };
        self.flush();
        done
    }

    fn poll_one<S: FnMut(Arrival<'_>)>(
        &mut self,
        qp: QpId,
        now: Nanos,
        budget: usize,
        sink: &mut S,
    ) -> usize {
        self.now = now;
        match self.find(qp) {
            Some((index, _)) => self.look(index, &mut { budget }, sink),
            None => 0,
        }
    }

    /// Sends what was posted, in one go for each peer.
    fn flush(&mut self) {
        while let Some(index) = self.due.pop() {
            let place = &mut self.places[index as usize];
            place.is_due = false;
            let Some(Line {
                connection, socket, ..
            }) = &mut place.line
            else {
                continue;
            };
            if connection.waits_for_room() || !connection.is_open() {
                continue;
            }
            connection.flush(socket);
            // A peer that was sent to answers soon.
            self.idle = 0;
            if connection.is_busy() || connection.has_output() {
                self.activate(index);
            }
        }
    }

    fn close(&mut self, qp: QpId) {
        let until = self
            .now
            .after(std::time::Duration::from_nanos(STREAM_LINGER_NS));
        if let Some((index, connection)) = self.find(qp) {
            connection.leave(until);
            self.retire(index);
        }
    }

    fn arm(&mut self) -> bool {
        self.flush();
        let mut is_quiet = true;
        for at in 0..self.active.len() {
            let index = self.active[at];
            let Some(Line {
                connection, socket, ..
            }) = &mut self.places[index as usize].line
            else {
                continue;
            };
            if !connection.has_news()
                && !connection.waits_for_room()
                && connection.push(socket, BYTES_PER_LOOK) > 0
            {
                // So the port is polled again, and the others have their turn there.
                return false;
            }
            // Output that the peer has no room for keeps no thread awake: epoll says when there is room.
            let waits = !connection.has_output() || connection.wait_for_room();
            is_quiet &= !connection.has_news() && waits;
            self.tell_interest(index);
        }
        is_quiet
    }

    fn disarm(&mut self) {
        // Something woke us; if it was a socket, it is not known yet which.
        self.idle = 0;
        self.unasked = hot::LOOKS_PER_EPOLL;
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }
}

const fn data(id: QpId) -> EventData {
    EventData::new_u64(id.0 as u64)
}

#[cfg(test)]
mod tests;
