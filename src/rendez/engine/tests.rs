//! Engines end to end, in one process: over loopback, and over shared memory as two processes would.

mod forks;

use std::sync::Arc;
use std::time::Duration;

use super::{Config, Engine, Inner, Require};
use crate::ground::{Code, DType, Key, Status, StepId, catalogue};
use crate::memory::Tensor;

pub(super) const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn config(task: &str) -> Config {
    let mut config = Config::new(task);
    config.shards = 2;
    config.share_cores = true;
    config.arena.segment_bytes = 4 << 20;
    config
}

/// How two engines are connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Loopback,
    Shm,
    Tcp,
}

/// Two engines that are connected, or will be when a key wants it.
pub(super) fn pair(way: Way) -> (Engine, Engine) {
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
        let want = tensor.host().unwrap().to_vec();
        if round % 2 == 0 {
            out.send(&key, tensor).unwrap();
            let got = back.recv(&key).deadline(PATIENCE).wait().unwrap();
            assert_eq!(got.tensor.host().unwrap(), want);
        } else {
            let waiting = std::thread::spawn({
                let (back, key) = (back.clone(), key.clone());
                move || back.recv(&key).deadline(PATIENCE).wait().unwrap()
            });
            out.send(&key, tensor).unwrap();
            assert_eq!(waiting.join().unwrap().tensor.host().unwrap(), want);
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
    assert_eq!(got.tensor.host().unwrap(), [1]);
    for engine in [&a, &b] {
        let connected = engine.connected();
        assert_eq!(connected.len(), 1);
        assert_eq!(connected[0].path, crate::control::Path::Tcp);
        assert!(!connected[0].why.is_empty());
    }
}

/// Whichever side demands it. Who only asks and hands nothing over is let in.
#[test]
fn a_task_that_demands_tcp_is_not_met_at_its_unix_address() {
    let mut demands = config("/job:b/task:0");
    demands.require = Require::Tcp;
    let b = Engine::start(demands).unwrap();
    let reach = |task: &str| {
        let engine = Engine::start(config(task)).unwrap();
        engine.add_peer(b.task().clone(), b.address().unwrap().clone());
        engine.reach(b.task(), PATIENCE)
    };
    let status = reach("/job:a/task:0").unwrap_err();
    assert_eq!(status.reason(), catalogue::PATH_REFUSED, "{status}");
    assert!(status.message().contains("demands TCP"), "{status}");
    assert_eq!(reach("/job:observer/task:0").unwrap().task, *b.task());
}

/// As of two jobs on one machine whose launcher names no port.
#[test]
fn a_port_that_is_taken_says_which_setting_names_another() {
    let mut settings = config("/job:a/task:0");
    settings.listen = Some("127.0.0.1:0".parse().unwrap());
    let first = Engine::start(settings.clone()).unwrap();
    settings.listen = first.tcp_address().cloned();
    let status = Engine::start(settings).unwrap_err();
    assert_eq!(status.reason(), catalogue::PEER_DUPLICATE_NAME, "{status}");
    assert!(status.message().contains("RENDEZ_PORT"), "{status}");
}

/// Streams values while the connections are broken again and again: each comes once, in order.
fn streams_over_broken_connections(way: Way) {
    let (a, b) = pair(way);
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
        assert_eq!(got.tensor.host().unwrap(), value, "value {count}");
    }
}

#[test]
fn broken_tcp_connections_are_made_again_and_lose_nothing() {
    streams_over_broken_connections(Way::Tcp);
}

/// One hung up, and its process lives.
#[test]
fn broken_connections_on_one_machine_are_made_again_and_lose_nothing() {
    streams_over_broken_connections(Way::Shm);
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
        // A receive that begins when the peer is gone already waits for the next of its name.
        while a.pending().is_empty() {
            std::thread::yield_now();
        }
        // Dropped with hardly a goodbye: no process listens there any more.
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

/// What a task sends last, before it goes, is received by a receive that began in time.
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
    assert_eq!(last.wait().unwrap().tensor.host().unwrap(), [7]);
}

/// A shard may hold what is inside, for the moment in which it asks for a connection to be made again.
#[test]
fn an_engine_that_its_shard_holds_ends_with_its_last_handle() {
    struct Holder {
        _inner: Arc<Inner>,
    }
    impl crate::shard::Task for Holder {
        fn handle(
            &mut self,
            event: crate::shard::TaskEvent,
            context: &mut crate::shard::TaskContext<'_>,
        ) {
            match event {
                crate::shard::TaskEvent::Started | crate::shard::TaskEvent::Again => {
                    context.again();
                }
                _ => {}
            }
        }
    }
    let engine = Engine::start(config("/job:a/task:0")).unwrap();
    let inner: Arc<Inner> = Arc::clone(&engine.inner);
    let weak = Arc::downgrade(&inner);
    engine.spawn(0, Box::new(Holder { _inner: inner })).unwrap();
    drop(engine);
    assert_eq!(weak.strong_count(), 0);
}

/// A shard with room for four kilobytes, and one of two more for a step.
fn narrow(task: &str) -> Config {
    let mut config = config(task);
    config.shards = 1;
    config.control = false;
    config.parked_bytes = 8192;
    config.parked_bytes_per_step = 4096;
    config
}

fn kilobytes(count: usize, mark: u8) -> Tensor {
    let shape = crate::ground::Shape::row(count as u64 * 1024).unwrap();
    Tensor::from_vec(vec![mark; count * 1024], shape).unwrap()
}

#[test]
fn a_send_that_waits_goes_when_there_is_room_and_hands_its_tensor_back_when_not() {
    let engine = Engine::start(narrow("/job:a/task:0")).unwrap();
    let key = Key::between("a", "a", "x").unwrap();
    let step = engine.step(StepId(1));
    step.send_async(&key, kilobytes(4, 1)).wait().unwrap();
    let refused = step.send(&key, kilobytes(1, 2)).unwrap_err();
    assert_eq!(refused.reason(), "PARKED_BYTES_OF_STEP");
    let waiting = step.send_async(&key, kilobytes(1, 3)).start();
    let short = step
        .send_async(&key, kilobytes(1, 4))
        .deadline(Duration::from_millis(20));
    let unsent = short.wait().unwrap_err();
    assert_eq!(unsent.status().reason(), "DEADLINE");
    assert_eq!(unsent.into_tensor().unwrap().host().unwrap()[0], 4);
    assert_eq!(
        step.send(&key, Tensor::scalar(5u8)).unwrap_err().reason(),
        "SEND_BEHIND"
    );
    for mark in [1, 3] {
        let got = step.recv(&key).deadline(PATIENCE).wait().unwrap();
        assert_eq!(got.tensor.host().unwrap()[0], mark);
    }
    waiting.wait().unwrap();
    step.send(&key, Tensor::scalar(5u8)).unwrap();
    step.finish();
    let status: Status = step
        .send_async(&key, kilobytes(1, 6))
        .wait()
        .unwrap_err()
        .into();
    assert_eq!(status.reason(), "STEP_FINISHED");
}

/// The memory of a send that is given up is there again at once, and so is its place.
#[test]
fn a_send_that_is_dropped_gives_its_memory_back() {
    let engine = Engine::start(narrow("/job:a/task:0")).unwrap();
    let key = Key::between("a", "a", "x").unwrap();
    let step = engine.step(StepId(1));
    step.send(&key, kilobytes(4, 1)).unwrap();
    struct Told(std::sync::mpsc::Sender<()>);
    impl AsRef<[u8]> for Told {
        fn as_ref(&self) -> &[u8] {
            &[9; 64]
        }
    }
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
        }
    }
    let (told, freed) = std::sync::mpsc::channel();
    let meta =
        crate::ground::TensorMeta::new(DType::U8, crate::ground::Shape::row(64).unwrap()).unwrap();
    let owned = bytes::Bytes::from_owner(Told(told));
    let tensor = Tensor::from_bytes(meta, owned).unwrap();
    let waiting = step.send_async(&key, tensor).start();
    while engine.stats()[0].waiting_sends == 0 {
        std::thread::yield_now();
    }
    assert!(freed.try_recv().is_err());
    drop(waiting);
    assert!(
        freed.try_recv().is_ok(),
        "its memory is free when the drop returns"
    );
    while engine.stats()[0].waiting_sends > 0 {
        std::thread::yield_now();
    }
}

/// A `select!` loop polls by reference, and may give up what has told its end there already.
#[test]
fn a_send_says_that_its_value_was_taken_as_often_as_it_is_asked() {
    use futures_lite::future::block_on;
    let engine = Engine::start(narrow("/job:a/task:0")).unwrap();
    let key = Key::between("a", "a", "x").unwrap();
    let step = engine.step(StepId(1));
    // One that ends as it begins, and one that waits for room.
    let mut sends = [kilobytes(4, 1), kilobytes(1, 2)].map(|tensor| step.send_async(&key, tensor));
    block_on(&mut sends[0]).unwrap();
    let [first, second] = sends;
    let mut second = second.start();
    assert_eq!(step.recv(&key).wait().unwrap().tensor.host().unwrap()[0], 1);
    block_on(&mut second).unwrap();
    block_on(&mut second).unwrap();
    assert!(first.give_up().is_ok());
    assert!(second.wait().is_ok());
    // What was not sent went back with the first answer.
    let foreign = Key::between("b", "a", "x").unwrap();
    let mut refused = step.send_async(&foreign, kilobytes(1, 3));
    let unsent = block_on(&mut refused).unwrap_err();
    assert!(unsent.into_tensor().is_some());
    assert!(refused.give_up().unwrap_err().into_tensor().is_none());
}

#[test]
fn a_token_ends_receives_and_waiting_sends_on_threads_and_in_futures() {
    let engine = Engine::start(narrow("/job:a/task:0")).unwrap();
    let (key, never) = (
        Key::between("a", "a", "x").unwrap(),
        Key::between("a", "a", "never").unwrap(),
    );
    let step = engine.step(StepId(1));
    step.send(&key, kilobytes(4, 1)).unwrap();
    let token = super::CancelToken::new();
    let child = token.child();
    std::thread::scope(|scope| {
        let on_thread = scope.spawn(|| step.recv(&never).cancel_on(&child).wait());
        let in_future = scope.spawn(|| {
            let recv = step.recv(&never).cancel_on(&token);
            futures_lite::future::block_on(recv)
        });
        let sending = scope.spawn(|| {
            step.send_async(&key, kilobytes(1, 2))
                .cancel_on(&child)
                .wait()
        });
        while engine.stats()[0].waiting_sends == 0 || engine.stats()[0].waiting < 2 {
            std::thread::yield_now();
        }
        token.cancel();
        for receiving in [on_thread, in_future] {
            let status = receiving.join().unwrap().unwrap_err();
            assert_eq!(
                (status.code(), status.reason()),
                (Code::Cancelled, "RECV_CANCELLED")
            );
        }
        let unsent = sending.join().unwrap().unwrap_err();
        assert_eq!(unsent.status().reason(), "SEND_CANCELLED");
        assert_eq!(unsent.into_tensor().unwrap().host().unwrap()[0], 2);
    });
    // Cancelled before it begins.
    assert_eq!(
        step.recv(&key)
            .cancel_on(&child)
            .wait()
            .unwrap_err()
            .reason(),
        "RECV_CANCELLED"
    );
    assert!(
        step.send_async(&key, kilobytes(1, 2))
            .cancel_on(&token)
            .wait()
            .is_err()
    );
    // No receive or send waits, and what was there is there still.
    let stats = engine.stats()[0];
    assert_eq!((stats.waiting, stats.waiting_sends), (0, 0));
    let got = step.recv(&key).deadline(PATIENCE).wait().unwrap();
    assert_eq!(got.tensor.host().unwrap()[0], 1);
    step.send(&never, Tensor::scalar(3u8)).unwrap();
    let got = step.recv(&never).deadline(PATIENCE).wait().unwrap();
    assert_eq!(got.tensor.host().unwrap(), [3]);
}

/// Values and cancels meet at every moment: each value is received by one receive, in order, or is still there.
#[test]
fn a_cancel_that_races_with_a_value_loses_neither() {
    let engine = Engine::start(config("/job:a/task:0")).unwrap();
    let key = Key::between("a", "a", "x").unwrap();
    let step = engine.step(StepId(1));
    let mut next = 0u32;
    for count in 0..2_000u32 {
        let token = super::CancelToken::new();
        let recv = step.recv(&key).cancel_on(&token).start().unwrap();
        let canceller = std::thread::spawn(move || token.cancel());
        step.send(&key, Tensor::scalar(count)).unwrap();
        match recv.wait() {
            Ok(got) => {
                assert_eq!(got.tensor.as_slice::<u32>().unwrap(), [next]);
                next += 1;
            }
            Err(status) => assert_eq!(status.reason(), "RECV_CANCELLED"),
        }
        canceller.join().unwrap();
    }
    while next < 2_000 {
        let got = step.recv(&key).deadline(PATIENCE).wait().unwrap();
        assert_eq!(got.tensor.as_slice::<u32>().unwrap(), [next]);
        next += 1;
    }
}

/// Of a step that has a deadline everything ends with it, here and at the peer, whichever shard it waits on.
#[test]
fn the_deadline_of_a_step_ends_it_at_every_task() {
    let (a, b) = pair(Way::Shm);
    let met = Key::between("a", "b", "met").unwrap();
    a.step(StepId(2)).send(&met, Tensor::scalar(1u8)).unwrap();
    b.step(StepId(2))
        .recv(&met)
        .deadline(PATIENCE)
        .wait()
        .unwrap();
    let waiting: Vec<_> = (0..8)
        .map(|edge| {
            let (engine, key) = if edge % 2 == 0 {
                (&b, Key::between("a", "b", &format!("never{edge}")).unwrap())
            } else {
                (&a, Key::between("b", "a", &format!("never{edge}")).unwrap())
            };
            engine
                .step(StepId(2))
                .recv(&key)
                .deadline(PATIENCE)
                .start()
                .unwrap()
        })
        .collect();
    let step = a.step_within(StepId(2), Duration::from_secs(20)).unwrap();
    let key = Key::between("a", "a", "own").unwrap();
    let own = step.recv(&key).deadline(Duration::from_millis(1)).wait();
    assert_eq!(own.unwrap_err().reason(), "DEADLINE");
    step.deadline(Duration::from_millis(50)).unwrap();
    for waiting in waiting {
        let status = waiting.wait().unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!(
            status.message().contains("step 2 had not ended"),
            "{status}"
        );
    }
    let status = step.send(&key, Tensor::scalar(1u8)).unwrap_err();
    assert_eq!(status.reason(), "DEADLINE");
    assert_eq!(step.deadline(PATIENCE).unwrap_err().reason(), "DEADLINE");
}

/// Many threads, each with a key of its own and both kinds of send, through a mailbox and bounds that are always full:
/// of what was taken each key gives everything, in the order in which it was begun.
#[test]
fn both_kinds_of_send_keep_the_order_of_each_key_under_pressure() {
    let mut narrow = narrow("/job:a/task:0");
    narrow.mailbox = 4;
    let engine = Engine::start(narrow).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let step = engine.step(StepId(thread / 2));
            let key = Key::between("a", "a", &format!("x{thread}")).unwrap();
            let (sink, at) = (step.clone(), key.clone());
            let producer = scope.spawn(move || {
                let mut begun = Vec::new();
                for serial in 0..1_500u64 {
                    let shape = crate::ground::Shape::row(40).unwrap();
                    let tensor = Tensor::from_vec(vec![serial; 40], shape).unwrap();
                    if (serial + thread) % 3 == 0 {
                        begun.push((serial, Some(step.send_async(&key, tensor).start())));
                    } else if step.send(&key, tensor).is_ok() {
                        begun.push((serial, None));
                    }
                }
                let end = step.send_dead_async(&key, Tensor::scalar(0u64));
                end.deadline(PATIENCE).wait().unwrap();
                let taken = begun.into_iter().filter_map(|(serial, sending)| {
                    sending
                        .is_none_or(|sending| sending.wait().is_ok())
                        .then_some(serial)
                });
                taken.collect::<Vec<_>>()
            });
            scope.spawn(move || {
                let mut got = Vec::new();
                loop {
                    let received = match sink.recv(&at).deadline(PATIENCE).wait() {
                        Ok(received) => received,
                        // A receive, too, is refused by a mailbox that is full.
                        Err(status) if status.reason() == "MAILBOX_FULL" => continue,
                        Err(status) => panic!("{at}: {status}"),
                    };
                    if received.is_dead {
                        break;
                    }
                    got.push(received.tensor.as_slice::<u64>().unwrap()[0]);
                }
                assert_eq!(got, producer.join().unwrap());
            });
        }
    });
    assert_eq!(engine.stats()[0].waiting_sends, 0);
}
