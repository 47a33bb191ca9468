//! Which thread carries a call out, and that what breaks down there breaks nothing else.

use std::sync::mpsc;

use super::*;
use crate::ground::Locked;

const BRIEF: u32 = 1;
const LONG: u32 = 2;

fn pool() -> Pool {
    let here = |_: &Incoming| Ok(format!("{:?}", std::thread::current().id()).into_bytes());
    let services = Services::new()
        .at_once(BRIEF, here)
        .on(LONG, here)
        .at_once(3, |_| panic!("a service that breaks down, on purpose"))
        .at_once(4, |_| Ok(vec![0; CALL_PAYLOAD_MAX + 1]));
    Pool::start(services).expect("threads")
}

fn call(method: u32, patience: Duration) -> Incoming {
    let mut incoming = Incoming::within("a".into(), Incarnation(1), Vec::new(), patience);
    incoming.method = method;
    incoming
}

#[test]
fn a_brief_service_is_carried_out_where_it_is_called() {
    let (pool, patience) = (pool(), Duration::from_secs(30));
    let here = format!("{:?}", std::thread::current().id()).into_bytes();
    let outcome = pool.at_once(&call(BRIEF, patience));
    assert_eq!(outcome.expect("brief").expect("answered"), here);
    assert!(pool.at_once(&call(LONG, patience)).is_none());
    for (len, is_brief) in [(BRIEF_BYTES, true), (BRIEF_BYTES + 1, false)] {
        let mut call = call(BRIEF, patience);
        call.payload = vec![0; len];
        assert_eq!(pool.at_once(&call).is_some(), is_brief, "{len} bytes");
    }
    let (told, heard) = mpsc::channel();
    let begun = pool.begin(CallJob {
        incoming: call(LONG, patience),
        done: Box::new(move |outcome| told.send(outcome).expect("waited for")),
    });
    begun.expect("taken");
    assert_ne!(heard.recv().expect("told").expect("answered"), here);
}

#[test]
fn what_a_brief_service_does_wrong_is_its_callers() {
    let pool = pool();
    for (method, patience, reason) in [
        (3, 30, catalogue::SERVICE_FAILED),
        (4, 30, catalogue::CALL_TOO_LONG),
        (BRIEF, 0, catalogue::CALL_DEADLINE),
    ] {
        let outcome = pool.at_once(&call(method, Duration::from_secs(patience)));
        let status = outcome.expect("brief").expect_err("a no");
        assert_eq!(status.reason(), reason);
    }
}

/// One task may ask for more than there are threads, of what takes long: others' calls are carried out meanwhile.
#[test]
fn no_task_has_all_threads() {
    let patience = Duration::from_secs(30);
    let (tell, told) = mpsc::channel::<()>();
    let told = Mutex::new(told);
    let services = Services::new()
        .on(1, move |_| {
            let told = told.locked();
            let _ = told.recv();
            Ok(Vec::new())
        })
        .on(2, |_| Ok(Vec::new()));
    let pool = Pool::start(services).expect("threads");
    let (done, heard) = mpsc::channel();
    let begin = |task: &str, method| {
        let mut incoming = call(method, patience);
        incoming.task = task.into();
        let (done, task) = (done.clone(), task.to_owned());
        let done = Box::new(move |_| done.send((task, method)).expect("waited for"));
        pool.begin(CallJob { incoming, done }).expect("taken");
    };
    for _ in 0..2 * SERVICE_THREADS {
        begin("a", 1);
    }
    for _ in 0..3 {
        begin("b", 2);
        let first = heard.recv_timeout(patience / 3).expect("in time");
        assert_eq!(first, ("b".into(), 2));
    }
    // With two that ask so, the third's comes next.
    begin("c", 1);
    while pool
        .queue
        .as_ref()
        .expect("services")
        .waiting
        .locked()
        .jobs
        .len()
        > SERVICE_THREADS + 1
    {
        std::thread::yield_now();
    }
    begin("b", 2);
    tell.send(()).expect("they wait");
    let first: Vec<_> = (0..2)
        .map(|_| heard.recv_timeout(patience / 3).expect("in time").1)
        .collect();
    assert_eq!(first, [1, 2]);
    drop(tell);
    for _ in 0..2 * SERVICE_THREADS {
        let (_, method) = heard.recv_timeout(patience / 3).expect("in time");
        assert_eq!(method, 1);
    }
}

/// Tasks that ask again whenever they have their answer leave a thread to one that has a long call and waits.
#[test]
fn who_has_waited_long_is_before_who_has_fewer_threads() {
    let mut waiting = Waiting::default();
    waiting.at_work.insert("a".into(), 1);
    let came = |waiting: &mut Waiting, task: &str, ago| {
        let mut incoming = call(1, Duration::from_secs(30));
        incoming.task = task.into();
        waiting.jobs.push_back(WaitingCall {
            function: Arc::new(|_| Ok(Vec::new())),
            job: CallJob {
                incoming,
                done: Box::new(drop),
            },
            since: Instant::now()
                .checked_sub(ago)
                .expect("the machine runs longer"),
        });
    };
    for (ago, first) in [(Duration::ZERO, "b"), (2 * BEHIND_MAX, "a")] {
        waiting.jobs.clear();
        came(&mut waiting, "a", ago);
        came(&mut waiting, "b", Duration::ZERO);
        let next = waiting.take().expect("one waits");
        assert_eq!(next.job.incoming.task, first);
        waiting.let_go(first);
    }
}
