//! Answers to peers that have more to tell than an answer has room for.

use std::time::Duration;

use prost::Message;
use rendez_proto::methods::engine_service::GetPending;
use rendez_proto::services::PendingRequest;

use crate::engine::tests::{PATIENCE, Way, pair};
use crate::ground::limits::CALL_PAYLOAD_MAX;
use crate::ground::{Key, StepId};
use crate::shard::{Task, TaskContext, TaskEvent};

/// More than an answer has room for.
const KEYS: usize = 1000;

/// Waits for values that never come.
struct Waiting;

impl Task for Waiting {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        if matches!(event, TaskEvent::Started) {
            for edge in 0..KEYS {
                let key = Key::between("a", "a", &format!("edge{edge}")).unwrap();
                let key = context.prepare(&key).unwrap();
                context.recv(StepId(1), key, 0);
            }
        }
    }
}

#[test]
fn of_more_than_an_answer_has_room_for_the_oldest_are_told_and_the_rest_counted() {
    let (a, b) = pair(Way::Shm);
    a.reach(b.task(), PATIENCE).unwrap();
    a.spawn(0, Box::new(Waiting)).unwrap();
    while a.stats().iter().map(|stats| stats.waiting).sum::<u64>() < KEYS as u64 {
        std::thread::yield_now();
    }
    let reply = b.ask::<GetPending>(a.task(), &PendingRequest {}, PATIENCE);
    let reply = reply.unwrap();
    assert!(reply.encoded_len() <= CALL_PAYLOAD_MAX);
    let (more, told) = reply.items.split_last().unwrap();
    assert!(told.iter().all(|item| item.is_waiting && item.count == 1));
    assert!(told.is_sorted_by(|one, next| one.age_ns >= next.age_ns));
    assert_eq!(more.what, "more");
    assert_eq!(told.len() + more.count as usize, KEYS);
    // As many as there is room for.
    let least = told.iter().map(Message::encoded_len).max().unwrap();
    assert!(reply.encoded_len() + 2 * least > CALL_PAYLOAD_MAX);
    a.shutdown(Duration::ZERO);
}
