//! Unread: receives that were cancelled or dropped, and what becomes of values that were on their way to them.

use rendez::ground::{Code, Key, Nanos, Status, StepId, catalogue};
use rendez::shard::{Task, TaskContext, TaskEvent};
use rendez::testing::solo::Waiting;

use crate::dials::Dials;
use crate::hands::number_of;
use crate::world::World;

const STEP: u64 = 1;

/// A way for values of a length: within a task, in a frame, by a lease, by a landing.
const WAYS: [(usize, usize, bool); 5] = [
    (0, 8, false),
    (1, 8, false),
    (1, 800, false),
    (1, 8_000, true),
    (1, 8_000, false),
];

/// Task 0 receives; the source is task 0 or 1.
struct Scene {
    world: World,
    source: usize,
    key: Key,
    len: usize,
}

impl Scene {
    fn new(way: (usize, usize, bool)) -> Self {
        Self::with(way, |_| {})
    }

    fn with(
        (source, len, is_leased): (usize, usize, bool),
        change: impl FnOnce(&mut Dials),
    ) -> Self {
        let mut dials = Dials::calm(1);
        change(&mut dials);
        dials.read_domain = is_leased;
        dials.settings.lease = is_leased;
        let mut world = World::new(dials);
        world.ticks(50);
        Self {
            world,
            source,
            key: Key::between(&format!("t{source}"), "t0", "edge").unwrap(),
            len,
        }
    }

    fn each(mut body: impl FnMut(&mut Self)) {
        for way in WAYS {
            eprintln!("from t{}, {} bytes, lease: {}", way.0, way.1, way.2);
            body(&mut Self::new(way));
        }
    }

    fn send(&mut self, number: u64) {
        let key = self.key.clone();
        self.world
            .give(self.source, STEP, &key, number, self.len)
            .unwrap();
    }

    fn want(&mut self) -> Waiting {
        let key = self.key.clone();
        self.world.want(0, STEP, &key)
    }

    /// Through the mailbox: the shard hears of it in its next turn.
    fn ask(&mut self) -> Waiting {
        let solo = &mut self.world.nodes[0].solos[0];
        solo.ask(StepId(STEP), &self.key, Nanos::NEVER).unwrap()
    }

    fn drop_one(&mut self, waiting: &Waiting) {
        self.world.nodes[0].solos[0].cancel(waiting);
    }

    /// Ticks until an outcome is there, and leaves it there.
    fn fill(&mut self, waiting: &Waiting) {
        for _ in 0..1_000 {
            if waiting.is_filled() {
                return;
            }
            self.world.tick().unwrap();
        }
        panic!("it never came: {}", self.world.stuck());
    }

    fn take(&mut self, waiting: &Waiting) -> u64 {
        self.fill(waiting);
        number_of(waiting.take().unwrap().unwrap().tensor.host().unwrap())
    }

    fn next(&mut self) -> u64 {
        let waiting = self.want();
        self.take(&waiting)
    }

    /// Nothing is left of all this, when the step is over.
    fn ends_clean(&mut self) {
        self.world.finish_everywhere(StepId(STEP));
        self.world.calm().unwrap();
        self.world.come_to_rest().unwrap();
        for node in &self.world.nodes {
            let holdings = node.solos[0].holdings();
            let rest = (
                holdings.table,
                holdings.waits,
                holdings.leases,
                holdings.landing_bytes,
                holdings.arena_bytes,
            );
            assert_eq!(rest, ([0, 0], 0, 0, 0, 0), "{holdings:?}");
        }
    }
}

fn is_cancelled(waiting: &Waiting) {
    let status = waiting.take().expect("an outcome").unwrap_err();
    assert_eq!(status.code(), Code::Cancelled, "{status}");
}

/// The shard does not know of the cancel: its word is on its way, or no one polls. What is sent after it passes by.
#[test]
fn a_cancelled_receive_takes_nothing_that_is_sent_afterwards() {
    Scene::each(|scene| {
        let cancelled: Vec<_> = (0..20).map(|_| scene.want()).collect();
        let sibling = scene.want();
        scene.world.ticks(50);
        cancelled.iter().for_each(Waiting::stop);
        scene.send(7);
        assert_eq!(scene.take(&sibling), 7);
        cancelled.iter().for_each(is_cancelled);
        // Their commands stand in the mailbox.
        let cancelled = scene.ask();
        let sibling = scene.ask();
        cancelled.stop();
        scene.send(8);
        assert_eq!(scene.take(&sibling), 8);
        is_cancelled(&cancelled);
        // Nothing else waits: it stays for the next, though it was sent to a waiter.
        let cancelled = scene.want();
        scene.world.ticks(50);
        cancelled.stop();
        scene.send(9);
        scene.fill(&cancelled);
        is_cancelled(&cancelled);
        assert_eq!(scene.next(), 9);
        scene.ends_clean();
    });
}

/// A value that is being fetched for a receive that is cancelled is the next one's, and in its turn.
#[test]
fn what_is_on_its_way_to_a_cancelled_receive_is_for_the_next() {
    Scene::each(|scene| {
        for (round, ticks) in [0, 1, 2, 3, 5, 8, 13, 21].into_iter().enumerate() {
            let first = 2 * round as u64;
            let cancelled = scene.want();
            scene.world.ticks(20);
            scene.send(first);
            scene.send(first + 1);
            scene.world.ticks(ticks);
            let had = cancelled.is_filled();
            cancelled.stop();
            let sibling = scene.want();
            if had {
                assert_eq!(scene.take(&cancelled), first, "it had come before");
            } else {
                assert_eq!(scene.take(&sibling), first);
                is_cancelled(&cancelled);
            }
            let last = if had {
                scene.take(&sibling)
            } else {
                scene.next()
            };
            assert_eq!(last, first + 1);
        }
        scene.ends_clean();
    });
}

/// Dropped with their values in hand, in any order: the values stand before all others again, as they stood.
#[test]
fn what_was_not_read_goes_back_to_the_front() {
    Scene::each(|scene| {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let waiting = [scene.want(), scene.want(), scene.want()];
            (0..4).for_each(|number| scene.send(number));
            waiting.iter().for_each(|waiting| scene.fill(waiting));
            order.iter().for_each(|&at| scene.drop_one(&waiting[at]));
            // A receive that begins after that finds them there, though the shard has heard of neither yet.
            let next = scene.ask();
            assert_eq!(scene.take(&next), 0, "{order:?}");
            let rest: Vec<_> = (0..3).map(|_| scene.next()).collect();
            assert_eq!(rest, [1, 2, 3], "{order:?}");
        }
        let stats = scene.world.nodes[0].solos[0].stats();
        assert_eq!((stats.returned, stats.delivered), (9, 12 + 9));
        scene.ends_clean();
    });
}

/// It goes to who waits already, and is kept with its step alone.
#[test]
fn what_was_not_read_goes_to_who_waits_and_ends_with_its_step() {
    Scene::each(|scene| {
        let [dropped, sibling] = [scene.want(), scene.want()];
        scene.send(5);
        scene.fill(&dropped);
        scene.drop_one(&dropped);
        assert_eq!(scene.take(&sibling), 5);
        let dropped = scene.want();
        scene.send(6);
        scene.fill(&dropped);
        let status = Status::new(Code::Internal, "SIM", "it broke");
        scene.world.nodes[0].solos[0].abort(StepId(STEP), status);
        scene.world.ticks(50);
        let kept = scene.world.nodes[0].solos[0].stats().parked;
        scene.drop_one(&dropped);
        scene.world.ticks(50);
        assert_eq!((kept, scene.world.nodes[0].solos[0].stats().parked), (0, 0));
        scene.ends_clean();
    });
}

/// More is given back than may be parked: it is refused for no bound, and counts.
#[test]
fn what_was_not_read_is_refused_for_no_bound_and_counts() {
    let fit = 5;
    let mut scene = Scene::with((0, 1_000, false), |dials| {
        dials.settings.table.parked_bytes_per_step = fit * 1_000;
    });
    let waiting: Vec<_> = (0..3).map(|_| scene.want()).collect();
    (0..3).for_each(|number| scene.send(number));
    waiting.iter().for_each(|waiting| scene.fill(waiting));
    (0..fit).for_each(|number| scene.send(3 + number));
    waiting.iter().for_each(|waiting| scene.drop_one(waiting));
    scene.world.ticks(5);
    let stats = scene.world.nodes[0].solos[0].stats();
    assert_eq!(
        (stats.parked, stats.parked_bytes),
        (fit + 3, (fit + 3) * 1_000)
    );
    let key = scene.key.clone();
    let refused = scene.world.give(0, STEP, &key, 0, 1_000).unwrap_err();
    assert!(
        [catalogue::PARKED_BYTES, catalogue::PARKED_BYTES_OF_STEP].contains(&refused.reason()),
        "{refused}"
    );
    (0..fit + 3).for_each(|number| assert_eq!(scene.next(), number));
    scene.ends_clean();
}

/// Two values came together, since the second was fetched before the first. The first's receive had been given up, so
/// both move up by one.
#[test]
fn what_came_together_moves_up_together() {
    assert_eq!(crate::run(Dials::of_seed(49)), Ok(()));
}

/// Asks for two values, and has enough with the first that it hears of.
struct Modest {
    key: Key,
}

impl Task for Modest {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        match event {
            TaskEvent::Started => {
                let key = context.prepare(&self.key).unwrap();
                (0..2).for_each(|token| context.recv(StepId(STEP), key, token));
            }
            TaskEvent::Received { outcome, .. } => {
                assert_eq!(number_of(outcome.unwrap().tensor.host().unwrap()), 1);
                context.finish();
            }
            _ => {}
        }
    }
}

/// Both values are on their way to the task when it ends: in its shard's queue, and from a neighbour's table.
#[test]
fn what_a_task_that_ends_was_to_be_brought_goes_back() {
    for is_away in [false, true] {
        let mut dials = Dials::calm(1);
        dials.shards = vec![2, 1];
        let mut world = World::new(dials);
        world.ticks(50);
        let key = Key::between("t0", "t0", "edge").unwrap();
        let owner = key.shard_of(2) as usize;
        let shard = if is_away { 1 - owner } else { owner };
        for number in 1..=3_u64 {
            let tensor = world.made(0, number, 8).unwrap();
            let solo = &mut world.nodes[0].solos[owner];
            solo.enter(|context| {
                let key = context.prepare(&key)?;
                context.send(StepId(STEP), key, tensor)
            })
            .unwrap();
        }
        world.nodes[0].solos[shard].spawn(Box::new(Modest { key: key.clone() }));
        world.ticks(50);
        for number in [2, 3] {
            let waiting = world.nodes[0].solos[owner].recv(StepId(STEP), &key, Nanos::NEVER);
            let (_, had) = world.ticks_until(&waiting, 50).expect("it came back");
            assert_eq!(had, number, "away: {is_away}");
        }
    }
}
