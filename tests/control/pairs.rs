//! Two control planes of one process, on either runtime.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use rendez::control::{Address, Control, ControlError, PeerGone, RuntimeKind};
use rendez::ground::{Code, Incarnation, Status};

use super::support::{
    Answers, BOTH, Event, PATIENCE, config, contents, offer, segment_text, start, start_with,
};

#[test]
fn two_tasks_exchange_all_they_offer() {
    for left in BOTH {
        for right in BOTH {
            let a = start_with(
                config("a", 1, left),
                Answers {
                    segments: 3,
                    ..Answers::default()
                },
            );
            let b = start_with(
                config("b", 2, right),
                Answers {
                    segments: 70,
                    ..Answers::default()
                },
            );
            assert_eq!(
                (a.control.runtime().kind, b.control.runtime().kind),
                (left, right)
            );
            a.dial(&b, "b");
            let (at_a, at_b) = (a.up(), b.up());
            assert!(at_a.dialler && !at_b.dialler);
            assert!(at_a.read_domain && at_b.read_domain);
            assert_eq!((at_a.task.as_str(), at_b.task.as_str()), ("b", "a"));
            assert_eq!(
                (at_a.incarnation, at_b.incarnation),
                (Incarnation(2), Incarnation(1))
            );
            assert_eq!(at_a.hello.limits, rendez::control::PeerLimits::default());
            assert!(
                !at_a.exit_provable,
                "the exit of the own process cannot be told"
            );
            for link in [&at_a.descriptors.link, &at_b.descriptors.link] {
                let link = link.as_ref().expect("a link");
                assert_eq!(contents(&link.fd), "link a b");
                assert_eq!(link.numbers, [1, 2, u64::MAX]);
            }
            for (up, task, count) in [(&at_a, "b", 70), (&at_b, "a", 3)] {
                assert_eq!(up.descriptors.segments.len(), count);
                for (index, segment) in (0..).zip(&up.descriptors.segments) {
                    assert_eq!((segment.arena, segment.segment), (0, index));
                    assert_eq!(contents(&segment.fd), segment_text(task, 0, index));
                    assert_eq!(segment.len, segment_text(task, 0, index).len() as u64);
                }
                let shards: Vec<u16> = up
                    .descriptors
                    .doorbells
                    .iter()
                    .map(|bell| bell.shard)
                    .collect();
                assert_eq!(shards, [0, 1]);
            }
            a.stop();
            assert!(
                matches!(b.gone(), (peer, PeerGone::Said { reason }) if peer == at_b.peer && reason == "test over")
            );
            b.stop();
            assert!(
                a.events.try_recv().is_err(),
                "who leaves is told nothing of it"
            );
        }
    }
}

#[test]
fn announced_segments_arrive_in_order_and_once() {
    for kind in BOTH {
        let a = start(config("a", 1, kind));
        let b = start_with(
            config("b", 2, kind),
            Answers {
                segments: 1,
                ..Answers::default()
            },
        );
        a.dial(&b, "b");
        let (at_a, at_b) = (a.up(), b.up());
        // More than any window, and one the peer has already.
        for segment in 0..200 {
            b.control
                .announce(offer("b", 0, segment))
                .expect("announced");
        }
        for segment in 1..200 {
            let (peer, arrived) = a.segment();
            assert_eq!(
                (peer, arrived.arena, arrived.segment),
                (at_a.peer, 0, segment)
            );
            assert_eq!(contents(&arrived.fd), segment_text("b", 0, segment));
        }
        a.control.announce(offer("a", 7, 9)).expect("announced");
        let (peer, arrived) = b.segment();
        assert_eq!((peer, arrived.arena, arrived.segment), (at_b.peer, 7, 9));
    }
}

/// A peer that is offered what lies in a new segment waits for the news of it: no burst of commands may keep it out.
#[test]
fn a_segment_is_announced_however_many_commands_wait() {
    for kind in BOTH {
        let [a, b, c] = ["a", "b", "c"].map(|task| start(config(task, 1, kind)));
        a.dial(&b, "b");
        let (at_a, _) = (a.up(), b.up());
        let held_up = b.handler.answers.lock().expect("no panic");
        c.dial(&b, "b");
        // Of a peer that is connected a dial does nothing.
        let again = || b.control.dial("a", a.control.address().clone(), PATIENCE);
        // Full, and nothing is taken out of it any more.
        loop {
            let full = std::iter::repeat_with(again).find_map(Result::err);
            assert_eq!(full.expect("a bound").code(), Code::ResourceExhausted);
            std::thread::sleep(Duration::from_millis(50));
            if again().is_err() {
                break;
            }
        }
        let announced = b.control.announce(offer("b", 0, 9));
        drop(held_up);
        announced.expect("announced");
        let (peer, arrived) = a.segment();
        assert_eq!((peer, arrived.arena, arrived.segment), (at_a.peer, 0, 9));
    }
}

#[test]
fn a_dial_from_both_sides_gives_one_link() {
    for round in 0..40 {
        let kind = BOTH[round % 2];
        let a = start(config("a", 1, kind));
        let b = start(config("b", 2, BOTH[round / 2 % 2]));
        a.dial(&b, "b");
        b.dial(&a, "a");
        let (at_a, at_b) = (a.up(), b.up());
        assert_ne!(at_a.dialler, at_b.dialler);
        // The link they have is the same one: what one announces the other hears, under the number it knows.
        a.control.announce(offer("a", 1, 1)).expect("announced");
        b.control.announce(offer("b", 1, 1)).expect("announced");
        assert_eq!(b.segment().0, at_b.peer);
        assert_eq!(a.segment().0, at_a.peer);
        a.stop();
        assert!(matches!(b.gone(), (peer, PeerGone::Said { .. }) if peer == at_b.peer));
        b.stop();
        assert!(
            a.events.try_recv().is_err() && b.events.try_recv().is_err(),
            "no second link, no failed dial"
        );
    }
}

#[test]
fn many_tasks_come_up_in_any_order() {
    const TASKS: usize = 6;
    let names: Vec<String> = (0..TASKS).map(|index| format!("task{index}")).collect();
    let tasks: Vec<_> = (0..)
        .zip(&names)
        .map(|(index, name)| start(config(name, 1 + index as u64, BOTH[index % 2])))
        .collect();
    for from in &tasks {
        for (to, name) in tasks.iter().zip(&names) {
            if from.control.address() != to.control.address() {
                from.dial(to, name);
            }
        }
    }
    for task in &tasks {
        let mut met: Vec<String> = (1..TASKS).map(|_| task.up().task).collect();
        met.sort_unstable();
        met.dedup();
        assert_eq!(met.len(), TASKS - 1);
    }
}

#[test]
fn a_dial_waits_for_the_peer_to_start() {
    for kind in BOTH {
        let address = Address::unique("late");
        let a = start(config("a", 1, kind));
        a.control
            .dial("late", address.clone(), PATIENCE)
            .expect("taken");
        // Twice is once.
        a.control
            .dial("late", address.clone(), PATIENCE)
            .expect("taken");
        let mut late = config("late", 2, kind);
        late.listen = Some(address);
        let late = start(late);
        assert_eq!(a.up().task, "late");
        assert_eq!(late.up().task, "a");
    }
}

#[test]
fn a_restarted_task_is_another_peer() {
    let a = start(config("a", 1, RuntimeKind::Poll));
    let b = start(config("b", 2, RuntimeKind::Poll));
    b.dial(&a, "a");
    let first = a.up();
    b.stop();
    assert!(matches!(a.gone(), (peer, PeerGone::Said { .. }) if peer == first.peer));
    let b = start(config("b", 3, RuntimeKind::Poll));
    b.dial(&a, "a");
    let second = a.up();
    assert_ne!(first.peer, second.peer);
    assert_eq!(second.incarnation, Incarnation(3));
}

#[test]
fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let path: PathBuf = directory.path().join("a.sock");
    let address: Address = format!("unix:{}", path.display())
        .parse()
        .expect("an address");
    drop(UnixListener::bind(&path).expect("bound"));
    assert!(path.exists(), "its owner is gone and has left it");
    let mut first = config("a", 1, RuntimeKind::Poll);
    first.listen = Some(address.clone());
    let a = start(first.clone());
    let b = start(config("b", 2, RuntimeKind::Glommio));
    b.dial(&a, "a");
    assert_eq!(b.up().task, "a");
    first.incarnation = Incarnation(3);
    let refused = Control::start(first, a.handler.clone()).expect_err("the address is taken");
    assert!(
        matches!(refused, ControlError::AddressTaken { .. }),
        "{refused}"
    );
    assert_eq!(refused.status().reason(), "PEER_DUPLICATE_NAME");
    a.stop();
    assert!(!path.exists(), "nothing is left behind");
    std::fs::write(&path, "not a socket").expect("written");
    let mut third = config("a", 4, RuntimeKind::Poll);
    third.listen = Some(address);
    let refused = Control::start(third, a.handler.clone()).expect_err("something else is there");
    assert!(matches!(refused, ControlError::Address { .. }), "{refused}");
    assert!(path.exists(), "what is not ours is not removed");
}

#[test]
fn a_taken_name_is_refused_at_the_start() {
    let a = start(config("a", 1, RuntimeKind::Poll));
    let mut second = config("a", 2, RuntimeKind::Poll);
    second.listen = Some(a.control.address().clone());
    let refused = Control::start(second, a.handler.clone()).expect_err("taken");
    assert_eq!(refused.status().reason(), "PEER_DUPLICATE_NAME");
}

#[test]
fn after_a_stop_nothing_is_taken() {
    let a = start(config("a", 1, RuntimeKind::Glommio));
    a.stop();
    a.stop();
    let status: Status = a
        .control
        .dial("b", Address::unique("b"), PATIENCE)
        .expect_err("stopped");
    assert_eq!(status.reason(), "CONTROL_STOPPED");
}

#[test]
fn a_stop_ends_a_dial_without_a_word() {
    for kind in BOTH {
        let a = start(config("a", 1, kind));
        a.control
            .dial("nobody", Address::unique("nobody"), PATIENCE)
            .expect("taken");
        a.stop();
        assert!(!matches!(a.events.try_recv(), Ok(Event::DialFailed(..))));
    }
}

/// A dial that is under way goes where its task is said to listen last.
#[test]
fn a_dial_follows_its_task_to_another_address() {
    for kind in BOTH {
        let (a, b) = (start(config("a", 1, kind)), start(config("b", 2, kind)));
        let nowhere = "unix:@rendez-nobody-listens-here"
            .parse()
            .expect("an address");
        a.control.dial("b", nowhere, PATIENCE).expect("taken");
        a.dial(&b, "b");
        assert_eq!((a.up().task, b.up().task), ("b".into(), "a".into()));
    }
}

/// It waits for the end of the connection, and makes the next one.
#[test]
fn a_dial_right_after_a_hang_up_is_not_lost() {
    for kind in BOTH {
        let (a, b) = (start(config("a", 1, kind)), start(config("b", 2, kind)));
        a.dial(&b, "b");
        let (at_a, at_b) = (a.up(), b.up());
        a.control
            .hang_up(at_a.peer, "it is no good")
            .expect("taken");
        a.dial(&b, "b");
        assert_eq!((a.gone().0, b.gone().0), (at_a.peer, at_b.peer));
        assert_eq!((a.up().task, b.up().task), ("b".into(), "a".into()));
    }
}
