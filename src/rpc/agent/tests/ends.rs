//! How agents end and begin again: leaks, shutdown inside a call, one agent at a time, and a worker that starts again.

use super::*;

fn functions() -> Functions {
    Functions::new()
        .add_in_shard("one", || 1_u32)
        .add("number", |number: u32| number)
        .add("leave", || -> Result<(), Error> {
            let agent = Context::current().expect("in a call").agent();
            agent.shutdown(Duration::ZERO)
        })
        .add("read", |number: RRef<u32>| number.to_here())
}

#[test]
fn references_that_are_held_at_shutdown_are_told_by_name() {
    for is_refused in [true, false] {
        let set = |options: Options| Options {
            refuse_leaks: is_refused,
            ..options.functions(functions())
        };
        let agents = group_with(2, "leaks", set);
        let theirs: RRef<u32> = agents[0]
            .remote("w1", "number", (4_u32,))
            .expect("a reference");
        let own = RRef::new(&agents[0], 5_u32);
        assert_eq!(theirs.to_here().expect("a value"), 4);
        let ends = shut_down(agents);
        assert!(ends[1].is_ok());
        match &ends[0] {
            Ok(()) => assert!(!is_refused),
            Err(error) => {
                assert!(is_refused);
                assert_eq!(error.reason(), catalogue::RPC_LEAK);
                assert!(error.message().contains(&format!("{theirs:?}")), "{error}");
                assert!(error.message().contains(&format!("{own:?}")), "{error}");
            }
        }
        // They name nothing any more.
        assert!(theirs.to_here().is_err() && own.to_here().is_err());
    }
}

#[test]
fn references_that_were_dropped_in_time_are_no_leaks() {
    let set = |options: Options| Options {
        refuse_leaks: true,
        ..options.functions(functions())
    };
    let agents = group_with(2, "no_leaks", set);
    let number: RRef<u32> = agents[0]
        .remote("w1", "number", (4_u32,))
        .expect("a reference");
    assert_eq!(
        agents[0]
            .rpc_sync::<u32>("w1", "read", (number.clone(),))
            .expect("a value"),
        4
    );
    drop(number);
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

#[test]
fn a_function_cannot_shut_its_own_worker_down() {
    let agents = group(2, "inside", &functions());
    let error = agents[0].rpc_sync::<()>("w1", "leave", ()).unwrap_err();
    assert!(
        error.message().contains("cannot shut its own worker down"),
        "{error}"
    );
    assert_eq!(
        agents[0]
            .rpc_sync::<u32>("w1", "one", ())
            .expect("it is there"),
        1
    );
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

#[test]
fn an_engine_has_one_worker_of_a_group_at_a_time() {
    let engines = engines(1, "twice");
    let options = || Options::of_workers(workers(&engines)).functions(functions());
    let first = Agent::init(&engines[0], "w0", options()).expect("an agent");
    let error = Agent::init(&engines[0], "w0", options()).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_GROUP);
    assert!(
        error.message().starts_with("RPC is already initialized"),
        "{error}"
    );
    assert_eq!(
        first.rpc_sync::<u32>("w0", "one", ()).expect("it works on"),
        1
    );
    // Of another group it has another.
    let other = Options {
        group: "another".into(),
        ..options()
    };
    let other = Agent::init(&engines[0], "w0", other).expect("an agent");
    for agent in [first, other] {
        agent.shutdown(LONG).expect("it leaves");
    }
    let again = Agent::init(&engines[0], "w0", options()).expect("an agent again");
    again.shutdown(LONG).expect("it leaves");
}

#[test]
fn a_start_that_fails_leaves_nothing_behind() {
    let engines = engines(1, "fails");
    let mut absent = workers(&engines);
    absent.push(Worker::new("w1", "/job:never/task:0"));
    for _ in 0..2 {
        let mut options = Options::of_workers(absent.clone());
        options.init_timeout = Duration::from_millis(20);
        let error = Agent::init(&engines[0], "w0", options).unwrap_err();
        assert_eq!(error.reason(), catalogue::RPC_INIT, "{error}");
    }
    let options = Options::of_workers(workers(&engines)).functions(functions());
    let agent = Agent::init(&engines[0], "w0", options).expect("an agent");
    agent.shutdown(LONG).expect("it leaves");
}

/// Calls until it goes well: a worker that starts again is met a moment later.
fn until_answered(agent: &Agent, to: &str) -> u32 {
    let began = std::time::Instant::now();
    loop {
        match agent.rpc_sync::<u32>(to, "one", ()) {
            Ok(one) => return one,
            Err(error) => assert!(began.elapsed() < LONG, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_worker_that_starts_again_takes_its_place_and_no_reference_of_before() {
    let mut engines = engines(2, "restart");
    let mut agents = start(&engines, |_, options| options.functions(functions()));
    let second = agents.pop().expect("the second");
    let first = agents.pop().expect("the first");
    // Each has called the other before, and each holds a value of the other.
    let theirs: RRef<u32> = first.remote("w1", "number", (7_u32,)).expect("a reference");
    assert_eq!(theirs.to_here().expect("a value"), 7);
    let ours: RRef<u32> = second
        .remote("w0", "number", (8_u32,))
        .expect("a reference");
    assert_eq!(ours.to_here().expect("a value"), 8);
    // The second dies, and starts again as another process would: the same task, another address.
    let task = engines[1].task().to_string();
    drop((second, ours));
    engines.pop().expect("the second").shutdown(Duration::ZERO);
    engines.push(engine(&task));
    let address = engines[1].address().expect("it listens").clone();
    engines[0].add_peer(engines[1].task().clone(), address);
    let options = Options::of_workers(workers(&engines)).functions(functions());
    let second = Agent::init(&engines[1], "w1", options).expect("an agent");
    assert_eq!(until_answered(&second, "w0"), 1);
    assert_eq!(until_answered(&first, "w1"), 1);
    // What the first holds of before names nothing, and is taken for nothing new.
    let error = theirs.to_here_within(Duration::ZERO).unwrap_err();
    assert_eq!(error.reason(), catalogue::PEER_LOST);
    for number in 10..20_u32 {
        let value: RRef<u32> = second
            .remote("w0", "number", (number,))
            .expect("a reference");
        assert_eq!(value.to_here().expect("a value"), number);
        let own = RRef::new(&second, number);
        assert_eq!(
            second
                .rpc_sync::<u32>("w0", "read", (own,))
                .expect("a value"),
            number
        );
    }
    drop(theirs);
    assert!(shut_down(vec![first, second]).iter().all(Result::is_ok));
}

/// None of the pool has begun yet that could do the work instead.
#[test]
fn a_call_for_which_the_system_gives_no_thread_is_refused() {
    let agents = group(2, "threadless", &functions());
    let shared = agents[1].shared();
    shared.pool.is_starved.store(true, Ordering::Relaxed);
    let call = |number: u32| agents[0].rpc_sync::<u32>("w1", "number", (number,));
    let error = call(1).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_BUSY, "{error}");
    shared.pool.is_starved.store(false, Ordering::Relaxed);
    assert_eq!(call(2).expect("a thread"), 2);
    assert!(shut_down(agents).iter().all(Result::is_ok));
}
