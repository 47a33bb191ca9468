//! A queue pair with its peer: what is posted, what credit there is, what is open and under way, and how it ends.
//!
//! Knows one peer; not the other queue pairs of its port, nor how completions are found.
//!
//! **Credit.** Every message, and every write with immediate, takes one of the receive entries that the peer grants.
//! What the peer has consumed comes back as a count in every message of its own. A message may be sent only into an
//! entry, so a receiver is never "not ready"; a peer that sends more than it knows to be granted goes down. The last
//! two entries are kept: one for a message that returns nothing but credit, sent when half the peer's entries are
//! consumed and untold; one for the goodbye. Both sides cannot be stuck: a side that sends its last credit message does
//! so after it consumed half a window more than it had told before.
//!
//! **Completions.** One request in 32 is signalled; requests complete in order, so its completion is that of all before
//! it. Each piece of a write is signalled: a sender waits for it.
//!
//! **Quiet.** A queue pair that goes down is put into error, and one more signalled request is posted, to mark the end
//! of all others, most of which have no completion. When it came back flushed, the queue pair's last receive entry is
//! used (or a tenth of a second has passed), and the completion queue was seen empty after that, or as many completions
//! were looked at as it has room for, it is destroyed. Then nothing can touch a landing or a source any more, and all
//! of them go back.
mod inputs;
mod send_slots;
mod sending;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::chain::CHAIN_MAX;
use super::error::VerbsError;
use super::incoming::{ClosedLanding, IncomingWrites};
use super::message::{self, VerbsMalformed, Word};
use super::outgoing::{Outgoing, Posted as Settled, WriteIndex};
use super::queue_pair::{QpEndpoint, QueuePair};
use super::slots::Slots;
use super::{Proof, StagingSlots, VerbsStats};
use crate::fabric::{Arrival, Caps, DownReason, Landing, Outcome, PostRefusal, QpId, Write};
use crate::ground::Nanos;
use crate::ground::limits::{
    BODY_MAX, VERBS_DRAIN_NS, VERBS_SEND_SLOTS, VERBS_SENDS, VERBS_WINDOW, VERBS_WINDOW_RESERVE,
};
use crate::memory::{Buffer, Tensor};
use crate::wire::Frame;
use send_slots::SendSlots;

/// Slots held by unsignalled requests: a quarter of them, so that an idle queue pair still has most.
const HELD_MAX: u32 = VERBS_SEND_SLOTS as u32 / 4;

/// Entries of the send queue that no message takes: one marks the end of all (`mark_end`).
const SENDS_RESERVE: usize = 2;

/// Something that goes back to its giver.
#[derive(Debug)]
pub(super) enum GivenBack {
    Quiet {
        qp: QpId,
        landing: Landing,
        buffer: Buffer,
    },
    Wrote {
        qp: QpId,
        write: Write,
        outcome: Outcome,
    },
    Down {
        qp: QpId,
        reason: DownReason,
    },
}

/// What a link borrows of its port for a while.
pub(super) struct Tools<'a> {
    pub(super) stage: &'a mut StagingSlots,
    pub(super) stats: &'a mut VerbsStats,
    pub(super) given: &'a mut VecDeque<GivenBack>,
}

/// One queue pair and everything it holds. The queue pair stands first: it is destroyed before what it was lent goes.
#[derive(Debug)]
pub(super) struct VerbsLink {
    qp: QueuePair,
    id: QpId,
    /// The upper half of its requests' ids.
    tag: u64,
    state: State,
    /// Why it went down, once it did.
    reason: DownReason,
    body_max: usize,
    message_max: usize,
    /// Receive entries that we grant, as far as they are used.
    granted: u16,
    /// Receive entries the peer grants; how many were used, and how many came back.
    window: u16,
    sent: u16,
    returned: u16,
    /// Of the peer's: consumed here, and told.
    heard: u16,
    told: u16,
    /// What of it was told by each entry of the peer's that we used, modulo their number; and what the peer has said
    /// that it knows.
    told_by: [u16; VERBS_WINDOW as usize],
    known: u16,
    /// The number of the next request.
    next: u32,
    /// Requests whose completion is not known, in order. The last are only staged, and not posted yet.
    posted: VecDeque<Posted>,
    unsignalled: u32,
    /// Slots held by requests since the last signalled one.
    held: u32,
    free: SendSlots,
    /// Slots that the next doorbell frees.
    inline: SendSlots,
    words: VecDeque<Word>,
    incoming: IncomingWrites,
    outgoing: Outgoing,
    /// Writes that are over.
    ended: VecDeque<WriteIndex>,
    /// Copies whose requests were never posted.
    stranded: Vec<u16>,
    has_said_bye: bool,
    /// What is known of the way, for the thread that waits for it before the first frame.
    proof: Option<Arc<Proof>>,
    fault: Option<VerbsError>,
    /// What the port had counted of completions when this one was first seen drained.
    pub(super) drained_at: Option<u64>,
    /// When it may take no longer to leave, or to be quiet; none before a poll has seen that it is to.
    until: Option<Nanos>,
    pub(super) is_active: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Its peer is not known yet.
    Made,
    /// It has its peer, the way is being proved, and its frames are not taken yet.
    Proving,
    Open,
    /// Saying goodbye.
    Leaving,
    /// In error, until it is quiet.
    Down,
}

/// What a request's completion frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Posted {
    Nothing,
    Slot(u16),
    Piece {
        write: WriteIndex,
        stage: Option<u16>,
    },
    Bye(u16),
    Check(u16),
}

/// Why a queue pair is to go down.
pub(super) type Ends<T> = Result<T, DownReason>;

impl From<VerbsMalformed> for DownReason {
    fn from(_: VerbsMalformed) -> Self {
        Self::Corrupt
    }
}

impl VerbsLink {
    /// A queue pair that has no peer yet. Everything that grows later has its room now.
    pub(super) fn new(qp: QueuePair, id: QpId, tag: u64, message_max: usize, granted: u16) -> Self {
        Self {
            qp,
            id,
            tag,
            state: State::Made,
            reason: DownReason::Closed,
            body_max: 0,
            message_max,
            granted,
            window: 0,
            sent: 0,
            returned: 0,
            heard: 0,
            told: 0,
            told_by: [0; VERBS_WINDOW as usize],
            known: 0,
            next: 0,
            posted: VecDeque::with_capacity(VERBS_SENDS as usize),
            unsignalled: 0,
            held: 0,
            free: SendSlots::ALL,
            inline: SendSlots::NONE,
            words: VecDeque::with_capacity(CHAIN_MAX),
            incoming: IncomingWrites::new(),
            outgoing: Outgoing::new(),
            ended: VecDeque::with_capacity(crate::fabric::WRITES_MAX),
            stranded: Vec::new(),
            has_said_bye: false,
            proof: None,
            fault: None,
            drained_at: None,
            until: None,
            is_active: false,
        }
    }

    /// The peer is known: from here on it is open.
    pub(super) fn begin(&mut self, peer: &QpEndpoint) {
        self.state = State::Open;
        // The smaller of both depths is used each way, so both also know when credit is due.
        self.granted = self.granted.min(peer.window);
        self.window = self.granted;
        self.body_max = BODY_MAX;
    }

    /// The peer is known, and the way to it is to be proved: what comes after the peer's first word waits for
    /// [`VerbsLink::adopt`].
    pub(super) fn begin_proving(&mut self, peer: &QpEndpoint, proof: Arc<Proof>) {
        self.begin(peer);
        self.state = State::Proving;
        self.proof = Some(proof);
    }

    /// Says the first word, which proves the way.
    pub(super) fn say_check(&mut self) {
        if self.state == State::Proving {
            self.words.push_back(Word::Check);
        }
    }

    /// Frames are taken from here on. False if it is not proved.
    pub(super) fn adopt(&mut self) -> bool {
        let is_proved = self.is_waiting();
        if is_proved {
            self.state = State::Open;
        }
        is_proved
    }

    /// True if the peer has said its first word, and what follows is not taken yet.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.state == State::Proving && self.proof.as_ref().is_some_and(|proof| proof.has_heard())
    }

    pub(super) const fn qp_mut(&mut self) -> &mut QueuePair {
        &mut self.qp
    }

    pub(super) const fn number(&self) -> u32 {
        self.qp.number()
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub(super) const fn is_down(&self) -> bool {
        matches!(self.state, State::Down)
    }

    /// True while time alone may move it on.
    pub(super) const fn is_ending(&self) -> bool {
        matches!(self.state, State::Down | State::Leaving)
    }

    pub(super) const fn caps(&self) -> Caps {
        Caps {
            body_max: self.body_max,
            one_sided: true,
            read_domain: false,
        }
    }

    pub(super) const fn fault(&self) -> Option<&VerbsError> {
        self.fault.as_ref()
    }

    /// True if a flush has, or may soon have, something to do.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.qp.staged() > 0 || self.has_more()
    }

    /// True if there is more to do than to ring the doorbell.
    #[inline]
    fn has_more(&self) -> bool {
        !self.words.is_empty()
            || !self.outgoing.going.is_empty()
            || !self.ended.is_empty()
            || self.incoming.due() > 0
            || self.owes_credit()
            || self.is_ending()
    }

    /// True if the peer must be told what was consumed. It is work: where no slot was free when the peer's last message
    /// came, nothing but the completion that frees one moves this on, and the peer may wait for it with all its window.
    #[inline]
    pub(super) fn owes_credit(&self) -> bool {
        self.is_open() && self.heard.wrapping_sub(self.told) >= self.granted / 2
    }

    // ───────────────────────────────────────────────── commands ────────────────────────────────────────────────

    #[inline]
    pub(super) fn post_send(
        &mut self,
        frame: &Frame,
        body: [&[u8]; 2],
        slots: &mut Slots,
        stats: &mut VerbsStats,
    ) -> Result<(), PostRefusal> {
        if !self.caps().takes(frame, body) {
            return Err(PostRefusal::Malformed);
        }
        let len = frame.body_len() as usize;
        let count = message::messages(len);
        if !self.free.has(count) {
            self.ring(stats);
        }
        if self.has_failed() && !mutant!("verbs_posts_behind_a_refused_one") {
            return Err(PostRefusal::Closed);
        }
        if self.credit(VERBS_WINDOW_RESERVE) < count || !self.free.has(count) || self.room() < count
        {
            stats.refused_full += 1;
            return Err(PostRefusal::Full);
        }
        self.first(frame, body, None, slots, stats);
        if count > 1 {
            let mut start = message::first_len(len);
            while start < len {
                start = self.further(body, start, slots, stats);
            }
        }
        stats.frames += 1;
        Ok(())
    }

    /// Takes a write, of a source that is registered under `lkey` or is not.
    pub(super) fn post_write(&mut self, write: Write, lkey: Option<u32>) -> Result<(), Write> {
        if !self.outgoing.has_room() {
            return Err(write);
        }
        let landing = write.landing;
        if self.outgoing.post(write, lkey, &mut self.ended) == Settled::Ask {
            self.words.push_back(Word::Ask(landing));
        }
        Ok(())
    }

    pub(super) fn open_landing(
        &mut self,
        landing: Landing,
        buffer: Buffer,
        at: (u64, u32),
    ) -> Result<(), Buffer> {
        self.incoming.open(landing, buffer, at)
    }

    pub(super) fn close_landing(&mut self, landing: Landing, given: &mut VecDeque<GivenBack>) {
        match self.incoming.close(landing) {
            ClosedLanding::Nothing => {}
            ClosedLanding::Ask => self.words.push_back(Word::Close(landing)),
            ClosedLanding::Quiet(buffer) => given.push_back(GivenBack::Quiet {
                qp: self.id,
                landing,
                buffer,
            }),
        }
    }

    pub(super) const fn leave(&mut self) {
        self.state = State::Leaving;
    }

    /// Puts it into error. From here on it only gives back what it holds.
    pub(super) fn go_down(&mut self, reason: DownReason, fault: Option<VerbsError>) {
        if self.is_down() {
            return;
        }
        // Of a queue pair that we closed, how it ends is no news.
        if self.state != State::Leaving {
            self.reason = reason;
        }
        let untold = self.posted.len() - self.qp.staged();
        self.strand(untold);
        self.qp.unstage();
        self.words.clear();
        let failed = self.qp.fail();
        // A queue pair that cannot be put into error flushes nothing: only its destruction makes it quiet.
        self.until = failed.is_err().then_some(Nanos::ZERO);
        if failed.is_ok() {
            self.mark_end();
        }
        self.fault = self.fault.take().or(fault).or_else(|| failed.err());
        if let Some(proof) = &self.proof {
            proof.note(Proof::FAILED);
        }
        self.state = State::Down;
    }

    // ───────────────────────────────────────────────── outputs ─────────────────────────────────────────────────

    /// Posts what waits, as far as there is room, and rings the doorbell once. True if something is left to do.
    #[inline]
    pub(super) fn flush(&mut self, slots: &mut Slots, tools: &mut Tools<'_>) -> bool {
        let has_more = self.has_more();
        if has_more {
            self.stage_more(slots, tools);
        }
        self.ring(tools.stats);
        has_more && self.has_more() && !self.is_down()
    }

    /// Stages what waits besides frames, as far as there is room.
    fn stage_more(&mut self, slots: &mut Slots, tools: &mut Tools<'_>) {
        self.settle(tools);
        if self.has_failed() {
            return;
        }
        match self.state {
            State::Open => {
                self.say(slots, tools.stats);
                self.advance(slots, tools);
                self.say_credit(slots, tools.stats);
            }
            State::Leaving => self.say_bye(slots, tools.stats),
            State::Proving => self.say(slots, tools.stats),
            State::Made | State::Down => {}
        }
    }

    /// True when a goodbye has arrived, or may take no longer.
    pub(super) fn has_left(&mut self, now: Nanos) -> bool {
        self.state == State::Leaving && (self.has_said_bye || self.is_over(now))
    }

    /// True when it may take no longer to leave, or to be quiet. The time begins with the first poll that asks: the
    /// shard may have slept before it, and what comes between two polls does not know how long.
    fn is_over(&mut self, now: Nanos) -> bool {
        let end = now.after(Duration::from_nanos(VERBS_DRAIN_NS));
        now >= *self.until.get_or_insert(end)
    }

    /// True when only its own destruction can still touch what it was lent, once the caller has seen all completions of
    /// before.
    pub(super) fn is_drained(&mut self, now: Nanos) -> bool {
        self.is_down()
            && (self.is_over(now) || self.posted.is_empty() && self.has_used_last_entry())
    }

    /// True if the device takes no entry of the shared receive queue for it any more.
    pub(super) fn has_used_last_entry(&self) -> bool {
        self.qp.has_used_last_entry()
    }

    /// True once the device itself put it into error.
    pub(super) fn is_broken(&self) -> bool {
        self.qp.is_broken()
    }

    /// Destroys the queue pair.
    ///
    /// # Errors
    /// [`VerbsError::Call`]: nothing of what it holds may be given back.
    pub(super) fn destroy(&mut self) -> Result<(), VerbsError> {
        self.qp.destroy()
    }

    /// Tells of the end of a queue pair that could not be destroyed. Of what was being written another handle is given
    /// back, so that the bytes stay as they are; landings stay where they are.
    pub(super) fn end_unproved(&mut self, tools: &mut Tools<'_>) {
        for write in self.outgoing.writes() {
            let write = Write {
                source: write.source.clone(),
                ..*write
            };
            tools.given.push_back(GivenBack::Wrote {
                qp: self.id,
                write,
                outcome: Outcome::Flushed,
            });
        }
        tools.given.push_back(GivenBack::Down {
            qp: self.id,
            reason: self.reason,
        });
    }

    /// It is destroyed after all: landings go back, and sources are let go of.
    pub(super) fn end_proved(mut self, tools: &mut Tools<'_>) {
        self.outgoing.take_all().for_each(drop);
        let before = tools.given.len();
        self.finish(tools);
        // That it is down was told.
        let told = |given: &GivenBack| matches!(given, GivenBack::Down { .. });
        if tools.given.len() > before && tools.given.back().is_some_and(told) {
            tools.given.pop_back();
        }
    }

    /// Gives back everything, of a queue pair that is destroyed.
    pub(super) fn finish(self, tools: &mut Tools<'_>) {
        let Self {
            qp,
            id,
            reason,
            mut incoming,
            mut outgoing,
            posted,
            stranded,
            ..
        } = self;
        drop(qp);
        tools.stage.free.extend(stranded);
        for posted in posted {
            if let Posted::Piece { stage, .. } = posted {
                tools.stage.free.extend(stage);
            }
        }
        for (landing, buffer) in incoming.take_all() {
            tools.given.push_back(GivenBack::Quiet {
                qp: id,
                landing,
                buffer,
            });
        }
        for write in outgoing.take_all() {
            tools.given.push_back(GivenBack::Wrote {
                qp: id,
                write,
                outcome: Outcome::Flushed,
            });
        }
        tools.given.push_back(GivenBack::Down { qp: id, reason });
    }

    /// True if a post was refused: the queue pair is to go down.
    pub(super) fn has_failed(&self) -> bool {
        self.fault.is_some() && !self.is_down()
    }
}

impl GivenBack {
    /// Hands it to the sink.
    pub(super) fn give<S: FnMut(Arrival<'_>)>(self, sink: &mut S) {
        match self {
            Self::Quiet {
                qp,
                landing,
                buffer,
            } => sink(Arrival::Quiet {
                qp,
                landing,
                buffer,
            }),
            Self::Wrote { qp, write, outcome } => {
                let source: Tensor = write.source;
                sink(Arrival::Wrote {
                    qp,
                    token: write.token,
                    source,
                    outcome,
                });
            }
            Self::Down { qp, reason } => sink(Arrival::Down { qp, reason }),
        }
    }
}
