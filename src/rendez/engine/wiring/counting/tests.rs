//! What the page of metrics says of connections that were lost, made again, not made and refused.

use std::time::{Duration, Instant};

use crate::control::Address;
use crate::engine::Engine;
use crate::engine::tests::{PATIENCE, Way, config, pair};
use crate::ground::device::TaskName;

/// What the page of `engine` says of a series; nothing if it has none.
fn counted(engine: &Engine, series: &str) -> u64 {
    let page = engine.metrics_text().unwrap();
    let mut values = page.lines().filter_map(|line| line.strip_prefix(series));
    values
        .next()
        .map_or(0, |value| value.trim().parse().unwrap())
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_connection_that_is_lost_and_made_again_is_counted_at_both_ends() {
    for way in [Way::Shm, Way::Tcp] {
        let (a, b) = pair(way);
        a.reach(b.task(), PATIENCE).unwrap();
        let sides = [(&a, b.task().clone()), (&b, a.task().clone())];
        let series = |what: &str, peer: &TaskName| {
            format!("rendez_connections_{what}_total{{peer=\"{peer}\"}}")
        };
        for count in 1..=2 {
            let stand = || sides.iter().all(|(side, _)| !side.connected().is_empty());
            until("no connection", stand);
            a.inner.wiring.break_connections();
            for (side, peer) in &sides {
                for what in ["lost", "remade"] {
                    let series = series(what, peer);
                    until(&series, || counted(side, &series) >= count);
                }
            }
        }
        let lost = series("lost", a.task());
        let before = counted(&b, &lost);
        a.shutdown(PATIENCE);
        until("no goodbye", || b.connected().is_empty());
        assert_eq!(counted(&b, &lost), before, "a goodbye is no loss");
    }
}

#[test]
fn a_dial_that_is_given_up_is_counted_by_its_reason() {
    let engine = Engine::start(config("/job:a/task:0")).unwrap();
    let peer = TaskName::parse("/job:b/task:0").unwrap();
    let nowhere: Address = "unix:@rendez-nobody-is-counted-here".parse().unwrap();
    engine.add_peer(peer.clone(), nowhere);
    engine.reach(&peer, Duration::from_millis(20)).unwrap_err();
    let series = "rendez_dials_failed_total{reason=\"CONNECTION_REFUSED\"}";
    assert_eq!(counted(&engine, series), 1);
    // Who is asked for its name.
    let other = Engine::start(config("/job:c/task:0")).unwrap();
    let there = other.address().unwrap();
    let found = engine
        .inner
        .wiring
        .who_listens(engine.task(), there, PATIENCE);
    assert_eq!(&found.unwrap(), other.task());
    let series = "rendez_dials_failed_total{reason=\"PEER_UNKNOWN\"}";
    assert_eq!(counted(&engine, series), 0);
}

#[test]
fn a_peer_that_is_refused_is_counted_by_the_reason() {
    let mut closed = config("/job:a/task:0");
    closed.closed = true;
    let a = Engine::start(closed).unwrap();
    let b = Engine::start(config("/job:b/task:0")).unwrap();
    b.add_peer(a.task().clone(), a.address().unwrap().clone());
    b.reach(a.task(), Duration::from_millis(20)).unwrap_err();
    let series = "rendez_refused_total{reason=\"PEER_NOT_OF_CLUSTER\"}";
    until(series, || counted(&a, series) > 0);
}
