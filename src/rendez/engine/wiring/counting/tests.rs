//! What the page of metrics says of connections that were lost, made again, not made and refused.

use std::time::{Duration, Instant};

use crate::control::{Address, PeerGone};
use crate::engine::tests::{PATIENCE, Way, config, pair};
use crate::engine::{Connected, Engine};
use crate::ground::device::TaskName;
use crate::ground::{Key, StepId};

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

/// What an alert goes by: a pair that has nothing to say is no fault, and one that is wanted or was lost stays one
/// until it is connected.
#[test]
fn a_peer_is_missing_that_is_wanted_or_was_lost() {
    let mut of_a = config("/job:a/task:0");
    of_a.connect_timeout = Duration::from_secs(2);
    let nowhere: Address = "unix:@rendez-nobody-is-missing-here".parse().unwrap();
    of_a.peers.insert("/job:b/task:0".to_owned(), nowhere);
    of_a.known.insert("/job:c/task:0".to_owned());
    let a = Engine::start(of_a).unwrap();
    let missing = || -> Vec<String> {
        let page = a.metrics_text().unwrap();
        let lines = page.lines();
        let lines = lines.filter_map(|line| line.strip_prefix("rendez_peer_connected{peer=\""));
        let missing = lines.filter_map(|line| line.strip_suffix("/replica:0/task:0\"} 0"));
        missing.map(str::to_owned).collect()
    };
    let nobody: [&str; 0] = [];
    assert_eq!(missing(), nobody, "nothing was handed over yet");
    let wiring = &a.inner.wiring;
    for from in ["b", "c", "slip"] {
        let key = Key::between(from, "a", "x").unwrap();
        let recv = a.step(StepId(1)).recv(&key);
        recv.deadline(Duration::from_millis(20)).wait().unwrap_err();
    }
    assert_eq!(missing(), ["/job:b", "/job:c", "/job:slip"]);
    let mut book = wiring.book();
    book.awaited
        .values_mut()
        .for_each(|since| *since -= Duration::from_secs(3));
    drop(book);
    let both = ["/job:b", "/job:c"];
    assert_eq!(missing(), both, "nothing waits, and they have not come");
    let b = Engine::start(config("/job:b/task:0")).unwrap();
    a.add_peer(b.task().clone(), b.address().unwrap().clone());
    a.reach(b.task(), PATIENCE).unwrap();
    assert_eq!(missing(), both[1..]);
    let connected = a.connected().remove(0);
    b.shutdown(PATIENCE);
    until("no goodbye", || a.connected().is_empty());
    assert_eq!(missing(), both[1..], "it has left in peace");
    assert!(wiring.book().lost.is_empty(), "and is not looked for");
    wiring.connection_gone(
        &a.inner,
        &connected,
        &PeerGone::ProcessExited,
        Instant::now(),
    );
    assert_eq!(missing(), both, "it was killed");
    assert!(wiring.book().lost.contains_key(b.task()));
    let drawn = Connected {
        task: TaskName::parse("/job:drawn/task:0").unwrap(),
        ..connected
    };
    wiring.connection_gone(&a.inner, &drawn, &PeerGone::ProcessExited, Instant::now());
    assert_eq!(missing(), both, "it may come under another name");
}

/// `rendez explain` asks each task to do so.
#[test]
fn a_peer_that_is_dialled_before_a_key_names_it_is_not_missing() {
    let a = Engine::start(config("/job:a/task:0")).unwrap();
    let early = TaskName::parse("/job:b/task:0").unwrap();
    // Its address may come later.
    a.connect(&early);
    a.add_peer(
        early.clone(),
        "unix:@rendez-nobody-is-early-here".parse().unwrap(),
    );
    until("no attempt is told", || {
        a.inner.wiring.why_absent(&early).is_some()
    });
    let page = a.metrics_text().unwrap();
    assert!(
        !page.contains("rendez_peer_connected{peer=\"/job:b"),
        "{page}"
    );
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
