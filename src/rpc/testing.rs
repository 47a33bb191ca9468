//! Worlds of workers over a network that misbehaves by a seed, for the simulations of what stands on calls.

pub use crate::node::testing::network::{Arrival, Dice, Faults, Network, Packet};
pub use crate::node::testing::world::{Actor, Event, Job, Share, Weather, World, run};
