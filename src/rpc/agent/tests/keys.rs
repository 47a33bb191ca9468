//! Groups that meet through a store of keys.

use super::*;
use crate::store::{Client, Server};

fn one() -> Functions {
    Functions::new().add_in_shard("one", || 1_u32)
}

fn server() -> (Server, String) {
    let server = Server::start("127.0.0.1:0").expect("a store");
    let address = server.address().to_string();
    (server, address)
}

fn join(engine: &Engine, name: &str, address: &str, size: Option<usize>) -> Result<Agent, Error> {
    let options = Options::through_store(address, size).functions(one());
    Agent::init(engine, name, options)
}

fn call(agent: &Agent, to: &str) -> u32 {
    agent.rpc_sync(to, "one", ()).expect("a result")
}

#[test]
fn a_static_group_meets_again_and_again_and_nobody_waits_for_the_slow() {
    let (engines, (_server, address)) = (engines(3, "keys"), server());
    std::thread::scope(|scope| {
        for (at, engine) in engines.iter().enumerate() {
            let address = &address;
            // Each goes through its rounds as fast as it can: the first comes again before the last has left.
            scope.spawn(move || {
                for _ in 0..4 {
                    let agent =
                        join(engine, &format!("w{at}"), address, Some(3)).expect("an agent");
                    for to in ["w0", "w1", "w2"] {
                        assert_eq!(call(&agent, to), 1);
                    }
                    agent.shutdown(LONG).expect("all is done");
                }
            });
        }
    });
}

#[test]
fn workers_of_a_dynamic_group_come_and_go_and_the_first_is_nothing_special() {
    let (engines, (_server, address)) = (engines(3, "keysdyn"), server());
    let come = |at: usize| join(&engines[at], &format!("w{at}"), &address, None).expect("an agent");
    let (first, second) = (come(0), come(1));
    assert_eq!((call_soon(&first, "w1"), call(&second, "w0")), (1, 1));
    first.shutdown(LONG).expect("it leaves");
    let third = come(2);
    assert_eq!((call_soon(&second, "w2"), call(&third, "w1")), (1, 1));
    let error = third.rpc_sync::<u32>("w0", "one", ()).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_WORKER);
    let first = come(0);
    assert_eq!((call(&first, "w2"), call_soon(&third, "w0")), (1, 1));
    are_well(&first, &second);
    first.shutdown(LONG).expect("it leaves");
    // The same task under another name.
    let other = join(&engines[0], "w9", &address, None).expect("an agent");
    are_well(&other, &second);
    for agent in [second, other, third] {
        agent.shutdown(LONG).expect("it leaves");
    }
}

/// Each calls the other, and makes values there, again and again.
fn are_well(first: &Agent, second: &Agent) {
    for _ in 0..4 {
        for (from, to) in [(first, second), (second, first)] {
            let to = to.worker().name;
            assert_eq!(call_soon(from, &to), 1);
            let made = from.remote::<u32>(&to, "one", ()).expect("a reference");
            assert_eq!(made.to_here().expect("a value"), 1);
        }
    }
}

/// Calls a worker that has joined, and that the bell may not have told of yet.
fn call_soon(agent: &Agent, to: &str) -> u32 {
    loop {
        match agent.rpc_sync(to, "one", ()) {
            Err(error) if error.reason() == catalogue::RPC_WORKER => {
                std::thread::sleep(Duration::from_millis(1));
            }
            outcome => return outcome.expect("a result"),
        }
    }
}

#[test]
fn a_bell_that_was_rung_as_often_as_a_number_counts_is_heard() {
    let (engines, (_server, address)) = (engines(2, "bell"), server());
    let mut client = Client::connect(&address, LONG).expect("a store");
    let rung = (i64::MAX - 1).to_string();
    let key = "rendez-rpc/rpc/bell";
    client.set(key, rung.as_bytes()).expect("it is set");
    let come = |at: usize| join(&engines[at], &format!("w{at}"), &address, None).expect("an agent");
    let (first, second) = (come(0), come(1));
    assert_eq!(client.add(key, 0).expect("a number"), i64::MIN);
    assert_eq!((call_soon(&first, "w1"), call(&second, "w0")), (1, 1));
    for agent in [first, second] {
        agent.shutdown(LONG).expect("it leaves");
    }
}

#[test]
fn a_group_does_not_mix_both_and_no_name_is_taken_twice() {
    let (engines, (_server, address)) = (engines(2, "keysmixed"), server());
    let dynamic = join(&engines[0], "w0", &address, None).expect("an agent");
    let error = join(&engines[1], "w1", &address, Some(2)).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_GROUP);
    assert_eq!(
        error.message(),
        "RPC group mixes statically and dynamically initialized members which is not supported."
    );
    let error = join(&engines[1], "w0", &address, None).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_NAME);
    dynamic.shutdown(LONG).expect("it leaves");
    // The group is empty, and may be another now.
    let alone = join(&engines[1], "w1", &address, Some(1)).expect("an agent");
    alone.shutdown(LONG).expect("it leaves");
    // A group of another name is none of its business.
    let mut options = Options::through_store(&address, None);
    options.group = "other".into();
    let other = Agent::init(&engines[0], "w0", options).expect("an agent");
    other.shutdown(LONG).expect("it leaves");
}

#[test]
fn who_is_missing_is_told_and_a_log_that_is_none_is_named() {
    let (engines, (_server, address)) = (engines(2, "keysfew"), server());
    let mut options = Options::through_store(&address, Some(2));
    options.init_timeout = Duration::from_millis(500);
    let error = Agent::init(&engines[0], "w0", options).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_INIT);
    assert!(
        error.message().contains("1 of 2 workers were there: w0"),
        "{error}"
    );
    // It has left: two others are a whole group.
    std::thread::scope(|scope| {
        for (at, engine) in engines.iter().enumerate() {
            let address = &address;
            scope.spawn(move || {
                let agent = join(engine, &format!("v{at}"), address, Some(2)).expect("an agent");
                agent.shutdown(LONG).expect("all is done");
            });
        }
    });
    let mut store = Client::connect(&address, LONG).expect("a client");
    store
        .append("rendez-rpc/rpc/log", b"something else\n")
        .expect("appended");
    let error = join(&engines[0], "w0", &address, None).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_STORE);
    assert!(error.message().contains("no line of a group"), "{error}");
}

#[test]
fn a_group_without_its_store_goes_on_and_leaves() {
    let (engines, (server, address)) = (engines(2, "keysgone"), server());
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| join(&engines[1], "w1", &address, Some(2)));
        let first = join(&engines[0], "w0", &address, Some(2));
        (first, second.join().expect("no panic"))
    });
    let (first, second) = (first.expect("an agent"), second.expect("an agent"));
    drop(server);
    assert_eq!((call(&first, "w1"), call(&second, "w0")), (1, 1));
    assert!(shut_down(vec![first, second]).iter().all(Result::is_ok));
}

/// The store is on this machine, so the others know this machine by the store's host.
#[test]
fn an_engine_that_listens_everywhere_is_met_where_it_reaches_the_store() {
    let (_server, address) = server();
    let engines = engines_everywhere(2, "keyseverywhere");
    let come = |at: usize| join(&engines[at], &format!("w{at}"), &address, None).expect("an agent");
    let (first, second) = (come(0), come(1));
    assert_eq!((call_soon(&first, "w1"), call(&second, "w0")), (1, 1));
    let mut store = Client::connect(&address, LONG).expect("the store");
    let log = store
        .find("rendez-rpc/rpc/log")
        .expect("an answer")
        .expect("a log");
    let log = String::from_utf8(log).expect("a text");
    assert!(
        log.contains("127.0.0.1:") && !log.contains("0.0.0.0"),
        "{log}"
    );
    for agent in [first, second] {
        agent.shutdown(LONG).expect("it leaves");
    }
}
