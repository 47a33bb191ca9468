//! Tasks that are killed and start again, while nothing is handed over: they are met again all the same.

use rustix::process::Signal;

use super::support::{Place, Process, free_ports};

/// It has no time for a goodbye.
fn kill(task: Process) {
    task.signal(Signal::KILL);
    task.finish();
}

/// By this way, or the best there is.
fn an_idle_task_meets_the_next_life(demanded: &[&str], path: &str) {
    let place = Place::new();
    let [a, b] = free_ports();
    let cluster = format!("a=127.0.0.1:{a};b=127.0.0.1:{b}");
    let serve = |job| {
        let of = ["serve", "--cluster", &cluster, "--job", job, "--task", "0"];
        let task = place.start(&[&of, demanded].concat());
        task.await_said("of 2 tasks");
        task
    };
    let [a, b] = [serve("a"), serve("b")];
    place.run(&["explain", "--cluster", &cluster]).well();
    a.await_said("a peer is connected");
    assert!(a.said().contains(path), "{}", a.said());
    kill(b);
    a.await_said("a peer is gone");
    let b = serve("b");
    a.await_said("a peer has returned in another life");
    // It says goodbye this time, and is gone once more.
    b.stop().well();
    let log = a.stop().well().said;
    assert_eq!(log.matches("a peer is gone").count(), 2, "{log}");
    place.await_nobody();
}

#[test]
fn an_idle_task_meets_the_next_life_of_a_peer_by_tcp() {
    an_idle_task_meets_the_next_life(&["--require", "tcp"], "path=tcp");
}

#[test]
fn an_idle_task_meets_the_next_life_of_a_peer_by_shared_memory() {
    an_idle_task_meets_the_next_life(&[], "path=shm");
}
