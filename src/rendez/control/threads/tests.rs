//! Threads that are lent again, and planes that break.

use std::collections::HashSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::*;
use crate::control::config::is_shortage;
use crate::control::runtime::probe;

fn glommio() -> RuntimeReport {
    probe(Some(RuntimeKind::Glommio))
}

/// Starts a plane that tells its thread's id and ends when told.
fn plane() -> (ThreadId, Sender<()>, Working) {
    let (until, mut told) = mailbox();
    let (say, said) = mpsc::channel();
    let main = move |_| async move {
        say.send(std::thread::current().id()).expect("waited for");
        told.receive().await
    };
    let (_, working) = start(glommio(), main).expect("a thread");
    (said.recv().expect("it runs"), until, working)
}

#[test]
fn planes_at_once_have_threads_of_their_own() {
    let planes: Vec<_> = (0..3).map(|_| plane()).collect();
    let threads: HashSet<_> = planes.iter().map(|(thread, ..)| *thread).collect();
    assert_eq!(threads.len(), 3);
    for (_, until, working) in planes {
        until.send(()).expect("open");
        working.wait();
    }
}

#[test]
fn a_plane_that_panics_stops_no_other_and_is_waited_for() {
    let (_, until, other) = plane();
    let broken = start(glommio(), |_| async { panic!("on purpose") });
    broken.expect("a thread").1.wait();
    let ran = Arc::new(AtomicBool::new(false));
    let runs = Arc::clone(&ran);
    let next = start(glommio(), move |runtime| async move {
        runtime.sleep(LAST_TURN).await;
        runs.store(true, Ordering::Relaxed);
    });
    next.expect("a thread").1.wait();
    assert!(ran.load(Ordering::Relaxed));
    until.send(()).expect("the other still listens");
    other.wait();
}

#[test]
fn a_lent_thread_runs_where_a_new_one_would() {
    let all = rustix::thread::sched_getaffinity(None).expect("a mask");
    let cores: Vec<_> = (0..CpuSet::MAX_CPU)
        .filter(|core| all.is_set(*core))
        .collect();
    for core in cores.iter().take(2) {
        let mut one = CpuSet::new();
        one.set(*core);
        let seen = std::thread::spawn(move || {
            rustix::thread::sched_setaffinity(None, &one).expect("a core of the mask");
            let (say, said) = mpsc::channel();
            let main = move |_| async move {
                let _ = say.send(rustix::thread::sched_getaffinity(None).expect("a mask"));
            };
            start(glommio(), main).expect("a thread").1.wait();
            said.recv().expect("said")
        });
        assert_eq!(seen.join().expect("no panic"), one);
    }
}

/// Set for the child of the test that needs one.
const CHILD: &str = "RENDEZ_TEST_DESCRIPTORS";

#[test]
fn without_descriptors_no_plane_is_said_to_run_and_nothing_panics() {
    if let Some(kind) = std::env::var_os(CHILD) {
        return start_with_few(match kind == "poll" {
            true => RuntimeKind::Poll,
            false => RuntimeKind::Glommio,
        });
    }
    let name = "without_descriptors_no_plane_is_said_to_run_and_nothing_panics";
    for kind in ["poll", "glommio"] {
        let child = Command::new(std::env::current_exe().expect("our binary"))
            .args(["--exact", "--nocapture"])
            .arg(format!("control::threads::tests::{name}"))
            .env(CHILD, kind)
            .output()
            .expect("a child");
        let (told, said) = (
            String::from_utf8_lossy(&child.stdout),
            String::from_utf8_lossy(&child.stderr),
        );
        let is_well = child.status.success() && told.contains("1 passed");
        assert!(
            is_well && !said.contains("panicked"),
            "{kind}: {told}{said}"
        );
    }
}

/// Starts planes with no descriptor left, with one, and so on, until one runs.
fn start_with_few(kind: RuntimeKind) {
    let limit = Rlimit {
        current: Some(64),
        maximum: Some(64),
    };
    setrlimit(Resource::Nofile, limit).expect("lowered");
    let open = || eventfd(0, EventfdFlags::CLOEXEC);
    let mut taken: Vec<_> = std::iter::from_fn(|| open().ok()).collect();
    let mut refused = 0;
    loop {
        let (say, said) = mpsc::channel();
        let main = move |runtime: Runtime| async move {
            runtime.sleep(LAST_TURN).await;
            say.send(()).expect("waited for");
        };
        match start(probe(Some(kind)), main) {
            Ok((report, working)) => {
                working.wait();
                assert!(said.recv().is_ok(), "it was said to run");
                assert!(report.kind == kind && refused > 0, "{report}");
                return;
            }
            Err(error) => assert!(is_shortage(&error), "{error}"),
        }
        refused += 1;
        taken.pop().expect("it runs with all of them");
    }
}
