//! Sessions whose workers are gone, have come back as others, or never were.

use std::time::Instant;

use super::*;
use crate::graph::{Builder, floats};
use crate::operations::Operations;
use crate::server::Session;
use rendez::ground::Status;
use rendez_proto::tensorflow::GraphDef;

/// A constant that stands there.
fn constant_on(device: &str) -> GraphDef {
    let mut graph = Builder::new(Operations::standard().ops());
    graph.on(device);
    graph.constant("far", floats(&[1], &[1.0])).unwrap();
    graph.finish().unwrap().to_def()
}

#[test]
fn a_session_is_over_with_the_life_of_a_worker_and_says_what_to_do() {
    let spec = spec(free_ports());
    let start = |name: &str| {
        let server = server(&spec, name, Require::None);
        server.start().unwrap();
        server
    };
    let (master, worker) = (start("/job:ps/task:0"), start("/job:worker/task:0"));
    let begin = || {
        let session = Session::on(&master).unwrap();
        session.create(constant_on("/job:worker/task:0")).unwrap();
        session
    };
    let run = |session: &Session| session.run(&[], &["far"], &[]);
    // One finds out when it runs a step, the other when it prepares one.
    let sessions = [begin(), begin()];
    assert_eq!(run(&sessions[0]).unwrap().len(), 1);
    worker.stop(None);
    for session in &sessions {
        run(session).unwrap_err();
    }
    let worker = start("/job:worker/task:0");
    let until = Instant::now() + PATIENCE;
    for session in &sessions {
        // It may not have been met again yet.
        let over: Status = loop {
            let status = run(session).unwrap_err();
            if status.reason() == catalogue::WORKER_SESSION_UNKNOWN {
                break status;
            }
            assert!(Instant::now() < until, "{status}");
        };
        for text in [
            "/job:worker/replica:0/task:0",
            "begin another session, and restore a checkpoint",
        ] {
            assert!(over.message().contains(text), "{text}: {over}");
        }
        for _ in 0..10 {
            assert_eq!(run(session).unwrap_err(), over);
        }
        let callable = session.callable(&[], &["far"], &[]).map(drop);
        assert_eq!(callable.unwrap_err(), over);
        session.close().unwrap();
    }
    let session = begin();
    assert_eq!(run(&session).unwrap().len(), 1);
    session.close().unwrap();
    master.stop(None);
    worker.stop(None);
}

#[test]
fn who_meets_an_absent_worker_is_told_of_device_filters() {
    let mut config = config("/job:ps/task:0");
    config.connect_timeout = Duration::from_millis(200);
    let builder = Server::builder().cluster(spec(free_ports())).config(config);
    let master = builder.task(task("/job:ps/task:0")).build().unwrap();
    master.start().unwrap();
    let session = Session::on(&master).unwrap();
    let absent = session.create(constant_on("/job:ps/task:0")).unwrap_err();
    assert_eq!(absent.reason(), catalogue::WORKER_ABSENT, "{absent}");
    assert!(absent.message().contains("device_filters"), "{absent}");
    master.stop(None);
}
