//! Queues for neighbours: order, what a full ring gives back, and the bound.

use super::*;

fn cancel(wait: u32) -> ShardMessage {
    ShardMessage::Cancel { wait }
}

fn wait_of(message: &ShardMessage) -> u32 {
    match message {
        ShardMessage::Cancel { wait } => *wait,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_ring_gives_back_stays_the_first() {
    let mut queues = NeighbourQueues::new(3);
    for wait in 0..4 {
        queues.push(1, cancel(wait));
    }
    queues.push(2, cancel(9));
    let mut taken = Vec::new();
    queues.send(1, |message| {
        if taken.len() == 2 {
            return Some(message);
        }
        taken.push(wait_of(&message));
        None
    });
    assert_eq!((taken, queues.len()), (vec![0, 1], 3));
    let mut rest = Vec::new();
    for shard in 0..3 {
        queues.send(shard, |message| {
            rest.push(wait_of(&message));
            None
        });
    }
    assert_eq!(rest, [2, 3, 9]);
    assert!(queues.is_empty());
}

#[test]
fn a_queue_is_full_at_its_bound_and_one_that_is_not_there_always() {
    let mut queues = NeighbourQueues::new(2);
    assert!(!queues.is_full(1, 2));
    queues.push(1, cancel(0));
    assert!(!queues.is_full(1, 2));
    queues.push(1, cancel(1));
    assert!(queues.is_full(1, 2) && !queues.is_full(0, 2));
    assert!(queues.is_full(2, 2));
    queues.push(2, cancel(2));
    assert_eq!(queues.len(), 2);
}
