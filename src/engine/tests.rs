//! Engines end to end, in one process: over loopback, and over shared memory as two processes would.

use std::time::Duration;

use super::{Config, Engine, Require};
use crate::ground::{Code, DType, Key, Status, StepId};
use crate::memory::Tensor;

const PATIENCE: Duration = Duration::from_secs(10);

fn config(task: &str) -> Config {
    let mut config = Config::new(task);
    config.shards = 2;
    config.share_cores = true;
    config.arena.segment_bytes = 4 << 20;
    config
}

/// How two engines are connected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Loopback,
    Shm,
    Tcp,
}

/// Two engines that are connected, or will be when a key wants it.
fn pair(way: Way) -> (Engine, Engine) {
    let (mut one, mut other) = (config("/job:a/task:0"), config("/job:b/task:0"));
    match way {
        Way::Loopback => {
            one.control = false;
            other.control = false;
            let (a, b) = (Engine::start(one).unwrap(), Engine::start(other).unwrap());
            a.connect_local(&b).unwrap();
            (a, b)
        }
        Way::Shm => {
            let (a, b) = (Engine::start(one).unwrap(), Engine::start(other).unwrap());
            a.add_peer(b.task().clone(), b.address().unwrap().clone());
            (a, b)
        }
        Way::Tcp => {
            for config in [&mut one, &mut other] {
                config.listen = Some("127.0.0.1:0".parse().unwrap());
                config.require = Require::Tcp;
            }
            let (a, b) = (Engine::start(one).unwrap(), Engine::start(other).unwrap());
            a.add_peer(b.task().clone(), b.tcp_address().unwrap().clone());
            (a, b)
        }
    }
}

fn hands_over(way: Way) {
    let (a, b) = pair(way);
    let (out, back) = (a.step(StepId(7)), b.step(StepId(7)));
    for (round, len) in [1usize, 4, 5, 100, 1000, 1100, 70_000, 3_000_000]
        .into_iter()
        .enumerate()
    {
        let key = Key::between("a", "b", &format!("edge{round}")).unwrap();
        let mut builder = a.tensor(DType::U8, &[len as u64]).unwrap();
        for (at, byte) in builder.bytes_mut().iter_mut().enumerate() {
            *byte = (at * 31 + round) as u8;
        }
        let tensor = builder.finish();
        let want = tensor.bytes().to_vec();
        if round % 2 == 0 {
            out.send(&key, tensor).unwrap();
            let got = back.recv(&key).deadline(PATIENCE).wait().unwrap();
            assert_eq!(got.tensor.bytes(), want);
        } else {
            let waiting = std::thread::spawn({
                let (back, key) = (back.clone(), key.clone());
                move || back.recv(&key).deadline(PATIENCE).wait().unwrap()
            });
            out.send(&key, tensor).unwrap();
            assert_eq!(waiting.join().unwrap().tensor.bytes(), want);
        }
    }
    a.shutdown(PATIENCE);
    b.shutdown(PATIENCE);
}

#[test]
fn loopback_hands_over() {
    hands_over(Way::Loopback);
}

#[test]
fn shared_memory_hands_over() {
    hands_over(Way::Shm);
}

#[test]
fn tcp_hands_over() {
    hands_over(Way::Tcp);
}

#[test]
fn tcp_is_named_as_the_way_and_why() {
    let (a, b) = pair(Way::Tcp);
    let key = Key::between("a", "b", "edge").unwrap();
    a.step(StepId(1)).send(&key, Tensor::scalar(1u8)).unwrap();
    let got = b
        .step(StepId(1))
        .recv(&key)
        .deadline(PATIENCE)
        .wait()
        .unwrap();
    assert_eq!(got.tensor.bytes(), [1]);
    for engine in [&a, &b] {
        let connected = engine.connected();
        assert_eq!(connected.len(), 1);
        assert_eq!(connected[0].path, crate::control::Path::Tcp);
        assert!(!connected[0].why.is_empty());
    }
}

/// Streams values while the connections are broken again and again: each comes once, in order.
#[test]
fn broken_tcp_connections_are_made_again_and_lose_nothing() {
    let (a, b) = pair(Way::Tcp);
    let key = Key::between("a", "b", "stream").unwrap();
    let (out, back) = (a.step(StepId(3)), b.step(StepId(3)));
    for count in 0..600_u32 {
        if count % 200 == 100 {
            a.inner.wiring.break_connections();
        }
        let bytes = if count % 50 == 0 { 300_000 } else { 8 };
        let mut value = vec![0u8; bytes];
        value[..4].copy_from_slice(&count.to_le_bytes());
        let shape = crate::ground::Shape::row(bytes as u64).unwrap();
        let tensor = Tensor::from_vec(value.clone(), shape).unwrap();
        out.send(&key, tensor).unwrap();
        let got = back.recv(&key).deadline(PATIENCE).wait();
        let got = got.unwrap_or_else(|status| panic!("value {count}: {status}"));
        assert_eq!(got.tensor.bytes(), value, "value {count}");
    }
}

#[test]
fn a_peer_that_does_not_come_back_is_given_up_in_time() {
    let (a, b) = pair(Way::Tcp);
    let key = Key::between("b", "a", "edge").unwrap();
    b.step(StepId(1)).send(&key, Tensor::scalar(1u8)).unwrap();
    a.step(StepId(1))
        .recv(&key)
        .deadline(PATIENCE)
        .wait()
        .unwrap();
    let step = a.step(StepId(2));
    let status = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| step.recv(&key).deadline(PATIENCE).wait());
        // Who begins to wait when the peer is gone already waits for the next of its name.
        while a.pending().is_empty() {
            std::thread::yield_now();
        }
        // Dropped without a goodbye to speak of: nobody listens there any more.
        b.shutdown(Duration::ZERO);
        drop(b);
        waiting.join().unwrap().unwrap_err()
    });
    assert_eq!(status.reason(), "PEER_LOST", "{status}");
}

#[test]
fn a_local_key_needs_no_peer() {
    let engine = Engine::start(config("/job:a/task:0")).unwrap();
    let key = Key::between("a", "a", "x").unwrap();
    let step = engine.step(StepId(1));
    step.send(&key, Tensor::scalar(7u32)).unwrap();
    let got = step.recv(&key).deadline(PATIENCE).wait().unwrap();
    assert_eq!(got.tensor.as_slice::<u32>().unwrap(), [7]);
}

#[test]
fn an_abort_reaches_the_peer() {
    let (a, b) = pair(Way::Shm);
    let key = Key::between("a", "b", "never").unwrap();
    let waiting = std::thread::spawn({
        let (step, key) = (b.step(StepId(3)), key.clone());
        move || step.recv(&key).deadline(PATIENCE).wait()
    });
    let other = Key::between("a", "b", "once").unwrap();
    a.step(StepId(3)).send(&other, Tensor::scalar(1u8)).unwrap();
    b.step(StepId(3))
        .recv(&other)
        .deadline(PATIENCE)
        .wait()
        .unwrap();
    a.step(StepId(3))
        .abort(Status::new(Code::Internal, "TEST", "it broke"));
    let status = waiting.join().unwrap().unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Internal, "it broke")
    );
}

/// What a task sends last, before it goes, is received by who began to wait in time.
#[test]
fn a_receive_that_was_started_hears_the_last_word_of_a_peer_that_goes() {
    let (a, b) = pair(Way::Shm);
    let key = Key::between("a", "b", "last").unwrap();
    let last = b.step(StepId(1)).recv(&key).deadline(PATIENCE);
    let last = last.start().unwrap();
    a.step(StepId(1)).send(&key, Tensor::scalar(7u8)).unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    while a.connected().is_empty() && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    a.shutdown(PATIENCE);
    while !b.connected().is_empty() && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert_eq!(last.wait().unwrap().tensor.bytes(), [7]);
}

/// A shard may be the last that holds the engine, for the moment in which it asks for a connection to be made again.
#[test]
fn an_engine_whose_last_owner_is_its_shard_ends() {
    let engine = Engine::start(config("/job:a/task:0")).unwrap();
    let inner = std::sync::Arc::clone(&engine.inner);
    let (told, ended) = std::sync::mpsc::channel();
    struct Last(
        Option<std::sync::Arc<super::Inner>>,
        std::sync::mpsc::Sender<()>,
    );
    impl crate::shard::Task for Last {
        fn handle(
            &mut self,
            event: crate::shard::TaskEvent,
            context: &mut crate::shard::TaskContext<'_>,
        ) {
            match event {
                crate::shard::TaskEvent::Started => context.again(),
                crate::shard::TaskEvent::Again => {
                    let is_last = self
                        .0
                        .as_ref()
                        .is_some_and(|inner| std::sync::Arc::strong_count(inner) == 1);
                    if !is_last {
                        return context.again();
                    }
                    self.0 = None;
                    self.1.send(()).unwrap();
                }
                _ => {}
            }
        }
    }
    engine.spawn(0, Box::new(Last(Some(inner), told))).unwrap();
    drop(engine);
    ended.recv_timeout(PATIENCE).unwrap();
}
