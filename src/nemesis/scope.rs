//! Scope: which step two lives of two tasks use at a time, and what each hands the other in it.
//!
//! Knows no engine and no clock. Both sides compute the same number from the time and from what they know of each
//! other's life, so a task that was away need not be told where the others are. Two lives of one task never share a
//! step, so no judge can confuse them.

use rendez::ground::StepId;
use rendez::ground::rng::Rng;

/// How long a step is filled.
pub(super) const SLOT_NS: u64 = 250_000_000;

/// The most tasks of a cluster under test, and lives of one.
const TASK_BITS: u32 = 4;
const LIFE_BITS: u32 = 10;
const SLOT_BITS: u32 = 36;
const _: () = assert!(2 * TASK_BITS + 2 * LIFE_BITS + SLOT_BITS == 64);

/// The slot of receives that nothing is ever sent to: they measure how soon a loss is told.
pub(super) const WATCH_SLOT: u64 = (1 << SLOT_BITS) - 1;

/// Slots from here on are those in which a task sends as much as it may to one that does not receive for a while.
pub(super) const FLOOD_SLOT: u64 = 1 << (SLOT_BITS - 1);
/// How long such a step lasts, how long of it is sent, and when its receiver begins and leaves.
pub(super) const FLOOD_NS: u64 = 4_000_000_000;
/// See there.
pub(super) const FLOOD_SENT_NS: u64 = 2_000_000_000;
/// See there.
pub(super) const FLOOD_TAKEN_NS: u64 = 2_300_000_000;
/// See there.
pub(super) const FLOOD_LEFT_NS: u64 = 3_200_000_000;

/// When values of devices are sent, and when no task sends any, so that all that they hold comes home.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lull;

impl Lull {
    /// Slots until the same comes again; slots in which such values are sent; and when all is at rest.
    const SLOTS: u64 = 32;
    const SENT: u64 = 8;
    const REST: u64 = 26;
    /// From the last such value up to that rest: longer than a step that is over is kept.
    pub(super) const WHOLE_NS: u64 = (Self::REST - Self::SENT) * SLOT_NS;
    /// For how much of it a machine may not let a task run.
    pub(super) const LATE_NS: u64 = SLOT_NS;

    /// True if all that was sent has had its time.
    pub(super) const fn is_rest(slot: u64) -> bool {
        slot % Self::SLOTS >= Self::REST
    }
}

/// A kind of value: each has a key of its own in each direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Kind {
    /// Travels in its frame.
    Small,
    /// Some pages.
    Middle,
    /// About a mebibyte.
    Large,
    /// Lies on a device of its sender's.
    Device,
    /// Is sent faster than it is received.
    Flood,
    /// Is never sent.
    Watch,
}

impl Kind {
    /// Those that are sent in a step, each in its turn.
    pub(super) const SENT: [Self; 4] = [Self::Small, Self::Middle, Self::Large, Self::Device];

    /// True if it is sent in the steps of that slot.
    pub(super) const fn is_due(self, slot: u64) -> bool {
        !matches!(self, Self::Device) || slot % Lull::SLOTS < Lull::SENT
    }

    /// As it stands in histories and keys.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Middle => "middle",
            Self::Large => "large",
            Self::Device => "device",
            Self::Flood => "flood",
            Self::Watch => "watch",
        }
    }

    /// The kind of that name.
    pub(super) fn of(name: &str) -> Option<Self> {
        let all = [
            Self::Small,
            Self::Middle,
            Self::Large,
            Self::Device,
            Self::Flood,
            Self::Watch,
        ];
        all.into_iter().find(|kind| kind.name() == name)
    }

    /// Values of a step, each way.
    pub(super) const fn count(self) -> u32 {
        match self {
            Self::Small => 8,
            Self::Middle => 3,
            Self::Device => 4,
            Self::Large => 1,
            Self::Flood | Self::Watch => 0,
        }
    }

    /// Words of a value: sizes change, so that no receiver can guess them.
    pub(super) const fn words(self, dice: u64) -> u64 {
        match self {
            Self::Small | Self::Watch => 8 + dice % 24,
            Self::Middle => 256 + dice % 1024,
            Self::Large => (1 << 17) + dice % 512,
            // Of one chunk of the pinned pool, or of several.
            Self::Device => 64 + dice % 40_000,
            Self::Flood => 448 + dice % 32,
        }
    }
}

/// Two tasks, the lower first, with their lives, at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Scope {
    pub(super) tasks: (u32, u32),
    pub(super) lives: (u32, u32),
    pub(super) slot: u64,
}

impl Scope {
    /// The scope of two tasks, each with its life, in any order.
    pub(super) fn new(one: (u32, u32), other: (u32, u32), slot: u64) -> Self {
        let (low, high) = (one.min(other), one.max(other));
        Self {
            tasks: (low.0, high.0),
            lives: (low.1, high.1),
            slot,
        }
    }

    /// The step's number.
    pub(super) const fn step(&self) -> StepId {
        let mut bits = self.tasks.0 as u64;
        bits = (bits << TASK_BITS) | self.tasks.1 as u64;
        bits = (bits << LIFE_BITS) | self.lives.0 as u64;
        bits = (bits << LIFE_BITS) | self.lives.1 as u64;
        StepId((bits << SLOT_BITS) | (self.slot & WATCH_SLOT))
    }

    /// What that number says.
    pub(super) const fn of(step: u64) -> Self {
        let high_life = SLOT_BITS;
        let low_life = high_life + LIFE_BITS;
        let high_task = low_life + LIFE_BITS;
        let low_task = high_task + TASK_BITS;
        Self {
            tasks: (
                part(step, low_task, TASK_BITS),
                part(step, high_task, TASK_BITS),
            ),
            lives: (
                part(step, low_life, LIFE_BITS),
                part(step, high_life, LIFE_BITS),
            ),
            slot: step & WATCH_SLOT,
        }
    }

    /// The life of one of the two.
    pub(super) const fn life_of(&self, task: u32) -> u32 {
        if task == self.tasks.0 {
            self.lives.0
        } else {
            self.lives.1
        }
    }

    /// When it begins.
    pub(super) const fn begins_ns(&self) -> u64 {
        match self.slot {
            WATCH_SLOT => 0,
            FLOOD_SLOT.. => (self.slot - FLOOD_SLOT) * FLOOD_NS,
            _ => self.slot * SLOT_NS,
        }
    }

    /// True if the lower task ends the step on purpose in the middle of it: one step of six.
    pub(super) fn is_to_be_aborted(&self) -> bool {
        self.slot < FLOOD_SLOT && mixed(self.step().0).is_multiple_of(6)
    }
}

const fn part(step: u64, shift: u32, bits: u32) -> u32 {
    ((step >> shift) & ((1 << bits) - 1)) as u32
}

/// The first number of a seed: dice that both sides throw alike.
pub(super) fn mixed(seed: u64) -> u64 {
    Rng::new(seed).next_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_says_who_uses_it() {
        let scope = Scope::new((3, 7), (1, 900), 123_456);
        assert_eq!(scope.tasks, (1, 3));
        assert_eq!(Scope::of(scope.step().0), scope);
        assert_eq!((scope.life_of(3), scope.life_of(1)), (7, 900));
        let flood = Scope::new((3, 7), (1, 900), FLOOD_SLOT + 9);
        assert_eq!(Scope::of(flood.step().0).begins_ns(), 9 * FLOOD_NS);
    }
}
