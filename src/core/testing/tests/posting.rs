//! Two shards that turn by hand, over one loopback connection: what a link owes when something comes between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{ARENA, Deaf};
use crate::fabric::{AnyPort, Geometry, LoopbackPort, Port};
use crate::ground::device::TaskName;
use crate::ground::{Incarnation, Key, Nanos, Shape, StepId};
use crate::memory::Tensor;
use crate::shard::{Observer, Settings, Task, TaskContext, TaskEvent};
use crate::testing::solo::{End, Greeting, Holdings, Queues, Solo, Team};
use crate::trace::Clock;

/// Tasks `a` and `b`, of one shard each.
pub(super) struct Pair {
    pub(super) solos: [Solo; 2],
    now: Arc<AtomicU64>,
}

pub(super) const STEP: StepId = StepId(1);

fn task(at: usize) -> TaskName {
    TaskName::parse(["/job:a/task:0", "/job:b/task:0"][at]).unwrap()
}

impl Pair {
    pub(super) fn new(settings: Settings) -> Self {
        let mut pair = Self::apart(settings, || Arc::new(Deaf));
        pair.connect();
        pair.settle();
        pair
    }

    /// Not connected yet, each with an observer.
    pub(super) fn apart(settings: Settings, observer: impl Fn() -> Arc<dyn Observer>) -> Self {
        let now = Arc::new(AtomicU64::new(1));
        let solos = [0, 1].map(|at| {
            let team = Team {
                task: task(at),
                incarnation: Incarnation(at as u64 + 1),
                settings,
                clock: Clock::simulated(Arc::clone(&now)),
                arena: ARENA,
                queues: Queues::default(),
            };
            let ports = |_| vec![AnyPort::Loopback(LoopbackPort::new())];
            team.muster(ports, |_| observer()).unwrap().remove(0)
        });
        Self { solos, now }
    }

    fn connect(&mut self) {
        self.connect_as([Incarnation(1), Incarnation(2)]);
    }

    /// Each greeted as one of these lives.
    pub(super) fn connect_as(&mut self, lives: [Incarnation; 2]) {
        let geometry = Geometry {
            slots: 64,
            payload_bytes: 1 << 16,
        };
        let (maker, opener) = LoopbackPort::endpoints(geometry).unwrap();
        for (at, end) in [(0, maker), (1, opener)] {
            self.solos[at].peer_up(Greeting {
                task: task(1 - at),
                incarnation: lives[1 - at],
                shards: 1,
                read_domain: false,
                segments: Vec::new(),
                links: vec![(0, End::Loopback(end))],
            });
        }
    }

    /// Turns both until nothing moves, at the time it is.
    pub(super) fn settle(&mut self) {
        for _ in 0..20 {
            for solo in &mut self.solos {
                solo.turn();
            }
        }
    }

    pub(super) fn pass(&self, ns: u64) {
        self.now.fetch_add(ns, Ordering::Relaxed);
    }

    pub(super) fn send(&mut self, at: usize, key: &Key, len: usize) {
        let tensor = Tensor::from_vec(vec![7_u8; len], Shape::row(len as u64).unwrap()).unwrap();
        let sent = self.solos[at].enter(|context| {
            let key = context.prepare(key)?;
            context.send(STEP, key, tensor)
        });
        sent.unwrap();
    }
}

/// Takes one value after the other, and counts them.
struct Taker {
    key: Key,
    count: Arc<AtomicU64>,
}

impl Task for Taker {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        if matches!(event, TaskEvent::Received { outcome: Ok(_), .. }) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        let key = context.prepare(&self.key).unwrap();
        context.recv(STEP, key, 0);
    }
}

/// A task that has taken one value, with nine more on their way, and how many it has taken.
fn streamed() -> (Pair, Arc<AtomicU64>) {
    let mut pair = Pair::new(Settings::default());
    let key = Key::between("a", "b", "edge").unwrap();
    let count = Arc::new(AtomicU64::new(0));
    pair.solos[1].spawn(Box::new(Taker {
        key: key.clone(),
        count: Arc::clone(&count),
    }));
    // The first brings the key's name, too.
    pair.send(0, &key, 4);
    pair.settle();
    for _ in 0..9 {
        pair.send(0, &key, 4);
    }
    (pair, count)
}

/// A peer takes nothing: more is due to it than its ring has room for, and no try comes to anything. The shard sleeps.
#[test]
fn a_shard_sleeps_whose_peer_has_no_room() {
    let mut pair = Pair::new(Settings::default());
    let keys: Vec<_> = (0..150)
        .map(|edge| Key::between("a", "b", &format!("edge{edge}")).unwrap())
        .collect();
    for key in &keys {
        pair.send(0, key, 8);
    }
    let refused = |pair: &mut Pair| match &pair.solos[0].ports_mut()[0] {
        AnyPort::Loopback(port) => port.stats().refused_full,
        _ => unreachable!("it has none but this"),
    };
    for _ in 0..3 {
        pair.solos[0].turn();
    }
    assert!(refused(&mut pair) > 0, "the ring is full");
    assert!(pair.solos[0].arm(), "and none keeps the shard awake for it");
    let before = refused(&mut pair);
    for _ in 0..3 {
        pair.solos[1].turn();
    }
    // There is room for some. What was posted is still to be sent, which no peer tells of.
    assert!(!pair.solos[0].arm());
    assert!(refused(&mut pair) > before, "the rest was refused again");
    pair.settle();
    for key in &keys {
        let taken = pair.solos[1].recv(STEP, key, Nanos::NEVER);
        pair.solos[1].turn();
        assert!(taken.take().is_some_and(|outcome| outcome.is_ok()), "{key}");
    }
}

/// They were taken together from the third on, and each but the first was parked.
#[test]
fn values_that_a_task_waits_for_come_one_by_one_and_find_it_waiting() {
    let (mut pair, count) = streamed();
    for turns in 1..=9 {
        pair.solos[1].turn();
        assert_eq!(count.load(Ordering::Relaxed), 1 + turns);
    }
}

/// Each of its turns takes longer than parking does, and peers would wait for one after the other.
#[test]
fn values_that_come_beside_commands_are_taken_together() {
    let (mut pair, count) = streamed();
    let other = Key::between("a", "b", "other").unwrap();
    let turn = |solo: &mut Solo| {
        let asked = solo.ask(STEP, &other, Nanos::NEVER);
        solo.turn();
        asked.unwrap()
    };
    let _asked = [(); 3].map(|()| turn(&mut pair.solos[1]));
    assert_eq!(count.load(Ordering::Relaxed), 10);
}

/// A value that left by a request leaves its slot among the parked ones behind. A frame that brought the credit for it
/// had the link looked at for that, and for nothing else: when the frame is to be acknowledged was forgotten.
#[test]
fn a_frame_that_also_brings_credit_is_acknowledged() {
    let mut pair = Pair::new(Settings {
        line_window: 20,
        ..Settings::default()
    });
    let [first, second] = ["first", "second"].map(|edge| Key::between("a", "b", edge).unwrap());
    let back = Key::between("b", "a", "back").unwrap();
    for key in [&first, &second] {
        pair.send(0, key, 600);
    }
    pair.settle();
    assert_eq!(
        pair.solos[0].stats().parked,
        1,
        "there is no credit for two"
    );
    let requested = pair.solos[1].recv(STEP, &second, Nanos::NEVER);
    pair.settle();
    assert!(requested.take().is_some(), "it needs none");
    pair.pass(1_000_000_000);
    pair.settle();
    assert_eq!(pair.solos[0].next_timer(), Nanos::NEVER);
    let taken = pair.solos[1].recv(STEP, &first, Nanos::NEVER);
    assert!(taken.take().is_some());
    pair.send(1, &back, 8);
    pair.settle();
    pair.pass(1_000_000_000);
    pair.settle();
    assert_eq!(pair.solos[1].holdings().owed, [0; 4]);
}

/// A value offered again after a broken write waits for a landing of its own, while the demand that had accepted it
/// before still waits for its landing to come home. The step ends: the value is released.
#[test]
fn a_value_offered_again_is_released_with_its_step() {
    let mut pair = Pair::new(Settings {
        // A peer's share holds one landing of such a value, and not two.
        landing_bytes: 1 << 16,
        ..Settings::default()
    });
    let key = Key::between("a", "b", "large").unwrap();
    let _waiting = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
    pair.send(0, &key, 8_000);
    // The key's number comes in one turn, and the offer in the next.
    for _ in 0..2 {
        pair.solos[1].turn();
    }
    assert_eq!(pair.solos[1].holdings().owed[0], 1, "it has asked");
    let (port, qp) = pair.solos[1].queue_pair(&task(0), 0).unwrap();
    pair.solos[1].ports_mut()[port].close(qp);
    pair.settle();
    pair.connect();
    let mut holdings = Holdings::default();
    for _ in 0..4 {
        pair.solos[0].turn();
        pair.solos[1].turn();
        holdings = pair.solos[1].holdings();
        if holdings.backlog > 0 {
            break;
        }
    }
    assert_eq!(
        (holdings.incoming, holdings.backlog),
        (1, 1),
        "offered again"
    );
    pair.solos[1].finish(STEP);
    pair.settle();
    pair.pass(1_000_000_000);
    pair.settle();
    assert_eq!(pair.solos[0].holdings().owed, [0; 4]);
    assert_eq!(pair.solos[1].holdings(), Holdings::default());
}

/// A queue pair takes so many writes. The others keep their order, and cost a turn one attempt, not one each.
#[test]
fn writes_that_find_their_queue_pair_full_are_tried_one_a_turn() {
    const VALUES: usize = 200;
    const TURNS: u64 = 50;
    let mut pair = Pair::new(Settings::default());
    let key = Key::between("a", "b", "large").unwrap();
    // From its first large value on the key's receives ask.
    pair.send(0, &key, 4_000);
    let first = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
    pair.settle();
    assert!(first.take().is_some());
    let asked: Vec<_> = (0..VALUES)
        .map(|_| pair.solos[1].recv(STEP, &key, Nanos::NEVER))
        .collect();
    pair.settle();
    let values = (0..VALUES).map(|at| {
        let mark = u8::try_from(at).unwrap();
        Tensor::from_vec(vec![mark; 4_000], Shape::row(4_000).unwrap()).unwrap()
    });
    for value in values {
        let sent = pair.solos[0].enter(|context| {
            let key = context.prepare(&key)?;
            context.send(STEP, key, value)
        });
        sent.unwrap();
    }
    pair.solos[0].turn();
    let refused = |pair: &mut Pair| match &pair.solos[0].ports_mut()[0] {
        AnyPort::Loopback(port) => port.stats().refused_full,
        _ => unreachable!("its port is a loopback"),
    };
    let before = refused(&mut pair);
    assert!(before > 0, "more than a queue pair takes");
    for _ in 0..TURNS {
        // The peer stands still, and answers none.
        pair.solos[0].turn();
    }
    let tries = refused(&mut pair) - before;
    assert!(tries <= 2 * TURNS, "{tries} attempts in {TURNS} turns");
    for _ in 0..20 {
        pair.settle();
    }
    for (at, waiting) in asked.iter().enumerate() {
        let received = waiting.take().expect("it has come").unwrap();
        assert_eq!(usize::from(received.tensor.host().unwrap()[0]), at);
    }
}

/// Values that are asked for leave past those that wait for credit, and no trace of theirs stays among these.
#[test]
fn what_leaves_by_requests_leaves_nothing_among_the_parked() {
    let mut pair = Pair::new(Settings {
        line_window: 20,
        ..Settings::default()
    });
    let [first, second] = ["first", "second"].map(|edge| Key::between("a", "b", edge).unwrap());
    pair.send(0, &first, 600);
    pair.settle();
    let parked = |pair: &mut Pair| {
        let links = &mut pair.solos[0].core_mut().links;
        links.iter().map(|link| link.parked.len()).sum::<usize>()
    };
    // One of them stays parked all the time.
    pair.send(0, &second, 600);
    for _ in 0..100 {
        pair.send(0, &second, 600);
        let requested = pair.solos[1].recv(STEP, &second, Nanos::NEVER);
        pair.settle();
        assert!(requested.take().is_some_and(|received| received.is_ok()));
        assert!(parked(&mut pair) <= 3);
    }
    let last = pair.solos[1].recv(STEP, &second, Nanos::NEVER);
    pair.settle();
    assert!(last.take().is_some());
    assert_eq!(parked(&mut pair), 0);
}

/// A peer has finished its part of a step so long ago that it is forgotten here: what is asked of it ends, and the step
/// goes on.
#[test]
fn a_finish_that_was_forgotten_is_heard_again_and_ends_no_step() {
    let mut pair = Pair::new(Settings::default());
    let key = Key::between("a", "b", "large").unwrap();
    // From its first large value on the key's receives ask.
    let waiting = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
    pair.send(0, &key, 8_000);
    pair.settle();
    assert!(waiting.take().is_some());
    pair.solos[0].finish(STEP);
    pair.settle();
    for link in pair.solos[1].core_mut().links.ids() {
        pair.solos[1].core_mut().partings.forget_link(link);
    }
    for _ in 0..2 {
        let late = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
        pair.settle();
        let ended = late.take().expect("it ends").expect_err("nothing comes");
        assert_eq!(ended.reason(), "STEP_FINISHED");
        assert!(!pair.solos[1].core_mut().table.has_ended(STEP));
    }
}
