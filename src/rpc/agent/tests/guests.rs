//! Guests: programs that call a worker and are no workers of its group.

use std::convert::Infallible;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};

use rendez::engine::OBSERVER_JOB;
use rendez::ground::Locked;

use super::*;
use crate::{Packer, RRef, Signature, Type, Unpacker, ValueError};

pub(super) fn guest(number: u32) -> Engine {
    let mut config = Config::new(format!(
        "/job:{OBSERVER_JOB}/task:{}",
        std::process::id() % 10_000 * 100 + number
    ));
    (config.shards, config.share_cores, config.listen) = (1, true, None);
    config.poll = rendez::drive::PollPolicy::Park;
    Engine::start(config).expect("an engine")
}

fn functions() -> Functions {
    Functions::new()
        .add("shout", |text: String, times: u32| {
            text.to_uppercase().repeat(times as usize)
        })
        .add("sum", |tensor: Tensor| {
            tensor
                .as_slice::<f32>()
                .map_or(0.0, |all| all.iter().sum::<f32>())
        })
        .add("who", || {
            Context::current().map(|context| context.caller_name())
        })
        .add("slow", || std::thread::sleep(Duration::from_secs(3600)))
        .add("keep", |number: u64| number)
}

pub(super) fn visit(engine: &Engine, worker: &Agent) -> Agent {
    let info = worker.worker();
    engine.add_peer(
        info.task.clone(),
        worker.engine().address().expect("it listens").clone(),
    );
    Agent::visit(engine, &info.task, None, LONG).expect("a guest")
}

#[test]
fn a_guest_calls_by_signature_and_its_group_does_not_know_it() {
    let agents = group(2, "guests", &functions());
    let engine = guest(0);
    let guest = visit(&engine, &agents[0]);
    let found = guest.signatures("w0").expect("signatures");
    let shout = found
        .iter()
        .find(|one| one.name() == "shout")
        .expect("it is there");
    assert_eq!(*shout.result(), Type::Plain("String".into()));
    let mut arguments = Packer::default();
    arguments.plain("ha").expect("written");
    arguments.plain(&3_u32).expect("written");
    let called = guest.call_by_signature("w0", shout, arguments, LONG);
    let mut result: Unpacker = called.expect("a result");
    assert_eq!(result.plain::<String>().expect("a text"), "HAHAHA");
    // Tensors travel as they always do.
    let tensor =
        Tensor::from_vec(vec![1.5_f32; 100_000], Shape::from([100_000])).expect("a tensor");
    assert_eq!(
        guest
            .rpc_sync::<f32>("w0", "sum", (tensor,))
            .expect("a sum"),
        150_000.0
    );
    let who: Option<String> = guest.rpc_sync("w0", "who", ()).expect("a name");
    assert!(who.expect("a call").starts_with("guest-"));
    assert_eq!(agents[0].workers().len(), 2);
    // Another comes after it on the same engine, and one beside it on another.
    guest.shutdown_local();
    let again = visit(&engine, &agents[0]);
    let (beside_engine, both) = (self::guest(1), &agents[0]);
    let beside = visit(&beside_engine, both);
    for one in [&again, &beside] {
        assert_eq!(
            one.rpc_sync::<u64>("w0", "keep", (7_u64,))
                .expect("a number"),
            7
        );
    }
    // The group leaves without asking them, and they are told.
    let slow = again.rpc_async::<()>("w0", "slow", ()).expect("a call");
    let waiting = agents[0].debug_info()["agent.server_active_calls"];
    assert!(waiting <= 1);
    assert!(shut_down(agents).iter().all(Result::is_ok));
    assert!(slow.wait().is_err());
    assert!(beside.rpc_sync::<u64>("w0", "keep", (7_u64,)).is_err());
}

#[test]
fn what_a_worker_knows_of_references_is_told() {
    let agents = group(2, "listing", &functions());
    let kept: RRef<u64> = agents[1]
        .remote("w0", "keep", (5_u64,))
        .expect("a reference");
    assert_eq!(kept.to_here().expect("a value"), 5);
    let engine = guest(2);
    let guest = visit(&engine, &agents[0]);
    let listed: Vec<ReferenceInfo> = guest
        .rpc_sync("w0", "rendez.references", ())
        .expect("a list");
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!((&*listed[0].owner, &*listed[0].state), ("w0", "made"));
    assert_eq!(listed[0].users.len(), 1);
    assert_eq!(listed[0].users[0].1, "w1");
    assert!(listed[0].age_ns > 0 && listed[0].age_ns < LONG.as_nanos() as u64);
    let there = agents[1].references().expect("a list");
    assert_eq!(
        (&*there[0].owner, &*there[0].state, there[0].handles),
        ("w0", "confirmed", 1)
    );
    assert_eq!(there[0].fork.as_ref(), Some(&listed[0].users[0].0));
    assert_eq!(there[0].rref, listed[0].rref);
    drop(kept);
    guest.shutdown_local();
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

#[test]
fn a_guest_that_dies_takes_what_is_its_own_along() {
    let agents = group(1, "dying", &functions());
    let engine = guest(3);
    let guest = visit(&engine, &agents[0]);
    let kept: RRef<u64> = guest.remote("w0", "keep", (5_u64,)).expect("a reference");
    assert_eq!(kept.to_here().expect("a value"), 5);
    assert_eq!(agents[0].debug_info()["num_owner_rrefs"], 1);
    engine.shutdown(Duration::ZERO);
    drop((kept, guest, engine));
    while agents[0].debug_info()["num_owner_rrefs"] > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

#[test]
fn who_visits_nobody_is_told() {
    let engines = engines(1, "nobody");
    let guest = guest(4);
    let task = engines[0].task().clone();
    guest.add_peer(
        task.clone(),
        engines[0].address().expect("it listens").clone(),
    );
    let error = Agent::visit(&guest, &task, None, LONG).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_WORKER);
    assert!(
        error.message().contains("no worker of remote calls"),
        "{error}"
    );
    let error = Agent::visit(&guest, &task, Some("other"), LONG).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_WORKER);
    assert!(error.message().contains("'other'"), "{error}");
}

/// The worker took the second visit for another life of the guest, and ended what the first had begun.
#[test]
fn a_visit_that_is_refused_leaves_the_one_before_alone() {
    let (functions, open) = held();
    let agents = group(2, "twice", &functions);
    let engine = guest(5);
    let guest = visit(&engine, &agents[0]);
    let call = guest.rpc_async_within::<u32>("w0", "held", (7_u32,), LONG);
    let call = call.expect("a call");
    let task = agents[0].worker().task;
    let error = Agent::visit(&engine, &task, None, LONG).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_GROUP);
    open();
    assert_eq!(call.wait(), Ok(7));
    drop(guest);
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

/// It heard what its worker's keys brought, in place of the worker.
#[test]
fn a_worker_of_the_group_is_no_guest_of_it() {
    let mut agents = group(2, "ownguest", &functions());
    let (other, agent) = (agents.pop().expect("two"), agents.pop().expect("two"));
    let engine = agent.engine().clone();
    agent.shutdown_local();

    let error = Agent::visit(&engine, &other.worker().task, None, LONG).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_GROUP, "{error}");
    assert!(error.message().contains("is no guest"), "{error}");
}

/// Each time it has another number for those that stay, and the same keys.
#[test]
fn a_worker_that_has_left_comes_again_as_a_guest_and_as_a_worker() {
    let engines = engines(2, "turns");
    let folder = tempfile::tempdir().expect("a folder");
    let join = |at: usize| {
        let options = Options::through_file(&folder.path().join("group"), None);
        let options = options.functions(functions());
        Agent::init(&engines[at], &format!("w{at}"), options).expect("an agent")
    };
    let is_well = |agent: &Agent| {
        for number in 0..4 {
            let kept: RRef<u64> = agent.remote("w1", "keep", (number,)).expect("a reference");
            assert_eq!(kept.to_here().expect("a value"), number);
        }
    };
    let (leaver, stays) = (join(0), join(1));
    while leaver.workers().len() < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    is_well(&leaver);
    let spans = [(); 3].map(|()| leaver.shared().fresh_span());
    leaver.shutdown(LONG).expect("it leaves");
    while stays.workers().len() > 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let guest = visit(&engines[0], &stays);
    is_well(&guest);
    guest.shutdown_local();
    let again = join(0);
    is_well(&again);
    // Nor has a span the number of one of its life before.
    assert!(!spans.contains(&again.shared().fresh_span()));
    for agent in [again, stays] {
        agent.shutdown(LONG).expect("it leaves");
    }
}

#[test]
fn a_function_that_only_its_signature_describes_is_called_as_any() {
    let signature = Signature::parse("pair(Tensor,u64,) -> (Tensor,u64,)").expect("a signature");
    let pair = |mut from: Unpacker| -> Result<Packer, ValueError> {
        let (tensor, number) = (from.tensor()?, from.plain::<u64>()?);
        from.end()?;
        if number == 0 {
            return Err(ValueError::new("zero is refused"));
        }
        let mut to = Packer::default();
        to.tensor(tensor)?;
        to.plain(&(number + 1))?;
        Ok(to)
    };
    let functions = Functions::new().add_raw(&signature, pair);
    let agents = group(2, "raw", &functions);
    let tensor = Tensor::from_vec(vec![1.0_f32; 1000], Shape::from([1000])).expect("a tensor");
    // By its types, which the caller knows; what stays is fetched as what travels comes.
    let (back, number): (Tensor, u64) = agents[0]
        .rpc_sync("w1", "pair", (tensor.clone(), 4_u64))
        .expect("a pair");
    assert_eq!((back.size(), number), (4000, 5));
    let kept: RRef<(Tensor, u64)> = agents[0]
        .remote("w1", "pair", (tensor.clone(), 6_u64))
        .expect("a reference");
    assert_eq!(kept.to_here().expect("a pair").1, 7);
    assert_eq!(kept.to_here().expect("a pair").1, 7);
    // By its signature, as the worker tells it; waited for, awaited, and given up.
    let told = agents[0].signatures("w1").expect("signatures");
    let start = |number: u64| {
        let mut arguments = Packer::default();
        arguments.tensor(tensor.clone()).expect("a tensor");
        arguments.plain(&number).expect("a number");
        agents[0].start_by_signature("w1", &told[0], arguments, LONG)
    };
    let read = |mut from: Unpacker| {
        from.tensor().expect("a tensor");
        from.plain::<u64>().expect("a number")
    };
    assert_eq!(read(start(1).expect("a call").wait().expect("a pair")), 2);
    let mut arguments = Packer::default();
    arguments.tensor(tensor.clone()).expect("a tensor");
    arguments.plain(&8_u64).expect("a number");
    let stays: RRef<()> = agents[0]
        .remote_by_signature("w1", &told[0], arguments, LONG)
        .expect("a reference");
    let fetched = stays.fetch_by_signature(&told[0], LONG).expect("a call");
    assert_eq!(read(fetched.wait().expect("a pair")), 9);
    drop(stays);
    let awaited = futures_lite::future::block_on(start(2).expect("a call"));
    assert_eq!(read(awaited.expect("a pair")), 3);
    let mut call = start(3).expect("a call");
    let unpacker = loop {
        match call.wait_for(Duration::from_millis(1)) {
            Ok(outcome) => break outcome.expect("a pair"),
            Err(later) => call = later,
        }
    };
    assert_eq!(read(unpacker), 4);
    let error = start(0).expect("a call").wait().unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_REMOTE_ERROR);
    assert!(error.message().contains("zero is refused"), "{error}");
    let wrong = agents[0].rpc_sync::<u64>("w1", "pair", (1_u64,));
    assert_eq!(wrong.unwrap_err().reason(), catalogue::RPC_ARGUMENTS);
    drop(kept);
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

/// Ends once as many as there are to be have begun.
async fn meet(left: &AtomicIsize) {
    left.fetch_sub(1, Ordering::SeqCst);
    while left.load(Ordering::SeqCst) > 0 {
        futures_lite::future::yield_now().await;
    }
}

#[test]
fn what_is_made_later_by_its_signature_or_stays_holds_no_thread() {
    const COUNT: usize = 20;
    let left = Arc::new(AtomicIsize::new(2 * COUNT as isize));
    let (raw, object) = (Arc::clone(&left), Arc::clone(&left));
    let signature = Signature::parse("raw() -> u64").expect("a signature");
    let functions = Functions::new()
        .add_raw_async(&signature, move |from: Unpacker| {
            let left = Arc::clone(&raw);
            async move {
                from.end()?;
                meet(&left).await;
                let mut to = Packer::default();
                to.plain(&5_u64)?;
                Ok::<_, ValueError>(to)
            }
        })
        .add_object_async("object", move || {
            let left = Arc::clone(&object);
            async move {
                meet(&left).await;
                Ok::<_, Infallible>(AtomicUsize::new(6))
            }
        });
    let agents = group_with(1, "later", |mut options| {
        options.threads = 1;
        options.functions(functions.clone())
    });
    let me = &agents[0];
    let objects: Vec<RRef<AtomicUsize>> = (0..COUNT)
        .map(|_| me.remote("w0", "object", ()).expect("a reference"))
        .collect();
    let calls = (0..COUNT).map(|_| me.rpc_async::<u64>("w0", "raw", ()).expect("a call"));
    let calls: Vec<_> = calls.collect();
    assert_eq!(wait_all(calls).expect("results"), [5; COUNT]);
    for object in &objects {
        let made = object.local_value().expect("it is here");
        assert_eq!(made.load(Ordering::SeqCst), 6);
    }
    let error = me.rpc_sync::<u64>("w0", "object", ()).unwrap_err();
    assert!(error.message().contains("with `remote`"), "{error}");
    let kept: RRef<u64> = me.remote("w0", "raw", ()).expect("a reference");
    assert_eq!(kept.to_here().expect("a value"), 5);
    drop((objects, kept));
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

#[test]
fn a_value_that_is_made_when_its_guest_has_gone_is_not_kept() {
    let (begin, begun) = std::sync::mpsc::channel::<()>();
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let late = move || {
        begin.send(()).expect("it is waited for");
        let _ = gate.lock().expect("a gate").recv();
        7_u64
    };
    let functions = functions().add("late", late);
    let agents = group(1, "left", &functions);
    let engine = guest(8);
    let guest = visit(&engine, &agents[0]);
    let kept: RRef<u64> = guest.remote("w0", "late", ()).expect("a reference");
    begun.recv_timeout(LONG).expect("it runs");
    guest.shutdown_local();
    drop(kept);
    let shared = agents[0].shared();
    let until = |is_it: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_it() && began.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(is_it());
    };
    until(&|| shared.guests.lock().expect("guests").is_empty());
    open.send(()).expect("it runs");
    until(&|| shared.ask(|view| view.running.is_empty()) == Some(true));
    assert!(shared.values.lock().expect("values").is_empty());
}

#[test]
fn no_guest_comes_to_a_worker_that_leaves() {
    let mut agents = group(2, "leaves", &functions());
    let engine = guest(9);
    // It has been there, and is dismissed.
    let before = visit(&engine, &agents[0]);
    let (stays, leaves) = (agents.pop().expect("two"), agents.pop().expect("two"));
    let (info, shared) = (leaves.worker(), Arc::clone(leaves.shared()));
    let leaving = std::thread::spawn(move || leaves.shutdown(LONG));
    while shared.ask(|view| view.node.is_leaving()) != Some(true) {
        std::thread::sleep(Duration::from_millis(1));
    }
    before.shutdown_local();
    let refused = Agent::visit(&engine, &info.task, None, LONG);
    let error = refused.expect_err("it would hold the others up");
    assert_eq!(error.reason(), catalogue::RPC_SHUTDOWN, "{error}");
    assert!(shared.guests.lock().expect("guests").is_empty());
    stays.shutdown(LONG).expect("all leave");
    leaving.join().expect("no panic").expect("all leave");
}

/// The desk looks at the workers while it has the guests: who waits for the guests must not hold the workers.
#[test]
fn who_asks_for_the_name_of_a_guest_holds_no_list_of_workers() {
    let agents = group(1, "names", &functions());
    let shared = agents[0].shared();
    let guests = shared.guests.locked();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| shared.name_of(WorkerId(9)));
        std::thread::sleep(Duration::from_millis(200));
        let is_free = shared.workers.try_write().is_ok();
        drop(guests);
        assert_eq!(asks.join().expect("no panic"), "9");
        assert!(is_free);
    });
    assert!(shut_down(agents).iter().all(Result::is_ok));
}
