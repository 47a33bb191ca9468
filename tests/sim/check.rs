//! Check: what must hold in a world after each tick, and at rest.
//!
//! It looks, and changes nothing.

use rendez::fabric::{AnyPort, FaultyPort};
use rendez::testing::solo::Holdings;

use crate::world::{World, faulty};

impl World {
    pub fn check_rest(&self) -> Result<(), String> {
        for (at, node) in self.nodes.iter().enumerate() {
            for (index, solo) in node.solos.iter().enumerate() {
                let holdings = solo.holdings();
                if holdings != Holdings::default() {
                    return Err(format!(
                        "at rest t{at}/{index} holds {holdings:?}; {:?}; {}",
                        solo.pending(),
                        self.stuck()
                    ));
                }
                if solo.stats().violations > 0 {
                    return Err(format!(
                        "t{at}/{index} counts {} violations",
                        solo.stats().violations
                    ));
                }
            }
        }
        Ok(())
    }

    pub fn stuck(&self) -> String {
        let mut text = String::from("stuck:");
        for step in self.steps.iter().filter(|step| !step.is_closed) {
            for (at, flow) in step
                .flows
                .iter()
                .enumerate()
                .filter(|(_, flow)| !flow.is_whole())
            {
                text += &format!(
                    "\n  step {} {:?} flow {at}: t{}/{} -> t{}/{}, {} sent, {} received of {}, {} wait",
                    step.id,
                    step.fate,
                    flow.from,
                    flow.from_shard,
                    flow.to,
                    flow.to_shard,
                    flow.sent.len(),
                    flow.count,
                    flow.wanted,
                    flow.open()
                );
            }
        }
        for wire in &self.wires {
            let [one, other] = wire.ends;
            let state = |from: (usize, usize), to: (usize, usize)| {
                let (solo, task) = (&self.nodes[from.0].solos[from.1], &self.nodes[to.0].task);
                (
                    solo.is_linked(task, to.1 as u16),
                    solo.is_up(task, to.1 as u16),
                )
            };
            text += &format!(
                "\n  {wire:?} {:?} {:?}",
                state(one, other),
                state(other, one)
            );
        }
        for (at, node) in self.nodes.iter().enumerate() {
            for (index, solo) in node.solos.iter().enumerate() {
                text += &format!("\n  t{at}/{index}: {:?}", solo.holdings());
            }
        }
        text
    }

    /// What the fabric saw of both ends: bytes lent for landings, and writes to what was never lent.
    pub fn check_ports(&mut self) -> Result<(), String> {
        let budget = self.dials.settings.landing_bytes;
        // Half for values that were offered, or one that is larger than that; half for landings ahead of their values.
        let lent_max = (budget / 2).max(4 + self.dials.bytes_max) + budget / 2;
        for (at, node) in self.nodes.iter_mut().enumerate() {
            for (index, solo) in node.solos.iter_mut().enumerate() {
                let lent = faulty(solo).map(|port| port.lent_bytes()).sum::<u64>();
                if lent > lent_max {
                    return Err(format!(
                        "t{at}/{index} has landings of {lent} bytes, and a budget of {budget}"
                    ));
                }
                let is_ungranted = |port: &mut FaultyPort| match port.inner_mut() {
                    AnyPort::Loopback(inner) => inner.stats().ungranted_writes > 0,
                    _ => false,
                };
                if faulty(solo).any(is_ungranted) {
                    return Err(format!(
                        "t{at}/{index} was written to where it granted nothing"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Credit is conserved: no task holds more of a peer's values than the peer counts as out, or than the window.
    pub fn check_credit(&self) -> Result<(), String> {
        let settings = &self.dials.settings;
        for wire in &self.wires {
            let credit = |from: (usize, usize), to: (usize, usize)| {
                self.nodes[from.0].solos[from.1].credit(&self.nodes[to.0].task, to.1 as u16)
            };
            let [one, other] = wire.ends;
            let (Some(ours), Some(theirs)) = (credit(one, other), credit(other, one)) else {
                continue;
            };
            for (end, credit) in [(one, ours), (other, theirs)] {
                let window = u64::from(settings.line_window);
                if credit.held > window
                    || credit.out > window
                    || credit.in_flight > usize::from(settings.frame_window)
                {
                    return Err(format!("{end:?} goes beyond its windows: {credit:?}"));
                }
            }
            let is_owed = ours.held <= theirs.out && theirs.held <= ours.out;
            if ours.is_up && theirs.is_up && !is_owed {
                return Err(format!("{wire:?} lost credit: {ours:?} {theirs:?}"));
            }
        }
        Ok(())
    }

    /// Every bound holds, and what the arena counts as in use covers what ports have of it.
    pub fn check_bounds(&mut self) -> Result<(), String> {
        let settings = &self.dials.settings;
        for (at, node) in self.nodes.iter_mut().enumerate() {
            for (index, solo) in node.solos.iter_mut().enumerate() {
                let lent: u64 = faulty(solo).map(|port| port.lent_bytes()).sum();
                let holdings = solo.holdings();
                let table = &settings.table;
                // What waiters left behind counts as well.
                let is_bounded = holdings.table[0] <= table.values + table.waiters
                    && holdings.table[1] <= table.waiters
                    && holdings.steps[0] <= table.steps
                    && holdings.steps[1] <= table.grace_steps
                    && holdings.waits <= settings.waiters
                    && holdings.leases <= u64::from(settings.leases)
                    && holdings.arena_bytes >= lent;
                if !is_bounded {
                    return Err(format!("t{at}/{index} lent {lent} holds {holdings:?}"));
                }
            }
        }
        Ok(())
    }
}
