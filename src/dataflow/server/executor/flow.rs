//! Flow: how a node's outputs reach the nodes that wait for them, also from one iteration of a loop to the next.
//!
//! It knows counts, frames and edges, and calls no kernel.

use super::frames::NONE;
use super::plan::{Edge, NodeKind, Plan, PlanNode, frame_id};
use super::run::{NodePlace, Outside, PlanRun};
use crate::kernel::Value;
use rendez::ground::{Status, catalogue};

impl PlanRun {
    pub(super) fn enter(
        &mut self,
        plan: &Plan,
        outside: &mut impl Outside,
        place: NodePlace,
        (of, is_constant): (u32, bool),
        value: Option<Value>,
    ) {
        let described = &plan.frames[of as usize];
        let Some(parent) = self.frames.iteration(place.frame, place.iter) else {
            return;
        };
        let mut frame = parent.children[described.child];
        if frame == NONE {
            parent.busy += 1;
            let id = frame_id(self.frames.at(place.frame).id, place.iter, described.name);
            frame = self.frames.open(plan, of, id, (place.frame, place.iter));
            self.frames.begin(plan, frame);
            if let Some(parent) = self.frames.iteration(place.frame, place.iter) {
                parent.children[described.child] = frame;
            }
        }
        let entered = self.frames.at(frame);
        entered.enters_left = entered.enters_left.saturating_sub(1);
        let (first, next) = (entered.first(), entered.next());
        let is_dead = value.is_none();
        if is_constant {
            entered.invariants.push((place.node, value.clone()));
            for iter in first..next {
                let there = NodePlace {
                    frame,
                    iter,
                    ..place
                };
                self.enter_iteration(plan, outside, there, value.clone(), is_dead);
            }
        } else {
            let there = NodePlace {
                frame,
                iter: 0,
                ..place
            };
            self.enter_iteration(plan, outside, there, value, is_dead);
        }
        self.settle(plan, outside, frame);
    }

    /// What an Enter gives one iteration, and its followers in it.
    fn enter_iteration(
        &mut self,
        plan: &Plan,
        outside: &mut impl Outside,
        there: NodePlace,
        value: Option<Value>,
        is_dead: bool,
    ) {
        self.emit(plan, outside, there, 0, value);
        self.follow(plan, there, is_dead);
    }

    pub(super) fn exit(
        &mut self,
        plan: &Plan,
        outside: &mut impl Outside,
        place: NodePlace,
        value: Option<Value>,
    ) {
        let is_dead = value.is_none();
        let frame = self.frames.at(place.frame);
        if is_dead {
            // Only what the last iteration says of it counts, and only once it is known to be the last.
            if place.iter + 1 == frame.next() {
                frame.dead_exits.push(place.node);
            }
            return;
        }
        let there = NodePlace {
            frame: frame.parent,
            iter: frame.parent_iter,
            ..place
        };
        self.emit(plan, outside, there, 0, value);
        self.follow(plan, there, false);
    }

    pub(super) fn next_iteration(
        &mut self,
        plan: &Plan,
        outside: &mut impl Outside,
        place: NodePlace,
        value: Value,
    ) {
        let frame = self.frames.at(place.frame);
        let iter = place.iter + 1;
        if iter == frame.next() {
            let parallel = plan.frames[frame.of as usize].parallel;
            if frame.under_way() >= parallel {
                frame.deferred.push((place.node, value));
                return;
            }
            self.begin_iteration(plan, outside, place.frame);
        }
        let there = NodePlace { iter, ..place };
        self.emit(plan, outside, there, 0, Some(value));
        self.follow(plan, there, false);
    }

    /// Begins the next iteration of a loop, with what comes anew in each.
    fn begin_iteration(&mut self, plan: &Plan, outside: &mut impl Outside, frame: u32) {
        let iter = self.frames.begin(plan, frame);
        for at in 0..self.frames.at(frame).invariants.len() {
            let (node, value) = self.frames.at(frame).invariants[at].clone();
            let is_dead = value.is_none();
            let there = NodePlace {
                node,
                frame,
                iter,
                is_dead,
            };
            self.enter_iteration(plan, outside, there, value, is_dead);
        }
    }

    /// A node has done what it does: its followers hear so, and its iteration may be over.
    pub(super) fn finish(
        &mut self,
        plan: &Plan,
        outside: &mut impl Outside,
        place: NodePlace,
        is_dead: bool,
    ) {
        let node = &plan.nodes[place.node as usize];
        if !matches!(
            node.kind,
            NodeKind::Enter { .. } | NodeKind::Exit | NodeKind::NextIteration
        ) {
            self.follow(plan, place, is_dead);
        }
        self.leave(plan, outside, place.frame, place.iter);
    }

    /// Something in an iteration is over.
    fn leave(&mut self, plan: &Plan, outside: &mut impl Outside, frame: u32, iter: u64) {
        if let Some(iteration) = self.frames.iteration(frame, iter) {
            iteration.busy -= 1;
            if iteration.busy == 0 {
                self.settle(plan, outside, frame);
            }
        }
    }

    /// Ends iterations that are over, begins those that waited for that, and ends loops in which nothing can run any
    /// more, with all that follows.
    fn settle(&mut self, plan: &Plan, outside: &mut impl Outside, mut frame: u32) {
        loop {
            while self.frames.end_first(frame) {
                if self.frames.at(frame).deferred.is_empty() {
                    continue;
                }
                let deferred = std::mem::take(&mut self.frames.at(frame).deferred);
                let iter = self.frames.at(frame).next();
                self.begin_iteration(plan, outside, frame);
                for (node, value) in deferred {
                    let there = NodePlace {
                        node,
                        frame,
                        iter,
                        is_dead: false,
                    };
                    self.emit(plan, outside, there, 0, Some(value));
                    self.follow(plan, there, false);
                }
            }
            let ended = self.frames.at(frame);
            if ended.under_way() > 0 {
                return;
            }
            let (parent, iter) = (ended.parent, ended.parent_iter);
            let mut exits = std::mem::take(&mut ended.dead_exits);
            self.frames.close(frame);
            if parent == NONE {
                return;
            }
            for node in exits.drain(..) {
                let there = NodePlace {
                    node,
                    frame: parent,
                    iter,
                    is_dead: true,
                };
                self.emit(plan, outside, there, 0, None);
                self.follow(plan, there, true);
            }
            self.frames.at(frame).dead_exits = exits;
            match self.frames.iteration(parent, iter) {
                Some(iteration) => {
                    iteration.busy -= 1;
                    if iteration.busy > 0 {
                        return;
                    }
                }
                None => return,
            }
            frame = parent;
        }
    }

    /// An output goes to its readers in an iteration, which for Enter, Exit and NextIteration is not the node's own.
    #[inline]
    pub(super) fn emit(
        &mut self,
        plan: &Plan,
        outside: &mut impl Outside,
        there: NodePlace,
        output: u32,
        value: Option<Value>,
    ) {
        let node = &plan.nodes[there.node as usize];
        outside.gave(there.node, self.at(there), output, value.as_ref());
        let Some((last, others)) = plan.readers(node, output).split_last() else {
            return;
        };
        let is_enter = matches!(node.kind, NodeKind::Enter { .. });
        for edge in others {
            self.deliver(plan, there, *edge, value.clone(), is_enter);
        }
        self.deliver(plan, there, *last, value, is_enter);
    }

    /// A value, or that there is none, comes to an input.
    #[inline]
    fn deliver(
        &mut self,
        plan: &Plan,
        there: NodePlace,
        edge: Edge,
        value: Option<Value>,
        is_enter: bool,
    ) {
        let node = &plan.nodes[edge.to as usize];
        let Some(iteration) = self.frames.iteration(there.frame, there.iter) else {
            return self.came_late(node);
        };
        let count = &mut iteration.counts[node.count as usize];
        if node.kind == NodeKind::Merge {
            match value {
                Some(_) if count.chosen > 0 => {
                    let what = "Merge can not have more than one valid input.";
                    let message = format!("{what}; {}", node.text());
                    return self.fail(Status::of(catalogue::KERNEL_INPUT, message));
                }
                Some(value) if !count.has_fired => {
                    count.chosen = edge.slot - node.slot + 1;
                    iteration.slots[edge.slot as usize] = Some(value);
                }
                Some(_) => {}
                None => {
                    count.dead += 1;
                    count.is_never_entered |= is_enter;
                }
            }
            return self.try_merge(node, edge.to, there);
        }
        if count.waits == 0 {
            return self.came_late(node);
        }
        count.waits -= 1;
        match value {
            Some(value) => iteration.slots[edge.slot as usize] = Some(value),
            None => count.dead += 1,
        }
        if count.waits == 0 {
            self.fire(node, edge.to, there);
        }
    }

    /// Nodes that wait for this one are told that it has run.
    #[inline]
    pub(super) fn follow(&mut self, plan: &Plan, there: NodePlace, is_dead: bool) {
        for edge in plan.followers(&plan.nodes[there.node as usize]) {
            let node = &plan.nodes[edge.to as usize];
            let Some(iteration) = self.frames.iteration(there.frame, there.iter) else {
                return self.came_late(node);
            };
            let count = &mut iteration.counts[node.count as usize];
            if count.waits == 0 {
                return self.came_late(node);
            }
            count.waits -= 1;
            count.is_control_dead |= is_dead;
            if node.kind == NodeKind::Merge {
                self.try_merge(node, edge.to, there);
            } else if count.waits == 0 {
                self.fire(node, edge.to, there);
            }
        }
    }

    fn try_merge(&mut self, node: &PlanNode, number: u32, there: NodePlace) {
        let Some(iteration) = self.frames.iteration(there.frame, there.iter) else {
            return;
        };
        let count = &mut iteration.counts[node.count as usize];
        let is_alive = count.chosen > 0;
        let is_dead = count.dead == node.inputs || count.is_never_entered;
        if count.has_fired || count.waits > 0 || !(is_alive || is_dead) {
            return;
        }
        count.has_fired = true;
        // It waits for its control inputs, and does not die of them.
        self.make_ready(number, there.frame, there.iter, !is_alive);
    }

    #[inline]
    fn fire(&mut self, node: &PlanNode, number: u32, there: NodePlace) {
        let Some(iteration) = self.frames.iteration(there.frame, there.iter) else {
            return;
        };
        let count = &iteration.counts[node.count as usize];
        let is_dead = (count.dead > 0 || count.is_control_dead) && node.kind != NodeKind::Trigger;
        self.make_ready(number, there.frame, there.iter, is_dead);
    }

    #[inline]
    pub(super) fn make_ready(&mut self, node: u32, frame: u32, iter: u64, is_dead: bool) {
        if self.failure.is_some() {
            return;
        }
        if let Some(iteration) = self.frames.iteration(frame, iter) {
            iteration.busy += 1;
            self.ready.push_back(NodePlace {
                node,
                frame,
                iter,
                is_dead,
            });
        }
    }

    /// A loop gave something a second time, or after its end: an Exit that no Switch leads to does.
    #[cold]
    fn came_late(&mut self, node: &PlanNode) {
        let what = "what it waits for came twice: a loop is left more than once";
        let message = format!("{what}; {}", node.text());
        self.fail(Status::of(catalogue::GRAPH_FRAME, message));
    }
}
