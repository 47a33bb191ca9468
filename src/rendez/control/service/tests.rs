//! Which thread carries a call out, and that what breaks down there breaks nothing else.

use super::*;

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
