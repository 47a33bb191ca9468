//! Steps: which are alive, which only peers have spoken of, and the tombstones of those that ended.
//!
//! Knows step numbers and the heads of their record lists; values, waiters and records are the table's.
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
use crate::ground::{Nanos, Status, StepId};

pub(super) const NONE: u32 = u32::MAX;

/// Every step this shard knows of.
#[derive(Debug)]
pub(super) struct Steps {
    steps: Vec<Step>,
    free: u32,
    index: Index,
    seed: u64,
    live: u32,
    grace: List,
    tombstones: List,
}

/// One step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) id: StepId,
    pub(super) state: State,
    /// The first of its records; they are linked by the table.
    pub(super) records: u32,
    /// Bytes of its parked values.
    pub(super) bytes: u64,
    /// Bytes of its values that left the table and are still kept for receivers.
    pub(super) held: u64,
    /// When it came to be known.
    since: Nanos,
    // Its place in the list of grace steps or of tombstones, each ordered by age; or in the free list.
    prev: u32,
    next: u32,
}

/// What a step is.
#[derive(Debug)]
pub(super) enum State {
    /// Used here.
    Live,
    /// Only peers have spoken of it.
    Grace,
    /// Ended by the status: the first one.
    Aborted(Status),
    /// Ended by clean-up.
    Finished,
    /// Ended by its time as a grace step.
    Unclaimed,
    /// No step: on the free list.
    Free,
}

impl State {
    /// Why a step in this state takes nothing, if so.
    pub(super) const fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Live | Self::Grace => None,
            Self::Aborted(_) => Some(Refusal::Aborted),
            Self::Finished => Some(Refusal::Finished),
            Self::Unclaimed | Self::Free => Some(Refusal::Unclaimed),
        }
    }
}

#[derive(Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl Steps {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            steps: Vec::new(),
            free: NONE,
            index: Index::new(),
            seed: limits.hash_seed,
            live: 0,
            grace: List::EMPTY,
            tombstones: List::EMPTY,
        }
    }

    /// The number of a step, whatever its state.
    pub(super) fn find(&self, id: StepId) -> Option<u32> {
        self.index
            .find(self.tag(id), |number| self.steps[number as usize].id == id)
    }

    /// Makes a step live through local use. True if that was news for its records: it was in grace.
    pub(super) fn open(
        &mut self,
        now: Nanos,
        id: StepId,
        limits: &Limits,
    ) -> Result<(u32, bool), Refusal> {
        let known = self.find(id);
        if let Some(number) = known {
            let state = &self.steps[number as usize].state;
            if let Some(refusal) = state.refusal() {
                return Err(refusal);
            }
            if matches!(state, State::Live) {
                return Ok((number, false));
            }
        }
        if self.live >= limits.steps {
            return Err(Refusal::Steps);
        }
        self.live += 1;
        if let Some(number) = known {
            self.grace.remove(&mut self.steps, number);
            self.steps[number as usize].state = State::Live;
            return Ok((number, true));
        }
        Ok((self.insert(now, id, State::Live), false))
    }

    /// The number of a step that a peer speaks of: as it is, or new and in grace.
    pub(super) fn hear_of(
        &mut self,
        now: Nanos,
        id: StepId,
        limits: &Limits,
    ) -> Result<u32, Refusal> {
        if let Some(number) = self.find(id) {
            return self.steps[number as usize]
                .state
                .refusal()
                .map_or(Ok(number), Err);
        }
        if self.grace.len >= limits.grace_steps {
            return Err(Refusal::GraceSteps);
        }
        let number = self.insert(now, id, State::Grace);
        self.grace.push(&mut self.steps, number);
        Ok(number)
    }

    /// Turns a step into a tombstone, and an unknown one too. False if it was one already: then it stays as it is.
    /// Its records must be gone.
    pub(super) fn bury(&mut self, now: Nanos, id: StepId, epitaph: State, limits: &Limits) -> bool {
        let number = match self.find(id) {
            Some(number) => {
                match self.steps[number as usize].state {
                    State::Live => self.live -= 1,
                    State::Grace => self.grace.remove(&mut self.steps, number),
                    _ => return false,
                }
                self.steps[number as usize].state = epitaph;
                number
            }
            None => self.insert(now, id, epitaph),
        };
        self.tombstones.push(&mut self.steps, number);
        let is_forgetful = mutant!("tombstones_forgotten");
        while self.tombstones.len > if is_forgetful { 0 } else { limits.tombstones } {
            self.forget_oldest();
        }
        true
    }

    /// The grace step that has waited longest, and when it began to.
    pub(super) fn oldest_grace(&self) -> Option<(StepId, Nanos)> {
        let step = self.steps.get(self.grace.head as usize)?;
        Some((step.id, step.since))
    }

    /// True for a step that only peers have spoken of.
    pub(super) fn is_grace(&self, number: u32) -> bool {
        matches!(self.steps[number as usize].state, State::Grace)
    }

    /// How many steps are live, in grace, and remembered as tombstones.
    pub(super) const fn counts(&self) -> (u32, u32, u32) {
        (self.live, self.grace.len, self.tombstones.len)
    }

    /// The numbers that [`Steps::step`] accepts.
    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        0..self.steps.len() as u32
    }

    #[inline]
    pub(super) fn step(&self, number: u32) -> &Step {
        &self.steps[number as usize]
    }

    #[inline]
    pub(super) fn step_mut(&mut self, number: u32) -> &mut Step {
        &mut self.steps[number as usize]
    }

    fn insert(&mut self, now: Nanos, id: StepId, state: State) -> u32 {
        let step = Step {
            id,
            state,
            records: NONE,
            bytes: 0,
            held: 0,
            since: now,
            prev: NONE,
            next: NONE,
        };
        let number = if self.free == NONE {
            self.steps.push(step);
            self.steps.len() as u32 - 1
        } else {
            let number = self.free;
            self.free = self.steps[number as usize].next;
            self.steps[number as usize] = step;
            number
        };
        self.index.insert(self.tag(id), number);
        number
    }

    fn forget_oldest(&mut self) {
        let number = self.tombstones.head;
        self.tombstones.remove(&mut self.steps, number);
        let id = self.steps[number as usize].id;
        self.index.remove(self.tag(id), number);
        let step = &mut self.steps[number as usize];
        step.state = State::Free;
        step.next = self.free;
        self.free = number;
    }

    fn tag(&self, id: StepId) -> u32 {
        fold(
            id.0 ^ self.seed ^ 0x9e37_79b9_7f4a_7c15,
            0xd6e8_feb8_6659_fd93,
        ) as u32
    }
}

impl List {
    const EMPTY: Self = Self {
        head: NONE,
        tail: NONE,
        len: 0,
    };

    fn push(&mut self, steps: &mut [Step], number: u32) {
        let tail = std::mem::replace(&mut self.tail, number);
        match steps.get_mut(tail as usize) {
            Some(before) => before.next = number,
            None => self.head = number,
        }
        steps[number as usize].prev = tail;
        steps[number as usize].next = NONE;
        self.len += 1;
    }

    fn remove(&mut self, steps: &mut [Step], number: u32) {
        let (prev, next) = (steps[number as usize].prev, steps[number as usize].next);
        match steps.get_mut(prev as usize) {
            Some(before) => before.next = next,
            None => self.head = next,
        }
        match steps.get_mut(next as usize) {
            Some(after) => after.prev = prev,
            None => self.tail = prev,
        }
        self.len -= 1;
    }
}
