//! Observers hear of each leg that ends before it left, once, and of no other.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use super::devices::on_device;
use super::*;
use crate::agent::context::in_shard;
use crate::agent::faulty::MessageKind;
use crate::{Faulty, Leg, Observer, RRef};

/// Gives each leg a header of its own, and notes those that did not leave.
#[derive(Default)]
struct Watcher {
    given: Mutex<BTreeMap<Vec<u8>, String>>,
    unsent: Mutex<Vec<String>>,
}

fn name_of(leg: Leg<'_>) -> String {
    let way = if leg.is_reply { "reply" } else { "request" };
    format!("{way} {} {}->{}", leg.function, leg.me, leg.peer)
}

impl Observer for Watcher {
    fn sent(&self, leg: Leg<'_>, _: &[Tensor]) -> Result<Option<Vec<u8>>, crate::ValueError> {
        let mut given = self.given.lock().expect("no panic");
        let header = format!("header {}", given.len()).into_bytes();
        given.insert(header.clone(), name_of(leg));
        Ok(Some(header))
    }

    fn unsent(&self, leg: Leg<'_>, header: &[u8]) {
        let given = self.given.lock().expect("no panic");
        let name = match given.get(header) {
            Some(name) if *name == name_of(leg) => name.clone(),
            other => format!("{} with the header of {other:?}", name_of(leg)),
        };
        self.unsent.lock().expect("no panic").push(name);
    }
}

impl Watcher {
    /// What has been told since this was asked last.
    fn told(&self) -> Vec<String> {
        std::mem::take(&mut self.unsent.lock().expect("no panic"))
    }

    /// The same, once something has been told.
    fn told_soon(&self) -> Vec<String> {
        while self.unsent.lock().expect("no panic").is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.told()
    }
}

fn watched(
    count: usize,
    test: &str,
    set: impl Fn(Options) -> Options + Sync,
) -> (Vec<Agent>, Arc<Watcher>) {
    let watcher = Arc::<Watcher>::default();
    let set = |options| set(options).observer(Arc::clone(&watcher) as Arc<dyn Observer>);
    (group_with(count, test, set), watcher)
}

/// What the workers of these tests can be called for, and whether `patient` has begun.
fn functions() -> (Functions, Arc<AtomicBool>) {
    let begun: Arc<AtomicBool> = Arc::default();
    let begins = Arc::clone(&begun);
    let patient = move || {
        begins.store(true, Ordering::Release);
        let context = Context::current().expect("it is called");
        while !context.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        1_u32
    };
    let functions = Functions::new()
        .add("same", |value: u32| value)
        .add_in_shard("double", |value: u32| 2 * value)
        .add("size", |tensor: Tensor| tensor.size() as u64)
        .add("value", |value: RRef<u32>| value.to_here())
        .add("made", |bytes: u64| on_device(bytes))
        .add("patient", patient);
    (functions, begun)
}

#[test]
fn a_call_that_ends_before_it_leaves_is_told_once() {
    let (held, open) = held();
    let functions = functions().0.and(held);
    let (mut agents, watcher) = watched(3, "unsent", |mut options| {
        (options.window, options.waiting) = (1, 1);
        options.functions(functions.clone())
    });
    let (agent, other) = (agents[0].clone(), agents[2].clone());
    let reason = |outcome: Result<u32, Error>| outcome.unwrap_err().reason();
    let waits = |timeout| agent.rpc_async_within::<u32>("w1", "held", (1_u32,), timeout);
    let waits = |timeout| waits(timeout).expect("it sets out");
    let (under_way, waiting) = (waits(Duration::ZERO), waits(Duration::ZERO));
    let busy = agent.rpc_sync("w1", "same", (1_u32,));
    assert_eq!(reason(busy), catalogue::RPC_BUSY);
    assert_eq!(watcher.told(), ["request same 0->1"]);
    waiting.cancel();
    assert_eq!(reason(waiting.wait()), catalogue::RPC_CANCELLED);
    assert_eq!(watcher.told(), ["request held 0->1"]);
    let late = waits(Duration::from_millis(20));
    assert_eq!(reason(late.wait()), catalogue::RPC_TIMEOUT);
    assert_eq!(watcher.told(), ["request held 0->1"]);
    // What it carries cannot go.
    let far = agent.rpc_sync::<u64>("w2", "size", (on_device(8),));
    assert_eq!(far.unwrap_err().reason(), catalogue::TENSOR_DEVICE);
    assert_eq!(watcher.told(), ["request size 0->2"]);
    let foreign = RRef::new(&other, 7_u32);
    let refused = agent.rpc_sync("w1", "value", (foreign.clone(),));
    assert_eq!(reason(refused), catalogue::RPC_REFERENCE);
    assert_eq!(watcher.told(), ["request value 0->1"]);
    // Its thread may not wait.
    let refused = in_shard(|| agent.rpc_sync("w2", "same", (1_u32,)));
    assert_eq!(reason(refused), catalogue::WAIT_IN_SHARD);
    assert_eq!(watcher.told(), ["request same 0->2"]);
    // Its worker is lost while it waits, and before it is made. The one that was under way may have been carried out.
    let waiting = agent.rpc_async::<u32>("w1", "same", (1_u32,));
    let waiting = waiting.expect("it sets out");
    agents.remove(1).shutdown_local();
    assert!(under_way.wait().is_err() && waiting.wait().is_err());
    assert!(agent.rpc_sync::<u32>("w1", "same", (1_u32,)).is_err());
    let requests = || {
        let told = watcher.told();
        told.into_iter().filter(|name| name.starts_with("request"))
    };
    assert!(requests().eq(["request same 0->1", "request same 0->1"]));
    open();
    // This worker has left.
    agents.remove(0).shutdown_local();
    let refused = agent.rpc_sync("w2", "same", (1_u32,));
    assert_eq!(reason(refused), catalogue::RPC_SHUTDOWN);
    assert!(requests().eq(["request same 0->2"]));
}

#[test]
fn an_answer_that_ends_before_it_leaves_is_told_once() {
    let (functions, begun) = functions();
    let kept: Arc<OnceLock<RRef<u32>>> = Arc::default();
    let given = Arc::clone(&kept);
    let foreign = move || given.get().expect("it is set").clone();
    let functions = functions.add("foreign", foreign);
    let (agents, watcher) = watched(2, "unanswered", |options| {
        options.functions(functions.clone())
    });
    let far = agents[0].rpc_sync::<Tensor>("w1", "made", (8_u64,));
    assert!(far.is_err());
    assert_eq!(watcher.told(), ["reply made 1->0"]);
    let reference = kept.get_or_init(|| RRef::new(&agents[0], 7_u32));
    let error = agents[0].rpc_sync::<RRef<u32>>("w1", "foreign", ());
    assert!(
        error
            .unwrap_err()
            .message()
            .contains("belongs to another agent")
    );
    assert_eq!(watcher.told(), ["reply foreign 1->0"]);
    // The reference belongs to the functions: it is the last that goes.
    assert_eq!(reference.to_here(), Ok(7));
    // Its caller has given it up.
    give_up(&agents[0], &begun);
    assert_eq!(watcher.told_soon(), ["reply patient 1->0"]);
}

/// Calls a function that runs until its caller gives it up, which it does.
fn give_up(agent: &Agent, begun: &AtomicBool) {
    let call = agent.rpc_async::<u32>("w1", "patient", ());
    let call = call.expect("it sets out");
    while !begun.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
    call.cancel();
    assert_eq!(call.wait().unwrap_err().reason(), catalogue::RPC_CANCELLED);
}

#[test]
fn a_leg_that_may_have_reached_the_other_end_is_not_told() {
    let (functions, begun) = functions();
    // The first call is lost on its way.
    let faults = Faulty::new(1).drop_first(&[MessageKind::Call], 1);
    let (agents, watcher) = watched(2, "posted", |options| {
        options.functions(functions.clone()).faulty(faults.clone())
    });
    let agent = agents[0].clone();
    let lost = agent.rpc_async_within::<u32>("w1", "same", (1_u32,), Duration::from_millis(50));
    let lost = lost.expect("it sets out").wait();
    assert_eq!(lost.unwrap_err().reason(), catalogue::RPC_TIMEOUT);
    for to in ["w0", "w1"] {
        for function in ["same", "double", "none"] {
            let answer = agent.rpc_sync::<u32>(to, function, (1_u32,));
            assert_eq!(answer.is_ok(), function != "none", "{answer:?}");
        }
        let kept = agent.remote::<u32>(to, "same", (3_u32,));
        assert_eq!(kept.expect("a reference").to_here(), Ok(3));
    }
    let own = agent.remote::<u32>("w0", "same", (4_u32,));
    let own = own.expect("a reference").local_value();
    assert_eq!(own.map(|own| *own), Ok(4));
    give_up(&agent, &begun);
    drop(agent);
    assert!(shut_down(agents).iter().all(Result::is_ok));
    // The answer that its caller has given up.
    assert_eq!(watcher.told(), ["reply patient 1->0"]);
}

/// Panics when it hears of a leg that did not leave.
struct Falls;

impl Observer for Falls {
    fn sent(&self, _: Leg<'_>, _: &[Tensor]) -> Result<Option<Vec<u8>>, crate::ValueError> {
        Ok(Some(vec![1]))
    }

    fn unsent(&self, _: Leg<'_>, _: &[u8]) {
        panic!("it fell");
    }
}

#[test]
fn an_observer_that_panics_then_ends_nothing() {
    let set = |options: Options| options.functions(functions().0).observer(Arc::new(Falls));
    let agents = group_with(2, "unsent_falls", set);
    let far = agents[0].rpc_sync::<u64>("w1", "size", (on_device(8),));
    assert_eq!(far.unwrap_err().reason(), catalogue::TENSOR_DEVICE);
    assert_eq!(agents[0].rpc_sync::<u32>("w1", "same", (1_u32,)), Ok(1));
    assert!(shut_down(agents).iter().all(Result::is_ok));
}
