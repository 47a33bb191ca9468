//! Session: which incarnation of its peer this channel talks to, in which epochs, and how far the greeting has come.
//!
//! It knows hellos and lives; not what goes with them. Any state goes to `Down` when the connection ends.
//!
//! ```text
//!   Down ──connected──▶ Greeting ──ours posted──▶ Greeted ──theirs heard──▶ Up
//!                           └───theirs heard──▶ Answering ──ours posted─────▶┘
//! ```

use super::heard::Violation;
use super::{ChannelSettings, Hello};
use crate::ground::Incarnation;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(super) enum SessionState {
    Down,
    Greeting,
    Greeted,
    Answering,
    Up,
}

impl SessionState {
    /// True if our hello is due.
    #[cold]
    pub(super) const fn owes_hello(self) -> bool {
        matches!(self, Self::Greeting | Self::Answering)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Peer {
    incarnation: Incarnation,
    epoch: u64,
}

#[derive(Debug)]
pub(super) struct Session {
    state: SessionState,
    ours: Incarnation,
    epoch: u64,
    peer: Option<Peer>,
    /// How many epochs, of either side, have ended.
    life: u32,
    /// The incarnation of the last hello, and `life` when it was first heard.
    met: Option<(Incarnation, u32)>,
    /// Values for this life of the peer were dropped here with an epoch, and it does not know yet.
    dropped_for: Option<Incarnation>,
}

/// What a hello says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Met {
    /// The peer's earlier incarnation, if it said hello before in this epoch of ours.
    pub(super) former: Option<Incarnation>,
    /// The former one, or its epoch, is over.
    pub(super) is_other_epoch: bool,
    /// How many frames of ours it has consumed.
    pub(super) consumed: u64,
    /// It has dropped values for us, or does so when it hears our hello.
    pub(super) has_dropped: bool,
}

impl Session {
    pub(super) const fn new(settings: &ChannelSettings) -> Self {
        Self {
            state: SessionState::Down,
            ours: settings.incarnation,
            epoch: 1,
            peer: None,
            life: 0,
            met: None,
            dropped_for: None,
        }
    }

    pub(super) const fn connected(&mut self) {
        self.state = SessionState::Greeting;
    }

    pub(super) const fn disconnected(&mut self) {
        self.state = SessionState::Down;
    }

    /// Our epoch ends, with all that its peer was.
    pub(super) const fn lose(&mut self) {
        self.epoch += 1;
        self.life = self.life.wrapping_add(1);
        self.peer = None;
        self.state = SessionState::Down;
    }

    /// As [`Session::lose`], and the peer to come is another one.
    pub(super) const fn rebind(&mut self, epoch: u64) {
        self.lose();
        self.epoch = epoch;
        (self.met, self.dropped_for) = (None, None);
    }

    /// Values for that life of the peer were dropped: our hellos say so until it has heard one.
    pub(super) const fn mark_dropped(&mut self, reader: Incarnation) {
        self.dropped_for = Some(reader);
    }

    /// What ours says. It names the peer's life and none of its epochs if values for that life were dropped. A peer
    /// that has sent a frame has heard that.
    pub(super) fn hello(&self, consumed: u64, settings: &ChannelSettings) -> Hello {
        let known = self.peer.map(|peer| (peer.incarnation, peer.epoch));
        let dropped = self.dropped_for.filter(|_| consumed == 0);
        let expected = dropped.map(|reader| (reader, 0)).or(known);
        let (expected, peer_epoch) = expected.unwrap_or((Incarnation::CURRENT, 0));
        Hello {
            incarnation: self.ours,
            expected,
            epoch: self.epoch,
            peer_epoch,
            consumed,
            frame_window: settings.frame_window,
            line_window: settings.line_window,
        }
    }

    /// Ours was posted.
    pub(super) fn mark_greeted(&mut self) {
        self.state = match self.state {
            SessionState::Answering | SessionState::Up => SessionState::Up,
            SessionState::Down | SessionState::Greeting | SessionState::Greeted => {
                SessionState::Greeted
            }
        };
    }

    /// Theirs came.
    pub(super) fn hear(&mut self, hello: &Hello) -> Result<Met, Violation> {
        if !matches!(self.state, SessionState::Greeting | SessionState::Greeted) {
            return Err(Violation::SecondHello);
        }
        if hello.frame_window == 0 || hello.line_window == 0 || hello.line_window >= 1 << 15 {
            return Err(Violation::Window);
        }
        let peer = Peer {
            incarnation: hello.incarnation,
            epoch: hello.epoch,
        };
        let former = self.peer.replace(peer);
        let is_other_epoch = former.is_some_and(|former| former != peer);
        if is_other_epoch {
            // Our own epoch stays: its number is in a hello that may be on its way, and the peer has forgotten it.
            self.life = self.life.wrapping_add(1);
        }
        if self.met.is_none_or(|(met, _)| met != hello.incarnation) {
            self.met = Some((hello.incarnation, self.life));
        }
        // A peer that speaks of our predecessor, or of an epoch that is over, has consumed nothing of this one.
        let knows_life = hello.expected == self.ours;
        let is_of_us = knows_life && hello.peer_epoch == self.epoch;
        let has_heard = is_of_us || self.dropped_for != Some(hello.incarnation);
        self.dropped_for = self.dropped_for.filter(|_| !has_heard);
        Ok(Met {
            has_dropped: former.is_none() && knows_life && !is_of_us,
            former: former.map(|former| former.incarnation),
            is_other_epoch,
            consumed: if is_of_us { hello.consumed } else { 0 },
        })
    }

    /// What theirs said was possible. They send nothing more before they have heard ours.
    pub(super) fn accept(&mut self) {
        self.state = if self.state == SessionState::Greeted {
            SessionState::Up
        } else {
            SessionState::Answering
        };
    }

    /// True between the hellos and the end of the connection.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        self.state >= SessionState::Answering
    }

    #[inline]
    pub(super) const fn state(&self) -> SessionState {
        self.state
    }

    /// True if what is said now may reach a peer.
    pub(super) fn may_know(&self) -> bool {
        self.peer.is_some() || self.state != SessionState::Down
    }

    pub(super) fn peer(&self) -> Option<Incarnation> {
        self.peer.map(|peer| peer.incarnation)
    }

    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    #[inline]
    pub(super) const fn life(&self) -> u32 {
        self.life
    }

    /// How many lives ended while the peer was what it is now.
    pub(super) fn lives_of_peer(&self) -> u32 {
        self.met.map_or(0, |(_, life)| self.life.wrapping_sub(life))
    }
}
