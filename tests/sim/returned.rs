//! Returned: leases that are sent back to whose memory they are, and what comes between.

use rendez::ground::{Key, StepId, catalogue};
use rendez::mail::Received;
use rendez::memory::Tensor;
use rendez::testing::solo::Waiting;
use rendez::trace::Path;

use crate::dials::Dials;
use crate::hands::number_of;
use crate::world::World;

const LEN: usize = 8_000;

/// Task 0 owns a value, task 1 has a lease of it.
struct Round {
    world: World,
    out: Key,
    back: Key,
}

fn key(from: usize, to: usize, edge: &str) -> Key {
    Key::between(&format!("t{from}"), &format!("t{to}"), edge).unwrap()
}

impl Round {
    fn new(change: impl FnOnce(&mut Dials)) -> Self {
        let mut dials = Dials::calm(1);
        dials.read_domain = true;
        dials.settings.lease = true;
        change(&mut dials);
        let mut world = World::new(dials);
        world.ticks(50);
        Self {
            world,
            out: key(0, 1, "out"),
            back: key(1, 0, "back"),
        }
    }

    fn come(&mut self, waiting: &Waiting) -> Received {
        for _ in 0..1_000 {
            if let Some(outcome) = waiting.take() {
                return outcome.unwrap();
            }
            self.world.tick().unwrap();
        }
        panic!("it never came: {}", self.world.stuck());
    }

    /// The owner gives a value, and the reader has it: the owner's tensor and the reader's.
    fn lend(&mut self, step: u64, number: u64) -> (Tensor, Received) {
        let tensor = self.world.made(0, number, LEN).unwrap();
        let out = self.out.clone();
        self.world.hand(0, step, &out, tensor.clone()).unwrap();
        let waiting = self.world.want(1, step, &out);
        let leased = self.come(&waiting);
        assert_eq!(leased.path, Path::Lease);
        (tensor, leased)
    }

    fn send_back(&mut self, step: u64, tensor: Tensor) {
        let back = self.back.clone();
        self.world.hand(1, step, &back, tensor).unwrap();
    }

    fn want_back(&mut self, step: u64) -> Waiting {
        let back = self.back.clone();
        self.world.want(0, step, &back)
    }

    /// What the reader has copied, and what it has sent back as it was.
    fn of_reader(&self) -> (u64, u64) {
        let stats = self.world.nodes[1].solos[0].stats();
        (stats.copied_leased, stats.sent_back)
    }

    /// The steps end, and nothing is left anywhere.
    fn rest(mut self, steps: u64) {
        for step in 1..=steps {
            self.world.finish_everywhere(StepId(step));
        }
        self.world.settle().unwrap();
    }
}

#[test]
fn what_comes_back_is_the_very_tensor() {
    let mut round = Round::new(|_| {});
    // The receive before the value, and after it.
    for (step, is_early) in [(1, true), (2, false)] {
        let (tensor, leased) = round.lend(step, step);
        let early = is_early.then(|| round.want_back(step));
        round.send_back(step, leased.tensor);
        round.world.ticks(50);
        let waiting = early.unwrap_or_else(|| round.want_back(step));
        let back = round.come(&waiting);
        assert_eq!(back.path, Path::Lease);
        assert_eq!(
            back.tensor.host().unwrap().as_ptr(),
            tensor.host().unwrap().as_ptr()
        );
        drop(tensor);
        round.world.ticks(50);
        // The owner's offer and the reader's are over; the receiver alone keeps the bytes.
        let holdings = round.world.nodes[0].solos[0].holdings();
        assert_eq!((holdings.owed[1], holdings.arena_bytes), (0, 8_192));
        assert_eq!(round.world.nodes[1].solos[0].holdings().leases, 0);
        assert_eq!(number_of(back.tensor.host().unwrap()), step);
    }
    assert_eq!(round.of_reader(), (0, 2));
    assert_eq!(round.world.nodes[1].solos[0].holdings().arena_bytes, 0);
    round.rest(2);
}

/// While the owner has not taken what came back the reader keeps its lease: the owner frees nothing, and counts the
/// bytes once.
#[test]
fn the_lease_stays_until_the_owner_has_taken_it() {
    let mut round = Round::new(|_| {});
    let (tensor, leased) = round.lend(1, 5);
    drop(tensor);
    round.send_back(1, leased.tensor);
    round.world.ticks(200);
    assert_eq!(round.world.nodes[1].solos[0].holdings().leases, 1);
    let stats = round.world.nodes[0].solos[0].stats();
    assert_eq!((stats.parked_bytes, stats.offered_bytes), (0, LEN as u64));
    let waiting = round.want_back(1);
    assert_eq!(number_of(round.come(&waiting).tensor.host().unwrap()), 5);
    round.rest(1);
}

/// The reader's step ends before the owner asks: what was sent was sent, as with any lease.
#[test]
fn the_end_of_the_readers_step_leaves_what_was_sent_back() {
    let mut round = Round::new(|_| {});
    let (tensor, leased) = round.lend(1, 6);
    drop(tensor);
    round.send_back(1, leased.tensor);
    round.world.ticks(50);
    round.world.nodes[1].solos[0].finish(StepId(1));
    round.world.ticks(50);
    let waiting = round.want_back(1);
    assert_eq!(number_of(round.come(&waiting).tensor.host().unwrap()), 6);
    round.rest(1);
}

/// It is not taken: the owner's step ends, and both let go.
#[test]
fn what_nobody_takes_is_let_go_of() {
    let mut round = Round::new(|_| {});
    let (tensor, leased) = round.lend(1, 7);
    drop(tensor);
    round.send_back(1, leased.tensor);
    round.world.ticks(50);
    round.world.nodes[0].solos[0].finish(StepId(1));
    round.world.ticks(200);
    assert_eq!(round.world.nodes[0].solos[0].holdings().arena_bytes, 0);
    assert_eq!(round.world.nodes[1].solos[0].holdings().leases, 0);
    round.rest(1);
}

/// Connections break all the time, and every value makes its round.
#[test]
fn it_comes_back_over_connections_that_break() {
    let mut round = Round::new(|dials| dials.faults.reset_one_in = 30);
    for step in 1..=40 {
        let (tensor, leased) = round.lend(step, step);
        round.send_back(step, leased.tensor);
        let waiting = round.want_back(step);
        let back = round.come(&waiting);
        assert_eq!(number_of(back.tensor.host().unwrap()), step);
        assert_eq!(
            back.tensor.host().unwrap().as_ptr(),
            tensor.host().unwrap().as_ptr()
        );
    }
    assert_eq!(round.of_reader(), (0, 40));
    round.rest(40);
}

/// A side gives the other up while the value is on its way back, or before it is sent: the first is lost as any value,
/// the second is copied, until a recall has renewed the lease. The memory stays as long as it is read.
#[test]
fn an_epoch_that_ends_takes_what_was_on_its_way() {
    for loser in [0, 1] {
        let mut round = Round::new(|_| {});
        let (tensor, leased) = round.lend(1, 8);
        drop(tensor);
        round.send_back(1, leased.tensor.clone());
        round.world.ticks(20);
        round.world.lose(loser, 1 - loser);
        // The reader hears of it before it is recalled: it has no core meanwhile.
        round.world.ticks(100);
        let waiting = round.want_back(1);
        round.world.ticks(100);
        if let Some(Err(status)) = waiting.take() {
            assert_eq!(status.reason(), catalogue::PEER_LOST, "{status}");
        }
        assert_eq!(number_of(leased.tensor.host().unwrap()), 8);
        let before = round.of_reader();
        round.send_back(2, leased.tensor);
        let waiting = round.want_back(2);
        assert_eq!(number_of(round.come(&waiting).tensor.host().unwrap()), 8);
        let after = round.of_reader();
        assert_eq!(after.0 + after.1, before.0 + before.1 + 1);
        round.rest(2);
    }
}

/// The owner died and began anew: its new life has never lent this, and gets a copy.
#[test]
fn another_life_of_the_owner_gets_a_copy() {
    let mut round = Round::new(|_| {});
    let (tensor, leased) = round.lend(1, 9);
    drop(tensor);
    round.world.restart(0).unwrap();
    round.world.ticks(400);
    // The new life has something on offer under the same ticket.
    let (other, _kept) = round.lend(2, 10);
    round.send_back(3, leased.tensor);
    let waiting = round.want_back(3);
    let back = round.come(&waiting);
    assert_eq!(number_of(back.tensor.host().unwrap()), 9);
    assert_eq!(round.of_reader(), (1, 0));
    assert_eq!(number_of(other.host().unwrap()), 10);
    drop((back, other, _kept));
    round.rest(3);
}

/// A third task never had the memory from the reader: it gets a copy, and its owner has its memory back.
#[test]
fn a_third_task_gets_a_copy() {
    let mut round = Round::new(|dials| dials.shards = vec![1, 1, 1]);
    let (tensor, leased) = round.lend(1, 11);
    drop(tensor);
    let on = key(1, 2, "on");
    round.world.hand(1, 1, &on, leased.tensor).unwrap();
    let waiting = round.world.want(2, 1, &on);
    let received = round.come(&waiting);
    assert_eq!(number_of(received.tensor.host().unwrap()), 11);
    assert_eq!(round.of_reader(), (1, 0));
    round.world.ticks(100);
    assert_eq!(round.world.nodes[0].solos[0].holdings().arena_bytes, 0);
    drop(received);
    round.rest(1);
}

/// Two tasks that send on whatever they hold, and all that goes wrong in the world of a seed.
fn dense(seed: u64) -> Dials {
    let mut dials = Dials::disturbed(seed);
    (dials.shards, dials.hosts) = (vec![1, 1], Vec::new());
    (dials.is_stream, dials.read_domain) = (false, true);
    dials.settings.lease = true;
    dials.bytes_max = LEN as u64;
    dials.values_per_flow = 8;
    (dials.hold_one_in, dials.relay_one_in) = (1, 1);
    dials
}

/// Some of it goes back as it is, and some, of an epoch or a life that is over, as a copy.
#[test]
fn leases_go_to_and_fro_whatever_goes_wrong() {
    let (mut sent_back, mut copied) = (0, 0);
    for seed in 0..200 {
        let mut world = World::new(dense(seed));
        let outcome = world.run();
        assert_eq!(outcome, Ok(()), "seed {seed}");
        for solo in world.nodes.iter().flat_map(|node| &node.solos) {
            sent_back += solo.stats().sent_back;
            copied += solo.stats().copied_leased;
        }
    }
    assert!(
        sent_back > 100 && copied > 10,
        "{sent_back} went back, {copied} as copies"
    );
}

/// Values that waited for a place on offer, or behind one that did, held leases, and with those the places that the
/// peer's values waited for.
#[test]
fn a_lease_that_must_wait_is_copied() {
    for dials in [
        dense(573),
        dense(1441),
        dense(2419),
        Dials::of_seed(1_006_893),
    ] {
        assert_eq!(crate::run(dials), Ok(()));
    }
}

/// A receiver keeps all that the peer may have on offer, and wants more: of the tensors one by one, and of all at once.
#[test]
fn whoever_keeps_every_lease_gets_the_next_value() {
    const MANY: u64 = 20;
    for is_early in [true, false] {
        let mut round = Round::new(|dials| dials.settings.offers = 4);
        let out = round.out.clone();
        let mut early = Vec::new();
        if is_early {
            early.extend((0..MANY).map(|_| round.world.want(1, 1, &out)));
            round.world.ticks(50);
        }
        for number in 0..MANY {
            round.world.give(0, 1, &out, number, LEN).unwrap();
        }
        round.world.ticks(50);
        let mut kept = Vec::new();
        for number in 0..MANY {
            let waiting = match early.is_empty() {
                true => round.world.want(1, 1, &out),
                false => early.remove(0),
            };
            let received = round.come(&waiting);
            assert_eq!(number_of(received.tensor.host().unwrap()), number);
            kept.push(received);
        }
        let leased = kept.iter().filter(|received| received.path == Path::Lease);
        assert_eq!(leased.count(), 4);
        drop(kept);
        round.rest(1);
    }
}

/// To and fro many times, each hop an offer of the same bytes: one block of memory, and no copy.
#[test]
fn a_chain_of_hops_copies_nothing() {
    let mut round = Round::new(|_| {});
    let (tensor, mut leased) = round.lend(1, 12);
    let at = tensor.host().unwrap().as_ptr();
    drop(tensor);
    for hop in 0..20 {
        round.send_back(1, leased.tensor);
        let waiting = round.want_back(1);
        let back = round.come(&waiting);
        assert_eq!(back.tensor.host().unwrap().as_ptr(), at);
        let out = key(0, 1, &format!("hop{hop}"));
        round.world.hand(0, 1, &out, back.tensor).unwrap();
        let waiting = round.world.want(1, 1, &out);
        leased = round.come(&waiting);
    }
    assert_eq!(round.of_reader(), (0, 20));
    assert_eq!(round.world.nodes[0].solos[0].holdings().arena_bytes, 8_192);
    drop(leased);
    round.rest(1);
}
