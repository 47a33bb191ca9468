//! Pages of logs that are long, and measurements beside former ones.

use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::command;
use rendez_cli::histogram::{HdrLog, Interval, Recorder};

/// Whole histograms of all these intervals would take six hundred megabytes.
#[test]
fn a_log_of_many_intervals_needs_little_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.hlog");
    let mut log = HdrLog::create(&path, "times").expect("writable");
    let mut recorder = Recorder::nanos();
    recorder.record(200);
    let interval = Interval {
        tag: "pingpong-shm-64".into(),
        start: SystemTime::now(),
        duration: Duration::from_secs(1),
        recorder,
    };
    for _ in 0..3000 {
        log.write(&interval).expect("written");
    }
    let html = folder.path().join("run.html");
    let output = Command::new("sh")
        .args(["-c", "ulimit -v 400000 && exec \"$@\"", "sh"])
        .args([env!("CARGO_BIN_EXE_rendez"), "report"])
        .arg(&path)
        .arg("--html")
        .arg(&html)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let page = std::fs::read_to_string(html).expect("a page");
    assert!(page.contains("<td data-of=\"count\">3000</td>"));
}

/// What was measured with other options is another thing, and not slower or faster.
#[test]
fn only_rows_of_the_same_options_are_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = folder.path().join("before.json");
    let bench = |options: &[&str]| {
        let local = ["bench", "--transport", "local", "--size", "8", "--json"];
        command(folder.path(), &[], &local)
            .args(["--duration", "20ms", "--warmup", "0s"])
            .args(options)
            .output()
            .expect("it starts")
    };
    let parked = bench(&["--parked", "100"]);
    assert!(parked.status.success(), "{parked:?}");
    std::fs::write(&before, &parked.stdout).expect("is written");
    let before = before.to_str().expect("a text");
    let compare = ["--compare", before, "--max-regress", "1000000%"];
    let same = bench(&[&compare[..], &["--parked", "100"]].concat());
    assert!(same.status.success(), "{same:?}");
    let other = bench(&compare);
    let said = String::from_utf8_lossy(&other.stderr);
    assert_eq!(other.status.code(), Some(1), "{said}");
    assert!(said.starts_with("error[BENCH_ROWS_MALFORMED]: "), "{said}");
    assert!(said.contains("--parked (100 before, none now)"), "{said}");
    assert!(other.stdout.is_empty(), "nothing is measured in vain");
}
