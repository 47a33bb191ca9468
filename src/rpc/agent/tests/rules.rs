//! Rules of calls and references as programs meet them: no limit, chaining, one round trip, what an error brings.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use super::*;
use crate::agent::context::in_shard;
use crate::{Leg, Observer};

#[test]
fn a_timeout_of_zero_is_no_limit_and_one_of_its_own_is_obeyed() {
    let (functions, open) = held();
    let short = Duration::from_millis(30);
    let set = |options: Options| options.functions(functions.clone()).timeout(short);
    let agents = group_with(2, "no_limit", set);
    let without = agents[0].rpc_async_within::<u32>("w1", "held", (1_u32,), Duration::ZERO);
    let own = agents[0].rpc_async_within::<u32>("w1", "held", (2_u32,), LONG);
    let usual = agents[0].rpc_async::<u32>("w1", "held", (3_u32,));
    let error = usual.expect("a call").wait().unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_TIMEOUT);
    let (without, own) = (without.expect("a call"), own.expect("a call"));
    assert!(!without.is_done() && !own.is_done());
    open();
    assert_eq!((without.wait(), own.wait()), (Ok(1), Ok(2)));
}

#[test]
fn a_fetch_of_an_own_value_has_its_time_too() {
    let (functions, open) = held();
    let agents = group(1, "own_fetch", &functions);
    let value: RRef<u32> = agents[0]
        .remote("w0", "held", (6_u32,))
        .expect("a reference");
    let error = value.to_here_within(Duration::from_millis(10)).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_TIMEOUT);
    open();
    assert_eq!(value.to_here_within(Duration::ZERO).expect("a value"), 6);
    assert_eq!(*value.local_value().expect("a value"), 6);
}

#[test]
fn what_follows_from_a_call_is_chained_to_its_end() {
    let (functions, open) = held();
    let functions = functions.add("fails", || Err::<u32, _>("not today"));
    let agents = group(2, "chain", &functions);
    let (tell, told) = channel();
    for (function, number) in [("held", 5_u32), ("fails", 0)] {
        let call = match function {
            "held" => agents[0].rpc_async::<u32>("w1", "held", (number,)),
            _ => agents[0].rpc_async::<u32>("w1", "fails", ()),
        };
        let tell = tell.clone();
        call.expect("a call").then(move |outcome| {
            tell.send((function, outcome)).expect("the channel is open");
        });
    }
    let (function, outcome) = told.recv_timeout(LONG).expect("the first end");
    assert_eq!(function, "fails");
    assert!(outcome.unwrap_err().message().contains("not today"));
    open();
    let (function, outcome) = told.recv_timeout(LONG).expect("the second end");
    assert_eq!((function, outcome), ("held", Ok(5)));
}

#[test]
fn an_error_brings_where_it_happened_if_that_is_captured() {
    let functions = Functions::new().add("fails", || Err::<(), _>("not today"));
    let agents = group(2, "backtrace", &functions);
    let error = agents[0].rpc_sync::<()>("w1", "fails", ()).unwrap_err();
    let captured = std::backtrace::Backtrace::capture().status();
    assert_eq!(
        error.backtrace().is_some(),
        captured == std::backtrace::BacktraceStatus::Captured
    );
}

/// Counts the requests that come to a worker.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Observer for Counter {
    fn receiving(&self, leg: Leg<'_>, _: Option<&[u8]>, _: &[Tensor]) {
        self.0
            .fetch_add(usize::from(!leg.is_reply), Ordering::SeqCst);
    }
}

#[test]
fn the_first_call_through_a_reference_is_one_request_and_no_other() {
    let counter: Arc<Counter> = Arc::default();
    let functions = Functions::new()
        .add("number", |number: u32| number)
        .add("add", |to: RRef<u32>, by: u32| -> Result<u32, Error> {
            Ok(*to.local_value()? + by)
        });
    let set = |options: Options| {
        options
            .functions(functions.clone())
            .observer(Arc::clone(&counter) as Arc<dyn Observer>)
    };
    let agents = group_with(2, "proxy", set);
    let number: RRef<u32> = agents[0]
        .remote("w1", "number", (40_u32,))
        .expect("a reference");
    assert_eq!(number.to_here().expect("a value"), 40);
    let before = counter.0.load(Ordering::SeqCst);
    assert_eq!(number.rpc_sync::<u32>("add", (2_u32,)).expect("a sum"), 42);
    assert_eq!(counter.0.load(Ordering::SeqCst) - before, 1);
    let call = number.rpc_async::<u32>("add", (3_u32,)).expect("a call");
    assert_eq!(call.wait().expect("a sum"), 43);
    assert_eq!(counter.0.load(Ordering::SeqCst) - before, 2);
    let kept: RRef<u32> = number.remote("add", (4_u32,)).expect("a reference");
    assert_eq!(kept.to_here().expect("a sum"), 44);
    assert_eq!(
        counter.0.load(Ordering::SeqCst) - before,
        4,
        "the call, and the fetch of its result"
    );
}

#[test]
fn an_argument_that_cannot_be_read_is_an_error_of_that_call_only() {
    /// Says that it is a number, and is two.
    struct Liar;
    impl crate::Value for Liar {
        fn name(to: &mut String) {
            to.push_str("u32");
        }

        fn put(&self, to: &mut crate::Packer) -> Result<(), crate::ValueError> {
            to.plain(&1_u32)?;
            to.plain(&2_u32)
        }

        fn take(_: &mut crate::Unpacker) -> Result<Self, crate::ValueError> {
            Ok(Self)
        }
    }
    let functions = Functions::new().add("number", |number: u32| number);
    let agents = group(2, "liar", &functions);
    let error = agents[0]
        .rpc_sync::<u32>("w1", "number", (Liar,))
        .unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_ARGUMENTS);
    assert_eq!(
        agents[0]
            .rpc_sync::<u32>("w1", "number", (3_u32,))
            .expect("the next"),
        3
    );
}

#[test]
fn the_defaults_are_those_of_pytorch() {
    let options = Options::of_workers([]);
    assert_eq!(options.timeout, Duration::from_secs(60));
    assert_eq!(options.threads, 16);
    assert!(!options.refuse_leaks);
}

#[test]
fn a_value_of_another_type_is_refused_by_name() {
    let functions = Functions::new()
        .add("number", |number: u32| number)
        .add("text", |text: RRef<String>| -> Result<u64, Error> {
            Ok(text.local_value()?.len() as u64)
        });
    let agents = group(2, "types", &functions);
    let number: RRef<u32> = agents[0]
        .remote("w1", "number", (40_u32,))
        .expect("a reference");
    let error = number.rpc_sync::<u64>("text", ()).unwrap_err();
    assert!(error.message().contains("String"), "{error}");
    // Nor does it come as what it is not.
    let wrong: RRef<String> = agents[0]
        .remote("w1", "number", (40_u32,))
        .expect("a reference");
    assert_eq!(
        wrong.to_here().unwrap_err().reason(),
        catalogue::RPC_ARGUMENTS
    );
}

#[test]
fn a_name_with_a_dash_is_one_name_in_the_store() {
    let engines = engines(2, "dashes");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("group");
    let functions = Functions::new().add_in_shard("one", || 1_u32);
    let join = |at: usize, name: &str| {
        let options = Options::through_file(&path, None).functions(functions.clone());
        Agent::init(&engines[at], name, options).expect("an agent")
    };
    let (first, second) = (join(0, "a"), join(1, "a-0"));
    let call = |agent: &Agent, to: &str| agent.rpc_sync::<u32>(to, "one", ()).expect("a result");
    assert_eq!((call(&second, "a"), call(&second, "a-0")), (1, 1));
    assert_eq!(second.worker().name, "a-0");
    for agent in [second, first] {
        agent.shutdown(LONG).expect("it leaves");
    }
}

/// The worker stayed in the file: each that came afterwards waited for it.
#[test]
fn a_start_on_a_shard_that_is_not_there_leaves_no_worker_in_the_file() {
    let engines = engines(2, "noshard");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("group");
    let mut options = Options::through_file(&path, None);
    options.shard = 7;
    Agent::init(&engines[0], "a", options).expect_err("there is no such shard");
    let options = Options::through_file(&path, None);
    let agent = Agent::init(&engines[1], "b", options).expect("it waits for no other");
    assert_eq!(agent.workers().len(), 1);
    agent.shutdown(LONG).expect("it leaves");
}

/// Panics when a request of that function is read.
struct Clumsy;

impl Observer for Clumsy {
    fn receiving(&self, leg: Leg<'_>, _: Option<&[u8]>, _: &[Tensor]) {
        assert!(leg.is_reply || leg.function.starts_with("good"), "it fell");
    }
}

#[test]
fn a_panic_of_an_observer_ends_its_call_and_nothing_else() {
    let functions = Functions::new()
        .add("bad", || 1_u32)
        .add_in_shard("bad_in_shard", || 1_u32)
        .add_async("bad_later", || async { 1_u32 })
        .add("good", || Context::current().is_some())
        .add_in_shard("good_in_shard", || Context::current().is_some());
    let set = |options: Options| {
        options
            .functions(functions.clone())
            .observer(Arc::new(Clumsy))
    };
    let agents = group_with(2, "clumsy", set);
    for function in ["bad", "bad_in_shard", "bad_later"] {
        let error = agents[0].rpc_sync::<u32>("w1", function, ()).unwrap_err();
        assert_eq!(error.reason(), catalogue::RPC_REMOTE_PANIC, "{function}");
    }
    for function in ["good", "good_in_shard"] {
        assert_eq!(agents[0].rpc_sync::<bool>("w1", function, ()), Ok(true));
    }
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

#[test]
fn an_agent_does_not_begin_where_it_may_not_wait_nor_in_a_group_of_a_name_that_is_none() {
    let engines = engines(2, "begins");
    let begin = |group: &str| {
        let mut options = Options::of_workers(workers(&engines));
        (options.group, options.init_timeout) = (group.into(), Duration::from_millis(500));
        Agent::init(&engines[0], "w0", options)
    };
    let visit = |group: &str| {
        let patience = Duration::from_millis(500);
        Agent::visit(&engines[0], engines[1].task(), Some(group), patience)
    };
    let address = engines[1].address().expect("it listens");
    engines[0].add_peer(engines[1].task().clone(), address.clone());
    let within = |does: &dyn Fn() -> Result<Agent, Error>| in_shard(does).unwrap_err();
    for error in [within(&|| begin("rpc")), within(&|| visit("rpc"))] {
        assert_eq!(error.reason(), catalogue::WAIT_IN_SHARD, "{error}");
    }
    let long = "x".repeat(2000);
    for group in ["train;1", &long] {
        for error in [begin(group).unwrap_err(), visit(group).unwrap_err()] {
            assert_eq!(error.reason(), catalogue::RPC_GROUP, "{error}");
            assert!(error.message().contains(&group[..7]), "{error}");
        }
    }
}
