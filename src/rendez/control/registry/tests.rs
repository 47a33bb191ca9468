//! Which peers are let in, and that of two dials exactly one stays whatever the order of events.

use proptest::prelude::*;

use super::*;

const LIVES: fn(PeerId) -> bool = |_| false;

#[test]
fn a_life_counts_once() {
    let mut registry = Registry::new("b");
    registry
        .begin_accept("a", Incarnation(1), LIVES)
        .expect("free");
    assert!(
        registry
            .begin_accept("a", Incarnation(1), LIVES)
            .expect_err("one at a time")
            .retry
    );
    assert!(registry.begin_dial("a").expect_err("one at a time").retry);
    registry
        .up("a", PeerId(1), Incarnation(1), false)
        .expect("counts");
    registry.end_accept("a");
    assert!(registry.is_up("a"));
    assert!(
        registry
            .begin_accept("a", Incarnation(1), LIVES)
            .expect_err("connected")
            .retry
    );
    let duplicate = registry
        .begin_accept("a", Incarnation(2), LIVES)
        .expect_err("another life");
    assert_eq!(
        (duplicate.status.reason(), duplicate.retry),
        ("PEER_DUPLICATE_NAME", false)
    );
    assert!(
        registry
            .begin_accept("a", Incarnation(2), |_| true)
            .expect_err("not buried yet")
            .retry
    );
    registry.down("a", PeerId(9));
    assert!(
        registry.is_up("a"),
        "another connection's end is not this one's"
    );
    registry.down("a", PeerId(1));
    registry
        .begin_accept("a", Incarnation(2), LIVES)
        .expect("free again");
    registry.end_accept("a");
    assert!(registry.slots.is_empty(), "nothing is kept of who is gone");
}

#[test]
fn the_smaller_names_dial_wins() {
    let (mut a, mut b) = (Registry::new("a"), Registry::new("b"));
    a.begin_dial("b").expect("free");
    b.begin_dial("a").expect("free");
    assert!(
        a.begin_accept("b", Incarnation(1), LIVES)
            .expect_err("ours wins")
            .retry
    );
    b.begin_accept("a", Incarnation(1), LIVES)
        .expect("theirs wins");
    assert!(
        b.up("a", PeerId(1), Incarnation(1), true).is_err(),
        "a dial gives way to an acceptance"
    );
    b.up("a", PeerId(2), Incarnation(1), false).expect("counts");
}

#[test]
fn peers_are_bounded() {
    let mut registry = Registry::new("me");
    for index in 0..PEERS_MAX {
        registry.begin_dial(&format!("peer{index}")).expect("room");
    }
    let refusal = registry.begin_dial("one more").expect_err("full");
    assert!(refusal.retry && refusal.status.message().contains("PEERS_MAX"));
    registry.end_dial("peer0");
    registry.begin_dial("one more").expect("room again");
}

/// Two sides whose dials meet: each dial is a hello, its answer, and an end; messages of one connection keep their
/// order.
#[derive(Debug, Default)]
struct Dial {
    /// 0 idle, 1 hello sent, 2 accepted by the other, 3 up here, 4 up at both.
    stage: u8,
}

proptest! {
    #[test]
    fn exactly_one_of_two_dials_stays(choices in proptest::collection::vec(any::<bool>(), 60)) {
        let mut sides = [Registry::new("a"), Registry::new("b")];
        let names = ["a", "b"];
        let mut dials = [Dial::default(), Dial::default()];
        let tail = [true, false].into_iter().cycle().take(40);
        for choice in choices.into_iter().chain(tail) {
            let from = usize::from(choice);
            let (to, peer) = (1 - from, PeerId(u32::from(choice)));
            let dial = &mut dials[from];
            match dial.stage {
                0 if !sides[from].is_up(names[to]) => {
                    dial.stage = u8::from(sides[from].begin_dial(names[to]).is_ok());
                }
                1 => match sides[to].begin_accept(names[from], Incarnation(1), LIVES) {
                    Ok(()) => dial.stage = 2,
                    Err(refusal) => {
                        prop_assert!(refusal.retry);
                        sides[from].end_dial(names[to]);
                        dial.stage = 0;
                    }
                },
                2 => {
                    let counts = sides[from].up(names[to], peer, Incarnation(1), true).is_ok();
                    sides[from].end_dial(names[to]);
                    if !counts {
                        sides[to].end_accept(names[from]);
                    }
                    dial.stage = if counts { 3 } else { 0 };
                }
                3 => {
                    prop_assert!(sides[to].up(names[from], peer, Incarnation(1), false).is_ok());
                    sides[to].end_accept(names[from]);
                    dial.stage = 4;
                }
                _ => {}
            }
        }
        let up = dials.iter().filter(|dial| dial.stage == 4).count();
        prop_assert_eq!(up, 1, "{:?}", dials);
    }
}
