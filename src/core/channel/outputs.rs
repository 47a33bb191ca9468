//! Outputs: `transmit` posts what was queued.
//!
//! It knows neither queue pairs nor keys' texts; both are closures of the caller.
//!
//! What goes first, and why ([`Channel::due`] decides it, and `must_transmit` and `poll_timeout` agree):
//!
//! 1. The hello, before which the peer takes nothing.
//! 2. Frames, in the order in which they were queued, as far as the peer's window goes: each carries all credit. In
//!    front of a frame about a key that has no number on this connection goes the intern that gives it one.
//! 3. Credit alone, if no frame took it along and it is due. It needs no window, or two full ones would wait for each
//!    other.

use super::commands::framed;
use super::session::SessionState;
use super::stream::{Load, key_of};
use super::{Channel, Payload};
use crate::ground::Nanos;
use crate::rendezvous::KeyId;
use crate::wire::message::Push;
use crate::wire::{Flags, Frame, Message, Ticket};

/// What is posted next.
enum Due {
    Hello,
    Frame,
    Credit,
}

/// Outputs.
impl<V: Payload> Channel<V> {
    #[inline]
    fn due(&self, now: Nanos) -> Option<Due> {
        match self.session.state() {
            SessionState::Up if self.stream.has_next() => Some(Due::Frame),
            SessionState::Up => (self.credit.due_at() <= now).then_some(Due::Credit),
            state => state.owes_hello().then_some(Due::Hello),
        }
    }

    /// Posts what is due until nothing is, or `post` refuses. `text` gives a key's text for its first use on a
    /// connection.
    #[inline]
    pub fn transmit(
        &mut self,
        now: Nanos,
        text: &impl Fn(KeyId) -> Box<str>,
        post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool,
    ) {
        while let Some(due) = self.due(now) {
            let is_posted = match due {
                Due::Hello => self.post_hello(post),
                Due::Frame => self.post_next(text, post),
                Due::Credit => self.post_credit(post),
            };
            if !is_posted {
                return;
            }
        }
    }

    /// True if there is something to post now.
    #[inline(always)]
    #[must_use]
    pub fn must_transmit(&self, now: Nanos) -> bool {
        match self.session.state() {
            SessionState::Up => self.stream.has_next() || self.credit.due_at() <= now,
            state => state.owes_hello(),
        }
    }

    /// When there will be something to post, if nothing is said or heard until then.
    #[inline]
    #[must_use]
    pub fn poll_timeout(&self) -> Nanos {
        if self.session.state() == SessionState::Up {
            self.credit.due_at()
        } else {
            Nanos::NEVER
        }
    }

    fn post_hello(&mut self, post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool) -> bool {
        let hello = self.session.hello(self.credit.consumed(), &self.settings);
        let (frame, body) = Message::Hello(hello).emit();
        let is_posted = post(&frame, [body.as_bytes(), &[]]);
        if is_posted {
            self.session.mark_greeted();
        }
        is_posted
    }

    #[inline]
    fn post_next(
        &mut self,
        text: &impl Fn(KeyId) -> Box<str>,
        post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool,
    ) -> bool {
        let Some((frame, load)) = self.stream.next() else {
            return false;
        };
        let mut frame = *frame;
        if let Some(key) = key_of(&frame) {
            let Some(number) = self.given.number(key) else {
                self.intern(key, &text(key));
                return true;
            };
            frame.set_slot(number.packed());
        }
        self.credit.write(&mut frame);
        let is_posted = match load {
            None => post(&frame, [&[], &[]]),
            Some(Load::Value(value)) => post_value(&mut frame, value, post),
            Some(Load::Fields(body)) => post(&frame, [body.as_bytes(), &[]]),
            Some(Load::Text(text)) => post(&frame, [text.as_bytes(), &[]]),
        };
        let has_load = load.is_some();
        self.mark_posted(is_posted, has_load);
        self.stream.close_up();
        is_posted
    }

    /// Gives a key a number, which goes before the next frame.
    #[cold]
    fn intern(&mut self, key: KeyId, text: &str) {
        let (frame, load) = framed(&Message::Intern(self.given.give(key), text));
        self.stream.insert_next(frame, load);
    }

    fn post_credit(&mut self, post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool) -> bool {
        let (mut frame, _) = Message::Credit.emit();
        self.credit.write(&mut frame);
        let is_posted = post(&frame, [&[], &[]]);
        if is_posted {
            self.credit.mark_told();
        }
        is_posted
    }

    /// Posts a value's frame that was not queued yet, with what `post` adds to it, if nothing goes before it.
    #[inline(always)]
    pub(super) fn post_now(
        &mut self,
        key: KeyId,
        mut frame: Frame,
        post: impl FnOnce(&mut Frame) -> bool,
    ) -> bool {
        let is_clear = self.stream.is_clear() || mutant!("posted_before_what_waits");
        if !is_clear || self.session.state() != SessionState::Up {
            return false;
        }
        let Some(number) = self.given.number(key) else {
            return false;
        };
        frame.set_slot(number.packed());
        self.credit.write(&mut frame);
        post(&mut frame)
    }

    #[inline(always)]
    pub(super) fn mark_posted(&mut self, is_posted: bool, has_load: bool) {
        if is_posted {
            self.stream.mark_posted(has_load);
            self.credit.mark_told();
            self.counters.frames_sent += 1;
        }
    }
}

/// Posts a push whose value lies beside its frame, which keeps the request and the stamp in the unused tail.
#[inline]
pub(super) fn post_value<V: Payload>(
    frame: &mut Frame,
    value: &V,
    post: &mut impl FnMut(&Frame, [&[u8]; 2]) -> bool,
) -> bool {
    let meta = value.meta();
    if let Some(dim) = meta.shape.dim(0)
        && meta.shape.rank() == 1
        && frame.flags().0 & !Flags::DEAD.0 == 0
    {
        // A row, as most are.
        (frame.words[6], frame.words[7]) = (0, 0);
        return post(
            frame,
            [&dim.to_le_bytes(), value.data().unwrap_or_default()],
        );
    }
    let is_solicited = frame.flags().has(Flags::SOLICITED);
    let request = is_solicited.then(|| Ticket::unpack(frame.words[6] as u32));
    let mut lead = Push::lead(&meta, request);
    if frame.flags().has(Flags::STAMPED) {
        lead.replace_first_dim(frame.words[7]);
    }
    (frame.words[6], frame.words[7]) = (0, 0);
    // What the host cannot read is never kept as a push.
    post(frame, [lead.as_bytes(), value.data().unwrap_or_default()])
}
