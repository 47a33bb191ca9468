//! What goes out: due frames, credit, and the time of the next call.
//!
//! It knows neither queue pairs nor keys' texts; both are the caller's closures.

use super::stream::Load;
use super::{Channel, Payload, State, lines};
use crate::ground::{Incarnation, Nanos};
use crate::rendezvous::KeyId;
use crate::wire::message::{Hello, Push, Subject};
use crate::wire::{Body, Flags, Frame, Message, Point, Ticket};

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

    /// The frame of a push that may leave at once: nothing is due before it, its key has a number, and there is
    /// credit for it. The caller posts it and then calls [`Channel::posted`]; or pushes the value the long way.
    #[inline]
    pub fn compose(
        &mut self,
        key: KeyId,
        point: Point,
        ordinal: u32,
        value: &V,
    ) -> Option<(Frame, Body)> {
        let window = self
            .peer
            .as_ref()
            .map_or(0, |peer| usize::from(peer.frame_window));
        if self.state != State::Up || self.stream.due() > 0 || self.stream.in_flight() >= window {
            return None;
        }
        let (meta, data) = (value.meta(), value.data());
        let body_len = Push::lead_len(&meta, false) + data.len();
        if body_len > self.settings.inline_max || self.lines_open() < lines(body_len) {
            return None;
        }
        let number = self.given.number(key)?;
        let subject = Subject {
            key: number,
            point,
            ordinal,
        };
        let push = Push {
            subject,
            meta,
            is_dead: value.is_dead(),
            request: None,
            data,
            stamp: 0,
        };
        let (mut frame, body) = push.emit_plain();
        frame.set_credit(self.consumed as u16, self.lines_taken as u16);
        Some((frame, body))
    }

    /// A composed frame was posted: it is kept, with its value if that is not in it, until it is acknowledged. Of a
    /// stamped one with its body beside, the caller has put the stamp into its last word.
    #[inline]
    pub fn posted(&mut self, key: KeyId, frame: Frame, value: V) {
        self.lines_pushed += u64::from(lines(frame.body_len() as usize));
        if frame.body_is_inline() {
            self.stream.push(frame, Some(key));
        } else {
            self.stream
                .push_loaded(frame, Some(key), Load::Value(value));
        }
        self.stream.mark_posted();
        self.counters.frames_sent += 1;
        self.mark_told();
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
            post(&frame, [lead.as_bytes(), value.data()])
        }
        Some(Load::Fields(body)) => post(due, [body.as_bytes(), &[]]),
        Some(Load::Text(text)) => post(due, [text.as_bytes(), &[]]),
    }
}
