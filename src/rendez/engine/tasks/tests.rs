//! What a panic ends: a task's, the task; a shard's, the engine.

use std::time::Duration;

use crate::engine::tests::{Way, pair};
use crate::ground::{Code, DType, Key, Status, StepId, catalogue};
use crate::memory::Tensor;
use crate::shard::{Call, Task, TaskContext, TaskEvent};

const PATIENCE: Duration = Duration::from_secs(10);
const STEP: StepId = StepId(1);

/// Keys of values that go from one task to another: some of each shard.
fn keys(from: &str, to: &str) -> Vec<Key> {
    let key = |edge| Key::between(from, to, &format!("edge{edge}")).unwrap();
    (0..8).map(key).collect()
}

/// Waits for values of all its keys, and panics when it is woken.
struct Clumsy(Vec<Key>);

impl Task for Clumsy {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        match event {
            TaskEvent::Started => {
                for key in &self.0 {
                    let key = context.prepare(key).unwrap();
                    context.recv(STEP, key, 0);
                }
            }
            TaskEvent::Woken => panic!("dropped a plate"),
            _ => {}
        }
    }
}

#[test]
fn a_task_that_panics_takes_no_value_of_neighbours_or_peers() {
    let (a, b) = pair(Way::Loopback);
    let all: Vec<Key> = [keys("a", "a"), keys("b", "a")].concat();
    let task = a.spawn(0, Box::new(Clumsy(all.clone()))).unwrap();
    let waiting = || a.stats().iter().map(|stats| stats.waiting).sum::<u64>();
    while waiting() < all.len() as u64 {
        std::thread::yield_now();
    }
    assert_eq!(a.task_failed(&task), None);
    let end = a.task_ended(&task);
    task.wake();
    let status = end.wait(PATIENCE).unwrap().unwrap_err();
    assert_eq!(status.reason(), catalogue::TASK_PANICKED);
    assert_eq!(a.task_failed(&task), Some(status));
    while waiting() > 0 {
        std::thread::yield_now();
    }
    for key in &all {
        let from = if key.source_task() == a.task() {
            &a
        } else {
            &b
        };
        from.step(STEP).send(key, Tensor::scalar(7u8)).unwrap();
        let received = a.step(STEP).recv(key).deadline(PATIENCE).wait().unwrap();
        assert_eq!(received.tensor.host().unwrap(), [7]);
    }
    let again = a.spawn(0, Box::new(Clumsy(vec![]))).unwrap();
    let end = a.task_ended(&again);
    a.shutdown(PATIENCE);
    assert_eq!(end.wait(PATIENCE), Some(Ok(())), "it ends with its shard");
    assert_eq!(a.task_failed(&again), None);
}

fn a_dead_shard_ends_all(way: Way) {
    let (a, b) = pair(way);
    let once = Key::between("a", "b", "once").unwrap();
    a.step(STEP).send(&once, Tensor::scalar(1u8)).unwrap();
    let received = b.step(STEP).recv(&once).deadline(PATIENCE).wait();
    received.unwrap();
    let step = a.step(STEP);
    let here = [keys("a", "a"), keys("b", "a")].concat();
    let here: Vec<_> = here
        .iter()
        .map(|key| step.recv(key).deadline(PATIENCE).start().unwrap())
        .collect();
    let there: Vec<_> = keys("a", "b")
        .iter()
        .enumerate()
        .map(|(at, key)| {
            // Some in a step that the other knows, some in one that it does not.
            let step = b.step(StepId(1 + at as u64 % 2));
            step.recv(key).deadline(PATIENCE).start().unwrap()
        })
        .collect();
    let task = a.spawn(0, Box::new(Clumsy(keys("b", "a")))).unwrap();
    let end = a.task_ended(&task);
    let waiting = || b.stats().iter().map(|stats| stats.waiting).sum::<u64>();
    while waiting() < there.len() as u64 || a.task_failed(&task).is_some() {
        std::thread::yield_now();
    }
    a.inner.mailboxes[1].call(Call::Ports(Box::new(|_| panic!("a mistake of ours"))));
    let mut told: Vec<Status> = here
        .into_iter()
        .map(|recv| recv.wait().unwrap_err())
        .collect();
    told.push(end.wait(PATIENCE).unwrap().unwrap_err());
    told.push(a.task_failed(&task).unwrap());
    // What comes later hears the same.
    let key = Key::between("a", "a", "late").unwrap();
    for key in keys("a", "a") {
        let late = a.step(StepId(9));
        told.push(late.send(&key, Tensor::scalar(1u8)).unwrap_err());
        let unsent = late.send_async(&key, Tensor::scalar(1u8)).wait();
        told.push(unsent.unwrap_err().into());
        told.push(late.recv(&key).deadline(PATIENCE).wait().unwrap_err());
    }
    told.push(a.step_within(StepId(10), PATIENCE).unwrap_err());
    told.push(a.tensor(DType::U8, &[4]).unwrap_err());
    for shard in 0..2 {
        told.push(
            a.spawn(shard, Box::new(Clumsy(vec![key.clone()])))
                .unwrap_err(),
        );
    }
    let first = told[0].clone();
    assert_eq!(
        (first.code(), first.reason()),
        (Code::Internal, catalogue::SHARD_PANICKED)
    );
    assert!(first.message().contains("a mistake of ours"), "{first}");
    assert!(told.iter().all(|status| *status == first), "{told:?}");
    for recv in there {
        let status = recv.wait().unwrap_err();
        assert!(status.message().contains(first.message()), "{status}");
    }
    a.shutdown(PATIENCE);
}

#[test]
fn a_shard_that_panics_ends_its_engine_for_all_by_loopback() {
    a_dead_shard_ends_all(Way::Loopback);
}

#[test]
fn a_shard_that_panics_ends_its_engine_for_all_by_shared_memory() {
    a_dead_shard_ends_all(Way::Shm);
}
