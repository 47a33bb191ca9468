//! What a newcomer types or writes down wrong: it is refused at once, in words that say what is right.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::command;
use crate::ports::free_ports;

fn both(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr];
    texts.map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// A folder with this configuration, and the path of that.
fn configured(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("here.toml");
    std::fs::write(&path, text).expect("is written");
    (folder, path)
}

/// How the command ends with this configuration, and what it says.
fn ends(text: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let (folder, path) = configured(text);
    let path = path.to_str().expect("a text");
    let output = command(folder.path(), &[("RENDEZ_CONFIG_FILE", path)], arguments)
        .output()
        .expect("the command starts");
    (output.status.code(), both(&output))
}

#[track_caller]
fn refused(text: &str, arguments: &[&str], code: i32, parts: &[&str]) {
    let (ended, said) = ends(text, arguments);
    assert_eq!(ended, Some(code), "{arguments:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{arguments:?}: {part} in {said}");
    }
}

#[test]
fn a_word_that_is_no_level_does_not_silence_the_logs() {
    let folder = tempfile::tempdir().expect("a folder");
    for (filter, is_ignored) in [
        ("warning", true),
        ("rendez=debug,verbose", true),
        ("warn,rendez=verbose", true),
        ("rendezvous", true),
        ("warn", false),
        ("rendez", false),
        ("rendez_dataflow::server,hyper=debug", false),
        ("5", false),
    ] {
        let environment = [("RENDEZ_LOG", filter)];
        let output = command(folder.path(), &environment, &["config", "show"])
            .output()
            .expect("the command starts");
        let said = both(&output);
        let is_told = said.contains("RENDEZ_LOG is ignored") && said.contains("info, debug or");
        assert_eq!(is_told, is_ignored, "{filter}: {said}");
    }
}

const EXPOSED: &str = "[cluster]\na = [\"10.0.0.1:29710\"]\n";
const UNDEFINED: &str = "task = \"/job:pz/task:7\"\n[cluster]\nps = [\"127.0.0.1:29710\"]\n";

#[test]
fn the_check_finds_what_a_server_refuses() {
    let check = ["config", "check", "--offline"];
    let as_task = [&check[..], &["--job", "a", "--task", "0"]].concat();
    let two = "[cluster]\na = [\"127.0.0.1:29710\", \"10.0.0.1:29710\"]\n";
    let listening = format!("listen = \"0.0.0.0:29710\"\n{UNDEFINED}");
    for (text, arguments, part) in [
        (
            EXPOSED,
            &check[..],
            "cluster: 10.0.0.1:29710 can be reached",
        ),
        (EXPOSED, &as_task, "cluster: 10.0.0.1:29710 can be reached"),
        // It serves all tasks.
        (two, &check, "cluster: 10.0.0.1:29710 can be reached"),
        (UNDEFINED, &check, "task: Job \"pz\" was not defined"),
        (&listening, &check, "listen: 0.0.0.0:29710 can be reached"),
    ] {
        refused(text, arguments, 78, &[part]);
    }
    for text in [
        format!("insecure = true\n{EXPOSED}"),
        "[cluster]\na = [\"127.0.0.1:29710\", \"127.0.0.1:29711\"]\n".into(),
        // Which this is, is not said, and it listens nowhere.
        "shards = 1\n".into(),
    ] {
        let (code, said) = ends(&text, &check);
        assert_eq!(code, Some(0), "{said}");
    }
    // As this task it listens for this machine only.
    let (code, said) = ends(two, &as_task);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn settings_that_cannot_work_end_a_server_with_78() {
    for (text, reason) in [
        (EXPOSED, "CONTROL_EXPOSED"),
        (UNDEFINED, "CLUSTER_TASK_UNDEFINED"),
        (
            "task = \"ps:0\"\n[cluster]\nps = [\"127.0.0.1:29710\"]\n",
            "CONFIG",
        ),
    ] {
        // The listener is not reached, or the address is not this machine's: it ends either way.
        let arguments = ["serve", "--shards=1", "--share-cores=true"];
        refused(text, &arguments, 78, &[&format!("error[{reason}]: ")]);
    }
    let both = ["--task /job:worker/task:0", "ps:0"];
    let malformed = "task = \"ps:0\"\n[cluster]\nps = [\"127.0.0.1:29710\"]\n";
    refused(malformed, &["cluster", "show"], 78, &both);
}

/// Settings are right although a peer comes later.
#[test]
fn the_check_ends_otherwise_if_a_task_is_only_not_reached() {
    let [own, other] = free_ports().map(|port| format!("127.0.0.1:{port}"));
    let text = format!("task = \"/job:a/task:0\"\n[cluster]\na = [\"{own}\"]\nb = [\"{other}\"]\n");
    refused(&text, &["config", "check"], 12, &["is not reached"]);
    let wrong = format!("listen = \"0.0.0.0:0\"\n{text}");
    let parts = ["is not reached", "can be reached from other machines"];
    refused(&wrong, &["config", "check"], 78, &parts);
}

#[test]
fn up_refuses_what_all_tasks_cannot_be() {
    let (folder, path) = configured("[cluster]\na = [\"127.0.0.1:29710\"]\n");
    let path = path.to_str().expect("a text");
    for (arguments, part) in [
        (&["--config", "other.toml"][..], "leave out --config, --job"),
        (&["--job", "a"], "leave out --config, --job"),
        (&["--task", "/job:a/task:0"], "leave out --config, --job"),
        (&["--job", "a", "--task", "0"], "leave out --config, --job"),
        (&["--check", "--", "true"], "cannot be used with"),
    ] {
        let output = command(folder.path(), &[], &[&["up", path][..], arguments].concat())
            .output()
            .expect("the command starts");
        let said = both(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.starts_with("error[USAGE]: "), "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
    }
    let output = command(folder.path(), &[], &["up", "--help"])
        .output()
        .expect("the command starts");
    let help = both(&output);
    assert!(help.contains("--shards"), "{help}");
    for hidden in ["--config <", "--job <", "--task <"] {
        assert!(!help.contains(hidden), "{hidden} in {help}");
    }
}

#[test]
fn what_names_no_task_is_told_the_forms() {
    for task in ["ps:0", "/job:ps"] {
        let parts = ["--job worker --task 0", "--task /job:worker/task:0"];
        refused("", &["cluster", "show", "--task", task], 2, &parts);
    }
    for arguments in [["stat", "--watch", "2s"], ["stat", "2s", "--watch"]] {
        refused("", &arguments, 2, &["did you mean `--watch=2s`?"]);
    }
}

/// However long it may wait: the task is not there to come.
#[test]
fn a_push_to_a_task_that_the_cluster_does_not_have_ends_at_once() {
    let [a, b] = free_ports().map(|port| format!("127.0.0.1:{port}"));
    let text = format!("shards = 1\n[cluster]\na = [\"{a}\"]\nb = [\"{b}\"]\n");
    let with = |arguments: &[&'static str]| {
        let own = ["--job", "a", "--task", "0", "--share-cores"];
        [arguments, &own].concat()
    };
    let names = [
        "CLUSTER_TASK_UNDEFINED",
        "/job:c/replica:0/task:0 is neither",
        "/job:b/replica:0/task:0",
    ];
    refused(&text, &with(&["push", "--to", "/job:c/task:0"]), 78, &names);
    refused(
        &text,
        &with(&["pull", "--from", "/job:c/task:0"]),
        78,
        &names,
    );
    // One that may come is waited for, and it is said what makes the wait longer.
    let late = with(&["push", "--to", "/job:b/task:0", "--patience", "300ms"]);
    let (code, said) = ends(&text, &late);
    assert_eq!(code, Some(10), "{said}");
    assert!(said.contains("raise `--patience`"), "{said}");
    assert!(!said.contains("connect_timeout"), "{said}");
}

/// A question which task listens somewhere is no refusal that its owner must look into.
#[test]
fn a_question_by_address_leaves_no_refusal_in_the_log() {
    let [port] = free_ports();
    let address = format!("127.0.0.1:{port}");
    let (folder, path) = configured(&format!("[cluster]\na = [\"{address}\"]\n"));
    let path = path.to_str().expect("a text");
    let serve = [
        "serve",
        "--config",
        path,
        "--shards=1",
        "--share-cores=true",
    ];
    let mut serving = command(folder.path(), &[("RENDEZ_LOG", "debug")], &serve)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut first = String::new();
    let mut output = BufReader::new(serving.stdout.take().expect("a pipe"));
    output.read_line(&mut first).expect("a line");
    assert!(first.contains(&address), "{first}");
    let errors = serving.stderr.take().expect("a pipe");
    let log = std::thread::spawn(move || {
        let mut log = String::new();
        BufReader::new(errors)
            .read_to_string(&mut log)
            .expect("a log");
        log
    });
    let ping = command(folder.path(), &[], &["ping", &address, "--patience=20s"])
        .output()
        .expect("the command starts");
    let pid = rustix::process::Pid::from_child(&serving);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
    let until = Instant::now() + Duration::from_secs(20);
    while serving.try_wait().expect("a child").is_none() {
        if Instant::now() > until {
            serving.kill().expect("ended");
        }
        std::thread::yield_now();
    }
    let log = log.join().expect("read");
    assert!(ping.status.success(), "{}\n{log}", both(&ping));
    assert!(log.contains("an observer was told who is here"), "{log}");
    assert!(!log.contains("a connection was refused"), "{log}");
}
