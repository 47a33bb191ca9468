//! Neighbours: the shards of one process, and the rings of notes between every two of them.
//!
//! Knows rings and doorbells; not what a note says.

use super::call::ShardMessage;
use crate::fabric::doorbell::PeerWake;
use crate::fabric::spsc::{self, Consumer, Producer};

/// A neighbour in the same process: a ring each way, and the doorbell that it sleeps by.
#[derive(Debug)]
pub struct Neighbour {
    pub(crate) to: Producer<ShardMessage>,
    pub(crate) from: Consumer<ShardMessage>,
    pub(crate) wake: PeerWake,
}

/// A ring each way between every two shards, of `notes` places: for each shard its neighbours by index, with nothing at
/// its own. `wakes` are the shards' doorbells.
pub fn neighbours(wakes: &[PeerWake], notes: usize) -> Vec<Vec<Option<Neighbour>>> {
    let count = wakes.len();
    let mut tos: Vec<Vec<_>> = (0..count)
        .map(|_| (0..count).map(|_| None).collect())
        .collect();
    let mut froms: Vec<Vec<_>> = (0..count)
        .map(|_| (0..count).map(|_| None).collect())
        .collect();
    for from in 0..count {
        for to in (0..count).filter(|&to| to != from) {
            let (producer, consumer) = spsc::ring(notes);
            tos[from][to] = Some(producer);
            froms[to][from] = Some(consumer);
        }
    }
    let ends = tos.into_iter().zip(froms);
    ends.map(|(tos, froms)| {
        tos.into_iter()
            .zip(froms)
            .zip(wakes)
            .map(|((to, from), wake)| {
                Some(Neighbour {
                    to: to?,
                    from: from?,
                    wake: wake.clone(),
                })
            })
            .collect()
    })
    .collect()
}
