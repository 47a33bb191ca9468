//! Disturb: what goes wrong in a world beyond what its ports do by themselves.

use rendez::fabric::{AnyPort, FaultyPort, Port, QpId};
use rendez::ground::{Code, Incarnation, Nanos, Status};

use crate::model::Receive;
use crate::world::{World, faulty};

/// Disturbances of a world that last a while.
const DISTURBED_MAX: usize = 30;

impl World {
    /// One task gives another up; perhaps the other does the same.
    pub fn lose(&mut self, one: usize, other: usize) {
        let is_met = self.are_met(one, other);
        self.disturb(one, other);
        self.give_up(one, other, "is given up", is_met);
    }

    /// True if the first is connected with the other, and was not told otherwise since.
    fn are_met(&self, at: usize, other: usize) -> bool {
        let (solos, task) = (&self.nodes[at].solos, &self.nodes[other].task);
        let mut wires = self.wires.iter().filter(|wire| {
            let is_end = |task: usize| wire.ends.iter().any(|end| end.0 == task);
            is_end(at) && is_end(other)
        });
        wires.all(|wire| {
            let [one, two] = wire.ends;
            let (here, there) = if one.0 == at { (one, two) } else { (two, one) };
            !wire.is_disturbed && solos[here.1].is_up(task, there.1 as u16)
        })
    }

    /// The life of a task, and that of another if the first is connected with it.
    pub fn lives(&self, at: usize, other: usize) -> (Incarnation, Option<Incarnation>) {
        let is_met = self.are_met(at, other);
        let there = self.nodes[other].incarnation;
        (self.nodes[at].incarnation, is_met.then_some(there))
    }

    /// Every shard of a task hears that another is lost. If they had met, what waits there for its values ends;
    /// otherwise it waits for the other to come.
    fn give_up(&mut self, at: usize, gone: usize, why: &str, is_met: bool) {
        let open = self
            .steps
            .iter_mut()
            .filter(|step| is_met && !step.is_closed);
        let flows = open.flat_map(|step| &mut step.flows);
        for flow in flows.filter(|flow| flow.to == at && flow.from == gone) {
            flow.receives.iter_mut().for_each(Receive::loses_sender);
        }
        let task = self.nodes[gone].task.clone();
        for solo in &mut self.nodes[at].solos {
            let status = Status::new(Code::Unavailable, "SIM", format!("{task} {why}"));
            solo.peer_lost(&task, status);
        }
    }

    /// A task dies and begins anew.
    pub fn restart(&mut self, at: usize) -> Result<(), String> {
        self.held.drop_of(at)?;
        let proved_at = self.now() + self.rng.below(300_000);
        self.exits.push((proved_at, at, self.nodes[at].incarnation));
        let others = (0..self.nodes.len()).filter(|&other| other != at);
        let others: Vec<_> = others
            .map(|other| (other, self.are_met(other, at)))
            .collect();
        for &(other, _) in &others {
            self.disturb(at, other);
        }
        // What it had sent itself is gone with it.
        for step in self.steps.iter_mut().filter(|step| !step.is_closed) {
            step.part(at, at);
        }
        // Receives of the dead are over.
        for step in &mut self.steps {
            for flow in step.flows.iter_mut().filter(|flow| flow.to == at) {
                for receive in &mut flow.receives {
                    receive.is_over = true;
                    receive.waiting = None;
                }
            }
        }
        let node = self.muster(at);
        self.nodes[at] = node;
        let now = self.now();
        for wire in self
            .wires
            .iter_mut()
            .filter(|wire| wire.ends.iter().any(|end| end.0 == at))
        {
            wire.reconnect_at = Some(now + self.rng.below(300_000));
        }
        if self.rng.one_in(2) {
            for (other, is_met) in others {
                self.give_up(other, at, "died", is_met);
            }
        }
        Ok(())
    }

    pub fn disturb(&mut self, one: usize, other: usize) {
        self.disturbed_pairs.push((one, other));
        for wire in &mut self.wires {
            if wire.ends.iter().all(|end| end.0 == one || end.0 == other) {
                wire.is_disturbed = true;
                wire.is_new = false;
            }
        }
        for step in self.steps.iter_mut().filter(|step| !step.is_closed) {
            step.part(one, other);
        }
    }

    /// What may go wrong before an operation, beyond losses and restarts.
    pub fn disturb_by_chance(&mut self) {
        let tasks = self.nodes.len() as u64;
        if self.disturbed > DISTURBED_MAX {
            // They last longer than it takes for the next to begin: a world must have a time without.
            return;
        }
        if tasks > 1 && self.rng.one_in(self.dials.partition_one_in) {
            let one = self.rng.below(tasks) as usize;
            let other = (one + 1 + self.rng.below(tasks - 1) as usize) % tasks as usize;
            self.disturbed += 1;
            self.partition(one, other);
        }
        if self.dials.is_skewed && self.rng.one_in(200) {
            let at = self.rng.below(tasks) as usize;
            let by = self.rng.below(2_000_000);
            self.clocks[at].leap(by);
        }
        if self.rng.one_in(self.dials.lost_one_in) {
            self.disturbed += 1;
            let at = self.rng.below(tasks) as usize;
            let until = self.now() + self.rng.below(self.dials.lost_max_ns);
            let shard = self.rng.below(self.lost[at].len() as u64) as usize;
            if self.rng.one_in(2) {
                self.lost[at].fill(until);
            } else {
                self.lost[at][shard] = until;
            }
        }
        if self.rng.one_in(self.dials.unregistered_one_in) {
            self.disturbed += 1;
            let at = self.rng.below(tasks) as usize;
            let until = self.now() + self.rng.below(5_000_000);
            let until = Nanos(self.clocks[at].at(until));
            for port in self.nodes[at].solos.iter_mut().flat_map(faulty) {
                port.open_none(until);
            }
        }
    }

    /// Nothing passes between two tasks for a while, or nothing one way. Then either it all comes, late; or the
    /// connections broke meanwhile, and are made again, if not too late for who waited for that.
    pub fn partition(&mut self, one: usize, other: usize) {
        let until = self.now() + self.rng.below(self.dials.partition_max_ns + 1);
        let is_two_way = self.rng.one_in(2);
        let breaks = self.rng.one_in(2);
        // Who is told that a connection is lost must be told of the next.
        let mut may_be_away = true;
        for at in 0..self.wires.len() {
            let wire = &mut self.wires[at];
            let deaf = match wire.ends.map(|end| end.0) {
                [a, b] if a == one && b == other => 0,
                [a, b] if a == other && b == one => 1,
                _ => continue,
            };
            wire.healed_at = until;
            if let Some(reconnect_at) = &mut wire.reconnect_at {
                *reconnect_at = until.max(*reconnect_at);
            }
            let ends = wire.ends;
            for side in [deaf, 1 - deaf] {
                if side == deaf || is_two_way {
                    self.block(ends[side], ends[1 - side], until);
                }
            }
            if breaks {
                let is_broken = self.break_wire(ends[deaf], ends[1 - deaf]);
                may_be_away &= is_broken || self.wires[at].reconnect_at.is_some();
            }
        }
        if breaks && may_be_away {
            let is_short = self.dials.away_ns < 1_000_000_000;
            if is_short {
                // Who is away so long may be given up.
                self.disturb(one, other);
            }
            for (at, away) in [(one, other), (other, one)] {
                if self.rng.one_in(2) {
                    continue;
                }
                let task = self.nodes[away].task.clone();
                let until = Nanos(self.clocks[at].now() + self.dials.away_ns);
                for solo in &mut self.nodes[at].solos {
                    let status = Status::new(Code::Unavailable, "SIM", format!("{task} is silent"));
                    solo.peer_away(&task, status, until);
                }
            }
        }
    }

    fn block(&mut self, here: (usize, usize), there: (usize, usize), until: u64) {
        let until = Nanos(self.clocks[here.0].at(until));
        self.at_port(here, there, |port, qp| port.block(qp, until));
    }

    fn break_wire(&mut self, here: (usize, usize), there: (usize, usize)) -> bool {
        self.at_port(here, there, FaultyPort::reset)
    }

    fn at_port(
        &mut self,
        here: (usize, usize),
        there: (usize, usize),
        act: impl FnOnce(&mut FaultyPort, QpId),
    ) -> bool {
        let task = self.nodes[there.0].task.clone();
        let solo = &mut self.nodes[here.0].solos[here.1];
        if let Some((port, qp)) = solo.queue_pair(&task, there.1 as u16)
            && let Some(AnyPort::Faulty(port)) = solo.ports_mut().get_mut(port)
        {
            // One that is down already has nothing to break.
            if port.caps(qp).body_max > 0 {
                act(port, qp);
            }
            return true;
        }
        false
    }
}
