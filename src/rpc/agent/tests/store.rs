//! Groups that meet through a file.

use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn one() -> Functions {
    Functions::new().add_in_shard("one", || 1_u32)
}

#[test]
fn a_static_group_meets_through_a_file_and_again() {
    let (engines, folder) = (engines(3, "file"), folder());
    let path = folder.path().join("group");
    for _ in 0..2 {
        let agents: Vec<Agent> = std::thread::scope(|scope| {
            let join = |(at, engine)| {
                let options = Options::through_file(&path, Some(3)).functions(one());
                scope.spawn(move || Agent::init(engine, &format!("w{at}"), options))
            };
            let threads: Vec<_> = engines.iter().enumerate().map(join).collect();
            threads
                .into_iter()
                .map(|one| one.join().expect("no panic").expect("an agent"))
                .collect()
        });
        for agent in &agents {
            for to in ["w0", "w1", "w2"] {
                assert_eq!(agent.rpc_sync::<u32>(to, "one", ()).expect("a result"), 1);
            }
        }
        assert!(shut_down(agents).iter().all(Result::is_ok));
    }
}

#[test]
fn workers_of_a_dynamic_group_come_and_go_also_the_first() {
    let (engines, folder) = (engines(3, "dynamic"), folder());
    let path = folder.path().join("group");
    let join = |at: usize| {
        let options = Options::through_file(&path, None).functions(one());
        Agent::init(&engines[at], &format!("w{at}"), options).expect("an agent")
    };
    let call = |agent: &Agent, to: &str| agent.rpc_sync::<u32>(to, "one", ()).expect("a result");
    let first = join(0);
    let second = join(1);
    assert_eq!((call(&first, "w1"), call(&second, "w0")), (1, 1));
    first.shutdown(LONG).expect("it leaves");
    let third = join(2);
    assert_eq!((call(&second, "w2"), call(&third, "w1")), (1, 1));
    let error = third.rpc_sync::<u32>("w0", "one", ()).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_WORKER);
    let first = join(0);
    assert_eq!((call(&first, "w2"), call(&third, "w0")), (1, 1));
    for agent in [second, first, third] {
        agent.shutdown(LONG).expect("it leaves");
    }
}

#[test]
fn a_group_does_not_mix_both_and_a_file_that_is_none_is_named() {
    let (engines, folder) = (engines(2, "mixed"), folder());
    let path = folder.path().join("group");
    let dynamic =
        Agent::init(&engines[0], "w0", Options::through_file(&path, None)).expect("an agent");
    let error = Agent::init(&engines[1], "w1", Options::through_file(&path, Some(2))).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_GROUP);
    assert_eq!(
        error.message(),
        "RPC group mixes statically and dynamically initialized members which is not supported."
    );
    let error = Agent::init(&engines[1], "w0", Options::through_file(&path, None)).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_NAME);
    dynamic.shutdown(LONG).expect("it leaves");
    let other = folder.path().join("other");
    std::fs::write(&other, "something else\n").expect("a file");
    let error = Agent::init(&engines[1], "w1", Options::through_file(&other, None)).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_STORE);
    assert!(error.message().contains("line 1"), "{error}");
    let mut alone = Options::through_file(&folder.path().join("alone"), Some(2));
    alone.init_timeout = Duration::from_millis(50);
    let error = Agent::init(&engines[1], "w1", alone).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_INIT);
}
