//! Steps: which are alive, which only peers have spoken of, and the tombstones of those that ended.
//!
//! Knows what a step's values occupy; values, waiters and records are kept elsewhere.
//!
//! ```text
//!              local use                    abort, finish
//!   (unknown) ───────────▶ Live ──────────────────────────────▶ tombstone ──oldest evicted──▶ (unknown)
//!       │ a peer's frame    ▲  local use                          ▲
//!       └─────────────────▶ Grace ────── abort, finish, TTL ──────┘
//! ```

use super::index::{Index, fold};
use super::names::Limits;
use super::refusal::Refusal;
use super::slab::{List, RecordSlab};
use crate::ground::{Nanos, Status, StepId};

/// Every step this shard knows of.
#[derive(Debug)]
pub(super) struct Steps {
    steps: RecordSlab<Step>,
    index: Index,
    limits: Limits,
    live: u32,
    /// Each ordered by age.
    grace: List,
    tombstones: List,
    /// Steps that were watched, and that something has left.
    eased: Vec<StepId>,
}

/// One step.
#[derive(Debug)]
struct Step {
    id: StepId,
    state: StepPhase,
    /// Bytes of its parked values.
    parked: u64,
    /// Bytes of its values that left the table and are still kept for receivers.
    held: u64,
    /// When it came to be known.
    since: Nanos,
    /// A value waits for room in it.
    is_watched: bool,
}

/// What a step is.
#[derive(Debug)]
pub(super) enum StepPhase {
    /// Used here.
    Live,
    /// Only peers have spoken of it.
    Grace,
    /// Ended by the status: the first one.
    Aborted(Status),
    /// Ended by clean-up; or no step any more.
    Finished,
    /// Ended by its time as a grace step.
    Unclaimed,
}

impl StepPhase {
    /// Why a step in this state takes nothing, if so.
    pub(super) const fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Live | Self::Grace => None,
            Self::Aborted(_) => Some(Refusal::Aborted),
            Self::Finished => Some(Refusal::Finished),
            Self::Unclaimed => Some(Refusal::Unclaimed),
        }
    }
}

impl Steps {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            steps: RecordSlab::new(),
            index: Index::new(),
            limits,
            live: 0,
            grace: List::EMPTY,
            tombstones: List::EMPTY,
            eased: Vec::new(),
        }
    }

    /// The number of a step, whatever its state.
    pub(super) fn find(&self, id: StepId) -> Option<u32> {
        self.index
            .find(self.tag(id), |number| self.steps[number].id == id)
    }

    /// Makes a step live through local use. True if that was news for its records: it was in grace.
    pub(super) fn open(&mut self, now: Nanos, id: StepId) -> Result<(u32, bool), Refusal> {
        let known = self.find(id);
        if let Some(number) = known {
            let state = &self.steps[number].state;
            match (state.refusal(), state) {
                (Some(refusal), _) => return Err(refusal),
                (None, StepPhase::Live) => return Ok((number, false)),
                _ => {}
            }
        }
        if self.live >= self.limits.steps {
            return Err(Refusal::Steps);
        }
        self.live += 1;
        if let Some(number) = known {
            self.steps.unlink(&mut self.grace, number);
            self.steps[number].state = StepPhase::Live;
            return Ok((number, true));
        }
        Ok((self.insert(now, id, StepPhase::Live), false))
    }

    /// The number of a step that a peer speaks of, as it is or new and in grace; and whether it is in grace.
    pub(super) fn hear_of(&mut self, now: Nanos, id: StepId) -> Result<(u32, bool), Refusal> {
        if let Some(number) = self.find(id) {
            let state = &self.steps[number].state;
            let is_grace = matches!(state, StepPhase::Grace);
            return state.refusal().map_or(Ok((number, is_grace)), Err);
        }
        if self.grace.len() >= self.limits.grace_steps {
            return Err(Refusal::GraceSteps);
        }
        let number = self.insert(now, id, StepPhase::Grace);
        self.steps.insert(&mut self.grace, None, number);
        Ok((number, true))
    }

    /// Turns a step into a tombstone, and an unknown one too. False if it was one already: then it stays as it is.
    /// Its records must be gone.
    pub(super) fn bury(&mut self, now: Nanos, id: StepId, epitaph: StepPhase) -> bool {
        let number = match self.find(id) {
            Some(number) => {
                match self.steps[number].state {
                    StepPhase::Live => self.live -= 1,
                    StepPhase::Grace => self.steps.unlink(&mut self.grace, number),
                    _ => return false,
                }
                self.steps[number].state = epitaph;
                number
            }
            None => self.insert(now, id, epitaph),
        };
        self.steps.insert(&mut self.tombstones, None, number);
        let is_forgetful = mutant!("tombstones_forgotten");
        while self.tombstones.len()
            > if is_forgetful {
                0
            } else {
                self.limits.tombstones
            }
        {
            let oldest = self.tombstones.head();
            self.index.remove(self.tag(self.steps[oldest].id), oldest);
            self.steps.remove(&mut self.tombstones, oldest);
            self.steps[oldest].state = StepPhase::Finished;
        }
        true
    }

    /// The grace step that has waited longest, and when its time is over.
    pub(super) fn oldest_grace(&self) -> Option<(StepId, Nanos)> {
        let step = self.steps.get(self.grace.head())?;
        Some((step.id, step.since + self.limits.grace_ttl_ns))
    }

    /// How many steps are live, in grace, and remembered as tombstones.
    pub(super) const fn counts(&self) -> (u32, u32, u32) {
        (self.live, self.grace.len(), self.tombstones.len())
    }

    /// Every number that was given.
    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        self.steps.numbers()
    }

    /// Every step that has not ended.
    pub(super) fn alive(&self) -> impl Iterator<Item = StepId> {
        let all = self.numbers().map(|number| &self.steps[number]);
        all.filter_map(|step| step.state.refusal().is_none().then_some(step.id))
    }

    /// What a step is, if it is known.
    pub(super) fn state(&self, id: StepId) -> Option<&StepPhase> {
        self.find(id).map(|number| &self.steps[number].state)
    }

    /// Bytes that the values of a step occupy.
    pub(super) fn occupied(&self, number: u32) -> u64 {
        self.steps[number].parked + self.steps[number].held
    }

    /// A value of so many bytes was parked.
    pub(super) fn park(&mut self, number: u32, bytes: u64) {
        let parked = &mut self.steps[number].parked;
        *parked = parked.wrapping_add(bytes);
    }

    /// A parked value of so many bytes has left.
    #[inline]
    pub(super) fn unpark(&mut self, number: u32, bytes: u64) {
        let step = &mut self.steps[number];
        step.parked = step.parked.wrapping_sub(bytes);
        if step.is_watched {
            self.ease(number);
        }
    }

    /// Bytes that left the table and are kept for receivers have changed by so many.
    pub(super) fn hold(&mut self, number: u32, change: i64) {
        let step = &mut self.steps[number];
        step.held = step.held.saturating_add_signed(change);
        if step.is_watched && change < 0 {
            self.ease(number);
        }
    }

    /// A value waits for room in a step.
    pub(super) fn watch(&mut self, id: StepId) {
        if let Some(number) = self.find(id) {
            self.steps[number].is_watched = true;
        }
    }

    /// Something has left a step that is watched. Noted once, until it is watched again.
    #[cold]
    fn ease(&mut self, number: u32) {
        let step = &mut self.steps[number];
        step.is_watched = false;
        self.eased.push(step.id);
    }

    /// The next step that was watched and that something has left.
    pub(super) fn next_eased(&mut self) -> Option<StepId> {
        self.eased.pop()
    }

    fn insert(&mut self, now: Nanos, id: StepId, state: StepPhase) -> u32 {
        let number = self.steps.put(Step {
            id,
            state,
            parked: 0,
            held: 0,
            since: now,
            is_watched: false,
        });
        self.index.insert(self.tag(id), number);
        number
    }

    fn tag(&self, id: StepId) -> u32 {
        fold(
            id.0 ^ self.limits.hash_seed ^ 0x9e37_79b9_7f4a_7c15,
            0xd6e8_feb8_6659_fd93,
        ) as u32
    }
}
