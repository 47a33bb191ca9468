//! Panics where none should be: of what a program wants called, and of the desk itself.

use rendez::ground::Nanos;

use super::*;
use crate::agent::promise::{Admission, Promise};
use crate::agent::shared::{Command, Ticket, Token};
use crate::agent::slot::Slot;
use crate::message::Target;

#[test]
fn a_panic_of_what_follows_from_a_call_ends_nothing_else() {
    let (functions, open) = held();
    let agents = group(2, "follows", &functions);
    let call = |number: u32| {
        let call = agents[0].rpc_async_within::<u32>("w1", "held", (number,), Duration::ZERO);
        call.expect("a call")
    };
    let (watched, other) = (call(1), call(2));
    watched.on_done(|| panic!("what is told of the end panics"));
    call(3).then(|outcome| panic!("what follows from {outcome:?} panics"));
    open();
    assert_eq!((watched.wait(), other.wait()), (Ok(1), Ok(2)));
    // The call has ended: it is called at once.
    let over = call(4);
    while !over.is_done() {
        std::thread::sleep(Duration::from_millis(1));
    }
    over.on_done(|| panic!("what is told at once panics"));
    assert_eq!(over.wait(), Ok(4));
    let later: u32 = agents[0]
        .rpc_sync("w1", "held", (5_u32,))
        .expect("it works on");
    assert_eq!(later, 5);
    assert!(shut_down(agents).iter().all(Result::is_ok));
}

#[test]
fn a_desk_that_panics_ends_all_that_waits_for_it() {
    let (functions, open) = held();
    let mut agents = group(2, "desk", &functions);
    let (other, agent) = (agents.pop().expect("two"), agents.pop().expect("two"));
    let call = |number: u32| {
        let call = agent.rpc_async_within::<u32>("w1", "held", (number,), Duration::ZERO);
        call.expect("a call")
    };
    let (waited, chained) = (call(1), call(2));
    let (tell, told) = std::sync::mpsc::channel();
    let tells = tell.clone();
    chained.then(move |outcome| tells.send(outcome).expect("it is awaited"));
    let waiting = std::thread::spawn(move || tell.send(waited.wait()));
    agent
        .shared()
        .push(Command::Ask(Box::new(|_| panic!("the desk panics"))));
    let reason = |outcome: Result<u32, Error>| outcome.unwrap_err().reason();
    for _ in 0..2 {
        let outcome = told.recv_timeout(LONG).expect("it is told");
        assert_eq!(reason(outcome), catalogue::RPC_SHUTDOWN);
    }
    waiting.join().expect("no panic").expect("it was told");
    // What comes later ends too, and so does a shutdown that would wait for ever.
    let late = agent.rpc_sync::<u32>("w1", "held", (3_u32,));
    assert_eq!(reason(late), catalogue::RPC_SHUTDOWN);
    agent.shutdown(Duration::ZERO).expect("it has left");
    open();
    other.shutdown_local();
}

#[test]
fn what_a_desk_that_panics_has_in_its_hands_ends_too() {
    let (functions, _) = held();
    let agents = group(1, "in_hand", &functions);
    let shared = Arc::clone(agents[0].shared());
    let tickets = [(); 2].map(|()| {
        Arc::new(Ticket {
            slot: Slot::default(),
            to: shared.me,
            function: "held".into(),
            fetched: None,
            began: Nanos::ZERO,
            timeout: Duration::ZERO,
        })
    });
    let [queued, made] = tickets
        .each_ref()
        .map(|ticket| Promise::new(Arc::clone(ticket)));
    // As it obeys a command, and as its machine knows a call.
    let command = Command::Call {
        to: shared.me,
        target: Target::Function("held".into()),
        deadline: Nanos::NEVER,
        packed: shared.pack(shared.me, "held", &(1_u32,)).expect("a call"),
        ticket: queued,
        span: None,
    };
    let token = Token {
        ticket: made,
        keeps: None,
        span: None,
    };
    let guest = Arc::new(Slot::default());
    let admission = Admission(Arc::clone(&guest));
    shared.push(Command::Ask(Box::new(move |_| {
        let _in_hand = (command, token, admission);
        panic!("the desk panics");
    })));
    for ticket in tickets {
        let call = Pending::<u32>::new(Arc::clone(&shared), shared.me, ticket);
        let Ok(ended) = call.wait_for(LONG) else {
            panic!("it has no end");
        };
        assert_eq!(ended.unwrap_err().reason(), catalogue::RPC_SHUTDOWN);
    }
    assert!(shared.wait(&guest, Some(LONG)), "the guest has no end");
    let refused = guest.take().expect("it is there").unwrap_err();
    assert_eq!(refused.reason(), catalogue::RPC_SHUTDOWN);
}
