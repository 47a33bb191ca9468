//! Other users have a share of the greetings, and our own the rest.

use std::net::TcpStream;

use super::super::address::Address;
use super::*;

#[test]
fn other_users_have_their_share_and_get_it_back() {
    let shared = Arc::new(Shared {
        wake: rustix::event::eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"),
        orders: Mutex::default(),
        permits: AtomicUsize::new(0),
        others: AtomicUsize::new(0),
        users: UserNumbers::named(1),
    });
    let enter = |user| Permit::of_user(&shared, user);
    let others: Vec<_> = (0..GREETINGS_MAX).map_while(|_| enter(2)).collect();
    assert_eq!(others.len(), GREETINGS_OF_OTHERS_MAX);
    assert!(enter(3).is_none(), "another user of them");
    let mut own = Vec::new();
    while shared.has_room() {
        own.push(enter(1).expect("room"));
    }
    assert_eq!(own.len(), GREETINGS_MAX - GREETINGS_OF_OTHERS_MAX);
    drop((others, own));
    assert_eq!(shared.permits.load(Ordering::Relaxed), 0);
    assert!(enter(2).is_some());
}

/// A round, and where it listens over TCP.
fn round() -> (Round<impl Fn(Sight) -> bool>, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    listener.set_nonblocking(true).expect("set");
    let round = Round {
        shared: Arc::new(Shared {
            wake: rustix::event::eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"),
            orders: Mutex::default(),
            permits: AtomicUsize::new(0),
            others: AtomicUsize::new(0),
            users: UserNumbers::named(1),
        }),
        listening: Address::unique("watch").listen().expect("listening"),
        tcp: Some(ParentOnly::new(listener.try_clone().expect("a clone"))),
        greet_deadline: Duration::from_secs(1),
        accept_after: None,
        told_rest: None,
        silent: Vec::new(),
        newcomers: Newcomers::new(Duration::from_secs(1)),
        followed: Vec::new(),
        tell: |_: Sight| true,
    };
    (round, listener)
}

/// Those that are closed at once take no room: a flood of them from one address must not hold the watch up.
#[test]
fn accepting_ends_while_connections_keep_coming() {
    let (mut round, listener) = round();
    let address = listener.local_addr().expect("bound");
    // What has hung up already waits in the backlog all the same.
    for _ in 0..=GREETINGS_MAX {
        TcpStream::connect(address).expect("connected");
    }
    round.accept_tcp();
    assert!(listener.accept().is_ok(), "none is left for the next turn");
}

/// Where descriptors are short a connection is accepted now and then, and the next is not.
#[test]
fn connections_that_cannot_be_accepted_do_not_fill_the_log() {
    let (mut round, listener) = round();
    let begun = Instant::now();
    let rests = |round: &mut Round<_>, after| {
        let before = round.told_rest;
        round.rest(Errno::MFILE.into(), begun + after);
        round.told_rest != before
    };
    assert!(rests(&mut round, Duration::ZERO), "the first is told");
    let _caller = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    round.accept_tcp();
    assert!(!rests(&mut round, ACCEPT_PAUSE));
    assert!(!rests(&mut round, REST_QUIET - ACCEPT_PAUSE));
    assert!(rests(&mut round, REST_QUIET), "it lasts");
    assert!(!rests(&mut round, REST_QUIET + ACCEPT_PAUSE));
}
