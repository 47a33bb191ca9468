//! The naive model of the matching table: maps and queues, and sums taken anew each time.

use std::collections::{BTreeMap, VecDeque};

use rendez::ground::{Nanos, StepId};
use rendez::rendezvous::{Ended, Limits, Refusal, Slot, WaiterId};

pub(crate) const LIMITS: Limits = Limits {
    records: 12,
    values: 14,
    waiters: 10,
    waiters_per_key: 5,
    parked_bytes: 60,
    parked_bytes_per_step: 40,
    steps: 4,
    tombstones: 3,
    grace_steps: 2,
    grace_ttl_ns: 30_000,
    hash_seed: 11,
    first_ordinal: u32::MAX - 2,
};

/// The ordinal of the value of this rank: the model counts a slot's values from 0.
pub(crate) const fn ordinal_of(rank: u32) -> u32 {
    LIMITS.first_ordinal.wrapping_add(rank)
}

/// Which of its slot's values has that ordinal.
pub(crate) const fn rank(ordinal: u32) -> u32 {
    ordinal.wrapping_sub(LIMITS.first_ordinal)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Live,
    Grace(Nanos),
    Dead(Refusal),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Body {
    Value(u64, u64),
    Offer(u64, bool),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) ordinal: u32,
    pub(crate) since: Nanos,
    pub(crate) body: Body,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) id: WaiterId,
    pub(crate) tag: u64,
    pub(crate) deadline: Nanos,
    pub(crate) since: Nanos,
}

#[derive(Default, Debug)]
pub(crate) struct Point {
    /// Which of all points that ever were it is.
    pub(crate) born: u64,
    pub(crate) next: u32,
    pub(crate) items: VecDeque<Item>,
    pub(crate) waiters: VecDeque<Waiter>,
}

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) points: BTreeMap<Slot, Point>,
    pub(crate) steps: BTreeMap<StepId, Step>,
    pub(crate) graves: VecDeque<StepId>,
    pub(crate) now: Nanos,
    pub(crate) births: u64,
}

pub(crate) fn bytes_of(item: &Item) -> u64 {
    if let Body::Value(_, bytes) = item.body {
        bytes
    } else {
        0
    }
}

impl Model {
    pub(crate) fn items(&self) -> impl Iterator<Item = (&Slot, &Item)> {
        self.points
            .iter()
            .flat_map(|(slot, point)| point.items.iter().map(move |item| (slot, item)))
    }

    pub(crate) fn waiter_count(&self) -> usize {
        self.points.values().map(|point| point.waiters.len()).sum()
    }

    pub(crate) fn count(&self, is: impl Fn(&Step) -> bool) -> u32 {
        self.steps.values().filter(|step| is(step)).count() as u32
    }

    pub(crate) fn open(&mut self, step: StepId) -> Result<(), Refusal> {
        match self.steps.get(&step) {
            Some(Step::Live) => return Ok(()),
            Some(Step::Dead(refusal)) => return Err(*refusal),
            _ => {}
        }
        if self.count(|step| *step == Step::Live) >= LIMITS.steps {
            return Err(Refusal::Steps);
        }
        self.steps.insert(step, Step::Live);
        Ok(())
    }

    pub(crate) fn local(&mut self, slot: Slot) -> Result<&mut Point, Refusal> {
        self.open(slot.step)?;
        if !self.points.contains_key(&slot) && self.points.len() >= LIMITS.records as usize {
            return Err(Refusal::Records);
        }
        Ok(self.point(slot))
    }

    fn point(&mut self, slot: Slot) -> &mut Point {
        let births = &mut self.births;
        self.points.entry(slot).or_insert_with(|| {
            *births += 1;
            Point {
                born: *births,
                ..Point::default()
            }
        })
    }

    pub(crate) fn foreign(&mut self, slot: Slot) -> Result<&mut Point, Refusal> {
        if let Some(Step::Dead(refusal)) = self.steps.get(&slot.step) {
            return Err(*refusal);
        }
        if !self.points.contains_key(&slot) && self.points.len() >= LIMITS.records as usize {
            return Err(Refusal::Records);
        }
        if !self.steps.contains_key(&slot.step) {
            if self.count(|step| matches!(step, Step::Grace(_))) >= LIMITS.grace_steps {
                return Err(Refusal::GraceSteps);
            }
            self.steps.insert(slot.step, Step::Grace(self.now));
        }
        Ok(self.point(slot))
    }

    pub(crate) fn may_park(&self, slot: Slot, bytes: u64) -> Result<(), Refusal> {
        if self.parked_count() >= LIMITS.values as usize {
            return Err(Refusal::Values);
        }
        self.may_occupy(slot, bytes)
    }

    /// Values and offers that are not waited for.
    pub(crate) fn parked_count(&self) -> usize {
        let unwanted = |point: &Point| point.items.len().saturating_sub(point.waiters.len());
        self.points.values().map(unwanted).sum()
    }

    pub(crate) fn may_stand(&self, slot: Slot, bytes: u64) -> Result<(), Refusal> {
        if self.items().count() >= (LIMITS.values + LIMITS.waiters) as usize {
            return Err(Refusal::Values);
        }
        self.may_occupy(slot, bytes)
    }

    fn may_occupy(&self, slot: Slot, bytes: u64) -> Result<(), Refusal> {
        let all: u64 = self.items().map(|(_, item)| bytes_of(item)).sum();
        let of_step: u64 = self
            .items()
            .filter(|(other, _)| other.step == slot.step)
            .map(|(_, item)| bytes_of(item))
            .sum();
        if all + bytes > LIMITS.parked_bytes.max(all) && bytes > 0 {
            Err(Refusal::ParkedBytes)
        } else if of_step + bytes > LIMITS.parked_bytes_per_step.max(of_step) && bytes > 0 {
            Err(Refusal::ParkedBytesOfStep)
        } else {
            Ok(())
        }
    }

    pub(crate) fn may_wait(&self, slot: Slot) -> Result<(), Refusal> {
        if self.points[&slot].waiters.len() >= LIMITS.waiters_per_key as usize {
            Err(Refusal::WaitersOfKey)
        } else if self.waiter_count() >= LIMITS.waiters as usize {
            Err(Refusal::Waiters)
        } else {
            Ok(())
        }
    }

    /// Ends a step: what came out, in any order.
    pub(crate) fn end(&mut self, step: StepId, why: Refusal) -> (bool, Vec<String>) {
        if let Some(Step::Dead(_)) = self.steps.get(&step) {
            return (false, Vec::new());
        }
        let slots: Vec<Slot> = self
            .points
            .keys()
            .filter(|slot| slot.step == step)
            .copied()
            .collect();
        let out = slots
            .into_iter()
            .flat_map(|slot| self.end_point(slot))
            .collect();
        self.steps.insert(step, Step::Dead(why));
        self.graves.push_back(step);
        if self.graves.len() > LIMITS.tombstones as usize {
            let oldest = self.graves.pop_front().expect("not empty");
            self.steps.remove(&oldest);
        }
        (true, out)
    }

    pub(crate) fn end_point(&mut self, slot: Slot) -> Vec<String> {
        let point = self.points.remove(&slot).expect("a point");
        let waiters = point
            .waiters
            .iter()
            .map(|waiter| Ended::<u64, u64>::Waiter(slot, waiter.tag));
        let items = point.items.iter().map(|item| match item.body {
            Body::Value(value, _) => Ended::Value(slot, value),
            Body::Offer(token, fetching) => Ended::Offer {
                slot,
                token,
                fetching,
            },
        });
        waiters
            .chain(items)
            .map(|ended| format!("{ended:?}"))
            .collect()
    }

    /// Serves waiters from the front, as far as values go: who, with what, and its ordinal.
    pub(crate) fn drain(&mut self, slot: Slot) -> Vec<(u64, u64, u32)> {
        let point = self.points.get_mut(&slot).expect("a point");
        let mut out = Vec::new();
        while let (
            Some(&Item {
                body: Body::Value(value, _),
                ordinal,
                ..
            }),
            Some(_),
        ) = (point.items.front(), point.waiters.front())
        {
            point.items.pop_front();
            out.push((point.waiters.pop_front().expect("some").tag, value, ordinal));
        }
        out
    }
}
