//! What goes out: due frames, credit, and the time of the next call.
//!
//! It knows neither queue pairs nor keys' texts; both are the caller's closures.

use super::stream::Load;
use super::{Channel, Payload, State};
use crate::ground::{Incarnation, Nanos};
use crate::rendezvous::KeyId;
use crate::wire::message::{Hello, Push};
use crate::wire::{Flags, Frame, Message, Ticket};

impl<V: Payload> Channel<V> {
    /// Posts what is due, oldest first, until it is all posted, frame credit is spent, or `post` refuses.
    /// `text` gives a key's text for its first use on a connection. Returns how many frames were posted.
    #[inline]
    pub fn transmit(
        &mut self,
        now: Nanos,
        text: &impl Fn(KeyId) -> Box<str>,
        post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool,
    ) -> usize {
        match self.state {
            State::Down => return 0,
            State::Greeting { hello_sent: true } => return 0,
            State::Greeting { hello_sent: false } => return usize::from(self.transmit_hello(post)),
            State::Answering => {
                if !self.transmit_hello(post) {
                    return 0;
                }
            }
            State::Up => {}
        }
        let mut count = 0;
        if self.stream.due() > 0 {
            count = self.transmit_stream(text, post);
        }
        if self.credit_is_due(now) {
            let (mut frame, _) = Message::Credit.emit();
            frame.set_credit(self.consumed as u16, self.lines_taken as u16);
            if post(&frame, [&[], &[]]) {
                self.mark_told();
                count += 1;
            }
        }
        count
    }

    /// When `transmit` must be called at the latest.
    #[must_use]
    pub const fn poll_timeout(&self) -> Nanos {
        self.ack_at
    }

    #[inline]
    pub(super) fn mark_told(&mut self) {
        self.consumed_told = self.consumed;
        self.lines_taken_told = self.lines_taken;
        self.ack_at = Nanos::NEVER;
    }

    /// Credit goes alone when a quarter of a window is untold, or when it waited long enough for a ride.
    #[inline]
    pub(super) fn credit_is_due(&self, now: Nanos) -> bool {
        self.ack_at != Nanos::NEVER
            && (self.consumed - self.consumed_told >= u64::from(self.settings.frame_window / 4)
                || self.lines_taken - self.lines_taken_told
                    >= u64::from(self.settings.line_window / 4)
                || now >= self.ack_at)
    }

    #[inline]
    fn transmit_stream(
        &mut self,
        text: &impl Fn(KeyId) -> Box<str>,
        post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool,
    ) -> usize {
        let window = self.peer.map_or(0, |peer| usize::from(peer.frame_window));
        let (frames, lines) = (self.consumed as u16, self.lines_taken as u16);
        let mut count = 0;
        while self.stream.in_flight() < window {
            let Some((due, load)) = self.stream.next_mut() else {
                break;
            };
            if let Some(key) = due.key {
                match self.given.number(key) {
                    Some(number) => due.frame.set_slot(number.packed()),
                    None => {
                        let number = self.given.give(key);
                        let text = text(key);
                        let (frame, _) = Message::Intern(number, &text).emit();
                        self.stream.insert_next(frame, Load::Text(text));
                        continue;
                    }
                }
            }
            due.frame.set_credit(frames, lines);
            if !post_due(&due.frame, load, post) {
                break;
            }
            self.stream.mark_posted();
            count += 1;
        }
        if count > 0 {
            self.counters.frames_sent += count as u64;
            self.mark_told();
        }
        count
    }

    fn transmit_hello(&mut self, post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool) -> bool {
        let hello = Hello {
            incarnation: self.settings.incarnation,
            expected: self
                .peer
                .map_or(Incarnation::CURRENT, |peer| peer.incarnation),
            epoch: self.epoch,
            peer_epoch: self.peer.map_or(0, |peer| peer.epoch),
            consumed: self.consumed,
            frame_window: self.settings.frame_window,
            line_window: self.settings.line_window,
        };
        let (frame, body) = Message::Hello(hello).emit();
        let posted = post(&frame, [body.as_bytes(), &[]]);
        if posted {
            let has_theirs = self.state == State::Answering;
            self.state = if has_theirs {
                State::Up
            } else {
                State::Greeting { hello_sent: true }
            };
        }
        posted
    }
}

/// Posts one frame with what belongs to it.
#[inline]
fn post_due<V: Payload>(
    due: &Frame,
    load: Option<&Load<V>>,
    post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool,
) -> bool {
    match load {
        None => post(due, [&[], &[]]),
        Some(Load::Value(value)) => {
            let mut frame = *due;
            let is_solicited = frame.flags().has(Flags::SOLICITED);
            let request = is_solicited.then(|| Ticket::unpack(frame.words[6] as u32));
            let mut lead = Push::lead(&value.meta(), request);
            if frame.flags().has(Flags::STAMPED) {
                lead.replace_first_dim(frame.words[7]);
            }
            (frame.words[6], frame.words[7]) = (0, 0);
            // What the host cannot read is never kept as a push.
            post(&frame, [lead.as_bytes(), value.data().unwrap_or_default()])
        }
        Some(Load::Fields(body)) => post(due, [body.as_bytes(), &[]]),
        Some(Load::Text(text)) => post(due, [text.as_bytes(), &[]]),
    }
}
