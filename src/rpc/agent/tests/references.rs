//! References between agents.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::WorkerId;

/// Something that cannot travel, and counts its ends.
struct Counter {
    count: std::sync::Mutex<u32>,
    ends: Arc<AtomicUsize>,
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.ends.fetch_add(1, Ordering::SeqCst);
    }
}

fn functions(ends: &Arc<AtomicUsize>) -> Functions {
    let ends = Arc::clone(ends);
    Functions::new()
        .add_object("counter", move |from: u32| {
            Ok::<_, Infallible>(Counter {
                count: std::sync::Mutex::new(from),
                ends: Arc::clone(&ends),
            })
        })
        .add(
            "count",
            |counter: RRef<Counter>, by: u32| -> Result<u32, Error> {
                let counter = counter.local_value()?;
                let mut count = counter.count.lock().expect("no panic");
                *count += by;
                Ok(*count)
            },
        )
        .add("sum", |values: Vec<f32>| values.iter().sum::<f32>())
        .add("fails", || Err::<u32, _>("no counter today"))
        .add("pass", |sum: RRef<f32>| sum)
        .add("look", |sum: RRef<f32>| sum.to_here())
        .add(
            "pass_to",
            |to: String, sum: RRef<f32>| -> Result<f32, Error> {
                let agent = Context::current().expect("in a call").agent();
                agent.rpc_sync(&to, "look", (sum,))
            },
        )
}

/// Waits until worker `agent` keeps no value, and knows of no share.
fn is_empty(agent: &Agent) -> bool {
    let began = std::time::Instant::now();
    while began.elapsed() < LONG {
        let info = agent.debug_info();
        if info["num_owner_rrefs"] == 0 && info["num_forks"] == 0 && info["num_pending_users"] == 0
        {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

#[test]
fn a_value_stays_at_its_owner_and_comes_when_it_is_wanted() {
    let agents = group(2, "to_here", &functions(&Arc::default()));
    let sum: RRef<f32> = agents[0]
        .remote("w1", "sum", (vec![1.0_f32, 2.0],))
        .expect("a reference");
    assert_eq!((sum.owner(), sum.is_owner()), (WorkerId(1), false));
    assert_eq!(sum.owner_name().expect("a name"), "w1");
    assert_eq!(sum.to_here().expect("a value"), 3.0);
    assert!(sum.confirmed_by_owner());
    assert!(
        format!("{sum:?}").starts_with("UserRRef(RRefId="),
        "{sum:?}"
    );
    let error = sum.local_value().unwrap_err();
    assert!(
        error.message().contains("'w1'") && error.message().contains("'w0'"),
        "{error}"
    );
    assert!(
        agents[0]
            .pending()
            .iter()
            .any(|what| what.starts_with("reference UserRRef") && what.contains("at 'w1'"))
    );
    // Of its own.
    let own: RRef<f32> = agents[0]
        .remote("w0", "sum", (vec![4.0_f32],))
        .expect("a reference");
    assert_eq!(*own.local_value().expect("a value"), 4.0);
    assert_eq!(RRef::new(&agents[0], 5_u32).to_here().expect("a value"), 5);
    drop((sum, own));
    assert!(is_empty(&agents[1]) && is_empty(&agents[0]));
}

#[test]
fn a_value_that_is_not_made_yet_is_waited_for_in_time_at_its_owner() {
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let late = move || {
        let _ = gate.lock().expect("a gate").recv();
        7_u32
    };
    let agents = group(1, "late", &Functions::new().add("late", late));
    let own: RRef<u32> = agents[0].remote("w0", "late", ()).expect("a reference");
    let (soon, start) = (Duration::from_millis(20), |patience| {
        own.local_value_async(patience).expect("it is asked for")
    });
    let error = start(soon).wait().unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_TIMEOUT);
    let pending = start(LONG).wait_for(soon).unwrap_err();
    open.send(()).expect("it runs");
    assert_eq!(*pending.wait().expect("a value"), 7);
    let found = start(soon).wait_for(Duration::ZERO);
    assert_eq!(*found.expect("it is there").expect("a value"), 7);
}

#[test]
fn an_object_stays_and_functions_use_it_where_it_is() {
    let ends = Arc::new(AtomicUsize::new(0));
    let agents = group(2, "objects", &functions(&ends));
    let counter: RRef<Counter> = agents[0]
        .remote("w1", "counter", (10_u32,))
        .expect("a reference");
    assert_eq!(
        counter.rpc_sync::<u32>("count", (5_u32,)).expect("a count"),
        15
    );
    let call = counter.rpc_async::<u32>("count", (1_u32,)).expect("a call");
    assert_eq!(call.wait().expect("a count"), 16);
    let kept: RRef<u32> = counter.remote("count", (4_u32,)).expect("a reference");
    assert_eq!(kept.to_here().expect("a count"), 20);
    assert_eq!(ends.load(Ordering::SeqCst), 0);
    drop((counter, kept));
    assert!(is_empty(&agents[1]));
    assert_eq!(ends.load(Ordering::SeqCst), 1);
    let error = agents[0]
        .rpc_sync::<u32>("w1", "counter", (10_u32,))
        .unwrap_err();
    assert!(error.message().contains("cannot travel"), "{error}");
}

#[test]
fn an_object_that_cannot_be_made_says_why_and_one_of_another_type_what_it_is() {
    let ends = Arc::new(AtomicUsize::new(0));
    let refused = |from: u32| Err::<Counter, _>(format!("no counter from {from}"));
    let later = move |from: u32| async move { refused(from) };
    let functions = functions(&ends)
        .add_object("refused", refused)
        .add_object_async("refused later", later);
    let agents = group(2, "unmade", &functions);
    for function in ["refused", "refused later"] {
        let counter: RRef<Counter> = agents[0]
            .remote("w1", function, (3_u32,))
            .expect("a reference");
        let error = counter.rpc_sync::<u32>("count", (1_u32,)).unwrap_err();
        assert_eq!(error.reason(), catalogue::RPC_REMOTE_ERROR, "{function}");
        assert!(error.message().contains("no counter from 3"), "{error}");
    }
    let other: RRef<Counter> = agents[0]
        .remote("w1", "sum", (vec![1.0_f32],))
        .expect("a reference");
    let error = other.rpc_sync::<u32>("count", (1_u32,)).unwrap_err();
    let told = format!(
        "the value of {} is f32, and no {}",
        other.id(),
        std::any::type_name::<Counter>()
    );
    assert!(error.message().contains(&told), "{error}");
    let other = agents[0].remote::<u32>("w1", "sum", (vec![1.0_f32],));
    let other = other.expect("a reference");
    let told = format!("the value of {} at 'w1' is no u32", other.id());
    assert_eq!(other.to_here().unwrap_err().message(), told);
}

#[test]
fn references_travel_as_arguments_and_results() {
    let agents = group(3, "travels", &functions(&Arc::default()));
    let sum: RRef<f32> = agents[0]
        .remote("w1", "sum", (vec![1.5_f32],))
        .expect("a reference");
    // User to user, user to owner, and through a third; back as results.
    assert_eq!(
        agents[0]
            .rpc_sync::<f32>("w2", "look", (sum.clone(),))
            .expect("a value"),
        1.5
    );
    assert_eq!(
        agents[0]
            .rpc_sync::<f32>("w1", "look", (sum.clone(),))
            .expect("a value"),
        1.5
    );
    let args = ("w1".to_owned(), sum.clone());
    assert_eq!(
        agents[0]
            .rpc_sync::<f32>("w2", "pass_to", args)
            .expect("a value"),
        1.5
    );
    let back: RRef<f32> = agents[0]
        .rpc_sync("w2", "pass", (sum.clone(),))
        .expect("a reference");
    assert_eq!(
        (back.id(), back.to_here().expect("a value")),
        (sum.id(), 1.5)
    );
    drop(back);
    let back: RRef<f32> = agents[0]
        .rpc_sync("w1", "pass", (sum.clone(),))
        .expect("a reference");
    assert_eq!(back.to_here().expect("a value"), 1.5);
    drop((sum, back));
    assert!(agents.iter().all(is_empty));
    // The owner hands its own out, and the receiver outlives the owner's handle.
    let own = RRef::new(&agents[0], 7.0_f32);
    let theirs = agents[1].rpc_sync::<f32>("w0", "look", (own.clone(),));
    assert!(
        theirs.is_err(),
        "a handle of another agent is no argument of this one"
    );
    assert_eq!(
        agents[0]
            .rpc_sync::<f32>("w2", "look", (own,))
            .expect("a value"),
        7.0
    );
    assert!(agents.iter().all(is_empty));
}

#[test]
fn a_failure_of_what_makes_a_value_is_told_to_who_wants_it() {
    let agents = group(2, "broken", &functions(&Arc::default()));
    let value: RRef<u32> = agents[0].remote("w1", "fails", ()).expect("a reference");
    let error = value.to_here().unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_REMOTE_ERROR);
    assert!(error.message().contains("no counter today"), "{error}");
    let value: RRef<u32> = agents[0]
        .remote("w1", "there_is_none", ())
        .expect("a reference");
    assert_eq!(
        value.to_here().unwrap_err().reason(),
        catalogue::RPC_FUNCTION
    );
}

#[test]
fn the_wait_for_a_value_has_a_time_of_its_own_and_so_has_its_creation() {
    // It ends when it is told, so that no wait depends on how fast this machine is.
    let is_open = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_open);
    let functions = Functions::new().add("slow", move |text: String| {
        while !seen.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        text
    });
    let agents = group(2, "times", &functions);
    let text = |text: &str| (text.to_owned(),);
    let value: RRef<String> = agents[0]
        .remote("w1", "slow", text("a"))
        .expect("a reference");
    let error = value.to_here_within(Duration::from_millis(1)).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_TIMEOUT);
    let told = format!("the fetch of {} at 'w1' ran for more than", value.id());
    assert!(error.message().starts_with(&told), "{error}");
    is_open.store(true, Ordering::Release);
    assert_eq!(value.to_here().expect("a value"), "a");
    drop(value);
    is_open.store(false, Ordering::Release);
    let short = Duration::from_millis(1);
    let value: RRef<String> = agents[0]
        .remote_within("w1", "slow", text("b"), short)
        .expect("a reference");
    let is_told = |error: Error| {
        error
            .message()
            .starts_with("RRef creation via rpc.remote() timed out")
    };
    let began = std::time::Instant::now();
    while !value
        .to_here_within(Duration::from_millis(20))
        .is_err_and(is_told)
    {
        assert!(began.elapsed() < LONG);
    }
    is_open.store(true, Ordering::Release);
    drop(value);
    assert!(is_empty(&agents[1]));
}

/// It began before its call was given up, and another has a share of what it makes.
#[test]
fn a_value_is_kept_that_is_made_after_its_call_was_given_up() {
    let wait = || {
        let call = Context::current().expect("in a call");
        while !call.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        7.0_f32
    };
    let functions = functions(&Arc::default())
        .add("plain", wait)
        .add_async("ready", move || std::future::ready(wait()));
    let agents = group(3, "kept", &functions);
    for function in ["plain", "ready"] {
        let value: RRef<f32> = agents[0]
            .remote_within("w1", function, (), Duration::from_secs(1))
            .expect("a reference");
        let look = agents[0].rpc_async::<f32>("w2", "look", (value,));
        assert_eq!(look.expect("a call").wait(), Ok(7.0), "{function}");
    }
    assert!(agents.iter().all(is_empty));
}

#[test]
fn a_reference_to_a_worker_that_left_names_nothing() {
    let mut agents = group(2, "leaves", &functions(&Arc::default()));
    let sum: RRef<f32> = agents[0]
        .remote("w1", "sum", (vec![1.0_f32],))
        .expect("a reference");
    assert_eq!(sum.to_here().expect("a value"), 1.0);
    agents.pop().expect("a second").shutdown_local();
    let began = std::time::Instant::now();
    loop {
        let error = sum.to_here().unwrap_err();
        if error.reason() == catalogue::PEER_LOST {
            break;
        }
        assert!(began.elapsed() < LONG, "{error}");
    }
}
