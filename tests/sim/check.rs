//! Check: what must hold in a world after each tick, and at rest.
//!
//! It looks, and changes nothing.

use rendez::fabric::AnyPort;
use rendez::shard::solo::Holdings;

use crate::world::World;

impl World {
    pub fn check_rest(&self) -> Result<(), String> {
        for (at, node) in self.nodes.iter().enumerate() {
            for (index, solo) in node.solos.iter().enumerate() {
                let holdings = solo.holdings();
                if holdings != Holdings::default() {
                    return Err(format!(
                        "at rest t{at}/{index} holds {holdings:?}; {:?}",
                        solo.pending()
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
                let AnyPort::Faulty(port) = solo.port_mut() else {
                    continue;
                };
                let lent = port.lent_bytes();
                if lent > lent_max {
                    return Err(format!(
                        "t{at}/{index} has landings of {lent} bytes, and a budget of {budget}"
                    ));
                }
                if let AnyPort::Loopback(inner) = port.inner_mut()
                    && inner.stats().ungranted_writes > 0
                {
                    return Err(format!(
                        "t{at}/{index} was written to where it granted nothing"
                    ));
                }
            }
        }
        Ok(())
    }
}
