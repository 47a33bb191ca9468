//! Groups that meet through a file.

use rendez::control::Address;
use rendez::ground::TaskName;

use super::*;
use crate::agent::store::Store;

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

/// No worker waits for the others between two rounds.
#[test]
fn a_static_group_meets_through_a_file_again_and_again_though_its_workers_leave_one_by_one() {
    let (engines, folder) = (engines(2, "rounds"), folder());
    let path = &folder.path().join("group");
    std::thread::scope(|scope| {
        for (at, engine) in engines.iter().enumerate() {
            scope.spawn(move || {
                for round in 0..20 {
                    let options = Options::through_file(path, Some(2)).functions(one());
                    let agent = Agent::init(engine, &format!("w{at}"), options);
                    let agent = agent.unwrap_or_else(|error| panic!("{at}, {round}: {error}"));
                    agent.shutdown(LONG).expect("it leaves");
                }
            });
        }
    });
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

/// A worker of a group that no engine has.
fn member(at: usize) -> (String, TaskName, Address) {
    let task = TaskName::parse(&format!("/job:store/task:{at}")).expect("a name");
    let address = format!("127.0.0.1:{}", 4_000 + at);
    (format!("w{at}"), task, address.parse().expect("an address"))
}

#[test]
fn a_worker_joins_though_another_that_it_has_not_heard_leaves_meanwhile() {
    let (engines, folder) = (engines(1, "leaver"), folder());
    let path = folder.path().join("group");
    let store = Store::new(&path, None);
    let (name, task, address) = member(7);
    store.join(&name, &task, &address).expect("it joins");
    let options = Options {
        init_timeout: Duration::from_secs(10),
        ..Options::through_file(&path, None).functions(one())
    };
    std::thread::scope(|scope| {
        let joiner = scope.spawn(|| Agent::init(&engines[0], "w0", options));
        while !joiner.is_finished() && store.members().expect("whole").len() < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // It has read who is there, and waits for the other.
        std::thread::sleep(Duration::from_millis(200));
        assert!(!joiner.is_finished());
        store.leave().expect("it leaves");
        let agent = joiner.join().expect("no panic").expect("an agent");
        agent.shutdown(LONG).expect("it leaves");
    });
}

/// It was killed, and its line stays in the file.
#[test]
fn a_worker_joins_though_another_is_dead() {
    let folder = folder();
    let path = folder.path().join("group");
    let (name, task, address) = member(8);
    let store = Store::new(&path, None);
    store.join(&name, &task, &address).expect("it joins");
    let impatient = |config: &mut Config| config.connect_timeout = Duration::from_millis(300);
    let task = format!("/job:survivor_{}/task:0", std::process::id());
    let engine = engine_with(&task, impatient);
    let options = Options::through_file(&path, None).functions(one());
    let agent = Agent::init(&engine, "w0", options).expect("an agent");
    let error = agent.rpc_sync::<u32>("w8", "one", ()).unwrap_err();
    assert_eq!(error.reason(), catalogue::CONNECT_DEADLINE, "{error}");
    agent.shutdown(LONG).expect("it leaves");
}

#[test]
fn a_local_shutdown_takes_a_worker_out_of_the_file_though_a_handle_is_kept() {
    let (engines, folder) = (engines(1, "kept"), folder());
    let path = folder.path().join("group");
    let options = Options::through_file(&path, None).functions(one());
    let agent = Agent::init(&engines[0], "w0", options).expect("an agent");
    let kept = agent.clone();
    agent.shutdown_local();
    let members = Store::new(&path, None).members().expect("a whole file");
    assert!(members.is_empty(), "{members:?}");
    drop(kept);
}

/// It was held up while it left, and another life of it has its place.
#[test]
fn a_life_that_is_over_takes_the_next_out_of_no_file() {
    let folder = folder();
    let path = folder.path().join("group");
    for size in [None, Some(1)] {
        let (former, next) = (Store::new(&path, size), Store::new(&path, size));
        let (name, task, address) = member(1);
        let id = former.join(&name, &task, &address).expect("it joins");
        let (_, _, elsewhere) = member(2);
        let again = next.join(&name, &task, &elsewhere).expect("it joins");
        assert_eq!(again, id);
        former.leave().expect("it leaves");
        let members = next.members().expect("a whole file");
        assert_eq!(members[&id].1, elsewhere);
        next.leave().expect("it leaves");
        assert!(next.members().expect("a whole file").is_empty());
    }
}

/// Names the file that the process of the test below joins and leaves again and again.
const WRITES: &str = "RENDEZ_RPC_STORE_WRITES";

#[test]
fn joins_and_leaves_until_it_is_killed() {
    let Ok(path) = std::env::var(WRITES) else {
        return;
    };
    let store = Store::new(path.as_ref(), None);
    for at in (1..60).cycle() {
        let (name, task, address) = member(at);
        store.join(&name, &task, &address).expect("it joins");
        if at % 2 == 0 {
            store.leave().expect("it leaves");
        }
    }
}

/// Kills a process at a time that no write knows of, again and again.
#[test]
fn a_process_that_is_killed_in_the_middle_of_a_change_leaves_a_file_for_the_others() {
    let folder = folder();
    let path = folder.path().join("group");
    let store = Store::new(&path, None);
    let (name, task, address) = member(0);
    let id = store.join(&name, &task, &address).expect("it joins");
    for kill in 0..12 {
        let mut writer = std::process::Command::new(std::env::current_exe().expect("a path"))
            .args([
                "--exact",
                "agent::tests::store::joins_and_leaves_until_it_is_killed",
            ])
            .env(WRITES, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("a process");
        let before = std::fs::read(&path).expect("a file");
        let until = std::time::Instant::now() + LONG;
        while std::fs::read(&path).expect("a file") == before {
            assert!(std::time::Instant::now() < until, "it writes nothing");
        }
        // Wherever it is now.
        (0..kill * 7).for_each(|_| assert!(store.members().expect("whole").contains_key(&id)));
        writer.kill().expect("killed");
        writer.wait().expect("it ended");
        let members = store.members().expect("a whole file");
        assert_eq!(members[&id].0.name, "w0");
        // Nothing of the dead holds the others up, and numbers go on.
        let (name, task, address) = member(100 + kill);
        let new = store.join(&name, &task, &address).expect("it joins");
        assert!(!members.contains_key(&new), "{new} is another's");
        store.leave().expect("it leaves");
    }
}

#[test]
fn a_file_that_is_torn_is_refused_and_stays_as_it_is() {
    let folder = folder();
    let path = folder.path().join("group");
    let store = Store::new(&path, None);
    for at in 0..3 {
        let (name, task, address) = member(at);
        store.join(&name, &task, &address).expect("it joins");
    }
    let whole = std::fs::read(&path).expect("a file");
    for end in 1..whole.len() {
        std::fs::write(&path, &whole[..end]).expect("a file");
        let (name, task, address) = member(9);
        for error in [
            store.members().unwrap_err(),
            store.join(&name, &task, &address).unwrap_err(),
        ] {
            assert_eq!(error.reason(), catalogue::RPC_STORE, "{end}: {error}");
            assert!(error.message().contains("group"), "{end}: {error}");
        }
        assert_eq!(std::fs::read(&path).expect("a file"), whole[..end]);
    }
    // A write that never reached the disk.
    std::fs::write(&path, vec![0; whole.len()]).expect("a file");
    let error = store.members().unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_STORE);
    std::fs::write(&path, &whole).expect("a file");
    assert_eq!(store.members().expect("a whole file").len(), 3);
    // One that is gone, or empty, is a group that begins.
    std::fs::write(&path, "").expect("a file");
    assert_eq!(store.members().expect("an empty file").len(), 0);
    std::fs::remove_file(&path).expect("a file");
    assert_eq!(store.members().expect("no file").len(), 0);
}

/// One that waits for the lock of a file that is replaced meanwhile changes the new file.
#[test]
fn no_join_is_lost_when_many_join_and_leave_at_once() {
    let folder = folder();
    let path = folder.path().join("group");
    std::thread::scope(|scope| {
        for at in 0..8 {
            let path = &path;
            scope.spawn(move || {
                let store = Store::new(path, None);
                let (name, task, address) = member(at);
                for _ in 0..10 {
                    let id = store.join(&name, &task, &address).expect("it joins");
                    let members = store.members().expect("a whole file");
                    assert_eq!(members[&id].0.name, name);
                    store.leave().expect("it leaves");
                }
                store.join(&name, &task, &address).expect("it joins");
            });
        }
    });
    let members = Store::new(&path, None).members().expect("a whole file");
    let names: Vec<&str> = members.values().map(|(info, _)| &*info.name).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7"]);
}

/// Nothing says by which of its addresses others reach the machine: a worker that dialled `0.0.0.0` would dial itself.
#[test]
fn an_engine_that_listens_everywhere_is_not_met_through_a_file() {
    let (engines, folder) = (engines_everywhere(1, "fileeverywhere"), folder());
    let options = Options::through_file(&folder.path().join("group"), Some(1)).functions(one());
    let error = Agent::init(&engines[0], "w0", options).unwrap_err();
    assert_eq!(error.reason(), "CONTROL_ADDRESS", "{error}");
    assert!(error.to_string().contains("`listen`"), "{error}");
}
