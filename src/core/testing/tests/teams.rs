//! Tasks of several shards that turn by hand: what shards of one task say to each other, and a peer that comes back
//! with another number of shards.

mod asking;
mod in_place;
mod last_ends;
mod sent_on;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{ARENA, Deaf};
use crate::fabric::{AnyPort, DownReason, Geometry, LoopbackPort, Port};
use crate::ground::device::TaskName;
use crate::ground::{Incarnation, Key, Nanos, Shape, Status, StepId, catalogue, faults};
use crate::memory::{MappedSegment, Segment, Tensor};
use crate::shard::{
    Observer, PreparedKey, Progress, Settings, Task, TaskContext, TaskEvent, Unsent,
};
use crate::testing::solo::{End, Greeting, Queues, Solo, Team};
use crate::trace::Clock;

const STEP: StepId = StepId(1);
const SECOND: u64 = 1_000_000_000;

fn name(of: char) -> TaskName {
    TaskName::parse(&format!("/job:{of}/task:0")).unwrap()
}

/// The shards of a task.
struct Shards {
    of: char,
    life: Incarnation,
    solos: Vec<Solo>,
}

impl Shards {
    fn new(of: char, life: u64, shards: u16, now: &Arc<AtomicU64>) -> Self {
        let settings = Settings {
            shards,
            ..Settings::default()
        };
        Self::with(of, life, settings, now)
    }

    fn with(of: char, life: u64, settings: Settings, now: &Arc<AtomicU64>) -> Self {
        Self::observed(of, life, settings, now, &(Arc::new(Deaf) as _))
    }

    fn observed(
        of: char,
        life: u64,
        settings: Settings,
        now: &Arc<AtomicU64>,
        observer: &Arc<dyn Observer>,
    ) -> Self {
        let team = Team {
            task: name(of),
            incarnation: Incarnation(life),
            settings,
            clock: Clock::simulated(Arc::clone(now)),
            arena: ARENA,
            queues: Queues::default(),
        };
        let ports = |_| vec![AnyPort::Loopback(LoopbackPort::new())];
        let solos = team.muster(ports, |_| Arc::clone(observer)).unwrap();
        let life = Incarnation(life);
        Self { of, life, solos }
    }

    /// The shard that owns a key, of which `other` says the same.
    fn owner(&mut self, key: &Key) -> &mut Solo {
        let owner = key.shard_of(self.solos.len() as u32);
        &mut self.solos[owner as usize]
    }

    /// A key from one task to another that this task's shard `owner` owns.
    fn key(&self, from: char, to: char, owner: u32) -> Key {
        let keys = (0..).map(|edge| {
            Key::between(&from.to_string(), &to.to_string(), &format!("e{edge}")).unwrap()
        });
        let mut keys = keys.filter(|key| key.shard_of(self.solos.len() as u32) == owner);
        keys.next().unwrap()
    }

    fn turn(&mut self) {
        for solo in &mut self.solos {
            solo.turn();
        }
    }
}

/// What the first shard of a task has allocated so far, as a peer maps it.
fn mapped(of: &Shards) -> Vec<(u16, u16, Arc<MappedSegment>)> {
    let segments = of.solos[0].segments().iter().enumerate();
    let map = |(at, segment): (usize, &Arc<Segment>)| {
        let fd = segment.fd().try_clone_to_owned().unwrap();
        let mapped = MappedSegment::open(fd, segment.len() as u64).unwrap();
        (0, at as u16, Arc::new(mapped))
    };
    segments.map(map).collect()
}

/// Connects each shard of the one with each of the other.
fn connect(one: &mut Shards, other: &mut Shards) {
    connect_with(one, other, InPlace::Never);
}

/// Whether what lies in the other's memory is read there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InPlace {
    Never,
    /// It is to be, and the news of the memory has not come.
    NotYet,
    Now,
}

/// As [`connect`].
fn connect_with(one: &mut Shards, other: &mut Shards, reads: InPlace) {
    let geometry = Geometry {
        slots: 64,
        payload_bytes: 1 << 16,
    };
    let mut ends: Vec<Vec<_>> = other.solos.iter().map(|_| Vec::new()).collect();
    let (theirs, shards) = (other.solos.len() as u16, one.solos.len() as u16);
    let greeting = |of: &Shards, shards, links| Greeting {
        task: name(of.of),
        incarnation: of.life,
        shards,
        read_domain: reads != InPlace::Never,
        segments: if reads == InPlace::Now {
            mapped(of)
        } else {
            Vec::new()
        },
        links,
    };
    for (at, solo) in one.solos.iter_mut().enumerate() {
        let mut links = Vec::new();
        for (to, ends) in ends.iter_mut().enumerate() {
            let (maker, opener) = LoopbackPort::endpoints(geometry).unwrap();
            links.push((to as u16, End::Loopback(maker)));
            ends.push((at as u16, End::Loopback(opener)));
        }
        solo.peer_up(greeting(other, theirs, links));
    }
    let greetings: Vec<_> = (ends.into_iter())
        .map(|links| greeting(one, shards, links))
        .collect();
    for (solo, greeting) in other.solos.iter_mut().zip(greetings) {
        solo.peer_up(greeting);
    }
}

/// Turns all until nothing moves, at the time it is.
fn settle(of: &mut [&mut Shards]) {
    for _ in 0..20 {
        for shards in &mut *of {
            shards.turn();
        }
    }
}

fn tensor(byte: u8, len: usize) -> Tensor {
    Tensor::from_vec(vec![byte; len], Shape::row(len as u64).unwrap()).unwrap()
}

fn send(solo: &mut Solo, key: &Key, byte: u8) {
    let sent = solo.enter(|context| {
        let key = context.prepare(key)?;
        context.send(STEP, key, tensor(byte, 8))
    });
    sent.unwrap();
}

/// What was parked for a peer while it was away waited at a link of its former life, which no key named any more.
#[test]
fn parked_values_follow_a_peer_to_another_number_of_shards() {
    let now = Arc::new(AtomicU64::new(1));
    let mut a = Shards::new('a', 1, 1, &now);
    let mut b = Shards::new('b', 2, 1, &now);
    connect(&mut a, &mut b);
    settle(&mut [&mut a, &mut b]);
    let keys = ["x", "y", "z"].map(|edge| Key::between("a", "b", edge).unwrap());
    for key in &keys {
        send(&mut a.solos[0], key, 1);
        assert!(b.owner(key).recv(STEP, key, Nanos::NEVER).take().is_none());
    }
    settle(&mut [&mut a, &mut b]);
    let task = name('b');
    a.solos[0].peer_lost(&task, faults::peer_exited(&task));
    settle(&mut [&mut a]);
    let step = StepId(2);
    for (key, byte) in keys.iter().zip(2..) {
        for byte in [byte, byte + 10] {
            let sent = a.solos[0].enter(|context| {
                let key = context.prepare(key)?;
                context.send(step, key, tensor(byte, 8))
            });
            sent.unwrap();
        }
    }
    assert_eq!(a.solos[0].stats().parked, 6);
    let mut b = Shards::new('b', 3, 3, &now);
    connect(&mut a, &mut b);
    settle(&mut [&mut a, &mut b]);
    for (key, byte) in keys.iter().zip(2..) {
        for byte in [byte, byte + 10] {
            let received = b.owner(key).recv(step, key, Nanos::NEVER);
            settle(&mut [&mut a, &mut b]);
            let received = received.take().expect("it has come").unwrap();
            assert_eq!(received.tensor.host().unwrap(), [byte; 8]);
        }
    }
    assert_eq!(a.solos[0].stats().parked, 0);
}

/// The task `b` in that life, of so many shards, sends the task `a` a value that travels by a landing.
fn offer(a: &mut Shards, life: u64, shards: u16, now: &Arc<AtomicU64>) -> Shards {
    let mut b = Shards::new('b', life, shards, now);
    connect(a, &mut b);
    settle(&mut [a, &mut b]);
    let key = Key::between("b", "a", "large").unwrap();
    let step = StepId(life * 100 + u64::from(shards));
    let sent = b.owner(&key).enter(|context| {
        let key = context.prepare(&key)?;
        context.send(step, key, tensor(1, 8192))
    });
    sent.unwrap();
    let received = a.solos[0].recv(step, &key, Nanos::NEVER);
    settle(&mut [a, &mut b]);
    let received = received.take().expect("it has come").unwrap();
    assert_eq!(received.tensor.size(), 8192);
    b
}

/// What its former links knew of its keys kept them from others: each return left some behind.
#[test]
fn a_peer_that_returns_with_other_numbers_of_shards_leaves_no_links_behind() {
    let now = Arc::new(AtomicU64::new(1));
    let mut a = Shards::new('a', 1, 1, &now);
    let mut returned = None;
    for (life, shards) in (2..).zip([1, 3, 1, 2, 1, 3, 2]) {
        let before = returned.take();
        returned = Some(offer(&mut a, life, shards, &now));
        drop(before);
    }
    assert!(a.solos[0].core_mut().links.iter().count() <= 2 * 3);
}

/// No honest peer does: its former connections would outlive what is known of it.
#[test]
fn a_peer_that_changes_its_number_of_shards_in_one_life_keeps_no_connection() {
    let now = Arc::new(AtomicU64::new(1));
    let mut a = Shards::new('a', 1, 1, &now);
    let first = offer(&mut a, 2, 3, &now);
    let again = offer(&mut a, 2, 2, &now);
    let links = &a.solos[0].core_mut().links;
    assert_eq!(links.iter().filter(|link| link.qp.is_some()).count(), 2);
    drop((first, again));
}

/// A receive with a deadline of its own keeps a peer wanted that does not come; values for it are given up each time.
#[test]
fn values_that_are_given_up_leave_no_slots_behind() {
    let now = Arc::new(AtomicU64::new(1));
    let mut a = Shards::new('a', 1, 1, &now);
    let mut b = Shards::new('b', 2, 1, &now);
    connect(&mut a, &mut b);
    settle(&mut [&mut a, &mut b]);
    let task = name('b');
    a.solos[0].peer_lost(&task, faults::peer_exited(&task));
    settle(&mut [&mut a]);
    let back = Key::between("b", "a", "back").unwrap();
    let patience = Nanos(10_000 * SECOND);
    let waiting = a.solos[0].recv(STEP, &back, patience);
    let there = Key::between("a", "b", "there").unwrap();
    let timeout = Settings::default().connect_timeout_ns;
    for _ in 0..10 {
        send(&mut a.solos[0], &there, 1);
        now.fetch_add(timeout + 1, Ordering::Relaxed);
        settle(&mut [&mut a]);
        assert_eq!(a.solos[0].stats().parked, 0, "given up");
    }
    assert!(waiting.take().is_none());
    let links = &a.solos[0].core_mut().links;
    assert!(links.iter().all(|link| link.parked.is_empty()));
}

/// Keeps what it is told was dropped.
#[derive(Default)]
struct Losses(Mutex<Vec<(String, Unsent, &'static str)>>);

impl Observer for Losses {
    fn peer_wanted(&self, _: &TaskName) {}
    fn step_ended(&self, _: StepId, _: &Status) {}
    fn link_down(&self, _: &TaskName, _: u32, _: DownReason) {}
    fn violated(&self, _: &TaskName, _: u32, _: &Status) {}
    fn dropped(&self, task: &TaskName, what: Unsent, why: &Status) {
        let told = (task.to_string(), what, why.reason());
        self.0.lock().unwrap().push(told);
    }
    fn segment_added(&self, _: Arc<Segment>) {}
}

/// Senders were told that their values were taken, and only this says that they are gone: once for a peer that does not
/// come, again when it has been there, and at the end.
#[test]
fn values_that_no_peer_was_there_for_are_not_dropped_in_silence() {
    let now = Arc::new(AtomicU64::new(1));
    let losses = Arc::new(Losses::default());
    let observer = Arc::clone(&losses) as Arc<dyn Observer>;
    let settings = Settings::default();
    let timeout = settings.connect_timeout_ns;
    let mut a = Shards::observed('a', 1, settings, &now, &observer);
    let there = Key::between("a", "b", "there").unwrap();
    let late = |a: &mut Shards, values: u8| {
        (0..values).for_each(|byte| send(&mut a.solos[0], &there, byte));
        now.fetch_add(timeout + 1, Ordering::Relaxed);
        settle(&mut [a]);
        assert_eq!(a.solos[0].stats().parked, 0, "given up");
    };
    let told = || std::mem::take(&mut *losses.0.lock().unwrap());
    let unsent = |values| Unsent {
        values,
        bytes: values * 8,
    };
    let task = name('b');
    // A message of a layer's own, which it sends again.
    let sent = a.solos[0].enter(|context| {
        let key = context.prepare(&there)?;
        context.send(StepId(1 << 63 | 7), key, tensor(1, 8))
    });
    sent.unwrap();
    late(&mut a, 3);
    let by_deadline = (task.to_string(), unsent(3), "CONNECT_DEADLINE");
    assert_eq!(told(), std::slice::from_ref(&by_deadline));
    late(&mut a, 3);
    assert_eq!(told(), [], "it is known");
    let mut b = Shards::new('b', 2, 1, &now);
    connect(&mut a, &mut b);
    settle(&mut [&mut a, &mut b]);
    a.solos[0].peer_lost(&task, faults::peer_exited(&task));
    settle(&mut [&mut a]);
    let patient = a.solos[0].recv(
        STEP,
        &Key::between("b", "a", "back").unwrap(),
        Nanos(1000 * SECOND),
    );
    late(&mut a, 3);
    assert_eq!(
        told(),
        [by_deadline],
        "also where a receive keeps the peer wanted"
    );
    assert!(patient.take().is_none());
    send(&mut a.solos[0], &there, 1);
    a.solos[0].shut_down(Nanos(now.load(Ordering::Relaxed)));
    while a.solos[0].turn() != Progress::Stopped {}
    assert_eq!(told(), [(task.to_string(), unsent(1), "SHUTDOWN")]);
}

/// A shard that sleeps hears what its neighbour has to say when that is said, and not when it looks again by itself.
#[test]
fn a_note_rings_the_neighbour_it_is_for() {
    let now = Arc::new(AtomicU64::new(1));
    let mut a = Shards::new('a', 1, 2, &now);
    settle(&mut [&mut a]);
    let key = a.key('a', 'a', 1);
    let bells = [0, 1].map(|at: usize| a.solos[at].mailbox().doorbell());
    for bell in &bells {
        bell.arm();
    }
    send(&mut a.solos[0], &key, 1);
    a.solos[0].turn();
    let rang = bells.map(|bell| bell.wait(Some(Nanos::ZERO)).unwrap());
    assert_eq!(rang, [false, true]);
}

/// No setting bounds what waits for a neighbour.
#[test]
fn a_neighbour_that_is_behind_is_named() {
    let settings = Settings {
        shards: 2,
        shard_messages: 2,
        ..Settings::default()
    };
    let mut a = Shards::with('a', 1, settings, &Arc::new(AtomicU64::new(1)));
    let key = a.key('a', 'a', 1);
    for byte in [1, 2] {
        send(&mut a.solos[0], &key, byte);
    }
    let refused = a.solos[0].enter(|context| {
        let key = context.prepare(&key)?;
        context.send(STEP, key, tensor(3, 8))
    });
    let status = refused.unwrap_err();
    assert_eq!(status.reason(), catalogue::MAILBOX_FULL);
    let message = status.message();
    assert!(message.contains("2 messages wait for shard 1"), "{message}");
    assert!(!message.contains('`'), "{message}");
}

/// A key's life is known to the shard that prepared it; the receive waits at the key's owner.
#[test]
fn a_receive_at_a_neighbour_ends_if_another_life_comes() {
    let now = Arc::new(AtomicU64::new(1));
    let mut a = Shards::new('a', 1, 2, &now);
    let key = a.key('b', 'a', 1);
    let key = key.with_source_incarnation(Incarnation(7));
    assert_eq!(key.shard_of(2), 1);
    a.solos[0].enter(|context| {
        let key = context.prepare(&key).unwrap();
        context.recv_by(STEP, key, 9, Nanos(10_000 * SECOND));
    });
    settle(&mut [&mut a]);
    assert!(a.solos[0].heard().is_none());
    let mut b = Shards::new('b', 8, 1, &now);
    connect(&mut a, &mut b);
    settle(&mut [&mut a, &mut b]);
    let (token, outcome) = a.solos[0].heard().expect("it is told");
    assert_eq!(token, 9);
    assert_eq!(outcome.unwrap_err().reason(), catalogue::PEER_RESTARTED);
    // One that begins now, too.
    a.solos[0].enter(|context| {
        let key = context.prepare(&key).unwrap();
        context.recv(STEP, key, 10);
    });
    settle(&mut [&mut a, &mut b]);
    let (_, outcome) = a.solos[0].heard().expect("it is told");
    assert_eq!(outcome.unwrap_err().reason(), catalogue::PEER_RESTARTED);
}

/// No receiver waits for what was asked any more: nothing of it is owed.
#[test]
fn a_receive_that_has_asked_holds_no_shutdown_up() {
    let now = Arc::new(AtomicU64::new(1));
    let mut a = Shards::new('a', 1, 1, &now);
    let mut b = Shards::new('b', 2, 1, &now);
    connect(&mut a, &mut b);
    settle(&mut [&mut a, &mut b]);
    let key = Key::between("a", "b", "long").unwrap();
    let first = b.solos[0].recv(STEP, &key, Nanos::NEVER);
    let sent = a.solos[0].enter(|context| {
        let key = context.prepare(&key)?;
        context.send(STEP, key, tensor(5, 8192))
    });
    sent.unwrap();
    settle(&mut [&mut a, &mut b]);
    assert_eq!(
        first.take().expect("it has come").unwrap().tensor.size(),
        8192
    );
    let next = b.solos[0].recv(STEP, &key, Nanos::NEVER);
    settle(&mut [&mut a, &mut b]);
    assert_eq!(b.solos[0].holdings().owed[0], 1, "it has asked");
    b.solos[0].shut_down(Nanos(10 * SECOND));
    let mut is_over = false;
    for _ in 0..100 {
        now.fetch_add(1_000_000, Ordering::Relaxed);
        is_over |= b.solos[0].turn() == Progress::Stopped;
        if is_over {
            break;
        }
        a.solos[0].turn();
    }
    assert!(is_over, "it waits for nothing");
    assert!(next.take().is_some_and(|outcome| outcome.is_err()));
}

/// Sends its last value when it is told to stop.
struct Last {
    key: Key,
    prepared: Option<PreparedKey>,
}

impl Task for Last {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        match event {
            TaskEvent::Started => self.prepared = context.prepare(&self.key).ok(),
            TaskEvent::Stopping => {
                let key = self.prepared.expect("it has begun");
                context.send(STEP, key, tensor(3, 8)).unwrap();
            }
            _ => {}
        }
    }
}

/// Turns both until `ending` has ended, which takes it less than a fifth of a second.
fn assert_ends(ending: &mut Shards, peer: &mut Shards, now: &AtomicU64) {
    let mut running: Vec<_> = (0..ending.solos.len()).collect();
    for _ in 0..200 {
        now.fetch_add(1_000_000, Ordering::Relaxed);
        running.retain(|&at| ending.solos[at].turn() != Progress::Stopped);
        peer.turn();
    }
    assert!(running.is_empty(), "it ends well before its time is up");
}

/// What `ending` has sent is received, and then it ends.
fn hears_before_the_end(peer: &mut Shards, ending: &mut Shards, key: &Key, now: &AtomicU64) {
    let received = peer.solos[0].recv(STEP, key, Nanos::NEVER);
    assert_ends(ending, peer, now);
    let received = received.take().expect("it has come").unwrap();
    assert_eq!(received.tensor.host().unwrap(), [3; 8]);
}

/// A shard that owes nothing ended while another of its process still had a value to send by its keys.
#[test]
fn the_last_value_of_a_task_leaves_by_a_neighbours_key() {
    let now = Arc::new(AtomicU64::new(1));
    let mut a = Shards::new('a', 1, 2, &now);
    let mut b = Shards::new('b', 2, 1, &now);
    connect(&mut a, &mut b);
    settle(&mut [&mut a, &mut b]);
    let key = a.key('a', 'b', 0);
    a.solos[1].spawn(Box::new(Last {
        key: key.clone(),
        prepared: None,
    }));
    let received = b.solos[0].recv(STEP, &key, Nanos::NEVER);
    settle(&mut [&mut a, &mut b]);
    let deadline = Nanos(now.load(Ordering::Relaxed) + SECOND);
    for solo in &mut a.solos {
        solo.shut_down(deadline);
    }
    assert_ends(&mut a, &mut b, &now);
    let received = received.take().expect("it has come").unwrap();
    assert_eq!(received.tensor.host().unwrap(), [3; 8]);
}

/// A task that sent a value and ended lost it if the connection that it travels by was still to come.
#[test]
fn values_for_a_peer_that_is_about_to_come_leave_before_the_end() {
    for comes in [true, false] {
        let now = Arc::new(AtomicU64::new(1));
        let mut a = Shards::new('a', 1, 1, &now);
        let key = Key::between("a", "b", "x").unwrap();
        send(&mut a.solos[0], &key, 3);
        let deadline = Nanos(now.load(Ordering::Relaxed) + SECOND);
        a.solos[0].shut_down(deadline);
        for _ in 0..20 {
            assert_ne!(
                a.solos[0].turn(),
                Progress::Stopped,
                "it waits for the peer"
            );
        }
        if comes {
            let mut b = Shards::new('b', 2, 1, &now);
            connect(&mut a, &mut b);
            hears_before_the_end(&mut b, &mut a, &key, &now);
        } else {
            now.store(deadline.0 + 1, Ordering::Relaxed);
            let turns = (0..200).map(|_| a.solos[0].turn());
            assert!(turns.into_iter().any(|turn| turn == Progress::Stopped));
        }
    }
}

/// A link that is down says nothing of its peer, which is still to hear what it is owed.
#[test]
fn a_stop_waits_for_a_link_that_is_made_again() {
    let now = Arc::new(AtomicU64::new(1));
    let mut a = Shards::new('a', 1, 1, &now);
    let mut b = Shards::new('b', 2, 1, &now);
    connect(&mut a, &mut b);
    settle(&mut [&mut a, &mut b]);
    let key = Key::between("a", "b", "x").unwrap();
    let (port, qp) = a.solos[0].queue_pair(&name('b'), 0).unwrap();
    a.solos[0].ports_mut()[port].close(qp);
    send(&mut a.solos[0], &key, 3);
    settle(&mut [&mut a, &mut b]);
    assert!(!a.solos[0].is_linked(&name('b'), 0));
    a.solos[0].shut_down(Nanos(now.load(Ordering::Relaxed) + SECOND));
    for _ in 0..20 {
        assert_ne!(a.solos[0].turn(), Progress::Stopped);
    }
    connect(&mut a, &mut b);
    hears_before_the_end(&mut b, &mut a, &key, &now);
}

/// A shard that is late hears of the loss and of what was asked for before it in one turn.
#[test]
fn a_receive_that_began_before_its_peer_was_lost_ends() {
    let now = Arc::new(AtomicU64::new(1));
    let mut a = Shards::new('a', 1, 1, &now);
    let mut b = Shards::new('b', 2, 1, &now);
    connect(&mut a, &mut b);
    settle(&mut [&mut a, &mut b]);
    let [said, never] = ["said", "never"].map(|edge| Key::between("a", "b", edge).unwrap());
    send(&mut a.solos[0], &said, 3);
    a.turn();
    let said = b.solos[0].ask(STEP, &said, Nanos(60 * SECOND)).unwrap();
    let never = b.solos[0].ask(STEP, &never, Nanos(60 * SECOND)).unwrap();
    let task = name('a');
    b.solos[0].peer_lost(&task, faults::peer_exited(&task));
    settle(&mut [&mut b]);
    let said = said.take().expect("the peer had sent it").unwrap();
    assert_eq!(said.tensor.host().unwrap(), [3; 8]);
    let never = never.take().expect("it ends with the peer").unwrap_err();
    assert_eq!(never.reason(), catalogue::PEER_LOST);
}

/// A port looks at a few rings in each poll: what lay in another was lost with its peer.
#[test]
fn what_peers_said_before_they_went_counts_however_many_they_are() {
    let now = Arc::new(AtomicU64::new(1));
    let mut b = Shards::new('z', 99, 1, &now);
    let mut peers: Vec<_> = ('a'..='l')
        .zip(1..)
        .map(|(of, life)| Shards::new(of, life, 1, &now))
        .collect();
    let mut receives = Vec::new();
    for peer in &mut peers {
        connect(peer, &mut b);
        settle(&mut [peer, &mut b]);
        let key = Key::between(&peer.of.to_string(), "z", "x").unwrap();
        receives.push((b.solos[0].recv(STEP, &key, Nanos::NEVER), key));
    }
    for _ in 0..20 {
        b.turn();
        peers.iter_mut().for_each(Shards::turn);
    }
    for (peer, (_, key)) in peers.iter_mut().zip(&receives) {
        send(&mut peer.solos[0], key, 3);
        peer.turn();
    }
    for peer in &peers {
        let task = name(peer.of);
        b.solos[0].peer_lost(&task, faults::peer_exited(&task));
    }
    settle(&mut [&mut b]);
    for (at, (received, _)) in receives.into_iter().enumerate() {
        let received = received.take().expect("it has ended");
        let received = received.unwrap_or_else(|status| panic!("of peer {at}: {status}"));
        assert_eq!(received.tensor.host().unwrap(), [3; 8]);
    }
}

/// Of many links one has something to acknowledge, again and again: its timer is its own.
#[test]
fn a_timer_that_is_due_costs_a_look_at_its_own_link() {
    const SHARDS: u16 = 48;
    const ROUNDS: u64 = 20;
    let now = Arc::new(AtomicU64::new(1));
    let mut one = Shards::new('a', 1, 1, &now);
    let mut many = Shards::new('b', 2, SHARDS, &now);
    connect(&mut one, &mut many);
    settle(&mut [&mut one, &mut many]);
    now.fetch_add(SECOND, Ordering::Relaxed);
    settle(&mut [&mut one, &mut many]);
    let key = many.key('b', 'a', 5);
    let looks = |one: &mut Shards| one.solos[0].core_mut().links.looks.take();
    looks(&mut one);
    for round in 0..ROUNDS {
        send(many.owner(&key), &key, round as u8);
        settle(&mut [&mut one, &mut many]);
        let waiting = one.solos[0].recv(STEP, &key, Nanos::NEVER);
        settle(&mut [&mut one, &mut many]);
        assert!(waiting.take().is_some());
        assert!(
            one.solos[0].next_timer() < Nanos::NEVER,
            "it is acknowledged later"
        );
        now.fetch_add(SECOND, Ordering::Relaxed);
        settle(&mut [&mut one, &mut many]);
        assert_eq!(one.solos[0].next_timer(), Nanos::NEVER);
    }
    let looks = looks(&mut one);
    assert!(looks <= 4 * ROUNDS, "{looks} looks");
    for solo in &mut many.solos {
        assert_eq!(solo.holdings().owed, [0; 4]);
    }
}
