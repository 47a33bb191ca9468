//! Ends that two threads ask for, and the last handle dropped where its shard is turned, or while a thread of the
//! engine's own holds what is inside.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::drive::Driver;
use crate::engine::tests::{PATIENCE, Way, config, pair};
use crate::engine::{Engine, Inner};
use crate::ground::{Key, StepId, catalogue};
use crate::memory::Tensor;
use crate::shard::{Task, TaskContext, TaskEvent};

/// Holds its engine until it may go.
struct Holder {
    goes: Arc<AtomicBool>,
    _engine: Engine,
}

impl Task for Holder {
    fn handle(&mut self, _: TaskEvent, context: &mut TaskContext<'_>) {
        match self.goes.load(Ordering::SeqCst) {
            true => context.finish(),
            false => context.again(),
        }
    }

    fn roams(&self) -> bool {
        true
    }
}

/// The thread that waits for the task's end turns its shard, and no other thread has the engine.
#[test]
fn the_last_handle_may_be_dropped_within_a_turn() {
    for drive in [Driver::Caller, Driver::Adaptive, Driver::Thread] {
        let (told, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let mut config = config("/job:a/task:0");
            (config.shards, config.drive) = (1, drive);
            let engine = Engine::start(config.clone()).unwrap();
            config.listen = engine.address().cloned();
            let goes = Arc::new(AtomicBool::new(false));
            let task = Holder {
                goes: Arc::clone(&goes),
                _engine: engine.clone(),
            };
            let task = engine.spawn(0, Box::new(task)).unwrap();
            let end = engine.task_ended(&task);
            drop(engine);
            goes.store(true, Ordering::SeqCst);
            let ended = end.wait(PATIENCE);
            // Its address is free as soon as all of it has ended.
            while Engine::start(config.clone()).is_err() {
                std::thread::sleep(Duration::from_millis(5));
            }
            told.send(ended).unwrap();
        });
        let ended = ended.recv_timeout(2 * PATIENCE);
        assert_eq!(ended.expect("it hangs"), Some(Ok(())), "{drive:?}");
    }
}

/// Keeps its shard until it is let go.
struct Blocker {
    go: mpsc::Receiver<()>,
    stops: Option<Engine>,
}

impl Task for Blocker {
    fn handle(&mut self, event: TaskEvent, _: &mut TaskContext<'_>) {
        if matches!(event, TaskEvent::Started) {
            if let Some(engine) = self.stops.take() {
                engine.shutdown(PATIENCE);
            }
            let _ = self.go.recv();
        }
    }
}

#[test]
fn a_second_shutdown_waits_for_the_end_that_the_first_began() {
    for is_begun_by_task in [false, true] {
        let engine = Engine::start(config("/job:a/task:0")).unwrap();
        let (let_go, go) = mpsc::channel();
        let stops = is_begun_by_task.then(|| engine.clone());
        engine.spawn(0, Box::new(Blocker { go, stops })).unwrap();
        let is_let_go = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if !is_begun_by_task {
                scope.spawn(|| engine.shutdown(PATIENCE));
            }
            while engine.inner.crew.lock().unwrap().is_some() {
                std::thread::yield_now();
            }
            let second = scope.spawn(|| {
                engine.shutdown(PATIENCE);
                is_let_go.load(Ordering::SeqCst)
            });
            std::thread::sleep(Duration::from_millis(100));
            is_let_go.store(true, Ordering::SeqCst);
            let_go.send(()).unwrap();
            assert!(second.join().unwrap(), "{is_begun_by_task}");
        });
        // There is nothing more to wait for.
        engine.shutdown(Duration::MAX);
    }
}

/// As a thread does that compares clocks, or answers a peer.
#[test]
fn the_last_handle_of_a_user_ends_an_engine_that_is_held_inside() {
    let (a, b) = pair(Way::Tcp);
    a.reach(b.task(), PATIENCE).unwrap();
    let key = |name| Key::between("a", "b", name).unwrap();
    let step = b.step(StepId(1));
    let heard = step.recv(&key("sent")).deadline(PATIENCE).start().unwrap();
    let rest = step.recv(&key("never")).deadline(PATIENCE).start().unwrap();
    let held: Arc<Inner> = Arc::clone(&a.inner);
    let weak = a.downgrade();
    let (task, sender) = (a.task().clone(), a.step(StepId(1)));
    sender.send(&key("sent"), Tensor::scalar(7u8)).unwrap();
    drop(a);
    // A step is a handle too.
    assert!(weak.upgrade().is_some_and(|a| *a.task() == task));
    assert!(held.is_up().is_ok());
    drop(sender);
    assert!(weak.upgrade().is_none());
    assert_eq!(held.is_up().unwrap_err().reason(), catalogue::SHUTDOWN);
    assert_eq!(heard.wait().unwrap().tensor.host().unwrap(), [7]);
    let goodbye = rest.wait().unwrap_err();
    assert!(goodbye.message().contains("has left"), "{goodbye}");
    // There is nothing more to wait for, nor to tell.
    held.stop(Duration::MAX);
    drop(held);
    b.shutdown(PATIENCE);
}

/// Engines of one process have no connection whose end would tell.
#[test]
fn an_end_is_told_to_those_that_wait_for_its_values() {
    for way in [Way::Loopback, Way::Shm, Way::Tcp] {
        let (a, b) = pair(way);
        let key = |name| Key::between("a", "b", name).unwrap();
        let step = b.step(StepId(1));
        let heard = step.recv(&key("sent")).deadline(PATIENCE).start().unwrap();
        let rest = step.recv(&key("never")).deadline(PATIENCE).start().unwrap();
        a.step(StepId(1))
            .send(&key("sent"), Tensor::scalar(7u8))
            .unwrap();
        a.shutdown(PATIENCE);
        assert_eq!(heard.wait().unwrap().tensor.host().unwrap(), [7], "{way:?}");
        let goodbye = rest.wait().unwrap_err();
        assert_eq!(goodbye.reason(), catalogue::PEER_LOST, "{way:?}: {goodbye}");
        assert!(
            goodbye.message().contains("has left: the task ends"),
            "{goodbye}"
        );
        b.shutdown(PATIENCE);
    }
}

/// An engine that ends when another has its name says nothing of that one.
#[test]
fn the_end_of_one_that_had_the_name_before_is_not_told() {
    let (former, b) = pair(Way::Loopback);
    let mut config = config("/job:a/task:0");
    config.control = false;
    let now = Engine::start(config).unwrap();
    now.connect_local(&b).unwrap();
    let key = Key::between("a", "b", "late").unwrap();
    let step = b.step(StepId(1));
    let heard = step.recv(&key).deadline(PATIENCE).start().unwrap();
    former.shutdown(PATIENCE);
    now.step(StepId(1)).send(&key, Tensor::scalar(7u8)).unwrap();
    assert_eq!(heard.wait().unwrap().tensor.host().unwrap(), [7]);
    now.shutdown(PATIENCE);
    b.shutdown(PATIENCE);
}
