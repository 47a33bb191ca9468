//! Frames: where a run stands in its loops: iterations, what waits in each, and what comes when one is over.
//!
//! It knows counts and places, and nothing of what a node does. The root is a frame of one iteration.

use std::collections::VecDeque;

use super::plan::{Count, Plan, PlanFrame};
use crate::kernel::Value;

/// Frames kept for another use, by a run that has ended.
const SPARE_FRAMES: usize = 256;
/// Iterations of each frame that are kept likewise: as many as run at once unless a graph asks for more, and some.
const SPARE_ITERATIONS: usize = 16;
/// No frame.
pub(super) const NONE: u32 = u32::MAX;

/// A loop under way, or the root.
#[derive(Debug, Default)]
pub(super) struct RunFrame {
    /// Which frame of the plan.
    pub(super) of: u32,
    /// What it is called in keys.
    pub(super) id: u64,
    /// Where it was entered from; `NONE` for the root.
    pub(super) parent: u32,
    pub(super) parent_iter: u64,
    /// The number of the first iteration that is kept.
    first: u64,
    iterations: VecDeque<Iteration>,
    /// Enter nodes that have not run.
    pub(super) enters_left: u32,
    /// What comes anew in each iteration, by its Enter; `None` is dead.
    pub(super) invariants: Vec<(u32, Option<Value>)>,
    /// What begins the next iteration, once it may begin.
    pub(super) deferred: Vec<(u32, Value)>,
    /// Exits that were dead in the last iteration.
    pub(super) dead_exits: Vec<u32>,
}

/// One iteration: what waits in it.
#[derive(Debug, Default)]
pub(super) struct Iteration {
    pub(super) counts: Vec<Count>,
    pub(super) slots: Vec<Option<Value>>,
    /// The frames entered from it, by their place among those of its frame.
    pub(super) children: Vec<u32>,
    /// Nodes that are ready or run, and frames entered from it that are open.
    pub(super) busy: u32,
}

/// The frames of a run. Those that are over are kept for another use.
#[derive(Debug, Default)]
pub(super) struct RunFrames {
    frames: Vec<RunFrame>,
    free: Vec<u32>,
    /// Iterations for another use, by the frame of the plan.
    spare: Vec<Vec<Iteration>>,
}

impl RunFrames {
    /// Opens a frame that was entered from iteration `parent_iter` of `parent`; it has no iteration yet.
    pub(super) fn open(
        &mut self,
        plan: &Plan,
        of: u32,
        id: u64,
        (parent, parent_iter): (u32, u64),
    ) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.frames.push(RunFrame::default());
            self.frames.len() as u32 - 1
        });
        let frame = &mut self.frames[at as usize];
        frame.of = of;
        frame.id = id;
        frame.parent = parent;
        frame.parent_iter = parent_iter;
        frame.first = 0;
        frame.enters_left = plan.frames[of as usize].enters;
        at
    }

    /// The frame.
    #[inline]
    pub(super) fn at(&mut self, frame: u32) -> &mut RunFrame {
        &mut self.frames[frame as usize]
    }

    /// The iteration; `None` if it is over or has not begun.
    #[inline]
    pub(super) fn iteration(&mut self, frame: u32, iter: u64) -> Option<&mut Iteration> {
        let frame = self.frames.get_mut(frame as usize)?;
        let at = iter.checked_sub(frame.first)?;
        frame.iterations.get_mut(at as usize)
    }

    /// Begins the next iteration of a frame. Returns its number.
    pub(super) fn begin(&mut self, plan: &Plan, frame: u32) -> u64 {
        let of = self.frames[frame as usize].of as usize;
        if self.spare.len() < plan.frames.len() {
            self.spare.resize_with(plan.frames.len(), Vec::new);
        }
        let mut iteration = self.spare[of].pop().unwrap_or_default();
        iteration.begin(&plan.frames[of]);
        let frame = &mut self.frames[frame as usize];
        frame.dead_exits.clear();
        frame.iterations.push_back(iteration);
        frame.next() - 1
    }

    /// Ends the first iteration of a frame if nothing can come to it any more.
    pub(super) fn end_first(&mut self, frame: u32) -> bool {
        let frame = &mut self.frames[frame as usize];
        // The iterations before it are over, so none of them can give it anything.
        if frame.enters_left > 0 || frame.iterations.front().is_none_or(|first| first.busy > 0) {
            return false;
        }
        if let Some(iteration) = frame.iterations.pop_front() {
            frame.first += 1;
            self.spare[frame.of as usize].push(iteration.emptied());
        }
        true
    }

    /// The frame is over: it is given to another.
    pub(super) fn close(&mut self, frame: u32) {
        self.frames[frame as usize].invariants.clear();
        self.frames[frame as usize].dead_exits.clear();
        self.free.push(frame);
    }

    /// Forgets all frames, whatever still waits in them.
    pub(super) fn clear(&mut self) {
        self.free.clear();
        for (at, frame) in (0..).zip(&mut self.frames) {
            while let Some(iteration) = frame.iterations.pop_front() {
                self.spare[frame.of as usize].push(iteration.emptied());
            }
            frame.invariants.clear();
            frame.deferred.clear();
            frame.dead_exits.clear();
            self.free.push(at);
        }
        // What one run needed once the next need not keep.
        self.frames.truncate(SPARE_FRAMES);
        self.free.truncate(SPARE_FRAMES);
        for spare in &mut self.spare {
            spare.truncate(SPARE_ITERATIONS);
        }
        // The root is the first again.
        self.free.reverse();
    }

    /// How many frames are open.
    pub(super) fn open_frames(&self) -> usize {
        self.frames.len() - self.free.len()
    }
}

impl RunFrame {
    /// The number of the iteration that would begin next.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.first + self.iterations.len() as u64
    }

    /// The number of the first iteration that is kept.
    pub(super) const fn first(&self) -> u64 {
        self.first
    }

    /// How many iterations are under way.
    #[inline]
    pub(super) fn under_way(&self) -> usize {
        self.iterations.len()
    }
}

impl Iteration {
    fn begin(&mut self, frame: &PlanFrame) {
        self.counts.clone_from(&frame.counts);
        self.slots.resize_with(frame.slots, || None);
        self.children.clear();
        self.children.resize(frame.children, NONE);
        self.busy = 0;
    }

    /// What came for nodes that never ran is let go of: it is nothing to the next that uses the room.
    fn emptied(mut self) -> Self {
        self.slots.fill_with(|| None);
        self
    }
}
