//! Receives that are cancelled or dropped, racing with values: what is sent after a cancel passes it by, and what
//! has not been read is lost to no one. With threads, and with peers over shared memory and TCP.
//!
//! `RACES=100000 cargo test --test engine unread` races so often each way; a plain run does 500.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rendez::engine::{CancelToken, Config, Engine, Recv, Require, Step};
use rendez::ground::rng::Rng;
use rendez::ground::{Key, Shape, Status, StepId};
use rendez::mail::Received;
use rendez::memory::Tensor;

const PATIENCE: Duration = Duration::from_secs(60);

fn races() -> u64 {
    let races = std::env::var("RACES").ok();
    races.map_or(500, |races| races.parse().unwrap())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Threads,
    Shm,
    Tcp,
}

/// Who sends, who receives, and under which key.
struct Scene {
    engines: Vec<Engine>,
    sender: Step,
    receiver: Step,
    key: Key,
    way: Way,
}

fn config(task: &str, way: Way) -> Config {
    let mut config = Config::new(task);
    config.shards = 1;
    config.share_cores = true;
    config.arena.segment_bytes = 4 << 20;
    config.control = way != Way::Threads;
    if way == Way::Tcp {
        config.listen = Some("127.0.0.1:0".parse().unwrap());
        config.require = Require::Tcp;
    }
    config
}

impl Scene {
    fn new(way: Way) -> Self {
        // A machine may be slow, and run many of these at once.
        let start = |task| Engine::start(config(task, way)).unwrap();
        let receiving = start("/job:b/task:0");
        let mut engines = vec![receiving.clone()];
        let (source, sending) = match way {
            Way::Threads => ("b", receiving.clone()),
            Way::Shm | Way::Tcp => {
                let sending = start("/job:a/task:0");
                let address = match way {
                    Way::Tcp => receiving.tcp_address(),
                    _ => receiving.address(),
                };
                sending.add_peer(receiving.task().clone(), address.unwrap().clone());
                engines.push(sending.clone());
                ("a", sending)
            }
        };
        Self {
            engines,
            sender: sending.step(StepId(1)),
            receiver: receiving.step(StepId(1)),
            key: Key::between(source, "b", "race").unwrap(),
            way,
        }
    }

    /// Of every eighth the bytes do not go with the frame.
    fn send(&self, number: u64) {
        let len = match number % 8 {
            7 => 9_000,
            3 => 500,
            _ => 8,
        };
        let bytes = number.to_le_bytes().into_iter().cycle().take(len).collect();
        let tensor = Tensor::from_vec(bytes, Shape::row(len as u64).unwrap()).unwrap();
        self.sender.send_async(&self.key, tensor).wait().unwrap();
    }

    fn recv(&self) -> Recv {
        self.receiver.recv(&self.key)
    }

    /// The next value, which is there or on its way.
    fn take(&self) -> u64 {
        let had = self.recv().deadline(PATIENCE).wait();
        number_of(&had.unwrap_or_else(|status| panic!("{:?}: {status}", self.way)))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.engines
            .iter()
            .for_each(|engine| engine.shutdown(Duration::from_secs(1)));
    }
}

fn number_of(received: &Received) -> u64 {
    u64::from_le_bytes(received.tensor.host().unwrap()[..8].try_into().unwrap())
}

fn is_cancelled(outcome: &Result<Received, Status>) -> bool {
    matches!(outcome, Err(status) if status.reason() == "RECV_CANCELLED")
}

/// One look, as the arm of a `select!` that loses takes it.
fn look(recv: Recv) -> Option<Result<Received, Status>> {
    match pin!(recv).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

fn idle(rng: &mut Rng, most: u64) {
    (0..rng.below(most)).for_each(|_| std::hint::spin_loop());
}

/// `cancel()` has returned, and a value is sent: the receive under the token does not take it, and its sibling has it.
fn cancelled_receives_take_nothing(way: Way) {
    let scene = Scene::new(way);
    let mut rng = Rng::new(6);
    let (hand, waits) = mpsc::channel::<Recv>();
    let (told, outcomes) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            waits
                .into_iter()
                .try_for_each(|recv| told.send(recv.wait()))
        });
        for race in 0..races() {
            let token = CancelToken::new();
            let cancelled = scene.recv().cancel_on(&token.child()).start().unwrap();
            let sibling = scene.recv().deadline(PATIENCE).start().unwrap();
            // Not polled, polled by another thread, or polled once; its command in the mailbox or taken.
            let mut cancelled = Some(cancelled);
            let by_thread = race % 3 == 0;
            if by_thread {
                hand.send(cancelled.take().unwrap()).unwrap();
            }
            idle(&mut rng, 2_000);
            token.cancel();
            scene.send(race);
            let had = sibling.wait();
            let had = had.unwrap_or_else(|status| panic!("{way:?}, race {race}: {status}"));
            assert_eq!(number_of(&had), race, "{way:?}, race {race}");
            let outcome = match cancelled {
                Some(cancelled) if race % 3 == 1 => look(cancelled).unwrap(),
                Some(cancelled) => cancelled.wait(),
                None => outcomes.recv().unwrap(),
            };
            assert!(is_cancelled(&outcome), "{way:?}, race {race}: {outcome:?}");
        }
        drop(hand);
    });
}

/// A value and a cancel at the same time: one of the two receives has it, and the order stays.
fn a_cancel_and_a_value_at_once(way: Way) {
    let scene = Scene::new(way);
    let mut rng = Rng::new(7);
    let (cancel, tokens) = mpsc::channel::<(CancelToken, u64)>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for (token, delay) in tokens {
                (0..delay).for_each(|_| std::hint::spin_loop());
                token.cancel();
            }
        });
        let mut next = 0;
        for race in 0..races() {
            let token = CancelToken::new();
            let first = scene.recv().cancel_on(&token).start().unwrap();
            let second = scene.recv().deadline(PATIENCE).start().unwrap();
            cancel.send((token, rng.below(3_000))).unwrap();
            idle(&mut rng, 3_000);
            scene.send(next);
            scene.send(next + 1);
            let outcome = first.wait();
            let had = number_of(&second.wait().unwrap());
            let (first, last) = if is_cancelled(&outcome) {
                (had, scene.take())
            } else {
                (number_of(&outcome.unwrap()), had)
            };
            assert_eq!((first, last), (next, next + 1), "{way:?}, race {race}");
            next += 2;
        }
        drop(cancel);
    });
}

/// Receives that are dropped at any moment, with whatever they were brought.
fn dropped_receives_lose_nothing(way: Way) {
    let scene = Scene::new(way);
    let mut rng = Rng::new(8);
    let races = races();
    std::thread::scope(|scope| {
        let (go, turns) = mpsc::channel::<u64>();
        let scene = &scene;
        scope.spawn(move || turns.into_iter().for_each(|number| scene.send(number)));
        let mut next = 0;
        let had = |next: &mut u64, value: u64| {
            assert_eq!(value, *next, "{way:?}");
            *next += 1;
        };
        for race in 0..races {
            let mut recv = scene.recv();
            if race % 4 > 0 {
                recv = recv.start().unwrap();
            }
            go.send(race).unwrap();
            idle(&mut rng, 20_000);
            match race % 4 {
                // Not once looked at.
                1 => drop(recv),
                // A timeout around it.
                2 => {
                    let timer = async {
                        (0..3).for_each(|_| std::thread::yield_now());
                        None
                    };
                    let raced = futures_lite::future::or(async { Some(recv.await) }, timer);
                    if let Some(outcome) = futures_lite::future::block_on(raced) {
                        had(&mut next, number_of(&outcome.unwrap()));
                    }
                }
                _ => {
                    if let Some(outcome) = look(recv) {
                        had(&mut next, number_of(&outcome.unwrap()));
                    }
                }
            }
            // Sometimes all that is there is read, so that the next races with its value again.
            if race % 16 == 15 {
                while next <= race {
                    had(&mut next, scene.take());
                }
            }
        }
        drop(go);
        while next < races {
            had(&mut next, scene.take());
        }
    });
    // Nothing came twice, and nothing is left.
    let stats = scene.receiver_stats();
    assert_eq!(stats.parked, 0, "{way:?}");
    assert_eq!(stats.delivered - stats.returned, races, "{way:?}");
}

impl Scene {
    fn receiver_stats(&self) -> rendez::mail::ShardStats {
        self.engines[0].stats()[0]
    }
}

/// The same for sends that wait for room: what is there after a cancel is not theirs.
#[test]
fn room_after_a_cancel_is_not_taken_by_a_send_that_nobody_polls() {
    let mut config = config("/job:b/task:0", Way::Threads);
    config.parked_bytes = 1_000;
    config.parked_bytes_per_step = 1_000;
    let engine = Engine::start(config).unwrap();
    let step = engine.step(StepId(1));
    let key = Key::between("b", "b", "room").unwrap();
    let tensor = |mark: u8| Tensor::from_vec(vec![mark; 800], Shape::row(800).unwrap()).unwrap();
    step.send(&key, tensor(1)).unwrap();
    let token = CancelToken::new();
    let cancelled = step.send_async(&key, tensor(2)).cancel_on(&token).start();
    let sibling = step.send_async(&key, tensor(3)).start();
    while engine.stats()[0].waiting_sends < 2 {
        std::thread::yield_now();
    }
    token.cancel();
    for mark in [1, 3] {
        let had = step.recv(&key).deadline(PATIENCE).wait().unwrap();
        assert_eq!(had.tensor.host().unwrap()[0], mark);
    }
    sibling.wait().unwrap();
    let unsent = cancelled.wait().unwrap_err();
    assert_eq!(unsent.status().reason(), "SEND_CANCELLED");
    assert_eq!(unsent.into_tensor().unwrap().host().unwrap()[0], 2);
}

#[test]
fn what_is_sent_after_a_cancel_passes_by_a_receive_of_a_thread() {
    cancelled_receives_take_nothing(Way::Threads);
}

#[test]
fn what_a_peer_of_this_machine_sends_after_a_cancel_passes_by() {
    cancelled_receives_take_nothing(Way::Shm);
}

#[test]
fn what_a_peer_sends_over_tcp_after_a_cancel_passes_by() {
    cancelled_receives_take_nothing(Way::Tcp);
}

#[test]
fn a_cancel_that_meets_a_value_loses_neither_nor_their_order() {
    for way in [Way::Threads, Way::Shm, Way::Tcp] {
        a_cancel_and_a_value_at_once(way);
    }
}

#[test]
fn what_threads_drop_unread_is_not_lost() {
    dropped_receives_lose_nothing(Way::Threads);
}

#[test]
fn what_is_dropped_unread_of_a_peer_of_this_machine_is_not_lost() {
    dropped_receives_lose_nothing(Way::Shm);
}

#[test]
fn what_is_dropped_unread_of_a_peer_over_tcp_is_not_lost() {
    dropped_receives_lose_nothing(Way::Tcp);
}
