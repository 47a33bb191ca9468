//! Which sockets a port reads: a few that brought something lately each time, and of all others those epoll names.
//!
//! So a look costs the same whether ten peers are idle or a thousand.

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};

use super::{Arrival, BURST, BUSY_LOOKS, HOT_MAX, Hot, Line, QpId, TcpPort};

/// Looks between two questions to epoll.
pub(super) const LOOKS_PER_EPOLL: u32 = 8;

/// Empty looks after which a hot socket is cold, if another is hot.
const COOL_AFTER: u32 = 256;

/// Events taken from epoll at a time; it gives the others first the next time.
const EVENTS: usize = 32;

const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

impl TcpPort {
    /// True if epoll is to be asked in this look.
    pub(super) fn is_epoll_due(&mut self) -> bool {
        self.unasked = self.unasked.saturating_add(1);
        let has_cold = self.open > self.hot_count || self.stalled > 0;
        // Looks that are rare are each worth the question.
        let is_slow = self.hot_count == 0 || self.idle >= BUSY_LOOKS;
        has_cold && (self.unasked >= LOOKS_PER_EPOLL || is_slow)
    }

    /// Reads one socket, for at most a burst; returns how much was done.
    #[inline]
    pub(super) fn look<S: FnMut(Arrival<'_>)>(
        &mut self,
        index: u32,
        left: &mut usize,
        sink: &mut S,
    ) -> usize {
        self.stats.reads += 1;
        let id = self.id(index);
        let Some(line) = &mut self.places[index as usize].line else {
            return 0;
        };
        let Line {
            connection, socket, ..
        } = line;
        if !connection.is_open() {
            return 0;
        }
        let received = connection.receive(id, BURST.min(*left), socket, sink);
        *left -= received.given;
        if connection.is_busy() {
            self.activate(index);
        }
        if let Some(reason) = received.down {
            self.go_down(index, reason);
        }
        received.given + usize::from(received.any)
    }

    /// Reads the hot sockets in turn, as far as the budget goes: the next look begins where this one ended.
    pub(super) fn look_at_hot<S: FnMut(Arrival<'_>)>(
        &mut self,
        left: &mut usize,
        sink: &mut S,
    ) -> usize {
        let mut done = 0;
        for _ in 0..self.hot_count {
            if self.turn >= self.hot_count {
                self.turn = 0;
            }
            let at = self.turn;
            if at >= self.hot_count || *left == 0 {
                break;
            }
            self.turn += 1;
            let index = self.hot[at].place;
            let did = self.look(index, left, sink);
            done += did;
            // One that went down in this look has left the list already, though its entry still names it.
            let has_left = at >= self.hot_count && !mutant!("ended_sockets_leave_twice");
            if has_left || self.hot[at].place != index {
                continue;
            }
            self.hot[at].idle = if did > 0 {
                0
            } else {
                self.hot[at].idle.saturating_add(1)
            };
            if self.hot[at].idle >= COOL_AFTER && self.hot_count > 1 {
                self.cool(at);
            }
        }
        done
    }

    /// Asks epoll which sockets have something; one that has and is not hot becomes so, or is read as work.
    pub(super) fn look_at_cold(&mut self) {
        self.stats.epolls += 1;
        self.unasked = 0;
        let mut events = [Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; EVENTS];
        // An error is a signal: asked again soon.
        let count = epoll::wait(&self.epoll, &mut events, Some(&AT_ONCE)).unwrap_or(0);
        for event in &events[..count] {
            let id = QpId(event.data.u64() as u32);
            let index = id.0 & 0xffff;
            let is_stale = self.id(index) != id;
            let place = &mut self.places[index as usize];
            let Some(line) = place.line.as_mut().filter(|_| !is_stale) else {
                continue;
            };
            // Copied: the system's own struct has its fields where no reference may point.
            let flags = event.flags;
            let is_over = flags.intersects(EventFlags::ERR | EventFlags::HUP);
            if flags.contains(EventFlags::OUT) || is_over {
                line.connection.has_room();
                self.tell_interest(index);
                self.activate(index);
            }
            if (flags.contains(EventFlags::IN) || is_over) && !self.promote(index) {
                self.note_unread(index);
            }
        }
    }

    /// A socket has something and stays cold: it is read in its turn among those with other work.
    fn note_unread(&mut self, index: u32) {
        if let Some(line) = &mut self.places[index as usize].line {
            line.connection.note_unread();
            self.activate(index);
        }
    }

    pub(super) fn hot_at(&self, index: u32) -> Option<usize> {
        self.hot[..self.hot_count]
            .iter()
            .position(|hot| hot.place == index)
    }

    pub(super) fn cool(&mut self, at: usize) {
        self.places[self.hot[at].place as usize].is_hot = false;
        self.hot_count -= 1;
        self.hot.swap(at, self.hot_count);
    }

    /// Makes a socket hot, in the place of the hot one that has been idle longest; if none is idle, it stays cold. True
    /// if it is hot now.
    pub(super) fn promote(&mut self, index: u32) -> bool {
        let place = &self.places[index as usize];
        let is_open = |line: &Line| line.connection.is_open();
        if place.is_hot || !place.line.as_ref().is_some_and(is_open) {
            return place.is_hot;
        }
        if self.hot_count == HOT_MAX {
            let idlest = (0..HOT_MAX)
                .max_by_key(|&at| self.hot[at].idle)
                .unwrap_or(0);
            if self.hot[idlest].idle == 0 {
                return false;
            }
            self.cool(idlest);
        }
        self.hot[self.hot_count] = Hot {
            place: index,
            idle: 0,
        };
        self.hot_count += 1;
        self.places[index as usize].is_hot = true;
        true
    }
}
