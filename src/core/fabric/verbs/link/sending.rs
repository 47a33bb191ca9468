//! What a link posts: frames, the fabric's own words, pieces of writes; as far as there is room, in bursts.
//!
//! Knows slots, credit and the send queue of one link. A slot is written while it is free, and named by one request.
#![allow(unsafe_code)]

use super::{GivenBack, HELD_MAX, Posted, SENDS_RESERVE, Tools, VerbsLink};
use crate::fabric::verbs::VerbsStats;
use crate::fabric::verbs::message::{self, Word};
use crate::fabric::verbs::outgoing::WriteIndex;
use crate::fabric::verbs::queue_pair::{WorkKind, WorkRequest};
use crate::fabric::verbs::slots::Slots;
use crate::ground::limits::{
    VERBS_SENDS, VERBS_SIGNAL_EVERY, VERBS_SLICE_BYTES, VERBS_SLICES, VERBS_STAGE_BYTES,
    VERBS_WINDOW, VERBS_WINDOW_RESERVE,
};
use crate::wire::Frame;

impl VerbsLink {
    #[inline]
    pub(super) const fn in_flight(&self) -> u16 {
        self.sent.wrapping_sub(self.returned)
    }

    /// One of the peer's entries is used, behind which the peer knows what it was told.
    #[inline]
    fn use_entry(&mut self) {
        self.told_by[usize::from(self.sent % VERBS_WINDOW)] = self.told;
        self.sent = self.sent.wrapping_add(1);
    }

    /// Entries of the peer's that may be used, less those that are kept.
    #[inline]
    pub(super) fn credit(&self, kept: u16) -> usize {
        self.window
            .saturating_sub(kept)
            .saturating_sub(self.in_flight())
            .into()
    }

    /// Entries of the send queue.
    #[inline]
    pub(super) fn room(&self) -> usize {
        VERBS_SENDS as usize
            - SENDS_RESERVE
            - self.posted.len().min(VERBS_SENDS as usize - SENDS_RESERVE)
    }

    /// Gives back the writes that are over.
    #[inline]
    pub(super) fn settle(&mut self, tools: &mut Tools<'_>) {
        while let Some(index) = self.ended.pop_front() {
            if let Some((write, outcome)) = self.outgoing.take(index) {
                tools.given.push_back(GivenBack::Wrote {
                    qp: self.id,
                    write,
                    outcome,
                });
            }
        }
    }

    /// The fabric's own words that wait.
    pub(super) fn say(&mut self, slots: &mut Slots, stats: &mut VerbsStats) {
        while let Some(&word) = self.words.front() {
            if !self.can_say(VERBS_WINDOW_RESERVE) {
                return;
            }
            self.words.pop_front();
            self.say_word(word, slots, stats);
        }
    }

    /// Credit, if half of it is untold; grants, if no frame took them along.
    pub(super) fn say_credit(&mut self, slots: &mut Slots, stats: &mut VerbsStats) {
        while self.incoming.due() > 0 && self.can_say(VERBS_WINDOW_RESERVE) {
            self.say_word(Word::Credit, slots, stats);
        }
        if self.owes_credit() && self.can_say(1) {
            self.say_word(Word::Credit, slots, stats);
        }
    }

    pub(super) fn say_bye(&mut self, slots: &mut Slots, stats: &mut VerbsStats) {
        if self
            .posted
            .iter()
            .any(|posted| matches!(posted, Posted::Bye(_)))
            || self.has_said_bye
        {
            return;
        }
        if self.can_say(0) {
            self.say_word(Word::Bye, slots, stats);
        }
    }

    fn say_word(&mut self, word: Word, slots: &mut Slots, stats: &mut VerbsStats) {
        self.first(&word.frame(), [&[], &[]], Some(word), slots, stats);
    }

    /// True if there is room for one message.
    pub(super) fn can_say(&mut self, kept: u16) -> bool {
        self.credit(kept) > 0 && self.free.has(1) && self.room() > 0
    }

    /// Pieces of writes, as far as there is room.
    pub(super) fn advance(&mut self, slots: &mut Slots, tools: &mut Tools<'_>) {
        for _ in 0..self.outgoing.going.len() {
            let Some(index) = self.outgoing.going.pop_front() else {
                return;
            };
            let is_gone = loop {
                match self.send_piece(index, slots, tools) {
                    None => break false,
                    Some(true) => break true,
                    Some(false) => {}
                }
            };
            if !is_gone {
                self.outgoing.going.push_back(index);
            }
        }
    }

    /// Posts one piece of a write; true if it was the last, `None` if there is no room.
    pub(super) fn send_piece(
        &mut self,
        index: WriteIndex,
        slots: &mut Slots,
        tools: &mut Tools<'_>,
    ) -> Option<bool> {
        let piece = self.outgoing.piece(index)?;
        let rest = piece.total - piece.start;
        let len = match piece.lkey {
            Some(_) => rest.min(VERBS_SLICE_BYTES).min(self.message_max),
            None => rest.min(VERBS_STAGE_BYTES),
        };
        let is_last = len == rest;
        let must_tell_total = is_last && piece.start > 0;
        // A piece without immediate takes no entry of the peer's.
        let entries = usize::from(is_last) + usize::from(must_tell_total);
        let is_direct = piece.lkey.is_some();
        if self.credit(VERBS_WINDOW_RESERVE) < entries
            || self.room() < 2
            || (must_tell_total && !self.free.has(1))
            || (is_direct && piece.flying >= VERBS_SLICES)
        {
            return None;
        }
        let (address, lkey, stage) = match piece.lkey {
            _ if len == 0 => (0, 0, None),
            Some(lkey) => {
                let source = self.outgoing.source(index).as_ptr().expose_provenance() as u64;
                (source + piece.start as u64, lkey, None)
            }
            None => {
                let source = &self.outgoing.source(index)[piece.start..piece.start + len];
                let stage = tools.stage.copy(source)?;
                (
                    tools.stage.slots.address(stage.into()),
                    tools.stage.slots.lkey(),
                    Some(stage),
                )
            }
        };
        if must_tell_total {
            let total = Word::Total(piece.landing, piece.total as u64);
            self.say_word(total, slots, tools.stats);
        }
        let (remote, rkey) = (piece.remote, piece.rkey);
        let what = if is_last {
            self.use_entry();
            WorkKind::WriteWithImmediate {
                remote,
                rkey,
                immediate: message::immediate(piece.landing),
            }
        } else {
            WorkKind::Write { remote, rkey }
        };
        self.outgoing.sent(index, len, is_last);
        let request = WorkRequest {
            id: 0,
            what,
            address,
            len: len as u32,
            lkey,
            is_signalled: true,
            is_inline: false,
        };
        self.push(
            request,
            Posted::Piece {
                write: index,
                stage,
            },
            tools.stats,
        );
        Some(is_last)
    }

    /// A frame, with the first of its body and as many grants as fit.
    #[inline]
    pub(super) fn first(
        &mut self,
        frame: &Frame,
        body: [&[u8]; 2],
        word: Option<Word>,
        slots: &mut Slots,
        stats: &mut VerbsStats,
    ) {
        let Some(slot) = self.free.take() else {
            unreachable!("the caller saw that there is a slot")
        };
        // SAFETY: the slot was free: its last request is complete, or was inline, and is posted or forgotten.
        let bytes = unsafe { slots.bytes_mut(slot.into()) };
        let len = if self.incoming.due() == 0 {
            message::write_first(bytes, frame, body, self.heard, std::iter::empty())
        } else {
            self.write_with_grants(bytes, frame, body)
        };
        self.message(slot, len, word, slots, stats);
    }

    #[inline(never)]
    fn write_with_grants(&mut self, slot: &mut [u8], frame: &Frame, body: [&[u8]; 2]) -> usize {
        let count = message::grants_max(message::first_len(frame.body_len() as usize));
        let grants = self.incoming.tell(count);
        message::write_first(slot, frame, body, self.heard, grants)
    }

    /// A further message of a frame's body, from `start` on; returns where the next starts.
    pub(super) fn further(
        &mut self,
        body: [&[u8]; 2],
        start: usize,
        slots: &mut Slots,
        stats: &mut VerbsStats,
    ) -> usize {
        let Some(slot) = self.free.take() else {
            unreachable!("the caller saw that there is a slot")
        };
        // SAFETY: the slot was free: its last request is complete, or was inline, and is posted or forgotten.
        let bytes = unsafe { slots.bytes_mut(slot.into()) };
        let (len, next) = message::write_further(bytes, body, start, self.heard);
        self.message(slot, len, None, slots, stats);
        next
    }

    /// Sends what was written into a slot. Of the first word and of the last the completion is waited for.
    #[inline(always)]
    fn message(
        &mut self,
        slot: u16,
        len: usize,
        word: Option<Word>,
        slots: &Slots,
        stats: &mut VerbsStats,
    ) {
        self.told = self.heard;
        self.use_entry();
        stats.messages += 1;
        let is_awaited = matches!(word, Some(Word::Bye | Word::Check));
        let is_inline = len <= self.qp.inline_max() as usize && !is_awaited;
        let mut request = WorkRequest {
            id: 0,
            what: WorkKind::Send,
            address: slots.address(slot.into()),
            len: len as u32,
            lkey: slots.lkey(),
            is_signalled: is_awaited,
            is_inline,
        };
        let posted = if is_inline {
            self.inline.add(slot);
            Posted::Nothing
        } else if word == Some(Word::Bye) {
            Posted::Bye(slot)
        } else if word == Some(Word::Check) {
            Posted::Check(slot)
        } else {
            self.held += 1;
            request.is_signalled = self.held >= HELD_MAX;
            Posted::Slot(slot)
        };
        self.push(request, posted, stats);
    }

    #[inline(always)]
    fn push(&mut self, mut request: WorkRequest, posted: Posted, stats: &mut VerbsStats) {
        self.unsignalled += 1;
        if request.is_signalled || self.unsignalled >= VERBS_SIGNAL_EVERY {
            request.is_signalled = true;
            self.unsignalled = 0;
            self.held = 0;
            stats.signalled += 1;
        }
        request.id = self.tag | u64::from(self.next);
        self.next = self.next.wrapping_add(1);
        stats.requests += 1;
        self.posted.push_back(posted);
        // SAFETY: a request names a slot that was taken off the free ones, and returns there at its completion, or when
        // it is posted if it is inline; or a copy's slot, which is free again at its completion; or a source inside of
        // a registration that its port keeps, held by `outgoing` until its completion or until `finish` has destroyed
        // the queue pair. Sources are tensors, which are never written to.
        unsafe { self.qp.stage(&request) };
        if self.qp.must_post() {
            self.ring(stats);
        }
    }

    /// Posts what is staged: one doorbell. After a post that was refused nothing is posted any more: the peer counts
    /// what comes, and would take what follows for what is missing.
    #[inline]
    pub(super) fn ring(&mut self, stats: &mut VerbsStats) {
        let count = self.qp.staged();
        if count == 0 {
            return;
        }
        if self.fault.is_some() {
            return self.unpost(count);
        }
        stats.doorbells += 1;
        if let Err((posted, errno)) = self.qp.post() {
            self.fault = Some(self.qp.failed_post(errno));
            return self.unpost(count - posted);
        }
        self.free.add_all(&mut self.inline);
    }

    /// The last `count` requests stay unposted, and the link goes down for it.
    #[cold]
    fn unpost(&mut self, count: usize) {
        self.strand(self.posted.len() - count);
        self.qp.unstage();
        self.free.add_all(&mut self.inline);
    }

    /// Posts one request more on a queue pair in error. It is not carried out but comes back flushed, behind all
    /// others: those that succeeded before have no completion of their own.
    pub(super) fn mark_end(&mut self) {
        let request = WorkRequest {
            id: self.tag | u64::from(self.next),
            what: WorkKind::Send,
            address: 0,
            len: 0,
            lkey: 0,
            is_signalled: true,
            is_inline: false,
        };
        // SAFETY: it names no memory.
        unsafe { self.qp.stage(&request) };
        if self.qp.post().is_ok() {
            self.next = self.next.wrapping_add(1);
            self.posted.push_back(Posted::Nothing);
        }
    }

    /// Forgets the requests behind the first `count`: the device never had them.
    pub(super) fn strand(&mut self, count: usize) {
        for posted in self.posted.drain(count..) {
            if let Posted::Piece { stage, .. } = posted {
                self.stranded.extend(stage);
            }
        }
    }
}
