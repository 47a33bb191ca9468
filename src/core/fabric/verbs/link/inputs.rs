//! What comes to a link: completions of its requests, and its peer's messages and writes. No unsafe.
//!
//! Knows what each does to the link; not where the bytes lay. Everything a message says is an allegation.

use std::collections::VecDeque;

use super::{Ends, GivenBack, Posted, Proof, State, Tools, VerbsLink};
use crate::fabric::verbs::message::{self, VerbsMessage, Word};
use crate::fabric::{Arrival, DownReason, FABRIC_KIND_MIN};
use crate::ground::limits::{VERBS_WINDOW, VERBS_WORDS};

impl VerbsLink {
    /// A completion of ours, and of all requests before it.
    #[inline]
    pub(in crate::fabric::verbs) fn completed(
        &mut self,
        number: u32,
        is_success: bool,
        tools: &mut Tools<'_>,
    ) {
        let oldest = self.next.wrapping_sub(self.posted.len() as u32);
        let count = number.wrapping_sub(oldest).wrapping_add(1) as usize;
        let sent = self.posted.len() - self.qp.staged();
        // The device tells of what was posted, once; anything else would be its bug, and must not become ours.
        if count > sent {
            return;
        }
        for index in 0..count {
            let Some(posted) = self.posted.pop_front() else {
                return;
            };
            let is_done = is_success || (index + 1 < count && !self.is_down());
            match posted {
                Posted::Nothing => {}
                Posted::Slot(slot) => self.free.add(slot),
                Posted::Bye(slot) => {
                    self.free.add(slot);
                    self.has_said_bye = true;
                }
                Posted::Check(slot) => {
                    self.free.add(slot);
                    if let Some(proof) = self.proof.as_ref().filter(|_| is_done) {
                        proof.note(Proof::REACHED);
                    }
                }
                Posted::Piece { write, stage } => {
                    tools.stage.free.extend(stage);
                    if is_done {
                        self.outgoing.completed(write, &mut self.ended);
                    }
                }
            }
        }
        self.settle(tools);
    }

    /// A message came. True if the sink was given something.
    #[inline]
    pub(in crate::fabric::verbs) fn heard<S: FnMut(Arrival<'_>)>(
        &mut self,
        bytes: &[u8],
        given: &mut VecDeque<GivenBack>,
        sink: &mut S,
    ) -> Ends<bool> {
        self.heard = self.heard.wrapping_add(1);
        let Self {
            outgoing, ended, ..
        } = self;
        let (stamp, message) = message::parse(bytes, |grant| outgoing.granted(grant, ended))?;
        let back = stamp.consumed.wrapping_sub(self.returned);
        if back > self.in_flight() {
            return Err(DownReason::Corrupt);
        }
        self.returned = stamp.consumed;
        // A message says by its stamp which of ours its sender had heard, and so what credit it knew of.
        if back > 0 {
            self.known = self.told_by[usize::from(stamp.consumed.wrapping_sub(1) % VERBS_WINDOW)];
        }
        if self.heard.wrapping_sub(self.known) > self.granted {
            return Err(DownReason::Corrupt);
        }
        if self.state == State::Proving {
            return self.heard_first(&message);
        }
        if !self.is_open() {
            return Ok(false);
        }
        let qp = self.id;
        let was_given = match message {
            VerbsMessage::First { frame, .. } if frame.kind() >= FABRIC_KIND_MIN => {
                self.told_by_peer(Word::parse(&frame)?, given)?;
                false
            }
            VerbsMessage::First { .. } if self.incoming.is_in_frame() => {
                return Err(DownReason::Corrupt);
            }
            VerbsMessage::First { frame, body }
                if message::messages(frame.body_len() as usize) > 1 =>
            {
                self.incoming.begin(frame, body)?;
                false
            }
            VerbsMessage::First { frame, body } => {
                sink(Arrival::Frame {
                    qp,
                    frame: &frame,
                    body,
                });
                true
            }
            VerbsMessage::Further { body } => {
                let whole = self.incoming.further(body)?;
                let is_whole = whole.is_some();
                if let Some((frame, body)) = whole {
                    sink(Arrival::Frame {
                        qp,
                        frame: &frame,
                        body,
                    });
                }
                is_whole
            }
        };
        Ok(was_given)
    }

    /// A write of the peer's ended. True if the sink was given something.
    #[inline]
    pub(in crate::fabric::verbs) fn written<S: FnMut(Arrival<'_>)>(
        &mut self,
        told: u32,
        len: u32,
        sink: &mut S,
    ) -> Ends<bool> {
        self.heard = self.heard.wrapping_add(1);
        // It has no stamp: its sender may know all that was told.
        if self.heard.wrapping_sub(self.told) > self.granted {
            return Err(DownReason::Corrupt);
        }
        if !self.is_open() {
            return Ok(false);
        }
        let (landing, len, buffer) = self.incoming.landed(told, len)?;
        sink(Arrival::Landed {
            qp: self.id,
            landing,
            len,
            buffer,
        });
        Ok(true)
    }

    /// The first message where the way is being proved: nothing else can be in its place.
    #[cold]
    fn heard_first(&mut self, message: &VerbsMessage<'_>) -> Ends<bool> {
        match (message, &self.proof) {
            (VerbsMessage::First { frame, .. }, Some(proof))
                if frame.kind() >= FABRIC_KIND_MIN && Word::parse(frame)? == Word::Check =>
            {
                proof.note(Proof::HEARD);
                Ok(false)
            }
            _ => Err(DownReason::Corrupt),
        }
    }

    #[inline(never)]
    fn told_by_peer(&mut self, word: Word, given: &mut VecDeque<GivenBack>) -> Ends<()> {
        match word {
            Word::Credit => {}
            Word::Ask(landing) => {
                // One that is open is granted in order of its opening: nothing more is to be said.
                if !self.incoming.is_open(landing) {
                    self.words.push_back(Word::None(landing));
                }
            }
            Word::None(landing) => self.outgoing.denied(landing, &mut self.ended),
            Word::Close(landing) => {
                self.outgoing.closed(landing, &mut self.ended);
                self.words.push_back(Word::Quiet(landing));
            }
            Word::Quiet(landing) => {
                if let Some(buffer) = self.incoming.quiet(landing)? {
                    given.push_back(GivenBack::Quiet {
                        qp: self.id,
                        landing,
                        buffer,
                    });
                }
            }
            Word::Total(landing, len) => self.incoming.total(landing, len)?,
            Word::Bye => return Err(DownReason::PeerClosed),
            // The first word of all, and only there.
            Word::Check => return Err(DownReason::Corrupt),
        }
        // A peer that floods us with questions and takes no answers.
        if self.words.len() > VERBS_WORDS {
            return Err(DownReason::Corrupt);
        }
        Ok(())
    }
}
