//! Demand: what we ask the peer for, a machine of states.
//!
//! It knows no frames and no fabric. An event is a method, and its outcome says what the channel must do.
//!
//! ```text
//!             ask           cancel                answer
//!   New ──────────▶ Asked ──────────▶ Cancelled ──────────▶ gone     if no landing is open
//!    │              │ │ ▲ ask again        │
//!    │ cancel       │ └─┘ (none is open)   │ answer
//!    ▼              │ answer               ▼            quiet
//!   gone            └─────────────────▶ Answered ──────────▶ gone    if one is open: it comes home first
//!
//!   quiet: the landing came home with nothing in it. Asked { Open } ▶ Asked { Home }, which wants another;
//!          Cancelled { is_open } ▶ Cancelled { !is_open }.
//!   gone:  from every state by a value that landed, by an answer where no landing is open, and by `settle`.
//! ```
//!
//! An answer to a demand that was asked again may be one to the first time: the outcome says so, once.

use super::demands::Demands;
use super::keyed::OfKey;
use crate::ground::TensorMeta;
use crate::rendezvous::KeyId;
use crate::wire::{Point, Ticket};

/// An offer of the peer that a demand accepts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Accepted {
    /// The offer's ticket at the peer.
    pub ticket: Ticket,
    /// Type and shape of the value.
    pub meta: TensorMeta,
    /// Its length in bytes.
    pub size: u64,
    /// True for a dead value.
    pub is_dead: bool,
    /// The lines it holds here.
    pub lines: u32,
}

/// A value we asked the peer for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Demand {
    /// Whose it is, in the shard's own terms.
    pub tag: u64,
    /// The key.
    pub key: KeyId,
    /// Step, loop frame, iteration.
    pub point: Point,
    /// The ordinal asked for.
    pub ordinal: u32,
    /// The offer it accepts.
    pub offer: Option<Accepted>,
    /// Type and shape its landing is made for.
    pub meta: Option<TensorMeta>,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The peer has not heard of it. True if it wants a landing.
    New(bool),
    /// Its request was queued. `is_again`: on a further connection, while the peer may have answered what it heard on
    /// the one before.
    Asked { landing: Landing, is_again: bool },
    /// It was taken back, and its end is still to come.
    Cancelled { is_open: bool, is_again: bool },
    /// It has its end; its landing is still open.
    Answered,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Landing {
    /// Asked without one.
    None,
    /// The peer may write.
    Open,
    /// It went with its connection: the demand wants another.
    Home,
}

/// What follows from taking a demand back.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Cancelled {
    /// The peer must hear of it.
    Tell,
    /// The peer never heard of the demand, which is gone; an offer that it was to accept still lies there.
    Unheard(Option<Accepted>),
    /// It is over, or was taken back before.
    Not,
}

/// What follows from an answer of the peer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Answer {
    /// It ends the demand. `is_again`: the peer takes the second request for a new one, which must be taken back.
    Ends { demand: Demand, is_again: bool },
    /// The demand has had its end, and waits for its landing alone.
    Late,
    /// There is no such demand.
    Stale,
}

impl Demand {
    /// A demand for the value of `ordinal`, without a landing.
    #[must_use]
    pub const fn new(tag: u64, key: KeyId, point: Point, ordinal: u32) -> Self {
        Self {
            tag,
            key,
            point,
            ordinal,
            offer: None,
            meta: None,
            state: State::New(false),
        }
    }

    /// The same, to be written to a landing for this type and shape.
    #[must_use]
    pub const fn landing_for(mut self, meta: TensorMeta) -> Self {
        self.meta = Some(meta);
        self.state = State::New(true);
        self
    }

    /// True while the peer may write to a landing of it.
    #[must_use]
    pub const fn has_landing(&self) -> bool {
        matches!(
            self.state,
            State::Asked {
                landing: Landing::Open,
                ..
            } | State::Cancelled { is_open: true, .. }
                | State::Answered
        )
    }

    /// True if it may be asked now: it stands, and no landing is open.
    #[must_use]
    pub const fn may_ask(&self) -> bool {
        !self.is_over() && !self.has_landing()
    }

    /// True if it wants a landing and has none, or none any more.
    #[must_use]
    pub const fn is_bare(&self) -> bool {
        matches!(
            self.state,
            State::New(true)
                | State::Asked {
                    landing: Landing::Home,
                    ..
                }
        )
    }

    /// True once its request was queued.
    #[must_use]
    pub const fn is_asked(&self) -> bool {
        !matches!(self.state, State::New(_))
    }

    /// True once its request was queued on a further connection.
    pub(super) const fn is_asked_again(&self) -> bool {
        matches!(
            self.state,
            State::Asked { is_again: true, .. } | State::Cancelled { is_again: true, .. }
        )
    }

    /// True once it was taken back or answered.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Cancelled { .. } | State::Answered)
    }

    /// Its request is queued. False, and nothing happens, if it may not be asked now.
    pub(crate) fn ask(&mut self, has_landing: bool) -> bool {
        if !self.may_ask() {
            return false;
        }
        let landing = if has_landing {
            Landing::Open
        } else {
            Landing::None
        };
        let is_again = self.is_asked();
        self.state = State::Asked { landing, is_again };
        true
    }

    /// It is taken back.
    fn cancel(&mut self) -> Cancelled {
        match self.state {
            State::New(_) => Cancelled::Unheard(self.offer),
            State::Asked { landing, is_again } => {
                let is_open = landing == Landing::Open;
                self.state = State::Cancelled { is_open, is_again };
                Cancelled::Tell
            }
            State::Cancelled { .. } | State::Answered => Cancelled::Not,
        }
    }

    /// The peer answered: whether it had been asked again. `None` if it had an answer before.
    const fn answer(&mut self) -> Option<bool> {
        let is_again = match self.state {
            State::New(_) => false,
            State::Asked { is_again, .. } | State::Cancelled { is_again, .. } => is_again,
            State::Answered => return None,
        };
        if self.has_landing() {
            self.state = State::Answered;
        }
        Some(is_again)
    }

    /// Its landing came home with nothing in it. False if that is its end.
    pub(crate) const fn quiet(&mut self) -> bool {
        match &mut self.state {
            State::Asked { landing, .. } if matches!(landing, Landing::Open) => {
                *landing = Landing::Home;
            }
            State::Cancelled { is_open, .. } => *is_open = false,
            State::New(_) | State::Asked { .. } => {}
            State::Answered => return false,
        }
        true
    }
}

impl OfKey for Demand {
    fn key(&self) -> KeyId {
        self.key
    }
}

/// What happens to one of them.
impl Demands {
    /// See [`Demand::ask`]: the demand, if its request goes.
    pub(super) fn ask(&mut self, ticket: Ticket, has_landing: bool) -> Option<&Demand> {
        let demand = self.at_mut(ticket)?;
        demand.ask(has_landing).then_some(&*demand)
    }

    pub(super) fn cancel(&mut self, ticket: Ticket) -> Cancelled {
        let demand = self.at_mut(ticket);
        let cancelled = demand.map_or(Cancelled::Not, Demand::cancel);
        if matches!(cancelled, Cancelled::Unheard(_)) {
            self.remove(ticket);
        }
        cancelled
    }

    /// The peer answered. With the rule off that makes it so, a demand goes though its landing is open.
    pub(super) fn answer(&mut self, ticket: Ticket, waits_for_landing: bool) -> Answer {
        let Some(demand) = self.at_mut(ticket) else {
            return Answer::Stale;
        };
        let Some(is_again) = demand.answer() else {
            return Answer::Late;
        };
        let demand = *demand;
        if !demand.has_landing() || !waits_for_landing {
            self.remove(ticket);
        }
        Answer::Ends { demand, is_again }
    }

    /// See [`Demand::quiet`]: true if the demand stands.
    pub(super) fn quiet(&mut self, ticket: Ticket) -> bool {
        let stands = self.at_mut(ticket).is_some_and(Demand::quiet);
        if !stands {
            self.remove(ticket);
        }
        stands
    }

    /// A connection ended: every landing is home.
    pub(super) fn end_connection(&mut self) {
        for ticket in self.picked(Demand::has_landing) {
            self.quiet(ticket);
        }
    }
}

#[cfg(test)]
mod tests;
