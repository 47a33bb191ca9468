//! Calls that are given up before they have left again.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::sync_channel;

use super::*;
use crate::control::conversation::ConversationOpening;
use crate::control::mailbox::mailbox;
use crate::control::peer::{PeerHello, PeerLimits, PollPolicy};
use crate::control::service::Services;
use crate::control::transport::Path;

fn calls() -> Rc<Calls> {
    let pool = Pool::start(Services::new()).expect("no threads");
    Calls::new(pool, mailbox().0, Duration::ZERO)
}

/// A connection with that life of a task. Nothing of it is written by itself.
fn connected(calls: &Rc<Calls>, task: &str, peer: u32, life: u64) -> Rc<Conversation> {
    let (socket, _) = UnixStream::pair().expect("two sockets");
    let hello = PeerHello {
        task: task.into(),
        incarnation: Incarnation(life),
        shards: 1,
        poll_policy: PollPolicy::Park,
        limits: PeerLimits::default(),
        features: Vec::new(),
        abilities: 0,
        lacks: Vec::new(),
        no_shm: String::new(),
        user: None,
        process: None,
    };
    let conversation = Rc::new(Conversation::new(ConversationOpening {
        peer: PeerId(peer),
        hello,
        read_domain: false,
        path: Path::Tcp,
        socket: OwnedFd::from(socket),
        lane: None,
        seals: Default::default(),
        calls: Rc::clone(calls),
        offered: BTreeSet::new(),
        known: BTreeSet::new(),
    }));
    calls.up(&conversation);
    conversation
}

fn begin(calls: &Calls, task: &str, request: u64, patience: Duration) {
    let (outcome, _) = sync_channel(1);
    calls.begin(
        request,
        Asked {
            task: task.into(),
            method: 1,
            trace: 0,
            payload: Vec::new(),
            deadline: Instant::now() + patience,
            outcome,
        },
    );
}

const PATIENCE: Duration = Duration::from_secs(60);

/// What is written next, in short: the calls, and the cancels, by their numbers.
fn said(conversation: &Conversation) -> (Vec<u64>, Vec<u64>) {
    let (mut asked, mut cancelled) = (Vec::new(), Vec::new());
    while let Some(envelope) = conversation.next_said() {
        match envelope.body {
            Some(Body::Call(call)) => asked.push(call.request),
            Some(Body::CallCancel(cancel)) => cancelled.push(cancel.request),
            other => panic!("{other:?}"),
        }
    }
    (asked, cancelled)
}

#[test]
fn a_call_that_was_never_sent_is_withdrawn_without_a_word() {
    let calls = calls();
    let first = connected(&calls, "b", 1, 7);
    begin(&calls, "b", 1, PATIENCE);
    calls.give_up(1);
    assert_eq!(said(&first), (vec![], vec![]));
    assert_eq!(first.unanswered(), 0);
    // Nor is one that waited for a connection.
    calls.down(PeerId(1));
    begin(&calls, "b", 2, PATIENCE);
    calls.give_up(2);
    let second = connected(&calls, "b", 2, 7);
    assert_eq!(said(&second), (vec![], vec![]));
}

/// The peer has it from a connection before, and may be at it.
#[test]
fn a_repeated_call_that_is_withdrawn_before_it_was_sent_again_is_cancelled() {
    let calls = calls();
    let first = connected(&calls, "b", 1, 7);
    begin(&calls, "b", 1, PATIENCE);
    assert_eq!(said(&first), (vec![1], vec![]));
    calls.down(PeerId(1));
    let second = connected(&calls, "b", 2, 7);
    calls.give_up(1);
    assert_eq!(said(&second), (vec![], vec![1]));
    assert_eq!(second.unanswered(), 0);
}

/// The same while there is no connection: the next tells that life of the task, and no other.
#[test]
fn a_call_that_is_given_up_between_two_connections_is_cancelled_over_the_next() {
    for (life, told) in [(7, vec![1]), (8, vec![])] {
        let calls = calls();
        let first = connected(&calls, "b", 1, 7);
        begin(&calls, "b", 1, PATIENCE);
        begin(&calls, "b", 2, Duration::ZERO);
        assert_eq!(said(&first), (vec![1, 2], vec![]));
        calls.down(PeerId(1));
        calls.give_up(1);
        // Its service has ended it by itself.
        calls.give_up(2);
        let second = connected(&calls, "b", 2, life);
        assert_eq!(said(&second), (vec![], told));
        // Once.
        calls.down(PeerId(2));
        let third = connected(&calls, "b", 3, 7);
        assert_eq!(said(&third), (vec![], vec![]));
    }
}

/// A connection is dead for a while before that is noticed: what is said on it meanwhile comes to no peer.
#[test]
fn a_call_that_is_given_up_on_a_dead_connection_is_cancelled_over_the_next() {
    let calls = calls();
    let first = connected(&calls, "b", 1, 7);
    for request in [1, 2] {
        begin(&calls, "b", request, PATIENCE);
    }
    assert_eq!(said(&first), (vec![1, 2], vec![]));
    calls.give_up(1);
    assert_eq!(said(&first), (vec![], vec![1]));
    calls.down(PeerId(1));
    let second = connected(&calls, "b", 2, 7);
    assert_eq!(said(&second), (vec![2], vec![1]));
}

/// However many tasks are lost and never return.
#[test]
fn cancels_that_wait_for_a_connection_are_bounded() {
    let calls = calls();
    let windows = CALLS_MAX / CALL_WINDOW + 2;
    for window in 0..windows {
        let task = format!("task{window}");
        let peer = PeerId(window as u32);
        let conversation = connected(&calls, &task, peer.0, 7);
        let requests = (0..CALL_WINDOW).map(|at| (window * CALL_WINDOW + at) as u64 + 1);
        for request in requests.clone() {
            begin(&calls, &task, request, PATIENCE);
        }
        calls.down(peer);
        requests.for_each(|request| calls.give_up(request));
        drop(conversation);
    }
    assert_eq!(calls.untold.borrow().len(), CALLS_MAX);
    // The oldest went.
    let cancelled = |task: &str| said(&connected(&calls, task, 9_000, 7)).1.len();
    assert_eq!(
        (cancelled("task0"), cancelled("task1"), cancelled("task2")),
        (0, 0, CALL_WINDOW)
    );
}
