//! Disturb: what goes wrong in a world beyond what its ports do by themselves.

use rendez::ground::{Code, Status};

use crate::world::World;

impl World {
    /// One task gives another up; perhaps the other does the same.
    pub fn lose(&mut self, one: usize, other: usize) {
        self.disturb(one, other);
        let task = self.nodes[other].task.clone();
        for solo in &mut self.nodes[one].solos {
            solo.peer_lost(&task, Status::new(Code::Unavailable, "SIM", "given up"));
        }
    }

    /// A task dies and begins anew.
    pub fn restart(&mut self, at: usize) -> Result<(), String> {
        self.held.drop_of(at)?;
        let proved_at = self.now() + self.rng.below(300_000);
        self.exits.push((proved_at, at, self.nodes[at].incarnation));
        for other in (0..self.nodes.len()).filter(|&other| other != at) {
            self.disturb(at, other);
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
            let task = self.nodes[at].task.clone();
            for other in (0..self.nodes.len()).filter(|&other| other != at) {
                for solo in &mut self.nodes[other].solos {
                    solo.peer_lost(&task, Status::new(Code::Unavailable, "SIM", "died"));
                }
            }
        }
        Ok(())
    }

    pub fn disturb(&mut self, one: usize, other: usize) {
        for wire in &mut self.wires {
            if wire.ends.iter().all(|end| end.0 == one || end.0 == other) {
                wire.is_disturbed = true;
                wire.is_new = false;
            }
        }
        for step in self.steps.iter_mut().filter(|step| !step.is_closed) {
            step.is_dirty = true;
        }
    }
}
