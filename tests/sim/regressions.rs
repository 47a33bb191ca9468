//! Regressions: seeds that once failed, by what was wrong.

use std::sync::Arc;

use rendez::ground::{Incarnation, Key, Nanos, StepId, catalogue};
use rendez::testing::solo::Waiting;
use rendez::trace::Path;

use crate::dials::Dials;
use crate::hands::number_of;
use crate::reaching;
use crate::world::{World, faulty};

/// Worlds pass, and the state that they are about is reached in one of them.
fn pass(worlds: impl IntoIterator<Item = Dials>, state: &str) {
    let (_, times) = reaching(state, || {
        for dials in worlds {
            let seed = dials.seed;
            assert_eq!(crate::run(dials), Ok(()), "seed {seed}");
        }
    });
    assert_ne!(
        times,
        Some(0),
        "none of them comes to it any more: look for others with STATE={state}"
    );
}

fn plain(seed: u64, change: impl FnOnce(&mut Dials)) -> Dials {
    let mut dials = Dials::plain(seed);
    change(&mut dials);
    dials
}

/// A turn whose timers had ended a receive called itself idle, and the waiter heard of it at the next arrival: a
/// task of the same shard, or of a neighbour.
#[test]
fn a_turn_that_ended_a_receive_was_not_idle() {
    let dials = plain(219, |dials| {
        dials.one_sided_one_in = 2;
        dials.hold_one_in = 0;
        dials.is_stream = false;
    });
    pass([dials, Dials::plain(3061)], "timers_alone");
}

/// Landings that a broken connection took with it were opened anew beside those that had taken their room.
#[test]
fn renewed_landings_keep_to_the_budget() {
    pass([31, 237, 281].map(Dials::plain), "renewal_without_budget");
}

/// A peer that was given up, and lived, read on in memory that was used again.
#[test]
fn what_a_lost_peer_reads_stays() {
    let worlds = (0..20).map(|seed| {
        plain(seed, |dials| {
            dials.read_domain = true;
            dials.settings.lease = true;
            dials.bytes_max = 8_000;
            dials.hold_one_in = 1;
            dials.loss_one_in = 30;
        })
    });
    pass(worlds, "read_by_a_lost_peer");
}

/// The last lease lay with a value that waited behind an offer which waited for a lease.
#[test]
fn an_offer_that_finds_no_lease_free_is_copied() {
    pass([Dials::plain(2252)], "no_lease_free");
}

/// Offered again after a broken write, while no lease was free: it was never fetched.
#[test]
fn an_offer_renewed_is_still_wanted() {
    let worlds = [4183, 5864, 6058].map(Dials::of_seed);
    pass(worlds, "offered_again_and_no_lease");
}

/// The demand of an offer was taken back before it was asked: the offer stayed at its sender for ever.
#[test]
fn an_offer_whose_demand_nobody_heard_of_is_released() {
    pass(
        [20, 30, 2538].map(Dials::of_seed),
        "accepted_and_never_asked",
    );
}

/// A key from the first task to the second, which the second shard of the first one owns, and one that stays there.
fn owned_next_door() -> [Key; 2] {
    ["t1", "t0"].map(|to| {
        let mut edges = (0..64).map(|at| Key::between("t0", to, &format!("e{at}")).unwrap());
        edges.find(|edge| edge.shard_of(2) == 1).unwrap()
    })
}

fn crowded(change: impl FnOnce(&mut Dials)) -> World {
    let mut dials = Dials::calm(1);
    dials.shards = vec![2, 1];
    dials.settings.table.values = 4;
    change(&mut dials);
    World::new(dials)
}

/// A value that a neighbour had taken, for a key whose owner had no room for it, was dropped without a word. It waits
/// for room there.
#[test]
fn a_value_its_owner_has_no_room_for_waits_for_room() {
    let [edge, _] = owned_next_door();
    let mut world = crowded(|dials| dials.apart_ns = 500_000);
    for number in 0..12 {
        world.give(0, 1, &edge, number, 8).unwrap();
    }
    world.ticks(20);
    let held = world.nodes[0].solos[1].stats();
    assert_eq!((held.parked, held.waiting_sends), (4, 8), "none is dropped");
    let receives: Vec<_> = (0..12).map(|_| world.want(1, 1, &edge)).collect();
    for (number, waiting) in (0..).zip(receives) {
        let came = world.ticks_until(&waiting, 500).map(|(_, came)| came);
        assert_eq!(came, Some(number), "in order");
    }
    assert_eq!(world.nodes[0].solos[1].stats().dropped, 0);
}

/// And where it cannot wait, being longer than all the room there is, its step ends and names the bound.
#[test]
fn a_value_its_owner_can_never_have_room_for_fails_the_step() {
    let [edge, here] = owned_next_door();
    let mut world = crowded(|dials| {
        dials.apart_ns = 1_000_000_000;
        dials.settings.table.parked_bytes = 1_000;
        dials.settings.table.parked_bytes_per_step = 1_000;
    });
    let waiting = world.nodes[0].solos[1].recv(StepId(1), &here, Nanos::NEVER);
    for len in [8, 8, 8, 2_000] {
        world.give(0, 1, &edge, 7, len).unwrap();
    }
    world.ticks(20);
    let status = waiting.take().expect("the step has failed").unwrap_err();
    assert_eq!(status.reason(), catalogue::PARKED_BYTES, "{status}");
}

fn unregistered(for_ns: u64) -> (World, Waiting) {
    let mut dials = Dials::calm(1);
    dials.settings.connect_timeout_ns = 2_000_000;
    let mut world = World::new(dials);
    world.ticks(50);
    let until = Nanos(world.now() + for_ns);
    for port in faulty(&mut world.nodes[0].solos[0]) {
        port.open_none(until);
    }
    let edge = Key::between("t1", "t0", "large").unwrap();
    world.give(1, 1, &edge, 7, 8_000).unwrap();
    let waiting = world.want(0, 1, &edge);
    (world, waiting)
}

/// An offer whose landing the fabric did not open, though its queue pair was up, was never fetched.
#[test]
fn a_landing_that_is_not_opened_is_tried_again() {
    let (mut world, waiting) = unregistered(1_500_000);
    assert!(matches!(world.ticks_until(&waiting, 2_000), Some((_, 7))));
}

/// And when none can be opened for long its receive ends, and says why. The step goes on.
#[test]
fn a_landing_that_is_never_opened_fails_its_receive() {
    let (mut world, waiting) = unregistered(1_000_000_000);
    world.ticks(2_000);
    let status = waiting.take().expect("it has ended").unwrap_err();
    assert_eq!(status.reason(), catalogue::LANDING_UNOPENED, "{status}");
    let edge = Key::between("t1", "t0", "large").unwrap();
    world.give(1, 1, &edge, 8, 16).unwrap();
    let waiting = world.want(0, 1, &edge);
    assert!(matches!(world.ticks_until(&waiting, 500), Some((_, 8))));
}

/// Where its receive has left meanwhile, nothing is lost unheard: then its step ends.
#[test]
fn a_landing_that_is_never_opened_for_a_receive_that_left_fails_its_step() {
    let (mut world, waiting) = unregistered(1_000_000_000);
    world.ticks(50);
    world.nodes[0].solos[0].cancel(&waiting);
    world.ticks(2_000);
    let waiting = world.want(0, 1, &Key::between("t1", "t0", "large").unwrap());
    world.ticks(10);
    let status = waiting.take().expect("the step has ended").unwrap_err();
    assert_eq!(status.reason(), catalogue::LANDING_UNOPENED, "{status}");
}

/// Values that a lost peer might still read counted as on offer: with all places taken nothing was offered any more.
#[test]
fn what_lost_peers_may_read_stops_no_offer() {
    let mut dials = Dials::calm(1);
    dials.read_domain = true;
    dials.settings.lease = true;
    dials.settings.offers = 2;
    let mut world = World::new(dials);
    world.ticks(50);
    let edge = Key::between("t1", "t0", "large").unwrap();
    let mut held = Vec::new();
    // More than may be kept: the last ones go as copies.
    for round in 1..6 {
        for number in 0..2 {
            world.give(1, round, &edge, number, 8_000).unwrap();
            let waiting = world.want(0, round, &edge);
            for _ in 0..500 {
                world.tick().unwrap();
                if let Some(outcome) = waiting.take() {
                    let received = outcome.unwrap();
                    assert_eq!(number_of(received.tensor.host().unwrap()), number);
                    assert_eq!(received.path == Path::Lease, round == 1, "round {round}");
                    held.push(received);
                    break;
                }
            }
        }
        assert_eq!(held.len() as u64, 2 * round, "round {round}");
        world.lose(0, 1);
        world.lose(1, 0);
        world.ticks(200);
    }
    drop(held);
    for solo in world.nodes.iter_mut().flat_map(|node| &mut node.solos) {
        for step in 1..6 {
            solo.finish(StepId(step));
        }
    }
    world.settle().unwrap();
}

/// The model took the value behind one that had found no room for one that came too soon: the receive of that has heard
/// of it, and nothing else has ended.
#[test]
fn a_value_without_room_costs_its_receive_alone() {
    let seeds = [2_078_707_410, 2_078_748_777, 2_078_763_669, 2_078_766_869];
    pass(seeds.map(Dials::of_seed), "no_room_for_one_value");
}

/// A value that came in a frame and found no memory was dropped, and the credit it had cost with it. It lies on the
/// heap now.
#[test]
fn a_value_that_finds_no_memory_comes_and_gives_its_credit_back() {
    let mut dials = Dials::calm(1);
    dials.arena_bytes = 1 << 20;
    let mut world = World::new(dials);
    world.ticks(50);
    let mut full = Vec::new();
    for len in [64_000, 8_000, 600] {
        while let Ok(tensor) = world.made(0, 1, len) {
            full.push(tensor);
        }
    }
    let edge = Key::between("t1", "t0", "small").unwrap();
    for number in 7..9 {
        let waiting = world.want(0, 1, &edge);
        world.give(1, 1, &edge, number, 600).unwrap();
        assert!(matches!(world.ticks_until(&waiting, 50), Some((_, came)) if came == number));
    }
    assert!(world.made(0, 1, 600).is_err(), "there is no room still");
    drop(full);
    for solo in world.nodes.iter_mut().flat_map(|node| &mut node.solos) {
        solo.finish(StepId(1));
    }
    world.settle().unwrap();
}

/// The end of a connection that another had replaced before it began was dropped without a word: the peer had the other
/// end, and waited there for ever.
#[test]
fn a_connection_that_never_begins_is_closed_at_its_other_end() {
    let mut world = World::new(Dials::calm(1));
    // The first task has no core while the second one connects, gives it up, and connects again.
    let until = world.now() + 5_000_000;
    world.lost[0][0] = until;
    world.ticks(100);
    world.lose(1, 0);
    world.ticks(200);
    world.lose(0, 1);
    world.lost[0][0] = 0;
    let edge = Key::between("t1", "t0", "after").unwrap();
    world.ticks(1_000);
    world.give(1, 1, &edge, 7, 600).unwrap();
    let waiting = world.want(0, 1, &edge);
    assert!(matches!(world.ticks_until(&waiting, 500), Some((_, 7))));
}

/// A landing was opened on a connection whose peer had not said yet that it began anew: the hello took its demand away,
/// and it was never closed.
#[test]
fn no_landing_is_opened_before_the_hello() {
    let mut world = World::new(Dials::calm(1));
    world.ticks(50);
    let edge = Key::between("t1", "t0", "large").unwrap();
    world.give(1, 1, &edge, 7, 8_000).unwrap();
    world.ticks(50);
    world.lose(1, 0);
    while world.wires[0].reconnect_at.is_none() {
        world.ticks(1);
    }
    // The sender has no core: its hello comes late.
    world.lost[1][0] = u64::MAX;
    let sender = world.nodes[1].task.clone();
    while !world.nodes[0].solos[0].is_linked(&sender, 0) {
        world.ticks(1);
    }
    let waiting = world.want(0, 1, &edge);
    world.ticks(20);
    assert!(faulty(&mut world.nodes[0].solos[0]).all(|port| port.lent_bytes() == 0));
    world.lost[1][0] = 0;
    world.ticks(50);
    let status = waiting.take().expect("its value is gone").unwrap_err();
    assert_eq!(status.reason(), catalogue::PEER_LOST, "{status}");
    for solo in world.nodes.iter_mut().flat_map(|node| &mut node.solos) {
        solo.finish(StepId(1));
    }
    world.settle().unwrap();
}

/// A peer exited while its connection was lost; what it had asked for before was offered to that life after its exit,
/// and stayed on offer for ever.
#[test]
fn nothing_is_offered_to_a_life_that_is_over() {
    pass([Dials::disturbed(61_667)], "exited_while_away");
}

/// A turn with nothing to post looked at a link for a value that had left by a request, and forgot when the
/// acknowledgement of a frame that came meanwhile was due: it never left.
#[test]
fn an_acknowledgement_keeps_its_time() {
    pass([248, 11_196].map(Dials::of_seed), "due_later");
}

/// A step ended while a value of it was on offer again, after a broken write: the demand that had accepted it under its
/// former ticket still waited for its landing, was taken for one that would have an answer, and it was never released.
#[test]
fn an_offer_renewed_is_released_with_its_step() {
    pass(
        [9000, 9012, 9020].map(Dials::of_seed),
        "dropped_while_its_landing_is_out",
    );
}

/// Twenty receives were asked of a neighbour, while neither had a core, through a ring of two: they ended after their
/// deadline as fast as notes pass, and not within the hops that one of them takes.
#[test]
fn receives_that_stand_before_a_full_ring_may_be_late() {
    pass([Dials::disturbed(64_861)], "a_full_ring_of_notes");
}

/// An answer crossed the repetition of its request on a new connection: the second request was served into a landing
/// whose place was open again by then. It is refused, and no fault of the writer's.
#[test]
fn a_request_asked_again_and_answered_harms_nobody() {
    pass(
        [88, 150, 1_092_792].map(Dials::of_seed),
        "asked_again_and_answered",
    );
}

/// A peer that was forgotten and met again got a link in an epoch that it remembered of another.
#[test]
fn a_forgotten_peer_is_met_in_an_epoch_of_its_own() {
    let seeds = [3_005_429, 3_006_175, 3_017_711, 3_075_439];
    pass(seeds.map(Dials::of_seed), "a_spare_link");
}

/// The model took a value that came back for a later one with the same bytes.
#[test]
fn a_value_that_is_relayed_twice_has_two_places() {
    let seeds = [1696];
    pass(seeds.map(Dials::of_seed), "two_places");
}

/// A step was finished here, and then ended by a peer's answer to what still asked: what the finish had left on offer
/// for another peer went, and the value after it came in its place.
#[test]
fn what_a_finish_leaves_on_offer_outlives_a_later_end() {
    pass([Dials::of_seed(5_060_537)], "finished_then_ended");
}

/// A task grew its arena in its next life before a peer had heard of that life: the peer took the new segment for the
/// one that an offer of the former life waited for, and read whatever lay there.
#[test]
fn a_segment_of_another_life_is_not_read() {
    let mut dials = Dials::calm(1);
    dials.read_domain = true;
    dials.settings.lease = true;
    let mut world = World::new(dials);
    world.ticks(50);
    let key = Key::between("t0", "t1", "edge").unwrap();
    // The first life offers what lies in its second segment, and dies before the peer hears of that.
    let old = world.nodes[0].incarnation;
    let tensors = [7; 3].map(|number| world.made(0, number, 400_000).unwrap());
    assert_eq!(world.nodes[0].solos[0].segments().len(), 2);
    let waiting = world.want(1, 1, &key);
    world.hand(0, 1, &key, tensors[2].clone()).unwrap();
    for _ in 0..20 {
        while world.seen.pop().is_some() {}
        world.tick().unwrap();
    }
    assert!(waiting.take().is_none(), "the segment is not mapped yet");
    // Another memory of the same number, in another life.
    let beside = Arc::clone(&world.nodes[1].solos[0].segments()[0]);
    let task = world.nodes[0].task.clone();
    let mapped = world.map(&beside).unwrap();
    let (other, reader) = (Incarnation(old.0 + 1), &mut world.nodes[1].solos[0]);
    reader.peer_segment(&task, other, 0, 1, mapped);
    world.ticks(20);
    assert!(waiting.take().is_none(), "it is another life's");
    // The right one.
    let segment = Arc::clone(&world.nodes[0].solos[0].segments()[1]);
    let mapped = world.map(&segment).unwrap();
    world.nodes[1].solos[0].peer_segment(&task, old, 0, 1, mapped);
    let (_, number) = world.ticks_until(&waiting, 100).unwrap();
    assert_eq!(number, 7);
}

/// A tensor in another engine's arena was offered under the number that the arena has there: the peer read what lay in
/// the sender's own.
#[test]
fn a_tensor_of_another_engine_is_not_read_in_the_senders_arena() {
    let mut dials = Dials::calm(1);
    dials.read_domain = true;
    dials.settings.lease = true;
    let mut world = World::new(dials);
    world.ticks(50);
    let key = Key::between("t0", "t1", "edge").unwrap();
    let own = world.made(0, 7, 400_000).unwrap();
    let theirs = world.made(1, 9, 400_000).unwrap();
    assert_eq!(own.region(), theirs.region(), "else it shows nothing");
    let waiting = world.want(1, 1, &key);
    world.hand(0, 1, &key, theirs).unwrap();
    let (_, number) = world.ticks_until(&waiting, 100).unwrap();
    assert_eq!(number, 9);
    drop(own);
}
