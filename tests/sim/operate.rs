//! Operate: the application of a world. It begins steps, sends, receives, gives up, and ends.

use std::collections::BTreeSet;

use rendez::ground::{Code, DType, Key, Nanos, Shape, Status, StepId, TensorMeta};

use crate::control::Wire;
use crate::model::{Fate, Flow, Receive, Step, is_bound};
use crate::world::World;

/// Receives of a flow that may be given up; those after wait for as long as it takes.
const GIVEN_UP_MAX: usize = 30;

impl World {
    pub fn begin_step(&mut self) {
        self.begun += 1;
        let fate = match () {
            () if self.rng.one_in(self.dials.abort_one_in) => Fate::Abort,
            () if self.rng.one_in(self.dials.finish_one_in) => Fate::Finish,
            () if self.rng.one_in(self.dials.one_sided_one_in) => Fate::OneSided,
            () => Fate::Whole,
        };
        let mut step = Step {
            id: self.begun,
            fate,
            flows: Vec::new(),
            parted: BTreeSet::new(),
            is_failed: false,
            is_scarce: self.dials.is_scarce,
            has_ended: false,
            is_told: false,
            is_closed: false,
        };
        if self.begun > 1 {
            part_disturbed(&mut step, &self.wires);
        }
        for flow in 0..1 + self.rng.below(self.dials.flows_per_step) {
            let from = self.rng.below(self.nodes.len() as u64) as usize;
            let to = self.rng.below(self.nodes.len() as u64) as usize;
            let key =
                Key::between(&format!("t{from}"), &format!("t{to}"), &format!("e{flow}")).unwrap();
            let by_cell = self.rng.one_in(2);
            let from_shard = self.rng.below(self.nodes[from].solos.len() as u64) as usize;
            let to_shard = if by_cell {
                key.shard_of(self.nodes[to].solos.len() as u32) as usize
            } else {
                self.rng.below(self.nodes[to].solos.len() as u64) as usize
            };
            let wanted = 1 + self.rng.below(self.dials.values_per_flow);
            step.flows.push(Flow::new(
                key,
                [from, to],
                [from_shard, to_shard],
                by_cell,
                wanted,
            ));
        }
        self.steps.push(step);
    }

    /// One operation of a random flow. False if there was nothing to do.
    pub fn operate(&mut self) -> Result<bool, String> {
        if self.nodes.len() > 1 && self.rng.one_in(self.dials.loss_one_in) {
            let one = self.rng.below(self.nodes.len() as u64) as usize;
            let other = (one + 1) % self.nodes.len();
            self.lose(one, other);
            if self.rng.one_in(2) {
                self.lose(other, one);
            }
        }
        if self.rng.one_in(self.dials.restart_one_in) {
            let at = self.rng.below(self.nodes.len() as u64) as usize;
            self.restart(at)?;
        }
        self.disturb_by_chance();
        let open: Vec<_> = (0..self.steps.len())
            .filter(|&at| !self.steps[at].is_closed)
            .collect();
        if open.is_empty() {
            return Ok(false);
        }
        let at = open[self.rng.below(open.len() as u64) as usize];
        if self.steps[at].is_dirty() && !self.steps[at].is_told && self.rng.one_in(20) {
            self.abort_everywhere(at);
            return Ok(true);
        }
        if self.steps[at].has_ended {
            return Ok(false);
        }
        let flow = self.rng.below(self.steps[at].flows.len() as u64) as usize;
        let is_early = matches!(self.steps[at].fate, Fate::Abort | Fate::Finish);
        if is_early && self.rng.one_in(10) {
            self.end_early(at, flow);
            return Ok(true);
        }
        if self.rng.one_in(2) {
            self.send(at, flow)
        } else {
            self.receive(at, flow)
        }
    }

    pub fn end_early(&mut self, at: usize, flow: usize) {
        self.steps[at].has_ended = true;
        let id = StepId(self.steps[at].id);
        let is_finish = self.steps[at].fate == Fate::Finish;
        if is_finish && id.0.is_multiple_of(2) {
            return self.finish_everywhere(id);
        }
        // Who has never been greeted cannot be told: then the owner of the step must tell all.
        part_disturbed(&mut self.steps[at], &self.wires);
        if is_finish {
            return self.finish_where_sent(at, id);
        }
        let flow = &self.steps[at].flows[flow];
        let (node, shard) = if self.rng.one_in(2) {
            (flow.from, flow.from_shard)
        } else {
            (flow.to, flow.to_shard)
        };
        self.nodes[node].solos[shard].abort(id, Status::new(Code::Internal, "SIM", "it broke"));
    }

    pub fn abort_everywhere(&mut self, at: usize) {
        self.steps[at].has_ended = true;
        self.steps[at].is_told = true;
        let id = StepId(self.steps[at].id);
        for solo in self.nodes.iter_mut().flat_map(|node| &mut node.solos) {
            solo.abort(id, Status::new(Code::Aborted, "SIM", "a peer was lost"));
        }
    }

    /// Gives up a step that is under way.
    pub fn abort_one(&mut self) {
        self.quiet_ticks = 0;
        let open =
            (0..self.steps.len()).find(|&at| !self.steps[at].is_closed && !self.steps[at].is_told);
        if let Some(at) = open {
            self.steps[at].is_failed = true;
            self.abort_everywhere(at);
        }
    }

    pub fn finish_everywhere(&mut self, id: StepId) {
        for solo in self.nodes.iter_mut().flat_map(|node| &mut node.solos) {
            solo.finish(id);
        }
    }

    /// Only those who send are done with it: who waits for them must be told.
    fn finish_where_sent(&mut self, at: usize, id: StepId) {
        for flow in &self.steps[at].flows {
            for solo in &mut self.nodes[flow.from].solos {
                solo.finish(id);
            }
        }
    }

    pub fn send(&mut self, at: usize, flow: usize) -> Result<bool, String> {
        let len = match self.rng.below(4) {
            0 => 4 + self.rng.below(12.min(self.dials.bytes_max)),
            1 => 4 + self.rng.below(self.dials.bytes_max.min(1000)),
            // Often the same length, so that what was seen before helps.
            2 => 4 + self.dials.bytes_max / 2,
            _ => 4 + self.rng.below(self.dials.bytes_max),
        };
        let is_dead = self.rng.one_in(10);
        let source = &self.steps[at].flows[flow];
        if self.is_lost(source.from, source.from_shard) {
            return Ok(false);
        }
        let lives = self.lives(source.from, source.to);
        let step = &mut self.steps[at];
        let id = step.id;
        if step.flows[flow].sent.len() as u64 >= step.flows[flow].wanted {
            return Ok(false);
        }
        let at_flow = flow;
        let flow = &mut step.flows[flow];
        let relayed = if self.rng.one_in(self.dials.relay_one_in) {
            self.held.one_of(flow.from, &mut self.rng).cloned()
        } else {
            None
        };
        let bytes = match &relayed {
            Some(tensor) => {
                flow.relay(lives, tensor.host().unwrap(), is_dead);
                Vec::new()
            }
            None => flow.next(lives, id, len as usize, is_dead),
        };
        let meta = TensorMeta::new(DType::U8, Shape::new(&[bytes.len() as u64]).unwrap()).unwrap();
        let solo = &mut self.nodes[flow.from].solos[flow.from_shard];
        let sent = solo.enter(|context| {
            let key = context.prepare(&flow.key)?;
            let tensor = match relayed {
                Some(tensor) => tensor,
                None => {
                    let mut builder = context.builder(meta)?;
                    builder.bytes_mut().copy_from_slice(&bytes);
                    builder.finish()
                }
            };
            if is_dead {
                context.send_dead(StepId(id), key, tensor)
            } else {
                context.send(StepId(id), key, tensor)
            }
        });
        match sent {
            Err(status) if step.is_scarce && is_bound(&status) => {
                step.flows[at_flow].unsend();
                Ok(false)
            }
            Err(status) if !step.is_dirty() => Err(format!("step {id}: send refused: {status}")),
            _ => Ok(true),
        }
    }

    pub fn receive(&mut self, at: usize, flow: usize) -> Result<bool, String> {
        let target = &self.steps[at].flows[flow];
        if self.is_lost(target.to, target.to_shard) {
            return Ok(false);
        }
        let now = self.clocks[target.to].now();
        let lives = self.lives(target.to, target.from);
        let (id, is_one_sided) = (self.steps[at].id, self.steps[at].fate == Fate::OneSided);
        let is_scarce = self.dials.is_scarce;
        let target = &mut self.steps[at].flows[flow];
        let (open, count, wanted) = (target.open(), target.count, target.wanted as usize);
        if is_one_sided && target.from != target.to {
            return Ok(false);
        }
        let is_fickle = target.receives.len() < wanted + GIVEN_UP_MAX;
        if is_fickle
            && let Some(victim) = target
                .receives
                .iter_mut()
                .find(|receive| !receive.is_over && receive.waiting.is_some())
            && !victim.is_cancelled
            && self.rng.one_in(self.dials.cancel_one_in)
            && let Some(waiting) = &victim.waiting
        {
            victim.is_cancelled = true;
            victim.was_filled = waiting.is_filled();
            let solo = &mut self.nodes[target.to].solos[target.to_shard];
            match self.rng.below(4) {
                // By a token, of which the shard hears now, or when it has a value for it.
                0 if !victim.was_filled => solo.stop(waiting),
                1 if !victim.was_filled => {
                    waiting.stop();
                    victim.is_unheard = true;
                }
                _ => solo.cancel(waiting),
            }
            return Ok(true);
        }
        if open + count >= wanted {
            return Ok(false);
        }
        let deadline = (is_fickle && self.rng.one_in(self.dials.deadline_one_in))
            .then(|| now + 1 + self.rng.below(400_000));
        let until = deadline.map_or(Nanos::NEVER, Nanos);
        let solo = &mut self.nodes[target.to].solos[target.to_shard];
        let index = target.receives.len();
        let waiting = if target.by_cell {
            Some(solo.recv(StepId(id), &target.key, until))
        } else {
            let token = self.tokens.len() as u64;
            self.tokens.push((at, flow, index));
            let asked = solo.enter(|context| {
                let key = context.prepare(&target.key)?;
                context.recv_by(StepId(id), key, token, until);
                Ok::<_, Status>(())
            });
            match asked {
                Err(status) if is_scarce && is_bound(&status) => {
                    self.tokens.pop();
                    return Ok(false);
                }
                asked => asked.map_err(|status| format!("step {id}: {status}"))?,
            }
            None
        };
        target.receives.push(Receive {
            waiting,
            lives,
            deadline,
            is_cancelled: false,
            was_filled: false,
            is_unheard: false,
            age: 0,
            is_orphan: false,
            is_over: false,
            late: 0,
        });
        Ok(true)
    }

    /// Steps whose work is done are finished on every shard.
    pub fn close_steps(&mut self) -> usize {
        let mut done = 0;
        for at in 0..self.steps.len() {
            let step = &mut self.steps[at];
            if step.is_closed {
                continue;
            }
            let is_done = match step.fate {
                _ if step.has_ended => step.flows.iter().all(|flow| flow.open() == 0),
                Fate::OneSided => {
                    let is_sent = |flow: &Flow| flow.sent.len() as u64 == flow.wanted;
                    step.flows.iter().all(|flow| {
                        if flow.from == flow.to {
                            flow.is_whole()
                        } else {
                            is_sent(flow)
                        }
                    })
                }
                _ => step.flows.iter().all(Flow::is_whole),
            };
            if is_done {
                step.is_closed = true;
                step.has_ended = true;
                let id = StepId(step.id);
                self.finish_everywhere(id);
                done += 1;
                self.quiet_ticks = 0;
            }
        }
        done
    }
}

/// What is lost between two tasks before they have met again, the step may miss.
fn part_disturbed(step: &mut Step, wires: &[Wire]) {
    for wire in wires.iter().filter(|wire| wire.is_disturbed) {
        let [one, other] = wire.ends;
        step.part(one.0, other.0);
    }
}
