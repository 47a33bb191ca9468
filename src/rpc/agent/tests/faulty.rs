//! What an agent promises, over one that drops, delays, repeats and reorders what it sends.

use std::sync::Mutex;

use super::*;
use crate::agent::faulty::MessageKind as Kind;
use crate::{Faulty, RRef};

const CONTROLS: [Kind; 5] = [
    Kind::Cancel,
    Kind::Took,
    Kind::Delete,
    Kind::Fork,
    Kind::Ack,
];
const CALLS: [Kind; 4] = [Kind::Call, Kind::Remote, Kind::Fetch, Kind::Reply];

/// A group whose agents are faulty, and how often each number was counted there.
fn faulty(count: usize, test: &str, faults: &Faulty) -> (Vec<Agent>, Arc<Mutex<Vec<u32>>>) {
    let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
    let noted = Arc::clone(&seen);
    let functions = Functions::new()
        .add_in_shard("note", move |number: u32, _with: Tensor| {
            noted.lock().expect("no panic").push(number);
            number
        })
        .add("double", |value: RRef<u32>| -> Result<u32, Error> {
            Ok(value.to_here()? * 2)
        })
        .add("value", |value: u32| value);
    let set = |options: Options| options.functions(functions.clone()).faulty(faults.clone());
    (group_with(count, test, set), seen)
}

fn note(agent: &Agent, number: u32, timeout: Duration) -> Result<u32, Error> {
    let with = Tensor::scalar(number);
    agent
        .rpc_async_within("w1", "note", (number, with), timeout)?
        .wait()
}

#[test]
fn a_call_that_is_dropped_ends_by_its_time_and_is_not_made_again() {
    for kind in [Kind::Call, Kind::Reply] {
        let faults = Faulty::new(1).drop_first(&[kind], 1);
        let (agents, seen) = faulty(2, &format!("dropped_{kind:?}"), &faults);
        let error = note(&agents[0], 7, Duration::from_millis(100)).unwrap_err();
        assert_eq!(error.reason(), catalogue::RPC_TIMEOUT, "{kind:?}");
        assert_eq!(note(&agents[0], 8, LONG).expect("an answer"), 8);
        let expected: &[u32] = if kind == Kind::Call { &[8] } else { &[7, 8] };
        assert_eq!(*seen.lock().expect("no panic"), expected, "{kind:?}");
        assert!(shut_down(agents).iter().all(Result::is_ok));
    }
}

#[test]
fn what_is_sent_twice_is_carried_out_once() {
    let all = [&CONTROLS[..], &CALLS[..]].concat();
    let (agents, seen) = faulty(2, "repeated", &Faulty::new(2).repeat_some(&all, 1.0));
    for number in 0..20 {
        assert_eq!(note(&agents[0], number, LONG).expect("an answer"), number);
    }
    let value: RRef<u32> = agents[0]
        .remote("w1", "value", (21_u32,))
        .expect("a reference");
    assert_eq!(value.rpc_sync::<u32>("double", ()).expect("a result"), 42);
    drop(value);
    assert_eq!(
        *seen.lock().expect("no panic"),
        (0..20).collect::<Vec<u32>>()
    );
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

#[test]
fn calls_that_overtake_each_other_come_to_whom_they_belong() {
    let faults = Faulty::new(3).delay(&CALLS, Duration::ZERO..=Duration::from_millis(30));
    let (agents, seen) = faulty(2, "delayed", &faults);
    let calls = (0..40_u32).map(|number| {
        let args = (number, Tensor::scalar(number));
        agents[0]
            .rpc_async::<u32>("w1", "note", args)
            .expect("a call")
    });
    let calls: Vec<_> = calls.collect();
    assert_eq!(
        wait_all(calls).expect("answers"),
        (0..40).collect::<Vec<u32>>()
    );
    let order = seen.lock().expect("no panic").clone();
    assert!(!order.is_sorted(), "they were reordered: {order:?}");
    // One that is held back for longer than its time is given up.
    let faults = Faulty::new(3).delay(&[Kind::Reply], LONG..=LONG);
    let (late, _) = faulty(2, "late", &faults);
    let error = note(&late[0], 1, Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_TIMEOUT);
}

#[test]
fn references_survive_the_loss_of_what_is_said_of_them() {
    let faults = Faulty::new(4)
        .drop_first(&CONTROLS, 1)
        .drop_some(&CONTROLS, 0.2);
    let (agents, _) = faulty(3, "lost_controls", &faults);
    let value: RRef<u32> = agents[0]
        .remote("w1", "value", (21_u32,))
        .expect("a reference");
    // From one user to another: the share is made known to the owner again until that has heard.
    let doubled: u32 = agents[0]
        .rpc_sync("w2", "double", (value.clone(),))
        .expect("a result");
    assert_eq!(doubled, 42);
    drop(value);
    let began = std::time::Instant::now();
    while agents[1].debug_info()["num_owner_rrefs"] > 0 {
        assert!(began.elapsed() < LONG, "{:?}", agents[1].debug_info());
        std::thread::sleep(Duration::from_millis(10));
    }
    let repeated = |agent: &Agent| {
        agent
            .shared()
            .ask(|view| view.node.repeated())
            .expect("it is there")
    };
    assert!(
        agents.iter().map(repeated).sum::<u64>() > 0,
        "something was said again"
    );
    assert!(shut_down(agents).iter().all(Result::is_ok));
}
