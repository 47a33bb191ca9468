//! `rendez up` with the cluster of the README, and the questions that are asked of it while it runs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::support::{Ended, Place, Process, free_ports, text, until};

const PS: &str = "/job:ps/replica:0/task:0";
const WORKERS: [&str; 2] = [
    "/job:worker/replica:0/task:0",
    "/job:worker/replica:0/task:1",
];

/// The README's file, with ports that are free.
fn example(place: &Place) -> String {
    let readme = include_str!("../../README.md");
    let begin = readme.find("shards = 1 ").expect("the example");
    let file = &readme[begin..];
    let mut file = file[..file.find("```").expect("its end")].to_owned();
    for (port, free) in [29700, 29701, 29702].into_iter().zip(free_ports::<3>()) {
        assert!(file.contains(&port.to_string()), "{file}");
        file = file.replace(&port.to_string(), &free.to_string());
    }
    text(&place.file("cluster.toml", &file)).to_owned()
}

/// Started, and every task is there.
fn running(place: &Place, file: &str) -> Process {
    let up = place.start(&["up", file]);
    for task in [PS, WORKERS[0], WORKERS[1]] {
        up.await_said(&format!("{task} of 3 tasks"));
    }
    up
}

#[test]
fn every_pair_hands_over_by_shared_memory_and_by_tcp_where_it_is_demanded() {
    let place = Place::new();
    let file = example(&place);
    let mut all = Vec::new();
    for (more, path) in [(&[][..], "shm"), (&["--require", "tcp"][..], "tcp")] {
        let mut arguments = vec!["up", &*file, "--check", "--once"];
        arguments.extend(more);
        let ended = place.run(&arguments).well();
        let mut pairs = Vec::new();
        for (from, to, over, what) in ended.handed_over() {
            assert_eq!(over, path, "{}", ended.said);
            pairs.push((from, to, what));
        }
        assert_eq!(pairs.len(), 6, "{}", ended.said);
        // Nothing is told that is not worth telling.
        assert!(!ended.said.contains("WARN"), "{}", ended.said);
        // Who leaves is known to leave: its connections are not taken for lost ones.
        assert!(!ended.said.contains("is lost"), "{}", ended.said);
        all.push(pairs);
        place.await_nobody();
    }
    assert_eq!(all[0], all[1], "the same tensors and bytes");
}

/// One address for metrics, and as many tasks: each answers at a port of its own, one after another.
#[test]
fn each_task_answers_for_metrics_at_a_port_of_its_own() {
    let place = Place::new();
    let file = example(&place);
    let port = free_ports::<3>()[0];
    let up = place.start(&["up", &file, "--metrics", &format!("127.0.0.1:{port}")]);
    for (at, task) in [PS, WORKERS[0], WORKERS[1]].into_iter().enumerate() {
        up.await_said(&format!("{task} of 3 tasks"));
        let mut stream = TcpStream::connect(("127.0.0.1", port + at as u16)).expect("it listens");
        let request = "GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("asked");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("answered");
        assert!(page.contains(&format!("task=\"{task}\"")), "{page}");
    }
    up.signal(Signal::INT);
    up.finish().well();
}

#[test]
fn a_running_cluster_answers_and_an_interrupt_ends_it() {
    let place = Place::new();
    let file = example(&place);
    let up = running(&place, &file);

    let pinged = place.run(&["ping", "--config", &file, "--json"]).well();
    let objects = pinged.objects();
    let of = |field: &str| -> Vec<&str> {
        objects
            .iter()
            .map(|object| object[field].as_str().expect("a text"))
            .collect()
    };
    assert_eq!(of("task"), [PS, WORKERS[0], WORKERS[1]]);
    assert_eq!(of("path"), ["shm"; 3]);
    for object in &objects {
        assert_eq!(object["count"], 10);
        let of = |what: &str| object["rtt_ns"][what].as_u64();
        assert!(of("p50") > Some(0), "{object}");
        assert!(of("p50") <= of("p99") && of("p99") <= of("max"), "{object}");
    }

    let explained = place.run(&["explain", "--config", &file, "--json"]).well();
    let objects = explained.objects();
    assert_eq!(objects.len(), 6, "{}", explained.said);
    for object in &objects {
        assert_eq!(object["path"], "shm", "{object}");
        assert_eq!(object["fallbacks"], 0);
        assert_eq!(object["protection"], "same machine");
        let why = object["why"].as_str();
        assert_eq!(why, Some("one machine: descriptors came through"));
    }
    // One task alone, by a shorter name.
    let one = ["explain", "/job:ps/task:0", "--config", &file, "--json"];
    assert_eq!(place.run(&one).well().objects().len(), 2);
    let table = place.run(&["explain", "--config", &file]).well();
    assert_eq!(table.said.matches("descriptors came through").count(), 6);

    let pending = place.run(&["pending", "--config", &file, "--json"]).well();
    assert_eq!(pending.objects().len(), 0, "{}", pending.said);
    up.signal(Signal::INT);
    let ended = up.finish().well();
    for task in [PS, WORKERS[0], WORKERS[1]] {
        assert!(
            ended.said.contains(&format!("{task} stops")),
            "{}",
            ended.said
        );
    }
    place.await_nobody();
}

#[test]
fn what_waits_is_told_and_comes_when_it_is_pushed() {
    let place = Place::new();
    let [a, b] = free_ports();
    let cluster = format!("a=127.0.0.1:{a};b=127.0.0.1:{b}");
    let of_b = ["--cluster", &*cluster, "--job", "b", "--task", "0"];
    let out = place.file("copy.safetensors", "");
    let mut pull = vec!["pull", "--from", "/job:a/task:0", "--out", text(&out)];
    pull.extend(of_b);
    let pull = place.start(&pull);
    // Only the task that asks is there yet.
    until("the receive is told of", || {
        let asked = place.run(&["pending", "/job:b/task:0", "--json", "--cluster", &cluster]);
        asked
            .objects()
            .iter()
            .any(|item| item["waits_for"] == "/job:a/replica:0/task:0" && item["what"] == "receive")
    });
    let mut push = vec!["push", "--to", "/job:b/task:0"];
    push.extend(["--cluster", &*cluster, "--job", "a", "--task", "0"]);
    let pushed = place.run(&push).well();
    assert!(
        pushed
            .said
            .contains("taken by /job:b/replica:0/task:0 over shm"),
        "{}",
        pushed.said
    );
    let pulled = pull.finish().well();
    assert!(pulled.said.contains("every byte right"), "{}", pulled.said);
    let copy = rendez_cli::weights::Weights::open(&out).expect("a file of weights");
    let original = rendez_cli::weights::Weights::built_in().expect("the program's own");
    assert_eq!(copy.entries().len(), original.entries().len());
}

#[test]
fn a_task_that_dies_ends_all_and_is_named() {
    let place = Place::new();
    let up = running(&place, &example(&place));
    let pid = place.process_with(&format!("RENDEZ_TASK={}", WORKERS[1]));
    // People find it in a list of processes.
    let of = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it runs");
    assert_eq!(of("comm"), "rendez\n");
    let arguments = of("cmdline").replace('\0', " ");
    let as_named = format!("rendez serve --task={} ", WORKERS[1]);
    assert!(arguments.starts_with(&as_named), "{arguments}");
    let pid = Pid::from_raw(pid as i32).expect("a process");
    kill_process(pid, Signal::KILL).expect("killed");
    up.finish()
        .refused(1, "TASK_FAILED", &["worker:1 ended: signal: 9"]);
    place.await_nobody();
}

/// As when their machine was: no one could be heard, and no one was gone.
#[test]
fn tasks_that_were_all_stopped_blame_nobody() {
    let place = Place::new();
    let file = example(&place);
    let text = std::fs::read_to_string(&file).expect("the file");
    // Above it they are given up, and there is time enough to answer on a machine that is busy.
    let text = format!("failure_detection = \"2s\"\nrequire = \"tcp\"\n{text}");
    std::fs::write(&file, text).expect("the file");
    let up = place.start(&["up", &file, "--check"]);
    let handed_over = || up.said().matches("every byte right").count();
    until("every pair is connected", || handed_over() == 6);
    let tasks = [PS, WORKERS[0], WORKERS[1]];
    let signal_all = |signal| {
        for task in tasks {
            let pid = place.process_with(&format!("RENDEZ_TASK={task}"));
            let pid = Pid::from_raw(pid as i32).expect("a process");
            kill_process(pid, signal).expect("signalled");
        }
    };
    signal_all(Signal::STOP);
    std::thread::sleep(Duration::from_secs(3));
    signal_all(Signal::CONT);
    // By then all have asked and were answered, or are lost.
    std::thread::sleep(Duration::from_secs(1));
    let said = up.said();
    for word in ["is lost", "is gone", "connected again"] {
        assert!(!said.contains(word), "{said}");
    }
    up.signal(Signal::INT);
    up.finish().well();
}

/// As `rendez up … | sleep 1000`: the tasks wait, as for a terminal that is held, and can still end in good order.
#[test]
fn output_that_is_not_read_makes_tasks_wait_and_a_request_to_end_ends_all() {
    let place = Place::new();
    let file = example(&place);
    let (said, told) = (place.file("said", ""), place.file("told", ""));
    let ready = place.file("ready", "");
    let script = "\
        say() { yes 'a line that is as long as lines of logs often are, or nearly so' | head -c 4000000; }
        trap 'say; echo end >> told; exit' TERM
        echo ready >> ready; say; echo all >> said; sleep 60";
    let mut up = place
        .command(&["up", &file, "--", "/bin/sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let began = Instant::now();
    while std::fs::read_to_string(&ready)
        .expect("readable")
        .lines()
        .count()
        < 3
    {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "the tasks do not begin"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(1));
    let all = std::fs::read_to_string(said).expect("readable");
    let began = Instant::now();
    kill_process(Pid::from_child(&up), Signal::TERM).expect("signalled");
    let mut ended = None;
    while ended.is_none() && began.elapsed() < Duration::from_secs(20) {
        ended = up.try_wait().expect("waited for");
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = up.kill();
    let _ = up.wait();
    let ended = ended.expect("it ends, though its output is not read");
    assert!(ended.success(), "{ended}");
    assert_eq!(all, "", "more was taken than there is room for");
    let told = std::fs::read_to_string(told).expect("readable");
    assert_eq!(told, "end\n".repeat(3), "a task was not let end");
    place.await_nobody();
}

#[test]
fn a_killed_up_leaves_nobody_behind() {
    let place = Place::new();
    let up = running(&place, &example(&place));
    up.signal(Signal::KILL);
    up.finish();
    place.await_nobody();
    // Nor a program of one's own.
    let script = "echo I am $RENDEZ_TASK; exec sleep 90";
    let up = place.start(&["up", &example(&place), "--", "/bin/sh", "-c", script]);
    for task in [PS, WORKERS[0], WORKERS[1]] {
        up.await_said(&format!("I am {task}"));
    }
    up.signal(Signal::KILL);
    up.finish();
    place.await_nobody();
}

#[test]
fn a_program_of_ones_own_is_told_who_it_is() {
    let place = Place::new();
    let file = example(&place);
    let script = "echo \"I am $RENDEZ_TASK of $RENDEZ_CONFIG_FILE, with $1 and $RENDEZ_REQUIRE\"";
    let program = [
        "up",
        &*file,
        "--require",
        "tcp",
        "--",
        "/bin/sh",
        "-c",
        script,
        "sh",
        "an argument",
    ];
    let Ended { said, .. } = place.run(&program).well();
    for (name, task) in ["ps:0    ", "worker:0", "worker:1"]
        .into_iter()
        .zip([PS, WORKERS[0], WORKERS[1]])
    {
        let line = format!("{name} │ I am {task} of {file}, with an argument and tcp\n");
        assert!(said.contains(&line), "{line} in {said}");
    }
    let missing = place.run(&["up", &file, "--", "./no-such-program"]);
    missing.refused(1, "CONTROL_SYSTEM", &["cannot start ./no-such-program"]);
    let failing = place.run(&["up", &file, "--", "/bin/sh", "-c", "exit 3"]);
    failing.refused(1, "TASK_FAILED", &["exit status: 3"]);
    // The first two are started by then.
    let at = ["--metrics", "127.0.0.1:65534", "--", "/bin/sleep", "90"];
    let portless = place.run(&[&["up", &*file][..], &at].concat());
    portless.refused(78, "CONFIG", &["no port for the task after 2 others"]);
    place.await_nobody();
}
