//! A gate: how many connections may be inside, in all and from one address.
//!
//! Knows numbers and addresses only. The holder of a [`Pass`] is inside.

use crate::ground::Locked;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

/// Counts those inside.
#[derive(Debug)]
pub(crate) struct Gate {
    inside: Mutex<Inside>,
    max: usize,
    per_source_max: usize,
}

#[derive(Debug, Default)]
struct Inside {
    count: usize,
    by_source: BTreeMap<IpAddr, usize>,
}

/// The right to be inside, given back when dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    gate: Arc<Gate>,
    source: IpAddr,
}

impl Gate {
    /// A gate for `max` in all, and `per_source_max` from one address.
    pub(crate) fn new(max: usize, per_source_max: usize) -> Arc<Self> {
        Arc::new(Self {
            inside: Mutex::default(),
            max,
            per_source_max,
        })
    }

    /// How many are inside.
    pub(crate) fn count(&self) -> usize {
        self.inside.locked().count
    }

    /// True if there is room for one more, though maybe not from every address.
    pub(crate) fn has_room(&self) -> bool {
        self.inside.locked().count < self.max
    }

    /// Lets a connection from `source` in, unless it is full.
    pub(crate) fn enter(self: &Arc<Self>, source: IpAddr) -> Option<Pass> {
        let source = neighbourhood(source);
        let mut inside = self.inside.locked();
        if inside.count >= self.max {
            return None;
        }
        let from_source = inside.by_source.entry(source).or_default();
        if *from_source >= self.per_source_max {
            return None;
        }
        *from_source += 1;
        inside.count += 1;
        Some(Pass {
            gate: Arc::clone(self),
            source,
        })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut inside = self.gate.inside.locked();
        inside.count -= 1;
        if let Some(count) = inside.by_source.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                inside.by_source.remove(&self.source);
            }
        }
    }
}

/// The source that an address counts for: an IPv6 network is one subscriber, which may use any address of it.
fn neighbourhood(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests;
